// Suites and the commands beside run and diff, through the program.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/sampled.hpp"
#include "support/temporary_fixture.hpp"

namespace commands_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

TEST_CASE("diff of a missing file still prints its document", "[cli]") {
  const Output output = program("diff " + small + " /no/such.h5 --json");
  CHECK(output.code == 3);
  CHECK(lines(output.err) == 1);
  CHECK(nlohmann::json::parse(output.out)["errors"][0]["exit_code"] == 3);
}

TEST_CASE("the smoke suite passes from any folder", "[cli]") {
  const Output output = shell("cd / && $KDA run @smoke -q");
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  CHECK_THAT(output.out, ContainsSubstring(" 0 failed, 0 inconclusive, 0 skipped"));
}

TEST_CASE("what a pull request is held to passes, the same on one thread and on two, whole and in part",
          "[cli]") {
  const auto run = [](const std::string& options) {
    const Output output = program("run @ci --json" + options);
    INFO(options << ": " << output.out.substr(0, 2000) << output.err);
    CHECK(output.code == 0);
    return nlohmann::json::parse(output.out)["cases"];
  };
  const auto whole = run(" --threads 2");
  std::set<std::string> dtypes;
  for (const auto& item : whole) {
    dtypes.insert(item["dtype"]);
    if (item["device"] == "cpu") CHECK(item["verdict"] == "pass");
  }
  CHECK(dtypes == std::set<std::string>{"bf16", "fp16", "fp32", "fp64"});
  std::map<std::uint64_t, nlohmann::json> by_number;
  for (const auto& item : whole) by_number[item["number"]] = item;
  const kda_check::test::Sampled sample(6);
  INFO(sample.text());
  for (std::size_t part = 0; part < 6; ++part)
    if (sample.has(part))
      for (const auto& item : run(" --threads 1 --shard " + std::to_string(part + 1) + "/6"))
        CHECK(by_number.at(item["number"]) == item);
}

TEST_CASE("make writes a regime as a file that runs, shows and diffs", "[cli][make]") {
  const Folder folder;
  const std::string one = (folder / "one.h5").string(), two = (folder / "two.h5").string();
  const Output made = program("make k3_layer1:T=20,seed=2 -o " + one);
  CHECK(made.code == 0);
  CHECK(made.err.empty());
  CHECK_THAT(made.out, ContainsSubstring("B=1 T=20 H=2 K=128 V=128"));
  CHECK(program("run " + one).code == 0);
  CHECK_THAT(program("show " + one + " --headers").out,
             ContainsSubstring("\n  regime ") && ContainsSubstring("k3_layer1\n"));
  CHECK(program("make k3_layer1:seed=2,T=20 -o " + two).code == 0);
  CHECK(program("diff " + one + " " + two).code == 0);
  CHECK(program("make k3_layer1:seed=3,T=20 -o " + two).code == 0);
  CHECK(program("diff " + one + " " + two).code == 1);
}

TEST_CASE("make and capture write over no recorded answers by accident", "[cli][make]") {
  const Folder folder;
  const std::string file = (folder / "a.h5").string(), text = (folder / "notes.h5").string();
  fs::copy_file(small, file);
  std::ofstream(text) << "no fixture";
  for (const std::string& words :
       {"make control:T=2 -o " + file, "capture control:T=2 --variant naive -o " + file}) {
    const Output output = program(words);
    INFO(words << ": " << output.err);
    CHECK(output.code == 2);
    CHECK_THAT(output.err, ContainsSubstring("holds recorded outputs, which would be lost; hint: --replace"));
    CHECK(read_file(file) == read_file(small));
  }
  CHECK(program("make control:T=2 -o " + text).code == 2);
  CHECK(program("make control:T=2 -o " + file + " --replace").code == 0);
  CHECK(program("make control:T=3 -o " + file).code == 0);  // nothing recorded is in it
}

TEST_CASE("make leaves nothing behind where it cannot write", "[cli][make]") {
  const Folder folder;
  const Output missing = program("make control:T=2 -o " + (folder / "no").string() + "/x.h5");
  CHECK(missing.code == 4);
  CHECK(lines(missing.err) == 1);
  const Output is_folder = program("make control:T=2 -o " + (folder / ".").string());
  CHECK(is_folder.code == 4);
  CHECK(lines(is_folder.err) == 1);
  CHECK(folder.entries() == 0);
}

