#include "hash.hpp"

#include <cstdint>

#include "check.hpp"

namespace kda_check::cuda {

namespace {

/// splitmix64's finaliser (G. Steele et al. 2014).
__device__ std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Adds up words and their places; additions commute, so the order of blocks does not matter.
__global__ void hash_bytes(const unsigned char* bytes, std::size_t count, unsigned long long* sum) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x, words = count / 4;
  unsigned long long mine = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride)
    mine += mixed(reinterpret_cast<const std::uint32_t*>(bytes)[i] + (i + 1) * 0x9e3779b97f4a7c15u);
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (std::size_t i = words * 4; i < count; ++i) mine += mixed(bytes[i] + (i + 1) * 0x9e3779b97f4a7c15u);
  atomicAdd(sum, mine);
}

}  // namespace

void add_hash(const void* bytes, std::size_t count, unsigned long long* sum) {
  hash_bytes<<<256, 256>>>(static_cast<const unsigned char*>(bytes), count, sum);
  check(cudaGetLastError(), "launching the hash of a tensor");
}

}  // namespace kda_check::cuda
