#include "engine/gate_offset.hpp"

#include <cmath>

#include "kda/head_io.hpp"
#include "kda/variants.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

constexpr double unit = 0x1p-24;
constexpr double step = 0x1p-22;               ///< of the difference quotient, relative to exp(A_log)
constexpr double least_share_explained = 0.5;  ///< of the squares of the error

/// The same problem with its log decays as inputs, `shift` exp(A_log) larger.
kda::Problem with_gates(const kda::Problem& problem, double shift) {
  const kda::Dimensions& d = problem.dimensions();
  kda::Problem explicit_gates = kda::clone(problem);
  explicit_gates.g = tensor::Tensor("g", numeric::DType::fp64, problem.g.shape());
  explicit_gates.A_log.reset(), explicit_gates.dt_bias.reset();
  explicit_gates.options.gate = kda::Gate::none;
  const std::span<double> values = explicit_gates.g.elements<double>();
  const kda::HeadReader<double> reader(problem);
  const std::vector<kda::Sequence> sequences = problem.sequences();
  constexpr std::size_t most = 64;
  std::vector<double> rows(most * d.K);
  for (std::size_t head = 0; head < d.HV; ++head) {
    const double added = shift * numeric::exp(reader.log_amplitude(head));
    for (const kda::Sequence& s : sequences)
      for (std::size_t begin = 0; begin < s.length(); begin += most) {
        const std::size_t count = std::min(most, s.length() - begin);
        reader.log_decay(s, head, begin, count, rows.data(), d.K);
        for (std::size_t t = 0; t < count; ++t)
          for (std::size_t k = 0; k < d.K; ++k)
            values[((s.batch * d.T + s.begin + begin + t) * d.HV + head) * d.K + k] =
                rows[t * d.K + k] + added;
      }
  }
  explicit_gates.validate();
  return explicit_gates;
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
  const kda::Variant& variant = kda::variant_named("recurrent");
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64;
  options.arithmetic = variant.default_arithmetic(problem, options.dtype);
  const auto answer = [&](double shift) {
    return kda::run_pass(kda::Pass::forward, variant, with_gates(problem, shift), options);
  };
  base_ = answer(0), shifted_ = answer(step);
}

GateSums GateDirection::sums(std::string_view tensor, const judge::RowLayout& layout, std::size_t head,
                             std::size_t part_head, const judge::HeadRows& truth,
                             const tensor::Tensor& answer) const {
  const tensor::Tensor &base = base_.find(tensor)->second, &shifted = shifted_.find(tensor)->second;
  const judge::RowLayout part = layout.with_heads(base.size() / (layout.rows * layout.width));
  GateSums sums;
  std::vector<double> exact(judge::padded_width(layout.width));
  for (std::size_t r = 0; r < layout.rows; ++r) {
    truth.read(r, exact.data());
    for (std::size_t v = 0; v < layout.width; ++v) {
      const std::size_t at = part.element(r, part_head, v);
      const double error = answer.value(layout.element(r, head, v)) - exact[v],
                   direction = (shifted.value(at) - base.value(at)) * (unit / step);
      sums.add({error * error, error * direction, direction * direction});
    }
  }
  return sums;
}

}  // namespace kda_check::engine
