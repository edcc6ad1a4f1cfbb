#include "explain/growth/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/threads/parallel.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using kda::Arithmetic;
using kda::DecayForm;
using kda::InverseForm;
using kda::Rounding;

constexpr std::string_view decay_forms[] = {
    "pair",           "pair-late",       "anchor-pair:16",  "anchor-pair:32",
    "anchor-pair:64", "anchor-first:16", "anchor-first:32", "anchor-first:64",
    "anchor-mid:16",  "anchor-mid:32",   "anchor-mid:64",   "factored:16",
    "factored:32",    "factored:64",     "clamp:126"};
constexpr std::string_view inverse_forms[] = {"substitution", "blocks:16",   "blocks:32",   "blocks:64",
                                              "doubling:16",  "doubling:32", "doubling:64", "horner:16",
                                              "horner:32",    "horner:64",   "eliminate:8", "eliminate:16"};

/// Weights off by more than a rounding of fp32 are wrong; so is an inverse off by more than 5 %.
constexpr double tolerated_weight_error = 0x1p-24, tolerated_inverse_error = 0.05;

std::vector<Arithmetic> variations(const Arithmetic& base, std::string_view key,
                                   std::span<const std::string_view> names) {
  std::vector<Arithmetic> list;
  for (const std::string_view name : names) {
    list.push_back(base);
    kda::set_axis(list.back(), fmt::format("{}={}", key, name));
  }
  return list;
}

/// The value of `key` in the words of --arithmetic.
std::string form_of(const Arithmetic& arithmetic, std::string_view key) {
  const std::string all = kda::describe(arithmetic, {.chunk = true});
  const std::size_t begin = all.find(fmt::format(" {}=", key)) + key.size() + 2;
  return all.substr(begin, all.find(' ', begin) - begin);
}

struct Operands {
  double unit_roundoff, largest;
};
constexpr double fp32_largest = 0x1.fffffep127;
constexpr std::array<Operands, 4> operands = {
    {{0x1p-24, fp32_largest}, {0x1p-10, fp32_largest}, {0x1p-8, 0x1.fep127}, {0x1p-11, 65504.0}}};

/// Of the values that a computation rounds so.
Operands operands_of(Rounding rounding, bool is_double) {
  if (is_double) return {0x1p-53, std::numeric_limits<double>::max()};
  switch (rounding) {
    case Rounding::none:
      return operands[0];
    case Rounding::tf32:
      return operands[1];
    case Rounding::bf16:
      return operands[2];
    case Rounding::fp16:
      break;
  }
  return operands[3];
}

DecayForecast decay_forecast(const Arithmetic& form, const ExponentRange& range, bool fails_anyway,
                             const kda::CastPoints& casts, bool is_double) {
  DecayForecast result;
  result.form = form_of(form, "decay");
  result.arithmetic = form;
  result.range = range;
  result.limits = factor_limits(is_double, casts);
  const double masked_limit = factor_limits(is_double, {}).overflow;
  result.margin = result.limits.overflow - range.largest;
  if (form.decay == DecayForm::clamp) result.margin = form.clamp * numeric::log(2.0) - range.largest;
  if (form.decay == DecayForm::pair_late)
    result.margin = std::min(result.margin, masked_limit - range.largest_masked);
  if (fails_anyway || range.overflow) {
    result.outlook = Outlook::breaks;
  } else if (range.weight_error > tolerated_weight_error) {
    result.outlook = Outlook::wrong;
  } else if (range.lost_weight > 0) {
    result.outlook = Outlook::flushes;
  } else if (range.largest_masked > masked_limit) {
    result.outlook = Outlook::masked;
  }
  return result;
}

