// Requests planned and run as the commands do it, without a command line, and what is looked up in documents.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/engine.hpp"
#include "plan/planner.hpp"
#include "plan/requirements.hpp"
#include "report/document.hpp"

namespace kda_check::test {

/// A request of a task for targets; the rest as nobody asked for anything.
inline plan::Request request_for(std::vector<std::string> targets, plan::Task task = plan::Task::judge) {
  constexpr const char* commands[] = {"run", "power", "capture", "explain"};
  plan::Request request;
  request.task = task;
  request.command = commands[static_cast<std::size_t>(task)];
  request.targets = std::move(targets);
  return request;
}

/// A run of these variants; none: of recorded outputs alone.
inline plan::Request request_for(std::vector<std::string> targets, plan::Names variants) {
  plan::Request request = request_for(std::move(targets));
  request.selection.variants = std::move(variants);
  return request;
}

/// One section of `explain`.
inline plan::Request explaining(std::vector<std::string> targets, const char* section) {
  plan::Request request = request_for(std::move(targets), plan::Task::explain);
  request.only = {section};
  return request;
}

/// Limits as the command line has them: "max_ulp=3".
inline std::vector<judge::LimitLayer> limits(const std::vector<std::string>& texts,
                                             std::string source = std::string(plan::command_line)) {
  judge::LimitLayer layer{std::move(source), {}};
  for (const std::string& text : texts) layer.requests.push_back(judge::parse_limit(text));
  return {std::move(layer)};
}

inline plan::Plan planned(const plan::Request& request, const fixture::ReadLimits& limits = {}) {
  return plan::planned(request, {{}, limits, {}});
}

inline engine::Resources on_threads(int threads) {
  engine::Resources resources;
  resources.threads = threads;
  return resources;
}

/// Everything that is told of a plan, in one document.
inline report::Document ran(const plan::Plan& plan, engine::Resources resources = {}) {
  report::Document document;
  document.command = plan.command;
  document.judges = plan.command == "run";
  document.failures = plan.failures;
  engine::execute(plan, {std::move(resources)},
                  [&](report::Document part) { document.add(std::move(part)); });
  return document;
}

/// Plans and runs; throws Error{usage} as the planner does.
inline report::Document ran(const plan::Request& request, engine::Resources resources = {}) {
  return ran(planned(request, resources.limits), std::move(resources));
}

/// "2 the message" of the Error that `work` throws: its exit code first; "accepted" where it throws none.
template <class Work>
std::string refusal(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return std::to_string(exit_code(error.kind())) + " " + error.what();
  }
  return "accepted";
}

/// The first case that meets all that is said; throws std::out_of_range.
inline const report::CaseResult& case_of(const report::Document& document, std::string_view variant,
                                         std::string_view against, std::string_view dtype = {},
                                         std::string_view pass = "forward") {
  for (const report::CaseResult& item : document.cases)
    if (item.variant == variant && item.against == against && item.pass == pass &&
        (dtype.empty() || item.dtype == dtype))
      return item;
  throw std::out_of_range("no case of " + std::string(variant) + " against " + std::string(against));
}

inline bool has_case(const report::Document& document, std::string_view variant, std::string_view against) {
  return std::ranges::any_of(document.cases, [&](const report::CaseResult& item) {
    return item.variant == variant && item.against == against;
  });
}

/// NaN where it does not apply.
inline double metric_of(const report::TensorResult& tensor, std::string_view name) {
  for (const auto& [metric, value] : tensor.metrics)
    if (metric == name) return value;
  return std::nan("");
}

inline const report::TensorResult& tensor_of(const report::CaseResult& item, std::string_view name) {
  return *std::ranges::find(item.tensors, name, &report::TensorResult::name);
}

/// Values by the keys of their columns; throws std::out_of_range for a key that is not there, and
/// std::bad_variant_access for one of another kind.
class Row {
 public:
  Row(const std::vector<report::Column>& columns, const std::vector<report::Value>& values)
      : columns_(&columns), values_(&values) {}

  const report::Value& value(std::string_view key) const {
    const auto column = std::ranges::find(*columns_, key, &report::Column::key);
    if (column == columns_->end()) throw std::out_of_range("no column " + std::string(key));
    return values_->at(static_cast<std::size_t>(column - columns_->begin()));
  }
  bool is_nothing(std::string_view key) const { return std::holds_alternative<std::monostate>(value(key)); }
  bool flag(std::string_view key) const { return std::get<bool>(value(key)); }
  std::int64_t count(std::string_view key) const { return std::get<std::int64_t>(value(key)); }
  double figure(std::string_view key) const { return std::get<double>(value(key)); }
  const std::string& words(std::string_view key) const { return std::get<std::string>(value(key)); }
  const std::vector<double>& along(std::string_view key) const {
    return std::get<std::vector<double>>(value(key));
  }
  const std::vector<std::string>& list(std::string_view key) const {
    return std::get<std::vector<std::string>>(value(key));
  }

 private:
  const std::vector<report::Column>* columns_;
  const std::vector<report::Value>* values_;
};

/// An entry of a section.
class Item : public Row {
 public:
  Item(const report::Section& section, const report::Entry& entry)
      : Row(section.columns, entry.values), section_(&section), entry_(&entry) {}

  const report::Section& section() const { return *section_; }
  const report::Entry& entry() const { return *entry_; }
  /// The rows of one of its tables; empty where it has none of that key.
  std::vector<Row> rows(std::string_view key) const {
    std::vector<Row> list;
    for (const report::Table& table : entry_->tables)
      if (table.key == key)
        for (const std::vector<report::Value>& values : table.rows) list.emplace_back(table.columns, values);
    return list;
  }
  bool has_table(std::string_view key) const {
    return std::ranges::find(entry_->tables, key, &report::Table::key) != entry_->tables.end();
  }

 private:
  const report::Section* section_;
  const report::Entry* entry_;
};

/// All entries of sections of that key. The document must outlive them.
inline std::vector<Item> items_of(const report::Document& document, std::string_view key) {
  std::vector<Item> list;
  for (const report::Section& section : document.sections)
    if (section.key == key)
      for (const report::Entry& entry : section.entries) list.emplace_back(section, entry);
  return list;
}
std::vector<Item> items_of(report::Document&& document, std::string_view key) = delete;

}  // namespace kda_check::test
