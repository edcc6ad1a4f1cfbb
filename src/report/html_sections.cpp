#include "report/html_sections.hpp"

#include "report/drawings.hpp"
#include "report/markup.hpp"
#include "report/rows.hpp"

namespace kda_check::report::html {

namespace {

using Values = std::vector<Value>;

void add_value(Node row, const Value& value, Show show) {
  Node cell = add(row, "td", {}, is_figure(show) ? "n" : nullptr);
  if (const auto* const number = std::get_if<double>(&value); number != nullptr && show == Show::figure)
    return add_figure(cell, *number);
  if (const auto* const series = std::get_if<std::vector<double>>(&value))
    return add_drawing(cell, series_drawing(*series), {});
  if (show == Show::code)
    add(cell, "code", value_text(value, show));
  else if (show == Show::words)
    say_words(cell, value_text(value, show));
  else
    say(cell, value_text(value, show));
}

/// Columns of shares are drawn beside their table.
void add_bars(Node parent, const Table& table) {
  for (std::size_t share = 0; share < table.columns.size(); ++share) {
    if (table.columns[share].show != Show::share) continue;
    std::vector<ShareBar> bars;
    for (const Values& row : table.rows) {
      const auto* const value = std::get_if<double>(&row[share]);
      std::string name = value_text(row[0], table.columns[0].show);
      if (table.columns.size() > 1 && table.columns[1].show == Show::code)
        if (const auto* const word = std::get_if<std::string>(&row[1]); word != nullptr && !word->empty())
          name += " = " + *word;
      if (value != nullptr) bars.push_back({escaped(name), *value});
    }
    add_drawing(parent, shares_drawing(escaped(table.columns[share].title()), bars),
                table.title.empty() ? table.columns[share].title() : table.title);
  }
}

Node table_of(Node parent, const std::vector<Column>& columns, bool has_verdicts) {
  std::vector<Heading> headings;
  if (has_verdicts) headings.push_back({"verdict"});
  for (const std::size_t i : shown_columns(columns, Detail::verbose))
    headings.push_back({columns[i].title(), is_figure(columns[i].show)});
  return add_table(parent, headings);
}

void add_values(Node row, const std::vector<Column>& columns, const Values& values) {
  for (const std::size_t i : shown_columns(columns, Detail::verbose))
    add_value(row, values[i], columns[i].show);
}

void add_sentences(Node parent, const Section& section, const Entry& entry) {
  for (const std::string& sentence : sentences_of(section, entry)) add(parent, "p", sentence);
}

void add_tables(Node parent, const Entry& entry) {
  Node figures = add(parent, "div", {}, "figures");
  for (const Table& table : entry.tables)
    if (!table.is_data) add_bars(figures, table);
  for (const Table& table : entry.tables) {
    if (table.is_data || table.rows.empty()) continue;
    if (!table.title.empty()) add(parent, "p", table.title, "soft");
    Node body = table_of(parent, table.columns, false);
    for (const Values& row : table.rows) add_values(add(body, "tr"), table.columns, row);
  }
}

void add_scatter(Node parent, const Section& section) {
  if (!section.scatter) return;
  const auto [name, along, over] = *section.scatter;
  std::vector<NamedDot> dots;
  for (const Entry& entry : section.entries) {
    const auto* const x = std::get_if<double>(&entry.values[along]);
    const auto* const y = std::get_if<double>(&entry.values[over]);
    if (x != nullptr && y != nullptr)
      dots.push_back({escaped(value_text(entry.values[name], section.columns[name].show)), *x, *y});
  }
  const std::string of = section.columns[along].title(), what = section.columns[over].title();
  add_drawing(parent, scatter_drawing(escaped(of), escaped(what), dots), what + " over " + of);
}

void add_tabular(Node parent, const Section& section) {
  add_scatter(parent, section);
  bool has_verdicts = false;
  for (const Entry& entry : section.entries) has_verdicts = has_verdicts || entry.verdict.has_value();
  Node body = table_of(parent, section.columns, has_verdicts);
  for (const Entry& entry : section.entries) {
    Node row = add(body, "tr");
    if (has_verdicts) {
      Node cell = add(row, "td");
      if (entry.verdict) add_verdict(cell, *entry.verdict);
    }
    add_values(row, section.columns, entry.values);
  }
  for (const Entry& entry : section.entries) {
    if (!entry.reason.empty() && entry.verdict != Verdict::pass)
      add(parent, "p", entry_name(section, entry) + ": " + entry.reason);
    add_sentences(parent, section, entry);
  }
}

}  // namespace

void add_section(Node parent, const Section& section) {
  if (!section.title.empty()) add(parent, "h3", section.title);
  if (section.tabular) {
    add_tabular(parent, section);
  } else {
    for (const Entry& entry : section.entries) {
      Node heading = add(parent, "h3", entry.title);
      if (entry.verdict) {
        say(heading, " ");
        add_verdict(heading, *entry.verdict);
      }
      if (!entry.reason.empty()) add(add(parent, "p"), "strong", entry.reason);
      add_sentences(parent, section, entry);
      add_tables(parent, entry);
    }
  }
  for (const std::string& note : section.notes) add(parent, "p", note, "soft");
}

}  // namespace kda_check::report::html
