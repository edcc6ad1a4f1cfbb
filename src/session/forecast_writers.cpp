// The forecast as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "report/version.hpp"
#include "session/forecast.hpp"

namespace kda_check::session {

namespace {

using analysis::Contraction;
using analysis::DecayForecast;
using analysis::Forecast;
using analysis::InverseForecast;
using analysis::Outlook;
using analysis::Place;
using Json = nlohmann::ordered_json;

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
  const double margin = analysis::factor_limits(false, casts).overflow - item.range.largest;
  return fmt::format("fp16 operands {}", margin > 0 ? margin_text(margin) : "overflow");
}

std::string decay_text(const Forecast& forecast, const DecayForecast& item, bool packed) {
  const analysis::ExponentRange& range = item.range;
  if (item.outlook == Outlook::breaks) {
    if (!range.overflow)
      return fmt::format("breaks: {} at {}", forecast.chunk_forms->what,
                         place_text(forecast.chunk_forms->place, packed));
    return fmt::format("overflows: {} at {}, margin {}, first at {}",
                       exponent_text(range.largest, item.limits.overflow), place_text(range.place, packed),
                       margin_text(item.margin), place_text(*range.overflow, packed));
  }
  switch (item.outlook) {
    case Outlook::wrong:
      return fmt::format(
          "wrong, not inf: exponents exceed the clamp by 2^{:.1f}, weights off by up to {:.2g} at {}",
          range.clamped_excess, range.weight_error, place_text(range.wrong_place, packed));
    case Outlook::flushes:
      return fmt::format("loses weights of {:.2g} where exp flushes to zero, at {}; else safe, margin {}",
                         range.lost_weight, place_text(range.lost_place, packed), margin_text(item.margin));
    case Outlook::masked:
      return fmt::format("safe forward; {} above the diagonal at {}: its gradient is NaN",
                         exponent_text(range.largest_masked, item.limits.overflow),
                         place_text(range.masked_place, packed));
    default:
      break;
  }
  return fmt::format("safe, margin {} ({})", margin_text(item.margin), fp16_text(item));
}

std::string inverse_text(const Forecast& forecast, const InverseForecast& item, bool packed) {
  if (item.outlook == Outlook::breaks && forecast.chunk_forms)
    return fmt::format("breaks: {} at {}", forecast.chunk_forms->what,
                       place_text(forecast.chunk_forms->place, packed));
  if (item.divergence)
    return fmt::format("breaks: its errors overflow at {} chunk {}", head_text(*item.divergence, packed),
                       item.divergence->chunk);
  const char* const word = item.outlook == Outlook::breaks  ? "overflows"
                           : item.outlook == Outlook::wrong ? "wrong"
                                                            : "safe";
  return fmt::format("{}, accurate to {:.1g}", word, item.error_in_run);
}

void write_inverses(std::string& out, const Forecast& forecast, bool packed) {
  const analysis::InverseGrowth& growth = forecast.growth;
  fmt::format_to(std::back_inserter(out),
                 "\n  inverse of I + L: largest entry {:.3g}, norm {:.3g}; largest |L| {:.3g}\n",
                 growth.largest_inverse, growth.norm, growth.largest_L);
  for (std::size_t s = 0; s < analysis::block_sides.size(); ++s) {
    const analysis::BlockGrowth& block = growth.blocks[s];
    fmt::format_to(std::back_inserter(out),
                   "    blocks of {}: largest power |L^{}| = {:.3g} at {} chunk {} row {}\n",
                   analysis::block_sides[s], block.power, block.largest_power,
                   head_text(block.power_place, packed), block.power_place.chunk, block.power_place.row);
  }
  fmt::format_to(std::back_inserter(out),
                 "  accurate to about, relative to its largest entry, by operand format:\n");
  fmt::format_to(std::back_inserter(out), "  {:<22} {:>9}", "", "largest");
  for (const std::string_view name : analysis::operand_formats)
    fmt::format_to(std::back_inserter(out), " {:>9}", name);
  out += "   as selected\n";
  for (const InverseForecast& item : forecast.inverses) {
    fmt::format_to(std::back_inserter(out), "  {:<22} {:>9.3g}", "inverse=" + item.form, item.largest);
    for (std::size_t f = 0; f < item.error.size(); ++f)
      fmt::format_to(std::back_inserter(out), " {:>9}",
                     item.overflows[f] ? std::string("overflows") : fmt::format("{:.1g}", item.error[f]));
    fmt::format_to(std::back_inserter(out), "   {}\n", inverse_text(forecast, item, packed));
  }
}

void write_head(std::string& out, const Contraction& head, std::size_t index) {
  fmt::format_to(
      std::back_inserter(out),
      "    h={:<4} decay {:.4g} (geometric mean), {:.3g} (least); remembers {:.4g} tokens; {:.4g} summed "
      "over a chunk; beta k^2 up to {:.3g}{}\n",
      index, std::exp(head.mean_log_decay), std::exp(head.least_log_decay), head.persistence,
      head.largest_chunk_sum, head.largest_write,
      head.growth > 0 ? fmt::format(", may grow by exp({:.3g})", head.growth) : "");
}

void write_heads(std::string& out, const std::vector<Contraction>& heads, report::Detail detail) {
  if (detail == report::Detail::verbose) {
    out += "\n  heads\n";
    for (std::size_t h = 0; h < heads.size(); ++h) write_head(out, heads[h], h);
    return;
  }
  const auto slowest = std::max_element(
      heads.begin(), heads.end(), [](const auto& a, const auto& b) { return a.persistence < b.persistence; });
  const auto fastest = std::max_element(heads.begin(), heads.end(), [](const auto& a, const auto& b) {
    return a.largest_chunk_sum < b.largest_chunk_sum;
  });
  out += "\n  the head that remembers longest, and the one with the largest sums (all: -v)\n";
  write_head(out, *slowest, static_cast<std::size_t>(slowest - heads.begin()));
  if (fastest != slowest) write_head(out, *fastest, static_cast<std::size_t>(fastest - heads.begin()));
}

const char* headline(Outlook outlook) {
  if (outlook == Outlook::breaks) return "BREAKS";
  return outlook == Outlook::wrong ? "WRONG" : "SAFE";
}

Json number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

Json place_json(const Place& place) {
  return {{"sequence", place.sequence}, {"batch", place.batch}, {"head", place.head},
          {"chunk", place.chunk},       {"row", place.row},     {"channel", place.channel}};
}

Json decay_json(const DecayForecast& item) {
  const analysis::ExponentRange& range = item.range;
  return {{"form", item.form},
          {"outlook", analysis::name_of(item.outlook)},
          {"largest_exponent", number(range.largest)},
          {"place", place_json(range.place)},
          {"margin", number(item.margin)},
          {"overflow", range.overflow ? place_json(*range.overflow) : Json(nullptr)},
          {"lost_weight", number(range.lost_weight)},
          {"largest_masked_exponent", number(range.largest_masked)},
          {"clamped_excess_bits", number(range.clamped_excess)},
          {"weight_error", number(range.weight_error)}};
}

Json inverse_json(const InverseForecast& item) {
  Json formats = Json::object();
  for (std::size_t f = 0; f < item.error.size(); ++f)
    formats[std::string(analysis::operand_formats[f])] = {
        {"error", number(item.error[f])}, {"overflows", static_cast<bool>(item.overflows[f])}};
  return {{"form", item.form},
          {"outlook", analysis::name_of(item.outlook)},
          {"largest", number(item.largest)},
          {"amplification", number(item.amplification)},
          {"divergence", item.divergence ? place_json(*item.divergence) : Json(nullptr)},
          {"error", number(item.error_in_run)},
          {"formats", formats}};
}

Json failure_json(const std::optional<analysis::CommonFailure>& failure) {
  if (!failure) return nullptr;
  return {{"what", failure->what}, {"place", place_json(failure->place)}};
}

Json growth_json(const analysis::InverseGrowth& growth) {
  Json blocks = Json::array();
  for (std::size_t s = 0; s < growth.blocks.size(); ++s)
    blocks.push_back({{"rows", analysis::block_sides[s]},
                      {"largest_power", number(growth.blocks[s].largest_power)},
                      {"power", growth.blocks[s].power},
                      {"place", place_json(growth.blocks[s].power_place)}});
  return {{"largest_L", number(growth.largest_L)},
          {"largest_inverse", number(growth.largest_inverse)},
          {"norm", number(growth.norm)},
          {"blocks", blocks}};
}

}  // namespace

