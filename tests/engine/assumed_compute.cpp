// What an answer is judged by when its file does not say how it was computed, and what is said of that.
#include <cmath>

#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace assumed_compute_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::ComputeFormat;
using numeric::DType;
using tensor::Tensor;

namespace {

kda::Problem problem_in(DType dtype) {
  test::ProblemSpec spec;
  spec.T = 60, spec.K = spec.V = 16, spec.dtype = dtype;
  return test::with_loss(test::make_problem(spec));
}

/// The true o or final_state, or a gradient of the fp64 recurrence, times `factor`, in an element type.
Tensor answer_of(const kda::Problem& problem, const std::string& name, DType dtype, double factor = 1) {
  const kda::Pass pass = name.starts_with("d") ? kda::Pass::backward : kda::Pass::forward;
  const kda::Tensors right = kda::run_pass(pass, kda::variant_named("recurrent"), problem,
                                           test::default_options(problem, "recurrent", DType::fp64));
  const Tensor& from = right.at(name);
  Tensor tensor(name, dtype, from.shape());
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, from.value(i) * factor);
  return tensor;
}

struct Outcome {
  report::Document document;

  const report::TensorResult& tensor(std::string_view name) const {
    for (const report::CaseResult& item : document.cases)
      for (const report::TensorResult& result : item.tensors)
        if (result.name == name) return result;
    throw std::out_of_range("no tensor " + std::string(name));
  }
  std::string notes() const {
    std::string all;
    for (const report::ProblemResult& problem : document.problems)
      for (const std::string& note : problem.notes) all += note + "\n";
    return all;
  }
};

Outcome judged(const kda::Problem& problem, const std::vector<Tensor>& tensors,
               std::optional<ComputeFormat> compute = {}) {
  const test::TemporaryFixture file(problem, test::pointers_to(tensors), compute, "assumed");
  plan::Request request = test::request_for({file.path}, plan::Names{});
  request.test = false;  // what the limits assume
  return {test::ran(request)};
}

/// Of one tensor alone.
Outcome alone(const kda::Problem& problem, const std::string& name, DType dtype, double factor = 1,
              std::optional<ComputeFormat> compute = {}) {
  std::vector<Tensor> tensors;
  tensors.push_back(answer_of(problem, name, dtype, factor));
  return judged(problem, tensors, compute);
}

}  // namespace

TEST_CASE(
    "an answer stored in fewer bits than its inputs is judged by the inputs, and the rounding allowed for",
    "[engine][compute]") {
  const kda::Problem problem = problem_in(DType::fp32);
  for (const char* const name : {"o", "final_state", "dq"}) {
    INFO(name);
    const Outcome right = alone(problem, name, DType::bf16);
    CHECK(right.tensor(name).verdict == Verdict::pass);
    CHECK_THAT(right.notes(),
               ContainsSubstring("somebody: compute assumed fp32, the element type of q, k and v;") &&
                   ContainsSubstring("stored less precisely than the problem: " + std::string(name) +
                                     " in bf16 (usually fp32)"));
    CHECK(alone(problem, name, DType::bf16, 1.01).tensor(name).verdict == Verdict::fail);
  }
  // Whoever multiplies in bf16 says so.
  CHECK(alone(problem, "o", DType::bf16, 1.005, ComputeFormat::bf16).tensor("o").verdict == Verdict::pass);
  // Beside an o in bf16 an fp32 state is that of an fp32 computation.
  std::vector<Tensor> tensors;
  tensors.push_back(answer_of(problem, "o", DType::bf16));
  tensors.push_back(answer_of(problem, "final_state", DType::fp32, 1.001));
  const Outcome state = judged(problem, tensors);
  CHECK(state.tensor("o").verdict == Verdict::pass);
  CHECK(state.tensor("final_state").verdict == Verdict::fail);
}

TEST_CASE("without an o the operands and the tensors that are there say how an answer was computed",
          "[engine][compute]") {
  const kda::Problem fp64 = problem_in(DType::fp64), bf16 = problem_in(DType::bf16);
  for (const char* const name : {"final_state", "dg", "dv"}) {
    INFO(name);
    CHECK(alone(fp64, name, DType::fp64).tensor(name).verdict == Verdict::pass);
    CHECK(alone(fp64, name, DType::fp64, 1 + 1e-9).tensor(name).verdict == Verdict::fail);
    CHECK_THAT(alone(fp64, name, DType::fp64).notes(),
               ContainsSubstring("compute assumed fp64, the element type of its " + std::string(name)));
  }
  // The same verdict for a state in bf16 alone and beside an o.
  for (const double factor : {1.0, 1.006, 1.03}) {
    INFO(factor);
    std::vector<Tensor> both;
    both.push_back(answer_of(bf16, "o", DType::bf16));
    both.push_back(answer_of(bf16, "final_state", DType::bf16, factor));
    const Outcome single = alone(bf16, "final_state", DType::bf16, factor);
    CHECK(single.tensor("final_state").verdict == judged(bf16, both).tensor("final_state").verdict);
    CHECK(single.tensor("final_state").verdict == (factor < 1.01 ? Verdict::pass : Verdict::fail));
    CHECK_THAT(single.notes(), ContainsSubstring("compute assumed bf16, the element type of q, k and v"));
  }
  CHECK(alone(bf16, "dk", DType::bf16, 1.006).tensor("dk").verdict == Verdict::pass);
}

TEST_CASE("what a file says about its products is not assumed, and nothing usual is noted",
          "[engine][compute]") {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const kda::Problem problem = problem_in(dtype);
    std::vector<Tensor> tensors;
    tensors.push_back(answer_of(problem, "o", dtype));
    tensors.push_back(answer_of(problem, "final_state", DType::fp32));
    const Outcome said = judged(problem, tensors, ComputeFormat::fp32);
    CHECK_FALSE(said.document.cases.at(0).compute_assumed);
    CHECK_THAT(said.notes(), !ContainsSubstring("assumed") && !ContainsSubstring("stored less precisely"));
  }
}

}  // namespace assumed_compute_tests
