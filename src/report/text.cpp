// The report people read. One row for each tensor, on pass as on fail: the number is the product. No dates,
// durations or machine paths, so that two reports can be compared with diff.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/names.hpp"
#include "report/cells.hpp"
#include "report/stages_writers.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

using compare::Verdict;

struct TextRow {
  Verdict verdict;
  std::string cells[10];
};
constexpr std::size_t columns = 10;
constexpr const char* headings[columns] = {"verdict",    "answer",  "dtype/compute", "tensor", "max_ulp",
                                           "scaled_ulp", "max_abs", "rms_ratio",     "limits", "worst at"};
constexpr bool right_aligned[columns] = {false, false, false, false, true, true, true, true, false, false};

bool is_overridden(const compare::Limit& limit) {
  return limit.source != "derived" && limit.source != "replay" && limit.source != "invariant";
}

std::string limits_text(const TensorResult& tensor) {
  std::string text;
  for (const compare::Limit& limit : tensor.limits) {
    const double* const value = metric(tensor, limit.metric);
    if (value == nullptr) continue;
    if (limit.metric == "nonfinite" && limit.value == 0 && *value == 0) continue;  // met, and always there
    fmt::format_to(std::back_inserter(text), "{}{}<={:.3g}{}", text.empty() ? "" : " ", limit.metric,
                   limit.value, is_overridden(limit) ? "*" : "");
  }
  return text;
}

