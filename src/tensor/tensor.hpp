// A dense tensor: name, element type, shape, bytes. Row-major, last index fastest, 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "numeric/formats.hpp"

namespace kda_check::tensor {

using Shape = std::vector<std::size_t>;

/// Number of elements; 1 for a scalar.
std::size_t element_count(const Shape& shape);

/// "[1,64,4,128]"
std::string to_string(const Shape& shape);

/// The multi-index of element `flat`.
std::vector<std::size_t> index_of(const Shape& shape, std::size_t flat);

/// Uninitialised memory for std::free, aligned to 64 bytes; large blocks in large pages, where the system has
/// them. Throws std::bad_alloc.
void* aligned_memory(std::size_t size);

/// Uninitialised memory, aligned to 64 bytes; large blocks go back to the system when freed.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::size_t size);
  /// Takes over a mapping made with mmap.
  static AlignedBytes mapped(void* memory, std::size_t size);

  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    Free() : mapped_size(0) {}
    explicit Free(std::size_t size) : mapped_size(size) {}
    std::size_t mapped_size;  ///< 0: from the allocator
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  std::size_t size_ = 0;
};

/// Scratch memory of `count` elements, uninitialised.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::size_t count = 0) : bytes_(count * sizeof(T)) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  T& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return bytes_.size() / sizeof(T); }
  void fill(T value) {
    for (std::size_t i = 0; i < size(); ++i) data()[i] = value;
  }

 private:
  AlignedBytes bytes_;
};

/// Scratch memory of `count` elements, uninitialised, handed out piece by piece.
template <class T>
class Arena {
 public:
  explicit Arena(std::size_t count) : memory_(count), next_(memory_.data()) {}
  void fill(T value) { memory_.fill(value); }
  T* take(std::size_t count) {
    T* const piece = next_;
    next_ += count;
    return piece;
  }

 private:
  Scratch<T> memory_;
  T* next_;
};

/// Moved, never copied by accident: tensors are large.
class Tensor {
 public:
  Tensor() = default;
  /// Elements are uninitialised.
  Tensor(std::string name, numeric::DType dtype, Shape shape);
  /// Elements are in `storage`, which has the size that dtype and shape say.
  Tensor(std::string name, numeric::DType dtype, Shape shape, AlignedBytes storage);

  const std::string& name() const { return name_; }
  numeric::DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * numeric::format_of(dtype_).bytes; }
  bool empty() const { return size_ == 0; }

  std::byte* data() { return storage_.data(); }
  const std::byte* data() const { return storage_.data(); }

  /// Elements as their storage type, which must be that of dtype().
  template <class Storage>
  std::span<Storage> elements() {
    return {reinterpret_cast<Storage*>(storage_.data()), size_};
  }
  template <class Storage>
  std::span<const Storage> elements() const {
    return {reinterpret_cast<const Storage*>(storage_.data()), size_};
  }

  /// Address of element `flat`.
  const std::byte* at(std::size_t flat) const {
    return storage_.data() + flat * numeric::format_of(dtype_).bytes;
  }
  std::byte* at(std::size_t flat) { return storage_.data() + flat * numeric::format_of(dtype_).bytes; }

  /// The value of element `flat`, exactly.
  double value(std::size_t flat) const;
  /// Stores `value` rounded once to the element type.
  void set(std::size_t flat, double value);

  Tensor clone() const;
  /// The same tensor, called `name`.
  Tensor named(std::string name) && {
    name_ = std::move(name);
    return std::move(*this);
  }
  /// The same values rounded once to `dtype`.
  Tensor converted_to(numeric::DType dtype) const;

 private:
  std::string name_;
  numeric::DType dtype_ = numeric::DType::fp32;
  Shape shape_;
  std::size_t size_ = 0;
  AlignedBytes storage_;
};

}  // namespace kda_check::tensor
