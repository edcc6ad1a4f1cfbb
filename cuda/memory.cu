#include "memory.hpp"

#include <fmt/format.h>

#include <array>

#include "base/error.hpp"
#include "check.hpp"

namespace kda_check::cuda {

namespace {

constexpr std::size_t canary_bytes = 4096;
constexpr unsigned char canary = 0xc5, poison_byte = 0xff;

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

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

std::string out_of_memory(const char* name, std::size_t bytes) {
  std::size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) available = total = 0;
  return fmt::format("GPU: no memory for {}: wanted {:.3g} GB, {:.3g} of {:.3g} GB are free", name,
                     static_cast<double>(bytes) * 1e-9, static_cast<double>(available) * 1e-9,
                     static_cast<double>(total) * 1e-9);
}

}  // namespace

DeviceMemory::DeviceMemory(const char* name, std::size_t bytes) : name_(name), bytes_(bytes) {
  const std::size_t whole = rounded_up(bytes) + 2 * canary_bytes;
  const cudaError_t status = cudaMalloc(&allocation_, whole);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next launch reports it
    throw Error(ErrorKind::environment, out_of_memory(name, bytes), {},
                "a smaller shape, or a GPU that nobody else uses");
  }
  check(status, "allocating memory");
  memory_ = static_cast<unsigned char*>(allocation_) + canary_bytes;
  check(cudaMemset(allocation_, canary, whole), "filling memory");
  poison();
}

DeviceMemory::~DeviceMemory() {
  if (allocation_ != nullptr) cudaFree(allocation_);  // fails only after an error that was reported
}

void DeviceMemory::poison() const {
  if (bytes_ > 0) check(cudaMemset(memory_, poison_byte, bytes_), "poisoning memory");
}

void DeviceMemory::upload(const void* source) const {
  if (bytes_ > 0) check(cudaMemcpy(memory_, source, bytes_, cudaMemcpyHostToDevice), "uploading a tensor");
}

void DeviceMemory::download(void* target) const {
  if (bytes_ > 0) check(cudaMemcpy(target, memory_, bytes_, cudaMemcpyDeviceToHost), "downloading a tensor");
}

std::uint64_t DeviceMemory::hash() const {
  const DeviceMemory sum("a hash", sizeof(unsigned long long));
  check(cudaMemset(sum.data(), 0, sum.size()), "filling memory");
  hash_bytes<<<256, 256>>>(as<const unsigned char>(), bytes_, sum.as<unsigned long long>());
  check(cudaGetLastError(), "launching the hash of a tensor");
  unsigned long long result = 0;
  sum.download(&result);
  return result;
}

void DeviceMemory::check_canaries() const {
  const auto* const begin = static_cast<const unsigned char*>(allocation_);
  const std::size_t tail = canary_bytes + rounded_up(bytes_) - bytes_;
  std::array<unsigned char, 2 * canary_bytes> found;
  for (const bool behind : {false, true}) {
    const std::size_t count = behind ? tail : canary_bytes;
    const unsigned char* const from = behind ? begin + canary_bytes + bytes_ : begin;
    check(cudaMemcpy(found.data(), from, count, cudaMemcpyDeviceToHost), "reading a canary");
    for (std::size_t i = 0; i < count; ++i)
      if (found[i] != canary)
        throw Error(ErrorKind::internal,
                    fmt::format("GPU: a kernel wrote {} {}, {} bytes away", behind ? "behind" : "before",
                                name_, behind ? i : count - i),
                    {}, "please report it with the command line");
  }
}

}  // namespace kda_check::cuda
