// Files that say something else than is meant: the truth itself grows, and nobody's kernel is to blame.
#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/temporary_fixture.hpp"

namespace expanding_tests {

using namespace kda_check;
using namespace kda_check::test;

namespace {

/// What `run` says of a problem whose tensors want an option that is not set.
Output judged(const kda::Problem& problem, const char* name) {
  const TemporaryFixture file(problem, nullptr, name);
  return program("run " + file.path + on_cpu);
}

void multiply(tensor::Tensor& tensor, double factor) {
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, factor * tensor.value(i));
}

}  // namespace

TEST_CASE("keys that are not normalised are named where the truth grows beyond everything", "[cli]") {
  kda::Problem problem = make_problem({.T = 400, .K = 16, .V = 4});
  multiply(problem.k, 11);
  const Output output = judged(problem, "norm");
  INFO(output.out << output.err);
  CHECK(output.code == 1);
  CHECK_THAT(output.err, ContainsSubstring("options/qk_l2norm is not set; is it missing?"));
  CHECK_THAT(output.out,
             ContainsSubstring("options/qk_l2norm is not set") && !ContainsSubstring("beta_sigmoid"));
  problem.options.qk_l2norm = true;
  CHECK(judged(problem, "normed").code == 0);
}

TEST_CASE("the norm of keys is named also where no double holds its square", "[cli]") {
  kda::Problem problem = make_problem({.T = 400, .K = 16, .V = 4, .dtype = numeric::DType::fp64});
  multiply(problem.k, 0x1p600);
  CHECK_THAT(judged(problem, "huge").err, ContainsSubstring("keys have norms up to ") &&
                                              ContainsSubstring("e+180, and options/qk_l2norm"));
}

TEST_CASE("beta beyond its range is named, and gates that grow", "[cli]") {
  kda::Problem problem = make_problem({.T = 2000, .K = 16, .V = 4});
  for (std::size_t i = 0; i < problem.beta.size(); ++i) problem.beta.set(i, i % 2 == 0 ? -4 : 3);
  const Output output = judged(problem, "beta");
  INFO(output.out);
  CHECK_THAT(output.err, ContainsSubstring("beta goes from -4 to 3, and options/beta_sigmoid is not set"));
  kda::Problem raw = make_problem({.T = 400, .K = 16, .V = 4});
  multiply(raw.g, -10);
  CHECK_THAT(judged(raw, "gate").err, ContainsSubstring("options/gate is none; are these gates"));
}

TEST_CASE("a healthy problem is not suspected of anything, nor one that fails for another reason", "[cli]") {
  const kda::Problem problem = make_problem({.T = 40});
  CHECK(judged(problem, "healthy").err.empty());
  const Output output = program("run " + small + " --limit scaled_ulp=1 --variant recurrent");
  CHECK(output.code == 1);
  CHECK(output.err.empty());
}

TEST_CASE("more heads than tokens look like another layout", "[cli]") {
  const kda::Problem swapped = make_problem({.T = 4, .H = 30, .HV = 30}),
                     step = make_problem({.T = 1, .H = 8, .HV = 8});
  CHECK_THAT(
      judged(swapped, "swapped").err,
      ContainsSubstring("T=4 tokens and H=30 heads: tensors are [B,T,H,...], are they [B,H,T,...] here?"));
  CHECK(judged(step, "step").err.empty());  // of a decoder
}

}  // namespace expanding_tests
