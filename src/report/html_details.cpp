#include "report/html_details.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "report/drawings.hpp"
#include "report/markup.hpp"

namespace kda_check::report {

namespace {

template <class... Values>
void add(std::string& out, fmt::format_string<Values...> text, Values&&... values) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Values>(values)...);
}

const compare::Limit* limit_on(const TensorResult& tensor, std::string_view metric_name) {
  for (const compare::Limit& limit : tensor.limits)
    if (limit.metric == metric_name) return &limit;
  return nullptr;
}

void add_metrics(std::string& out, const TensorResult& tensor) {
  if (tensor.metrics.empty()) return;
  out += "<ul class=\"metrics\">\n";
  for (const auto& [name, value] : tensor.metrics) {
    add(out, "<li><b>{}</b> {}", escaped(name), figure_html(value));
    if (const compare::Limit* const limit = limit_on(tensor, name))
      add(out, ", limit {} ({})", figure_html(limit->value), escaped(limit->source));
    out += "</li>\n";
  }
  out += "</ul>\n";
}

void add_points(std::string& out, const TensorResult& tensor) {
  if (tensor.points.empty()) return;
  out +=
      "<div class=\"scroll\"><table><thead><tr><th>worst points</th><th class=\"n\">got</th>"
      "<th class=\"n\">expected</th><th class=\"n\">magnitude</th></tr></thead><tbody>\n";
  for (const PointResult& point : tensor.points)
    add(out,
        "<tr><td>{}</td><td class=\"n\">{:.9g} <code>{}</code></td><td class=\"n\">{:.9g} "
        "<code>{}</code></td>"
        "<td class=\"n\">{:.3g}</td></tr>\n",
        escaped(point.place), point.got, escaped(point.got_hex), point.expected, escaped(point.expected_hex),
        point.magnitude);
  out += "</tbody></table></div>\n";
}

void add_figure(std::string& out, const std::string& drawing, const char* caption) {
  if (!drawing.empty()) add(out, "<figure>{}<figcaption>{}</figcaption></figure>\n", drawing, caption);
}

bool shows_an_error(const std::vector<double>& growth) {
  return std::any_of(growth.begin(), growth.end(), [](double value) { return value != 0; });
}

void add_drawings(std::string& out, const TensorResult& tensor) {
  if (!tensor.profile) return;
  if (tensor.profile->distances.size() == 1 && !shows_an_error(tensor.profile->growth)) {
    out += "<p>No element differs.</p>\n";
    return;
  }
  double limit = 0;
  if (const compare::Limit* const rms = limit_on(tensor, "rms_ratio")) limit = rms->value;
  std::string figures;
  add_figure(figures, growth_drawing(*tensor.profile, limit), "Error along T: rms_ratio of each window");
  add_figure(figures, histogram_drawing(*tensor.profile), "Elements by ULP from expected");
  add_figure(figures, heat_drawing(*tensor.profile), "Where the error is: rms_ratio by head and token");
  if (!figures.empty()) out += "<div class=\"figures\">\n" + figures + "</div>\n";
}

void add_probe(std::string& out, const ProbeResult& probe) {
  const auto line = [&out](const char* what, const ProbeMatch& match) {
    add(out, "<p>Probe: {} {} (<code>{}</code>): {} rms_ratio {} as given, {} as misread.</p>\n", what,
        escaped(match.meaning), escaped(match.convention), escaped(match.tensor),
        short_number(match.rms_ratio_before), short_number(match.rms_ratio_after));
  };
  for (const ProbeMatch& match : probe.matches) line("it matches if", match);
  if (!probe.matches.empty()) return;
  if (probe.nearest) return line("no known convention explains it; the nearest is that", *probe.nearest);
  out += "<p>Probe: no known convention explains it.</p>\n";
}

void add_tensor(std::string& out, const Row& row) {
  const TensorResult& tensor = *row.tensor;
  std::string places;
  if (tensor.worst) places = "worst element " + tensor.worst->place;
  if (!tensor.worst_window.empty())
    places += (places.empty() ? "" : "; ") + ("worst window " + tensor.worst_window);
  if (!tensor.worst_head.empty())
    places += (places.empty() ? "" : "; ") + ("worst head " + tensor.worst_head);
  if (!places.empty()) add(out, "<p>{}</p>\n", escaped(places));
  add_drawings(out, tensor);
  if (row.is_bad()) add_points(out, tensor);
  add_metrics(out, tensor);
}

}  // namespace

std::string verdict_html(compare::Verdict verdict) {
  const std::string_view name = compare::name_of(verdict);
  const char* const mark = verdict == compare::Verdict::pass           ? "✓"
                           : verdict == compare::Verdict::fail         ? "✗"
                           : verdict == compare::Verdict::inconclusive ? "?"
                                                                       : "–";
  return fmt::format("<span class=\"verdict {}\">{} {}</span>", name, mark, upper(name));
}

std::string figure_html(double value) {
  return fmt::format("<data value=\"{}\">{}</data>", value, short_number(value));
}

std::string closest_limit(const TensorResult& tensor) {
  double most = -1;
  std::string name;
  for (const compare::Limit& limit : tensor.limits) {
    const double* const value = metric(tensor, limit.metric);
    if (value == nullptr) continue;
    if (limit.value == 0 && *value != 0) return fmt::format("{} {} > 0", limit.metric, short_number(*value));
    if (!(limit.value > 0)) continue;
    const double share = std::isnan(*value) ? HUGE_VAL : std::fabs(*value) / limit.value;
    if (share > most) most = share, name = limit.metric;
  }
  if (name.empty()) return "-";
  return fmt::format("{} {} %", name, short_number(most < 10 ? std::round(1000 * most) / 10 : 100 * most));
}

std::string details_html(const Result& result, const Row& row, std::size_t number) {
  std::string out;
  add(out, "<details{}><summary>{} {}</summary>\n<div class=\"inside\" id=\"r{}\">\n",
      row.is_bad() ? " open=\"\"" : "", verdict_html(row.verdict), escaped(row_and_reference(result, row)),
      number);
  if (!row.reason.empty()) add(out, "<p><strong>{}</strong></p>\n", escaped(row.reason));
  if (row.tensor != nullptr) add_tensor(out, row);
  if (row.item->probe) add_probe(out, *row.item->probe);
  if (!row.item->arithmetic.empty())
    add(out, "<p class=\"soft\">arithmetic: {}</p>\n", escaped(row.item->arithmetic));
  if (!row.item->device.empty()) add(out, "<p class=\"soft\">device: {}</p>\n", escaped(row.item->device));
  return out + "</div></details>\n";
}

}  // namespace kda_check::report
