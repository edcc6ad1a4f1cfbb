// KDA's relatives (docs/kda.md, "The family"): one log decay for all K of a head, a beta for each column of
// V, erase and write gates.
#include <cmath>

#include "base/error.hpp"
#include "kda/problem/passes.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace relatives_tests {

using namespace kda_check;
using kda::Gradient;
using kda::Strength;
using numeric::DType;
using test::ProblemSpec;

namespace {

ProblemSpec spec_of(bool scalar_decay, Strength strength, DType dtype) {
  ProblemSpec spec;
  spec.H = 2, spec.HV = 4, spec.T = 75, spec.K = 24, spec.V = 20, spec.dtype = dtype, spec.chunk_size = 32;
  spec.scalar_decay = scalar_decay, spec.strength = strength, spec.gate_size = 0.1;
  spec.qk_l2norm = true;
  if (strength != Strength::gates) spec.beta_sigmoid = spec.allow_neg_eigval = true;
  if (scalar_decay) spec.gate = kda::Gate::softplus;
  return spec;
}

bool has_chunk_form(Strength strength) { return strength != Strength::value; }

/// The same problem, with its one decay written to every channel.
kda::Problem with_channels(const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  const auto widened = [&](const tensor::Tensor& from, tensor::Shape shape) {
    tensor::Tensor to(from.name(), from.dtype(), std::move(shape));
    for (std::size_t i = 0; i < to.size(); ++i) to.set(i, from.value(i / d.K));
    return to;
  };
  kda::Problem wide = kda::clone(problem);
  wide.g = widened(problem.g, {d.B, d.T, d.HV, d.K});
  if (problem.dt_bias) wide.dt_bias = widened(*problem.dt_bias, {d.HV * d.K});
  wide.validate();
  return wide;
}

/// The same problem, with its beta written to every column, or as both gates.
kda::Problem with_strength(const kda::Problem& problem, Strength strength) {
  const kda::Dimensions& d = problem.dimensions();
  const auto widened = [&](const char* name, std::size_t width) {
    tensor::Tensor to(name, problem.beta.dtype(), {d.B, d.T, d.HV, width});
    for (std::size_t i = 0; i < to.size(); ++i) to.set(i, problem.beta.value(i / width));
    return to;
  };
  kda::Problem other = kda::clone(problem);
  if (strength == Strength::value) {
    other.beta = widened("beta", d.V);
  } else {
    other.beta = {}, other.erase = widened("erase", d.K), other.write = widened("write", d.V);
  }
  other.validate();
  return other;
}

kda::GradientTensors backward(const kda::Problem& problem, std::string_view name, DType dtype) {
  return kda::variant_named(name).run_backward(problem, test::default_options(problem, name, dtype));
}
std::size_t index(Gradient gradient) { return static_cast<std::size_t>(gradient); }

std::string refusal(kda::Problem& problem) {
  try {
    problem.validate();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE(
    "every variant in fp64 is within 1e-12 of the truth, its gradients within 1e-11, whatever the relative",
    "[relatives]") {
  for (const bool scalar_decay : {false, true})
    for (const Strength strength : {Strength::head, Strength::value, Strength::gates}) {
      const kda::Problem problem =
          test::with_loss(test::make_problem(spec_of(scalar_decay, strength, DType::fp64)));
      const test::WholeOracle oracle = test::whole_oracle(problem);
      const kda::GradientTruths truths = test::gradient_truths(problem, 32);
      for (const char* const name : {"naive", "recurrent", "chunk"}) {
        if (std::string_view(name) == "chunk" && !has_chunk_form(strength)) continue;
        CAPTURE(name, scalar_decay, static_cast<int>(strength));
        const kda::Answer answer = test::run(problem, name, DType::fp64);
        CHECK(test::rms_ratio(answer.o, oracle.o) <= 1e-12);
        CHECK(test::rms_ratio(answer.final_state, oracle.final_state) <= 1e-12);
        test::check_near(backward(problem, name, DType::fp64), truths, 1e-11);
      }
    }
}

TEST_CASE("any arithmetic of the token forms takes every relative, and 16-bit inputs", "[relatives]") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (const Strength strength : {Strength::head, Strength::value, Strength::gates}) {
      const kda::Problem problem = test::with_loss(test::make_problem(spec_of(true, strength, dtype)));
      const test::WholeOracle oracle = test::whole_oracle(problem);
      const kda::GradientTruths truths = test::gradient_truths(problem, 32);
      for (const char* const name : {"naive", "recurrent"})
        for (const char* const word : {"reduction=tree:32", "subnormals=flush", "update=decay-fused"}) {
          kda::RunOptions options = test::default_options(problem, name, dtype, {word});
          CAPTURE(name, word, static_cast<int>(strength), static_cast<int>(dtype));
          const double unit = dtype == DType::fp32 ? 2e-6 : dtype == DType::fp16 ? 1e-3 : 8e-3;
          CHECK(test::rms_ratio(test::run(problem, name, options).o, oracle.o) <= unit);
          const kda::GradientTensors got = kda::variant_named(name).run_backward(problem, options);
          for (const Gradient gradient : {Gradient::dk, Gradient::dv, Gradient::dg})
            CHECK(test::rms_ratio(got[index(gradient)], truths[index(gradient)]) <= unit);
        }
    }
}

TEST_CASE("one decay for all K is that decay in every channel, bit for bit", "[relatives]") {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16}) {
    const kda::Problem problem = test::make_problem(spec_of(true, Strength::head, dtype)),
                       wide = with_channels(problem);
    for (const char* const name : {"naive", "recurrent", "chunk"}) {
      CAPTURE(name, static_cast<int>(dtype));
      const kda::Answer narrow = test::run(problem, name, dtype), other = test::run(wide, name, dtype);
      CHECK(test::differing_bits(narrow.o, other.o) == 0);
      CHECK(test::differing_bits(narrow.final_state, other.final_state) == 0);
    }
  }
}

