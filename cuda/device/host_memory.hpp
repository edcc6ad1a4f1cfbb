// Memory of the host that the device copies to and from by itself, while both go on.
#pragma once

#include <cstddef>
#include <memory>

namespace kda_check::cuda {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  /// At least so many bytes; what was there is lost. Throws Error{environment}.
  void reserve(std::size_t bytes);
  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_) + offset);
  }

 private:
  struct Unmap {
    Unmap() : bytes(0) {}
    explicit Unmap(std::size_t count) : bytes(count) {}
    std::size_t bytes;
    void operator()(void* begin) const;
  };

  void release();
  void* registered(std::size_t bytes);

  void* memory_ = nullptr;
  std::unique_ptr<void, Unmap> mapped_;  ///< where memory_ is, if it is registered
  std::size_t bytes_ = 0;
};

}  // namespace kda_check::cuda
