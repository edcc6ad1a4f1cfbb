#include "cuda/device/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>

#include "base/error.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/device.hpp"
#include "cuda/device/device_input.hpp"
#include "cuda/device/hash.hpp"
#include "cuda/device/stream.hpp"
#include "cuda/device/transfer.hpp"

namespace kda_check::cuda {

namespace {

constexpr std::size_t canary_bytes = 4096;
constexpr unsigned char canary = 0xc5, poison_byte = 0xff;

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Memory of a device that was given back stays with the process: the device does not stop for it, as it does
/// where memory goes back to the driver.
class Pool {
 public:
  explicit Pool(int device) {
    check(cudaDeviceGetDefaultMemPool(&pool_, device), "asking for memory");
    std::uint64_t keeps_all = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keeps_all), "asking for memory");
  }
  /// What fills memory goes ahead of kernels that are on their way.
  const Stream& filling() const { return filling_; }
  std::size_t unused() const {
    const std::uint64_t used = attribute(cudaMemPoolAttrUsedMemCurrent);
    return std::max(used, attribute(cudaMemPoolAttrReservedMemCurrent)) - used;
  }
  /// In that stream.
  cudaError_t allocate(void** memory, std::size_t bytes) const {
    const cudaError_t status = cudaMallocFromPoolAsync(memory, bytes, pool_, filling_.get());
    if (status != cudaErrorMemoryAllocation) return status;
    cudaGetLastError();
    free_unused_inputs();
    cudaDeviceSynchronize();
    give_back();  // what is left is in pieces
    return cudaMallocFromPoolAsync(memory, bytes, pool_, filling_.get());
  }
  void give_back() const { cudaMemPoolTrimTo(pool_, 0); }

 private:
  std::uint64_t attribute(cudaMemPoolAttr which) const {
    std::uint64_t value = 0;
    check(cudaMemPoolGetAttribute(pool_, which, &value), "asking for free memory");
    return value;
  }
  cudaMemPool_t pool_ = nullptr;
  Stream filling_;
};
struct Pools {
  std::mutex mutex;
  std::map<int, Pool> by_device;
};
Pools& pools() {
  static auto& only = *new Pools;  // at the end of the process the runtime may be gone
  return only;
}
/// That of the device this thread is at.
const Pool& pool() {
  const int device = this_device();
  const std::lock_guard lock(pools().mutex);
  return pools().by_device.try_emplace(device, device).first->second;
}

/// Whether body(pool) is true at each device of which there is memory. This thread is at the first
/// afterwards.
template <class Body>
bool at_all_devices(const Body& body) {
  const std::lock_guard lock(pools().mutex);
  bool is_true = true;
  for (const auto& [device, pool] : pools().by_device)
    is_true = cudaSetDevice(device) == cudaSuccess && body(pool) && is_true;
  if (pools().by_device.size() > 1) cudaSetDevice(0);
  return is_true;
}

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
  return available + pool().unused() + bytes_of_unused_inputs();
}

bool is_well() {
  return at_all_devices([](const Pool&) { return cudaDeviceSynchronize() == cudaSuccess; });
}

void give_back_memory() {
  at_all_devices([](const Pool& pool) {
    pool.give_back();
    return true;
  });
}

// Delegates, so that what was allocated is freed when something after it throws.
DeviceMemory::DeviceMemory(const char* name, std::size_t bytes) : DeviceMemory() {
  name_ = name, bytes_ = bytes, device_ = this_device();
  const std::size_t whole = aligned(bytes) + 2 * canary_bytes;
  const cudaError_t status = pool().allocate(&allocation_, whole);
  if (status == cudaErrorMemoryAllocation)
    throw Error(ErrorKind::environment, out_of_memory(name, bytes), {},
                "a smaller shape, or a GPU that nobody else uses");
  check(status, "allocating memory");
  memory_ = static_cast<unsigned char*>(allocation_) + canary_bytes;
  const Stream& filling = pool().filling();
  const auto fill = [&](std::size_t from, int byte, std::size_t count) {
    check(cudaMemsetAsync(static_cast<unsigned char*>(allocation_) + from, byte, count, filling.get()),
          "filling memory");
  };
  fill(0, canary, canary_bytes);
  if (bytes > 0) fill(canary_bytes, poison_byte, bytes);
  fill(canary_bytes + bytes, canary, canary_bytes + aligned(bytes) - bytes);
  check(cudaStreamSynchronize(filling.get()), "filling memory");  // no other stream would wait for it
}

DeviceMemory::~DeviceMemory() {
  if (allocation_ == nullptr) return;
  // The default stream is that of the device a thread is at, and kernels of another do not wait for it.
  int here = device_;
  cudaGetDevice(&here);
  if (here != device_) cudaSetDevice(device_);
  // Where something fails, kernels that write to it may be on their way.
  if (std::uncaught_exceptions() > 0) cudaDeviceSynchronize();
  cudaFreeAsync(allocation_, nullptr);  // fails only after an error that was reported
  if (here != device_) cudaSetDevice(here);
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
  const std::size_t tail = canary_bytes + aligned(bytes_) - bytes_;
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
