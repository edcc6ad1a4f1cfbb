// run --tolerance: limits from a file, under those of the command line.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace tolerances_tests {

using namespace kda_check::test;

namespace {

nlohmann::json limit(const Output& output, const std::string& metric) {
  const auto document = nlohmann::json::parse(output.out);
  for (const auto& item : document["cases"][0]["tensors"][0]["limits"])
    if (item["metric"] == metric) return item;
  return nullptr;
}

}  // namespace

TEST_CASE("a limit comes from the derived ones, then the tolerances, then the command line", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "t.toml").string();
  std::ofstream(path)
      << "[[rule]]\nregime = \"tails\"\nscaled_ulp = 40\nrms_ratio = 1e-3\nreason = \"because\"\n";
  const std::string words = "run tails:T=17 --variant recurrent --json --tolerance " + path;
  const Output ruled = program(words), limited = program(words + " --limit scaled_ulp=50");
  CHECK(limit(ruled, "scaled_ulp")["value"] == 40);
  CHECK(limit(ruled, "scaled_ulp")["source"] == path + ":1");
  CHECK(limit(ruled, "nonfinite")["source"] == "derived");
  CHECK(limit(limited, "scaled_ulp")["value"] == 50);
  CHECK(limit(limited, "scaled_ulp")["source"] == "command line");
  CHECK(limit(limited, "rms_ratio")["source"] == path + ":1");
  const Output text = program("run tails:T=17 --variant recurrent --tolerance " + path);
  CHECK_THAT(text.out, ContainsSubstring("scaled_ulp 7.4 %*"));
  CHECK_THAT(text.out, ContainsSubstring(path + ":1: because"));
  CHECK_THAT(text.out, ContainsSubstring("* limit from " + path + ":1;"));
}

TEST_CASE("a rule that matches nothing fails a run that selects nothing", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "t.toml").string();
  std::ofstream(path)
      << "\n[[rule]]\nregime = \"tails\"\nvariant = \"chnk\"\nscaled_ulp = 40\nreason = \"r\"\n";
  const Output output = program("run tails:T=17 --tolerance " + path);
  CHECK(output.code == 1);
  CHECK_THAT(output.err, ContainsSubstring("matched nothing (" + path + ":2)"));
  CHECK(lines(output.err) == 1);
  CHECK(program("run tails:T=17 --variant recurrent --tolerance " + path).code == 0);
  CHECK(program("run gva --tolerance " + path).code == 0);  // not about the target
  std::ofstream(path) << "[[rule]]\nscaled_ulp = 40\n";
  CHECK(program("run tails:T=17 --tolerance " + path).code == 3);
}

}  // namespace tolerances_tests
