// Calls on pools of states and their ordinary form.
#include "kda/pool/pool.hpp"

#include "base/error.hpp"
#include "kda/problem/excerpt.hpp"
#include "support/catch.hpp"
#include "support/pools.hpp"
#include "tensor/rearranged.hpp"

namespace pool_tests {

using namespace kda_check;
using kda::PaddingSlots;

namespace {

using Numbers = std::vector<std::int64_t>;

std::string refusal(const test::ProblemSpec& spec, Numbers indices, std::size_t columns = 0,
                    Numbers accepted = {}, PaddingSlots padding = PaddingSlots::none) {
  try {
    test::make_pool_problem(spec, {std::move(indices), columns, std::move(accepted), padding}, 20);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    return error.what();
  }
  return "accepted";
}

test::ProblemSpec rows_of(std::size_t B, std::size_t T) {
  test::ProblemSpec spec;
  spec.B = B, spec.T = T;
  return spec;
}

/// The state of one slot.
tensor::Tensor slot_of(const tensor::Tensor& pool, std::size_t slot) {
  tensor::Shape shape = pool.shape();
  shape[0] = 1;
  tensor::Tensor state("final_state", pool.dtype(), shape);
  std::memcpy(state.data(), pool.data() + slot * state.bytes(), state.bytes());
  return state;
}

}  // namespace

TEST_CASE("a call has a piece for every state that is stored, and none of padding", "[pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  const std::vector<kda::PoolPiece>& pieces = problem.pool->pieces;
  std::vector<std::array<std::size_t, 4>> got;
  for (const kda::PoolPiece& piece : pieces)
    got.push_back({piece.tokens.begin, piece.tokens.end, piece.from, piece.to});
  CHECK(got == std::vector<std::array<std::size_t, 4>>{{0, 1, 9, 9},
                                                       {2, 3, 5, 2},
                                                       {2, 4, 5, 5},
                                                       {2, 5, 5, 6},
                                                       {5, 6, 14, 12},
                                                       {6, 7, 10, 0},
                                                       {6, 8, 10, 1},
                                                       {6, 9, 10, 10},
                                                       {6, 10, 10, 15},
                                                       {11, 12, 19, 19},
                                                       {11, 13, 19, 18}});
  CHECK(problem.dimensions().N == 11);
  CHECK(kda::slots_left_alone(*problem.pool) == std::vector<std::size_t>{3, 4, 7, 8, 11, 13, 14, 16, 17});
}

TEST_CASE("a draft is its tokens one by one, whose states are stored in the columns of its row", "[pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  const kda::PoolCall& call = *problem.pool;
  const kda::Tensors answer = test::pool_answer(problem);
  tensor::Tensor state = slot_of(call.states, 10);  // of the sequence of tokens 6 to 10
  const std::size_t columns[] = {0, 1, 10, 15};
  const kda::Sequence tokens = call.problem.sequences()[4];
  const std::size_t row = answer.at("o").bytes() / answer.at("o").shape()[1];
  for (std::size_t t = 0; t < 4; ++t) {
    std::vector<kda::Sequence> one{tokens.part(t, t + 1)};
    one.front().index = 0;
    const kda::Answer step =
        test::run(kda::excerpt(call.problem, one, kda::Layout::packed, {&state, nullptr}), "recurrent",
                  numeric::DType::fp32);
    state = step.final_state.clone();
    CHECK(test::differing_bits(slot_of(answer.at("state_pool"), columns[t]), state) == 0);
    CHECK(std::memcmp(step.o.data(), answer.at("o").data() + (6 + t) * row, row) == 0);
  }
}

TEST_CASE("slots that nobody stores to keep their bits, and padding has zeros", "[pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  const kda::Tensors answer = test::pool_answer(problem);
  for (const std::size_t slot : kda::slots_left_alone(*problem.pool))
    CHECK(test::differing_bits(slot_of(answer.at("state_pool"), slot), slot_of(problem.pool->states, slot)) ==
          0);
  const tensor::Tensor& o = answer.at("o");
  const std::size_t width = o.size() / o.shape()[1];
  for (const std::size_t token : {1, 10})
    for (std::size_t i = 0; i < width; ++i) CHECK(o.value(token * width + i) == 0);
}

TEST_CASE("an answer to a call and its ordinary form say the same", "[pool]") {
  for (const numeric::DType dtype : {numeric::DType::fp32, numeric::DType::bf16, numeric::DType::fp16}) {
    const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20, dtype);
    const kda::Tensors call = test::pool_answer(problem);
    CHECK(call.at("state_pool").dtype() == dtype);
    const kda::Tensors ordinary = kda::of_ordinary_form(*problem.pool, kda::clone(call));
    const kda::Answer answer = test::run(problem, "recurrent", numeric::DType::fp32);
    CHECK(test::differing_bits(ordinary.at("o"), answer.o) == 0);
    CHECK(test::differing_bits(ordinary.at("final_state"), answer.final_state.converted_to(dtype)) == 0);
    const kda::Tensors again = kda::of_call(*problem.pool, ordinary);
    CHECK(test::differing_bits(again.at("o"), call.at("o")) == 0);
    CHECK(test::differing_bits(again.at("state_pool"), call.at("state_pool")) == 0);
  }
}

