// The page as a tree: elements, words and drawings. What is put in is escaped where it is written; elements
// that HTML does not know as empty are never written as empty.
#pragma once

#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "report/document.hpp"

namespace kda_check::report::html {

using Node = pugi::xml_node;

/// A child element, with words in it if there are some. `kind`: its class.
Node add(Node parent, const char* element, std::string_view words = {}, const char* kind = nullptr);
/// Words behind what is there.
void say(Node parent, std::string_view words);
/// In a cell of a table, which may break between words and not within 1e-07.
void say_words(Node cell, std::string_view words);
void set(Node element, const char* attribute, std::string_view value);

/// "✗ FAIL" in its colour.
void add_verdict(Node parent, Verdict verdict);
/// A figure as short text that carries its exact value: <data value="0.0012345">0.00123</data>.
void add_figure(Node parent, double value);
/// A drawing (drawings.hpp) with its caption; nothing where the drawing is empty.
void add_drawing(Node parent, const std::string& drawing, std::string_view caption);

/// A table in a frame that scrolls; returns its body. `figures`: columns to the right.
struct Heading {
  std::string text;
  bool is_figure = false;
};
Node add_table(Node parent, const std::vector<Heading>& headings);

}  // namespace kda_check::report::html
