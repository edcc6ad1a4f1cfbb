// Rules of tolerances: what a file may say, which rule wins, and which are for nothing.
#include "judge/tolerances.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.hpp"
#include "support/catch.hpp"

namespace tolerances_tests {

using namespace kda_check;
using namespace kda_check::judge;

namespace {

namespace fs = std::filesystem;

/// A file of rules for one test.
struct Rules {
  explicit Rules(const std::string& text) { std::ofstream(path) << text; }
  ~Rules() { fs::remove(path); }
  Tolerances read() const { return Tolerances::read(path); }
  const std::string path =
      (fs::temp_directory_path() / ("kda-check-rules-" + std::to_string(::getpid()) + ".toml")).string();
};

Compared chunk_of(std::string_view fixture, std::string_view dtype = "fp32", std::string_view tensor = "o") {
  return {fixture, "chunk", dtype, "oracle", tensor, numeric::DType::fp32};
}

const std::vector<Limit> derived{
    {"nonfinite", 0, "derived"}, {"rms_ratio", 1e-3, "derived"}, {"scaled_ulp", 17, "derived"}};

const Limit* limit_on(const std::vector<Limit>& limits, const std::string& metric) {
  for (const Limit& limit : limits)
    if (limit.metric == metric) return &limit;
  return nullptr;
}

/// What becomes of limits under the rules for one tensor.
std::vector<Limit> applied(Tolerances& rules, std::vector<Limit> limits, const Compared& compared) {
  std::vector<LimitLayer> layers;
  for (const ToleranceRule* const rule : rules.rules_for(compared))
    layers.push_back({rule->place, rule->limits});
  return overlaid(std::move(limits), layers);
}

std::string refusal(const std::string& text) {
  const Rules rules(text);
  try {
    rules.read();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    const std::string line = error.what();
    return line.find(rules.path) == std::string::npos ? "no file in: " + line : line;
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a rule replaces derived limits metric by metric, and a later rule an earlier one", "[judge]") {
  Tolerances rules = Rules(R"(
[[rule]]
regime = "corr_keys"
scaled_ulp = 50
rms_ratio = 1e-2
reason = "first"

[[rule]]
regime = "corr_keys:rho=0.9*"
scaled_ulp = 90
reason = "second"
)")
                         .read();
  const auto near = applied(rules, derived, chunk_of("corr_keys:rho=0.5"));
  CHECK(limit_on(near, "scaled_ulp")->value == 50);
  const auto far = applied(rules, derived, chunk_of("corr_keys:rho=0.99"));
  CHECK(limit_on(far, "scaled_ulp")->value == 90);
  CHECK(limit_on(far, "scaled_ulp")->source.ends_with(".toml:8"));
  CHECK(limit_on(far, "rms_ratio")->value == 1e-2);
  CHECK(limit_on(far, "rms_ratio")->source.ends_with(".toml:2"));
  CHECK(limit_on(far, "nonfinite")->source == "derived");
  CHECK(limit_on(applied(rules, derived, chunk_of("slow_alpha")), "scaled_ulp")->value == 17);
}

TEST_CASE("every condition of a rule must hold", "[judge]") {
  Tolerances rules = Rules(R"(
[[rule]]
fixture = "mine*"
variant = "ch*"
dtype = "fp32"
tensor = "o"
against = "oracle"
scaled_ulp = "none"
rms_ratio = "exact"
reason = "all of them"
)")
                         .read();
  const auto hit = applied(rules, derived, chunk_of("mine_2"));
  CHECK(limit_on(hit, "scaled_ulp") == nullptr);
  CHECK(limit_on(hit, "rms_ratio")->value == 0);
  Compared other = chunk_of("mine_2");
  other.against = "fla_chunk";
  Compared naive = chunk_of("mine_2");
  naive.variant = "naive";
  for (const Compared& miss : {chunk_of("yours"), chunk_of("mine_2", "bf16"),
                               chunk_of("mine_2", "fp32", "final_state"), other, naive})
    CHECK(limit_on(applied(rules, derived, miss), "scaled_ulp") != nullptr);
  CHECK(rules.rules_for(chunk_of("mine_2")).size() == 1);  // also one that only drops a limit
  CHECK(rules.rules_for(chunk_of("yours")).empty());
}

TEST_CASE("a comparison with a replay keeps its limits unless a rule names it", "[judge]") {
  Tolerances any = Rules("[[rule]]\ndiffering_bits = 3\nreason = \"r\"\n").read();
  Tolerances named = Rules("[[rule]]\nagainst = \"replay\"\ndiffering_bits = 3\nreason = \"r\"\n").read();
  Compared replay = chunk_of("control");
  replay.against = "replay";
  CHECK(limit_on(applied(any, replay_limits(), replay), "differing_bits")->value == 0);
  CHECK(limit_on(applied(named, replay_limits(), replay), "differing_bits")->value == 3);
}

TEST_CASE("a rule that was for nothing is told, when its fixture was there", "[judge]") {
  Tolerances rules = Rules(R"(
[[rule]]
regime = "corr_keys"
variant = "chnk"
scaled_ulp = 50
reason = "misspelt"

[[rule]]
regime = "slow_alpha"
scaled_ulp = 50
reason = "not run"

[[rule]]
variant = "nobody"
scaled_ulp = 50
reason = "for any fixture"
)")
                         .read();
  CHECK(rules.unused().size() == 1);  // before anything ran
  rules.rules_for(chunk_of("corr_keys"));
  REQUIRE(rules.unused().size() == 2);
  CHECK(rules.unused()[0]->reason == "misspelt");
  CHECK(rules.unused()[1]->reason == "for any fixture");
}

TEST_CASE("a file of tolerances that is wrong is refused with its line", "[judge]") {
  const std::string reason = "reason = \"r\"\n";
  CHECK_THAT(refusal("[[rule]]\nscaled_ulp = 5\n"), ContainsSubstring("without a reason"));
  CHECK_THAT(refusal("[[rule]]\nscaled_ulp = 5\nreason = \"\"\n"), ContainsSubstring(".toml:3"));
  CHECK_THAT(refusal("[[rule]]\n" + reason), ContainsSubstring("without a limit"));
  CHECK_THAT(refusal("\n\n[[rule]]\nscaled_upl = 5\n" + reason), ContainsSubstring(".toml:4"));
  CHECK_THAT(refusal("[[rule]]\nscaled_upl = 5\n" + reason), ContainsSubstring("did you mean 'scaled_ulp'"));
  for (const char* const value : {"-1", "nan", "inf", "true", "\"five\"", "[1]"})
    CHECK_THAT(refusal("[[rule]]\nscaled_ulp = " + std::string(value) + "\n" + reason),
               ContainsSubstring("must be a number"));
  CHECK_THAT(refusal("[[rule]]\nvariant = 3\nscaled_ulp = 5\n" + reason),
             ContainsSubstring("must be a string"));
  CHECK_THAT(refusal("[[rule]]\ndtype = \"fp8\"\nscaled_ulp = 5\n" + reason), ContainsSubstring("no dtype"));
  CHECK_THAT(refusal("[[rule]]\nregime = \"corr_key\"\nscaled_ulp = 5\n" + reason),
             ContainsSubstring("did you mean 'corr_keys'"));
  CHECK_THAT(refusal("[rule]\nscaled_ulp = 5\n" + reason), ContainsSubstring("list of tables"));
  CHECK_THAT(refusal("version = 1\n"), ContainsSubstring("no key 'version'"));
  CHECK_THAT(refusal("\n[[rule\n"), ContainsSubstring(".toml:2"));
  CHECK_THAT(refusal("[[[rule]]]\n"), ContainsSubstring("not TOML"));
  CHECK_THAT(refusal(""), ContainsSubstring("no rules"));
  CHECK_THROWS_AS(Tolerances::read("/no/such.toml"), Error);
  CHECK_THROWS_AS(Tolerances::read("/tmp"), Error);
}

TEST_CASE("a limit that no rounded answer can meet is refused with the line of its rule", "[judge]") {
  Tolerances rules = Rules("[[rule]]\nrms_ratio = 1e-12\nreason = \"r\"\n").read();
  try {
    rules.rules_for(chunk_of("control"));
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    CHECK_THAT(error.what(), ContainsSubstring(".toml:1"));
  }
}

}  // namespace tolerances_tests
