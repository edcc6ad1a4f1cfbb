#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "hypotheses/naming/faulty_output.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "kda/regimes/regimes.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/pools.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace faults_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;
using tensor::Tensor;
using test::TemporaryFixture;

namespace {

report::Document faults_of(const std::string& path) {
  return test::ran(test::explaining({path}, "faults"), test::on_threads(2));
}

kda::Problem problem() {
  test::ProblemSpec spec;
  spec.T = 40, spec.H = 2, spec.HV = 4, spec.K = 16, spec.V = 24, spec.gate = kda::Gate::softplus;
  return test::make_problem(spec);
}

/// The answer to the same inputs under another option: what a kernel that ignores the scale would leave.
TemporaryFixture without_scale() {
  kda::Problem misread = problem();
  misread.options.scale = 1.0;
  const kda::Answer answer = test::run(misread, "recurrent", DType::fp32);
  return TemporaryFixture(problem(), &answer, "faults");
}

}  // namespace

TEST_CASE("explain names the fault of an output that fails, in text and JSON", "[engine][faults]") {
  const TemporaryFixture file = without_scale();
  const report::Document document = faults_of(file.path);
  CHECK(report::exit_code(document) == 1);
  const std::vector<test::Item> found = test::items_of(document, "faults");
  REQUIRE(found.size() == 1);
  CHECK(found[0].words("output") == "somebody");
  CHECK(found[0].entry().verdict == Verdict::fail);
  const std::vector<test::Row> causes = found[0].rows("causes");
  REQUIRE(causes.size() == 1);
  CHECK(causes[0].words("fault") == "scale_missing");
  CHECK(causes[0].words("tensor") == "o");
  CHECK(causes[0].figure("rms_ratio") > 1);
  CHECK(causes[0].figure("rms_ratio_with_it") < 1e-6);
  CHECK(found[0].rows("nearest").empty());
  CHECK_THAT(
      report::write_text(document, {}),
      ContainsSubstring("FAIL - as if q is not scaled (scale_missing), 100.0 % explained: o rms_ratio "));
  const auto json = nlohmann::json::parse(report::write_json(document, {}));
  CHECK(json["faults"][0]["causes"][0]["fault"] == "scale_missing");
}

TEST_CASE("run names the fault in its reason, with or without twins", "[engine][faults]") {
  const TemporaryFixture file = without_scale();
  for (const bool twins : {true, false}) {
    plan::Request request = test::request_for({file.path}, plan::Names{});
    request.test = twins;
    const report::Document document = test::ran(request);
    REQUIRE(document.cases.size() == 1);
    CHECK_THAT(
        document.cases[0].tensors.at(0).reason,
        Catch::Matchers::StartsWith("bug: as if q is not scaled (scale_missing): 100.0 % explained; "));
  }
}

TEST_CASE("explain says when no fault explains a failure", "[engine][faults]") {
  const kda::Problem right = problem();
  kda::Answer answer = test::run(right, "recurrent", DType::fp32);
  for (std::size_t i = 0; i < answer.o.size(); i += 3)
    answer.o.set(i, answer.o.value(i) * (1 + 0.02 * std::sin(i)));
  const TemporaryFixture file(right, &answer, "faults");
  CHECK_THAT(report::write_text(faults_of(file.path), {}),
             ContainsSubstring("none of ") && ContainsSubstring(" known faults explains it"));
}

TEST_CASE("an output within its limits has no fault", "[engine][faults]") {
  const report::Document document = faults_of(test::case_fixtures() + "/fla_fp32_small.h5");
  CHECK(report::exit_code(document) == 0);
  for (const test::Item& item : test::items_of(document, "faults")) {
    CHECK(item.entry().verdict == Verdict::pass);
    CHECK(item.count("tried") == 0);
  }
}

