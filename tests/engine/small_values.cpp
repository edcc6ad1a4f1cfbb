// Values at the ends of their formats: too small or too large to be squared, below the smallest normal
// number, zero because they are too small and zero because they are.
#include <cmath>
#include <functional>
#include <map>

#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_fixture.hpp"

namespace small_values_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::ComputeFormat;
using numeric::DType;
using tensor::Tensor;

namespace {

using Results = std::map<std::string, report::TensorResult>;

/// What is said against the oracle of tensors that somebody recorded.
Results judged(const kda::Problem& problem, const std::vector<Tensor>& tensors, ComputeFormat compute,
               const std::vector<judge::LimitLayer>& limits = {}) {
  const test::TemporaryFixture file(problem, test::pointers_to(tensors), compute, "small-values");
  plan::Request request = test::request_for({file.path}, plan::Names{});
  request.judging.limits = limits;
  Results results;
  for (const report::CaseResult& item : test::ran(request).cases)
    for (const report::TensorResult& tensor : item.tensors) results.emplace(tensor.name, tensor);
  return results;
}

/// Verdicts on our own variants, by "recurrent dg".
std::map<std::string, Verdict> of_variants(const kda::Problem& problem, DType dtype) {
  const test::TemporaryFixture file(problem, nullptr, "small-values");
  plan::Request request = test::request_for({file.path}, plan::Names{"naive", "recurrent", "chunk"});
  request.selection.dtypes = plan::Names{std::string(numeric::name_of(dtype))};
  std::map<std::string, Verdict> verdicts;
  for (const report::CaseResult& item : test::ran(request).cases)
    if (item.against == "oracle")
      for (const report::TensorResult& tensor : item.tensors)
        verdicts.emplace(item.variant + " " + tensor.name, tensor.verdict);
  return verdicts;
}

Tensor changed(const Tensor& tensor, const std::function<double(double)>& change) {
  Tensor other = tensor.clone();
  for (std::size_t i = 0; i < other.size(); ++i) other.set(i, change(other.value(i)));
  return other;
}

double negated(double x) { return -x; }
double times_1000(double x) { return 1000 * x; }
double a_tenth_off(double x) { return 1.1 * x; }
double zero(double) { return 0; }

/// The true o, rounded once to `dtype`.
Tensor true_output(const kda::Problem& problem, DType dtype) {
  const test::WholeOracle truth = test::whole_oracle(problem);
  Tensor o("o", dtype, problem.v.shape());
  for (std::size_t i = 0; i < o.size(); ++i) o.set(i, truth.o[i].hi);
  return o;
}

/// v times `size`, no state to begin with.
kda::Problem of_size(double size, DType dtype) {
  test::ProblemSpec spec;
  spec.T = 40, spec.K = spec.V = 16, spec.dtype = dtype, spec.initial_state = false;
  kda::Problem problem = test::make_problem(spec);
  problem.v = changed(problem.v, [=](double x) { return size * x; });
  return problem;
}

/// Log decays of `g`, give or take `spread` of it, and a loss of the final state alone.
kda::Problem decaying(double g, std::size_t T, double spread = 1e-3) {
  test::ProblemSpec spec;
  spec.T = T, spec.dtype = DType::fp64;
  kda::Problem problem = test::with_loss(test::make_problem(spec));
  std::size_t i = 0;
  problem.g = changed(problem.g, [&](double) { return g * (1 + spread * static_cast<double>(++i % 101)); });
  problem.output_gradient.reset();
  problem.validate();
  return problem;
}

void check_that_no_chunk_form_fails(const char* regime, const char* dtype, plan::Names arithmetic = {}) {
  plan::Request request = test::request_for({regime}, plan::Names{"chunk"});
  request.selection.dtypes = plan::Names{dtype}, request.selection.against = plan::Names{"oracle"};
  request.arithmetic = std::move(arithmetic);
  for (const report::CaseResult& item : test::ran(request).cases) {
    INFO(regime << ": " << item.reason);
    CHECK(item.verdict != Verdict::fail);
  }
}

}  // namespace

