// capture through the program: its line, and files that are replaced whole or not at all.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace capture_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

namespace {

/// A copy of the small fixture in a folder of its own.
std::string copied(const Folder& folder) {
  fs::copy_file(small, folder / "copy.h5");
  return (folder / "copy.h5").string();
}

}  // namespace

TEST_CASE("capture, then run, diff, show and explain with the captured group", "[cli][capture]") {
  const Folder folder;
  const std::string file = copied(folder);
  const Output captured =
      program("capture " + file + " --variant chunk,recurrent --arithmetic h100 --in-place --json");
  CHECK(captured.code == 0);
  CHECK(captured.err.empty());
  const auto groups = nlohmann::json::parse(captured.out)["captured"];
  REQUIRE(groups.size() == 2);
  CHECK(groups[0]["group"] == "expected/chunk@cpu");
  CHECK(groups[0]["stages"] == 9);
  CHECK_THAT(groups[0]["arithmetic"].get<std::string>(), ContainsSubstring("contraction="));
  CHECK(groups[1]["group"] == "expected/recurrent@cpu");
  const std::string words =
      "run " + file + " --variant chunk --limit max_ulp=exact --against chunk@cpu --arithmetic ";
  CHECK(program(words + "h100").code == 0);
  CHECK(program(words + "h100,contraction=separate").code == 1);
  const std::string other = (folder / "other.h5").string();
  CHECK(program("capture " + small + " --variant chunk --arithmetic h100 -o " + other).code == 0);
  CHECK(program("diff " + file + ":chunk@cpu " + other + ":chunk@cpu").code == 0);
  CHECK(program("diff " + file + ":chunk@cpu " + file + ":recurrent@cpu --tensor o").code == 1);
  CHECK_THAT(program("show " + file).out,
             ContainsSubstring("\n  chunk@cpu ") && ContainsSubstring("expected/chunk@cpu/stages/v_new"));
  CHECK(program("explain " + file + " --between chunk@cpu,chunk").code == 0);
  const Output again = program("capture " + file + " --variant chunk --in-place");
  CHECK(again.code == 2);
  CHECK_THAT(again.err, ContainsSubstring("--replace"));
  CHECK(program("capture " + file + " --variant chunk --in-place --replace --no-stages").code == 0);
  CHECK_THAT(program("show " + file).out, !ContainsSubstring("stages/v_new"));
  CHECK(folder.entries() == 2);
}

TEST_CASE("capture follows links and keeps the mode of the file", "[cli][capture]") {
  const Folder folder;
  const std::string file = copied(folder);
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("copy.h5", folder / "link.h5");
  CHECK(program("capture " + (folder / "link.h5").string() + " --variant naive --in-place").code == 0);
  CHECK(fs::is_symlink(folder / "link.h5"));
  CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK_THAT(program("show " + file).out, ContainsSubstring("expected/naive@cpu/o"));
}

TEST_CASE("capture exits with what went wrong and leaves the file as it was", "[cli][capture]") {
  const Folder folder;
  const std::string file = copied(folder);
  const auto code = [&](const std::string& words) {
    const Output output = program("capture " + words);
    INFO(words << ": " << output.err);
    CHECK(output.out.find("expected/") == std::string::npos);  // no group is said to be there
    CHECK(lines(output.err) == 1);
    return output.code;
  };
  CHECK(code(file + " --in-place") == 2);
  CHECK(code(file + " --variant chunk --in-place --dtype bf16") == 2);
  CHECK(code(file + " --variant chunk --in-place --dtype bf16,fp32") == 2);
  CHECK(code("control:T=4 --variant chunk --in-place") == 2);
  CHECK(code("@smoke --variant chunk --in-place") == 2);
  CHECK(code((folder / ".").string() + " --variant chunk --in-place") == 2);
  CHECK(code(bad + "truncated_half.h5 --variant chunk --in-place") == 3);
  CHECK(code(file + " --variant chunk --in-place -o " + (folder / "x.h5").string()) == 2);
  CHECK(code(file + " --variant chunk -o " + (folder / ".").string()) == 4);
  CHECK(code(file + " --variant chunk -o /dev/null") == 4);
  CHECK(code("control:T=4 --variant chunk -o /no/such/folder/x.h5") == 4);
  CHECK(read_file(file) == read_file(small));
  CHECK(folder.entries() == 1);
}

}  // namespace capture_tests
