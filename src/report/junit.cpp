// JUnit XML: a testsuite for each fixture, a testcase for each case and tensor. Inconclusive is a failure,
// and so is a run in which nothing passed.
#include <fmt/format.h>

#include <map>
#include <pugixml.hpp>
#include <sstream>

#include "report/cells.hpp"
#include "report/markup.hpp"
#include "report/stages_writers.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

using compare::Verdict;

void set(pugi::xml_node node, const char* name, std::string_view text) {
  node.append_attribute(name).set_value(valid_text(text).c_str());
}

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
    text += valid_text(content);
  };
  if (row.tensor != nullptr) {
    for (const auto& [name, value] : row.tensor->metrics)
      line(fmt::format("{} = {}", name, short_number(value)));
    for (const compare::Limit& limit : row.tensor->limits)
      line(fmt::format("limit {} <= {:.3g} ({})", limit.metric, limit.value, limit.source));
    for (const PointResult& point : row.tensor->points) line(point_text(point));
    if (!row.tensor->worst_window.empty()) line("worst window " + row.tensor->worst_window);
    if (!row.tensor->worst_head.empty()) line("worst head " + row.tensor->worst_head);
  }
  if (!row.item->arithmetic.empty()) line("arithmetic " + row.item->arithmetic);
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
    for (std::string line; std::getline(all, line);) text += valid_text(line) + "\n";
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

Counts add_fixture(pugi::xml_node root, const Result& result, const FixtureRows& fixture) {
  Suite suite(root, fixture.name.empty() ? fixture.path : fixture.name);
  for (const Row& row : fixture.rows) {
    const pugi::xml_node test = suite.add(row_and_reference(result, row));
    if (row.is_bad())
      suite.add_failure(test, std::string(compare::name_of(row.verdict)).c_str(), row.reason, body(row));
    if (row.verdict == Verdict::skipped) suite.add_skipped(test, row.reason);
  }
  std::string stages;
  for (const StageCase& item : result.stages)
    if (item.path == fixture.path) stages += stages_text(item);
  if (!stages.empty()) suite.tell(stages);
  return suite.finish();
}

Counts add_errors(pugi::xml_node root, const Result& result) {
  Suite suite(root, "kda-check");
  for (const FailedInput& error : result.errors)
    suite.add_error(suite.add(fmt::format("exit code {}", error.exit_code)), error.message);
  if (const std::string failure = unexplained_failure(result); !failure.empty())
    suite.add_failure(suite.add("something passed"), "fail", failure, {});
  return suite.finish();
}

}  // namespace

std::string write_junit(const Result& result, const WriteOptions&) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  pugi::xml_node root = document.append_child("testsuites");
  set(root, "name", "kda-check " + result.command);
  Counts total;
  for (const FixtureRows& fixture : rows_by_fixture(result)) total.add(add_fixture(root, result, fixture));
  if (!result.errors.empty() || !unexplained_failure(result).empty()) total.add(add_errors(root, result));
  total.write(root);
  std::ostringstream out;
  document.save(out, "  ", pugi::format_default, pugi::encoding_utf8);
  return out.str();
}

}  // namespace kda_check::report
