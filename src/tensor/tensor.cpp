#include "tensor/tensor.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "numeric/rounding.hpp"

namespace kda_check::tensor {

std::size_t element_count(const Shape& shape) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) text += ',';
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

std::vector<std::size_t> index_of(const Shape& shape, std::size_t flat) {
  std::vector<std::size_t> index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

void* aligned_memory(std::size_t size) {
  constexpr std::size_t alignment = 64, page = 4096, large = std::size_t{1} << 23;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const memory = rounded < size ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  // Large blocks in large pages, where the system has them: a fault for each 4 KiB costs more than the
  // filling. Aligned to large pages they would leave holes that the allocator cannot fill again.
  if (size >= large) {
    const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
    ::madvise(reinterpret_cast<void*>(first), (size - page) / page * page, MADV_HUGEPAGE);
  }
  return memory;
}

AlignedBytes::AlignedBytes(std::size_t size) : size_(size) {
  if (size > 0) bytes_.reset(static_cast<std::byte*>(aligned_memory(size)));
}

AlignedBytes AlignedBytes::mapped(void* memory, std::size_t size) {
  AlignedBytes bytes;
  bytes.bytes_ = {static_cast<std::byte*>(memory), Free{size}};
  bytes.size_ = size;
  return bytes;
}

void AlignedBytes::Free::operator()(std::byte* bytes) const {
  if (mapped_size > 0) {
    ::munmap(bytes, mapped_size);
  } else {
    std::free(bytes);
  }
}

Tensor::Tensor(std::string name, numeric::DType dtype, Shape shape)
    : name_(std::move(name)),
      dtype_(dtype),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      storage_(size_ * numeric::format_of(dtype).bytes) {}

Tensor::Tensor(std::string name, numeric::DType dtype, Shape shape, AlignedBytes storage)
    : name_(std::move(name)),
      dtype_(dtype),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      storage_(std::move(storage)) {}

double Tensor::value(std::size_t flat) const {
  return numeric::visit_storage(dtype_,
                                [&](auto tag) { return numeric::widen(elements<decltype(tag)>()[flat]); });
}

void Tensor::set(std::size_t flat, double value) {
  numeric::visit_storage(dtype_, [&](auto tag) {
    using Storage = decltype(tag);
    elements<Storage>()[flat] = numeric::round_to<Storage>(value);
  });
}

Tensor Tensor::clone() const {
  Tensor copy(name_, dtype_, shape_);
  if (size_ > 0) std::memcpy(copy.data(), data(), bytes());
  return copy;
}

Tensor Tensor::converted_to(numeric::DType dtype) const {
  if (dtype == dtype_) return clone();
  Tensor result(name_, dtype, shape_);
  numeric::visit_storage(dtype_, [&](auto from) {
    numeric::visit_storage(dtype, [&](auto to) {
      const auto source = elements<decltype(from)>();
      const auto target = result.elements<decltype(to)>();
      for (std::size_t i = 0; i < size_; ++i)
        target[i] = numeric::round_to<decltype(to)>(numeric::widen(source[i]));
    });
  });
  return result;
}

}  // namespace kda_check::tensor