std::string forecast_text(const ForecastResult& result, report::Detail detail) {
  const Forecast& forecast = result.forecast;
  std::string out =
      fmt::format("{}  {}  {}\n\n", result.fixture.name, result.fixture.shape, result.fixture.options);
  fmt::format_to(std::back_inserter(out), "  forecast of chunk in {}, chunks of {}: {}\n",
                 numeric::name_of(forecast.dtype), forecast.chunk_size,
                 kda::describe(forecast.selected, {.chunk = true}));
  const auto line = [&](const std::string& name, const std::string& text) {
    fmt::format_to(std::back_inserter(out), "  {:<22} {}\n", name, text);
  };
  line("naive, recurrent", forecast.token_forms
                               ? fmt::format("breaks: {} at {}", forecast.token_forms->what,
                                             place_text(forecast.token_forms->place, result.packed))
                               : "safe");
  for (const DecayForecast& item : forecast.decays)
    line("decay=" + item.form, decay_text(forecast, item, result.packed));
  write_inverses(out, forecast, result.packed);
  write_heads(out, forecast.heads, detail);
  const DecayForecast& decay = forecast.selected_decay;
  fmt::format_to(std::back_inserter(out), "\n{}  decay={}: {}; inverse={}: {}\n",
                 headline(forecast.outlook()), decay.form, decay_text(forecast, decay, result.packed),
                 forecast.selected_inverse.form,
                 inverse_text(forecast, forecast.selected_inverse, result.packed));
  return out;
}

