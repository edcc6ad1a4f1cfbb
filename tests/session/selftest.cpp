#include "session/selftest.hpp"

#include <algorithm>
#include <fstream>

#include "session/mutants.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;

TEST_CASE("every wrong kernel is caught, and no healthy one, on any number of threads", "[selftest]") {
  const session::SelftestResult result = session::selftest({2, {}, {}}, {});
  CHECK(result.exit_code() == 0);
  for (const session::SelftestRow& row : result.rows) {
    INFO(row.name << ' ' << row.dtype << (row.caught_by.empty() ? "" : ": " + row.caught_by.front()));
    CHECK(row.as_it_should());
  }
  CHECK(session::selftest_text(result) == session::selftest_text(session::selftest({1, {}, {}}, {})));
}

TEST_CASE(
    "the suite of pull requests tries the problem that wrong kernels are caught with, invariants included",
    "[selftest]") {
  const std::string target = session::selftest({2, {}, {}}, {}).target;
  std::ifstream suite(test::case_fixtures() + "/../suites/ci.txt");
  bool found = false;
  for (std::string line; std::getline(suite, line);)
    found = found ||
            (line.starts_with(target + " ") && line.ends_with(" --dtype fp64,fp32,bf16,fp16 --invariants"));
  CHECK(found);
}

TEST_CASE("the oracle catches what is wrong in values, an invariant what is not", "[selftest]") {
  const session::SelftestResult result = session::selftest({2, {}, {}}, {});
  for (const session::SelftestRow& row : result.rows) {
    if (row.healthy) continue;
    const bool by_oracle =
        std::any_of(row.caught_by.begin(), row.caught_by.end(),
                    [](const std::string& check) { return check.starts_with("oracle: "); });
    const bool in_bits_only = row.name == "looks_ahead" || row.name == "second_sequence" ||
                              row.name == "odd_head" || row.name == "mask_by_zero";
    INFO(row.name);
    CHECK(by_oracle == !in_bits_only);
  }
}

TEST_CASE("a missed mutant or a false alarm makes the selftest fail", "[selftest]") {
  session::SelftestResult result;
  result.rows.push_back({"wrong", "", "fp32", false, {}, true, {}, false});
  CHECK(result.exit_code() == 1);
  result.rows = {{"healthy", "", "fp32", true, {"oracle: o"}, true, {}, false}};
  CHECK(result.exit_code() == 1);
  result.rows = {{"never judged", "", "fp32", true, {}, false, {}, false}};
  CHECK(result.exit_code() == 1);
}

TEST_CASE("a wrong kernel that the suite lets pass is missed, whatever else catches it", "[selftest]") {
  session::RunRequest line;
  line.fixtures = {"control:T=64,H=1"}, line.dtypes = {"fp32"}, line.variants = {"chunk"};
  const session::SelftestResult result = session::selftest({2, "@mine", {{"@mine:1", line}}}, {});
  CHECK(result.exit_code() == 1);
  const auto named = [&](const char* name) {
    return *std::find_if(result.rows.begin(), result.rows.end(),
                         [&](const session::SelftestRow& row) { return row.name == name; });
  };
  CHECK(named("looks_ahead").in_suite.empty());  // right in all its values
  CHECK_FALSE(named("looks_ahead").caught_by.empty());
  CHECK_FALSE(named("looks_ahead").as_it_should());
  CHECK(named("doubled").in_suite.empty());  // like recurrent, which the line does not run
  CHECK_THAT(named("silent_tf32").in_suite, ContainsSubstring("@mine:1 control:T=64,H=1: oracle: "));
  CHECK(named("silent_tf32").as_it_should());
  CHECK_THAT(session::selftest_text(result), ContainsSubstring("@mine: passes every line"));
  REQUIRE(result.suite_runs.size() == 2);
  for (const session::SuiteRun& run : result.suite_runs) CHECK(run.as_it_should());
}

TEST_CASE("a false alarm of the suite, or a suite in which nothing passes, makes the selftest fail",
          "[selftest]") {
  session::RunRequest line;
  line.fixtures = {"control:T=64,H=1"}, line.dtypes = {"fp32"};
  line.judging.limits = {compare::parse_limit("max_ulp=exact")};
  const session::SelftestResult result = session::selftest({2, "@mine", {{"@mine:1", line}}}, {});
  for (const session::SuiteRun& run : result.suite_runs) {
    REQUIRE(run.alarms.size() == 1);
    CHECK_THAT(run.alarms[0], ContainsSubstring("@mine:1 control:T=64,H=1: naive fp32, oracle: "));
  }
  CHECK(result.exit_code() == 1);
  session::SelftestResult empty;
  empty.suite_runs = {{1, 0, 3, {}}};
  CHECK(empty.exit_code() == 1);
}
