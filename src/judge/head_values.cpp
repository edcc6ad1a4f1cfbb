#include "judge/head_values.hpp"

#include <span>

#include "numeric/rounding.hpp"

namespace kda_check::judge {

namespace {

template <class Value, class Element>
std::vector<Value> padded_rows(std::span<const Element> whole, const RowLayout& layout, std::size_t head) {
  const std::size_t stride = padded_width(layout.width);
  std::vector<Value> values(layout.rows * stride);
  for (std::size_t r = 0; r < layout.rows; ++r) {
    const Element* const from = &whole[layout.element(r, head, 0)];
    Value* const to = &values[r * stride];
    if (layout.column_stride == 1)  // what a compiler vectorises
      for (std::size_t v = 0; v < layout.width; ++v) to[v] = static_cast<Value>(numeric::widen(from[v]));
    else
      for (std::size_t v = 0; v < layout.width; ++v)
        to[v] = static_cast<Value>(numeric::widen(from[v * layout.column_stride]));
  }
  return values;
}

}  // namespace

std::vector<double> head_of(const TruthValues& truth, const RowLayout& layout, std::size_t head) {
  return truth.visit([&](auto elements) { return padded_rows<double>(elements, layout, head); });
}

std::vector<float> head_of(const tensor::Tensor& tensor, const RowLayout& layout, std::size_t head) {
  return numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    using Element = decltype(tag);
    return padded_rows<float>(std::span<const Element>(tensor.elements<Element>()), layout, head);
  });
}

}  // namespace kda_check::judge
