// Calls on pools of states through a run: recorded pools slot by slot, and slots that nobody may touch.
#include <cmath>
#include <filesystem>
#include <limits>

#include "fixture/fixture.hpp"
#include "support/catch.hpp"
#include "support/judged_call.hpp"
#include "support/pools.hpp"
#include "support/temporary_fixture.hpp"

namespace pools_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;
using test::TemporaryFixture;

namespace {

kda::Problem drafts(DType dtype = DType::fp32) {
  return test::make_pool_problem(test::draft_spec(), test::draft_table(), 20, dtype);
}

/// Of an answer of which something is changed: the place that its failure names.
template <class Change>
std::string failure(DType dtype, Change change) {
  const kda::Problem problem = drafts(dtype);
  kda::Tensors answer = test::pool_answer(problem);
  change(answer);
  const report::CaseResult item = test::judged_call(problem, answer);
  std::string places;
  for (const report::TensorResult& tensor : item.tensors)
    if (tensor.verdict == Verdict::fail) places += (places.empty() ? "" : " ") + tensor.worst->place;
  CHECK((item.verdict == Verdict::fail) == !places.empty());
  return places;
}

std::size_t element(std::size_t slot, std::size_t head, std::size_t k, std::size_t v) {
  return ((slot * 4 + head) * 8 + k) * 6 + v;
}

}  // namespace

TEST_CASE("a recorded pool passes in any element type, and its slots are compared", "[pool]") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const kda::Problem problem = drafts(dtype);
    const report::CaseResult item = test::judged_call(problem, test::pool_answer(problem));
    INFO(item.reason);
    CHECK(item.verdict == Verdict::pass);
    REQUIRE(item.tensors.size() == 3);
    CHECK(item.tensors[1].name == "final_state");
    CHECK(item.tensors[1].dtype == numeric::name_of(dtype));
    // Places are those of the call, and so are shapes.
    CHECK(item.tensors[0].shape == problem.pool->problem.v.shape());
    CHECK(item.tensors[1].shape == problem.pool->states.shape());
    CHECK(item.tensors[2].shape == problem.pool->states.shape());
    CHECK(item.tensors[2].name == "state_pool");
    CHECK(test::metric_of(item.tensors[2], "differing_bits") == 0);
  }
}

TEST_CASE("a state that is wrong in one slot fails there", "[pool]") {
  CHECK(failure(DType::fp32, [](kda::Tensors& answer) {
          tensor::Tensor& pool = answer.at("state_pool");
          for (const std::size_t v : {0u, 1u, 2u}) pool.set(element(10, 3, 1, v), 9);
        }).starts_with("state_pool[s=10 h=3 k=1"));
}

TEST_CASE("a slot that nobody stores to fails where a bit of it changed", "[pool]") {
  CHECK(failure(DType::bf16, [](kda::Tensors& answer) {
          answer.at("state_pool").at(element(14, 2, 5, 4))[0] ^= std::byte{1};
        }) == "state_pool[s=14 h=2 k=5 v=4]");
}

TEST_CASE("of a slot that nobody stores to a NaN and the sign of a zero are kept too", "[pool]") {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), -0.0}) {
    kda::PoolCall call = test::make_call(test::draft_spec(), test::draft_table(), 20, DType::bf16);
    call.states.set(element(16, 2, 5, 4), value);
    const kda::Problem problem = kda::ordinary_form(std::move(call));
    kda::Tensors answer = test::pool_answer(problem);
    CHECK(test::judged_call(problem, answer).verdict == Verdict::pass);
    answer.at("state_pool").at(element(16, 2, 5, 4))[std::isnan(value) ? 0 : 1] ^=
        std::byte{static_cast<unsigned char>(std::isnan(value) ? 1 : 0x80)};
    const report::CaseResult changed = test::judged_call(problem, answer);
    CHECK(changed.verdict == Verdict::fail);
    REQUIRE(changed.tensors.size() == 3);
    REQUIRE(changed.tensors[2].worst);
    CHECK(changed.tensors[2].worst->place == "state_pool[s=16 h=2 k=5 v=4]");
  }
}

TEST_CASE("an output fails at its place in the call", "[pool]") {
  CHECK(failure(DType::fp32, [](kda::Tensors& answer) {
          tensor::Tensor& o = answer.at("o");
          for (std::size_t v = 0; v < 6; ++v) o.set((8 * 4 + 1) * 6 + v, 5);
        }).starts_with("o[b=0 t=8 h=1"));
}

TEST_CASE("outputs of padding are not compared", "[pool]") {
  CHECK(failure(DType::fp32, [](kda::Tensors& answer) {
          tensor::Tensor& o = answer.at("o");
          for (std::size_t i = 0; i < 24; ++i) o.set(1 * 24 + i, 7), o.set(10 * 24 + i, 7);
        }).empty());
}

TEST_CASE("a draft whose states are one slot late fails in every slot of it", "[pool]") {
  CHECK(failure(DType::fp32, [](kda::Tensors& answer) {
          tensor::Tensor& pool = answer.at("state_pool");
          const std::size_t bytes = pool.bytes() / 20;
          const std::vector<std::byte> first(pool.data(), pool.data() + bytes);
          std::memcpy(pool.data() + 0 * bytes, pool.data() + 1 * bytes, bytes);
          std::memcpy(pool.data() + 1 * bytes, pool.data() + 10 * bytes, bytes);
          std::memcpy(pool.data() + 10 * bytes, pool.data() + 15 * bytes, bytes);
        }).starts_with("state_pool[s="));
}