TEST_CASE("places of the ordinary form are told as those of the call", "[pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  std::vector<std::size_t> state{7, 3, 1, 2}, token{0, 16, 2, 5};
  CHECK(kda::place_in_call(*problem.pool, "final_state", state) == "state_pool[s=10 h=3 k=1 v=2]");
  CHECK(kda::place_in_call(*problem.pool, "o", token) == "o[b=0 t=8 h=2 v=5]");
  CHECK(token == std::vector<std::size_t>{0, 8, 2, 5});
}

TEST_CASE("a call with rounded inputs is a call on the same pool", "[pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  const kda::Problem rounded = kda::with_inputs_rounded_to(problem, numeric::DType::bf16);
  REQUIRE(rounded.pool);
  CHECK(rounded.pool->problem.dtype() == numeric::DType::bf16);
  CHECK(rounded.pool->table == problem.pool->table);
  CHECK(test::differing_bits(rounded.pool->states, problem.pool->states) == 0);
  CHECK(test::differing_bits(rounded.q, problem.q.converted_to(numeric::DType::bf16)) == 0);
}

TEST_CASE("a request without an initial state starts from zero, whatever its slot holds", "[pool]") {
  const auto answered = [](std::vector<std::int64_t> has_state, double held) {
    kda::PoolCall call = test::make_call(rows_of(3, 4), {{5, 3, 8}, 0, {}}, 20);
    call.table.has_state = std::move(has_state);
    for (std::size_t i = 0; i < call.states.size() / 20; ++i)
      call.states.set(3 * call.states.size() / 20 + i, held);
    const kda::Problem problem = kda::ordinary_form(std::move(call));
    CHECK(kda::slots_left_alone(*problem.pool).size() == 17);
    return test::pool_answer(problem);
  };
  const kda::Tensors zero = answered({}, 0);
  for (const double held : {7.0, std::numeric_limits<double>::quiet_NaN()}) {
    const kda::Tensors fresh = answered({1, 0, 1}, held);
    CHECK(test::differing_bits(fresh.at("o"), zero.at("o")) == 0);
    CHECK(test::differing_bits(fresh.at("state_pool"), zero.at("state_pool")) == 0);
    CHECK(test::differing_bits(answered({1, 1, 1}, held).at("o"), zero.at("o")) > 0);
  }
}

TEST_CASE("a state is read in one slot and stored in another, of another pool too, or nowhere", "[pool]") {
  for (const bool elsewhere : {false, true}) {
    kda::PoolCall call = test::make_call(rows_of(3, 4), {{5, -1, 8}, 0, {}, PaddingSlots::negative}, 20);
    const kda::Tensors in_place =
        test::pool_answer(kda::ordinary_form({kda::clone(call.problem), call.states.clone(), call.table}));
    if (elsewhere)
      call.source = call.states.clone(),
      call.states = tensor::picked(call.states, 0, std::vector<std::size_t>{9, 4, 2});
    call.table.outputs = {2, 7, -1};
    const kda::Problem problem = kda::ordinary_form(std::move(call));
    REQUIRE(problem.pool->pieces.size() == 2);
    CHECK(problem.pool->padding.size() == 1);
    CHECK_FALSE(problem.pool->pieces[1].is_stored());
    CHECK(kda::slots_left_alone(*problem.pool).size() == (elsewhere ? 2 : 19));
    const kda::Tensors answer = test::pool_answer(problem);
    CHECK(test::differing_bits(answer.at("o"), in_place.at("o")) == 0);
    CHECK(test::differing_bits(slot_of(answer.at("state_pool"), 2), slot_of(in_place.at("state_pool"), 5)) ==
          0);
    for (const std::size_t slot : kda::slots_left_alone(*problem.pool))
      CHECK(test::differing_bits(slot_of(answer.at("state_pool"), slot),
                                 slot_of(problem.pool->states, slot)) == 0);
  }
}

