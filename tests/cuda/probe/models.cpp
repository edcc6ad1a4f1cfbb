// The models of a GPU's arithmetic on some of their inputs; `kda-check list devices --probe` takes them all.
#include <set>

#include "kda/gpu/models.hpp"
#include "support/gpu.hpp"

namespace models_tests {

using namespace kda_check;

TEST_CASE("the models of docs/arithmetic.md hold on this device", "[gpu][small]") {
  KDA_CHECK_NEEDS_GPU();
  std::set<std::string> held;
  for (const kda::ModelReading& reading : kda::read_models(kda::gpu_at_hand(), {1 << 20, 100'000}, {})) {
    INFO(reading.name << ", " << reading.model << ", of " << reading.inputs << ": " << reading.first);
    if (reading.is_rejected) {
      CHECK(reading.mismatches > reading.inputs / 1000);  // the sums can tell one model from the other
      continue;
    }
    CHECK(reading.inputs >= 10'000);
    CHECK(reading.mismatches == 0);
    held.insert(reading.name);
  }
  CHECK(held.contains("ex2.approx.ftz.f32"));
  CHECK(held.contains("mma bf16"));
}

}  // namespace models_tests