std::string forecast_json(const ForecastResult& result, const std::vector<std::string>& argv) {
  const Forecast& forecast = result.forecast;
  Json decays = Json::array(), inverses = Json::array(), heads = Json::array();
  for (const DecayForecast& item : forecast.decays) decays.push_back(decay_json(item));
  for (const InverseForecast& item : forecast.inverses) inverses.push_back(inverse_json(item));
  for (const Contraction& head : forecast.heads)
    heads.push_back({{"mean_log_decay", number(head.mean_log_decay)},
                     {"least_log_decay", number(head.least_log_decay)},
                     {"persistence", number(head.persistence)},
                     {"largest_chunk_sum", number(head.largest_chunk_sum)},
                     {"largest_write", number(head.largest_write)},
                     {"growth", number(head.growth)}});
  const Json document = {{"schema_version", 1},
                         {"tool", {{"name", "kda-check"}, {"version", version}}},
                         {"request", {{"command", "forecast"}, {"argv", argv}}},
                         {"fixture",
                          {{"name", result.fixture.name},
                           {"path", result.fixture.path},
                           {"shape", result.fixture.shape},
                           {"options", result.fixture.options}}},
                         {"dtype", numeric::name_of(forecast.dtype)},
                         {"chunk_size", forecast.chunk_size},
                         {"arithmetic", kda::describe(forecast.selected, {.chunk = true})},
                         {"outlook", analysis::name_of(forecast.outlook())},
                         {"chunk_forms", failure_json(forecast.chunk_forms)},
                         {"token_forms", failure_json(forecast.token_forms)},
                         {"selected",
                          {{"decay", decay_json(forecast.selected_decay)},
                           {"inverse", inverse_json(forecast.selected_inverse)}}},
                         {"decay", decays},
                         {"inverse", inverses},
                         {"growth", growth_json(forecast.growth)},
                         {"heads", heads},
                         {"exit_code", result.exit_code()}};
  // Strings come from files: bytes that are no UTF-8 are replaced rather than refused.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kda_check::session
