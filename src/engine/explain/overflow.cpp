// `explain --only overflow`: which formulations break on these inputs.
#include "explain/growth/forecast.hpp"
#include "explain/growth/state_forecast.hpp"
#include "kda/arithmetic/stored_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/explain/overflow.hpp"
#include "engine/findings.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

using explain::DecayForecast;
using explain::DecayRate;
using explain::Forecast;
using explain::InverseForecast;
using explain::Outlook;
using explain::Place;
using report::Show;
using report::Value;

std::string head_text(const Place& place, bool packed) {
  return packed ? fmt::format("n={} h={}", place.sequence, place.head)
                : fmt::format("b={} h={}", place.batch, place.head);
}

std::string place_text(const Place& place, bool packed) {
  return fmt::format("{} chunk {} row {} channel {}", head_text(place, packed), place.chunk, place.row,
                     place.channel);
}

/// exp(88.9) beside a limit of 88.7: as many digits as tell them apart.
std::string exponent_text(double exponent, double limit) {
  return std::fabs(exponent - limit) < 0.1 ? fmt::format("exp({:.5f})", exponent)
                                           : fmt::format("exp({:.2f})", exponent);
}

std::string margin_text(double margin) {
  return std::fabs(margin) < 0.1 ? fmt::format("{:.2g} nats", margin) : fmt::format("{:.1f} nats", margin);
}

/// What is left of the range of fp16, should the factors be rounded to it.
std::string fp16_text(const DecayForecast& item) {
  kda::CastPoints casts;
  casts.score_operands = kda::Rounding::fp16;
  const double margin = explain::factor_limits(false, casts).overflow - item.range.largest.value;
  return fmt::format("fp16 operands {}", margin > 0 ? margin_text(margin) : "overflow");
}

/// Of a factor that is none of the scores.
std::string_view where_of(explain::Side side) {
  if (side == explain::Side::tail) return " in its factored tail";
  return side == explain::Side::readout ? " where it reads the state" : "";
}

std::string lost_text(const std::optional<explain::Lost>& lost, bool packed) {
  return lost ? fmt::format("{} is not finite at {} chunk {}", lost->tensor, head_text(lost->place, packed),
                            lost->place.chunk)
              : std::string();
}

/// Of factors that overflow.
std::string overflow_text(const DecayForecast& item, bool packed) {
  const explain::Peak& largest = item.range.largest;
  return fmt::format("overflows{}: {} at {}, margin {}, first at {}", where_of(item.range.side),
                     exponent_text(largest.value, item.limits.overflow), place_text(largest.place, packed),
                     margin_text(item.margin), place_text(*item.range.overflow, packed));
}

std::string decay_text(const DecayForecast& item, bool packed) {
  const explain::ExponentRange& range = item.range;
  switch (item.outlook) {
    case Outlook::breaks:
      return range.overflow ? overflow_text(item, packed) : "breaks: " + lost_text(item.lost, packed);
    case Outlook::wrong:
      return fmt::format(
          "wrong, not inf: exponents exceed the clamp by 2^{:.1f}, weights off by up to {:.2g} at {}",
          range.clamped_excess, range.weight_error.value, place_text(range.weight_error.place, packed));
    case Outlook::flushes:
      return fmt::format("loses whole weights where exp flushes to zero, at {}; else safe, margin {}",
                         place_text(*range.lost, packed), margin_text(item.margin));
    case Outlook::masked:
      return fmt::format("safe forward; {} above the diagonal at {}: its gradient is NaN",
                         exponent_text(range.masked.value, item.limits.pair),
                         place_text(range.masked.place, packed));
    case Outlook::safe:
      break;
  }
  return fmt::format("safe, margin {} ({})", margin_text(item.margin), fp16_text(item));
}

std::string inverse_text(const InverseForecast& item, bool packed) {
  if (item.outlook == Outlook::breaks)
    return fmt::format("{}: {}",
                       item.overflows_in_run      ? "overflows"
                       : item.error_in_run > 0.05 ? "breaks by its errors"
                                                  : "breaks",
                       lost_text(item.lost, packed));
  return fmt::format("{}, accurate to {:.1g}", item.outlook == Outlook::wrong ? "wrong" : "safe",
                     item.error_in_run);
}

std::string outlook_name(Outlook outlook) { return std::string(explain::name_of(outlook)); }
std::int64_t count(std::size_t value) { return static_cast<std::int64_t>(value); }
Value lost_place(const std::optional<explain::Lost>& lost, bool packed) {
  if (!lost) return {};
  return fmt::format("{} chunk {}", head_text(lost->place, packed), lost->place.chunk);
}