TEST_CASE("explain names the fault of gradients, too", "[engine][faults]") {
  kda::Problem right = problem();
  right.output_gradient = right.v.clone().named("do");
  kda::GradientTensors gradients =
      kda::run_chunk_backward(right, test::default_options(right, "chunk", DType::fp32));
  Tensor& dq = gradients[static_cast<std::size_t>(kda::Gradient::dq)];
  for (std::size_t i = 0; i < dq.size(); ++i) dq.set(i, dq.value(i) / right.scale());
  std::vector<const Tensor*> recorded;
  for (const Tensor& tensor : gradients)
    if (!tensor.empty()) recorded.push_back(&tensor);
  const TemporaryFixture file(right, recorded, numeric::ComputeFormat::fp32, "faults");
  const report::Document document = faults_of(file.path);
  const std::vector<test::Item> found = test::items_of(document, "faults");
  REQUIRE(found.size() == 1);
  CHECK(found[0].words("pass") == "backward");
  REQUIRE(found[0].rows("causes").size() == 1);
  CHECK(found[0].rows("causes")[0].words("fault") == "unscaled_query");
}

namespace {

/// Of what is wrong with o of that answer, once `spoil` had it.
/// Why the recorded output of a file fails, a line for each tensor.
std::string reasons_of(const TemporaryFixture& file) {
  plan::Request request = test::request_for({file.path}, plan::Names{});
  std::string all;
  const report::Document document = test::ran(request);
  for (const report::TensorResult& tensor : document.cases.at(0).tensors) all += tensor.reason + "\n";
  return all;
}
std::string reasons_of(const kda::Problem& problem, const kda::Tensors& call) {
  return reasons_of(TemporaryFixture(problem, {&call.at("o"), &call.at("state_pool")},
                                     numeric::ComputeFormat::fp32, "pool"));
}

std::string reason_of(const kda::Problem& problem,
                      const std::function<void(Tensor& o, Tensor& state)>& spoil) {
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  spoil(answer.o, answer.final_state);
  return reasons_of(TemporaryFixture(problem, &answer, "place"));
}

}  // namespace

TEST_CASE("what is known whole and loses too much by its algorithm has no fault besides",
          "[engine][faults]") {
  // In fp16 factors of decays underflow, as a state of the gradient in fewer bits would.
  const kda::Problem problem =
      kda::parse_regime("unbounded_softplus:T=210,H=1,K=32,V=32,loss=3,raw=1,seed=2,dtype=fp16").build();
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp16);
  kda::set_axis(options.arithmetic, "storage=fp16@products+fp16@scores");
  const kda::GradientTensors gradients = kda::run_chunk_backward(problem, options);
  std::vector<const Tensor*> recorded;
  for (const Tensor& tensor : gradients)
    if (!tensor.empty()) recorded.push_back(&tensor);
  const std::string reasons =
      reasons_of(TemporaryFixture(problem, recorded, numeric::ComputeFormat::fp16, "algorithm"));
  INFO(reasons);
  CHECK_THAT(reasons, ContainsSubstring("algorithm: it computes as chunk under"));
  CHECK_THAT(reasons, !ContainsSubstring("as if"));
}

