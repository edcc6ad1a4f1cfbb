// The report people read: what decides first, a row for each tensor of the answers judged. No dates,
// durations or machine paths, so that two reports can be compared with diff.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/append.hpp"
#include "base/names.hpp"
#include "report/rows.hpp"
#include "report/table.hpp"
#include "report/text_sections.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

using Cases = std::vector<const CaseResult*>;

std::string color_of(Verdict verdict) {
  return verdict == Verdict::pass ? "32" : verdict == Verdict::fail ? "31" : "33";
}

TextTable empty_table() {
  return TextTable({{"verdict"},
                    {"answer"},
                    {"dtype/compute"},
                    {"tensor"},
                    {"rms_ratio", true},
                    {"scaled_ulp", true},
                    {"max_abs", true},
                    {"max_ulp", true},
                    {"of its limit"},
                    {"worst at"}});
}

void add_row(TextTable& table, const CaseResult& item, const TensorResult& tensor, bool color) {
  table.add(
      {upper(judge::name_of(tensor.verdict)), item.variant, precision_text(item), tensor.name,
       metric_text(tensor, "rms_ratio"), metric_text(tensor, "scaled_ulp"), metric_text(tensor, "max_abs"),
       metric_text(tensor, "max_ulp"), closest_limit(tensor), tensor.worst ? tensor.worst->place : "-"},
      color ? color_of(tensor.verdict) : std::string());
}

void print_points(std::string& out, const TensorResult& tensor) {
  const char* const unit = metric(tensor, "scaled_ulp") != nullptr ? "scaled ulp" : "ulp";
  for (const PointResult& point : tensor.points) {
    append(out, "      {:<32} got {:.9g} ({})  expected {:.9g} ({})", point.place, point.got, point.got_hex,
           point.expected, point.expected_hex);
    if (point.magnitude > 0) append(out, "  magnitude {:.3g}", point.magnitude);
    if (point.has_distance()) append(out, "  off by {:.3g} {}", point.off_by, unit);
    out += '\n';
  }
}

void print_tensor(std::string& out, const CaseResult& item, const TensorResult& tensor, bool everything) {
  append(out, "\n    {} {}, {}", item.variant, precision_text(item), tensor.name);
  if (!tensor.reason.empty()) append(out, ": {} - {}", upper(judge::name_of(tensor.verdict)), tensor.reason);
  out += '\n';
  if (everything) {
    out += "     ";
    for (const auto& [name, value] : tensor.metrics) append(out, " {}={}", name, short_number(value));
    out += "\n      limits";
    for (const judge::Limit& limit : tensor.limits)
      append(out, " {}<={:.3g}{}", limit.metric, limit.value, is_set_by_hand(limit) ? "*" : "");
    if (tensor.floor && *tensor.floor > 0) append(out, "; sees an error of {:.2g} %", 100 * *tensor.floor);
    out += '\n';
  }
  if (!tensor.worst_window.empty() || !tensor.worst_head.empty()) {
    out += "      worst";
    if (!tensor.worst_window.empty())
      append(out, " window {} (rms_ratio {})", tensor.worst_window, metric_text(tensor, "window_rms_ratio"));
    if (!tensor.worst_head.empty())
      append(out, "{} head {} (rms_ratio {})", tensor.worst_window.empty() ? "" : ",", tensor.worst_head,
             metric_text(tensor, "head_rms_ratio"));
    out += '\n';
  }
  print_points(out, tensor);
}

void print_details(std::string& out, const CaseResult& item, bool everything) {
  for (const TensorResult& tensor : item.tensors)
    if (is_bad(tensor.verdict) || (everything && tensor.verdict != Verdict::skipped))
      print_tensor(out, item, tensor, everything);
  if (everything && !item.trials.empty()) append(out, "      tried: {}\n", item.trials);
  if (everything && !item.arithmetic.empty()) append(out, "      arithmetic: {}\n", item.arithmetic);
  if (!item.repro.empty() && (is_bad(item.verdict) || everything))
    append(out, "      repro: {}\n", item.repro);
}