TEST_CASE("growth is a table with bars, or JSON", "[cli]") {
  const std::string words = "explain " + small + " --only growth --window 8 --variant recurrent";
  const Output plain = shell("LC_ALL=C $KDA " + words);
  CHECK(plain.code == 0);
  CHECK(plain.err.empty());
  CHECK_THAT(plain.out, ContainsSubstring("8 windows of 8 tokens"));
  CHECK_THAT(plain.out, ContainsSubstring("  11111111\n"));  // a flat error, in digits
  CHECK_THAT(shell("LC_ALL=C.UTF-8 $KDA " + words).out, ContainsSubstring("▁▁▁▁▁▁▁▁"));
  const auto document = nlohmann::json::parse(program(words + " --json").out);
  CHECK(document["growth"][0]["windows"]["rms_ratio"].size() == 8);
  CHECK(program(words + " --json=" + small).code == 2);  // never over a fixture
}

TEST_CASE("show and list print what is there", "[cli]") {
  const Output show = program("show " + small);
  CHECK(show.code == 0);
  CHECK_THAT(show.out, ContainsSubstring("expected/fla_chunk/o ") && ContainsSubstring("\n  fla_chunk  "));
  CHECK_THAT(show.out, ContainsSubstring("inputs/initial_state"));
  CHECK_THAT(show.out, ContainsSubstring("note: backward: "));
  const auto shown = nlohmann::json::parse(program("show " + small + " --json").out);
  CHECK(shown["answers"][0]["name"] == "fla_chunk");
  CHECK(shown["answers"][0]["compute"] == "tf32");
  const Output list = program("list");
  CHECK(list.code == 0);
  for (const char* const word : {"recurrent", "forward backward", "scaled_ulp", "anchor-mid:16", "json",
                                 "@smoke", "@hazards", "corr_keys"})
    CHECK_THAT(list.out, ContainsSubstring(word));
}

TEST_CASE("show has the rms of tensors whose squares no double holds", "[cli]") {
  const auto sizes = [](double of_k, double of_v) {
    kda_check::kda::Problem problem = make_problem({.dtype = kda_check::numeric::DType::fp64});
    for (std::size_t i = 0; i < problem.k.size(); ++i) problem.k.set(i, of_k * problem.k.value(i));
    for (std::size_t i = 0; i < problem.v.size(); ++i) problem.v.set(i, of_v * problem.v.value(i));
    const TemporaryFixture file(problem, nullptr, "sizes");
    std::map<std::string, double> rms;
    const auto shown = nlohmann::json::parse(program("show " + file.path + " --json").out);
    for (const auto& tensor : shown["tensors"])
      if (tensor["rms"].is_number()) rms[tensor["tensor"]] = tensor["rms"];
    return std::pair{rms.at("inputs/k"), rms.at("inputs/v")};
  };
  const auto [k, v] = sizes(1, 1);
  CHECK(k > 0);
  CHECK(v > 0);
  CHECK(sizes(0x1p700, 0x1p-730) == std::pair{0x1p700 * k, 0x1p-730 * v});
}

