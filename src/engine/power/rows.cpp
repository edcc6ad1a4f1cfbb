// `power`: how large a fault must be before a verdict sees it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.hpp"
#include "engine/findings.hpp"
#include "engine/power/power.hpp"
#include "plan/power_classes.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using judge::Verdict;
using report::Show;
using report::Value;

Value value_of(const std::optional<double>& figure) { return figure ? Value(*figure) : Value(); }

/// What the places of one fault come to.
struct Places {
  std::vector<const PlacePower*> all;

  Places(const Power& power, const FaultRow& row) {
    for (const PlacePower& place : power.faults)
      if (place.row == &row) all.push_back(&place);
  }
  /// The lower middle one; none where most are not seen.
  std::optional<double> median(std::optional<double> PlacePower::*figure) const {
    std::vector<double> seen;
    for (const PlacePower* const place : all)
      if (place->*figure) seen.push_back(*(place->*figure));
    const std::size_t middle = (all.size() - 1) / 2;
    if (middle >= seen.size()) return std::nullopt;
    std::ranges::sort(seen);
    return seen[middle];
  }
  Value named() const {
    const auto found =
        std::ranges::count_if(all, [](const PlacePower* place) { return !place->named.empty(); });
    const auto right = std::ranges::count_if(all, [](const PlacePower* place) { return place->is_named; });
    return found == 0 ? Value() : Value(fmt::format("{} of {}", right, found));
  }
};

/// The least share of each fault that is seen: of those in cells, or of known ones.
report::Table floors_of(const Power& power, bool known) {
  report::Table table;
  table.key = known ? "known" : "floors";
  table.title =
      known ? "of known faults: above 1 not even the whole is seen" : "the least share that is seen";
  table.from = known ? report::Detail::verbose : report::Detail::normal;
  table.columns = {{"says", "fault"},
                   {"fault", {}, known ? Show::code : Show::data},
                   {"by_twins", "by twins", Show::figure},
                   {"by_limits", "by limits", Show::figure},
                   {"share", "of that", Show::share},
                   {"named", "named at 3 x"},
                   {"places", {}, Show::count}};
  for (const FaultRow& row : fault_rows()) {
    const Places places(power, row);
    if ((row.known != nullptr) != known || places.all.empty()) continue;
    const std::optional<double> twins = places.median(&PlacePower::by_twins),
                                limits = places.median(&PlacePower::by_limits);
    table.rows.push_back({std::string(row.says), std::string(row.key), value_of(twins), value_of(limits),
                          twins && limits && *limits > 0 ? Value(*twins / *limits) : Value(), places.named(),
                          static_cast<std::int64_t>(places.all.size())});
  }
  return table;
}

/// "48 of 51 known faults are seen in full; not: beta_in_bf16, ..."
std::string known_text(const Power& power) {
  std::vector<std::string> hidden;
  std::size_t count = 0;
  for (const FaultRow& row : fault_rows()) {
    const Places places(power, row);
    if (row.known == nullptr || places.all.empty()) continue;
    ++count;
    const std::optional<double> twins = places.median(&PlacePower::by_twins),
                                limits = places.median(&PlacePower::by_limits);
    if (std::min(twins.value_or(HUGE_VAL), limits.value_or(HUGE_VAL)) > 1) hidden.emplace_back(row.key);
  }
  if (count == 0) return {};
  return fmt::format("{} of {} known faults are seen in full{}", count - hidden.size(), count,
                     hidden.empty() ? std::string() : "; not: " + join(hidden, ", "));
}

report::Table places_of(const Power& power) {
  report::Table table;
  table.key = "places", table.title = "place by place", table.from = report::Detail::verbose;
  table.columns = {{"fault", {}},
                   {"place", {}},
                   {"by_twins", "by twins", Show::figure},
                   {"by_limits", "by limits", Show::figure},
                   {"named", {}},
                   {"is_named", {}, Show::data}};
  for (const PlacePower& place : power.faults)
    table.rows.push_back({std::string(place.row->key), place.place, value_of(place.by_twins),
                          value_of(place.by_limits), place.named, place.is_named});
  return table;
}

