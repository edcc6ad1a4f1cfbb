// --require and --against replay through the program, on machines with a GPU and without.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace requirements_tests {

namespace fs = std::filesystem;
using namespace kda_check;
using namespace kda_check::test;

namespace {

std::string gpu_is_missing() { return kda::variant_named("gpu-recurrent").unavailable(); }

}  // namespace

TEST_CASE("a GPU that is required and missing is one line and exit code 4, before anything runs",
          "[cli][gpu]") {
  const std::string reason = gpu_is_missing();
  if (reason.empty()) KDA_CHECK_SKIP("there is a GPU here");
  const Folder folder;
  std::ofstream(folder / "mine.txt")
      << "onehot_exact:T=20 --variant chunk\nonehot_exact:T=20 --require gpu\n";
  for (const std::string& words :
       {"run " + small + " --require gpu", "run " + small + " --variant chunk --require gpu --json",
        std::string("run @smoke --require gpu"), "run @" + (folder / "mine.txt").string(),
        "explain " + small + " --require gpu"}) {
    const Output output = program(words);
    INFO(words << ": " << output.err);
    CHECK(output.code == 4);
    CHECK(output.out.empty());
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring("--require gpu: gpu-recurrent: " + reason));
  }
  const Output named = program("run onehot_exact:T=20 --variant gpu-chunk");
  CHECK(named.code == 1);
  CHECK_THAT(named.out, ContainsSubstring("SKIPPED gpu-chunk fp32: " + reason));
  const Output growth = program("explain " + small + " --only growth --variant gpu-chunk,recurrent");
  CHECK_THAT(growth.out, ContainsSubstring("skipped: gpu-chunk fp32: " + reason));
  const Output replay = program("run " + small + " --against replay");
  CHECK(replay.code == 2);
  CHECK_THAT(replay.err, ContainsSubstring(reason));
}

TEST_CASE("a probe of a GPU that is missing lists the devices, and is one line and exit code 4",
          "[cli][gpu]") {
  const std::string reason = gpu_is_missing();
  if (reason.empty()) KDA_CHECK_SKIP("there is a GPU here");
  const Output output = program("list devices --probe");
  CHECK(output.code == 4);
  CHECK(lines(output.err) == 1);
  CHECK_THAT(output.err, ContainsSubstring("--probe needs a GPU: " + reason));
  CHECK_THAT(output.out, ContainsSubstring("cpu") && !ContainsSubstring("mma"));
  const auto document = nlohmann::json::parse(program("list devices --probe --json").out);
  CHECK(document["errors"][0]["exit_code"] == 4);
  CHECK(!document.contains("models"));
  CHECK(program("list --probe").code == 4);  // devices are among all sections
  const Output elsewhere = program("list variants --probe");
  CHECK(elsewhere.code == 2);
  CHECK_THAT(elsewhere.err, ContainsSubstring("hint: kda-check list devices --probe"));
}

TEST_CASE("a GPU that is required and there must have answered", "[cli][gpu]") {
  if (!gpu_is_missing().empty()) KDA_CHECK_SKIP("no GPU here: " + gpu_is_missing());
  const Output run =
      program("run " + small +
              " --require gpu --variant gpu-recurrent --recorded none --against oracle,replay --json");
  CHECK(run.code == 0);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["cases"].size() == 2);
  for (const auto& item : document["cases"]) CHECK(item["device"] != "gpu");  // its name
  for (const char* const command : {"run ", "explain --only growth "}) {
    const Output none = program(command + small + " --require gpu --variant recurrent");
    CHECK(none.code == 4);
    CHECK_THAT(none.err, ContainsSubstring("no variant of the gpu is selected"));
  }
}

TEST_CASE("an answer that is required and that nobody gives fails, whatever else passes", "[cli]") {
  for (const char* const command : {"run", "explain --only faults"}) {
    const Output output = program(std::string(command) + " " + small + " --require fla_chnk");
    INFO(command << ": " << output.err);
    CHECK(output.code == 1);
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring("--require fla_chnk: nobody of that name is to answer"));
    CHECK_THAT(output.err, ContainsSubstring("recorded there: fla_chunk, fla_recurrent, torch_fp64"));
  }
  CHECK(program("run " + small + " --require fla_chunk,chunk").code == 0);
}

TEST_CASE("an oracle that was to run on a GPU runs on the CPU with a word about it", "[cli][gpu]") {
  if (gpu_is_missing().empty()) KDA_CHECK_SKIP("there is a GPU here");
  const std::string words = "run " + small + " --variant recurrent --recorded none --against oracle --json";
  const Output asked = program(words + " --oracle-device gpu"), usual = program(words);
  CHECK(asked.code == 0);
  CHECK(lines(asked.err) == 1);
  CHECK_THAT(asked.err, ContainsSubstring("the oracle runs on the CPU: " + gpu_is_missing()));
  CHECK(usual.err.empty());
  for (const Output* const output : {&asked, &usual})
    for (const auto& item : nlohmann::json::parse(output->out)["cases"])
      CHECK(item["oracle_device"] == "cpu");
}

TEST_CASE("the program finds the same with the oracle on either device", "[cli][gpu]") {
  if (!gpu_is_missing().empty()) KDA_CHECK_SKIP("no GPU here: " + gpu_is_missing());
  const auto cases_of = [](const char* device) {
    auto cases =
        nlohmann::json::parse(program("run " + small + " --json --oracle-device " + device).out)["cases"];
    for (auto& item : cases) {
      CHECK((item["oracle_device"] == "cpu") == (device == std::string("cpu") || item["pass"] == "backward"));
      item.erase("oracle_device"), item.erase("repro");
    }
    return cases;
  };
  CHECK(cases_of("cpu") == cases_of("gpu"));
}

}  // namespace requirements_tests
