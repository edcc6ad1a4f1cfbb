#include "selftest/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include "base/interruption.hpp"
#include "cli/command.hpp"
#include "engine/power/faults.hpp"
#include "hypotheses/naming/faults.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "kda/regimes/regimes.hpp"
#include "report/writers.hpp"
#include "selftest/mutants.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_folder.hpp"

namespace selftest_tests {

using namespace kda_check;
using judge::Verdict;
using test::Item;
using test::items_of;

namespace {

/// mutants: these beside the healthy kernels; none: all.
report::Document tried(int threads, const std::string& suite = {}, std::vector<std::string> mutants = {}) {
  selftest::SelftestRequest request;
  request.resources = test::on_threads(threads);
  request.suite = suite;
  request.mutants = std::move(mutants);
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

/// Of the names of all wrong kernels; in the shape of production of those that are made for it.
std::vector<std::string> drawn_mutants(const test::Sampled& sample, bool production = false) {
  std::set<std::string> names;
  for (const engine::FaultRow& row : engine::fault_rows()) names.insert(std::string(row.key));
  if (!production)
    for (const kda::Pass pass : kda::every_pass)
      for (const selftest::Subject& mutant : selftest::mutants(pass)) names.insert(std::string(mutant.name));
  std::vector<std::string> drawn;
  std::size_t item = 0;
  for (const std::string& name : names)
    if (sample.has(item++)) drawn.push_back(name);
  return drawn;
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
    request.mutants = {"looks_ahead", "slow_channel", "dAqk_lost"};
    request.resources.progress = [](const std::string& what) {
      if (what.ends_with(" backwards")) std::raise(SIGTERM);
    };
    report::Document document;
    try {
      selftest::selftest(request, document);
    } catch (const Interrupted&) {
      const std::vector<Item> rows = items_of(document, "rows");
      if (rows.empty() || document.sections.front().key != "devices") return 90;
      // A GPU that the parent has used does not answer behind a fork.
      const bool forward = std::ranges::all_of(rows, [](const Item& row) {
        return row.words("pass") == "forward" &&
               (row.entry().verdict != Verdict::fail || row.words("name").starts_with("gpu-"));
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
  const kda::Problem problem = kda::parse_regime("lb_real:T=130,H=2,HV=4,K=48,V=32,C=64,dtype=bf16").build();
  std::set<std::string> names;
  for (const Item& item : items_of(document, "rows")) {
    const std::string& name = item.words("name");
    INFO(name << ' ' << item.words("dtype") << ' ' << item.words("size") << ' ' << item.entry().reason);
    names.insert(name);
    if (item.words("finding") == "not seen") {
      CHECK(item.entry().verdict == Verdict::skipped);
      // It is none here, or needs several requests.
      const auto fault = std::ranges::find(hypotheses::faults(), name, &hypotheses::Fault::name);
      if (fault != hypotheses::faults().end())
        CHECK((!fault->applies(problem) || name == "l2norm_applied" ||  // keys have norm 1
               name.starts_with("inverse_series_")));                   // L^8 is next to nothing
      else
        CHECK(std::ranges::any_of(hypotheses::pool_faults(),
                                  [&](const hypotheses::PoolFault& one) { return one.name == name; }));
      continue;
    }
    if (item.words("finding") == "below the floor") {
      CHECK(item.entry().verdict == Verdict::skipped);
      CHECK(item.list("caught_by").empty());
      continue;
    }
    CHECK(item.entry().verdict == Verdict::pass);
    CHECK(item.words("finding") == (item.flag("healthy") ? "passes" : "caught"));
    CHECK(item.flag("healthy") == item.list("caught_by").empty());
  }
  for (const kda::Pass pass : kda::every_pass)
    for (const selftest::Subject& mutant : selftest::mutants(pass))
      CHECK(names.contains(std::string(mutant.name)));
  for (const kda::Variant& variant : test::cpu_variants()) CHECK(names.contains(std::string(variant.name)));
  const std::vector<std::string> few{"chunk", "slow_channel", "gate_mean", "looks_ahead", "base_two"};
  CHECK(report::write_text(tried(2, {}, few), {}) == report::write_text(tried(1, {}, few), {}));
}

TEST_CASE("each fault at twice what `power` says is seen is caught, and at half of it is not", "[selftest]") {
  std::map<std::string, std::vector<std::string>> findings;  // by fault, precision and tensor
  for (const Item& item : items_of(on_problems(), "rows")) {
    const std::string& size = item.words("size");
    if (size.find(" % of ") == std::string::npos) continue;
    const std::string tensor = size.find("final_state") == std::string::npos ? "o" : "final_state";
    findings[fmt::format("{} {} {}", item.words("name"), item.words("dtype"), tensor)].push_back(
        item.words("finding"));
  }
  for (const auto& [who, found] : findings) {
    INFO(who);
    CHECK(found == std::vector<std::string>{"caught", "below the floor"});
  }
  for (const char* const dtype : {"fp32", "bf16", "fp16"})
    for (const char* const name : {"scale", "head", "chunk", "last_rows", "row", "column", "tile", "element",
                                   "slow_channel", "gate_mean", "beta_late", "decay_missed"}) {
      INFO(name << ' ' << dtype);
      CHECK(findings.contains(fmt::format("{} {} o", name, dtype)));
    }
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
    if (item.flag("healthy") || item.words("finding") != "caught") continue;
    const std::vector<std::string>& checks = item.list("caught_by");
    const bool by_oracle = std::any_of(checks.begin(), checks.end(), [](const std::string& check) {
      return check.find(": by oracle: ") != std::string::npos;
    });
    const std::string& name = item.words("name");
    const bool in_bits_only =
        name == "looks_ahead" || name == "second_sequence" || name == "odd_head" || name == "mask_by_zero" ||
        std::ranges::any_of(hypotheses::pool_faults(),
                            [&](const hypotheses::PoolFault& fault) { return name == fault.name; });
    INFO(name << ' ' << item.words("dtype") << ' ' << item.words("size"));
    CHECK((by_oracle || in_bits_only));
    // What a share adds is of fp64: under a law of bits it would be caught for that alone.
    if (!item.words("size").empty())
      CHECK(std::ranges::none_of(
          checks, [](const std::string& check) { return check.find("invariant") != std::string::npos; }));
  }
}

TEST_CASE("what a fault leaves alone is the answer of the healthy kernel, bit for bit", "[selftest]") {
  using numeric::DType;
  const char* const regime = "lb_real:T=130,H=2,HV=4,K=48,V=32,C=64";
  const auto is_wanted = [](std::string_view key) { return key == "chunk" || key == "element"; };
  for (const selftest::Subject& mutant : selftest::mutants_at_floors(regime, is_wanted, 2, 1U << 30)) {
    if (mutant.shows != selftest::Subject::Shows::on_problem ||
        mutant.size.find("% of o") == std::string::npos)
      continue;
    const bool of_element = mutant.name == "element";
    INFO(mutant.name << ' ' << numeric::name_of(mutant.dtype) << ' ' << mutant.size);
    const kda::Problem problem =
        kda::parse_regime(fmt::format("{},dtype={}", regime, numeric::name_of(mutant.dtype))).build();
    const kda::Dimensions& d = problem.dimensions();
    const kda::RunOptions options = test::default_options(problem, mutant.like, mutant.dtype);
    const kda::Answer wrong = mutant.variant.run(problem, options);
    const kda::Answer right = kda::variant_named(mutant.like).run(problem, options);
    CHECK(test::differing_bits(wrong.final_state, right.final_state) == 0);
    REQUIRE(wrong.o.dtype() == right.o.dtype());
    std::size_t changed = 0, elsewhere = 0;
    for (std::size_t i = 0; i < right.o.size(); ++i) {
      if (wrong.o.value(i) == right.o.value(i)) continue;
      const std::size_t head = i / d.V % d.HV, token = i / d.V / d.HV;
      ++(head == 2 && token >= 64 && token < 128 ? changed : elsewhere);
    }
    CHECK(elsewhere == 0);
    CHECK(changed >= 1);
    CHECK(changed <= (of_element ? 1 : 64 * d.V));
  }
}

TEST_CASE("a wrong kernel is tried as the lines have it: in their precision, and not against our own bits",
          "[selftest]") {
  // Captured in bf16: whatever runs there in fp32 differs, healthy or not.
  const OneLine suite(
      ("'" + test::case_fixtures() +
       "/../captures/corr_keys_bf16.h5' --variant recurrent --arithmetic h100 "
       "--against gpu-recurrent@nvidia-h100-80gb-hbm3 --oracle none --limit differing_bits=exact")
          .c_str());
  const report::Document document =
      tried(2, suite.name(), {"output_doubled", "silent_tf32", "gate_mean", "looks_ahead"});
  for (const Item& item : items_of(document, "rows")) {
    INFO(item.words("name") << ' ' << item.words("dtype") << ' ' << item.words("size"));
    CHECK(item.words("in_suite").empty());
  }
  for (const Item& run : items_of(document, "suite_runs")) CHECK(run.entry().verdict == Verdict::pass);
}

TEST_CASE("a known fault need not show on one problem, but a line of the suite must catch it", "[selftest]") {
  // A token, no state before it: nothing is lost, and everything is doubled.
  const OneLine suite("control:T=1,H=1 --dtype bf16 --variant chunk");
  const report::Document document = tried(2, suite.name(), {"initial_state_missing", "output_doubled"});
  for (const Item& row : items_of(document, "rows")) {
    if (row.words("dtype") != "bf16" || row.words("size") != "in full") continue;
    INFO(row.words("name"));
    const bool is_lost = row.words("name") == "initial_state_missing";
    CHECK(row.words("finding") == (is_lost ? "missed" : "caught"));
    CHECK(row.entry().verdict == (is_lost ? Verdict::fail : Verdict::pass));
  }
}

TEST_CASE("a wrong kernel that the suite lets pass is missed, whatever else catches it", "[selftest]") {
  const OneLine suite("control:T=64,H=1 --dtype fp32 --variant chunk");
  const report::Document document = tried(2, suite.name(), {"looks_ahead", "nan_as_zero", "silent_tf32"});
  CHECK(report::exit_code(document) == 1);
  const Item ahead = row_of(document, "looks_ahead");  // right in all its values
  CHECK(ahead.words("in_suite").empty());
  CHECK_FALSE(ahead.list("caught_by").empty());
  CHECK(ahead.entry().verdict == Verdict::fail);
  CHECK(ahead.words("finding") == "missed");
  CHECK_THAT(ahead.words("suite"), ContainsSubstring("passes every line"));
  CHECK(row_of(document, "nan_as_zero")
            .words("in_suite")
            .empty());  // like recurrent, which the line does not run
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
  const report::Document document = tried(2, alarming.name(), {"nan_as_zero"});
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
  const report::Document nothing = tried(2, idle.name(), {"nan_as_zero"});
  for (const Item& run : items_of(nothing, "suite_runs")) {
    CHECK(run.count("passed") == 0);
    CHECK(run.count("skipped") == 1);
    CHECK(run.list("alarms").empty());
    CHECK(run.entry().verdict == Verdict::fail);
  }
  CHECK(report::exit_code(nothing) == 1);
}

TEST_CASE("every wrong kernel is caught by a line of the suite of pull requests, no variant by any",
          "[selftest]") {
  const test::Sampled sample(12);
  INFO(sample.text());
  selftest::SelftestRequest request;
  request.resources = test::on_threads(2);
  request.suite = "@ci";
  request.mutants = drawn_mutants(sample);
  request.variants_over_suite = sample.step == 1;  // two runs of all of @ci
  request.parse_line = cli::parse_run_line;
  report::Document document;
  selftest::selftest(request, document);
  CHECK(report::exit_code(document) == 0);
  std::size_t wrong = 0;
  for (const Item& row : items_of(document, "rows")) {
    INFO(row.words("name") << ' ' << row.words("dtype") << ' ' << row.words("size"));
    if (row.flag("healthy")) {
      CHECK(row.words("in_suite").empty());
      continue;
    }
    if (row.words("size").find('%') != std::string::npos) continue;  // made for one problem
    ++wrong;
    CHECK_THAT(row.words("in_suite"), ContainsSubstring("@ci:"));
    if (!row.words("size").empty()) CHECK_THAT(row.words("in_suite"), ContainsSubstring(": oracle: "));
  }
  CHECK(wrong != 0);  // of those drawn some are healthy
}

TEST_CASE("at the shape of production each fault at twice its floor is caught", "[selftest]") {
  const test::Sampled sample(384);  // most runs try none
  INFO(sample.text());
  selftest::SelftestRequest request;
  request.resources = test::on_threads(2);
  request.production = true;
  request.mutants = drawn_mutants(sample, request.production);
  if (request.mutants.empty()) KDA_CHECK_SKIP("takes a minute: this sample has no fault");
  report::Document document;
  selftest::selftest(request, document);
  CHECK(report::exit_code(document) == 0);
  for (const Item& row : items_of(document, "rows")) {
    INFO(row.words("name") << ' ' << row.words("dtype") << ' ' << row.words("size"));
    CHECK(row.words("pass") == "forward");
    CHECK(row.words("finding") != "not seen");
  }
  CHECK(items_of(document, "suite_runs").empty());
}

}  // namespace selftest_tests
