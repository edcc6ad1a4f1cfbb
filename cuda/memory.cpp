#include "memory.hpp"

#include <fmt/format.h>

#include <array>

#include "base/error.hpp"
#include "check.hpp"
#include "hash.hpp"
#include "transfer.hpp"

namespace kda_check::cuda {

namespace {

constexpr std::size_t canary_bytes = 4096;
constexpr unsigned char canary = 0xc5, poison_byte = 0xff;

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::string out_of_memory(const char* name, std::size_t bytes) {
  std::size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) available = total = 0;
  cudaGetLastError();  // or the next launch reports a failure that was told
  return fmt::format("GPU: no memory for {}: wanted {:.3g} GB, {:.3g} of {:.3g} GB are free", name,
                     static_cast<double>(bytes) * 1e-9, static_cast<double>(available) * 1e-9,
                     static_cast<double>(total) * 1e-9);
}

}  // namespace

std::size_t free_memory() {
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "asking for free memory");
  return available;
}

// Delegates, so that what was allocated is freed when something after it throws.
DeviceMemory::DeviceMemory(const char* name, std::size_t bytes) : DeviceMemory() {
  name_ = name, bytes_ = bytes;
  const std::size_t whole = rounded_up(bytes) + 2 * canary_bytes;
  const cudaError_t status = cudaMalloc(&allocation_, whole);
  if (status == cudaErrorMemoryAllocation)
    throw Error(ErrorKind::environment, out_of_memory(name, bytes), {},
                "a smaller shape, or a GPU that nobody else uses");
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
  if (bytes_ >= large_copy) return copy_to_device(memory_, source, bytes_);
  if (bytes_ > 0) check(cudaMemcpy(memory_, source, bytes_, cudaMemcpyHostToDevice), "uploading a tensor");
}

void DeviceMemory::download(void* target, std::size_t bytes) const {
  if (bytes != bytes_)
    throw Error(ErrorKind::internal,
                fmt::format("GPU: {} has {} bytes, and {} are wanted", name_, bytes_, bytes));
  if (bytes_ >= large_copy) return copy_to_host(target, memory_, bytes_);
  if (bytes_ > 0) check(cudaMemcpy(target, memory_, bytes_, cudaMemcpyDeviceToHost), "downloading a tensor");
}

std::uint64_t DeviceMemory::hash() const {
  const DeviceMemory sum("a hash", sizeof(unsigned long long));
  check(cudaMemset(sum.data(), 0, sum.size()), "filling memory");
  add_hash(memory_, bytes_, sum.as<unsigned long long>());
  unsigned long long result = 0;
  sum.download(&result, sizeof result);
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
