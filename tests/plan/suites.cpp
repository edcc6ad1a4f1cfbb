// Suites: their text, their places, and what their lines may say.
#include "plan/suite.hpp"

#include <filesystem>

#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"

namespace suites_tests {

using namespace kda_check;
using plan::Names;
using plan::Words;
using test::cases_of;
using test::planned_line;
using test::TemporarySuite;

namespace {

std::string refusal(const std::string& words) {
  return test::refusal([&] { planned_line(words); });
}

}  // namespace

TEST_CASE("the lines of a suite keep their numbers, without comments and empty ones", "[plan][suites]") {
  const auto lines = plan::suite_lines("# first\n\na b  # c\r\n  \t\n'd e'", "@x");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].number == 3);
  CHECK(lines[0].words == Words{"a", "b"});
  CHECK(lines[1].number == 5);
  CHECK(lines[1].words == Words{"d e"});
  CHECK(plan::suite_lines("", "@x").empty());
  CHECK_THAT(test::refusal([] { plan::suite_lines("a\n'b\n", "@x"); }),
             ContainsSubstring("3 ") && ContainsSubstring("(@x:2)"));
}

TEST_CASE("a suite that came with the program is known by its name, another one by its file",
          "[plan][suites]") {
  CHECK(plan::suite_names() == Names{"ci", "hazards", "incidents", "smoke"});
  for (const std::string& name : plan::suite_names()) {
    const plan::Suite suite = plan::load_suite("@" + name);
    CHECK_FALSE(suite.lines.empty());
    CHECK(suite.called == "cases/suites");
    CHECK(suite.place(suite.lines[0]).starts_with("@" + name + ":"));
  }
  CHECK_THAT(test::refusal([] { plan::load_suite("@smok"); }),
             ContainsSubstring("2 no suite '@smok'") && ContainsSubstring("did you mean 'smoke'?"));
  const TemporarySuite mine("control:T=4\n");
  CHECK(plan::load_suite(mine.name()).lines.size() == 1);
  CHECK(test::refusal([] { plan::load_suite("@/no/such.txt"); }).starts_with("3 "));
  CHECK_THAT(test::refusal([&] { plan::load_suite("@" + mine.folder().path() + "/"); }),
             ContainsSubstring("3 ") && ContainsSubstring("is a folder, not a suite"));
  CHECK_THAT(test::refusal([] { plan::load_suite(TemporarySuite("# nothing\n").name()); }),
             ContainsSubstring("3 the suite has no lines"));
}

TEST_CASE("a line may have every option about what is run, an external program in quotes too",
          "[plan][suites]") {
  const TemporarySuite suite(
      "control:T=4,H=1 --variant none --external './my kernel {in} \"{out}\"' --external-name mine "
      "--external-timeout 5 --dtype fp32\n"
      "control:T=4,H=1 --variant chunk --recorded none --against oracle --tensor o --backward "
      "--no-backward --arithmetic decay=pair --chunk-size 16 --oracle fp64 --limit max_ulp=9 --atol 1 "
      "--rtol 0.5 --worst 2 --stages --invariants=repeat --require chunk\n");
  const plan::Plan plan = planned_line(suite.name());
  REQUIRE(plan.problems.size() == 1);
  const auto cases = cases_of(plan);
  CHECK(cases.at(0).first->who == "mine");
  CHECK(cases.at(0).first->asked->external->command == "./my kernel {in} \"{out}\"");
  CHECK(cases.at(0).first->asked->external->seconds == 5);
  CHECK(cases.at(0).first->asked->place == suite.name() + ":1");
  const plan::Request& second = *cases.back().first->asked;
  CHECK(second.place == suite.name() + ":2");
  CHECK(second.chunk_size == 16u);
  CHECK(second.oracle == plan::OracleChoice::fp64);
  CHECK(second.stages);
  CHECK(second.invariants == Names{"repeat"});
  CHECK(plan.required == std::vector<plan::Requirement>{{"chunk", suite.place(2)}});
}