TEST_CASE("fp64 values whose squares are beyond the range of fp64 are judged like any others", "[engine]") {
  test::Sampled sample(3);
  INFO(sample.text());
  for (const double size : {1e-300, 1e-217, 1e-160, 1e160, 1e200, 1e300}) {
    if (!sample.next()) continue;
    INFO("size " << size);
    const kda::Problem problem = of_size(size, DType::fp64);
    const auto healthy = of_variants(problem, DType::fp64);
    CHECK(healthy.size() == 6);
    for (const auto& [name, verdict] : healthy) {
      INFO(name);
      CHECK(verdict == Verdict::pass);
    }
    const Tensor o = true_output(problem, DType::fp64);
    for (double (*const change)(double) : {negated, times_1000, a_tenth_off, zero}) {
      std::vector<Tensor> wrong;
      wrong.push_back(changed(o, change));
      CHECK(judged(problem, wrong, ComputeFormat::fp64).at("o").verdict == Verdict::fail);
    }
  }
  // A gradient of e^-500.
  const kda::Problem problem = decaying(-10, 50);
  const kda::GradientTensors gradients =
      kda::variant_named("recurrent")
          .run_backward(problem, test::default_options(problem, "recurrent", DType::fp64));
  const Tensor& right = gradients[static_cast<std::size_t>(kda::Gradient::dinitial_state)];
  for (double (*const change)(double) : {a_tenth_off, negated, times_1000, zero}) {
    std::vector<Tensor> wrong;
    wrong.push_back(changed(right, change));
    CHECK(judged(problem, wrong, ComputeFormat::fp64).at("dinitial_state").verdict == Verdict::fail);
  }
  for (const auto& [name, verdict] : of_variants(problem, DType::fp64)) {
    INFO(name);
    if (name.ends_with("dinitial_state")) CHECK(verdict == Verdict::pass);
  }
}

TEST_CASE("correctly rounded values below the smallest normal number pass, and wrong ones do not",
          "[engine]") {
  struct Range {
    DType dtype;
    ComputeFormat compute;
    double size;
  };
  test::Sampled sample(3);
  INFO(sample.text());
  for (const auto& [dtype, compute, size] : {Range{DType::fp16, ComputeFormat::fp16, 1e-3},
                                             {DType::fp16, ComputeFormat::fp16, 1e-4},
                                             {DType::fp16, ComputeFormat::fp32, 3e-5},
                                             {DType::bf16, ComputeFormat::bf16, 1e-37},
                                             {DType::fp32, ComputeFormat::fp32, 1e-37},
                                             {DType::fp32, ComputeFormat::fp32, 1e-40},
                                             {DType::fp32, ComputeFormat::fp32, 1e-41},
                                             {DType::fp64, ComputeFormat::fp64, 1e-307}}) {
    if (!sample.next()) continue;
    INFO(numeric::name_of(dtype) << " " << size);
    const kda::Problem problem = of_size(size, dtype);
    std::vector<Tensor> answer;
    answer.push_back(true_output(problem, dtype));
    const report::TensorResult o = judged(problem, answer, compute).at("o");
    INFO(o.reason);
    CHECK(o.verdict == Verdict::pass);
    CHECK(test::metric_of(o, "max_ulp") == 0);
    // ... and by limits that somebody set.
    CHECK(judged(problem, answer, compute, test::limits({"rms_ratio=0.004", "max_rel=0.004"}))
              .at("o")
              .verdict == Verdict::pass);
    for (double (*const change)(double) : {negated, a_tenth_off, zero}) {
      std::vector<Tensor> wrong;
      wrong.push_back(changed(answer[0], change));
      // Below, who computes in fp32 has lost as much on the way.
      if (size >= 1e-39 || dtype != DType::fp32)
        CHECK(judged(problem, wrong, compute).at("o").verdict == Verdict::fail);
    }
  }
  // The chunk form in fp64 rounds more than once down there.
  for (const auto& [name, verdict] : of_variants(decaying(-13.8, 49), DType::fp64)) {
    INFO(name);
    if (name.ends_with("dinitial_state")) CHECK(verdict == Verdict::pass);
  }
}

TEST_CASE("chunk forms whose operands are below the smallest normal number of their element type pass",
          "[engine]") {
  for (const char* const text :
       {"control:T=64,H=1,K=32,V=32,size=1e-5,dtype=fp16", "lb_real:T=5,K=64,V=64,H=1,size=1e-5,dtype=fp16",
        "bwd_chain:T=16,size=1e-5,dtype=fp16", "bwd_gate_zero:T=5,K=128,V=128,seed=68166353,H=2,size=1e-7"})
    check_that_no_chunk_form_fails(text, "fp16");
}