TEST_CASE("a table of outputs that cannot be is refused in one line", "[pool]") {
  const auto said = [](std::vector<std::int64_t> outputs, PaddingSlots padding = PaddingSlots::negative,
                       std::size_t columns = 0) {
    kda::PoolCall call = test::make_call(rows_of(2, 2), {{5, 3}, 0, {}, padding}, 20);
    call.table.outputs = std::move(outputs), call.table.output_columns = columns;
    try {
      kda::ordinary_form(std::move(call));
    } catch (const Error& error) {
      return error.found();
    }
    return std::string("taken");
  };
  CHECK(said({5, 9}) == "taken");
  CHECK(said({6, -1}) == "taken");
  CHECK(said({4, 5, 6, -1}, PaddingSlots::negative, 2) == "taken");
  CHECK_THAT(said({6, 20}), ContainsSubstring("inputs/output_indices[1] is 20; wanted 0..19"));
  CHECK_THAT(said({6, -1}, PaddingSlots::none), ContainsSubstring("inputs/output_indices[1] is -1"));
  CHECK_THAT(said({6, 6}), ContainsSubstring("names slot 6 in the rows of sequences 0 and 1"));
  CHECK_THAT(said({3, 9}), ContainsSubstring("slot 3 is read by sequence 1 and stored to by sequence 0"));
  CHECK_THAT(said({6}), ContainsSubstring("inputs/output_indices has 1 entries; wanted 2"));
  CHECK_THAT(said({6, 7}, PaddingSlots::negative, 1),
             ContainsSubstring("1 columns but sequence 0 has 2 tokens"));
}

TEST_CASE("what cannot be done with a table is refused in one line", "[pool]") {
  const test::ProblemSpec two = rows_of(2, 1), drafts = rows_of(2, 2);
  CHECK_THAT(refusal(two, {3, 3}), ContainsSubstring("names slot 3 in the rows of sequences 0 and 1"));
  CHECK_THAT(refusal(two, {3, 20}), ContainsSubstring("inputs/state_indices[1] is 20; wanted 0..19"));
  CHECK_THAT(refusal(two, {-1, 3}), ContainsSubstring("options/padding_slots"));
  CHECK_THAT(refusal(two, {1, 2, 3}), ContainsSubstring("has 3 entries; wanted 2"));
  CHECK_THAT(refusal(two, {-1, -1}, 0, {}, PaddingSlots::negative), ContainsSubstring("padding alone"));
  CHECK_THAT(refusal(two, {1, 2}, 0, {1, 1}), ContainsSubstring("wanted [N,S]"));
  CHECK_THAT(refusal(drafts, {1, 2}, 1), ContainsSubstring("1 columns but sequence 0 has 2 tokens"));
  CHECK_THAT(refusal(drafts, {1, 2, 3, 4}, 2, {1, 0}),
             ContainsSubstring("num_accepted_tokens[1] is 0; wanted 1..2"));
  CHECK_THAT(refusal(drafts, {1, 2, 3, 4}, 2, {1}), ContainsSubstring("has 1 entries; wanted 2"));
  CHECK_THAT(refusal(drafts, {1, 1, 3, 4}, 2), ContainsSubstring("a slot for each token"));
  CHECK_THAT(refusal(drafts, {1, -1, 3, 4}, 2, {}, PaddingSlots::negative),
             ContainsSubstring("inputs/state_indices[0,1] is -1, which is padding"));
  // For vLLM slot 0 is padding, and so is a count that the table does not have.
  CHECK(refusal(two, {0, 3}, 0, {}, PaddingSlots::nonpositive) == "accepted");
  CHECK(refusal(drafts, {1, 2, 3, 4}, 2, {3, 1}, PaddingSlots::nonpositive) == "accepted");
  CHECK(refusal(two, {0, 3}) == "accepted");
}

