#include "tensor/rearranged.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmanipulation.hpp>

#include "base/error.hpp"

namespace kda_check::tensor {

namespace {

/// An array that looks at the elements of a tensor as bits.
template <class Bits, class Bytes>
auto bits_of(Bytes* data, std::size_t size, const Shape& shape) {
  using Element = std::conditional_t<std::is_const_v<Bytes>, const Bits, Bits>;
  return xt::adapt(reinterpret_cast<Element*>(data), size, xt::no_ownership(), shape);
}

/// A tensor of `shape` that holds what `view` makes of the elements.
template <class View>
Tensor copied(const Tensor& from, Shape shape, View view) {
  Tensor to(from.name(), from.dtype(), std::move(shape));
  const auto copy = [&]<class Bits>(Bits) {
    const auto source = bits_of<Bits>(from.data(), from.size(), from.shape());
    auto target = bits_of<Bits>(to.data(), to.size(), to.shape());
    target = view(source);
  };
  if (to.empty()) return to;
  switch (numeric::format_of(from.dtype()).bytes) {
    case 2:
      copy(std::uint16_t{});
      break;
    case 4:
      copy(std::uint32_t{});
      break;
    case 8:
      copy(std::uint64_t{});
      break;
    default:
      throw Error(ErrorKind::internal, "an element type of another width");
  }
  return to;
}

}  // namespace

Tensor picked(const Tensor& tensor, std::size_t axis, std::span<const std::size_t> indices) {
  Shape shape = tensor.shape();
  const std::size_t length = shape[axis];
  shape[axis] = indices.size();
  Tensor to(tensor.name(), tensor.dtype(), std::move(shape));
  if (to.empty()) return to;
  // Whole runs of what lies behind the axis: heads of a production layer are picked for every one of them.
  std::size_t run = numeric::format_of(tensor.dtype()).bytes, runs = 1;
  for (std::size_t i = 0; i < axis; ++i) runs *= tensor.shape()[i];
  for (std::size_t i = axis + 1; i < tensor.shape().size(); ++i) run *= tensor.shape()[i];
  std::byte* target = to.data();
  for (std::size_t i = 0; i < runs; ++i)
    for (const std::size_t index : indices) {
      std::memcpy(target, tensor.data() + (i * length + index) * run, run);
      target += run;
    }
  return to;
}

Tensor transposed(const Tensor& tensor) {
  Shape shape = tensor.shape();
  const std::size_t last = shape.size() - 1;
  std::swap(shape[last - 1], shape[last]);
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::swap(order[last - 1], order[last]);
  return copied(tensor, std::move(shape), [&](const auto& source) { return xt::transpose(source, order); });
}

}  // namespace kda_check::tensor