TEST_CASE("gradients are not held against what operands below the range of tf32 have lost", "[engine]") {
  for (const char* const text : {"lb_real:loss=1,T=1,K=128,V=128,seed=371978618,H=1,size=1e-41",
                                 "corr_keys:loss=1,T=130,K=16,V=128,seed=594440532,H=1,size=1e-41"})
    check_that_no_chunk_form_fails(text, "fp32", {"storage=fla"});
}

TEST_CASE("values too small for their element type are right where they are zero", "[engine]") {
  for (const double size : {3e-46, 1e-47, 1e-60}) {
    INFO("size " << size);
    kda::Problem problem = of_size(1, DType::fp32);
    problem.options.scale = size;
    const Tensor right = true_output(problem, DType::fp32);
    for (const std::vector<judge::LimitLayer>& limits :
         {std::vector<judge::LimitLayer>{}, test::limits({"rms_ratio=0.02"})})
      for (double (*const change)(double) : {+[](double x) { return x; }, zero}) {
        std::vector<Tensor> answer;
        answer.push_back(changed(right, change));
        CHECK(judged(problem, answer, ComputeFormat::fp32, limits).at("o").verdict == Verdict::pass);
      }
  }
  // Beyond the oracle, too: e^-1000.
  const auto verdicts = of_variants(decaying(-10, 100), DType::fp64);
  CHECK(verdicts.at("recurrent dinitial_state") == Verdict::pass);
  CHECK(verdicts.at("chunk dinitial_state") == Verdict::pass);
}

TEST_CASE("a truth that is exactly zero is met by zeros and by nothing else", "[engine]") {
  // One token, no state: nothing decays.
  test::ProblemSpec spec;
  spec.T = 1, spec.initial_state = false, spec.HV = 2;
  kda::Problem one_token = test::with_loss(test::make_problem(spec));
  // A reset wipes what came before: no gradient reaches the initial state. Chunk forms cannot have one.
  kda::Problem reset = decaying(-0.5, 20);
  for (std::size_t k = 0; k < reset.dimensions().K; ++k) reset.g.set(7 * reset.dimensions().K + k, -HUGE_VAL);
  // Nothing is written, nothing is read.
  kda::Problem nothing = of_size(0, DType::fp32);
  struct Zero {
    const kda::Problem* problem;
    const char* tensor;
    DType dtype;
  };
  for (const auto& [problem, tensor, dtype] : {Zero{&one_token, "dg", DType::fp32},
                                               {&reset, "dinitial_state", DType::fp64},
                                               {&reset, "dq", DType::fp64},
                                               {&nothing, "o", DType::fp32}}) {
    INFO(tensor);
    for (const auto& [name, verdict] : of_variants(*problem, dtype)) {
      INFO(name);
      const bool answers = problem != &reset || !name.starts_with("chunk");
      if (answers && name.ends_with(std::string(" ") + tensor)) CHECK(verdict == Verdict::pass);
    }
    if (problem == &reset) continue;
    const kda::Dimensions& d = problem->dimensions();
    Tensor wrong(tensor, dtype,
                 kda::expected_shape(*kda::find_spec(tensor), d, problem->options.state_v_first));
    for (std::size_t i = 0; i < wrong.size(); ++i) wrong.set(i, i == 1 ? 1 : 0);
    std::vector<Tensor> answer;
    answer.push_back(std::move(wrong));
    const ComputeFormat compute = numeric::compute_of(dtype);
    const report::TensorResult result = judged(*problem, answer, compute).at(tensor);
    INFO(result.reason);
    CHECK(result.verdict == Verdict::fail);
  }
}

TEST_CASE("the rounding of an exponential that is the same at every token adds up, and is allowed for",
          "[engine]") {
  for (const double g : {-10.0, -9.3, -5.7, -3.1, -0.7})
    for (const std::size_t T : {20, 50}) {
      INFO("g " << g << ", T " << T);
      for (const auto& [name, verdict] : of_variants(decaying(g, T, 0), DType::fp64)) {
        INFO(name);
        if (name == "recurrent dinitial_state") CHECK(verdict == Verdict::pass);
      }
    }
}

}  // namespace small_values_tests
