#include "engine/gate_offset.hpp"

#include <cmath>

#include "kda/bounds/log_decays.hpp"
#include "kda/head/head_io.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

constexpr double unit = 0x1p-24;
constexpr double step = 0x1p-22;               ///< of the difference quotient, relative to exp(A_log)
constexpr double least_share_explained = 0.5;  ///< of the squares of the error

/// With log decays that are `shift` exp(A_log) larger; `problem` has them as its gates, `reader` that factor.
kda::Problem shifted(const kda::Problem& problem, const kda::HeadReader<double>& reader, double shift) {
  const std::size_t HV = problem.dimensions().HV, decays = problem.dimensions().decays();
  kda::Problem other = kda::clone(problem);
  const std::span<double> values = other.g.elements<double>();
  for (std::size_t head = 0; head < HV; ++head) {
    const double added = shift * numeric::exp(reader.log_amplitude(head));
    for (std::size_t first = head * decays; first < values.size(); first += HV * decays)
      for (std::size_t k = 0; k < decays; ++k) values[first + k] += added;
  }
  return other;
}

}  // namespace

void GateSums::add(const GateSums& other) {
  errors += other.errors, along += other.along, directions += other.directions;
}

std::optional<double> GateSums::offset() const {
  if (!(along * along >= least_share_explained * errors * directions) || directions == 0) return std::nullopt;
  return along / directions;
}

GateDirection::GateDirection(const kda::Problem& problem) {
  const kda::Problem plain = kda::with_log_decays(problem);
  base_ = kda::answer_in_fp64(plain);
  shifted_ = kda::answer_in_fp64(shifted(plain, kda::HeadReader<double>(problem), step));
}

GateSums GateDirection::sums(std::string_view tensor, const judge::RowLayout& layout, std::size_t head,
                             std::size_t part_head, const judge::HeadRows& truth,
                             const tensor::Tensor& answer) const {
  const tensor::Tensor &base = kda::tensor_of(base_, tensor), &moved = kda::tensor_of(shifted_, tensor);
  const judge::RowLayout part = layout.with_heads(base.size() / (layout.rows * layout.width));
  GateSums sums;
  std::vector<double> exact(judge::padded_width(layout.width));
  for (std::size_t r = 0; r < layout.rows; ++r) {
    truth.read(r, exact.data());
    for (std::size_t v = 0; v < layout.width; ++v) {
      const std::size_t at = part.element(r, part_head, v);
      const double error = answer.value(layout.element(r, head, v)) - exact[v],
                   direction = (moved.value(at) - base.value(at)) * (unit / step);
      sums.add({error * error, error * direction, direction * direction});
    }
  }
  return sums;
}

}  // namespace kda_check::engine
