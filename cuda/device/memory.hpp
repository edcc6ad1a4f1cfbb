// Memory of the device that notices when somebody writes past its ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kda_check::cuda {

/// Bytes that the device has left.
std::size_t free_memory();

/// `bytes` bytes between two canaries, filled with poison: all bits set, a NaN in every format, which no
/// kernel computes. Aligned to 256 bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error{environment} when there is not enough. `name`: for messages.
  DeviceMemory(const char* name, std::size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory();

  void* data() const { return memory_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  std::size_t size() const { return bytes_; }
  const char* name() const { return name_; }

  void poison() const;
  void upload(const void* source) const;
  /// Throws Error{internal} unless `bytes` is the size.
  void download(void* target, std::size_t bytes) const;
  /// A sum over all words and where they are: the same contents give the same number.
  std::uint64_t hash() const;
  /// Throws Error{internal} when something was written before or behind the memory.
  void check_canaries() const;

 private:
  void swap(DeviceMemory& other) {
    std::swap(name_, other.name_);
    std::swap(allocation_, other.allocation_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
  }

  const char* name_ = "";
  void* allocation_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = 0;
};

}  // namespace kda_check::cuda
