#include "explain/growth/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/threads/parallel.hpp"
#include "numeric/elementary.hpp"
#include "numeric/exponentials.hpp"
#include "tensor/odd_values.hpp"

namespace kda_check::explain {

namespace {

using kda::Arithmetic;
using kda::DecayForm;
using kda::InverseForm;
using kda::Rounding;

/// Weights off by more than a rounding of fp32 are wrong; so is an inverse off by more than 5 %.
constexpr double tolerated_weight_error = 0x1p-24, tolerated_inverse_error = 0.05;

/// `base` with each value that `key` has, as far as there is a run with it.
std::vector<Arithmetic> variations(const kda::Problem& problem, kda::RunOptions base, std::string_view key) {
  std::vector<Arithmetic> list;
  for (const kda::AxisDescription& axis : kda::axis_descriptions()) {
    if (axis.key != key) continue;
    for (const std::string& name : axis.names) {
      kda::set_axis(base.arithmetic, fmt::format("{}={}", key, name.substr(0, name.find(":X"))));
      if (kda::variant_named("chunk").unsupported(problem, base).empty()) list.push_back(base.arithmetic);
    }
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
  Rounding rounding;
  double unit_roundoff, largest;
};
/// By operand_formats.
constexpr std::array<Operands, 4> operands = {{{Rounding::none, 0x1p-24, 0x1.fffffep127},
                                               {Rounding::tf32, 0x1p-10, 0x1.fffffep127},
                                               {Rounding::bf16, 0x1p-8, 0x1.fep127},
                                               {Rounding::fp16, 0x1p-11, 65504.0}}};

/// Of the values that a computation rounds so.
Operands operands_of(Rounding rounding, bool is_double) {
  if (is_double) return {rounding, 0x1p-53, std::numeric_limits<double>::max()};
  return *std::ranges::find(operands, rounding, &Operands::rounding);
}

/// Runs one way of the problem.
std::optional<Lost> lost_in(const kda::Problem& problem, kda::RunOptions options, const kda::Variant& variant,
                            const Arithmetic& arithmetic) {
  options.arithmetic = arithmetic;
  const kda::Answer answer = variant.run(problem, options);
  if (tensor::not_finite(answer.o, options.threads).count > 0)
    return Lost{"o", lost_chunks(problem, answer.o, options.chunk_size).front()};
  const tensor::OddValues odd = tensor::not_finite(answer.final_state, options.threads);
  if (odd.count == 0) return std::nullopt;
  const kda::Dimensions& d = problem.dimensions();
  const std::size_t head = odd.first / (d.K * d.V);
  const kda::Sequence sequence = problem.sequences()[head / d.HV];
  const std::size_t chunks = (sequence.length() + options.chunk_size - 1) / options.chunk_size;
  return Lost{"final_state",
              {sequence.index, sequence.batch, head % d.HV, std::max<std::size_t>(chunks, 1) - 1, 0, 0}};
}

/// What the inputs say of a run that is finite.
DecayForecast decay_forecast(const Arithmetic& form, const ExponentRange& range, numeric::DType dtype) {
  DecayForecast result;
  result.form = form_of(form, "decay");
  result.range = range;
  result.limits = factor_limits(dtype == numeric::DType::fp64, kda::cast_points(form, dtype, false, true));
  result.margin = result.limits.overflow - range.largest.value;
  if (form.decay == DecayForm::clamp) result.margin = form.clamp * numeric::log(2.0) - range.largest.value;
  if (form.decay == DecayForm::pair_late)
    result.margin = std::min(result.margin, result.limits.pair - range.masked.value);
  if (range.weight_error.value > tolerated_weight_error) {
    result.outlook = Outlook::wrong;
  } else if (range.lost) {
    result.outlook = Outlook::flushes;
  } else if (range.masked.value > result.limits.pair) {
    result.outlook = Outlook::masked;
  }
  return result;
}

InverseForecast inverse_forecast(const Arithmetic& form, const InverseGrowth& growth, numeric::DType dtype) {
  InverseForecast result;
  result.form = form_of(form, "inverse");
  result.largest = std::max(growth.largest_L, growth.largest_inverse);
  result.amplification = std::max(1.0, growth.substitution_amplification);
  const auto side = static_cast<std::size_t>(
      std::ranges::find(block_sides, static_cast<std::size_t>(form.inverse_rows)) - block_sides.begin());
  const BlockGrowth& block = growth.blocks.at(side);
  if (form.inverse == InverseForm::doubling || form.inverse == InverseForm::doubling_wide) {
    result.largest = std::max(result.largest, block.doubling);
    result.amplification = std::max(result.amplification, block.doubling_amplification);
  } else if (form.inverse == InverseForm::horner) {
    result.largest = std::max(result.largest, block.horner);
  } else if (form.inverse == InverseForm::paterson) {
    result.largest = std::max(result.largest, block.paterson);
    result.amplification = std::max(result.amplification, block.paterson_amplification);
  }
  for (std::size_t f = 0; f < operands.size(); ++f) {
    result.error[f] = result.amplification * operands[f].unit_roundoff;
    result.overflows[f] = !(result.largest <= operands[f].largest);
  }
  // Substitution multiplies what it has, unrounded.
  const kda::CastPoints casts = kda::cast_points(form, dtype, false, true);
  const Rounding rounding =
      form.inverse == InverseForm::substitution ? Rounding::none : casts.inverse_operands;
  const bool is_double = dtype == numeric::DType::fp64;
  const Operands mine = operands_of(rounding, is_double);
  result.error_in_run = result.amplification * mine.unit_roundoff;
  result.overflows_in_run = !(result.largest <= mine.largest) ||
                            !(growth.largest_L <= operands_of(casts.L, is_double).largest) ||
                            !(growth.largest_inverse <= operands_of(casts.Akk_inv, is_double).largest);
  if (result.error_in_run > tolerated_inverse_error) result.outlook = Outlook::wrong;
  return result;
}

/// By head.
std::vector<HeadFindings> scanned(const kda::Problem& problem, const kda::RunOptions& options,
                                  const std::vector<Arithmetic>& forms) {
  std::vector<HeadFindings> heads(problem.dimensions().HV);
  parallel_for(heads.size(), options.threads,
               [&](std::size_t head, int) { heads[head] = scan_head(problem, head, options, forms); });
  return heads;
}

ExponentRange range_in(const std::vector<HeadFindings>& heads, std::size_t form) {
  ExponentRange all;
  for (const HeadFindings& head : heads) all.merge(head.ranges[form]);
  return all;
}

/// What a form does where the stable one is finite.
enum class Certainty : unsigned char { finite, lost, open };

/// A factor is multiplied by q or k of this size, and the products are added up over the channels.
Certainty certainty(const DecayForecast& item, const Arithmetic& form, double operand, numeric::DType dtype) {
  constexpr double least_margin = 8;
  const double largest = item.range.largest.value;
  if (largest + numeric::log(std::max(operand, 1.0)) <
      std::min(item.limits.overflow, item.limits.readout) - least_margin)
    return Certainty::finite;
  if (form.decay == DecayForm::clamp) return Certainty::open;
  // Some exponentials have a largest argument.
  const auto argument = static_cast<float>(largest - 1);
  float factor = 0;
  numeric::exponentials(form.exponential, &argument, &factor, 1);
  return dtype != numeric::DType::fp64 && std::isinf(factor) ? Certainty::lost : Certainty::open;
}

Certainty certainty(const InverseForecast& item, const InverseGrowth& growth) {
  // Errors come back through the state: what loses more may overflow behind many chunks.
  constexpr double harmless = 1e-3;
  const bool is_stable = item.amplification <= std::max(1.0, growth.substitution_amplification);
  return (is_stable || item.error_in_run < harmless) && !item.overflows_in_run ? Certainty::finite
                                                                               : Certainty::open;
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
  // What leaves a format leaves it in whatever order sums are added up, and tensor cores take long. An
  // accumulator of theirs is a format.
  kda::RunOptions plain = options;
  if (plain.arithmetic.accumulator == kda::Accumulator::fp32) plain.arithmetic.reduction = {};
  plain.arithmetic.beta = kda::BetaPart::rows;  // which every form has
  // One part of the formulation at a time, beside the stable choice of the other.
  kda::RunOptions with_stable_inverse = plain, with_stable_decay = plain;
  with_stable_inverse.arithmetic.inverse = InverseForm::substitution;
  with_stable_decay.arithmetic.decay = DecayForm::anchor_pair, with_stable_decay.arithmetic.anchor_rows = 16;
  with_stable_decay.arithmetic.tail = kda::TailForm::difference;
  with_stable_decay.arithmetic.readout = kda::Readout::start;
  Arithmetic stable = with_stable_decay.arithmetic;
  stable.inverse = InverseForm::substitution;
  const std::vector<Arithmetic> decays = variations(problem, with_stable_inverse, "decay"),
                                inverses = variations(problem, with_stable_decay, "inverse");
  std::vector<Arithmetic> forms = decays;
  forms.push_back(options.arithmetic);
  const std::vector<HeadFindings> heads = scanned(problem, options, forms);

  Forecast result;
  result.dtype = options.dtype;
  result.chunk_size = options.chunk_size;
  result.selected = options.arithmetic;
  double operand = 0;
  for (const HeadFindings& head : heads) {
    result.growth.merge(head.growth);
    result.heads.push_back(head.decay_rate);
    operand = std::max(operand, head.largest_operand);
  }
  const kda::Variant &chunk = kda::variant_named("chunk"), &recurrent = kda::variant_named("recurrent");
  const std::optional<Lost> lost = lost_in(problem, options, chunk, options.arithmetic);
  if (lost) result.chunk_forms = lost_in(problem, plain, chunk, stable);
  result.token_forms =
      lost_in(problem, plain, recurrent, recurrent.default_arithmetic(problem, options.dtype));

  // What the inputs leave open a run says.
  const auto judge = [&](auto& item, Certainty certain, const Arithmetic& form) {
    if (result.chunk_forms)
      item.lost = result.chunk_forms;
    else if (certain == Certainty::open)
      item.lost = lost_in(problem, plain, chunk, form);
    if (item.lost || certain == Certainty::lost) item.outlook = Outlook::breaks;
  };
  for (std::size_t form = 0; form < decays.size(); ++form) {
    DecayForecast& item =
        result.decays.emplace_back(decay_forecast(decays[form], range_in(heads, form), options.dtype));
    judge(item, certainty(item, decays[form], operand, options.dtype), decays[form]);
  }
  for (const Arithmetic& form : inverses) {
    InverseForecast& item =
        result.inverses.emplace_back(inverse_forecast(form, result.growth, options.dtype));
    judge(item, certainty(item, result.growth), form);
  }
  result.selected_decay = decay_forecast(options.arithmetic, range_in(heads, decays.size()), options.dtype);
  result.selected_inverse = inverse_forecast(options.arithmetic, result.growth, options.dtype);
  if (lost && result.selected_decay.range.overflow)
    result.selected_decay.lost = lost, result.selected_decay.outlook = Outlook::breaks;
  else if (lost)
    result.selected_inverse.lost = lost, result.selected_inverse.outlook = Outlook::breaks;
  return result;
}

DecayForecast decay_forecast(const kda::Problem& problem, const kda::RunOptions& options) {
  return decay_forecast(options.arithmetic, range_in(scanned(problem, options, {options.arithmetic}), 0),
                        options.dtype);
}

std::vector<Place> lost_chunks(const kda::Problem& problem, const tensor::Tensor& o, std::size_t rows) {
  const kda::Dimensions& d = problem.dimensions();
  std::vector<Place> lost;
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head)
      for (std::size_t t = 0; t < sequence.length(); ++t) {
        const Place place{sequence.index, sequence.batch, head, t / rows, 0, 0};
        if (!lost.empty() && lost.back() == place) continue;
        const std::size_t row = (sequence.batch * d.T + sequence.begin + t) * d.HV + head;
        for (std::size_t v = 0; v < d.V; ++v)
          if (!std::isfinite(o.value(row * d.V + v))) {
            lost.push_back(place);
            break;
          }
      }
  return lost;
}

}  // namespace kda_check::explain
