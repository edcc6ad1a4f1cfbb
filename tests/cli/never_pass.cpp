// What shows nothing never passes: not in the exit code, not in the words of any report.
#include <cmath>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/program.hpp"
#include "support/temporary_fixture.hpp"

namespace never_pass_tests {

using namespace kda_check;
using namespace kda_check::test;

namespace {

/// Runs `words` with every report and wants no pass in any of them, exit code 1, and `reason` said.
void never_passes(const std::string& words, const std::string& reason) {
  const Folder folder;
  const auto report = [&](const char* format) {
    return " --report " + std::string(format) + "=" + (folder / format).string();
  };
  const Output output = program(words + report("json") + report("junit") + report("html") +
                                report("summary") + report("github"));
  INFO(words << "\n" << output.out << output.err);
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring(reason));
  CHECK_THAT(output.out, !ContainsSubstring("PASS"));
  CHECK_THAT(output.out, ContainsSubstring(" 0 passed"));

  const auto document = nlohmann::json::parse(read_file(folder / "json"));
  CHECK(document["summary"]["passed"] == 0);
  CHECK(document["summary"]["exit_code"] == 1);
  for (const auto& item : document["cases"]) {
    CHECK(item["verdict"] != "pass");
    for (const auto& tensor : item["tensors"]) CHECK(tensor["verdict"] != "pass");
  }
  pugi::xml_document junit;
  REQUIRE(junit.load_file((folder / "junit").c_str()));
  const pugi::xml_node suites = junit.child("testsuites");
  CHECK(suites.attribute("failures").as_uint() + suites.attribute("errors").as_uint() > 0);
  CHECK(junit.select_nodes("//testcase[not(failure or error or skipped)]").empty());
  CHECK_THAT(read_file(folder / "html"), ContainsSubstring("<title>FAIL"));
  CHECK_THAT(read_file(folder / "html"), !ContainsSubstring("PASS"));
  CHECK_THAT(read_file(folder / "summary"),
             ContainsSubstring("## ❌ kda-check ") && !ContainsSubstring("PASS"));
  const std::string annotations = read_file(folder / "github");
  CHECK((annotations.find("::error ") != std::string::npos ||
         annotations.find("::warning ") != std::string::npos));
}

/// A recorded answer, right to the last bit of fp32 until somebody spoils it.
struct Recorded {
  kda::Problem problem = make_problem({});
  kda::Answer answer = run(problem, "recurrent", numeric::DType::fp32);
};

}  // namespace

TEST_CASE("a run in which nothing ran never passes", "[cli][never]") {
  never_passes("run tails:T=17 --variant recurrent --dtype fp64 --arithmetic exponential=cuda", "SKIPPED");
  never_passes("run tails:T=17 --variant recurrent --oracle none", "0 comparisons");
  CHECK(program("explain tails:T=17 --only growth --variant recurrent --dtype fp64 "
                "--arithmetic exponential=cuda")
            .code != 0);
  const Output suite = shell(
      "cd /tmp && : > kda-check-empty.txt && $KDA run @kda-check-empty.txt; code=$?; "
      "rm kda-check-empty.txt; exit $code");
  CHECK(suite.code == 3);
  CHECK_THAT(suite.err, ContainsSubstring("has no lines"));
}

TEST_CASE("a device that is missing never passes", "[cli][never][gpu]") {
  const std::string reason = kda::variant_named("gpu-recurrent").unavailable();
  if (reason.empty()) KDA_CHECK_SKIP("there is a GPU here");
  never_passes("run tails:T=17 --variant gpu-recurrent,gpu-chunk", "SKIPPED gpu-recurrent fp32: " + reason);
  // Nor do the recorded answers of a file make up for it.
  const Output recorded = program("run " + small + " --variant gpu-recurrent");
  CHECK(recorded.code == 1);
  CHECK_THAT(recorded.err,
             ContainsSubstring("gpu-recurrent answered nothing: skipped everywhere: " + reason));
  CHECK(program("run " + small + " --variant gpu-recurrent --report github").code == 1);
  // Nor does one that is there; where nobody named it it is a line, and with --require no run at all.
  const Output beside = program("run " + small + " --variant recurrent,gpu-recurrent --against oracle");
  CHECK(beside.code == 1);
  CHECK_THAT(beside.out, ContainsSubstring("SKIPPED gpu-recurrent") && ContainsSubstring("1 skipped"));
  CHECK(program("run " + small + " --against oracle").code == 0);
  CHECK(program("run " + small + " --require gpu").code == 4);
}