report::Table decays_of(const Forecast& forecast, bool packed) {
  report::Table table;
  table.key = "decay";
  table.columns = {{"form", {}, Show::code},
                   {"says", "forecast"},
                   {"outlook", {}, Show::data},
                   {"largest_exponent", {}, Show::data},
                   {"place", {}, Show::data},
                   {"margin", {}, Show::data},
                   {"overflow", {}, Show::data},
                   {"lost_weight", {}, Show::data},
                   {"largest_masked_exponent", {}, Show::data},
                   {"clamped_excess_bits", {}, Show::data},
                   {"weight_error", {}, Show::data}};
  for (const DecayForecast& item : forecast.decays) {
    const explain::ExponentRange& range = item.range;
    table.rows.push_back({item.form, decay_text(item, packed), outlook_name(item.outlook),
                          range.largest.value, place_text(range.largest.place, packed), item.margin,
                          range.overflow ? Value(place_text(*range.overflow, packed)) : Value(),
                          range.lost ? 1.0 : 0.0, range.masked.value, range.clamped_excess,
                          range.weight_error.value});
  }
  return table;
}

report::Table inverses_of(const Forecast& forecast, bool packed) {
  report::Table table;
  table.key = "inverse";
  table.title = "inverses: accurate to about, relative to the largest entry, by operand format";
  table.columns = {{"form", {}, Show::code}, {"largest", {}, Show::figure}};
  for (const std::string_view format : explain::operand_formats)
    table.columns.push_back({std::string(format), {}, Show::figure});
  table.columns.insert(table.columns.end(), {{"says", "as selected"},
                                             {"outlook", {}, Show::data},
                                             {"amplification", {}, Show::data},
                                             {"divergence", {}, Show::data},
                                             {"error", {}, Show::data}});
  for (const InverseForecast& item : forecast.inverses) {
    std::vector<Value> row{item.form, item.largest};
    for (std::size_t f = 0; f < item.error.size(); ++f)
      row.push_back(item.overflows[f] ? Value(std::string("overflows")) : Value(item.error[f]));
    row.insert(row.end(), {inverse_text(item, packed), outlook_name(item.outlook), item.amplification,
                           lost_place(item.lost, packed), item.error_in_run});
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string state_text(const explain::StateForecast& item) {
  if (!std::isfinite(item.o) || !std::isfinite(item.final_state)) return "inputs are not finite";
  if (item.overflows())
    return fmt::format("reaches {:.2g} of the largest number: {}", item.largest,
                       item.stored.format == kda::StateFormat::e4m3 ? "clipped" : "overflows");
  if (item.stagnates())
    return fmt::format("at least: a token changes an element by {:.2g} steps, which rounding swallows",
                       item.change);
  return "";
}

report::Table states_of(const std::vector<explain::StateForecast>& forecasts) {
  report::Table table;
  table.key = "states";
  table.title = "a state stored between tokens of the token forms: rms_ratio to expect (docs/serving.md)";
  table.columns = {{"stored", {}, Show::code},        {"o", {}, Show::figure},
                   {"final_state", {}, Show::figure}, {"says", ""},
                   {"stagnates", {}, Show::data},     {"change", {}, Show::data},
                   {"largest", {}, Show::data}};
  for (const explain::StateForecast& item : forecasts)
    table.rows.push_back({kda::words_of(item.stored), item.o, item.final_state, state_text(item),
                          item.stagnates(), item.change, item.largest});
  return table;
}

report::Table blocks_of(const Forecast& forecast, bool packed) {
  report::Table table;
  table.key = "blocks";
  table.title = "inverse of I + L: the largest power of its diagonal blocks";
  table.columns = {{"rows", {}, Show::count},
                   {"power", {}, Show::count},
                   {"largest_power", "largest |L^power|", Show::figure},
                   {"place", {}}};
  for (std::size_t s = 0; s < forecast.growth.blocks.size(); ++s) {
    const explain::BlockGrowth& block = forecast.growth.blocks[s];
    table.rows.push_back({count(explain::block_sides[s]), count(block.exponent), block.power.value,
                          place_text(block.power.place, packed)});
  }
  return table;
}

std::vector<Value> head_row(const DecayRate& head, std::size_t index) {
  return {count(index),
          numeric::exp(head.mean_log_decay),
          numeric::exp(head.least_log_decay),
          head.persistence,
          head.largest_chunk_sum,
          head.largest_write,
          head.growth,
          head.mean_log_decay,
          head.least_log_decay};
}

/// All of them, and the two that decide most.
std::vector<report::Table> heads_of(const std::vector<DecayRate>& heads) {
  report::Table all;
  all.key = "heads", all.title = "heads", all.from = report::Detail::verbose;
  all.columns = {{"head", {}, Show::count},
                 {"decay", "decay (geometric mean)", Show::figure},
                 {"least_decay", "least", Show::figure},
                 {"persistence", "tokens remembered", Show::figure},
                 {"largest_chunk_sum", "summed over a chunk", Show::figure},
                 {"largest_write", "beta k^2 up to", Show::figure},
                 {"growth", "may grow by exp of", Show::figure},
                 {"mean_log_decay", {}, Show::data},
                 {"least_log_decay", {}, Show::data}};
  for (std::size_t h = 0; h < heads.size(); ++h) all.rows.push_back(head_row(heads[h], h));
  report::Table telling = all;
  telling.key = "telling_heads", telling.from = report::Detail::normal;
  telling.title = "the head that remembers longest, and the one with the largest sums (all: -v)";
  const auto slowest =
      static_cast<std::size_t>(std::ranges::max_element(heads, {}, &DecayRate::persistence) - heads.begin());
  const auto fastest = static_cast<std::size_t>(
      std::ranges::max_element(heads, {}, &DecayRate::largest_chunk_sum) - heads.begin());
  telling.rows = {head_row(heads[slowest], slowest)};
  if (fastest != slowest) telling.rows.push_back(head_row(heads[fastest], fastest));
  return {telling, all};
}

const char* headline(Outlook outlook) {
  if (outlook == Outlook::breaks) return "BREAKS";
  return outlook == Outlook::wrong ? "WRONG" : "SAFE";
}

void add_entry(report::Section& section, const Forecast& forecast,
               const std::vector<explain::StateForecast>& states, bool packed, const plan::Case& item) {
  const DecayForecast& decay = forecast.selected_decay;
  const std::string arithmetic = kda::describe(forecast.selected, {.chunk = true});
  const std::string dtype(numeric::name_of(forecast.dtype));
  const std::string token_forms = lost_text(forecast.token_forms, packed);
  report::Entry& entry = section.add_fields(
      {{{"dtype", {}}, dtype},
       {{"chunk_size", {}, Show::data}, count(forecast.chunk_size)},
       {{"arithmetic", {}, Show::data}, arithmetic},
       {{"outlook", {}, Show::data}, outlook_name(forecast.outlook())},
       {{"chunk_forms", {}, Show::data}, lost_text(forecast.chunk_forms, packed)},
       {{"token_forms", {}, Show::data}, token_forms},
       {{"token_forms_text", {}, Show::sentence},
        "naive, recurrent: " + (token_forms.empty() ? "safe" : "breaks: " + token_forms)},
       {{"selected_decay", {}, Show::data}, decay.form},
       {{"selected_inverse", {}, Show::data}, forecast.selected_inverse.form},
       {{"largest_L", {}, Show::data}, forecast.growth.largest_L},
       {{"largest_inverse", {}, Show::data}, forecast.growth.largest_inverse},
       {{"norm", {}, Show::data}, forecast.growth.norm},
       {{"inverse_text", {}, Show::sentence},
        fmt::format("inverse of I + L: largest entry {:.3g}, norm {:.3g}; largest |L| {:.3g}",
                    forecast.growth.largest_inverse, forecast.growth.norm, forecast.growth.largest_L)},
       {{"repro", {}, Show::data}, item.repro}});
  entry.title =
      fmt::format("forecast of {} in {}, chunks of {}: {}", item.who, dtype, forecast.chunk_size, arithmetic);
  // The gate of a forecast: is a run of the selected formulation to be trusted?
  entry.verdict = forecast.outlook() >= Outlook::wrong ? judge::Verdict::fail : judge::Verdict::pass;
  entry.reason = forecast.chunk_forms
                     ? fmt::format("BREAKS: every form: {}", lost_text(forecast.chunk_forms, packed))
                     : fmt::format("{}: decay={}: {}; inverse={}: {}", headline(forecast.outlook()),
                                   decay.form, decay_text(decay, packed), forecast.selected_inverse.form,
                                   inverse_text(forecast.selected_inverse, packed));
  entry.tables = {decays_of(forecast, packed), inverses_of(forecast, packed), blocks_of(forecast, packed),
                  states_of(states)};
  for (report::Table& table : heads_of(forecast.heads)) entry.tables.push_back(std::move(table));
}

}  // namespace

std::string forecast_overflow(const kda::Problem& problem, const kda::RunOptions& options) {
  const DecayForecast decay = explain::decay_forecast(problem, options);
  if (!decay.range.overflow) return {};
  return fmt::format("decay={} {}", decay.form, overflow_text(decay, problem.packed()));
}

void forecast_runs(Context& context, Findings& findings) {
  keep_finished(findings, section_of(context, "forecasts"), [&](report::Section& section) {
    for (const plan::Case& item : context.plan().cases) {
      if (item.question != plan::Question::overflow) continue;
      context.progress("runs of every form");
      const kda::RunOptions options = context.options_of(context.plan().answers[*item.answer]);
      const Forecast forecast = explain::forecast(context.problem(), options);
      const std::vector<explain::StateForecast> states =
          explain::forecast_states(context.problem(), options.threads);
      add_entry(section, forecast, states, context.problem().packed(), item);
    }
  });
}

}  // namespace kda_check::engine