TEST_CASE("explain says what overflows, and exits with 1 when that was selected", "[cli]") {
  const std::string file = kda_check::test::case_fixtures() + "/fla_bf16_prefill.h5 --only overflow";
  const Output safe = program("explain " + file);
  CHECK(safe.code == 0);
  CHECK(safe.err.empty());
  CHECK_THAT(safe.out, ContainsSubstring("SAFE: decay=anchor-mid:16: safe, margin"));
  CHECK_THAT(safe.out, ContainsSubstring("\n    anchor-first:16  safe, margin"));
  CHECK_THAT(safe.out, ContainsSubstring("\n      doubling:64 "));
  CHECK(program("explain " + file + " --threads 3").out == safe.out);

  const Output breaks =
      program("explain " + file + " --json --arithmetic decay=factored:32,storage=fp16@exponentials");
  CHECK(breaks.code == 1);
  const auto document = nlohmann::json::parse(breaks.out);
  CHECK(document["summary"]["exit_code"] == 1);
  REQUIRE(document["forecasts"].size() == 1);
  const auto forecast = document["forecasts"][0];
  CHECK(forecast["outlook"] == "breaks");
  CHECK(forecast["verdict"] == "fail");
  CHECK(forecast["selected_decay"] == "factored:32");
  for (const auto& form : forecast["decay"])
    if (form["form"] == "factored:32")
      CHECK_THAT(form["overflow"].get<std::string>(), ContainsSubstring("chunk 0 row"));
  CHECK(forecast["decay"].size() == 23);
  CHECK(forecast["inverse"].size() == 22);
  CHECK(forecast["heads"].size() == 1);

  CHECK(program("explain " + file + " --arithmetic decay=anchor").code == 2);
  CHECK(program("explain missing.h5 --only overflow").code == 3);
  // Of another variant in chunks, too; of none there is nothing to say.
  CHECK_THAT(program("explain " + file + " --variant gpu-chunk").out,
             ContainsSubstring("forecast of gpu-chunk in bf16"));
  CHECK(program("explain " + file + " --variant naive").code == 1);
  CHECK_THAT(program("explain column_beta:T=16 --only overflow").out, ContainsSubstring("no chunk form"));
}

TEST_CASE("explain names the computation of an output, what it cannot tell apart and what its roundings cost",
          "[cli]") {
  const Output named = program("explain " + small + " --recorded fla_chunk");
  INFO(named.out << named.err);
  CHECK(named.code == 0);
  CHECK_THAT(named.out, ContainsSubstring("fla_chunk, fp32: PASS - every bit is chunk under fla") &&
                            ContainsSubstring("what its settings cost") && ContainsSubstring("tf32@"));
  const Output json = program("explain " + small + " --recorded fla_chunk,torch_fp64 --json");
  const auto explained = nlohmann::json::parse(json.out)["explained"];
  REQUIRE(!explained.empty());
  CHECK(explained[0]["identity"] == "identified");
  CHECK(explained[0]["differing"] == 0);
  for (const auto& item : explained) CHECK(item["output"] == "fla_chunk");  // in fp64 nothing is told apart
  CHECK(program("explain " + small + " --recorded nobody").code == 2);
  CHECK(program("explain missing.h5").code == 3);
}

TEST_CASE("explain says what makes the difference of two outputs, and which settings to make finer first",
          "[cli]") {
  const Output json = program("explain " + small + " --between fla_chunk,chunk+ieee --advise --json");
  INFO(json.out << json.err);
  REQUIRE(json.code == 0);
  const auto document = nlohmann::json::parse(json.out);
  REQUIRE(document["explained"].size() == 1);  // a variant is itself
  REQUIRE(document["between"].size() == 1);
  const auto& between = document["between"][0];
  double sum = 0;
  std::vector<std::string> settings;
  for (const auto& step : between["steps"])
    sum += step["share"].get<double>(), settings.push_back(step["setting"]);
  CHECK(sum == Approx(1).epsilon(1e-9));
  CHECK(between["left"] == Approx(0).margin(1e-12));
  CHECK(std::ranges::find_if(settings, [](const std::string& setting) {
          return setting.starts_with("tf32@");
        }) != settings.end());
  const auto& advice = document["explained"][0]["advice"];
  REQUIRE(!advice.empty());
  CHECK(advice[0]["better"] == advice[0]["together"]);
  for (const auto& step : advice) CHECK(step["better"] >= 1.05);
  const Output text = program("explain " + small + " --between chunk+ieee,fla_chunk");
  CHECK_THAT(text.out, ContainsSubstring("from fla_chunk to chunk+ieee: PASS - ") &&
                           ContainsSubstring(" of the difference") && ContainsSubstring("instead of"));
}

