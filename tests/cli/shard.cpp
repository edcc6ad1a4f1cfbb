// --shard: the parts of a run, through the program.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace shard_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

namespace {

using Cases = std::multiset<std::string>;

/// What was compared, with its number in the whole and with which verdict and figures, without where the
/// files and the suite are.
Cases cases_of(const std::string& words, const std::string& here = "") {
  const Output output = here.empty() ? program("run " + words + " --json")
                                     : shell("cd " + here + " && $KDA run " + words + " --json");
  INFO(words << ": " << output.err);
  REQUIRE(output.code == 0);
  Cases cases;
  const auto document = nlohmann::json::parse(output.out);
  for (const auto& item : document["cases"]) {
    nlohmann::json known = item;
    for (const char* const where : {"path", "place", "repro"}) known.erase(where);
    cases.insert(known.dump());
  }
  return cases;
}

std::string shard(std::size_t index, std::size_t count) {
  return std::string(" --shard ").append(std::to_string(index)).append("/").append(std::to_string(count));
}

std::string mine(const fs::path& folder) { return std::string("@").append((folder / "mine.txt").string()); }

/// Writes mine.txt there: regimes and a folder of fixtures, small enough to run often. Returns the folder.
fs::path suite_in(const fs::path& folder) {
  fs::create_directories(folder / "files");
  fs::copy_file(small, folder / "files/a.h5");
  fs::copy_file(case_fixtures() + "/fla_fp16_c32.h5", folder / "files/b.h5");
  std::ofstream(folder / "mine.txt")
      << "control:T=4,H=1 control:T=5,H=1 control:T=6,H=1 --variant recurrent\n"
         "control:T=4,H=1 control:T=5,H=1 --variant recurrent --dtype fp64\n"
         "control:T=4,H=1 control:T=4,H=1 --variant naive\n"
         "files --variant recurrent\n";
  return folder;
}

}  // namespace

TEST_CASE("a shard depends on what is written, not on where it lies or on who runs it", "[cli][shard]") {
  const Folder folder;
  const fs::path here = folder / "here", there = folder / "there";
  suite_in(here);
  suite_in(there);
  for (const std::size_t index : {1u, 2u}) {
    const std::string part = shard(index, 2);
    const Cases cases = cases_of(mine(here) + part);
    CHECK(cases == cases_of(mine(there) + part));
    CHECK(cases == cases_of("@./mine.txt" + part, here.string()));
    CHECK(cases == cases_of(mine(here) + part + " --threads 1 --worst 5"));
  }
}

TEST_CASE("an empty shard of something passes with one line, and a shard of nothing does not",
          "[cli][shard]") {
  const std::string words = "run control:T=4,H=1 --variant naive";
  std::size_t empty = 0;
  for (const std::size_t index : {1u, 2u}) {
    const Output output = program(words + shard(index, 2));
    CHECK(output.code == 0);
    if (output.out.find("nothing to do") == std::string::npos) continue;
    ++empty;
    CHECK(lines(output.out) == 1);
    CHECK_THAT(output.out, ContainsSubstring("has none of the 1 cases"));
    const auto document = nlohmann::json::parse(program(words + shard(index, 2) + " --json").out);
    CHECK(document["summary"]["exit_code"] == 0);
    CHECK(document["summary"]["passed"] == 0);
    CHECK_THAT(document["nothing_to_do"].get<std::string>(), ContainsSubstring("shard"));
    // What nobody is to answer in any part is missed in every part.
    CHECK(program(words + shard(index, 2) + " --require nothing").code == 1);
  }
  CHECK(empty == 1);
  CHECK(program("run --shard 1/2").code == 2);
  const Folder folder;
  std::ofstream(folder / "n.txt") << "control:T=4,H=1 --variant naive --dtype fp32\n";
  for (const char* const part : {"", " --shard 1/2", " --shard 2/2"})
    CHECK(program("run @" + (folder / "n.txt").string() + " --dtype fp64" + part).code == 1);
  CHECK(program("run " + (folder / ".").string() + " --shard 1/2").code == 2);
}

TEST_CASE("a shard that is empty passes beside a baseline that is about the other shards", "[cli][shard]") {
  const Folder folder;
  const std::string words = "run control:T=4,H=1 --variant naive --baseline " + (folder / "b.tsv").string();
  REQUIRE(program(words + " --update-baseline").code == 0);
  for (const std::size_t index : {1u, 2u}) {
    const Output output = program(words + shard(index, 2));
    INFO(output.out << output.err);
    CHECK(output.code == 0);
    CHECK(output.err.empty());
  }
}

}  // namespace shard_tests
