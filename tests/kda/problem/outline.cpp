// The outline of a regime is that of the problem it builds, whether tokens are drawn for it or not.
#include "kda/problem/outline.hpp"

#include <fmt/format.h>

#include <variant>

#include "base/error.hpp"
#include "kda/pool/pool.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/sampled.hpp"

namespace outline_tests {

using namespace kda_check;
using kda::Outline;
using numeric::DType;

namespace {

/// An outline, or why there is none.
template <class Make>
std::variant<Outline, std::string> made(Make make) {
  try {
    return Outline(make());
  } catch (const Error& error) {
    return fmt::format("{} {}", exit_code(error.kind()), error.what());
  }
}

}  // namespace

TEST_CASE("the outline of every regime is that of the problem it builds, however many tokens it has",
          "[kda][regimes]") {
  // 384 tokens are still drawn, 385 no more; the last are no multiple of a chunk. Heads and channels are few:
  // nothing here depends on them.
  const char* const sets[] = {"",
                              "T=1",
                              "T=40,B=2",
                              "T=70,C=16,dtype=bf16,loss=1",
                              "T=384,H=1",
                              "T=385,H=1,K=8,V=8",
                              "T=1000,H=2,HV=4,K=8,V=16,C=32,dtype=fp16",
                              "T=777,B=2,H=1,K=8,V=8,C=100,loss=1,dtype=fp64",
                              "T=2048,H=1,K=8,V=8,loss=1",
                              "T=5000,H=1,K=4,V=4,C=128,seed=9"};
  test::Sampled sample(4);
  INFO(sample.text());
  std::size_t same = 0;
  for (const kda::Recipe& recipe : kda::recipes())
    for (const std::string set : sets) {
      if (!sample.next()) continue;
      const std::string text = std::string(recipe.name) + (set.empty() ? "" : ":" + set);
      INFO(text);
      const auto request = [&] { return kda::parse_regime(text); };
      const auto built = made([&] { return request().build(); });
      const auto outlined = made([&] { return request().outline(); });
      REQUIRE(built.index() == outlined.index());
      if (built.index() == 1) {
        CHECK(std::get<1>(built) == std::get<1>(outlined));
      } else {
        CHECK(std::get<0>(built) == std::get<0>(outlined));
        ++same;
      }
    }
  CHECK(same > 2 * kda::recipes().size());
}

TEST_CASE("the outline of a regime follows its own parameters at any length", "[kda][regimes]") {
  for (const char* const text :
       {"split_invariance:T=5,cut=3", "split_invariance:T=900,cut=3", "split_invariance:T=900,cut=700",
        "split_invariance:T=9,cut=1000", "prefix_causality:T=1000,perturbed=1", "varlen:T=1000,K=8,V=8",
        "varlen:T=1000,K=8,V=8,poison=1", "layout_asym:T=1000,v_first=1,K=8,V=16", "lb_real:T=1000,raw=1,K=8",
        "unbounded_softplus:T=1000,raw=1,A=2,K=8", "bf16_params:T=1000,rounded=1,K=8",
        "neg_eigval:T=1000,K=8,V=8", "bwd_chain:T=1000,dtype=bf16", "k3_layer1:T=1000,K=8,V=8"}) {
    INFO(text);
    const kda::RegimeRequest request = kda::parse_regime(text);
    CHECK(request.outline() == Outline(request.build()));
  }
}

TEST_CASE("the outline of a problem says which inputs it has, in which element types", "[kda]") {
  test::ProblemSpec spec;
  spec.dtype = DType::bf16, spec.gate = kda::Gate::softplus, spec.dt_bias = false;
  const kda::Problem problem = test::make_problem(spec);
  const Outline outline(problem);
  CHECK(outline.dtype() == DType::bf16);
  CHECK(outline.has("A_log"));
  CHECK_FALSE(outline.has("dt_bias"));
  CHECK_FALSE(outline.has("do"));
  CHECK_FALSE(outline.has_loss());
  CHECK(outline.inputs.size() == kda::inputs_of(problem).size());
  for (const tensor::Tensor* const input : kda::inputs_of(problem)) {
    INFO(input->name());
    CHECK(outline.dtype_of(input->name()) == input->dtype());
  }
}

TEST_CASE("what a call of a server takes has all of its pool", "[kda][pool]") {
  CHECK(kda::parse_regime("serve:slots=4096,K=256,V=256").bytes() > std::size_t{4096} * 2 * 256 * 256 * 12);
  CHECK(kda::parse_regime("serve:K=256,V=256").bytes() < std::size_t{100} * 2 * 256 * 256 * 12);
}

TEST_CASE("an outline rounded to a dtype is that of the problem with rounded inputs", "[kda]") {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    const kda::Problem problem = kda::parse_regime("lb_real:T=9,raw=1,loss=1,dtype=fp64,K=8,V=8").build();
    CHECK(Outline(problem).rounded_to(dtype) == Outline(kda::with_inputs_rounded_to(problem, dtype)));
    const kda::Problem call = kda::parse_regime("serve:T=9,K=8,V=8").build();
    CHECK(Outline(call).rounded_to(dtype) == Outline(kda::with_inputs_rounded_to(call, dtype)));
  }
}

}  // namespace outline_tests
