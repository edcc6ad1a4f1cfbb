// Limits are decided when a run is planned: by whom, in which order, and what is for nothing.
#include <fstream>

#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"

namespace limits_tests {

using namespace kda_check;
using plan::Names;
using test::cases_of;
using test::planned_line;
using test::TemporarySuite;

namespace {

/// A suite beside rules.toml.
class WithRules : public TemporarySuite {
 public:
  WithRules(const std::string& lines, const std::string& rules) : TemporarySuite(lines) {
    std::ofstream(rules_path()) << rules;
  }
  std::string rules_path() const { return folder() / "rules.toml"; }
};

constexpr char two_rules[] = R"([[rule]]
regime = "control"
scaled_ulp = 50
reason = "the first"

[[rule]]
regime = "control"
tensor = "o"
scaled_ulp = 60
rms_ratio = 0.5
reason = "the second"
)";

Names sources_of(const std::vector<judge::LimitLayer>& layers) {
  Names sources;
  for (const judge::LimitLayer& layer : layers) sources.push_back(layer.source);
  return sources;
}

}  // namespace

TEST_CASE("limits lie over one another: rules in their order, the line, the command line, allclose",
          "[plan][limits]") {
  const WithRules suite(
      "control:T=4,H=1 --variant recurrent --tolerance rules.toml --limit max_ulp=7 --atol 1\n", two_rules);
  const plan::Plan plan = planned_line(suite.name() + " --limit max_ulp=8 --limit scaled_ulp=70");
  REQUIRE(cases_of(plan).size() == 1);
  const plan::Case& item = *cases_of(plan).at(0).first;
  REQUIRE(item.tensors == Names{"o", "final_state"});
  const std::string rules = suite.rules_path(), line = suite.name() + ":1";
  CHECK(sources_of(item.limits.at(0)) == Names{rules + ":1", rules + ":6", line, "command line", line});
  CHECK(sources_of(item.limits.at(1)) == Names{rules + ":1", line, "command line", line});
  CHECK(item.limits[0].back().requests.at(0).metric == "allclose");
  CHECK(item.notes == Names{rules + ":1: the first", rules + ":6: the second"});
  CHECK(plan.problems[0].notes == item.notes);
  // The last source wins, metric by metric.
  const std::vector<judge::Limit> o = judge::overlaid({{"scaled_ulp", 17, "derived"}}, item.limits[0]);
  const auto limit = [&](const char* metric) {
    return *std::ranges::find(o, std::string(metric), &judge::Limit::metric);
  };
  CHECK(limit("scaled_ulp").value == 70);
  CHECK(limit("scaled_ulp").source == "command line");
  CHECK(limit("max_ulp").value == 8);
  CHECK(limit("rms_ratio").source == rules + ":6");
  CHECK(limit("allclose").source == line);
}

TEST_CASE("allclose of the command line is named after it", "[plan][limits]") {
  const TemporarySuite suite("control:T=4,H=1 --variant recurrent --atol 1\n");
  const plan::Plan plan = planned_line(suite.name() + " --atol 2");
  const plan::Case& item = *cases_of(plan).at(0).first;
  CHECK(sources_of(item.limits.at(0)) == Names{"command line"});
  CHECK(item.asked->judging.atol == 2.0);
}

TEST_CASE("rules of the command line replace those of a line", "[plan][limits]") {
  const WithRules suite("control:T=4,H=1 --variant recurrent --tolerance rules.toml\n", two_rules);
  const std::string other = suite.folder() / "other.toml";
  std::ofstream(other) << "[[rule]]\nvariant = \"recurrent\"\nmax_ulp = 5\nreason = \"another\"\n";
  const plan::Plan plan = planned_line(suite.name() + " --tolerance " + other);
  const plan::Case& item = *cases_of(plan).at(0).first;
  CHECK(sources_of(item.limits.at(0)) == Names{other + ":1"});
}

TEST_CASE("a rule that matches nothing fails the plan, before anything runs", "[plan][limits]") {
  const std::string unused =
      "[[rule]]\nregime = \"control\"\nvariant = \"chunk\"\nagainst = \"mine\"\n"
      "max_ulp = 5\nreason = \"for nothing\"\n";
  const WithRules suite("control:T=4,H=1 --tolerance rules.toml\n", two_rules + ("\n" + unused));
  const plan::Plan plan = planned_line(suite.name());
  REQUIRE(plan.failures.size() == 1);
  CHECK_THAT(plan.failures[0].message,
             ContainsSubstring("a rule of the tolerances matched nothing (" + suite.rules_path() + ":13)"));
  CHECK(plan.failures[0].exit_code == 1);
  // Where less is compared than the targets hold, rules for the rest are not for nothing.
  CHECK(planned_line(suite.name() + " --variant recurrent").failures.empty());
  // A rule for a target that is not there is another file's business.
  const WithRules elsewhere("control:T=4,H=1 --tolerance rules.toml\n",
                            "[[rule]]\nregime = \"corr_keys\"\nmax_ulp = 5\nreason = \"elsewhere\"\n");
  CHECK(planned_line(elsewhere.name()).failures.empty());
}

TEST_CASE("two lines with one file of rules use it together", "[plan][limits]") {
  const std::string rules =
      "[[rule]]\nregime = \"control\"\ndtype = \"bf16\"\nscaled_ulp = 50\nreason = \"a\"\n"
      "[[rule]]\nregime = \"control\"\ndtype = \"fp64\"\nscaled_ulp = 50\nreason = \"b\"\n";
  const std::string bf16 = "control:T=4,H=1 --dtype bf16 --tolerance rules.toml\n";
  CHECK(planned_line(WithRules(bf16, rules).name()).failures.size() == 1);
  CHECK(planned_line(WithRules(bf16 + "control:T=4,H=1 --dtype fp64 --tolerance rules.toml\n", rules).name())
            .failures.empty());
}

TEST_CASE("every shard knows the rules that are for nothing", "[plan][limits]") {
  const WithRules suite("control:T=4,H=1 --tolerance rules.toml\ncontrol:T=5,H=1\n",
                        "[[rule]]\nregime = \"control\"\nvariant = \"chunk\"\nagainst = \"mine\"\n"
                        "max_ulp = 5\nreason = \"for nothing\"\n");
  for (const std::size_t index : {1, 2})
    CHECK(planned_line(suite.name(), {index, 2, {}}).failures.size() == 1);
}

TEST_CASE("a limit is checked against the element type of each tensor when the run is planned",
          "[plan][limits]") {
  const std::string path = test::case_fixtures() + "/fla_bf16_gva.h5 --variant recurrent --limit ";
  const auto refusal = [](const std::string& words) { return test::refusal([&] { planned_line(words); }); };
  CHECK_THAT(refusal(path + "rms_ratio=1e-5"),
             ContainsSubstring("2 ") && ContainsSubstring("finer than bf16"));
  CHECK(refusal(path + "rms_ratio=1e-5 --tensor final_state") == "accepted");
  CHECK_THAT(refusal("control:T=4 --variant naive --limit scaled_ulp=0.3"),
             ContainsSubstring("2 ") && ContainsSubstring("finer than fp32"));
  CHECK(refusal("control:T=4 --variant naive --limit max_ulp=exact") == "accepted");
  const TemporarySuite suite("control:T=4 --variant naive --limit scaled_ulp=0.3\n");
  CHECK_THAT(refusal(suite.name()), ContainsSubstring("(" + suite.name() + ":1)"));
}

}  // namespace limits_tests
