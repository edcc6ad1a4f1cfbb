// What the multiply-add units of this machine can do.
#pragma once

namespace kda_check::bench {

struct FmaPeak {
  double fp32 = 0, fp64 = 0;  ///< Gflop/s, two flops per fused multiply-add, all threads together
};

/// Measured now; takes about a tenth of a second.
FmaPeak measured_fma_peak(int threads);

}  // namespace kda_check::bench
