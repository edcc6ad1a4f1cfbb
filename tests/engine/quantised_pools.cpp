// Calls on quantised pools through a run: what codes and scales hold afterwards, block by block.
#include <fmt/format.h>

#include "hypotheses/naming/pool_faults.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/judged_call.hpp"
#include "support/pools.hpp"

namespace quantised_pools_tests {

using namespace kda_check;
using judge::Verdict;

namespace {

kda::Problem call(const std::string& more) {
  const std::string size = more.find("K=") == std::string::npos ? "K=8,V=8," : "";
  return kda::parse_regime("serve:sequences=5,H=1,HV=2,slots=8,dtype=fp32," + size + more).build();
}

std::string reasons(const report::CaseResult& item) {
  std::string text;
  for (const report::TensorResult& tensor : item.tensors)
    if (tensor.verdict == Verdict::fail) text += tensor.name + ": " + tensor.reason + "\n";
  return text;
}

}  // namespace

TEST_CASE("a call on a quantised pool is the same after it was written and read, and passes", "[pool]") {
  for (const char* const more :
       {"codes=1", "codes=2,scales=1,drafts=3", "codes=3,scales=2,new=1", "codes=3,scales=3,largest=240",
        "codes=1,scales=3,fixed=1,apart=1", "codes=1,draws=1", "codes=2,draws=2,drafts=2"}) {
    INFO(more);
    const kda::Problem problem = call(more);
    const kda::Problem again = test::check_kept(problem);
    CHECK(test::differing_bits(again.pool->codes, problem.pool->codes) == 0);
    CHECK(test::differing_bits(*again.initial_state, *problem.initial_state) == 0);
    const report::CaseResult item = test::judged_call(problem, test::pool_answer(problem));
    INFO(reasons(item));
    CHECK(item.verdict == Verdict::pass);
    CHECK(item.tensors.size() == 4);
  }
}

TEST_CASE("every code of e4m3 is read as its number and written as it was", "[pool]") {
  for (int bits = 0; bits < 256; ++bits) {
    const float number = kda::e4m3_number(static_cast<std::uint8_t>(bits));
    CHECK(kda::e4m3_bits(number) == bits);
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 127) != 127)
      CHECK(std::fabs(number) ==
            (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10)));
  }
}

TEST_CASE("a kernel that takes or makes other scales, or truncates its codes, fails and is named", "[pool]") {
  std::size_t tried = 0;
  for (const bool of_rows : {true, false}) {
    // States are stored in other slots than they are read, so that no two of them are the same.
    const kda::Problem problem =
        call(of_rows ? "codes=1,apart=1,K=32,V=32" : "codes=1,apart=1,K=32,V=32,scales=2");
    kda::RunOptions options;
    options.dtype = problem.dtype();
    for (const hypotheses::PoolFault& fault : hypotheses::pool_faults()) {
      if (!fault.quantiser && !std::string_view(fault.name).starts_with("scale_of_")) continue;
      if (!fault.needs(*problem.pool)) continue;
      const kda::Tensors wrong = kda::by_name(hypotheses::with_pool_fault(fault, problem, options));
      const report::CaseResult item = test::judged_call(problem, kda::of_call(*problem.pool, wrong));
      CHECK(item.verdict == Verdict::fail);
      // In small blocks many are the largest, whose codes are at a tie then.
      if (!of_rows || !std::string_view(fault.name).starts_with("codes_"))
        CHECK_THAT(reasons(item), ContainsSubstring(fault.what));
      ++tried;
    }
  }
  CHECK(tried == 6 + 5);
}

TEST_CASE("a scale that is wrong after a call is named with its slot, its row and what it is", "[pool]") {
  const kda::Problem problem = call("codes=1"), fixed = call("codes=1,fixed=1");
  const kda::PoolCall& pool = *problem.pool;
  const std::size_t stored = pool.pieces.at(1).to, alone = kda::slots_left_alone(pool).front(), rows = 16;
  const auto said = [&](const kda::Problem& asked, auto change) {
    kda::Tensors answer = test::pool_answer(asked);
    change(answer.at("state_scale"), answer.at("state_pool"));
    return reasons(test::judged_call(asked, answer));
  };
  const auto at = [](std::size_t slot, int row) {
    return fmt::format("state_scale[s={} h=0 k={} v=0]", slot, row);
  };
  using tensor::Tensor;
  CHECK_THAT(
      said(problem,
           [&](Tensor& scale, Tensor&) { scale.set(stored * rows + 3, 2 * scale.value(stored * rows + 3)); }),
      ContainsSubstring(at(stored, 3) + " is 2 times the largest magnitude of its block / 127"));
  CHECK_THAT(said(problem, [&](Tensor& scale,
                               Tensor&) { scale.set(stored * rows + 3, scale.value(stored * rows + 5)); }),
             ContainsSubstring(", as " + at(stored, 5) + " is to be"));
  CHECK_THAT(
      said(problem, [&](Tensor& scale,
                        Tensor&) { scale.set(stored * rows + 3, pool.scale.value(stored * rows + 3)); }),
      ContainsSubstring(", as it was before the call"));
  CHECK_THAT(
      said(problem, [&](Tensor& scale, Tensor&) { scale.set(alone * rows + 2, 1); }),
      ContainsSubstring(at(alone, 2) + fmt::format(" was written, and no row stores to slot {}", alone)));
  CHECK_THAT(said(fixed, [&](Tensor& scale,
                             Tensor&) { scale.set(stored * rows, 1.5 * scale.value(stored * rows)); }),
             ContainsSubstring(at(stored, 0) + " was written, and scales are fixed"));
  CHECK_THAT(
      said(problem, [&](Tensor&, Tensor& codes) { codes.set(alone * 128, codes.value(alone * 128) + 1); }),
      ContainsSubstring(fmt::format("slot {}, which no row stores to, was written", alone)));
  CHECK_THAT(said(problem,
                  [&](Tensor&, Tensor& codes) {
                    for (std::size_t i = stored * 128; i < stored * 128 + 8; ++i)
                      codes.set(i, codes.value(i) > 0 ? 127 : -127);
                  }),
             ContainsSubstring("7 codes are at the end of int8 where the state is not"));
}

}  // namespace quantised_pools_tests