InverseForecast inverse_forecast(const Arithmetic& form, const HeadFindings& found, bool fails_anyway,
                                 const kda::CastPoints& casts, bool is_double) {
  const InverseGrowth& growth = found.growth;
  InverseForecast result;
  result.form = form_of(form, "inverse");
  result.arithmetic = form;
  result.largest = std::max(growth.largest_L, growth.largest_inverse);
  result.amplification = std::max(1.0, growth.substitution_amplification);
  const auto side = static_cast<std::size_t>(
      std::ranges::find(block_sides, static_cast<std::size_t>(form.inverse_rows)) - block_sides.begin());
  if (form.inverse == InverseForm::doubling) {
    const BlockGrowth& block = growth.blocks.at(side);
    result.largest = std::max(result.largest, block.doubling);
    result.amplification = std::max(result.amplification, block.doubling_amplification);
    result.divergence = found.divergence[side];
  } else if (form.inverse == InverseForm::horner) {
    result.largest = std::max(result.largest, growth.blocks.at(side).horner);
  }
  for (std::size_t f = 0; f < operands.size(); ++f) {
    result.error[f] = result.amplification * operands[f].unit_roundoff;
    result.overflows[f] = !(result.largest <= operands[f].largest);
  }
  // Substitution multiplies what it has, unrounded.
  const Rounding rounding =
      form.inverse == InverseForm::substitution ? Rounding::none : casts.inverse_operands;
  const Operands mine = operands_of(rounding, is_double);
  result.error_in_run = result.amplification * mine.unit_roundoff;
  const bool overflows = !(result.largest <= mine.largest) ||
                         !(growth.largest_L <= operands_of(casts.L, is_double).largest) ||
                         !(growth.largest_inverse <= operands_of(casts.Akk_inv, is_double).largest);
  if (fails_anyway || overflows || result.divergence) {
    result.outlook = Outlook::breaks;
  } else if (result.error_in_run > tolerated_inverse_error) {
    result.outlook = Outlook::wrong;
  }
  return result;
}

/// The findings of all sequences and heads, in order.
HeadFindings whole(std::vector<HeadFindings>& parts, std::size_t forms) {
  HeadFindings all;
  all.ranges.resize(forms);
  for (HeadFindings& part : parts) {
    if (!all.chunk_forms) all.chunk_forms = std::move(part.chunk_forms);
    if (!all.token_forms) all.token_forms = std::move(part.token_forms);
    for (std::size_t form = 0; form < forms; ++form) all.ranges[form].merge(part.ranges[form]);
    all.growth.merge(part.growth);
    for (std::size_t side = 0; side < all.divergence.size(); ++side)
      if (!all.divergence[side]) all.divergence[side] = part.divergence[side];
  }
  return all;
}

std::vector<DecayRate> decay_rates(const std::vector<HeadFindings>& parts,
                                   const std::vector<kda::Sequence>& sequences, std::size_t heads) {
  std::vector<DecayRate> result(heads);
  for (std::size_t head = 0; head < heads; ++head) {
    double tokens = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto length = static_cast<double>(sequences[s].length());
      result[head] = merged(result[head], tokens, parts[s * heads + head].decay_rate, length);
      tokens += length;
    }
  }
  return result;
}

}  // namespace

std::string_view name_of(Outlook outlook) {
  constexpr std::string_view names[] = {"safe", "masked", "flushes", "wrong", "breaks"};
  return names[static_cast<std::size_t>(outlook)];
}

Outlook Forecast::outlook() const {
  Outlook decay = selected_decay.outlook;
  if (decay == Outlook::flushes)
    decay = selected.exponential == kda::Exponential::flush ? Outlook::wrong : Outlook::safe;
  return std::max(decay == Outlook::masked ? Outlook::safe : decay, selected_inverse.outlook);
}

Forecast forecast(const kda::Problem& problem, const kda::RunOptions& options) {
  const Arithmetic& base = options.arithmetic;
  std::vector<Arithmetic> forms = variations(base, "decay", decay_forms);
  forms.push_back(base);
  const std::vector<kda::Sequence> sequences = problem.sequences();
  const std::size_t heads = problem.dimensions().HV;
  std::vector<HeadFindings> parts(sequences.size() * heads);
  parallel_for(parts.size(), options.threads, [&](std::size_t item, int) {
    parts[item] = scan_head(problem, sequences[item / heads], item % heads, options, forms);
  });

  Forecast result;
  result.dtype = options.dtype;
  result.chunk_size = options.chunk_size;
  result.selected = base;
  result.heads = decay_rates(parts, sequences, heads);
  HeadFindings all = whole(parts, forms.size());
  result.chunk_forms = std::move(all.chunk_forms);
  result.token_forms = std::move(all.token_forms);
  result.growth = all.growth;
  const bool fails_anyway = result.chunk_forms.has_value(), is_double = options.dtype == numeric::DType::fp64;
  const kda::CastPoints casts = kda::cast_points(base, options.dtype, false, true);
  for (std::size_t form = 0; form < forms.size(); ++form)
    result.decays.push_back(decay_forecast(forms[form], all.ranges[form], fails_anyway, casts, is_double));
  result.selected_decay = result.decays.back();
  result.decays.pop_back();
  for (const Arithmetic& form : variations(base, "inverse", inverse_forms))
    result.inverses.push_back(inverse_forecast(form, all, fails_anyway, casts, is_double));
  result.selected_inverse = inverse_forecast(base, all, fails_anyway, casts, is_double);
  return result;
}

}  // namespace kda_check::explain
