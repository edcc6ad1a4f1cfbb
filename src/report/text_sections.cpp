#include "report/text_sections.hpp"

#include <fmt/format.h>

#include "base/append.hpp"
#include "base/names.hpp"
#include "report/rows.hpp"
#include "report/table.hpp"

namespace kda_check::report {

namespace {

TextTable::Heading heading_of(const Column& column) {
  return {printable(column.title()), is_figure(column.show)};
}

std::string cell(const Value& value, Show show, const WriteOptions& options) {
  const std::string text = value_text(value, show, options.unicode);
  return show == Show::along ? text : printable(text);
}

std::string table_text(const Table& table, const WriteOptions& options, const std::string& indent) {
  const std::vector<std::size_t> shown = shown_columns(table.columns, options.detail);
  std::vector<TextTable::Heading> headings;
  for (const std::size_t i : shown) headings.push_back(heading_of(table.columns[i]));
  TextTable text(std::move(headings));
  for (const std::vector<Value>& row : table.rows) {
    std::vector<std::string> cells;
    for (const std::size_t i : shown) cells.push_back(cell(row[i], table.columns[i].show, options));
    text.add(std::move(cells));
  }
  std::string out;
  if (!table.title.empty()) append(out, "{}{}\n", indent, printable(table.title));
  return out + text.text(indent + (table.title.empty() ? "" : "  "));
}

void add_sentences(std::string& out, const Section& section, const Entry& entry, const std::string& indent) {
  for (const std::string& sentence : sentences_of(section, entry))
    append(out, "{}{}\n", indent, printable(sentence));
}

bool is_shown(const Entry& entry, const WriteOptions& options) {
  return options.detail != Detail::quiet || (entry.verdict && is_bad(*entry.verdict));
}

std::string verdict_text(const Entry& entry) {
  return entry.verdict ? upper(judge::name_of(*entry.verdict)) : std::string();
}

std::string tabular_text(const Section& section, const WriteOptions& options, const std::string& indent) {
  const std::vector<std::size_t> shown = shown_columns(section.columns, options.detail);
  bool has_verdicts = false;
  for (const Entry& entry : section.entries) has_verdicts = has_verdicts || entry.verdict.has_value();
  std::vector<TextTable::Heading> headings;
  if (has_verdicts) headings.push_back({"verdict"});
  for (const std::size_t i : shown) headings.push_back(heading_of(section.columns[i]));
  TextTable table(std::move(headings));
  std::string below;
  for (const Entry& entry : section.entries) {
    if (!is_shown(entry, options)) continue;
    std::vector<std::string> cells;
    if (has_verdicts) cells.push_back(verdict_text(entry));
    for (const std::size_t i : shown)
      cells.push_back(cell(entry.values[i], section.columns[i].show, options));
    table.add(std::move(cells));
    if (!entry.reason.empty() && entry.verdict != Verdict::pass)
      append(below, "{}{} {}: {}\n", indent, verdict_text(entry), printable(entry_name(section, entry)),
             printable(entry.reason));
    add_sentences(below, section, entry, indent);
    for (const Table& inner : entry.tables)
      if (!inner.is_data && !inner.rows.empty() && inner.from <= options.detail)
        below += table_text(inner, options, indent);
  }
  if (table.empty()) return {};
  return table.text(indent) + (below.empty() ? "" : "\n" + below);
}

std::string paragraph(const Section& section, const Entry& entry, const WriteOptions& options,
                      const std::string& indent) {
  std::string out;
  append(out, "\n{}{}{}\n", indent, printable(entry.title),
         entry.verdict
             ? ": " + verdict_text(entry) + (entry.reason.empty() ? "" : " - " + printable(entry.reason))
             : std::string());
  const std::string inside = indent + "  ";
  add_sentences(out, section, entry, inside);
  for (const Table& table : entry.tables)
    if (!table.is_data && !table.rows.empty() && table.from <= options.detail)
      out += table_text(table, options, inside);
  return out;
}

}  // namespace

std::string section_text(const Section& section, const WriteOptions& options) {
  const std::string indent = section.path.empty() ? "" : "  ";
  std::string body;
  if (section.tabular) {
    body = tabular_text(section, options, indent);
  } else {
    for (const Entry& entry : section.entries)
      if (is_shown(entry, options)) body += paragraph(section, entry, options, indent);
  }
  if (options.detail != Detail::quiet)
    for (const std::string& note : section.notes) append(body, "{}{}\n", indent, printable(note));
  if (body.empty()) return {};
  return (section.title.empty() ? "" : fmt::format("\n{}{}\n", indent, printable(section.title))) + body;
}

}  // namespace kda_check::report
