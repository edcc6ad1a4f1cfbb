// What cases take, before they run: figures to balance shards and to bound memory by.
#include "plan/cost.hpp"

#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace cost_tests {

using namespace kda_check;
using kda::Pass;
using numeric::DType;

TEST_CASE("the bytes of an answer are those of its tensors, in every dtype and both passes", "[plan][cost]") {
  for (const char* const text :
       {"bwd_chain:T=33,K=16,V=8", "varlen:K=8,V=8,H=1,loss=1", "lb_real:T=20,raw=1,K=8,V=8,loss=1"}) {
    const kda::Problem problem = kda::parse_regime(text).build();
    for (const DType dtype : {DType::fp32, DType::fp64, DType::bf16})
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const kda::Problem input =
            dtype == DType::bf16 ? kda::with_inputs_rounded_to(problem, dtype) : kda::clone(problem);
        const kda::RunOptions options = test::default_options(input, "recurrent", dtype);
        std::size_t bytes = 0;
        for (const auto& [name, tensor] :
             kda::run_pass(pass, kda::variant_named("recurrent"), input, options))
          if (!tensor.empty()) bytes += tensor.bytes();
        INFO(text << ' ' << numeric::name_of(dtype) << ' ' << kda::name_of(pass));
        CHECK(plan::answer_bytes(input, pass, dtype) == bytes);
      }
  }
}

TEST_CASE("sequences take time, though they have no tokens", "[plan][cost]") {
  const auto seconds = [](std::size_t sequences) {
    test::ProblemSpec spec;
    spec.T = 1, spec.K = 1, spec.V = 1;
    spec.cu_seqlens.assign(sequences + 1, 0);
    spec.cu_seqlens.back() = 1;
    const test::TemporaryFixture file(test::make_problem(spec), nullptr, "sequences");
    return test::planned_line(file.path + " --variant recurrent").seconds();
  };
  // An answer, the truth and twenty twins: some microseconds of each.
  constexpr double least_of_a_sequence = 1e-6;
  CHECK(seconds(20'000) > seconds(10'000) + 16 * 10'000 * least_of_a_sequence / 2);
}

}  // namespace cost_tests
