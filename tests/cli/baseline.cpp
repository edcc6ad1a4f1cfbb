// run --baseline, as a pipeline uses them.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace baseline_tests {

using namespace kda_check::test;

namespace {

const std::string target = "run tails:T=17 --dtype fp32 --variant recurrent,chunk";

/// The file with the value of every row of a metric replaced.
void set_rows(const fs::path& path, const std::string& metric, const std::string& value) {
  std::istringstream text(read_file(path));
  std::string out;
  for (std::string line; std::getline(text, line);) {
    const std::size_t at = line.find("\t" + metric + "\t");
    if (at != std::string::npos) {
      const std::size_t begin = at + metric.size() + 2;
      line.replace(begin, line.find('\t', begin) - begin, value);
    }
    out += line + "\n";
  }
  std::ofstream(path) << out;
}

}  // namespace

TEST_CASE("a baseline that was just written holds, and writing it again changes no byte", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "b.tsv").string(), words = target + " --baseline " + path;
  const Output first = program(words + " --update-baseline");
  CHECK(first.code == 0);
  const std::string text = read_file(path);
  CHECK(lines(text) > 20);
  // How many there are, for they are all new.
  CHECK(lines(first.err) == 1);
  CHECK_THAT(first.err, ContainsSubstring(std::to_string(lines(text) - 1) + " rows"));
  CHECK(program(words).code == 0);
  CHECK(program(words).err.empty());
  CHECK_THAT(program(words + " --update-baseline").err, ContainsSubstring("0 changed"));
  CHECK(read_file(path) == text);
  CHECK(folder.entries() == 1);
}

TEST_CASE("what is worse than the baseline fails with both numbers, and only then", "[cli]") {
  const Folder folder;
  const fs::path path = folder / "b.tsv";
  const std::string words = target + " --baseline " + path.string();
  REQUIRE(program(words + " --update-baseline").code == 0);
  set_rows(path, "rms_ratio", "1e-12");
  const Output worse = program(words);
  CHECK(worse.code == 1);
  CHECK_THAT(worse.out, ContainsSubstring("FAIL"));
  CHECK_THAT(worse.out, ContainsSubstring("worse than the baseline: rms_ratio"));
  CHECK_THAT(worse.out, ContainsSubstring("(was 1e-12)"));
  // A plain update does not hide it, and lowers nothing that got worse.
  const std::string before = read_file(path);
  CHECK(program(words + " --update-baseline").code == 1);
  CHECK(read_file(path) == before);
  const Output raised = program(words + " --update-baseline=worse");
  CHECK(raised.code == 0);
  CHECK_THAT(raised.err, ContainsSubstring("1e-12 -> "));
  CHECK(program(words).code == 0);
  // The ratchet goes down by itself.
  set_rows(path, "rms_ratio", "0.5");
  CHECK_THAT(program(words).err, ContainsSubstring("loose"));
  CHECK_THAT(program(words + " --update-baseline").err, ContainsSubstring("0.5 -> "));
  CHECK(program(words).err.empty());
}

TEST_CASE("a baseline about something else does not pass", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "b.tsv").string();
  REQUIRE(program(target + " --baseline " + path + " --update-baseline").code == 0);
  const Output other = program("run tails:T=16 --dtype fp32 --variant recurrent --baseline " + path);
  CHECK(other.code == 1);
  CHECK_THAT(other.err, ContainsSubstring("no row of the baseline is about this run"));
}

TEST_CASE("a baseline that cannot be read, written or is none stops the run before it starts", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "b.tsv").string(), words = target + " --baseline ";
  CHECK(program(words + path).code == 3);
  CHECK(program(words + "/no/such/folder/b.tsv --update-baseline").code == 4);
  CHECK(program(target + " --update-baseline").code == 2);
  CHECK(program(words + path + " --update-baseline=better_still").code == 2);
  CHECK(program(words + path + " --update-baseline --json " + path).code == 2);
  std::ofstream(path) << "not a baseline\n";
  const Output malformed = program(words + path);
  CHECK(malformed.code == 3);
  CHECK(malformed.out.empty());
  CHECK_THAT(malformed.err, ContainsSubstring("b.tsv:1"));
  CHECK(lines(malformed.err) == 1);
}

TEST_CASE("an input that cannot be read leaves the baseline as it was", "[cli]") {
  const Folder folder;
  const std::string path = (folder / "b.tsv").string();
  const Output output =
      program("run /no/such.h5 " + target.substr(4) + " --baseline " + path + " --update-baseline");
  CHECK(output.code == 3);
  CHECK_THAT(output.err, ContainsSubstring("stays as it was"));
  CHECK(folder.entries() == 0);
}

}  // namespace baseline_tests