TEST_CASE("run says where an output is wrong", "[engine][faults]") {
  test::ProblemSpec spec;
  spec.T = 80, spec.H = spec.HV = 3, spec.K = 16, spec.V = 48, spec.chunk_size = 16;
  spec.cu_seqlens = {0, 30, 30, 80};  // the second is empty
  const kda::Problem packed = test::make_problem(spec);
  const auto each = [&](std::size_t first, std::size_t last, std::size_t head, std::size_t column,
                        auto change) {
    return [=](Tensor& o, Tensor&) {
      for (std::size_t t = first; t < last; ++t)
        for (std::size_t h = 0; h < 3; ++h)
          for (std::size_t v = column; v < 48; ++v)
            if (head == 3 || h == head) o.set((t * 3 + h) * 48 + v, change(o.value((t * 3 + h) * 48 + v)));
    };
  };
  const auto doubled = [](double x) { return 2 * x; };
  const auto zero = [](double) { return 0; };
  CHECK_THAT(reason_of(packed, each(50, 80, 3, 0, doubled)),
             ContainsSubstring("sequence 2 alone, right up to token 19 in all heads, wrong from 20 (row 4 of "
                               "chunk 1)"));
  CHECK_THAT(reason_of(packed, each(30, 80, 1, 0, doubled)),
             ContainsSubstring("sequence 2 alone, head 1 alone"));
  CHECK_THAT(reason_of(packed, each(37, 38, 1, 0, doubled)),
             ContainsSubstring("sequence 2 alone, head 1 alone, token 7 alone"));
  CHECK_THAT(reason_of(packed, each(0, 80, 3, 32, zero)),
             ContainsSubstring("columns 32..47 alone: zero, never written?"));
  const auto stale = [&](std::size_t t, std::size_t column) {
    return [=](Tensor& o) {
      for (std::size_t v = column; v < column + 16; ++v) {
        const std::size_t at = (t * 3 + 1) * 48 + v;
        o.set(at, o.value(at) + 1 + 0.1 * static_cast<double>(v));
      }
    };
  };
  CHECK_THAT(
      reason_of(packed, [&](Tensor& o, Tensor&) { stale(37, 16)(o), stale(45, 32)(o), stale(77, 16)(o); }),
      ContainsSubstring("head 1 alone, token 7 in columns 16..31, token 15 in columns 32..47, token 47 "
                        "in columns 16..31 alone: a tile each, not all the same, as of a race"));
  CHECK_THAT(reason_of(packed, [&](Tensor& o, Tensor&) { stale(37, 16)(o), stale(45, 16)(o); }),
             ContainsSubstring("tokens 7 and 15 alone, columns 16..31 alone"));
  CHECK_THAT(reason_of(packed,
                       [](Tensor&, Tensor& state) {
                         for (std::size_t i = 0; i < 16 * 48; ++i)
                           state.set((2 * 3 + 1) * 16 * 48 + i, 1 + state.value((2 * 3 + 1) * 16 * 48 + i));
                       }),
             ContainsSubstring("sequence 2 alone, head 1 alone; rms_ratio "));
  // What is wrong everywhere, and more in one place, is not wrong there alone.
  CHECK_THAT(reason_of(packed,
                       [&](Tensor& o, Tensor& state) {
                         for (std::size_t i = 0; i < o.size(); ++i)
                           o.set(i, o.value(i) * (1 + (i % 2 == 0 ? 2e-6 : -2e-6)));
                         each(37, 38, 1, 0, doubled)(o, state);
                       }),
             ContainsSubstring("sequence 2 above all, head 1 above all, token 7 above all"));
}

TEST_CASE("run says which computation is lost in the same places", "[engine][faults]") {
  kda::Problem large = kda::parse_regime("lb_real:dtype=fp32,K=16,V=16,T=100,H=2").build();
  for (std::size_t i = 0; i < large.v.size(); i += 2) large.v.set(i, large.v.value(i) * 0x1p18);
  kda::RunOptions options = test::default_options(large, "chunk", DType::fp32, {"storage=fp16@carry"});
  const kda::Answer lost = kda::variant_named("chunk").run(large, options);
  CHECK_THAT(
      reasons_of(TemporaryFixture(large, &lost, "lost")),
      ContainsSubstring("rounding: as of a kernel in chunks of 64 whose state between chunks is in fp16"));
  // What is lost by a fault that explains the infinities before it is that fault's, not an overflow's.
  const kda::Problem far = kda::parse_regime("unbounded_softplus:T=64,K=32,V=32,raw=1").build();
  const kda::Answer behind = hypotheses::misreading_answer(
      far, hypotheses::misread(far, *hypotheses::fault_named("dt_bias_behind").of_output, {}, 64),
      kda::variant_named("recurrent"), test::default_options(far, "recurrent", DType::fp32));
  CHECK_THAT(reasons_of(TemporaryFixture(far, &behind, "behind")),
             ContainsSubstring("bug: as if the gate is -exp(A_log) (softplus(g) + dt_bias)"));

  test::ProblemSpec spec;
  spec.T = 80, spec.H = spec.HV = 2, spec.K = 16, spec.V = 16, spec.qk_l2norm = true;
  kda::Problem padded = test::make_problem(spec);
  for (std::size_t i = 0; i < 3 * 32; ++i) padded.q.set(i, 0);
  padded.output_gradient = padded.v.clone().named("do");
  const auto reasons = [&](std::size_t rows) {
    kda::GradientTensors gradients =
        kda::run_chunk_backward(padded, test::default_options(padded, "chunk", DType::fp32));
    Tensor& dq = gradients[static_cast<std::size_t>(kda::Gradient::dq)];
    for (std::size_t i = 0; i < rows * 32; ++i) dq.set(i, std::nan(""));
    return reasons_of(TemporaryFixture(padded, {&dq}, numeric::ComputeFormat::fp32, "lost"));
  };
  const char* const sentence = "bug: as of a kernel that differentiates the norm of q where it is 0";
  CHECK_THAT(reasons(3), ContainsSubstring(sentence));
  CHECK_THAT(reasons(4), !ContainsSubstring(sentence));
}