TEST_CASE("vLLM leaves out the states of single tokens, FlashInfer the last tokens of a row", "[pool]") {
  using Piece = std::array<std::size_t, 4>;
  const auto pieces = [](Numbers indices, Numbers accepted, PaddingSlots padding) {
    const kda::Problem problem =
        test::make_pool_problem(rows_of(2, 3), {std::move(indices), 3, std::move(accepted), padding}, 20);
    std::vector<Piece> got;
    for (const kda::PoolPiece& piece : problem.pool->pieces)
      got.push_back({piece.tokens.batch, piece.tokens.end - piece.tokens.begin, piece.from, piece.to});
    return got;
  };
  // Token 1 of the first row is computed all the same; of the second row nothing is stored behind token 0.
  CHECK(pieces({3, 0, 5, 7, 0, 0}, {1, 1}, PaddingSlots::nonpositive) ==
        std::vector<Piece>{{0, 1, 3, 3}, {0, 3, 3, 5}, {1, 1, 7, 7}});
  CHECK(pieces({3, 4, -1, 7, 8, 9}, {2, 1}, PaddingSlots::negative_tokens) ==
        std::vector<Piece>{{0, 1, 4, 3}, {0, 2, 4, 4}, {1, 1, 7, 7}, {1, 2, 7, 8}, {1, 3, 7, 9}});
  // Numbers of accepted tokens that there are not are the nearest; a row of padding is that as a whole.
  CHECK(
      pieces({3, 4, 5, 7, 8, 9}, {0, 8}, PaddingSlots::negative_tokens) ==
      std::vector<Piece>{{0, 1, 3, 3}, {0, 2, 3, 4}, {0, 3, 3, 5}, {1, 1, 9, 7}, {1, 2, 9, 8}, {1, 3, 9, 9}});
  CHECK(pieces({-1, -1, -1, 7, -1, -1}, {2, 1}, PaddingSlots::negative_tokens) ==
        std::vector<Piece>{{1, 1, 7, 7}});
  const test::ProblemSpec row = rows_of(1, 3);
  CHECK_THAT(refusal(row, {3, -1, 5}, 3, {1}, PaddingSlots::negative_tokens),
             ContainsSubstring(
                 "inputs/state_indices[0,1] is -1, which is padding, and token 2 behind it is stored in "
                 "slot 5"));
  CHECK_THAT(refusal(row, {3, -1, -1}, 3, {2}, PaddingSlots::negative_tokens),
             ContainsSubstring("inputs/state_indices[0,1] is -1, where the row begins"));
  CHECK_THAT(refusal(row, {-1, 4, -1}, 3, {1}, PaddingSlots::negative_tokens),
             ContainsSubstring("where the row begins, and token 1 is stored in slot 4"));
}

TEST_CASE("o of tokens behind the last state that is stored is not in the ordinary form", "[pool]") {
  const kda::Problem problem =
      test::make_pool_problem(rows_of(1, 3), {{3, 0, 0}, 3, {}, PaddingSlots::nonpositive}, 20);
  const kda::Tensors answer = test::pool_answer(problem);
  const tensor::Tensor& o = answer.at("o");
  const std::size_t row = o.size() / 3;
  for (std::size_t i = 0; i < row; ++i) CHECK(o.value(i) != 0);
  for (std::size_t i = row; i < o.size(); ++i) CHECK(o.value(i) == 0);
}

TEST_CASE("slots beyond 2^31 elements are read and stored where they are", "[.large]") {
  // 2^31 elements of bf16 take 4 GiB, twice: the pool of the call and the one afterwards.
  test::ProblemSpec spec;
  spec.T = 2, spec.B = 2, spec.H = 1, spec.HV = 1, spec.K = 256, spec.V = 256, spec.initial_state = false;
  const std::size_t slots = (std::size_t{1} << 31) / (256 * 256) + 2;
  tensor::Tensor pool("state_pool", numeric::DType::bf16, {slots, 1, 256, 256});
  std::memset(pool.data(), 0, pool.bytes());
  for (std::size_t i = 0; i < 256 * 256; ++i) pool.set((slots - 1) * 65536 + i, 0.25);
  kda::Problem tokens = test::make_problem(spec);
  kda::Problem near_tokens = kda::clone(tokens);
  kda::PoolCall near{
      std::move(near_tokens), slot_of(pool, slots - 1), {{-1, 0}, 0, {}, PaddingSlots::negative}};
  const kda::Tensors expected = test::pool_answer(kda::ordinary_form(std::move(near)));
  const kda::Problem far =
      kda::ordinary_form({std::move(tokens),
                          std::move(pool),
                          {{-1, static_cast<std::int64_t>(slots) - 1}, 0, {}, PaddingSlots::negative}});
  const kda::Tensors got = test::pool_answer(far);
  CHECK(test::differing_bits(got.at("o"), expected.at("o")) == 0);
  CHECK(test::differing_bits(slot_of(got.at("state_pool"), slots - 1),
                             slot_of(expected.at("state_pool"), 0)) == 0);
  // What 32-bit offsets would have written to instead: element 2^31 + 65536 as 65536, or a negative one.
  CHECK(test::differing_bits(slot_of(got.at("state_pool"), 1), slot_of(far.pool->states, 1)) == 0);
}

}  // namespace pool_tests
