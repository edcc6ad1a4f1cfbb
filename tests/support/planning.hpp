// Plans made of command lines and of lines of suites, as `run` makes them.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "plan/words.hpp"
#include "support/running.hpp"
#include "support/temporary_folder.hpp"

namespace kda_check::test {

/// "@ci --variant chunk": what follows `kda-check run`.
inline plan::Request request_of(const std::string& words) {
  return cli::parse_run_line(plan::words_of(words));
}

inline plan::Plan planned_line(const plan::Request& request, const plan::Shard& shard = {}) {
  return plan::planned(request, {shard, {}, cli::parse_run_line});
}
inline plan::Plan planned_line(const std::string& words, const plan::Shard& shard = {}) {
  return planned_line(request_of(words), shard);
}

/// Every case with its problem, in the order of the plan.
inline std::vector<std::pair<const plan::Case*, const plan::Problem*>> cases_of(const plan::Plan& plan) {
  std::vector<std::pair<const plan::Case*, const plan::Problem*>> list;
  for (const plan::Problem& problem : plan.problems)
    for (const plan::Case& item : problem.cases) list.emplace_back(&item, &problem);
  return list;
}
std::vector<std::pair<const plan::Case*, const plan::Problem*>> cases_of(plan::Plan&& plan) = delete;

/// A suite of these lines in a folder of its own.
class TemporarySuite {
 public:
  explicit TemporarySuite(const std::string& text) { std::ofstream(folder_ / "mine.txt") << text; }
  std::string name() const { return "@" + (folder_ / "mine.txt"); }
  std::string place(int line) const { return name() + ":" + std::to_string(line); }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

}  // namespace kda_check::test
