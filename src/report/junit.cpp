// JUnit XML: a testsuite for each fixture, known by its path, a testcase for each case and tensor.
// Inconclusive is a failure, and so is a run in which nothing passed or that was interrupted.
#include <fmt/format.h>

#include <map>
#include <pugixml.hpp>
#include <sstream>

#include "base/names.hpp"
#include "report/html_nodes.hpp"
#include "report/markup.hpp"
#include "report/rows.hpp"
#include "report/text_sections.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

using html::set;

void set_count(pugi::xml_node node, const char* name, std::size_t count) {
  node.append_attribute(name).set_value(static_cast<unsigned long long>(count));
}

struct Counts {
  std::size_t tests = 0, failures = 0, errors = 0, skipped = 0;

  void add(const Counts& other) {
    tests += other.tests, failures += other.failures, errors += other.errors, skipped += other.skipped;
  }
  void write(pugi::xml_node node) const {
    set_count(node, "tests", tests);
    set_count(node, "failures", failures);
    set_count(node, "errors", errors);
    set_count(node, "skipped", skipped);
  }
};

/// What an engineer needs of a row that did not pass.
std::string body(const Row& row) {
  std::string text;
  const auto line = [&text](std::string_view content) {
    text += '\n';
    text += printable(content);
  };
  if (row.tensor != nullptr) {
    for (const auto& [name, value] : row.tensor->metrics)
      line(fmt::format("{} = {}", name, short_number(value)));
    for (const judge::Limit& limit : row.tensor->limits)
      line(fmt::format("limit {} <= {:.3g} ({})", limit.metric, limit.value, limit.source));
    for (const PointResult& point : row.tensor->points) line(point_text(point));
    if (!row.tensor->worst_window.empty()) line("worst window " + row.tensor->worst_window);
    if (!row.tensor->worst_head.empty()) line("worst head " + row.tensor->worst_head);
  }
  if (row.item != nullptr && !row.item->arithmetic.empty()) line("arithmetic " + row.item->arithmetic);
  if (row.item != nullptr && !row.item->repro.empty()) line("repro: " + row.item->repro);
  text += '\n';
  return text;
}

class Suite {
 public:
  Suite(pugi::xml_node parent, const std::string& name)
      : node_(parent.append_child("testsuite")), name_(name) {
    set(node_, "name", name);
  }
  pugi::xml_node add(std::string name) {
    // Viewers take tests of one name for one test.
    if (const int seen = ++names_[name]; seen > 1) name += fmt::format(" #{}", seen);
    pugi::xml_node test = node_.append_child("testcase");
    set(test, "classname", name_);
    set(test, "name", name);
    ++counts_.tests;
    return test;
  }
  void add_failure(pugi::xml_node test, const char* type, const std::string& message,
                   const std::string& text) {
    pugi::xml_node failure = test.append_child("failure");
    set(failure, "type", type);
    set(failure, "message", message);
    if (!text.empty()) failure.text().set(text.c_str());
    ++counts_.failures;
  }
  void add_error(pugi::xml_node test, const std::string& message) {
    set(test.append_child("error"), "message", message);
    ++counts_.errors;
  }
  void add_skipped(pugi::xml_node test, const std::string& reason) {
    set(test.append_child("skipped"), "message", reason);
    ++counts_.skipped;
  }
  /// What has no verdict, below the tests.
  void tell(const std::string& lines) {
    std::string text;
    std::istringstream all(lines);
    for (std::string line; std::getline(all, line);) text += printable(line) + "\n";
    node_.append_child("system-out").text().set(text.c_str());
  }
  Counts finish() {
    counts_.write(node_);
    return counts_;
  }

 private:
  pugi::xml_node node_;
  std::string name_;
  std::map<std::string, int> names_;
  Counts counts_;
};

Counts add_problem(pugi::xml_node root, const Document& document, const ProblemRows& problem) {
  Suite suite(root, problem.path.empty() ? "kda-check " + document.command : problem.path);
  for (const Row& row : problem.rows) {
    const pugi::xml_node test = suite.add(row_and_reference(document, row));
    if (row.is_bad())
      suite.add_failure(test, std::string(judge::name_of(row.verdict)).c_str(), row.reason, body(row));
    if (row.verdict == Verdict::skipped) suite.add_skipped(test, row.reason);
  }
  std::string told;
  for (const Section* const section : problem.sections) told += section_text(*section, {});
  if (!told.empty()) suite.tell(told);
  return suite.finish();
}

Counts add_failures(pugi::xml_node root, const Document& document) {
  Suite suite(root, "kda-check");
  for (const Failure& failure : document.failures)
    suite.add_error(suite.add(fmt::format("exit code {}", failure.exit_code)), failure.message);
  if (const std::string failure = unexplained_failure(document); !failure.empty())
    suite.add_failure(suite.add(document.is_interrupted() ? "it ran to its end" : "something passed"), "fail",
                      failure, {});
  return suite.finish();
}

}  // namespace

std::string write_junit(const Document& document, const WriteOptions&) {
  pugi::xml_document xml;
  pugi::xml_node declaration = xml.append_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  pugi::xml_node root = xml.append_child("testsuites");
  set(root, "name", "kda-check " + document.command);
  Counts total;
  for (const ProblemRows& problem : rows_by_problem(document))
    total.add(add_problem(root, document, problem));
  if (!document.failures.empty() || !unexplained_failure(document).empty())
    total.add(add_failures(root, document));
  total.write(root);
  std::ostringstream out;
  xml.save(out, "  ", pugi::format_default, pugi::encoding_utf8);
  return out.str();
}

}  // namespace kda_check::report