void print_against(std::string& out, const Cases& cases, const std::string& heading,
                   const WriteOptions& options) {
  TextTable table = empty_table();
  std::string details, beside;
  for (const CaseResult* const item : cases) {
    const auto add_beside = [&](const TensorResult* tensor, Verdict verdict, const std::string& reason) {
      if (options.detail != Detail::quiet || is_bad(verdict))
        append(beside, "  {} {}: {}\n", upper(judge::name_of(verdict)),
               Row{item, tensor, verdict, {}, {}}.name(), reason);
    };
    for (const TensorResult& tensor : item->tensors)
      if (tensor.verdict == Verdict::skipped)
        add_beside(&tensor, tensor.verdict, tensor.reason);
      else if (options.detail != Detail::quiet || tensor.verdict != Verdict::pass)
        add_row(table, *item, tensor, options.color);
    if (item->tensors.empty()) add_beside(nullptr, item->verdict, item->reason);
    if (fails_beyond_tensors(*item)) append(beside, "  FAIL {}: {}\n", item->variant, item->reason);
    print_details(details, *item, options.detail == Detail::verbose);
  }
  if (table.empty() && beside.empty()) return;
  out += "\n  " + heading + "\n";
  if (!table.empty()) out += table.text("  ");
  out += beside + details;
}

std::string heading_for(const Document& document, const CaseResult& item) {
  const std::string& against = item.against;
  if (document.command == "diff") return "reference: " + against;
  if (against.empty()) return "not run";
  if (against == "oracle")
    return fmt::format("against the oracle ({} recurrence{})", item.oracle,
                       item.oracle_error
                           ? fmt::format(", off by at most {:.1g} of a magnitude", 1.5 * *item.oracle_error)
                           : "");
  if (against == "replay") return "against the replay on the CPU: the same bits";
  if (against.starts_with("invariant:")) return fmt::format("invariant {}", against.substr(10));
  return fmt::format("against {}, recorded", against);
}

/// "PASS  ours: naive, recurrent, chunk against the oracle, fla_chunk (18 rows; -v lists them)", of all rows
/// of that verdict; empty without any.
std::string folded(const Cases& cases, Verdict verdict, std::string_view remark) {
  std::vector<std::string> who, against;
  std::size_t rows = 0;
  for (const CaseResult* const item : cases) {
    const auto here = std::ranges::count(item->tensors, verdict, &TensorResult::verdict);
    if (here == 0) continue;
    rows += static_cast<std::size_t>(here);
    who.push_back(item->variant);
    against.push_back(item->against == "oracle"   ? "the oracle"
                      : item->against == "replay" ? "their replays"
                                                  : item->against);
  }
  if (rows == 0) return {};
  return fmt::format("\n  {}  ours: {} against {}{} ({}; -v lists them)\n", upper(judge::name_of(verdict)),
                     join(without_repeats(std::move(who))), join(without_repeats(std::move(against))), remark,
                     counted(rows, "row"));
}

/// The same document, with what came from files fit for a terminal.
Document fit_for_terminal(Document document) {
  const auto clean = [](auto&... texts) { ((texts = printable(texts)), ...); };
  for (ProblemResult& problem : document.problems) {
    clean(problem.name, problem.path, problem.shape, problem.options);
    for (std::string& note : problem.notes) clean(note);
  }
  for (CaseResult& item : document.cases) {
    clean(item.fixture, item.path, item.variant, item.dtype, item.device, item.pass, item.arithmetic,
          item.compute, item.against, item.oracle, item.reason, item.trials, item.repro);
    for (TensorResult& tensor : item.tensors) {
      clean(tensor.name, tensor.dtype, tensor.reason, tensor.worst_window, tensor.worst_head);
      for (auto& metric : tensor.metrics) clean(metric.first);
      for (judge::Limit& limit : tensor.limits) clean(limit.metric, limit.source);
      if (tensor.worst) clean(tensor.worst->place);
      for (PointResult& point : tensor.points) clean(point.place, point.got_hex, point.expected_hex);
    }
  }
  return document;
}