TEST_CASE("run says where what stands in a wrong place belongs", "[engine][faults]") {
  test::ProblemSpec spec;
  spec.T = 90, spec.H = spec.HV = 3, spec.K = 16, spec.V = 48, spec.cu_seqlens = {0, 30, 60, 90};
  const kda::Problem packed = test::make_problem(spec);
  const std::size_t width = 48, row = 3 * width, state = 16 * width;
  const auto moved = [](Tensor& tensor, std::size_t to, std::size_t from, std::size_t count) {
    const Tensor before = tensor.clone();
    for (std::size_t i = 0; i < count; ++i) tensor.set(to + i, before.value(from + i));
  };
  CHECK_THAT(reason_of(packed,
                       [&](Tensor& o, Tensor&) {
                         for (std::size_t t = 0; t < 90; ++t) moved(o, t * row + 2 * width, t * row, width);
                       }),
             ContainsSubstring("head 2 alone: head 2 has what belongs to head 0"));
  CHECK_THAT(
      reason_of(packed, [&](Tensor&, Tensor& final) { moved(final, 6 * state, 3 * state, 3 * state); }),
      ContainsSubstring("sequence 2 alone: sequence 2 has what belongs to sequence 1"));
  CHECK_THAT(reason_of(packed,
                       [&](Tensor& o, Tensor&) {
                         for (std::size_t i = 0; i < 90 * 3; ++i) moved(o, i * width + 32, i * width, 16);
                       }),
             ContainsSubstring("columns 32..47 alone: what is there belongs 32 columns earlier"));
  CHECK_THAT(reason_of(packed, [&](Tensor& o, Tensor&) { moved(o, 0, row, 29 * row); }),
             ContainsSubstring("what is there belongs 1 token later"));
  // Nothing is said of noise.
  const std::string noise = reason_of(packed, [](Tensor& o, Tensor&) {
    for (std::size_t i = 0; i < o.size(); ++i) o.set(i, o.value(i) + (i % 7 < 3 ? 1 : -1));
  });
  CHECK(noise.find("belongs") == std::string::npos);
}

