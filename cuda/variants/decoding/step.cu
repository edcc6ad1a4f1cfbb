#include "cuda/variants/decoding/step.cuh"

#include <algorithm>

#include "cuda/variants/decoding/decoding.hpp"
#include "cuda/variants/recurrent/recurrent.cuh"

namespace kda_check::cuda {

namespace {

/// Column tiles of a block: 64 KB of a state with K = 128, for three blocks on a processor.
constexpr int tiles = 4;
constexpr int columns = tiles * block_columns;

/// Blocks in the order that states have in a slot.
template <int rows>
__global__ void __launch_bounds__(block_warps* warp_lanes, 3)
    decoding_kernel(const __grid_constant__ DeviceProblem p, const TokenRange* sequences,
                    const std::uint32_t* slots) {
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned blocks = p.V / columns, row = blockIdx.x / blocks, sequence = row / p.HV;
  const int head = row % p.HV;
  Recurrence<float, true, rows, true, tiles>(p, sequences[sequence],
                                             std::size_t{slots[sequence]} * p.HV + head, head,
                                             blockIdx.x % blocks * columns, memory)
      .run_one();
}

template <int rows>
void launch_one(cudaStream_t stream, const DeviceProblem& p, const TokenRange* sequences,
                const std::uint32_t* slots, int count) {
  launch_on(stream, "gpu-recurrent, decoding", decoding_kernel<rows>, p.V / columns * p.HV * count,
            block_warps * warp_lanes, Recurrence<float, true, rows, true, tiles>::bytes(p.K), p, sequences,
            slots);
}

}  // namespace

bool has_decoding(const Request& r) {
  const kda::Dimensions& d = r.dimensions;
  const auto is_one_token = [](const kda::Sequence& sequence) { return sequence.length() == 1; };
  return !r.is_fp64 && r.is_fused && d.strength == kda::Strength::head && (d.K == 64 || d.K == 128) &&
         d.V % columns == 0 && std::ranges::all_of(r.sequences, is_one_token) &&
         d.V / columns * d.HV * r.sequences.size() < std::size_t{1} << 31;
}

void launch_decoding(cudaStream_t stream, const DeviceProblem& p, const TokenRange* sequences,
                     const std::uint32_t* slots, int count) {
  p.K == 64 ? launch_one<2>(stream, p, sequences, slots, count)
            : launch_one<4>(stream, p, sequences, slots, count);
}

}  // namespace kda_check::cuda