void print_verdicts(std::string& out, const Document& document, const Cases& mine,
                    const WriteOptions& options) {
  // What the user brought comes first; what is ours is beside it to be held against, and one line while it
  // passes, or is not compared as what the user brought is wrong.
  const bool has_users = std::any_of(mine.begin(), mine.end(),
                                     [](const CaseResult* item) { return item->role != Role::variant; });
  const bool folds = has_users && options.detail != Detail::verbose && document.command != "diff";
  Cases shown, beside;
  for (const CaseResult* const item : mine) {
    const bool is_quiet = !is_bad(item->verdict) && !item->tensors.empty();
    (folds && item->role == Role::variant && is_quiet ? beside : shown).push_back(item);
  }
  std::stable_partition(shown.begin(), shown.end(),
                        [](const CaseResult* item) { return item->role != Role::variant; });
  std::vector<std::string> headings;
  for (const CaseResult* const item : shown) headings.push_back(heading_for(document, *item));
  for (const std::string& heading : without_repeats(headings)) {
    Cases group;
    for (std::size_t i = 0; i < shown.size(); ++i)
      if (headings[i] == heading) group.push_back(shown[i]);
    print_against(out, group, heading, options);
  }
  if (options.detail == Detail::quiet) return;
  out += folded(beside, Verdict::skipped, ": not compared, as that fails");
  out += folded(beside, Verdict::pass, "");
}

}  // namespace

std::string text_of_problem(const Document& raw, const WriteOptions& options) {
  const Document document = fit_for_terminal(raw);
  std::string out;
  for (std::size_t i = 0; i < document.problems.size(); ++i) {
    const ProblemResult& problem = document.problems[i];
    Cases mine;
    for (const CaseResult& item : document.cases)
      if (item.path == problem.path) mine.push_back(&item);
    std::string body;
    print_verdicts(body, document, mine, options);
    for (const Section& section : raw.sections)
      if (section.path == raw.problems[i].path) body += section_text(section, options);
    if (body.empty() && options.detail == Detail::quiet) continue;
    append(out, "{}  {}  {}\n{}", problem.name, problem.shape, problem.options, body);
    if (options.detail != Detail::quiet)
      for (const std::string& note : problem.notes) append(out, "  note: {}\n", note);
    out += '\n';
  }
  return out;
}

std::string text_of_end(const Document& document, const WriteOptions& options) {
  using kda_check::printable;
  std::string out;
  for (const Section& section : document.sections)
    if (section.path.empty()) out += section_text(section, options);
  if (!document.nothing_to_do.empty()) return out + printable(document.nothing_to_do) + "\n";
  if (!document.judges)
    return document.is_interrupted()
               ? fmt::format("{}{}: {}\n", out, outcome(document), unexplained_failure(document))
               : out;
  std::vector<std::string> sources;
  for (const CaseResult& item : document.cases)
    for (const TensorResult& tensor : item.tensors)
      for (const judge::Limit& limit : tensor.limits)
        if (is_set_by_hand(limit))
          sources.push_back(limit.source == "command line" ? "the command line" : limit.source);
  if (!sources.empty() && options.detail != Detail::quiet)
    append(out, "* limit from {}; the others are derived from arithmetic and inputs\n",
           printable(join(without_repeats(sources))));
  // Far above by now: once more, one line each.
  constexpr std::size_t most = 20;
  const std::vector<ProblemRows> problems = rows_by_problem(document);
  const auto bad = bad_rows(problems);
  if (bad.size() > 1 || (!bad.empty() && problems.size() > 1)) {
    for (std::size_t i = 0; i < bad.size() && i < most; ++i)
      append(out, "{} {}: {}: {}\n", upper(judge::name_of(bad[i].second.verdict)),
             printable(bad[i].first->path), printable(row_and_reference(document, bad[i].second)),
             printable(bad[i].second.reason));
    if (bad.size() > most) append(out, "... and {} more\n", bad.size() - most);
  }
  append(out, "{}: {}", outcome(document), counts_text(document));
  if (const std::string failure = unexplained_failure(document); !failure.empty()) out += "; " + failure;
  if (document.is_part() && exit_code(document) == 0 && document.count(Verdict::pass) == 0)
    out += "; nothing passed in this part: merge judges the whole";
  return out + "\n";
}

std::string write_text(const Document& document, const WriteOptions& options) {
  return text_of_problem(document, options) + text_of_end(document, options);
}

}  // namespace kda_check::report