std::string colored(std::string text, Verdict verdict, bool color) {
  if (!color) return text;
  const char* const code = verdict == Verdict::pass ? "32" : verdict == Verdict::fail ? "31" : "33";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

class Table {
 public:
  void add(TextRow row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }

  void print(std::string& out, bool color) const {
    std::size_t widths[columns];
    for (std::size_t column = 0; column < columns; ++column) {
      widths[column] = std::string_view(headings[column]).size();
      for (const TextRow& row : rows_) widths[column] = std::max(widths[column], row.cells[column].size());
    }
    const auto line = [&](const auto& cell, bool is_heading, Verdict verdict) {
      std::string text = " ";
      for (std::size_t column = 0; column < columns; ++column) {
        const std::string_view content = cell(column);
        const std::string padding(widths[column] - content.size(), ' ');
        text += ' ';
        if (right_aligned[column]) text += padding;
        text +=
            column == 0 && !is_heading ? colored(std::string(content), verdict, color) : std::string(content);
        if (!right_aligned[column]) text += padding;
        text += ' ';
      }
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + "\n";
    };
    line([](std::size_t column) { return std::string_view(headings[column]); }, true, Verdict::pass);
    for (const TextRow& row : rows_)
      line([&](std::size_t column) { return std::string_view(row.cells[column]); }, false, row.verdict);
  }

 private:
  std::vector<TextRow> rows_;
};

TextRow row_of(const CaseResult& item, const TensorResult& tensor) {
  return {tensor.verdict,
          {upper(compare::name_of(tensor.verdict)), item.variant, precision_text(item), tensor.name,
           metric_text(tensor, "max_ulp"), metric_text(tensor, "scaled_ulp"), metric_text(tensor, "max_abs"),
           metric_text(tensor, "rms_ratio"), limits_text(tensor), tensor.worst ? tensor.worst->place : "-"}};
}

void print_points(std::string& out, const TensorResult& tensor) {
  const char* const unit = metric(tensor, "scaled_ulp") != nullptr ? "scaled ulp" : "ulp";
  for (const PointResult& point : tensor.points) {
    fmt::format_to(std::back_inserter(out),
                   "      {:<32} got {:.9g} ({})  expected {:.9g} ({})  magnitude {:.3g}", point.place,
                   point.got, point.got_hex, point.expected, point.expected_hex, point.magnitude);
    if (std::isfinite(point.got) && std::isfinite(point.expected))
      fmt::format_to(std::back_inserter(out), "  off by {:.3g} {}", point.rank, unit);
    out += '\n';
  }
}

void print_probe(std::string& out, const ProbeResult& probe) {
  for (const ProbeMatch& match : probe.matches)
    fmt::format_to(std::back_inserter(out),
                   "      probe: matches if {} ({}): {} rms_ratio {:.3g} -> {:.3g}\n", match.meaning,
                   match.convention, match.tensor, match.rms_ratio_before, match.rms_ratio_after);
  if (!probe.matches.empty()) return;
  out += "      probe: no known convention explains it";
  if (probe.nearest)
    fmt::format_to(std::back_inserter(out), " (nearest of {}: {}, {} rms_ratio {:.3g} -> {:.3g})",
                   probe.conventions, probe.nearest->convention, probe.nearest->tensor,
                   probe.nearest->rms_ratio_before, probe.nearest->rms_ratio_after);
  out += '\n';
}

void print_details(std::string& out, const CaseResult& item, bool everything) {
  for (const TensorResult& tensor : item.tensors) {
    const bool bad = tensor.verdict != Verdict::pass;
    if (!bad && !everything) continue;
    fmt::format_to(std::back_inserter(out), "\n    {} {}, {}", item.variant, precision_text(item),
                   tensor.name);
    if (!tensor.reason.empty())
      fmt::format_to(std::back_inserter(out), ": {} - {}", upper(compare::name_of(tensor.verdict)),
                     tensor.reason);
    out += '\n';
    if (everything) {
      out += "     ";
      for (const auto& [name, value] : tensor.metrics)
        fmt::format_to(std::back_inserter(out), " {}={}", name, short_number(value));
      out += '\n';
    }
    if (!tensor.worst_window.empty() || !tensor.worst_head.empty()) {
      out += "      worst";
      if (!tensor.worst_window.empty())
        fmt::format_to(std::back_inserter(out), " window {} (rms_ratio {})", tensor.worst_window,
                       metric_text(tensor, "window_rms_ratio"));
      if (!tensor.worst_head.empty())
        fmt::format_to(std::back_inserter(out), "{} head {} (rms_ratio {})",
                       tensor.worst_window.empty() ? "" : ",", tensor.worst_head,
                       metric_text(tensor, "head_rms_ratio"));
      out += '\n';
    }
    print_points(out, tensor);
  }
  if (item.probe) print_probe(out, *item.probe);
  if (everything && !item.trials.empty())
    fmt::format_to(std::back_inserter(out), "      tried: {}\n", item.trials);
  if (everything && !item.arithmetic.empty())
    fmt::format_to(std::back_inserter(out), "      arithmetic: {}\n", item.arithmetic);
}

/// A case that failed for another reason than its tensors: options that differ.
bool fails_beyond_tensors(const CaseResult& item) {
  return item.verdict == Verdict::fail && !item.tensors.empty() &&
         std::none_of(item.tensors.begin(), item.tensors.end(),
                      [](const TensorResult& tensor) { return tensor.verdict == Verdict::fail; });
}

void print_against(std::string& out, const std::vector<const CaseResult*>& cases, const std::string& heading,
                   const WriteOptions& options) {
  Table table;
  std::string details, skipped;
  for (const CaseResult* const item : cases) {
    for (const TensorResult& tensor : item->tensors)
      if (options.detail != Detail::quiet || tensor.verdict != Verdict::pass)
        table.add(row_of(*item, tensor));
    if (item->tensors.empty() && options.detail != Detail::quiet)
      fmt::format_to(std::back_inserter(skipped), "  {} {} {}: {}\n", upper(compare::name_of(item->verdict)),
                     item->variant, precision_text(*item), item->reason);
    if (fails_beyond_tensors(*item))
      fmt::format_to(std::back_inserter(skipped), "  FAIL {}: {}\n", item->variant, item->reason);
    print_details(details, *item, options.detail == Detail::verbose);
  }
  if (table.empty() && skipped.empty()) return;
  out += "\n  " + heading + "\n";
  if (!table.empty()) table.print(out, options.color);
  out += skipped + details;
}

std::string heading_for(const Result& result, const std::string& against) {
  if (result.command == "diff") return "expected: " + against;
  if (against.empty()) return "not run";
  if (against == "oracle") return fmt::format("against the oracle ({} recurrence)", result.oracle);
  if (against == "replay") return "against the replay on the CPU: the same bits";
  if (against.starts_with("invariant:")) return fmt::format("invariant {}", against.substr(10));
  return fmt::format("against expected/{}", against);
}

/// The same result, with what came from a file fit for a terminal.
Result printable(Result result) {
  const auto clean = [](auto&... texts) { ((texts = kda_check::printable(texts)), ...); };
  for (FixtureResult& fixture : result.fixtures) {
    clean(fixture.name, fixture.path, fixture.options);
    for (std::string& note : fixture.notes) clean(note);
  }
  for (CaseResult& item : result.cases) {
    clean(item.fixture, item.path, item.variant, item.device, item.arithmetic, item.against, item.reason);
    for (TensorResult& tensor : item.tensors) {
      clean(tensor.name, tensor.reason);
      for (compare::Limit& limit : tensor.limits) clean(limit.source);
      if (tensor.worst) clean(tensor.worst->place);
      for (PointResult& point : tensor.points) clean(point.place);
    }
  }
  return result;
}

void print_fixture(std::string& out, const Result& result, const FixtureResult& fixture,
                   const WriteOptions& options) {
  std::vector<std::string> references;
  std::vector<const CaseResult*> mine;
  for (const CaseResult& item : result.cases) {
    if (item.path != fixture.path) continue;
    mine.push_back(&item);
    if (std::find(references.begin(), references.end(), item.against) == references.end())
      references.push_back(item.against);
  }
  std::string body;
  for (const std::string& reference : references) {
    std::vector<const CaseResult*> group;
    std::copy_if(mine.begin(), mine.end(), std::back_inserter(group),
                 [&](const CaseResult* item) { return item->against == reference; });
    print_against(body, group, heading_for(result, reference), options);
  }
  for (const StageCase& item : result.stages)
    if (item.path == fixture.path && options.detail != Detail::quiet) body += stages_text(item);
  if (body.empty() && options.detail == Detail::quiet) return;
  fmt::format_to(std::back_inserter(out), "{}  {}  {}\n{}", fixture.name, fixture.shape, fixture.options,
                 body);
  if (options.detail != Detail::quiet)
    for (const std::string& note : fixture.notes)
      fmt::format_to(std::back_inserter(out), "  note: {}\n", note);
  out += '\n';
}

}  // namespace

