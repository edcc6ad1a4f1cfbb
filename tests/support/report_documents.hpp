// Documents of a run for the tests of writers, and what those read of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <pugixml.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "report/document.hpp"
#include "support/catch.hpp"

namespace kda_check::test {

inline report::ErrorProfile profile() {
  return {{10, 4, 0, 1}, std::vector<double>(48, 1e-3), {2, 48, 1, 1, std::vector<double>(96, 1e-3)}};
}

inline report::TensorResult tensor_result(judge::Verdict verdict) {
  report::TensorResult tensor;
  tensor.name = "o";
  tensor.shape = {1, 48, 2, 64};
  tensor.dtype = "fp32";
  tensor.verdict = verdict;
  tensor.metrics = {{"max_ulp", 3},        {"scaled_ulp", 1.2345678901234567}, {"max_abs", 1e-7},
                    {"max_rel", HUGE_VAL}, {"rms_ratio", std::nan("")},        {"nonfinite", 0}};
  tensor.limits = {{"nonfinite", 0, "derived"}, {"scaled_ulp", 16, "derived"}};
  tensor.worst =
      report::PointResult{{0, 41, 0, 17}, "o[b=0 t=41 h=0 v=17]", 0.1, 0.2, 1, "0x1.9p-4", "0x1.9p-3", 1.25};
  tensor.points = {*tensor.worst};
  tensor.profile = profile();
  if (verdict != judge::Verdict::pass) tensor.reason = "scaled_ulp 20 > 16";
  return tensor;
}

/// A case of each verdict.
inline report::Document document_with(const std::vector<judge::Verdict>& verdicts) {
  report::Document result;
  result.command = "run";
  result.argv = {"run", "f.h5"};
  result.judges = true;
  result.problems = {{"f", "f.h5", "B=1 T=48 H=2 K=64 V=64", "fp32 gate=none", {"a note"}}};
  for (const judge::Verdict verdict : verdicts) {
    report::CaseResult item;
    item.fixture = "f", item.path = "f.h5", item.variant = "recurrent", item.dtype = item.compute = "fp32";
    item.device = "cpu", item.pass = "forward", item.against = "oracle", item.verdict = verdict;
    item.oracle = "double-double", item.number = result.cases.size() + 1, item.place = "command line";
    item.repro = "kda-check run f.h5 --variant recurrent";
    if (verdict != judge::Verdict::skipped) item.tensors = {tensor_result(verdict)};
    if (verdict == judge::Verdict::skipped) item.reason = "no device";
    result.cases.push_back(item);
  }
  return result;
}

inline pugi::xml_document parsed(const std::string& text) {
  pugi::xml_document document;
  const pugi::xml_parse_result outcome = document.load_buffer(
      text.data(), text.size(), pugi::parse_default | pugi::parse_doctype | pugi::parse_declaration,
      pugi::encoding_utf8);
  INFO(outcome.description() << " at " << outcome.offset << ": "
                             << text.substr(static_cast<std::size_t>(outcome.offset), 80));
  REQUIRE(outcome.status == pugi::status_ok);
  return document;
}

inline std::string all_text(const pugi::xml_node& node) {
  std::ostringstream out;
  for (const pugi::xpath_node& text : node.select_nodes(".//text()")) out << text.node().value() << '\n';
  return out.str();
}

inline bool has_control_characters(const std::string& text) {
  return std::ranges::any_of(
      text, [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f || c == 0xff; });
}

/// Every row of a table in Markdown has as many cells as its heading.
inline void check_markdown_tables(const std::string& text) {
  std::istringstream lines(text);
  std::size_t cells_before = 0;
  for (std::string line; std::getline(lines, line);) {
    std::size_t cells = 0;
    for (std::size_t i = 0; i < line.size(); ++i)
      if (line[i] == '\\')
        ++i;
      else
        cells += line[i] == '|';
    if (!line.starts_with("|")) cells = 0;
    if (cells_before != 0 && cells != 0) CHECK(cells == cells_before);
    cells_before = cells;
  }
}

inline void check_workflow_commands(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    CHECK((line.starts_with("::error ") || line.starts_with("::warning ") || line.starts_with("::notice ")));
}

}  // namespace kda_check::test
