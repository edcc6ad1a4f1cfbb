#include "cuda/device/hash.hpp"

#include <cstdint>

#include "cuda/device/check.hpp"
#include "numeric/random.hpp"

namespace kda_check::cuda {

namespace {

/// Adds up words and their places; additions commute, so the order of blocks does not matter.
__global__ void hash_bytes(const unsigned char* bytes, std::size_t count, unsigned long long* sum) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x, words = count / 4;
  unsigned long long mine = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride)
    mine += numeric::mixed(reinterpret_cast<const std::uint32_t*>(bytes)[i] + (i + 1) * numeric::weyl);
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (std::size_t i = words * 4; i < count; ++i)
      mine += numeric::mixed(bytes[i] + (i + 1) * numeric::weyl);
  atomicAdd(sum, mine);
}

}  // namespace

void add_hash(const void* bytes, std::size_t count, unsigned long long* sum) {
  hash_bytes<<<256, 256>>>(static_cast<const unsigned char*>(bytes), count, sum);
  check(cudaGetLastError(), "launching the hash of a tensor");
}

}  // namespace kda_check::cuda
