// merge: the reports of the shards of one run are the report of the run.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

using namespace kda_check::test;
using nlohmann::json;

namespace {

const std::string targets = "run control:T=4,H=1 control:T=5,H=1 control:T=6,H=1 --variant naive,recurrent";

/// Writes the JSON of each of `count` shards; their paths, with blanks between.
std::string parts(const Folder& folder, std::size_t count, const std::string& words = targets) {
  std::string paths;
  for (std::size_t index = 1; index <= count; ++index) {
    const std::string path = (folder / ("part" + std::to_string(index) + ".json").c_str()).string();
    program(words + " --shard " + std::to_string(index) + "/" + std::to_string(count) + " -q --json " + path);
    paths += " " + path;
  }
  return paths;
}

}  // namespace

TEST_CASE("the reports of all shards merge into that of the whole, with the words of the merge",
          "[cli][merge]") {
  const Folder folder;
  const Output whole = program("merge" + parts(folder, 3) + " --json");
  INFO(whole.err);
  CHECK(whole.code == 0);
  json merged = json::parse(whole.out), alone = json::parse(program(targets + " --json").out);
  CHECK(merged["request"]["command"] == "run");  // history reads it as such
  CHECK(merged["request"]["argv"][0] == "merge");
  CHECK(merged["request"]["argv"][3] == (folder / "part3.json").string());
  for (json* const document : {&merged, &alone}) document->erase("request");
  CHECK(merged == alone);
  CHECK(program("merge" + parts(folder, 3)).out == program(targets).out);
}

TEST_CASE("a merged report is held against others by history, and merged no further", "[cli][merge]") {
  const Folder folder;
  const std::string one = (folder / "one.json").string(), merged = (folder / "merged.json").string();
  REQUIRE(program(targets + " -q --json " + one).code == 0);
  REQUIRE(program("merge" + parts(folder, 2) + " -q --json " + merged).code == 0);
  CHECK(program("history " + one + " " + merged).code == 0);
}

TEST_CASE("the exit code of merge is that of the run, and failures are said", "[cli][merge]") {
  const Folder folder;
  CHECK(program("merge" + parts(folder, 2, targets + " --limit scaled_ulp=0.5")).code == 1);
  const Output unread = program("merge" + parts(folder, 2, targets + " /no/such.h5"));
  CHECK(unread.code == 3);
  CHECK(lines(unread.err) == 1);
  CHECK_THAT(unread.err, ContainsSubstring("/no/such.h5"));
}

TEST_CASE("parts that are not the whole exactly once are refused", "[cli][merge]") {
  const Folder folder;
  parts(folder, 3);
  const std::string one = " " + (folder / "part1.json").string(),
                    two = " " + (folder / "part2.json").string(),
                    three = " " + (folder / "part3.json").string(),
                    other = " " + (folder / "x.json").string();
  const auto refused = [](const std::string& words, const std::string& reason) {
    const Output output = program("merge" + words);
    INFO(words << ": " << output.err);
    CHECK(output.code == 3);
    CHECK(output.out.empty());
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring(reason));
  };
  refused(one + three, "shard 2 of 3 is missing");
  refused(one + two + two + three, "shard 2 is there twice");
  program("run control:T=7,H=1 --variant naive --shard 3/3 --json" + other);
  refused(one + two + other, "it is no shard of the same run");
  CHECK(program("merge").code == 2);
}
