#include "kda/problem/problem.hpp"

#include <cmath>

#include "base/error.hpp"
#include "kda/bounds/gate_statistics.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace problem_tests {

using namespace kda_check;
using test::ProblemSpec;

namespace {

template <class Change>
std::string refusal(Change change, ProblemSpec spec = {}) {
  kda::Problem problem = test::make_problem(spec);
  change(problem);
  try {
    problem.validate();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    return error.what();
  }
  return "accepted";
}

tensor::Tensor zeros(const char* name, tensor::Shape shape) {
  tensor::Tensor tensor(name, numeric::DType::fp32, std::move(shape));
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, 0);
  return tensor;
}

}  // namespace

TEST_CASE("a problem with wrong shapes says what it is and what it should be", "[problem]") {
  CHECK(refusal([](kda::Problem&) {}) == "accepted");
  CHECK_THAT(refusal([](kda::Problem& p) {
               p.g = zeros("g", {1, 20, 1, 16});
             }),
             ContainsSubstring("inputs/g is [1,20,1,16] but inputs/q says K = 8"));
  CHECK_THAT(refusal([](kda::Problem& p) {
               p.k = zeros("k", {1, 20, 1, 9});
             }),
             ContainsSubstring("inputs/k is [1,20,1,9] but inputs/q is [1,20,1,8]"));
  CHECK_THAT(refusal([](kda::Problem& p) {
               p.v = zeros("v", {1, 19, 1, 6});
             }),
             ContainsSubstring("says T = 20"));
  CHECK_THAT(refusal([](kda::Problem& p) { p.beta = zeros("beta", {1, 20}); }), ContainsSubstring("rank 2"));
  CHECK_THAT(refusal([](kda::Problem& p) {
               p.q = zeros("q", {1, 20, 0, 8});
             }),
             ContainsSubstring("empty extent"));
}

TEST_CASE("a state in the other layout is named as such", "[problem]") {
  CHECK_THAT(refusal([](kda::Problem& p) {
               p.initial_state = zeros("initial_state", {1, 1, 6, 8});
             }),
             ContainsSubstring("the other state layout"));
  CHECK_THAT(refusal([](kda::Problem& p) {
               p.initial_state = zeros("initial_state", {2, 1, 8, 6});
             }),
             ContainsSubstring("wanted [1,1,8,6]"));
}

TEST_CASE("packed offsets must run from 0 to T without going back", "[problem]") {
  const auto with = [](std::vector<std::int64_t> offsets) {
    return [offsets](kda::Problem& p) { p.cu_seqlens = offsets, p.initial_state.reset(); };
  };
  CHECK(refusal(with({0, 7, 20})) == "accepted");
  CHECK_THAT(refusal(with({1, 7, 20})), ContainsSubstring("starts at 1"));
  CHECK_THAT(refusal(with({0, 7, 19})), ContainsSubstring("ends at 19"));
  CHECK_THAT(refusal(with({0, 9, 7, 20})), ContainsSubstring("decreases from 9 to 7"));
  CHECK_THAT(refusal(with({0})), ContainsSubstring("N + 1 >= 2"));
  ProblemSpec batch;
  batch.B = 2;
  CHECK_THAT(refusal(with({0, 20}), batch), ContainsSubstring("wanted B = 1"));
}

TEST_CASE("options that contradict each other are refused", "[problem]") {
  CHECK_THAT(refusal([](kda::Problem& p) { p.options.gate = kda::Gate::softplus; }),
             ContainsSubstring("A_log is missing"));
  CHECK_THAT(refusal([](kda::Problem& p) { p.options.gate = kda::Gate::lower_bound; }),
             ContainsSubstring("lower_bound is missing"));
  CHECK_THAT(refusal([](kda::Problem& p) { p.options.allow_neg_eigval = true; }),
             ContainsSubstring("beta_sigmoid is 0"));
  CHECK_THAT(refusal([](kda::Problem& p) { p.options.chunk_size = 0; }),
             ContainsSubstring("chunk_size is 0"));
  CHECK_THAT(refusal([](kda::Problem& p) { p.options.scale = HUGE_VAL; }), ContainsSubstring("finite"));
}

