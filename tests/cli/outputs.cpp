// Where reports go, and what happens when they cannot go there.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/sanitized.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"

namespace outputs_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

TEST_CASE("JSON on standard output is exactly one document", "[cli]") {
  const auto document = nlohmann::json::parse(program("run " + small + " --json -").out);
  CHECK(document["schema_version"] == 2);
  CHECK(document["request"]["argv"][0] == "run");
  CHECK(nlohmann::json::parse(program("run " + small + " --json").out)["cases"] == document["cases"]);
}

TEST_CASE("reports go to files that are replaced whole", "[cli]") {
  const Folder folder;
  const fs::path json = folder / "out.json";
  std::ofstream(json) << std::string(1 << 20, 'x');
  const Output output = program("run " + small + on_cpu + " --json " + json.string() +
                                " --report text=" + (folder / "out.txt").string());
  CHECK(output.code == 0);
  CHECK_THAT(output.out, ContainsSubstring("15 passed"));  // standard output has its own text
  CHECK(nlohmann::json::accept(read_file(json)));
  CHECK(read_file(folder / "out.txt") == output.out);
  CHECK(folder.entries() == 2);
}

TEST_CASE("an output that cannot be written exits with 4 before anything runs", "[cli]") {
  const Output output = program("run " + small + " --json /no/such/folder/out.json");
  CHECK(output.code == 4);
  CHECK(output.out.empty());
  CHECK(lines(output.err) == 1);
}

TEST_CASE("standard error that cannot be written changes no exit code and no report", "[cli]") {
  const Folder folder;
  const fs::path json = folder / "out.json";
  const std::string words = "$KDA run " + small + " /no/such.h5 --json " + json.string();
  for (const char* const sink : {" 2>&-", " 2>/dev/full"}) {
    CHECK(shell(words + sink).code == 3);
    CHECK(nlohmann::json::parse(read_file(json))["summary"]["exit_code"] == 3);
    CHECK(shell(std::string("$KDA rnu") + sink).code == 2);
  }
  CHECK(shell("$KDA run " + small + " >&-").code == 4);
}

TEST_CASE("two reports that meet at the end of a link are refused, whether there is a file or not", "[cli]") {
  const Folder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  fs::create_symlink("b", folder / "a");
  fs::create_symlink(path("a"), folder / "further");
  const auto refused = [&](const std::string& one, const std::string& other) {
    const Output output = program("run " + small + " -q --json " + path(one.c_str()) +
                                  " --report junit=" + path(other.c_str()));
    INFO(one << " and " << other << ": " << output.err);
    CHECK(output.code == 2);
    CHECK_THAT(output.err, ContainsSubstring("two reports to " + path("")));
  };
  for (const bool is_there : {false, true}) {
    if (is_there) std::ofstream(folder / "b") << "old";
    refused("a", "b");
    refused("b", "a");
    refused("further", "a");
    CHECK(fs::exists(folder / "b") == is_there);
  }
  // An input that is not there yet.
  fs::create_symlink("new.tsv", folder / "link");
  CHECK(program("run " + small + " -q --baseline " + path("new.tsv") + " --update-baseline --json " +
                path("link"))
            .code == 2);
}

