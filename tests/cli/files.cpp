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

TEST_CASE("a reader that goes away costs no report and leaves no temporary file", "[cli]") {
  const Folder folder;
  const std::string json = (folder / "out.json").string();
  for (const std::string& words : {"explain " + small + " --only faults", "run " + small}) {
    const Output output = shell("{ $KDA " + words + " --json " + json + "; echo code $? >&2; } | true");
    INFO(words);
    CHECK(output.err == "code 0\n");  // the report that somebody asked for is whole
    CHECK(nlohmann::json::accept(read_file(json)));
    CHECK(folder.entries() == 1);
  }
}

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

TEST_CASE("a parent that ignores its children fails no program", "[cli]") {
  const Output output = shell("env --ignore-signal=CHLD $KDA run " + small +
                              " --variant recurrent --against oracle --external-timeout 20 --external "
                              "\"$KDA capture {in} --replace -o {out} --variant chunk\"");
  INFO(output.out << output.err);
  CHECK(output.code == 0);
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

TEST_CASE("of updates of one baseline at once none loses what another wrote", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "baseline.tsv").string();
  std::vector<std::string> commands;
  for (const char* const T : {"17", "18", "19", "20"})
    commands.push_back(std::string("$KDA run tails:T=") + T +
                       " --variant recurrent --update-baseline --baseline " + path);
  const Output output = at_once(commands);
  INFO(output.out << output.err);
  const std::size_t done = count(output.out, "code 0"), refused = count(output.out, "code 4");
  CHECK(done >= 1);
  CHECK(done + refused == commands.size());
  CHECK(count(output.err, "was written by another process meanwhile") == refused);
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

TEST_CASE("what was finished before a signal is reported, as interrupted", "[cli]") {
  const Folder folder;
  const std::string json = (folder / "out.json").string(), started = (folder / "started").string();
  const Output output =
      shell("export KDA; $KDA run control:T=4 control:T=5 --threads 1 --variant none --json " + json +
            " --external 'if [ -e " + started + " ]; then echo >" + started + "2; sleep 600; else echo >" +
            started + "; $KDA capture {in} --variant naive --replace -o {out}; fi' & until [ -e " + started +
            "2 ]; do sleep 0.01; done; kill -TERM $!; wait $!; echo status $?");
  INFO(output.out << output.err);
  CHECK_THAT(output.out, ContainsSubstring("status 143") && ContainsSubstring("INTERRUPTED"));
  const auto document = nlohmann::json::parse(read_file(json));
  CHECK(document["summary"]["outcome"] == "interrupted");
  CHECK(document["summary"]["passed"] == 1);
  CHECK(document["summary"]["exit_code"] == 143);
}

TEST_CASE("of a source that a signal breaks off, the cases that failed before are reported", "[cli]") {
  const Folder folder;
  const std::string json = (folder / "out.json").string(), started = (folder / "started").string();
  const Output output =
      shell("export KDA; $KDA run control:T=4 --threads 1 --variant recurrent --max-ulp 0 --json " + json +
            " --against oracle --invariants=repeat --external 'if [ -e " + started + " ]; then echo >" +
            started + "2; sleep 600; else echo >" + started +
            "; $KDA capture {in} --variant naive --replace -o {out}; fi' & until [ -e " + started +
            "2 ]; do sleep 0.01; done; kill -TERM $!; wait $!; echo status $?");
  INFO(output.out << output.err);
  CHECK_THAT(output.out, ContainsSubstring("status 143") && ContainsSubstring("FAIL"));
  const auto document = nlohmann::json::parse(read_file(json));
  CHECK(document["summary"]["outcome"] == "interrupted");
  CHECK(document["summary"]["failed"] > 0);
}

TEST_CASE("an interrupted run ends soon, by its signal, and leaves nothing", "[cli]") {
  const Folder folder;
  const std::string json = (folder / "out.json").string();
  for (const char* const name : {"TERM", "INT", "HUP"}) {
    const std::string started = (folder / "started").string();
    const Output output =
        shell("env --default-signal=INT $KDA run " + small + " --json " + json + " --external 'echo >" +
              started + "; sleep 600 # {in} {out}' & until [ -e " + started +
              " ]; do sleep 0.01; done; kill -" + name + " $!; wait $!; echo status $?");
    INFO(name << output.err);
    CHECK_THAT(output.out, ContainsSubstring("status 1"));
    fs::remove(started);
    CHECK(folder.entries() <= 1);
    fs::remove(json);
  }
}

}  // namespace files_tests