TEST_CASE("a call is the same after it was written and read", "[pool]") {
  const kda::Problem problem = drafts(DType::bf16);
  const kda::Problem again = test::check_kept(problem);
  CHECK(kda::Outline(again) == kda::Outline(problem));
  CHECK(test::differing_bits(again.pool->states, problem.pool->states) == 0);
  CHECK(test::differing_bits(again.q, problem.q) == 0);
}

TEST_CASE("a call with two tables and two pools is the same after it was written and read, and passes",
          "[pool]") {
  kda::PoolCall call = test::make_call(test::draft_spec(), test::draft_table(), 20);
  call.source = test::make_call(test::draft_spec(), test::draft_table(), 30, DType::bf16).states.clone();
  call.table.output_columns = 4, call.table.padding_output = kda::PaddingOutput::zero;
  call.table.has_state = {1, 0, 1, 0, 1, 1, 0};
  for (std::int64_t i = 0; i < 28; ++i) call.table.outputs.push_back(i % 5 == 3 || i > 19 ? -1 : 19 - i);
  const kda::Problem problem = kda::ordinary_form(std::move(call));
  const kda::Problem again = test::check_kept(problem);
  CHECK(kda::Outline(again) == kda::Outline(problem));
  CHECK(test::differing_bits(*again.pool->source, *problem.pool->source) == 0);
  CHECK(test::judged_call(problem, test::pool_answer(problem)).verdict == Verdict::pass);
  // What is read must stay: nobody stores there.
  kda::Tensors answer = test::pool_answer(problem);
  answer.at("o").set(1 * 24 + 3, 7);
  const report::CaseResult padded = test::judged_call(problem, answer);
  CHECK(padded.verdict == Verdict::fail);
  CHECK_THAT(padded.reason, ContainsSubstring("padding_output: row 1 is padding, and its o is not zero"));
}

TEST_CASE("a slot that is read and stored to by nobody is named with who reads it", "[pool]") {
  kda::PoolCall call = test::make_call(test::draft_spec(), test::draft_table(), 40);
  call.table.output_columns = 4;
  for (std::int64_t i = 0; i < 28; ++i) call.table.outputs.push_back(i < 19 ? 20 + i : -1);
  const kda::Problem problem = kda::ordinary_form(std::move(call));
  kda::Tensors answer = test::pool_answer(problem);
  answer.at("state_pool").set(element(5, 1, 2, 3), 7);
  CHECK_THAT(test::judged_call(problem, answer).reason,
             ContainsSubstring("slot 5, which sequence 2 reads and no row stores to, was written"));
}

TEST_CASE("the ordinary form of a call counts for the memory budget", "[pool]") {
  const TemporaryFixture file(drafts(DType::bf16));
  fixture::ReadLimits limits;
  limits.memory_budget = 0;
  for (const fixture::DatasetInfo& info : fixture::read_header(file.path).inputs)
    limits.memory_budget += info.bytes();
  CHECK_THROWS_WITH(
      fixture::read_header(file.path, limits),
      ContainsSubstring("11 states are stored, each a sequence of its own, of 21 tokens in all"));
  limits.memory_budget *= 4;
  CHECK_NOTHROW(fixture::read_header(file.path, limits));
}

TEST_CASE("variants, the chunk form too, answer calls and are judged, in the element type that is asked for",
          "[pool]") {
  const TemporaryFixture file(drafts(DType::bf16));
  plan::Request request = test::request_for({file.path}, plan::Names{"naive", "recurrent", "chunk"});
  request.selection.dtypes = plan::Names{"fp64", "fp32", "bf16"};
  const report::Document document = test::ran(request);
  CHECK(document.cases.size() == 9);
  for (const report::CaseResult& item : document.cases) {
    INFO(item.variant << ' ' << item.dtype << ' ' << item.reason);
    CHECK(item.verdict == Verdict::pass);
  }
}

TEST_CASE("what variants answer to a call is stored as o and the pool, and read again", "[pool]") {
  const kda::Problem problem = drafts(DType::fp32);
  const TemporaryFixture file(problem);
  plan::Request request = test::request_for({file.path}, plan::Task::capture);
  request.selection.variants = plan::Names{"recurrent"};
  request.capture_stages = true;
  REQUIRE(test::ran(request).failures.empty());
  const fixture::Fixture read = fixture::Fixture::open(file.path);
  const fixture::ExpectedGroup& group = read.expected().at(0);
  const kda::Tensors expected = test::pool_answer(problem);
  CHECK(test::differing_bits(read.read(*group.tensor("o")), expected.at("o")) == 0);
  CHECK(test::differing_bits(read.read(*group.tensor("state_pool")), expected.at("state_pool")) == 0);
  CHECK(group.tensors.size() == 2);
}

TEST_CASE("a program is asked for the call, and its pool is held to all of it", "[pool]") {
  const TemporaryFixture file(drafts(DType::fp32));
  const auto with = [&](std::string command, plan::Names dtypes = {}) {
    plan::Request request = test::request_for({file.path});
    if (!dtypes.empty()) request.selection.dtypes = std::move(dtypes);
    request.selection.variants.emplace();
    request.external = plan::ExternalProgram{std::move(command), "mine", 60};
    return test::case_of(test::ran(request), "mine", "oracle");
  };
  // It changes nothing: outputs are missing, and no slot was touched.
  const report::CaseResult idle = with("true # {in} {out}");
  CHECK(idle.verdict != Verdict::pass);
  REQUIRE(idle.tensors.size() == 3);
  CHECK(idle.tensors[2].verdict == Verdict::pass);
  // In another element type than the file's it is the same call, with rounded inputs.
  const report::CaseResult rounded = with("true # {in} {out}", {"bf16"});
  REQUIRE(rounded.tensors.size() == 3);
  CHECK(rounded.tensors[2].name == "state_pool");
}

}  // namespace pools_tests
