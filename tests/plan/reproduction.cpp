// How recorded answers are taken to compute, and what captures are called.
#include "plan/reproduction.hpp"

#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"

namespace reproduction_tests {

using namespace kda_check;
using plan::Names;

TEST_CASE("a captured group is called after its variant and its device", "[plan]") {
  CHECK(plan::captured_name("gpu-chunk", "NVIDIA H100 80GB HBM3") == "gpu-chunk@nvidia-h100-80gb-hbm3");
  CHECK(plan::captured_name("chunk", "cpu") == "chunk@cpu");
  CHECK(plan::captured_name("x", " (R) A/B_c ") == "x@r-a-b-c");
}

TEST_CASE("a GPU's group is reproduced by the CPU variant with the same bits", "[plan]") {
  fixture::ExpectedGroup gpu;
  gpu.name = "gpu-chunk@some-device", gpu.implementation = "kda-check 9: contraction=fused reduction=simt";
  const auto known = plan::reproduction_of(gpu);
  REQUIRE(known);
  CHECK(known->variant->name == "chunk");
  CHECK(known->arithmetic == Names{"contraction=fused", "reduction=simt"});
  gpu.implementation = "somebody else: contraction=fused";
  // Of a GPU's kernel as somebody else ran it, its own arithmetic is all there is to say.
  CHECK(plan::reproduction_of(gpu)->arithmetic == Names{"h100"});
  for (const char* const name : {"chunk@cpu", "mine", "gpu-chunks@some-device"}) {
    gpu.name = name;
    CHECK_FALSE(plan::reproduction_of(gpu));
  }
}

TEST_CASE("what capture writes beside an answer says how it was computed", "[plan]") {
  const kda::Problem problem = test::make_problem({});
  for (const char* const variant : {"naive", "recurrent", "chunk"})
    for (const std::size_t rows : {std::size_t{16}, std::size_t{64}}) {
      kda::RunOptions options = test::default_options(problem, variant, numeric::DType::fp32);
      options.chunk_size = rows;
      fixture::ExpectedGroup group;
      group.name = std::string(variant) + "@cpu";
      group.implementation = plan::implementation_text(kda::variant_named(variant), options, problem);
      const auto known = plan::reproduction_of(group);
      INFO(group.implementation);
      REQUIRE(known);
      CHECK(known->variant->name == variant);
      kda::Arithmetic read;
      for (const std::string& word : known->arithmetic) kda::set_axis(read, word);
      CHECK(kda::describe(read, known->variant->axes) ==
            kda::describe(options.arithmetic, known->variant->axes));
      if (known->variant->axes.chunk && rows != problem.dimensions().C) CHECK(known->chunk_size == rows);
    }
}

TEST_CASE("a form is a variant, or a variant and a preset", "[plan]") {
  const auto variants = kda::variants();
  CHECK(plan::reproduction_named("chunk", variants).arithmetic.empty());
  const plan::Reproduction fla = plan::reproduction_named("chunk+fla", variants);
  CHECK(fla.variant->name == "chunk");
  CHECK(fla.arithmetic == Names{"fla"});
  CHECK_THAT(test::refusal([&] { plan::reproduction_named("chnk+fla", variants); }),
             ContainsSubstring("2 ") && ContainsSubstring("did you mean 'chunk'?"));
  CHECK_THAT(test::refusal([&] { plan::reproduction_named("chunk+flaa", variants); }),
             ContainsSubstring("2 ") && ContainsSubstring("did you mean 'fla'"));
}

}  // namespace reproduction_tests
