#include "selftest/selftest.hpp"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include "base/interruption.hpp"
#include "cli/command.hpp"
#include "report/writers.hpp"
#include "selftest/mutants.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_folder.hpp"

using namespace kda_check;
using judge::Verdict;
using test::Item;
using test::items_of;

namespace {

report::Document tried(int threads, const std::string& suite = {}) {
  selftest::SelftestRequest request;
  request.resources = test::on_threads(threads);
  request.suite = suite;
  request.parse_line = cli::parse_run_line;
  report::Document document;
  selftest::selftest(request, document);
  return document;
}

/// Of the problems of the selftest alone; made once.
const report::Document& on_problems() {
  static const report::Document document = tried(2);
  return document;
}

/// A suite of one line.
struct OneLine {
  explicit OneLine(const char* line) { std::ofstream(folder / "mine.txt") << line << '\n'; }
  std::string name() const { return "@" + (folder / "mine.txt"); }
  test::TemporaryFolder folder;
};

Item row_of(const report::Document& document, std::string_view name) {
  for (const Item& item : items_of(document, "rows"))
    if (item.words("name") == name) return item;
  throw std::out_of_range("no row of " + std::string(name));
}

}  // namespace

TEST_CASE("of a selftest that a signal ends, the rows that were known are kept, and none is made up",
          "[selftest]") {
  test::Child child([](const std::function<void()>&) {
    prepare_signals();
    selftest::SelftestRequest request;
    request.resources = test::on_threads(1);
    request.resources.progress = [](const std::string& what) {
      if (what.ends_with(" backwards")) std::raise(SIGTERM);
    };
    report::Document document;
    try {
      selftest::selftest(request, document);
    } catch (const Interrupted&) {
      const std::vector<Item> rows = items_of(document, "rows");
      if (rows.empty() || document.sections.front().key != "devices") return 90;
      const bool forward = std::ranges::all_of(rows, [](const Item& row) {
        return row.words("pass") == "forward" && row.entry().verdict == Verdict::pass;
      });
      return forward ? 0 : 91;
    }
    return 92;
  });
  CHECK(child.exit_status() == 0);
}

TEST_CASE("every wrong kernel is caught, and no healthy one, on any number of threads", "[selftest]") {
  const report::Document& document = on_problems();
  CHECK(report::exit_code(document) == 0);
  std::set<std::string> names;
  for (const Item& item : items_of(document, "rows")) {
    INFO(item.words("name") << ' ' << item.words("dtype") << ' ' << item.entry().reason);
    CHECK(item.entry().verdict == Verdict::pass);
    CHECK(item.words("finding") == (item.flag("healthy") ? "passes" : "caught"));
    CHECK(item.flag("healthy") == item.list("caught_by").empty());
    names.insert(item.words("name"));
  }
  for (const selftest::Mutant& mutant : selftest::mutants()) CHECK(names.contains(std::string(mutant.name)));
  for (const selftest::BackwardMutant& mutant : selftest::backward_mutants())
    CHECK(names.contains(std::string(mutant.name)));
  for (const kda::Variant& variant : test::cpu_variants()) CHECK(names.contains(std::string(variant.name)));
  CHECK(report::write_text(document, {}) == report::write_text(tried(1), {}));
}

TEST_CASE(
    "the suite of pull requests tries the problem that wrong kernels are caught with, invariants included",
    "[selftest]") {
  std::string target;
  for (const report::Section& section : on_problems().sections)
    for (const std::string& note : section.notes)
      if (note.starts_with("problems: ")) target = note.substr(10, note.find(';') - 10);
  REQUIRE(!target.empty());
  std::ifstream suite(test::case_fixtures() + "/../suites/ci.txt");
  bool found = false;
  for (std::string line; std::getline(suite, line);)
    found = found ||
            (line.starts_with(target + " ") && line.ends_with(" --dtype fp64,fp32,bf16,fp16 --invariants"));
  CHECK(found);
}

TEST_CASE("the oracle catches what is wrong in values, an invariant what is not", "[selftest]") {
  for (const Item& item : items_of(on_problems(), "rows")) {
    if (item.flag("healthy")) continue;
    const std::vector<std::string>& checks = item.list("caught_by");
    const bool by_oracle = std::any_of(checks.begin(), checks.end(), [](const std::string& check) {
      return check.find(": by oracle: ") != std::string::npos;
    });
    const std::string& name = item.words("name");
    const bool in_bits_only =
        name == "looks_ahead" || name == "second_sequence" || name == "odd_head" || name == "mask_by_zero";
    INFO(name);
    CHECK(by_oracle == !in_bits_only);
  }
}

TEST_CASE("a wrong kernel that the suite lets pass is missed, whatever else catches it", "[selftest]") {
  const OneLine suite("control:T=64,H=1 --dtype fp32 --variant chunk");
  const report::Document document = tried(2, suite.name());
  CHECK(report::exit_code(document) == 1);
  const Item ahead = row_of(document, "looks_ahead");  // right in all its values
  CHECK(ahead.words("in_suite").empty());
  CHECK_FALSE(ahead.list("caught_by").empty());
  CHECK(ahead.entry().verdict == Verdict::fail);
  CHECK(ahead.words("finding") == "missed");
  CHECK_THAT(ahead.words("suite"), ContainsSubstring("passes every line"));
  CHECK(
      row_of(document, "doubled").words("in_suite").empty());  // like recurrent, which the line does not run
  const Item silent = row_of(document, "silent_tf32");
  CHECK_THAT(silent.words("in_suite"), ContainsSubstring(suite.name() + ":1 control:T=64,H=1: oracle: "));
  CHECK(silent.entry().verdict == Verdict::pass);
  const std::vector<Item> runs = items_of(document, "suite_runs");
  REQUIRE(runs.size() == 2);
  for (const Item& run : runs) {
    CHECK(run.entry().verdict == Verdict::pass);
    CHECK(run.count("passed") == 1);
  }
  CHECK_THAT(report::write_text(document, {}), ContainsSubstring("passes every line"));
}

TEST_CASE("a false alarm of the suite, or a suite in which nothing passes, makes the selftest fail",
          "[selftest]") {
  const OneLine alarming("control:T=64,H=1 --dtype fp32 --variant naive --limit max_ulp=exact");
  const report::Document document = tried(2, alarming.name());
  const std::vector<Item> runs = items_of(document, "suite_runs");
  REQUIRE(runs.size() == 2);
  for (const Item& run : runs) {
    REQUIRE(run.list("alarms").size() == 1);
    CHECK_THAT(run.list("alarms")[0],
               ContainsSubstring("naive fp32, " + alarming.name() + ":1 control:T=64,H=1: oracle: "));
    CHECK(run.entry().verdict == Verdict::fail);
  }
  CHECK(report::exit_code(document) == 1);

  const OneLine idle("control:T=64,H=1 --dtype fp64 --variant naive --arithmetic exponential=cuda");
  const report::Document nothing = tried(2, idle.name());
  for (const Item& run : items_of(nothing, "suite_runs")) {
    CHECK(run.count("passed") == 0);
    CHECK(run.count("skipped") == 1);
    CHECK(run.list("alarms").empty());
    CHECK(run.entry().verdict == Verdict::fail);
  }
  CHECK(report::exit_code(nothing) == 1);
}
