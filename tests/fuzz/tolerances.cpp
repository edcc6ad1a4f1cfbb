// A file of tolerances, and comparisons that its rules are looked up for.
#include "judge/tolerances.hpp"
#include "fuzz/input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  using numeric::DType;
  const fuzz::File file(fuzz::text_of(data, size));
  try {
    judge::Tolerances tolerances = judge::Tolerances::read(file.path());
    for (const judge::Compared& compared :
         {judge::Compared{"fla_bf16_gva", "chunk", "bf16", "oracle", "o", DType::bf16},
          judge::Compared{"corr_keys:rho=0.9", "gpu-chunk", "fp32", "replay", "final_state", DType::fp32}})
      for (const judge::ToleranceRule* rule : tolerances.rules_for(compared))
        fuzz::require(!rule->reason.empty() && !rule->limits.empty());
    fuzz::require(tolerances.unused().size() <= tolerances.rules().size());
  } catch (const Error& error) {
    fuzz::require_refusal(error);
  }
  return 0;
}