TEST_CASE("run names what a kernel of a pool computes wrongly, and slots that no rule gives",
          "[engine][faults][pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  kda::Problem misread = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  misread.options.scale = 1;
  CHECK_THAT(reasons_of(problem, test::pool_answer(misread)),
             ContainsSubstring("(scale_missing): 100.0 % explained"));

  const auto with = [&](const hypotheses::PoolFault& fault) {
    kda::Answer answer =
        hypotheses::with_pool_fault(fault, problem, test::default_options(problem, "recurrent", DType::fp32));
    return reasons_of(problem, kda::of_call(*problem.pool, kda::by_name(std::move(answer))));
  };
  CHECK_THAT(with({.slots =
                       [](const kda::PoolCall&, hypotheses::PoolFault::Pieces& pieces) {
                         for (kda::PoolPiece& piece : pieces) piece.from = 10;
                       }}),
             ContainsSubstring("request 0 reads slot 10, not slot 9, "));
  CHECK_THAT(
      with({.slots = [](const kda::PoolCall&,
                        hypotheses::PoolFault::Pieces& pieces) { std::swap(pieces[1].to, pieces[2].to); }}),
      ContainsSubstring("has the state that belongs in slot") && ContainsSubstring("(other_slot_stored)"));
  // The last request returns before it writes anything.
  test::ProblemSpec spec = test::draft_spec();
  spec.T = 3, spec.cu_seqlens = {0, 1, 2, 3};
  kda::SlotTable table;
  table.indices = {4, 2, 0};
  const kda::Problem steps = test::make_pool_problem(spec, std::move(table), 6);
  kda::Answer answer = hypotheses::with_pool_fault(
      {.slots = [](const kda::PoolCall& call,
                   hypotheses::PoolFault::Pieces& pieces) { pieces[2].to = call.slots(); }},
      steps, test::default_options(steps, "recurrent", DType::fp32));
  const std::size_t row = answer.o.size() / 3;
  for (std::size_t i = 2 * row; i < 3 * row; ++i) answer.o.set(i, 0);
  CHECK_THAT(reasons_of(steps, kda::of_call(*steps.pool, kda::by_name(std::move(answer)))),
             ContainsSubstring(
                 "request 2 is left out: its o is zero, and slot 0 keeps its state (request_left_out)"));
}

TEST_CASE("run names the fault of a call on a pool", "[engine][faults][pool]") {
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20);
  for (const char* const name : {"accepted_ignored", "one_accepted_more", "pool_in_bf16"}) {
    const auto fault =
        std::ranges::find(hypotheses::pool_faults(), std::string_view(name),
                          [](const hypotheses::PoolFault& one) { return std::string_view(one.name); });
    kda::RunOptions options = test::default_options(problem, "recurrent", DType::fp32);
    kda::Answer answer = hypotheses::with_pool_fault(*fault, problem, options);
    const std::string all = reasons_of(problem, kda::of_call(*problem.pool, kda::by_name(std::move(answer))));
    INFO(name);
    CHECK_THAT(all, ContainsSubstring(fmt::format("({})", name)) && ContainsSubstring(": 100.0 % explained"));
  }
}

TEST_CASE("faults of pools keep to what a table means, whatever it holds elsewhere",
          "[engine][faults][pool]") {
  for (const std::int64_t number : {-2L, -1L, 999999L}) {
    kda::SlotTable table = test::draft_table();
    for (const std::size_t behind : {1, 2, 3, 11, 26, 27}) table.indices[behind] = number;
    const kda::Problem problem = test::make_pool_problem(test::draft_spec(), table, 20);
    for (const hypotheses::PoolFault& fault : hypotheses::pool_faults()) {
      if (fault.needs != nullptr && !fault.needs(*problem.pool)) continue;
      INFO(fault.name << ' ' << number);
      const kda::Answer answer = hypotheses::with_pool_fault(
          fault, problem, test::default_options(problem, "recurrent", DType::fp32));
      CHECK(answer.pool.shape() == problem.pool->states.shape());
    }
  }
}

TEST_CASE("run names padding that is stored in a slot that nobody names", "[engine][faults][pool]") {
  kda::SlotTable table = test::draft_table();
  const kda::Problem problem = test::make_pool_problem(test::draft_spec(), table, 21);  // slot 20 is free
  kda::Tensors call = test::pool_answer(problem);
  Tensor& pool = call.at("state_pool");
  const std::size_t size = pool.size() / 21;
  for (std::size_t i = 20 * size; i < pool.size(); ++i) pool.set(i, 0);
  const TemporaryFixture file(problem, {&call.at("o"), &pool}, numeric::ComputeFormat::fp32, "pool");
  plan::Request request = test::request_for({file.path}, plan::Names{});
  const report::Document document = test::ran(request);
  const report::TensorResult& slots = document.cases.at(0).tensors.back();
  CHECK(slots.name == "state_pool");
  CHECK_THAT(slots.reason,
             ContainsSubstring("as if padding is stored in the last slot (padding_in_last_slot)"));
}

}  // namespace faults_tests
