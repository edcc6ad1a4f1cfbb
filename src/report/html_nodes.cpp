#include "report/html_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/names.hpp"
#include "report/rows.hpp"

namespace kda_check::report::html {

Node add(Node parent, const char* element, std::string_view words, const char* kind) {
  Node node = parent.append_child(element);
  if (kind != nullptr) node.append_attribute("class") = kind;
  say(node, words);
  return node;
}

void say(Node parent, std::string_view words) {
  parent.append_child(pugi::node_pcdata).set_value(printable(words).c_str());
}

void say_words(Node cell, std::string_view words) {
  cell.append_attribute("class") = "wrap";
  std::string before;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    const std::string_view word = words.substr(begin, end - begin);
    if (word.find('-') != std::string_view::npos) {
      say(cell, std::exchange(before, " "));
      add(cell, "span", word, "word");
    } else {
      before += std::string(word) + " ";
    }
    begin = end + 1;
  }
  before.pop_back();
  say(cell, before);
}

void set(Node element, const char* attribute, std::string_view value) {
  element.append_attribute(attribute).set_value(printable(value).c_str());
}

void add_verdict(Node parent, Verdict verdict) {
  const char* const mark = verdict == Verdict::pass           ? "✓"
                           : verdict == Verdict::fail         ? "✗"
                           : verdict == Verdict::inconclusive ? "?"
                                                              : "–";
  const std::string name(judge::name_of(verdict));
  set(add(parent, "span", fmt::format("{} {}", mark, upper(name))), "class", "verdict " + name);
}

void add_figure(Node parent, double value) {
  set(add(parent, "data", short_number(value)), "value", fmt::format("{}", value));
}

void add_drawing(Node parent, const std::string& drawing, std::string_view caption) {
  if (drawing.empty()) return;
  Node figure = add(parent, "figure");
  figure.append_buffer(drawing.data(), drawing.size(), pugi::parse_default, pugi::encoding_utf8);
  add(figure, "figcaption", caption);
}

Node add_table(Node parent, const std::vector<Heading>& headings) {
  Node table = add(add(parent, "div", {}, "scroll"), "table");
  Node row = add(add(table, "thead"), "tr");
  for (const Heading& heading : headings) add(row, "th", heading.text, heading.is_figure ? "n" : nullptr);
  return add(table, "tbody");
}

}  // namespace kda_check::report::html
