// `explain --only growth`: how the error of every answer goes along T, forwards and, of gradients, from the
// end.
#include "explain/growth/growth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/findings.hpp"
#include "engine/judged.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using explain::GrowthMetric;
using explain::Origin;
using report::Show;
using report::Value;

/// What is measured of one tensor of an answer, and how positions are counted.
struct Followed {
  const plan::Case& item;
  const Answered& who;
  const Measured& measured;
  const std::vector<kda::Sequence>& sequences;
  std::size_t window;
  Origin origin;
};

struct Crossed {
  judge::Limit limit;
  std::optional<explain::Crossing> at;
};

std::int64_t integer(std::size_t value) { return static_cast<std::int64_t>(value); }

bool from_end(const Followed& followed) { return followed.origin == Origin::end; }

/// "t=0"; from the end "t=-1" is the last token.
std::string position_text(const Followed& followed, std::size_t position) {
  return from_end(followed) ? fmt::format("t=-{}", position + 1) : fmt::format("t={}", position);
}

/// "o[b=0 t=412 h=3 v=17]"
std::string place_of(const Followed& followed, const explain::Crossing& crossing) {
  std::string place =
      fmt::format("{}[b={} t={} h={}", followed.measured.tensor, crossing.row, crossing.token, crossing.head);
  const kda::TensorSpec& spec = *kda::find_spec(followed.measured.tensor);
  if (crossing.lane && followed.measured.got->shape().size() == 4)
    place += fmt::format(" {}={}", kda::axis_letter(spec.axes[3]), *crossing.lane);
  return place + "]";
}

std::vector<Crossed> crossings_of(const Followed& followed) {
  std::vector<Crossed> list;
  for (const judge::Limit& limit : followed.measured.limits)
    if (const auto metric = explain::growth_metric(limit.metric))
      list.push_back(
          {limit, explain::first_crossing(followed.measured.series, followed.sequences, followed.window,
                                          *metric, limit.value, followed.origin)});
  return list;
}

report::Section empty_section(const Followed& followed, const std::string& path, std::size_t windows,
                              const std::string& oracle) {
  const std::string against = followed.item.reference.name;
  report::Section section;
  section.key = "growth";
  section.path = path;
  section.tabular = true;
  section.title = fmt::format(
      "{} against {}, {} of {}{}", followed.measured.tensor,
      against == "oracle" ? fmt::format("the oracle ({} recurrence)", oracle) : "expected/" + against,
      report::counted(windows, "window"), report::counted(followed.window, "token"),
      from_end(followed) ? " counted back from the last, t=-1" : "");
  return section;
}

Value bias_value(double bias) { return std::isnan(bias) ? Value() : Value(bias); }

report::Table windows_of(const explain::Growth& growth, bool has_magnitude) {
  report::Table table;
  table.key = "windows", table.by_column = true, table.is_data = true;
  table.columns = {{"first", {}, Show::count},
                   {"last", {}, Show::count},
                   {"rms_ratio", {}, Show::figure},
                   {"max_abs", {}, Show::figure},
                   {"bias", {}, Show::figure}};
  if (has_magnitude) table.columns.push_back({"scaled_ulp", {}, Show::figure});
  for (const explain::Window& window : growth.windows) {
    table.rows.push_back({integer(window.first), integer(window.last), window.rms_ratio, window.max_abs,
                          bias_value(window.bias)});
    if (has_magnitude) table.rows.back().emplace_back(window.scaled_ulp);
  }
  return table;
}

report::Table heads_of(const explain::Growth& growth) {
  report::Table table;
  table.key = "heads", table.title = "heads", table.from = report::Detail::verbose;
  table.columns = {{"head", {}, Show::count},   {"rms_ratio", {}, Show::figure},
                   {"slope", {}, Show::figure}, {"standard_error", "+-", Show::figure},
                   {"r2", {}, Show::figure},    {"window_rms_ratio", "rms_ratio along T", Show::along}};
  for (std::size_t head = 0; head < growth.heads.size(); ++head) {
    const explain::HeadGrowth& item = growth.heads[head];
    table.rows.push_back({integer(head), item.rms_ratio, item.fit.slope, item.fit.standard_error, item.fit.r2,
                          item.window_rms_ratio});
  }
  return table;
}

report::Table crossings_table(const Followed& followed, const std::vector<Crossed>& crossings) {
  report::Table table;
  table.key = "crossings", table.is_data = true;
  table.columns = {{"metric", {}},           {"limit", {}, Show::figure},   {"source", {}},
                   {"crossed", {}},          {"position", {}, Show::count}, {"value", {}, Show::figure},
                   {"place", {}, Show::code}};
  for (const auto& [limit, at] : crossings)
    table.rows.push_back({limit.metric, limit.value, limit.source, at.has_value(),
                          at ? Value(integer(at->position)) : Value(), at ? Value(at->value) : Value(),
                          at ? Value(place_of(followed, *at)) : Value()});
  return table;
}

std::string crossing_text(const Followed& followed, const std::vector<Crossed>& crossings) {
  const Crossed* first = nullptr;
  for (const Crossed& crossed : crossings)
    if (crossed.at && (first == nullptr || crossed.at->position < first->at->position)) first = &crossed;
  if (first == nullptr) return "-";
  return fmt::format("{} {} {:.3g}>{:.3g}", position_text(followed, first->at->position), first->limit.metric,
                     first->at->value, first->limit.value);
}