TEST_CASE(
    "whatever is lacking - memory, stack, descriptors - is one line and exit code 4, never a damaged file",
    "[cli]") {
  if (kda_check::is_sanitized) KDA_CHECK_SKIP("a sanitizer takes terabytes of addresses");
  const Folder folder;
  const std::string both = (folder / "both.h5").string(), words = " " + small + " --variant recurrent -q";
  REQUIRE(program("capture " + small + " --variant recurrent -o " + both).code == 0);
  fs::copy_file(both, folder / "copy.h5");
  const auto limited = [&](const std::string& limit, const std::string& command) {
    const Output output = shell("(ulimit " + limit + "; exec $KDA " + command + ")");
    INFO(limit << ": " << command << ": " << output.err);
    if (output.err.find("error while loading shared libraries") != std::string::npos)
      return 0;  // not yet ours
    CHECK((output.code == 0 || output.code == 4));
    if (output.code == 4) {
      CHECK(lines(output.err) == 1);
      CHECK_THAT(output.err, ContainsSubstring("kda-check: error: ") && !ContainsSubstring("damaged"));
    }
    return output.code;
  };
  int refused = 0, loads = 12 << 10;  // CUDA's library takes more
  while (shell("(ulimit -v " + std::to_string(loads) + "; exec $KDA --version)").code != 0) loads += 2 << 10;
  for (int kib = loads; kib < loads + (24 << 10); kib += 2 << 10) {
    const std::string limit = "-v " + std::to_string(kib);
    refused += limited(limit, "run" + words) != 0;
    refused += limited(limit, "make control:T=40 --compression 4 -o " + (folder / "out.h5").string()) != 0;
    fs::remove(folder / "out.h5");
  }
  CHECK(refused > 0);
  for (const int kib : {64, 128, 256}) CHECK(limited("-s " + std::to_string(kib), "run" + words) == 4);
  for (int descriptors = 4; descriptors < 16; ++descriptors) {
    const std::string limit = "-n " + std::to_string(descriptors);
    limited(limit, "run" + words);
    limited(limit, "diff " + both + " " + (folder / "copy.h5").string() + " -q");
    limited(limit, "capture" + words + " -o " + (folder / "out.h5").string());
    fs::remove(folder / "out.h5");
    limited(limit, "run" + words + " --report junit=" + (folder / "out.xml").string() + " --json " +
                       (folder / "out.json").string());
  }
}

TEST_CASE("a report that there is no memory for takes no other with it", "[cli]") {
  if (kda_check::is_sanitized) KDA_CHECK_SKIP("a sanitizer wants to be preloaded first");
  const Folder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const Output output = shell("LD_PRELOAD=" KDA_CHECK_NO_MEMORY_LIBRARY " $KDA run " + small +
                              " --variant recurrent --report github=" + path("a.txt") +
                              " --report html=" + path("b.html") + " --report json=" + path("c.json"));
  INFO(output.out << output.err);
  CHECK(output.code == 4);
  CHECK_THAT(output.err, ContainsSubstring("out of memory for the html report (" + path("b.html") + ")"));
  CHECK_THAT(output.out, ContainsSubstring("PASS: "));
  CHECK(fs::exists(path("a.txt")));
  CHECK(nlohmann::json::parse(read_file(path("c.json")))["summary"]["outcome"] == "pass");
  CHECK(folder.entries() == 2);  // nothing half written
}

TEST_CASE("a fixture is never overwritten by a report", "[cli]") {
  const Folder folder;
  const fs::path copy = folder / "copy.h5";
  fs::copy_file(small, copy);
  CHECK(program("run " + small + " --json=" + copy.string()).code == 2);
  CHECK(program("run " + small + " --report html=" + copy.string()).code == 2);
  // Behind a blank it is a target: the report goes to standard output.
  CHECK(nlohmann::json::parse(program("run --json " + copy.string()).out)["fixtures"][0]["path"] ==
        copy.string());
  CHECK(read_file(copy) == read_file(small));
  const fs::path other = folder / "renamed";
  fs::copy_file(small, other);
  CHECK(program("run " + other.string() + " --json " + other.string()).code == 2);
  CHECK(read_file(other) == read_file(small));
}

TEST_CASE("the colour option and pipes decide about colour", "[cli]") {
  CHECK(program("run " + small).out.find('\x1b') == std::string::npos);
  CHECK(program("run " + small + " --color always").out.find('\x1b') != std::string::npos);
  CHECK(program("run " + small + " --color never").out.find('\x1b') == std::string::npos);
}

}  // namespace outputs_tests