TEST_CASE("a tensor that no limit says anything about never passes", "[cli][never]") {
  const std::string run = "run tails:T=17 --variant recurrent --limit ";
  never_passes(run + "rms_ratio=none --limit scaled_ulp=none", "no limit applies but nonfinite");
  // Without an oracle there are no magnitudes to count scaled_ulp by.
  never_passes("run " + small + on_cpu + " --oracle none --limit rms_ratio=none --limit scaled_ulp=1e3",
               "no limit applies but nonfinite");
  const Output infinite = program(run + "rms_ratio=inf --limit scaled_ulp=inf");
  CHECK(infinite.code == 2);
  CHECK_THAT(infinite.err, ContainsSubstring("'inf' is not a number >= 0"));

  const Recorded recorded;
  const TemporaryFixture with(recorded.problem, &recorded.answer, "with"),
      without(recorded.problem, nullptr, "without");
  never_passes("diff " + with.path + " " + without.path + " --tensor o,final_state", "only in");
}

TEST_CASE("a recorded answer of which the options leave nothing does not pass by our own answers",
          "[cli][never]") {
  const kda::Problem problem = with_loss(make_problem({}));
  tensor::Tensor o("o", numeric::DType::fp32, problem.v.shape());
  for (std::size_t i = 0; i < o.size(); ++i) o.set(i, 0);
  const TemporaryFixture file(problem, {&o}, numeric::ComputeFormat::fp32, "zeros"),
      other(problem, {&o}, numeric::ComputeFormat::fp32, "other");
  const std::pair<const char*, const char*> left_out[] = {
      {"--dtype bf16", "--dtype bf16 rounds the inputs that it answers"},
      {"--tensor final_state", "--tensor final_state leaves out all it has"},
      {"--backward", "--backward leaves out all it has"},
      {"--tensor dq,dk --recorded somebody", "--tensor dq,dk leaves out all it has"}};
  for (const auto& [words, why] : left_out) {
    const std::string run = "run " + file.path + on_cpu + " --against oracle ";
    const Output output = program(run + words + " --json");
    INFO(words << "\n" << output.err);
    CHECK(output.code == 1);
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring("nothing of expected/somebody is judged: " + std::string(why)) &&
                               ContainsSubstring(file.path));
    const auto document = nlohmann::json::parse(output.out);
    CHECK(document["summary"]["outcome"] == "fail");
    CHECK(document["summary"]["passed"] > 0);  // ours
    REQUIRE(document["errors"].size() == 1);
    CHECK(document["errors"][0]["exit_code"] == 1);
    CHECK(document["errors"][0]["path"] == file.path);
  }
  const Output beside =
      program("run " + file.path + " --variant none --recorded somebody --against somebody");
  CHECK(beside.code == 1);
  CHECK_THAT(beside.err, ContainsSubstring("--against somebody compares variants and programs") &&
                             ContainsSubstring("kda-check diff FILE:A FILE:B"));
  CHECK(lines(program("run " + file.path + " " + other.path + on_cpu + " --dtype bf16").err) == 2);
  CHECK(program("run " + file.path + on_cpu + " --dtype bf16 --recorded none").code == 0);
}

TEST_CASE("a tensor that is NaN on both sides never passes", "[cli][never]") {
  for (const std::size_t how_many : {std::size_t{1}, std::size_t{0}}) {
    Recorded recorded;
    for (tensor::Tensor* const tensor : {&recorded.answer.o, &recorded.answer.final_state})
      for (std::size_t i = 0; i < (how_many == 0 ? tensor->size() : how_many); ++i)
        tensor->set(i, std::nan(""));
    const TemporaryFixture a(recorded.problem, &recorded.answer, "a"),
        b(recorded.problem, &recorded.answer, "b");
    never_passes("diff " + a.path + ":somebody " + b.path + ":somebody", "both sides are NaN at");
  }
  // Inputs that make everything NaN: no oracle can tell.
  Recorded poisoned;
  poisoned.problem.v.set(0, std::nan(""));
  poisoned.problem.k.set(0, std::nan(""));
  const TemporaryFixture file(poisoned.problem);
  never_passes("run " + file.path + on_cpu, "the oracle is not finite at");
}

TEST_CASE("a tensor compared with itself never passes, by whatever name", "[cli][never]") {
  const Recorded recorded;
  const TemporaryFixture file(recorded.problem, &recorded.answer, "itself");
  const fs::path soft = file.path + ".soft.h5", hard = file.path + ".hard.h5", copy = file.path + ".copy.h5";
  fs::create_symlink(file.path, soft);
  fs::create_hard_link(file.path, hard);
  fs::copy_file(file.path, copy);
  for (const std::string& other :
       {file.path, soft.string(), hard.string(),
        fs::path(file.path).parent_path().string() + "/./" + fs::path(file.path).filename().string()}) {
    never_passes("diff " + file.path + " " + other, "compared with itself");
    never_passes("diff " + file.path + ":somebody " + other + ":somebody", "compared with itself");
  }
  CHECK(program("diff " + file.path + " " + copy.string()).code == 0);  // another file may be equal
  for (const fs::path& path : {soft, hard, copy}) fs::remove(path);
}

}  // namespace never_pass_tests
