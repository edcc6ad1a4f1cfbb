// The program between pipes, signals and other processes.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace files_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

namespace {

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

/// Runs command lines at once; their exit codes, one a line, are standard output.
Output at_once(const std::vector<std::string>& commands) {
  std::string line;
  for (const std::string& command : commands) line += "{ " + command + " >/dev/null; echo code $?; } & ";
  return shell(line + "wait");
}

}  // namespace

TEST_CASE("without a reader the exit code is that of the reports in files, and 141 where there are none",
          "[cli]") {
  const Folder folder;
  const std::string json = " --json " + (folder / "out.json").string();
  const std::string fails = "run " + small + " --variant recurrent --max-ulp 0";
  const auto without_reader = [](const std::string& words) {
    // Nothing begins before the reader has gone.
    return shell("{ trap '' PIPE; while echo; do :; done 2>/dev/null; $KDA " + words +
                 "; echo code $? >&2; } | true");
  };
  CHECK(without_reader("run " + small).err == "code 141\n");
  CHECK(without_reader(fails).err == "code 141\n");
  CHECK(without_reader("run " + small + json).err == "code 0\n");
  CHECK(without_reader(fails + json).err == "code 1\n");
}

TEST_CASE("devices are no texts: they are refused, not read for ever", "[cli]") {
  for (const char* const name : {"--baseline", "--tolerance"}) {
    const Output output = program("run " + small + " " + name + " /dev/zero");
    CHECK(output.code == 3);
    CHECK_THAT(output.err, ContainsSubstring("it is a device") && ContainsSubstring("/dev/zero"));
  }
  CHECK(program("merge /dev/zero /dev/zero").code == 3);
  const Output full = program("run " + small + " --baseline /dev/full --update-baseline");
  CHECK(full.code == 4);
  CHECK_THAT(full.err, ContainsSubstring("it is not a regular file (/dev/full)"));
}

TEST_CASE("of captures into one file at once none loses the group of another", "[cli][capture]") {
  const Folder folder;
  const fs::path file = folder / "copy.h5";
  fs::copy_file(small, file);
  std::vector<std::string> commands;
  for (const char* const variant : {"naive", "recurrent", "chunk"})
    commands.push_back("$KDA capture " + file.string() + " --in-place --variant " + variant);
  const Output output = at_once(commands);
  INFO(output.out << output.err);
  const std::size_t done = count(output.out, "code 0"), refused = count(output.out, "code 4");
  CHECK(done >= 1);
  CHECK(done + refused == commands.size());
  CHECK(count(output.err, "was written by another process meanwhile") == refused);
  CHECK(count(program("show " + file.string()).out, "@cpu/o ") == done);
  CHECK(folder.entries() == 1);
}

TEST_CASE("a baseline with the line ends of another system is the same baseline", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "b.tsv").string(),
                    words = "run tails:T=17 --variant recurrent --baseline " + path;
  REQUIRE(program(words + " --update-baseline").code == 0);
  const Output unix = program(words);
  REQUIRE(shell("sed -i 's/$/\\r/; 1s/^/\\xef\\xbb\\xbf/' " + path).code == 0);
  const Output other = program(words);
  CHECK(other.code == 0);
  CHECK(other.out == unix.out);
  CHECK(other.err == unix.err);
}

}  // namespace files_tests
