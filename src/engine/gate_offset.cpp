#include "engine/gate_offset.hpp"

#include <cmath>

#include "base/parallel.hpp"
#include "kda/head_io.hpp"
#include "kda/variants.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

constexpr double unit = 0x1p-24;
constexpr double step = 0x1p-22;               ///< of the difference quotient, relative to exp(A_log)
constexpr double least_share_explained = 0.5;  ///< of the squares of the error

/// The same problem with its log decays as inputs, `shift` exp(A_log) larger.
kda::Problem with_gates(const kda::Problem& problem, double shift, int threads) {
  const kda::Dimensions& d = problem.dimensions();
  kda::Problem explicit_gates = kda::clone(problem);
  explicit_gates.g = tensor::Tensor("g", numeric::DType::fp64, problem.g.shape());
  explicit_gates.A_log.reset(), explicit_gates.dt_bias.reset();
  explicit_gates.options.gate = kda::Gate::none;
  const std::span<double> values = explicit_gates.g.elements<double>();
  const kda::HeadReader<double> reader(problem);
  const std::vector<kda::Sequence> sequences = problem.sequences();
  parallel_for(d.HV, threads, [&](std::size_t head, int) {
    constexpr std::size_t most = 64;
    std::vector<double> rows(most * d.K);
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
  });
  explicit_gates.validate();
  return explicit_gates;
}

}  // namespace

GateDirection::GateDirection(const kda::Problem& problem, int threads) {
  const kda::Variant& variant = kda::variant_named("recurrent");
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64, options.threads = threads;
  options.arithmetic = variant.default_arithmetic(problem, options.dtype);
  const auto answer = [&](double shift) {
    return kda::run_pass(kda::Pass::forward, variant, with_gates(problem, shift, threads), options);
  };
  base_ = answer(0), shifted_ = answer(step);
}

std::optional<double> GateDirection::offset(std::string_view tensor, const judge::TruthValues& truth,
                                            const tensor::Tensor& answer) const {
  const auto base = base_.find(tensor), shifted = shifted_.find(tensor);
  if (base == base_.end() || base->second.size() != answer.size()) return std::nullopt;
  double errors = 0, along = 0, directions = 0;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const double error = answer.value(i) - truth[i];
    const double direction = (shifted->second.value(i) - base->second.value(i)) * (unit / step);
    errors += error * error, along += error * direction, directions += direction * direction;
  }
  if (!(along * along >= least_share_explained * errors * directions) || directions == 0) return std::nullopt;
  return along / directions;
}

}  // namespace kda_check::engine