TEST_CASE("the gradient of one decay for all K is the sum of those of the channels", "[relatives]") {
  const kda::Problem problem =
      test::with_loss(test::make_problem(spec_of(true, Strength::head, DType::fp64)));
  const kda::GradientTruths narrow = test::gradient_truths(problem, 32),
                            wide = test::gradient_truths(with_channels(problem), 32);
  const std::size_t K = problem.dimensions().K;
  for (const Gradient gradient : {Gradient::dg, Gradient::ddt_bias})
    for (std::size_t i = 0; i < narrow[index(gradient)].hi.size(); ++i) {
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < K; ++k) sum += wide[index(gradient)].hi[i * K + k];
      for (std::size_t k = 0; k < K; ++k) size += wide[index(gradient)].magnitude[i * K + k];
      REQUIRE(std::fabs(narrow[index(gradient)].hi[i] - sum) <= 1e-14 * size);
    }
}

TEST_CASE("betas of columns that are one beta give recurrent's bits", "[relatives]") {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16}) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec_of(false, Strength::head, dtype))),
                       columns = with_strength(problem, Strength::value);
    const kda::Answer one = test::run(problem, "recurrent", dtype),
                      many = test::run(columns, "recurrent", dtype);
    CHECK(test::differing_bits(one.o, many.o) == 0);
    CHECK(test::differing_bits(one.final_state, many.final_state) == 0);
    const kda::GradientTensors of_one = backward(problem, "recurrent", dtype),
                               of_many = backward(columns, "recurrent", dtype);
    for (const Gradient gradient : {Gradient::dq, Gradient::dk, Gradient::dv, Gradient::dg})
      CHECK(test::differing_bits(of_one[index(gradient)], of_many[index(gradient)]) == 0);
  }
}

TEST_CASE("gates that are one beta are KDA", "[relatives]") {
  ProblemSpec spec = spec_of(false, Strength::head, DType::fp64);
  spec.beta_sigmoid = spec.allow_neg_eigval = false;
  const kda::Problem problem = test::make_problem(spec), gated = with_strength(problem, Strength::gates);
  const test::WholeOracle one = test::whole_oracle(problem), many = test::whole_oracle(gated);
  for (std::size_t i = 0; i < one.o.size(); ++i)
    REQUIRE(std::fabs((one.o[i] - many.o[i]).hi) <= 1e-28 * one.o_magnitude[i]);
}

TEST_CASE("chunk says why it has no betas of columns, and whose order Triton's is", "[relatives]") {
  const kda::Variant& chunk = kda::variant_named("chunk");
  const auto lacks = [&](const kda::Problem& problem, const char* word) {
    kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
    if (word != nullptr) kda::set_axis(options.arithmetic, word);
    return chunk.unsupported(problem, options);
  };
  const auto made = [](bool scalar_decay, Strength strength) {
    return test::make_problem(spec_of(scalar_decay, strength, DType::fp32));
  };
  CHECK(lacks(made(false, Strength::value), nullptr).find("an inverse of its own") != std::string::npos);
  CHECK(lacks(made(false, Strength::gates), nullptr).empty());
  CHECK(lacks(made(true, Strength::head), nullptr).empty());
  CHECK(lacks(made(true, Strength::head), "reduction=triton").find("KDA") != std::string::npos);
  CHECK(lacks(made(false, Strength::head), "reduction=triton").empty());
  CHECK(lacks(made(false, Strength::gates), "reduction=triton").empty());
  // Backwards it is not written for gates.
  kda::Arithmetic triton;
  CHECK(kda::lacks_gradients(triton, Strength::gates).empty());
  kda::set_axis(triton, "reduction=triton");
  CHECK(!kda::lacks_gradients(triton, Strength::gates).empty());
  CHECK(kda::lacks_gradients(triton, Strength::head).empty());
}

TEST_CASE("a shape that no relative has is refused with what was found and what was wanted", "[relatives]") {
  const auto gated = [] { return test::make_problem(spec_of(false, Strength::gates, DType::fp32)); };
  kda::Problem problem = gated();
  problem.write.reset();
  CHECK(refusal(problem) == "inputs/write is missing; wanted it beside inputs/erase");
  problem = gated();
  problem.erase.reset();
  CHECK(refusal(problem) == "inputs/erase is missing; wanted it beside inputs/write");
  problem = gated();
  problem.beta = tensor::Tensor("beta", DType::fp32, {1, 75, 4});
  CHECK(refusal(problem) ==
        "inputs/beta and inputs/erase are both there; wanted beta, or erase and write in its place");
  problem = gated();
  problem.erase = tensor::Tensor("erase", DType::fp32, {1, 75, 4, 20});
  CHECK(refusal(problem) == "inputs/erase is [1,75,4,20] but inputs/q says K = 24");
  problem = gated();
  problem.options.beta_sigmoid = true;
  CHECK(refusal(problem).starts_with("options/beta_sigmoid is 1 but there is no inputs/beta"));
  problem = gated();
  problem.g = tensor::Tensor("g", DType::fp32, {75, 4});
  CHECK(refusal(problem) == "inputs/g is [75,4], of rank 2; wanted rank 4: [B,T,HV,K], or 3: [B,T,HV]");
}

}  // namespace relatives_tests
