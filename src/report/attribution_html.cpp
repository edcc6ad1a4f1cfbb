#include "report/attribution_html.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/names.hpp"
#include "report/drawings.hpp"
#include "report/html_details.hpp"
#include "report/html_page.hpp"
#include "report/markup.hpp"

namespace kda_check::report {

namespace {

template <class... Values>
void add(std::string& out, fmt::format_string<Values...> text, Values&&... values) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Values>(values)...);
}

/// A name, and figures of which some may be missing.
using Line = std::vector<std::string>;

std::string table_html(const Line& heads, const std::vector<Line>& lines) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& head : heads) add(out, "<th>{}</th>", head);
  out += "</tr></thead>\n<tbody>\n";
  for (const Line& line : lines) {
    out += "<tr>";
    for (const std::string& cell : line) add(out, "<td>{}</td>", cell);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string figure(const std::string& drawing, const std::string& caption) {
  return fmt::format("<figure>{}<figcaption>{}</figcaption></figure>\n", drawing, caption);
}

std::string axes_drawing(const Attribution& item) {
  std::vector<ShareBar> bars;
  for (const AxisShare& axis : item.axes)
    bars.push_back({escaped(axis.axis + " = " + axis.value), axis.share});
  bars.push_back({"all of them ideal", item.ideal_share});
  bars.push_back({"interaction", item.interaction});
  return shares_drawing("shares of the axes in the error of " + escaped(item.tensor), bars);
}

std::string stages_drawing(const Attribution& item) {
  std::vector<ShareBar> bars;
  for (const StageShare& stage : item.stages) bars.push_back({escaped(stage.stage), stage.share});
  return shares_drawing("shares of the stages in the error of " + escaped(item.tensor), bars);
}

std::string attribution_html(const Attribution& item) {
  const std::string precision = item.compute == item.dtype ? item.dtype : item.dtype + "/" + item.compute;
  std::string out;
  add(out, "<h3>{} {}, {}: rms_ratio {} against the oracle</h3>\n", escaped(item.variant), escaped(precision),
      escaped(item.tensor), figure_html(item.full));
  if (!item.note.empty()) add(out, "<p><strong>{}</strong></p>\n", escaped(item.note));
  out +=
      "<div class=\"figures\">\n" + figure(axes_drawing(item), "Share of each axis in the mean square error");
  if (!item.stages.empty())
    out += figure(stages_drawing(item), "Share of each stage in that of o: what goes away when it is exact");
  out += "</div>\n";
  std::vector<Line> axes, stages;
  for (const AxisShare& axis : item.axes)
    axes.push_back(
        {escaped(axis.axis), escaped(axis.value), figure_html(axis.only), figure_html(axis.without)});
  axes.push_back({"none: ideal", "", figure_html(item.ideal), ""});
  out += table_html({"axis", "as computed", "rms_ratio, only this", "all but this"}, axes);
  for (const StageShare& stage : item.stages)
    stages.push_back({escaped(stage.stage), figure_html(stage.own), figure_html(stage.given)});
  if (!stages.empty()) out += table_html({"stage", "own rms_ratio", "of o with it exact"}, stages);
  if (!item.arithmetic.empty()) add(out, "<p class=\"soft\">arithmetic: {}</p>\n", escaped(item.arithmetic));
  return out;
}

std::string ladder_html(const Ladder& item) {
  std::string out;
  add(out, "<h3>from {} to {}, {}</h3>\n", escaped(item.from), escaped(item.to), escaped(item.tensor));
  std::vector<ShareBar> bars;
  std::vector<Line> lines;
  for (const Rung& rung : item.rungs) {
    // The first is where the steps begin.
    if (&rung != &item.rungs.front()) bars.push_back({escaped(rung.change), rung.share});
    lines.push_back({escaped(rung.change), figure_html(rung.remaining),
                     fmt::format("{} of {}", rung.differing, item.elements)});
  }
  const std::string title = "shares of the steps in the difference of " + escaped(item.tensor);
  if (!bars.empty())
    out += "<div class=\"figures\">\n" +
           figure(shares_drawing(title, bars), "Share of each step in the difference between the ends") +
           "</div>\n";
  return out + table_html({"step", "rms_ratio left", "elements that differ"}, lines);
}

}  // namespace

std::string write_attribution_html(const AttributionResult& result) {
  std::string out = page_begin("kda-check attribute") + "<header>\n<h1>kda-check attribute</h1>\n";
  if (!result.argv.empty())
    add(out, "<p class=\"soft\"><code>kda-check {}</code></p>\n", escaped(join(result.argv, " ")));
  out += "</header>\n<main>\n" + errors_html(result.errors);
  for (const FixtureResult& fixture : result.fixtures) {
    add(out, "<section>\n<h2>{}</h2>\n<p class=\"soft\">{}; {}</p>\n", escaped(fixture.name),
        escaped(fixture.shape), escaped(fixture.options));
    for (const Attribution& item : result.attributions)
      if (item.path == fixture.path) out += attribution_html(item);
    for (const Ladder& item : result.ladders)
      if (item.path == fixture.path) out += ladder_html(item);
    for (const std::string& note : fixture.notes) add(out, "<p>note: {}</p>\n", escaped(note));
    out += "</section>\n";
  }
  return out + "</main>\n" + page_end("");
}

}  // namespace kda_check::report