std::string write_text(const Result& raw, const WriteOptions& options) {
  const Result result = printable(raw);
  if (!result.nothing_to_do.empty()) return result.nothing_to_do + "\n";
  std::string out;
  for (const FixtureResult& fixture : result.fixtures) print_fixture(out, result, fixture, options);
  std::size_t tensors = 0;
  for (const CaseResult& item : result.cases) tensors += item.tensors.size();
  std::vector<std::string> sources;
  for (const CaseResult& item : result.cases)
    for (const TensorResult& tensor : item.tensors)
      for (const compare::Limit& limit : tensor.limits)
        if (is_overridden(limit))
          sources.push_back(limit.source == "command line" ? "the command line" : limit.source);
  if (!sources.empty() && options.detail != Detail::quiet && result.command == "run")
    fmt::format_to(std::back_inserter(out),
                   "* limit from {}; the others are derived from arithmetic and inputs\n",
                   join(without_repeats(sources)));
  fmt::format_to(std::back_inserter(out),
                 "{} {}, {} comparisons of {} tensors: {} passed, {} failed, {} inconclusive, {} skipped",
                 result.fixtures.size(), result.fixtures.size() == 1 ? "fixture" : "fixtures",
                 result.cases.size(), tensors, result.count(Verdict::pass), result.count(Verdict::fail),
                 result.count(Verdict::inconclusive), result.count(Verdict::skipped));
  if (!result.errors.empty()) fmt::format_to(std::back_inserter(out), "; {} not read", result.errors.size());
  if (const std::string failure = unexplained_failure(result); !failure.empty()) out += "; " + failure;
  return out + "\n";
}

}  // namespace kda_check::report
