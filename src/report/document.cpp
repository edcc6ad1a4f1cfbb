#include "report/document.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

namespace kda_check::report {

namespace {

/// Variants were to run and none did: what recorded answers pass says nothing about them.
bool no_variant_ran(const Document& document) {
  bool left_out = false;
  for (const CaseResult& item : document.cases) {
    if (item.role != Role::variant) continue;
    if (item.verdict != Verdict::skipped) return false;
    left_out = left_out || item.against.empty();
  }
  return left_out;
}

bool found_something(const Document& document) {
  return !document.cases.empty() ||
         std::any_of(document.sections.begin(), document.sections.end(),
                     [](const Section& section) { return !section.entries.empty(); });
}

}  // namespace

Entry& Section::add(std::vector<Value> values) {
  Entry& entry = entries.emplace_back();
  entry.values = std::move(values);
  return entry;
}

Entry& Section::add_fields(std::vector<Field> fields) {
  columns.clear();
  Entry& entry = entries.emplace_back();
  for (auto& [column, value] : fields)
    columns.push_back(std::move(column)), entry.values.push_back(std::move(value));
  return entry;
}

void Document::add(Document part) {
  const auto append = [](auto& to, auto& from) { std::ranges::move(from, std::back_inserter(to)); };
  append(problems, part.problems);
  append(cases, part.cases);
  append(sections, part.sections);
  append(failures, part.failures);
}

std::size_t Document::count(Verdict verdict) const {
  std::size_t total = 0;
  for (const CaseResult& item : cases) total += item.verdict == verdict;
  for (const Section& section : sections)
    for (const Entry& entry : section.entries) total += entry.verdict == verdict;
  return total;
}

std::vector<Failure> unmet(const std::vector<Demand>& demands) {
  std::vector<Failure> failures;
  std::set<std::string> known;
  for (const Demand& demand : demands)
    if (demand.met) known.insert(demand.what);
  for (const Demand& demand : demands)
    if (known.insert(demand.what).second) failures.push_back(demand.failure);
  return failures;
}

int exit_code(const Document& document) {
  if (document.is_interrupted()) return 128 + document.signal;
  int code = document.count(Verdict::fail) + document.count(Verdict::inconclusive) > 0 ? 1 : 0;
  const bool idle = document.cases.empty() && !document.nothing_to_do.empty();
  if (!idle && !found_something(document)) code = 1;
  if (!idle && !document.is_part() &&
      (no_variant_ran(document) || (document.judges && document.count(Verdict::pass) == 0)))
    code = 1;
  for (const Failure& failure : document.failures) code = std::max(code, failure.exit_code);
  return code;
}

std::string unexplained_failure(const Document& document) {
  if (document.is_interrupted()) return "interrupted: what is missing was not compared";
  if (exit_code(document) == 0 || !document.failures.empty() || document.count(Verdict::fail) > 0 ||
      document.count(Verdict::inconclusive) > 0)
    return {};
  if (!found_something(document)) return "nothing was compared";
  return document.count(Verdict::pass) > 0 ? "no variant ran: only recorded answers were compared"
                                           : "nothing passed: every comparison was skipped";
}

}  // namespace kda_check::report