TEST_CASE("explain --between refuses what are not two outputs in one line", "[cli]") {
  for (const auto& [words, said] : std::initializer_list<std::pair<const char*, const char*>>{
           {"fla_chunk", "--between takes two outputs"},
           {"fla_chunk,chunk,naive", "--between takes two outputs"},
           {"fla_chunk,fla_chunk", "--between takes two outputs, and fla_chunk is one"},
           {"fla_chunk,nobody", "no fixture has a group expected/nobody"},
           {"fla_chunk,chunk+nothing", "nothing"},
           {"fla_chunk,chunk --recorded fla_chunk", "--between names its outputs itself"}}) {
    const Output output = program("explain " + small + " --between " + words);
    INFO(words << ": " << output.err);
    CHECK(output.code == 2);
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring(said));
  }
}

TEST_CASE("options of one section of explain are refused where it is not asked for", "[cli]") {
  const std::pair<const char*, const char*> wrong[] = {
      {"--window 8", "--only growth"},
      {"--only bits --advise", "--only shares"},
      {"--only overflow --recorded fla_chunk", "--only bits, or --only shares, or --only growth"},
      {"--variant chunk", "--only growth, or --only overflow"},
      {"--only faults,growth --between fla_chunk,chunk", "--only bits, or --only shares"},
      {"--only fault", "did you mean 'faults'?"}};
  for (const auto& [options, hint] : wrong) {
    const Output output = program("explain " + small + " " + options);
    INFO(options << ": " << output.err);
    CHECK(output.code == 2);
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring(hint));
  }
}

TEST_CASE("power says how large a fault must be, by twins and by limits", "[cli]") {
  const Output text = program("power control:T=130,H=2,K=32,V=32 --class bf16,tf32");
  CHECK(text.code == 0);
  CHECK_THAT(text.out, ContainsSubstring("power over o, bf16, 6 twins: PASS\n"));
  CHECK_THAT(text.out, ContainsSubstring("power over o, tf32, 6 twins: PASS\n"));
  CHECK_THAT(text.out, ContainsSubstring("\n      one chunk of one head "));
  CHECK_THAT(text.out, ContainsSubstring("note: bf16: inputs rounded to it first"));
  const auto document =
      nlohmann::json::parse(program("power control:T=130,H=2,K=32,V=32 --class bf16 --json").out);
  REQUIRE(document["power"].size() == 1);
  const auto power = document["power"][0];
  CHECK(power["class"] == "bf16");
  CHECK(power["verdict"] == "pass");
  CHECK(power["floors"].size() == 10);
  CHECK(power["known"].size() > 40);
  for (const auto& floor : power["floors"])
    CHECK(floor["by_twins"].get<double>() < floor["by_limits"].get<double>());

  const Output unknown = program("power control:T=20 --class bf17");
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, ContainsSubstring("--class bf17: no such class"));
  const Output wide = program("power control:T=20 --class fp64");
  CHECK(wide.code == 2);
  CHECK_THAT(wide.err, ContainsSubstring("--class fp64: there are no twins in fp64"));
  CHECK(lines(wide.err) == 1);
  CHECK(program("power control:T=20 --tensor dq").code == 2);
  CHECK(program("power @smoke").code == 2);
  CHECK(program("power missing.h5").code == 3);
  CHECK_THAT(program("power control:T=20,H=1 --memory-limit 100K").err, ContainsSubstring("--memory-limit"));
}

TEST_CASE("help lists the commands in a straight column, and growth counts one of a kind", "[cli]") {
  std::istringstream help(program("--help").out);
  std::size_t commands = 0, column = 0;
  for (std::string line; std::getline(help, line);) {
    if (!line.starts_with("  ")) continue;
    const std::size_t name_end = line.find(' ', 2), summary = line.find_first_not_of(' ', name_end);
    if (commands++ == 0) column = summary;
    CHECK(summary == column);
  }
  CHECK(commands > 1);
  for (const char* const command : {"run", "explain", "power"})
    CHECK_THAT(program(std::string(command) + " --help").out, ContainsSubstring("list regimes"));
  const Output one = program("explain onehot_exact:T=20 --only growth --variant recurrent");
  CHECK_THAT(one.out, ContainsSubstring(", 1 window of 64 tokens\n"));
  CHECK_THAT(program("run control:T=4 --variant recurrent").out,
             ContainsSubstring("1 fixture, 1 comparison of 2 tensors"));
}

}  // namespace commands_tests
