// What a caller does around a kernel: the same by hand.
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace outer_call_tests {

using namespace kda_check;
using numeric::DType;

namespace {

kda::RunOptions options_with(const kda::Problem& problem, std::string_view variant, const char* word) {
  kda::RunOptions options = test::default_options(problem, variant, problem.dtype(), {word});
  return options;
}

kda::Problem grouped_problem(DType dtype) {
  test::ProblemSpec spec;
  spec.T = 37, spec.H = 2, spec.HV = 6, spec.K = 16, spec.V = 8, spec.dtype = dtype;
  kda::Problem problem = test::make_problem(spec);
  test::add_loss(problem);
  problem.validate();
  return problem;
}

}  // namespace

TEST_CASE("scale=before is a kernel without scale on a q that was rounded", "[outer-call]") {
  for (const std::string_view variant : {"recurrent", "chunk"}) {
    kda::Problem problem = grouped_problem(DType::bf16);
    problem.options.scale = 0.3;
    const kda::RunOptions before = options_with(problem, variant, "scale=before"),
                          plain = test::default_options(problem, variant, DType::bf16);
    kda::Problem by_hand = kda::clone(problem);
    by_hand.options.scale = 1;
    for (std::size_t i = 0; i < problem.q.size(); ++i)
      by_hand.q.set(i, static_cast<float>(problem.q.value(i)) * 0.3F);
    for (const kda::Pass pass : kda::every_pass) {
      const kda::Tensors got = kda::run_pass(pass, kda::variant_named(variant), problem, before),
                         inner = kda::run_pass(pass, kda::variant_named(variant), by_hand, plain);
      for (const auto& [name, tensor] : got) {
        tensor::Tensor wanted = inner.at(name).clone();
        if (name == "dq")
          for (std::size_t i = 0; i < wanted.size(); ++i)
            wanted.set(i, static_cast<float>(wanted.value(i)) * 0.3F);
        INFO(variant << " " << name);
        CHECK(test::differing_bits(tensor, wanted) == 0);
      }
      if (pass == kda::Pass::forward)
        CHECK(test::differing_bits(
                  got.at("o"), kda::run_pass(pass, kda::variant_named(variant), problem, plain).at("o")) > 0);
    }
  }
}

TEST_CASE("heads=repeated adds up rounded gradients of q and k, and changes nothing else", "[outer-call]") {
  for (const std::string_view variant : {"recurrent", "chunk"}) {
    const kda::Problem problem = grouped_problem(DType::bf16);
    const kda::RunOptions repeated = options_with(problem, variant, "heads=repeated"),
                          plain = test::default_options(problem, variant, DType::bf16);
    const kda::Variant& computed = kda::variant_named(variant);
    const kda::Tensors forwards = kda::run_pass(kda::Pass::forward, computed, problem, repeated),
                       grouped = kda::run_pass(kda::Pass::forward, computed, problem, plain);
    for (const auto& [name, tensor] : forwards) CHECK(test::differing_bits(tensor, grouped.at(name)) == 0);
    // A copy of q and k for each value head.
    const std::size_t K = problem.dimensions().K, HV = problem.dimensions().HV, H = problem.dimensions().H,
                      group = HV / H;
    kda::Problem by_hand = kda::clone(problem);
    for (tensor::Tensor kda::Problem::*const member : {&kda::Problem::q, &kda::Problem::k}) {
      const tensor::Tensor& from = problem.*member;
      tensor::Tensor to(from.name(), from.dtype(), {from.shape()[0], from.shape()[1], HV, K});
      for (std::size_t i = 0; i < to.size(); ++i) {
        const std::size_t token = i / (HV * K), head = i / K % HV;
        to.set(i, from.value((token * H + head / group) * K + i % K));
      }
      by_hand.*member = std::move(to);
    }
    by_hand.validate();
    const kda::Tensors got = kda::run_pass(kda::Pass::backward, computed, problem, repeated),
                       inner = kda::run_pass(kda::Pass::backward, computed, by_hand, plain);
    for (const auto& [name, tensor] : got) {
      tensor::Tensor wanted(name, tensor.dtype(), tensor.shape());
      const bool is_shared = name == "dq" || name == "dk";
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        float sum = 0;
        for (std::size_t member = 0; is_shared && member < group; ++member) {
          const std::size_t token = i / (H * K), head = i / K % H * group + member;
          sum += static_cast<float>(inner.at(name).value((token * HV + head) * K + i % K));
        }
        wanted.set(i, is_shared ? sum : inner.at(name).value(i));
      }
      INFO(variant << " " << name);
      CHECK(test::differing_bits(tensor, wanted) == 0);
    }
  }
}

TEST_CASE("scale=before is refused where a norm comes first", "[outer-call]") {
  kda::Problem problem = grouped_problem(DType::bf16);
  problem.options.qk_l2norm = true;
  for (const std::string_view variant : {"recurrent", "chunk"})
    CHECK(kda::variant_named(variant)
              .unsupported(problem, options_with(problem, variant, "scale=before"))
              .find("norm") != std::string::npos);
}

}  // namespace outer_call_tests