TEST_CASE("what a line of a suite cannot have is refused with its place", "[plan][suites]") {
  const auto refused = [](const std::string& line) {
    const TemporarySuite suite("control:T=4,H=1 --variant recurrent\n\n" + line + "\n");
    const std::string text = refusal(suite.name());
    INFO(text);
    CHECK_THAT(text, ContainsSubstring("(" + suite.name() + ":3)"));
    return text.substr(0, text.find(" (@"));
  };
  CHECK_THAT(refused("@smoke"), ContainsSubstring("2 '@smoke' inside a suite: suites do not nest"));
  CHECK(refused("--variant chunk").starts_with("2 "));  // no target
  CHECK(refused("control --json x.json").starts_with("3 "));
  CHECK(refused("control --report html=x.html").starts_with("3 "));
  CHECK(refused("control -q").starts_with("3 "));
  CHECK(refused("control --baseline b.tsv").starts_with("3 "));
  CHECK(refused("control --shard 1/2").starts_with("3 "));
  CHECK(refused("control --dry-run").starts_with("3 "));
  CHECK(refused("control --threads 2").starts_with("3 "));
  CHECK(refused("control --memory-limit 1G").starts_with("3 "));
  CHECK_THAT(refused("control --varaint chunk"), ContainsSubstring("no option '--varaint'"));
  CHECK_THAT(refused("control --variant chnk"), ContainsSubstring("no variant 'chnk'"));
  CHECK_THAT(refused("control --limit max_ulp"), ContainsSubstring("max_ulp"));
  CHECK_THAT(refused("control --rtol 1e-3"), ContainsSubstring("--rtol without --atol"));
  CHECK_THAT(refused("control 'not closed"), ContainsSubstring("3 a ' without its partner"));
  CHECK_THAT(refused("control:rho=1"), ContainsSubstring("no parameter 'rho'"));
  CHECK(refused("contrl") == "2 'contrl' is neither a file nor a regime");
  CHECK_THAT(refused("control --against nobody"), ContainsSubstring("no fixture has a group"));
  CHECK_THAT(refused("control:T=4 --limit rms_ratio=1e-9"), ContainsSubstring("finer than fp32"));
}

TEST_CASE("rules of tolerances that cannot be read are bad input, with their file", "[plan][suites]") {
  const TemporarySuite suite("control:T=4,H=1 --tolerance no_such.toml\n");
  CHECK_THAT(refusal(suite.name()),
             ContainsSubstring("3 ") && ContainsSubstring(suite.folder() / "no_such.toml"));
}

TEST_CASE("a usage error in the last line comes before any work", "[plan][suites]") {
  static int runs;
  runs = 0;
  std::vector<kda::Variant> registry{kda::variant_named("recurrent")};
  registry[0].run = [](const kda::Problem& problem, const kda::RunOptions& options) {
    ++runs;
    return kda::run_recurrent(problem, options);
  };
  const TemporarySuite suite("control:T=4,H=1\ncontrol:T=5,H=1\ncontrol:T=6,H=1 --limit rms_ratio=1e-9\n");
  plan::Request request = test::request_of(suite.name());
  request.registry = registry;
  CHECK_THAT(test::refusal([&] { test::ran(planned_line(request)); }),
             ContainsSubstring("2 ") && ContainsSubstring(suite.name() + ":3"));
  CHECK(runs == 0);
  const TemporarySuite healthy("control:T=4,H=1\ncontrol:T=5,H=1\n");
  request.targets = {healthy.name()};
  test::ran(planned_line(request));
  CHECK(runs == 2);
}

TEST_CASE("paths in a line start from the folder of the suite, and are called the same from anywhere",
          "[plan][suites]") {
  const TemporarySuite suite("a.h5 --variant recurrent --tolerance rules.toml\n");
  std::filesystem::copy_file(test::case_fixtures() + "/fla_fp32_small.h5", suite.folder() / "a.h5");
  std::ofstream(suite.folder() / "rules.toml")
      << "[[rule]]\nvariant = \"recurrent\"\nscaled_ulp = 50\nreason = \"a test\"\n";
  const plan::Plan plan = planned_line(suite.name());
  REQUIRE(plan.problems.size() == 1);
  CHECK(plan.problems[0].source->target().path == suite.folder() / "a.h5");
  CHECK(plan.problems[0].source->target().name == suite.folder() / "a.h5");
  const plan::Plan shipped = planned_line("@smoke");
  CHECK(shipped.problems[0].source->target().name == "cases/fixtures/fla_fp32_small.h5");
  CHECK(std::filesystem::exists(shipped.problems[0].source->target().path));
}

TEST_CASE("suites are for run alone", "[plan][suites]") {
  for (const plan::Task task : {plan::Task::power, plan::Task::capture, plan::Task::explain})
    CHECK_THAT(test::refusal([&] { test::planned(test::request_for({"@smoke"}, task)); }),
               ContainsSubstring("2 '@smoke': suites are for run"));
}

}  // namespace suites_tests
