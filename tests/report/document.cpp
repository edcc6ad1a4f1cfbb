// The one rule for exit codes, as a table of cases.
#include "report/document.hpp"

#include "support/catch.hpp"

namespace document_tests {

using namespace kda_check::report;

namespace {

struct Situation {
  const char* what;
  int code;
  std::vector<Verdict> cases;      ///< of variants, against the oracle
  std::vector<Verdict> entries;    ///< of a section
  std::vector<int> failures = {};  ///< exit codes
  bool judges = true;
  int signal = 0;
  bool nothing_to_do = false;
  bool table = false;  ///< a section with an entry that has no verdict
};

Document document_of(const Situation& situation) {
  Document document;
  document.command = "run", document.judges = situation.judges, document.signal = situation.signal;
  if (situation.nothing_to_do) document.nothing_to_do = "an empty shard";
  for (const Verdict verdict : situation.cases) {
    CaseResult item;
    item.variant = "chunk", item.against = "oracle", item.verdict = verdict;
    document.cases.push_back(std::move(item));
  }
  Section section;
  section.key = "rows";
  for (const Verdict verdict : situation.entries) {
    Entry entry;
    entry.verdict = verdict;
    section.entries.push_back(std::move(entry));
  }
  if (situation.table) section.entries.emplace_back();
  if (!section.entries.empty()) document.sections.push_back(std::move(section));
  for (const int code : situation.failures) document.failures.push_back({"something", code, {}});
  return document;
}

constexpr Verdict pass = Verdict::pass, fail = Verdict::fail, unclear = Verdict::inconclusive,
                  skipped = Verdict::skipped;

}  // namespace

TEST_CASE("the exit code is that of the worst thing that happened", "[report]") {
  const Situation situations[] = {
      {"everything passed", 0, {pass, pass}, {}},
      {"something passed, something was skipped", 0, {pass, skipped}, {}},
      {"one failed", 1, {pass, fail}, {}},
      {"one was inconclusive", 1, {pass, unclear}, {}},
      {"everything was skipped", 1, {skipped, skipped}, {}},
      {"nothing was compared", 1, {}, {}},
      {"an entry passed", 0, {}, {pass}},
      {"an entry failed beside cases that passed", 1, {pass}, {pass, fail}},
      {"an entry was inconclusive", 1, {}, {unclear}},
      {"verdicts were asked for, and there is a table", 1, {}, {}, {}, true, 0, false, true},
      {"a table was asked for, and there is one", 0, {}, {}, {}, false, 0, false, true},
      {"a table was asked for, and there is none", 1, {}, {}, {}, false},
      {"entries of a table were skipped", 0, {}, {skipped}, {}, false},
      {"a file could not be read", 3, {pass}, {}, {3}},
      {"a file could not be read, and something failed", 3, {fail}, {}, {3}},
      {"something could not run after a file could not be read", 4, {pass}, {}, {3, 4}},
      {"the other way round", 4, {pass}, {}, {4, 3}},
      {"something required did not answer", 1, {pass}, {}, {1}},
      {"a bug", 70, {pass}, {}, {4, 70}},
      {"nothing to do, and that is no failure", 0, {}, {}, {}, true, 0, true},
      {"nothing to do, but something could not be read", 3, {}, {}, {3}, true, 0, true},
      {"interrupted after everything passed", 128 + 2, {pass}, {}, {}, true, 2},
      {"terminated after something failed", 128 + 15, {fail}, {}, {4}, true, 15},
      {"terminated with nothing to do", 128 + 15, {}, {}, {}, true, 15, true},
  };
  for (const Situation& situation : situations) {
    INFO(situation.what);
    const Document document = document_of(situation);
    CHECK(exit_code(document) == situation.code);
    // Whoever fails says why: a verdict, a failure, or this.
    const bool said = document.count(fail) + document.count(unclear) > 0 || !document.failures.empty();
    if (situation.code == 0)
      CHECK(unexplained_failure(document).empty());
    else
      CHECK((said || !unexplained_failure(document).empty()));
  }
}

TEST_CASE("a part in which everything was skipped is no failure, the whole of such parts is one",
          "[report]") {
  Document document = document_of({"", 0, {skipped, skipped}, {}});
  document.plan = PlanSummary{"0", 4, 1, 2, {}};
  CHECK(exit_code(document) == 0);
  document.cases[0].verdict = fail;
  CHECK(exit_code(document) == 1);
  document.cases.clear();
  CHECK(exit_code(document) == 1);
  document = document_of({"", 1, {skipped, skipped}, {}});
  document.plan = PlanSummary{"0", 2, 1, 1, {}};
  CHECK(exit_code(document) == 1);
}

TEST_CASE("a demand is met by any part, and unmet is said once", "[report]") {
  const auto demand = [](const char* what, bool met) { return Demand{what, met, {what, 1, {}}}; };
  CHECK(unmet({}).empty());
  const std::vector<Failure> failures =
      unmet({demand("a", false), demand("b", false), demand("a", true), demand("b", false)});
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].message == "b");
}

TEST_CASE("variants that were left out are not made up for by what passed without them", "[report]") {
  const auto code = [](std::vector<std::pair<Role, Verdict>> cases, const char* against_of_skipped) {
    Document document;
    document.judges = true;
    for (const auto& [role, verdict] : cases) {
      CaseResult item;
      item.role = role, item.verdict = verdict;
      item.against = verdict == skipped ? against_of_skipped : "oracle";
      document.cases.push_back(item);
    }
    return exit_code(document);
  };
  // "" against nothing: it did not run at all.
  CHECK(code({{Role::variant, skipped}, {Role::recorded, pass}}, "") == 1);
  CHECK(code({{Role::variant, skipped}, {Role::external, pass}}, "") == 1);
  CHECK(code({{Role::variant, skipped}, {Role::variant, pass}}, "") == 0);
  CHECK(code({{Role::recorded, pass}}, "") == 0);  // none was to run
  CHECK(code({{Role::variant, skipped}, {Role::recorded, pass}}, "fla_chunk") == 0);
}

TEST_CASE("verdicts of cases and of entries are counted together", "[report]") {
  Situation both{"", 1, {pass, fail, skipped}, {pass, unclear}};
  const Document document = document_of(both);
  CHECK(document.count(pass) == 2);
  CHECK(document.count(fail) == 1);
  CHECK(document.count(unclear) == 1);
  CHECK(document.count(skipped) == 1);
}

}  // namespace document_tests
