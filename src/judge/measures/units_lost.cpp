#include "judge/measures/units_lost.hpp"

#include <algorithm>
#include <cmath>

#include "base/interruption.hpp"
#include "judge/measures/head_energies.hpp"

namespace kda_check::judge {

namespace {

using numeric::ComputeFormat;
using numeric::ProductSum;

/// Correct fp32 recurrences read 1 to 11 on the reference fixtures, sums over K in order.
constexpr double healthy = 16;

ProductSum energy_of(const double* values, std::size_t count, std::size_t stride = 1) {
  ProductSum sum;
  if (stride == 1) {
    add_finite_squares(sum, {values, count});
    return sum;
  }
  for (std::size_t i = 0; i < count; ++i)
    if (const double value = values[i * stride]; std::isfinite(value)) sum.add_square(value);
  return sum;
}

double size_of(const tensor::Tensor& tensor, std::size_t begin, std::size_t count, std::size_t stride) {
  ProductSum sum;
  for (std::size_t i = 0; i < count; ++i)
    if (const double value = tensor.value(begin + i * stride); std::isfinite(value)) sum.add_square(value);
  return sum.root();
}

}  // namespace

bool is_narrow(ComputeFormat compute) {
  return compute != ComputeFormat::fp64 && compute != ComputeFormat::fp32;
}

double units_lost(ComputeFormat compute, Form form, double persistence, double rounding) {
  if (is_narrow(compute)) return healthy;  // operand rounding swamps the rest
  // exp(g) rounded once, by up to half a unit, and multiplied in at every token it lasts (docs/scenarios.md).
  const double coherent = 0.5 * persistence;
  switch (form) {
    case Form::recurrence:
      return healthy + coherent;
    case Form::chunk:
      return 2 * healthy + rounding;
    case Form::unknown:
      break;
  }
  return 2 * healthy + coherent + rounding;
}

UnitsSum::UnitsSum(std::string_view tensor, const tensor::Shape& shape, const kda::Problem& problem,
                   const kda::GateStatistics& gates, numeric::ComputeFormat compute, Form form)
    : problem_(problem),
      gates_(gates),
      compute_(compute),
      form_(form),
      axes_(tensor, shape, problem.options.state_v_first),
      d_(problem.dimensions()),
      sequences_(problem.sequences()),
      of_state_(tensor != "dv"),
      of_gradient_(tensor != "o" && tensor != "dq"),
      of_checkpoints_(tensor == "checkpoints"),
      means_(axes_.heads),
      largest_(axes_.heads) {
  if (is_narrow(compute))
    kind_ = Kind::narrow;
  else if (tensor == "o")
    kind_ = Kind::output;
  else if (tensor == "final_state" || tensor == "checkpoints")
    kind_ = Kind::state;
  else if (tensor == "dinitial_state")
    kind_ = Kind::state_gradient;
  else
    kind_ = axes_.has_tokens ? Kind::gradient : Kind::parameter;
}

void UnitsSum::add(std::size_t begin, std::size_t count, const double* values, int threads) {
  switch (kind_) {
    case Kind::narrow:
      return;
    case Kind::output:
    case Kind::gradient:
      return axes_.over_heads(begin, count, threads, [&](std::size_t head, std::size_t at) {
        add_row(head, row_of_group(at / axes_.run), energy_of(values + (at - begin), axes_.run));
      });
    case Kind::state:
    case Kind::state_gradient:
      for (std::size_t i = 0; i < count; i += d_.K * d_.V) add_state(begin + i, values + i);
      return;
    case Kind::parameter:
      add_sums(count, values, {});
  }
}

void UnitsSum::add_sums(std::size_t count, const double* values, std::span<const double> dg, int threads) {
  if (kind_ == Kind::narrow) return;
  struct OfHead {
    Mean tokens;
    double most = 0, largest = 0;
  };
  std::vector<OfHead> heads(d_.HV);
  parallel_for(d_.HV, threads, [&](std::size_t head, int) {
    OfHead found;
    for (std::size_t token = 0; token < d_.B * d_.T; ++token) {
      check_interruption();
      const Row row = row_of(token, head);
      const std::size_t at = (token * d_.HV + head) * d_.decays();
      if (!dg.empty()) found.tokens.add(units_of(row), energy_of(&dg[at], d_.decays()));
      found.most = std::max(found.most, units_of(row));
      found.largest = std::max(found.largest, units_lost(compute_, form_, row.longest, row.rounding));
    }
    heads[head] = found;
  });
  const std::size_t width = count / d_.HV;
  for (std::size_t head = 0; head < d_.HV; ++head) {
    largest_.front() = std::max(largest_.front(), heads[head].largest);
    means_.front().add(heads[head].tokens.rms(heads[head].most), energy_of(values + head * width, width));
  }
}

UnitsLost UnitsSum::result() const {
  if (kind_ == Kind::narrow) return {healthy};
  Mean mean;
  for (const Mean& of_head : means_) mean.add(of_head);
  const double largest = std::ranges::max(largest_);
  return {mean.rms(largest), largest};
}

void UnitsSum::Mean::add(double units, const ProductSum& energy) {
  if (energy.is_zero()) return;
  energy_.add(energy);
  is_unbounded_ = is_unbounded_ || !std::isfinite(units);
  if (is_unbounded_) return;
  ProductSum lost = energy;
  lost.scale(units);
  lost_.add(lost);
}

void UnitsSum::Mean::add(const Mean& other) {
  energy_.add(other.energy_);
  lost_.add(other.lost_);
  is_unbounded_ = is_unbounded_ || other.is_unbounded_;
}

double UnitsSum::Mean::rms(double otherwise) const {
  if (energy_.is_zero()) return otherwise;
  return is_unbounded_ ? HUGE_VAL : relative_size(lost_, energy_);
}

void UnitsSum::add_row(std::size_t head, const Row& row, const ProductSum& energy) {
  largest_[head] = std::max(largest_[head], units_lost(compute_, form_, row.longest, row.rounding));
  means_[head].add(units_of(row), energy);
}

/// Rows of one head's state. What it began with is as old as the sequence, as far as any of it is left.
void UnitsSum::add_state(std::size_t begin, const double* values) {
  const std::size_t size = d_.K * d_.V, state = begin / size, row = state / d_.HV, head = state % d_.HV;
  const std::size_t sequence = of_checkpoints_ ? problem_.checkpoints[row].sequence : row;
  const bool backwards = kind_ == Kind::state_gradient, v_first = problem_.options.state_v_first;
  const std::optional<tensor::Tensor>& initial = backwards ? problem_.state_gradient : problem_.initial_state;
  const auto length =
      static_cast<double>(of_checkpoints_ ? problem_.checkpoints[row].tokens : sequences_[sequence].length());
  const std::size_t initially = (sequence * d_.HV + head) * size;
  const auto& channels = of_checkpoints_ ? gates_.checkpoints : gates_.channels;
  const std::size_t stride = v_first ? d_.K : 1;
  for (std::size_t k = 0; k < d_.K; ++k) {
    const kda::GateStatistics::Channel& channel = channels[state * d_.K + k];
    const std::size_t offset = v_first ? k : k * d_.V;
    const ProductSum energy = energy_of(values + offset, d_.V, stride);
    double persistence = backwards ? channel.ahead : channel.behind;
    if (initial && !energy.is_zero()) {
      const double share = channel.left * size_of(*initial, initially + offset, d_.V, stride) / energy.root();
      persistence += length * std::min(share, 1.0);
    }
    add_row(axes_.head(begin),
            {persistence, persistence, backwards ? gates_.head_rounding[state] : channel.rounding}, energy);
  }
}

UnitsSum::Row UnitsSum::row_of(std::size_t token, std::size_t value_head) const {
  const std::size_t at = token * d_.HV + value_head;
  const double behind = of_state_ ? static_cast<double>(gates_.behind[at]) : 0,
               ahead = of_gradient_ ? static_cast<double>(gates_.ahead[at]) : 0;
  return {behind + ahead, std::max(behind, ahead),
          kind_ == Kind::output ? static_cast<double>(gates_.rounding[at])
                                : gates_.head_rounding[sequence_of(token) * d_.HV + value_head]};
}

/// Row: of one batch row, token and head, of queries where the tensor has those.
UnitsSum::Row UnitsSum::row_of_group(std::size_t row) const {
  const std::size_t token = row / axes_.heads, group = d_.HV / axes_.heads;
  Row most;
  for (std::size_t i = 0; i < group; ++i) {
    const Row one = row_of(token, row % axes_.heads * group + i);
    most = {std::max(most.persistence, one.persistence), std::max(most.longest, one.longest),
            std::max(most.rounding, one.rounding)};
  }
  return most;
}

/// Of a token of all batch rows.
std::size_t UnitsSum::sequence_of(std::size_t token) const {
  const auto after =
      std::upper_bound(sequences_.begin(), sequences_.end(), token,
                       [&](std::size_t at, const auto& s) { return at < s.batch * d_.T + s.begin; });
  return after == sequences_.begin() ? 0 : (after - 1)->index;
}

}  // namespace kda_check::judge