void set_verdict(report::Entry& entry, const Power& power) {
  entry.verdict = Verdict::inconclusive;
  if (!power.is_finite)
    entry.reason = "the truth, or the answer of the healthy kernel, is not finite";
  else if (power.twins == 0)
    entry.reason = "fewer than three twins are fit here: the limits decide alone";
  else if (*power.healthy > 1)
    entry.reason =
        fmt::format("the healthy kernel is itself beyond its twins, {:.2g} times the limit", *power.healthy);
  else
    entry.verdict = Verdict::pass;
}

/// 0: none.
double limit_on(const Power& power, std::string_view metric) {
  const judge::Limit* const limit = judge::find_limit(power.limits, metric);
  return limit != nullptr ? limit->value : 0;
}

void add_entry(report::Section& section, const Power& power, const plan::Case& item, const Answered& who,
               const std::string& of_class) {
  std::string healthy;
  if (power.is_finite)
    healthy = fmt::format("healthy: {}rms_ratio {:.3g} of {:.3g}, scaled_ulp {:.3g} of {:.3g}; {}",
                          power.healthy ? fmt::format("{:.2g} of its twins' limit, ", *power.healthy) : "",
                          power.healthy_rms_ratio, limit_on(power, "rms_ratio"), power.healthy_scaled_ulp,
                          limit_on(power, "scaled_ulp"), who.arithmetic);
  report::Entry& entry =
      section.add_fields({{{"class", {}}, of_class},
                          {{"dtype", {}, Show::data}, std::string(numeric::name_of(who.dtype))},
                          {{"compute", {}, Show::data}, std::string(numeric::row_of(who.compute).name)},
                          {{"tensor", {}}, item.tensors.front()},
                          {{"chunk_size", {}, Show::data}, static_cast<std::int64_t>(who.chunk_size)},
                          {{"arithmetic", {}, Show::data}, who.arithmetic},
                          {{"twins", {}, Show::data}, static_cast<std::int64_t>(power.twins)},
                          {{"healthy", {}, Show::data}, value_of(power.healthy)},
                          {{"healthy_rms_ratio", {}, Show::data}, power.healthy_rms_ratio},
                          {{"healthy_scaled_ulp", {}, Show::data}, power.healthy_scaled_ulp},
                          {{"limit_rms_ratio", {}, Show::data}, limit_on(power, "rms_ratio")},
                          {{"limit_scaled_ulp", {}, Show::data}, limit_on(power, "scaled_ulp")},
                          {{"healthy_text", {}, Show::sentence}, healthy},
                          {{"known_text", {}, Show::sentence}, known_text(power)},
                          {{"repro", {}, Show::data}, item.repro}});
  entry.title = fmt::format("power over {}, {}, {}", item.tensors.front(), of_class,
                            power.twins == 0 ? "no twins" : report::counted(power.twins, "twin"));
  set_verdict(entry, power);
  entry.tables = {floors_of(power, false), floors_of(power, true), places_of(power)};
}

}  // namespace

void measure_power(Context& context, Findings& findings) {
  report::Section section = section_of(context, "power");
  section.notes = {"medians over the places of a fault; -v names them"};
  keep_finished(findings, std::move(section), [&](report::Section& finished) {
    for (const plan::Case& item : context.plan().cases) {
      if (item.question != plan::Question::power) continue;
      const plan::Answer& answer = context.plan().answers[*item.answer];
      const Answered who = described(answer, kda::Pass::forward, context.plan());
      const std::string of_class(plan::power_class(answer));
      context.progress("power, " + of_class);
      const HealthyKernel kernel =
          healthy_kernel(context.problem(), *answer.variant, context.options_of(answer));
      const std::size_t budget = context.resources().limits.memory_budget;
      const PowerAnswers answers(context.problem(), item.tensors.front(), kernel, budget);
      const Power power =
          power_of(context.problem(), answers, answers.faults(), context.gates(who.chunk_size), budget);
      add_entry(finished, power, item, who, of_class);
    }
  });
}

}  // namespace kda_check::engine