std::vector<std::string> crossed_sentences(const Followed& followed, const std::vector<Crossed>& crossings) {
  std::vector<std::string> lines;
  for (const auto& [limit, at] : crossings)
    if (at)
      lines.push_back(fmt::format("{} {}: {} is {:.4g} > {:.4g} first at token {} of a sequence{}, {}",
                                  followed.who.name, numeric::name_of(followed.who.dtype), limit.metric,
                                  at->value, limit.value,
                                  from_end(followed) ? at->position + 1 : at->position,
                                  from_end(followed) ? " from its end" : "", place_of(followed, *at)));
  return lines;
}

void add_entry(report::Section& section, const Followed& followed, const explain::Growth& growth) {
  const Answered& who = followed.who;
  const std::vector<Crossed> crossings = crossings_of(followed);
  std::vector<double> ratios;
  for (const explain::Window& window : growth.windows) ratios.push_back(window.rms_ratio);
  const auto worst = static_cast<std::size_t>(std::ranges::max_element(ratios) - ratios.begin());
  const bool fitted = growth.fit.points > 2;
  const auto figure = [&](double value) { return fitted ? Value(value) : Value(); };
  const std::string dtype(numeric::name_of(who.dtype)), compute(numeric::row_of(who.compute).name);
  report::Entry& entry = section.add_fields(
      {{{"answer", {}}, who.name},
       {{"recorded", {}, Show::data}, who.role == report::Role::recorded},
       {{"precision", "dtype/compute"}, report::precision_text(dtype, compute)},
       {{"dtype", {}, Show::data}, dtype},
       {{"compute", {}, Show::data}, compute},
       {{"arithmetic", {}, Show::data}, who.arithmetic},
       {{"against", {}, Show::data}, followed.item.reference.name},
       {{"tensor", {}, Show::data}, followed.measured.tensor},
       {{"from", {}, Show::data}, std::string(explain::name_of(followed.origin))},
       {{"window", {}, Show::data}, integer(followed.window)},
       {{"trend", {}}, std::string(explain::name_of(growth.trend))},
       {{"slope", {}, Show::figure}, figure(growth.fit.slope)},
       {{"standard_error", "+-", Show::figure}, figure(growth.fit.standard_error)},
       {{"r2", {}, Show::figure}, figure(growth.fit.r2)},
       {{"windows_fitted", {}, Show::data}, integer(growth.fit.points)},
       {{"first", {}, Show::figure}, ratios.front()},
       {{"last", {}, Show::figure}, ratios.back()},
       {{"bias", {}, Show::figure}, bias_value(growth.bias)},
       {{"worst", {}},
        fmt::format("{:.3g} at {}", ratios[worst], position_text(followed, growth.windows[worst].first))},
       {{"worst_head", "worst head"},
        fmt::format("h={} {:.3g}", growth.worst_head, growth.heads[growth.worst_head].rms_ratio)},
       {{"crossing", "first over a limit"}, crossing_text(followed, crossings)},
       {{"rms_ratio", from_end(followed) ? "rms_ratio from T back" : "rms_ratio along T", Show::along},
        ratios},
       {{"crossed", {}, Show::sentence}, crossed_sentences(followed, crossings)},
       {{"repro", {}, Show::data}, followed.item.repro}});
  // No verdict: derived limits are for whole tensors, and inform along T.
  entry.tables.push_back(windows_of(growth, followed.measured.measures.has_magnitude));
  entry.tables.push_back(heads_of(growth));
  entry.tables.push_back(crossings_table(followed, crossings));
}

/// Entries of one title are rows of one table.
report::Section& section_about(Findings& findings, report::Section section) {
  for (report::Section& known : findings.sections)
    if (known.key == section.key && known.title == section.title) return known;
  return findings.sections.emplace_back(std::move(section));
}

}  // namespace

void follow_growth(Context& context, Findings& findings) {
  const plan::Problem& problem = context.plan();
  for (const kda::Pass pass : kda::every_pass) {
    std::vector<const plan::Case*> cases;
    std::vector<Pairing> pairings;
    for (const plan::Case& item : problem.cases) {
      if (item.question != plan::Question::growth || item.pass != pass) continue;
      try {
        Pairing pairing;
        pairing.got = &context.answer(*item.answer, pass);
        if (item.reference.kind == plan::Reference::Kind::answer)
          pairing.expected = &context.answer(item.reference.answer, pass);
        pairing.tensors = item.tensors;
        pairing.options.worst = 0, pairing.options.series = true;
        cases.push_back(&item);
        pairings.push_back(std::move(pairing));
      } catch (const NoAnswer& none) {
        findings.notes.push_back(fmt::format("skipped: {}: {}", item.who, none.reason));
      }
    }
    if (cases.empty()) continue;
    context.progress("comparing");
    const plan::OracleChoice oracle = cases.front()->asked->oracle_or_usual();
    const Truth truth =
        context.truth(pass, *cases.front()->asked, cases.front()->chunk_size(problem.outline));
    const std::vector<kda::Sequence> sequences = context.problem().sequences();
    for (const Measured& item : measured(truth, pairings))
      for (const Origin origin : {Origin::start, Origin::end}) {
        if (origin == Origin::end && pass == kda::Pass::forward) continue;
        const plan::Case& of = *cases[item.pairing];
        const Followed followed{of,
                                *pairings[item.pairing].got,
                                item,
                                sequences,
                                of.asked->window.value_or(of.chunk_size(problem.outline)),
                                origin};
        const explain::Growth growth = explain::growth_of(item.series, sequences, followed.window, origin);
        add_entry(
            section_about(findings, empty_section(followed, problem.source->target().name,
                                                  growth.windows.size(), std::string(plan::name_of(oracle)))),
            followed, growth);
      }
    context.release();
  }
}

}  // namespace kda_check::engine
