#include "report/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "base/names.hpp"
#include "report/sparkline.hpp"

namespace kda_check::report {

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string short_number(double value) {
  if (std::isfinite(value) && value == std::floor(value) && std::fabs(value) < 1e6)
    return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

bool is_figure(Show show) { return show >= Show::count && show <= Show::share; }

namespace {

std::string one_decimal(double value) {  // rounded first, so that nothing prints as -0.0
  return fmt::format("{:.1f}", std::round(10 * value) / 10 + 0.0);
}

std::string figure_text(double value, Show show) {
  if (show == Show::share) return std::isfinite(value) ? one_decimal(100 * value) + " %" : "-";
  return show == Show::tenths ? one_decimal(value) : short_number(value);
}

}  // namespace

std::string value_text(const Value& value, Show show, bool unicode) {
  return std::visit(
      [&](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) return "-";
        if constexpr (std::is_same_v<Held, bool>) return held ? "yes" : "no";
        if constexpr (std::is_same_v<Held, std::int64_t>) return fmt::format("{}", held);
        if constexpr (std::is_same_v<Held, double>) return figure_text(held, show);
        if constexpr (std::is_same_v<Held, judge::TwinJudgement>) return figure_text(held.ratio, show);
        if constexpr (std::is_same_v<Held, std::string>) return held;
        if constexpr (std::is_same_v<Held, std::vector<double>>) return sparkline(held, unicode);
        if constexpr (std::is_same_v<Held, std::vector<std::string>>) return join(held, "; ");
      },
      value);
}

const double* metric(const TensorResult& tensor, std::string_view name) {
  for (const auto& [metric_name, value] : tensor.metrics)
    if (metric_name == name) return &value;
  return nullptr;
}

std::string metric_text(const TensorResult& tensor, std::string_view name) {
  const double* const value = metric(tensor, name);
  return value != nullptr ? short_number(*value) : "-";
}

std::string closest_limit(const TensorResult& tensor) {
  double most = -1;
  const judge::Limit* closest = nullptr;
  const auto star = [](const judge::Limit& limit) { return is_set_by_hand(limit) ? "*" : ""; };
  for (const judge::Limit& limit : tensor.limits) {
    const double* const value = metric(tensor, limit.metric);
    if (value == nullptr) continue;
    if (limit.value == 0 && *value != 0)
      return fmt::format("{} {} > 0{}", limit.metric, short_number(*value), star(limit));
    if (!(limit.value > 0)) continue;
    const double share = std::isnan(*value) ? HUGE_VAL : std::fabs(*value) / limit.value;
    if (share > most) most = share, closest = &limit;
  }
  if (closest == nullptr) {
    const auto exact = std::ranges::find_if(tensor.limits, [&](const judge::Limit& limit) {
      return limit.value == 0 && limit.metric != "nonfinite" && metric(tensor, limit.metric) != nullptr;
    });
    return exact == tensor.limits.end() ? "-" : fmt::format("{} 0{}", exact->metric, star(*exact));
  }
  return fmt::format("{} {} %{}", closest->metric,
                     short_number(most < 10 ? std::round(1000 * most) / 10 : 100 * most), star(*closest));
}

std::string precision_text(const std::string& dtype, const std::string& compute) {
  return compute.empty() || compute == dtype ? dtype : dtype + "/" + compute;
}

std::string reference_text(const Document& document, const CaseResult& item) {
  const bool is_group = document.command != "diff" && !item.against.empty() && item.against != "oracle" &&
                        item.against != "replay" && !item.against.starts_with("invariant:");
  return is_group ? item.against + ", recorded" : item.against;
}

std::string point_text(const PointResult& point) {
  return fmt::format("{} got {:.9g} ({}), expected {:.9g} ({})", point.place, point.got, point.got_hex,
                     point.expected, point.expected_hex);
}

std::string counts_text(const Document& document) {
  std::size_t tensors = 0, mixed = 0;
  for (const CaseResult& item : document.cases) {
    tensors += item.tensors.size();
    mixed += item.verdict == Verdict::fail && std::ranges::find(item.tensors, Verdict::inconclusive,
                                                                &TensorResult::verdict) != item.tensors.end();
  }
  std::string text = counted(document.problems.size(), "fixture");
  if (document.judges || !document.cases.empty())
    text +=
        fmt::format(", {} of {}", counted(document.cases.size(), "comparison"), counted(tensors, "tensor"));
  text += fmt::format(": {} passed, {} failed", document.count(Verdict::pass), document.count(Verdict::fail));
  if (mixed > 0) text += fmt::format(" (in {} of them a tensor is inconclusive)", mixed);
  text += fmt::format(", {} inconclusive, {} skipped", document.count(Verdict::inconclusive),
                      document.count(Verdict::skipped));
  if (!document.failures.empty()) text += "; " + counted(document.failures.size(), "error");
  return text;
}

std::string_view outcome(const Document& document) {
  if (document.is_interrupted()) return "INTERRUPTED";
  return exit_code(document) == 0 ? "PASS" : "FAIL";
}

std::string Row::name() const {
  if (item == nullptr) return entry;
  std::string text = item->variant;
  const std::string precision = precision_text(*item);
  if (!precision.empty()) text += " " + precision;
  return tensor != nullptr ? text + " " + tensor->name : text;
}

std::string row_and_reference(const Document& document, const Row& row) {
  if (row.item == nullptr) return row.entry;
  const std::string reference = reference_text(document, *row.item);
  return reference.empty() ? row.name() : row.name() + " against " + reference;
}

bool is_bad(Verdict verdict) { return verdict == Verdict::fail || verdict == Verdict::inconclusive; }

bool fails_beyond_tensors(const CaseResult& item) {
  return item.verdict == Verdict::fail && !item.tensors.empty() &&
         std::ranges::find(item.tensors, Verdict::fail, &TensorResult::verdict) == item.tensors.end();
}

std::string entry_name(const Section& section, const Entry& entry) {
  if (!entry.title.empty()) return entry.title;
  std::string name;
  for (std::size_t i = 0; i < section.columns.size(); ++i)
    if (const auto* const words = std::get_if<std::string>(&entry.values[i]);
        words != nullptr && section.columns[i].show <= Show::code && name.size() < 60)
      name += (name.empty() ? "" : " ") + *words;
  return name;
}

std::vector<ProblemRows> rows_by_problem(const Document& document) {
  std::vector<ProblemRows> list;
  std::map<std::string, std::size_t> by_path;
  const auto place_of = [&](const std::string& path, const std::string& name) -> ProblemRows& {
    const auto [found, is_new] = by_path.emplace(path, list.size());
    if (is_new) list.push_back({name, path, nullptr, {}, {}});
    return list[found->second];
  };
  for (const ProblemResult& problem : document.problems)
    place_of(problem.path, problem.name).problem = &problem;
  for (const CaseResult& item : document.cases) {
    std::vector<Row>& rows = place_of(item.path, item.fixture).rows;
    for (const TensorResult& tensor : item.tensors)
      rows.push_back({&item, &tensor, tensor.verdict, tensor.reason, {}});
    if (item.tensors.empty() || fails_beyond_tensors(item))
      rows.push_back({&item, nullptr, item.verdict, item.reason, {}});
  }
  for (const Section& section : document.sections) {
    ProblemRows& place = place_of(section.path, section.path);
    place.sections.push_back(&section);
    for (const Entry& entry : section.entries)
      if (entry.verdict)
        place.rows.push_back({nullptr, nullptr, *entry.verdict, entry.reason, entry_name(section, entry)});
  }
  std::map<std::string, std::size_t> named;
  for (const ProblemRows& problem : list) ++named[problem.name];
  for (ProblemRows& problem : list)
    if (named[problem.name] > 1) problem.name = problem.path;
  return list;
}

std::vector<std::pair<const ProblemRows*, Row>> bad_rows(const std::vector<ProblemRows>& problems) {
  std::vector<std::pair<const ProblemRows*, Row>> bad;
  for (const Verdict verdict : {Verdict::fail, Verdict::inconclusive})
    for (const ProblemRows& problem : problems)
      for (const Row& row : problem.rows)
        if (row.verdict == verdict) bad.emplace_back(&problem, row);
  return bad;
}

std::vector<std::string> sentences_of(const Section& section, const Entry& entry) {
  std::vector<std::string> sentences;
  for (std::size_t i = 0; i < section.columns.size(); ++i) {
    if (section.columns[i].show != Show::sentence) continue;
    if (const auto* const one = std::get_if<std::string>(&entry.values[i]); one != nullptr && !one->empty())
      sentences.push_back(*one);
    if (const auto* const several = std::get_if<std::vector<std::string>>(&entry.values[i]))
      sentences.insert(sentences.end(), several->begin(), several->end());
  }
  return sentences;
}

std::vector<std::size_t> shown_columns(const std::vector<Column>& columns, Detail detail) {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (columns[i].show < Show::sentence && columns[i].from <= std::max(detail, Detail::normal))
      shown.push_back(i);
  return shown;
}

}  // namespace kda_check::report