TEST_CASE("dimensions count chunks per sequence", "[problem]") {
  ProblemSpec spec;
  spec.T = 100, spec.chunk_size = 16, spec.cu_seqlens = {0, 1, 1, 33, 100}, spec.initial_state = false;
  const kda::Problem problem = test::make_problem(spec);
  CHECK(problem.dimensions().N == 4);
  CHECK(problem.dimensions().NT == 1 + 0 + 2 + 5);
}

TEST_CASE("a problem has a place for every input of the schema, in its order", "[problem]") {
  std::vector<std::pair<std::string_view, bool>> places, inputs;
  for (const kda::InputSlot& slot : kda::input_slots)
    places.emplace_back(slot.name, slot.required != nullptr && slot.optional == nullptr &&
                                       slot.name != "beta");  // erase and write may stand in its place
  for (const kda::TensorSpec& spec : kda::tensor_specs())
    if (spec.group == kda::TensorGroup::input &&
        spec.axes[0] != kda::Axis::slot)  // of a call (kda/pool/pool.hpp)
      inputs.emplace_back(spec.name, spec.required);
  CHECK(places == inputs);
}

TEST_CASE("a clone keeps the element type of every tensor", "[problem]") {
  kda::Problem problem = test::make_problem({});
  problem.q = problem.q.converted_to(numeric::DType::bf16);
  problem.validate();
  const kda::Problem copy = kda::clone(problem);
  CHECK(test::differing_bits(copy.q, problem.q) == 0);
  CHECK(test::differing_bits(copy.k, problem.k) == 0);
  CHECK(test::differing_bits(copy.v, problem.v) == 0);
}

TEST_CASE("the regime is read off the gates", "[problem]") {
  ProblemSpec spec;
  spec.T = 100, spec.initial_state = false;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, -0.25);
  const kda::GateStatistics regime = kda::gate_statistics(problem, 64, 2);
  CHECK(regime.largest_chunk_sum == 16.0);
  CHECK(regime.persistence == Approx(1 / (1 - std::exp(-0.25))));
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, 0);
  CHECK(kda::gate_statistics(problem, 64, 1).persistence == 100.0);
}

TEST_CASE("persistence counts what is left of every token, and begins anew with a sequence", "[problem]") {
  ProblemSpec spec;
  spec.T = 100, spec.initial_state = false, spec.cu_seqlens = {0, 30, 100};
  kda::Problem problem = test::make_problem(spec);
  const std::size_t K = spec.K;
  const auto reset = [&](std::size_t t) {
    for (std::size_t k = 0; k < K; ++k) problem.g.set(t * K + k, -1000);
  };
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, 0);
  for (const std::size_t chunk : std::vector<std::size_t>{16, 64}) {
    const kda::GateStatistics whole = kda::gate_statistics(problem, chunk, 1);
    CHECK(whole.persistence == 70);
    for (const std::size_t t : std::vector<std::size_t>{0, 29, 30, 99})
      CHECK(whole.behind[t] == static_cast<float>(t < 30 ? t + 1 : t - 29));
  }
  // A channel that forgets once has forgotten; the others have not.
  reset(50);
  problem.g.set(50 * K + 3, 0);
  const kda::GateStatistics once = kda::gate_statistics(problem, 64, 1);
  CHECK(once.channels[K + 3].behind == 70);
  CHECK(once.channels[K].behind == 50);
  CHECK(once.behind[50] == 21);
}

TEST_CASE("what an initial state brought in is as old as its sequence", "[problem]") {
  ProblemSpec spec;
  spec.T = 100, spec.initial_state = true;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, -0.01);
  const kda::GateStatistics gates = kda::gate_statistics(problem, 64, 1);
  const double left = std::exp(-1.0), written = (1 - left) / (1 - std::exp(-0.01));
  CHECK(gates.channels[0].behind == Approx(written).epsilon(1e-4));
  CHECK(gates.channels[0].left == Approx(left).epsilon(1e-4));
  CHECK(gates.behind[99] == Approx(written + 100 * left).epsilon(1e-4));
}

}  // namespace problem_tests
