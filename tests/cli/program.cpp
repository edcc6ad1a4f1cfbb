// The program as a user meets it: words in, two streams and an exit code out.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/catch.hpp"
#include "support/problems.hpp"

namespace {

namespace fs = std::filesystem;

struct Output {
  int code;
  std::string out, err;
};

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("kda-check-cli-" + std::to_string(::getpid()))) {
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), {}));
  }

 private:
  fs::path path_;
};

/// Runs a shell command line in which KDA stands for the program.
Output shell(const std::string& line) {
  const fs::path out = fs::temp_directory_path() / ("kda-check-out-" + std::to_string(::getpid()));
  const fs::path err = fs::temp_directory_path() / ("kda-check-err-" + std::to_string(::getpid()));
  const std::string full =
      "KDA='" KDA_CHECK_PROGRAM "'; { " + line + "; } >'" + out.string() + "' 2>'" + err.string() + "'";
  const int status = std::system(full.c_str());
  Output output{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
  fs::remove(out);
  fs::remove(err);
  return output;
}

Output program(const std::string& words) { return shell("$KDA " + words); }

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

const std::string small = kda_check::test::case_fixtures() + "/fla_fp32_small.h5";
const std::string bad = std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_bad/";

}  // namespace

TEST_CASE("a run that passes prints the report, nothing else, and exits with 0", "[cli]") {
  const Output output = program("run " + small);
  CHECK(output.code == 0);
  CHECK(output.err.empty());
  CHECK_THAT(output.out, ContainsSubstring("15 passed, 0 failed"));
  CHECK(program("run " + small).out == output.out);  // no dates, durations or machine paths
}

TEST_CASE("options go in any order", "[cli]") {
  CHECK(program("run --variant recurrent " + small + " --dtype fp64").out ==
        program("run --dtype fp64 " + small + " --variant recurrent").out);
}

TEST_CASE("a failed limit exits with 1 and lists the worst points", "[cli]") {
  const Output output =
      program("run " + small + " --variant recurrent --against oracle --limit scaled_ulp=1 --worst 2");
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring("scaled_ulp<=1*"));
  CHECK_THAT(output.out, ContainsSubstring("magnitude"));
}

TEST_CASE("wrong words exit with 2 and one line with a hint", "[cli]") {
  for (const auto& [words, message] :
       {std::pair{"", "no command given"},
        {"rnu", "did you mean 'run'?"},
        {"run", "no fixture given"},
        {"run --vriant naive x.h5", "did you mean '--variant'?"},
        {"run x.h5 --threads 0", "--threads"},
        {"run x.h5 --limit scaled_upl=3", "did you mean 'scaled_ulp'?"},
        {"run x.h5 --memory-limit much", "not a size"},
        {"run @smke", "did you mean 'smoke'?"},
        {"run corr_kyes", "neither a file nor a regime"},
        {"run corr_keys:rho=7", "wanted a number from 0 to 1"},
        {"make corr_keys", "--output is required"},
        {"show corr_keys:T=8", "kda-check make corr_keys:T=8 -o FILE.h5"},
        {"make corr_kyes -o x.h5", "did you mean 'corr_keys'?"},
        {"grow", "no fixture given"},
        {"grow x.h5 --tensor final_state", "the only one with tokens"},
        {"grow x.h5 --limit max_ulp=2", "does not follow max_ulp"},
        {"diff one.h5", "B is required"},
        {"list variant", "did you mean 'variants'?"},
        {"bench --dtype fp8", "no dtype 'fp8'"},
        {"bench --arithmetic bogus=1", "no axis 'bogus'"},
        {"run x.h5 --atol -1", "'-1' is not a number >= 0"},
        {"run x.h5 --rtol inf", "'inf' is not a number >= 0"},
        {"run x.h5 --atol nan", "'nan' is not a number >= 0"},
        {"run x.h5 --variant , -q", "',' holds no name"},
        {"run x.h5 --report json=", "no path"},
        {"run x.h5 --json /tmp/kda-check-x --report json=/tmp/./kda-check-x", "two reports to"},
        {"run ''", "empty word"}}) {
    const Output output = program(words);
    INFO(words << ": " << output.err);
    CHECK(output.code == 2);
    CHECK(output.out.empty());
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring(message));
    CHECK_THAT(output.err, ContainsSubstring("kda-check: error: "));
  }
}

TEST_CASE("a missing or malformed file exits with 3 and one line", "[cli]") {
  for (const char* const name :
       {"no_such_file.h5", "truncated_half.h5", "not_hdf5.h5", "missing_q.h5", "huge.h5"})
    for (const char* const command : {"run ", "show "}) {
      const Output output = program(command + bad + name);
      INFO(output.err);
      CHECK(output.code == 3);
      CHECK(lines(output.err) == 1);
      CHECK(output.err.find("HDF5-DIAG") == std::string::npos);
    }
  CHECK(program("diff " + small + " " + bad + "missing_q.h5").code == 3);
}

TEST_CASE("a bad file beside a good one loses nothing", "[cli]") {
  const Output output = program("run " + bad + "missing_q.h5 " + small + " --json -");
  CHECK(output.code == 3);
  const auto document = nlohmann::json::parse(output.out);
  CHECK(document["summary"]["passed"] == 15);
  CHECK(document["errors"].size() == 1);
}

TEST_CASE("JSON on standard output is exactly one document", "[cli]") {
  const auto document = nlohmann::json::parse(program("run " + small + " --json -").out);
  CHECK(document["schema_version"] == 1);
  CHECK(document["request"]["argv"][0] == "run");
  CHECK(nlohmann::json::parse(program("run " + small + " --json").out)["cases"] == document["cases"]);
}

TEST_CASE("reports go to files that are replaced whole", "[cli]") {
  const Folder folder;
  const fs::path json = folder / "out.json";
  std::ofstream(json) << std::string(1 << 20, 'x');
  const Output output = program("run " + small + " --json " + json.string() +
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

TEST_CASE("a full disk exits with 4", "[cli]") {
  if (!fs::exists("/dev/full")) KDA_CHECK_SKIP("no /dev/full here");
  CHECK(shell("$KDA run " + small + " > /dev/full").code == 4);
  CHECK(program("run " + small + " --json /dev/full").code == 4);
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

TEST_CASE("a signal leaves no temporary file and ends the program as signals do", "[cli]") {
  const Folder folder;
  const std::string pipe = (folder / "pipe").string(), json = (folder / "out.json").string();
  for (const char* const name : {"TERM", "INT", "HUP"}) {
    // The program waits for a reader of the pipe, its first report being open by then.
    const Output output =
        shell("mkfifo " + pipe + "; env --default-signal=INT $KDA run " + small + " --report json=" + json +
              " --report text=" + pipe + " & i=0; until ls " + json +
              ".*.tmp >/dev/null 2>&1 || [ $i = 100 ]; do sleep 0.05; i=$((i+1)); done; ls " + json +
              ".*.tmp; kill -" + name + " $!; wait $!; echo status $?");
    INFO(name << ": " << output.out << output.err);
    CHECK_THAT(output.out, ContainsSubstring(".tmp"));
    CHECK_THAT(output.out, ContainsSubstring(std::string(name) == "TERM"  ? "status 143"
                                             : std::string(name) == "INT" ? "status 130"
                                                                          : "status 129"));
    CHECK(folder.entries() == 1);
    fs::remove(folder / "pipe");
  }
}

TEST_CASE("a report goes through symbolic links and keeps the mode of its file", "[cli]") {
  const Folder folder;
  std::ofstream(folder / "private.json") << "old";
  fs::permissions(folder / "private.json", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("private.json", folder / "link.json");
  fs::create_symlink("new.json", folder / "dangling.json");
  const std::string words = "run " + small + " -q --json ";
  CHECK(program(words + (folder / "link.json").string()).code == 0);
  CHECK(program(words + (folder / "dangling.json").string()).code == 0);
  CHECK(fs::is_symlink(folder / "link.json"));
  CHECK(fs::is_symlink(folder / "dangling.json"));
  CHECK(nlohmann::json::accept(read_file(folder / "private.json")));
  CHECK(nlohmann::json::accept(read_file(folder / "new.json")));
  CHECK(fs::status(folder / "private.json").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("what the user may not write or read is left alone", "[cli]") {
  if (::geteuid() == 0) KDA_CHECK_SKIP("root may write and read everything");
  const Folder folder;
  std::ofstream(folder / "theirs.json") << "old";
  fs::permissions(folder / "theirs.json", fs::perms::owner_read);
  CHECK(program("run " + small + " --json " + (folder / "theirs.json").string()).code == 4);
  CHECK(read_file(folder / "theirs.json") == "old");
  fs::create_directory(folder / "closed");
  fs::permissions(folder / "closed", fs::perms::none);
  const Output output = program("run " + (folder / "closed").string());
  fs::permissions(folder / "closed", fs::perms::owner_all);
  CHECK(output.code == 3);
  CHECK_THAT(output.err, ContainsSubstring("ermission denied"));
}

TEST_CASE("diff of a missing file still prints its document", "[cli]") {
  const Output output = program("diff " + small + " /no/such.h5 --json");
  CHECK(output.code == 3);
  CHECK(lines(output.err) == 1);
  CHECK(nlohmann::json::parse(output.out)["errors"][0]["exit_code"] == 3);
}

TEST_CASE("a fixture is never overwritten by a report", "[cli]") {
  const Folder folder;
  const fs::path copy = folder / "copy.h5";
  fs::copy_file(small, copy);
  const Output output = program("run --json " + copy.string());
  CHECK(output.code == 2);
  CHECK(read_file(copy) == read_file(small));
  const fs::path other = folder / "renamed";
  fs::copy_file(small, other);
  CHECK(program("run " + other.string() + " --json " + other.string()).code == 2);
  CHECK(read_file(other) == read_file(small));
}

TEST_CASE("the smoke suite passes from any folder", "[cli]") {
  const Output output = shell("cd / && $KDA run @smoke -q");
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  CHECK_THAT(output.out, ContainsSubstring(" 0 failed, 0 inconclusive, 0 skipped"));
}

TEST_CASE("a suite line is a command line, and options after the suite apply to all lines", "[cli]") {
  const Folder folder;
  fs::copy_file(small, folder / "a.h5");
  std::ofstream(folder / "mine.txt")
      << "# a comment\n\na.h5 --variant naive   # trailing\na.h5 --variant recurrent --dtype fp64\n";
  const auto document = nlohmann::json::parse(
      program("run @" + (folder / "mine.txt").string() + " --against oracle --json").out);
  CHECK(document["fixtures"].size() == 1);
  std::size_t naive = 0, recurrent = 0;
  for (const auto& item : document["cases"]) {
    naive += item["variant"] == "naive" && item["dtype"] == "fp32";
    recurrent += item["variant"] == "recurrent" && item["dtype"] == "fp64";
    CHECK(item["against"] == "oracle");
  }
  CHECK(naive == 1);
  CHECK(recurrent == 1);
}

TEST_CASE("make writes a regime as a file that runs, shows and diffs", "[cli][make]") {
  const Folder folder;
  const std::string one = (folder / "one.h5").string(), two = (folder / "two.h5").string();
  const Output made = program("make k3_layer1:T=20,seed=2 -o " + one);
  CHECK(made.code == 0);
  CHECK(made.err.empty());
  CHECK_THAT(made.out, ContainsSubstring("B=1 T=20 H=2 K=128 V=128"));
  CHECK(program("run " + one).code == 0);
  CHECK_THAT(program("show " + one).out, ContainsSubstring("regime k3_layer1"));
  CHECK(program("make k3_layer1:seed=2,T=20 -o " + two).code == 0);
  CHECK(program("diff " + one + " " + two).code == 0);
  CHECK(program("make k3_layer1:seed=3,T=20 -o " + two).code == 0);
  CHECK(program("diff " + one + " " + two).code == 1);
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

TEST_CASE("regimes are targets, alone and in suites", "[cli][make]") {
  const Output run = program("run onehot_exact:T=20 control:T=20,dtype=bf16 --variant chunk");
  CHECK(run.code == 0);
  CHECK_THAT(run.out, ContainsSubstring("onehot_exact:T=20  B=1 T=20"));
  CHECK_THAT(run.out, ContainsSubstring("2 fixtures, 2 comparisons"));
  const Folder folder;
  std::ofstream(folder / "mine.txt") << "onehot_exact:T=20 --variant chunk --limit max_ulp=exact\n";
  CHECK(shell("cd / && $KDA run @" + (folder / "mine.txt").string()).code == 0);
}

TEST_CASE("a list on the command line replaces that of a suite's line", "[cli]") {
  const Folder folder;
  fs::copy_file(small, folder / "a.h5");
  std::ofstream(folder / "mine.txt") << "a.h5 --variant naive --dtype fp64 --against oracle\n";
  const auto document = nlohmann::json::parse(
      program("run @" + (folder / "mine.txt").string() + " --variant recurrent --json").out);
  for (const auto& item : document["cases"]) CHECK(item["variant"] != "naive");
  CHECK(document["cases"][0]["variant"] == "recurrent");
  CHECK(document["cases"][0]["dtype"] == "fp64");
}

TEST_CASE("a suite's line may not choose reports", "[cli]") {
  const Folder folder;
  for (const char* const option : {"--json x.json", "-q", "--report text", "--color never"}) {
    std::ofstream(folder / "mine.txt") << small << ' ' << option << '\n';
    const Output output = program("run @" + (folder / "mine.txt").string());
    CHECK(output.code == 3);
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring(option));
    CHECK_THAT(output.err, ContainsSubstring("mine.txt"));
  }
}

TEST_CASE("the colour option and pipes decide about colour", "[cli]") {
  CHECK(program("run " + small).out.find('\x1b') == std::string::npos);
  CHECK(program("run " + small + " --color always").out.find('\x1b') != std::string::npos);
  CHECK(program("run " + small + " --color never").out.find('\x1b') == std::string::npos);
}

TEST_CASE("grow prints a table with bars, or JSON, and judges by the limits it is given", "[cli]") {
  const std::string words = "grow " + small + " --window 8 --variant recurrent";
  const Output plain = shell("LC_ALL=C $KDA " + words);
  CHECK(plain.code == 0);
  CHECK(plain.err.empty());
  CHECK_THAT(plain.out, ContainsSubstring("8 windows of 8 tokens"));
  CHECK_THAT(plain.out, ContainsSubstring("  11111111\n"));  // a flat error, in digits
  CHECK_THAT(shell("LC_ALL=C.UTF-8 $KDA " + words).out, ContainsSubstring("▁▁▁▁▁▁▁▁"));
  const auto document = nlohmann::json::parse(program(words + " --json").out);
  CHECK(document["growth"][0]["windows"]["rms_ratio"].size() == 8);
  const Output crossed = program(words + " --limit rms_ratio=1e-9");
  CHECK(crossed.code == 1);
  CHECK_THAT(crossed.out, ContainsSubstring("* limit from the command line"));
  CHECK(program("grow /no/such.h5").code == 3);
  CHECK(program(words + " --json " + small).code == 2);  // never over a fixture
}

TEST_CASE("show and list print what is there", "[cli]") {
  const Output show = program("show " + small);
  CHECK(show.code == 0);
  CHECK_THAT(show.out, ContainsSubstring("expected/fla_chunk  compute tf32"));
  CHECK_THAT(show.out, ContainsSubstring("inputs/initial_state"));
  const Output list = program("list");
  CHECK(list.code == 0);
  for (const char* const word :
       {"recurrent", "scaled_ulp", "anchor-mid:16", "json", "@smoke", "@hazards", "corr_keys"})
    CHECK_THAT(list.out, ContainsSubstring(word));
}

TEST_CASE("help and version go to standard output", "[cli]") {
  CHECK_THAT(program("--help").out, ContainsSubstring("usage: kda-check COMMAND"));
  CHECK_THAT(program("--version").out, ContainsSubstring("kda-check 0."));
  for (const char* const command : {"run", "diff", "forecast", "grow", "show", "make", "list", "bench"}) {
    const Output output = program(std::string(command) + " --help");
    CHECK(output.code == 0);
    CHECK_THAT(output.out, ContainsSubstring("kda-check " + std::string(command)));
  }
}

TEST_CASE("the program refuses to work when subnormals are flushed", "[cli]") {
#if defined(__SANITIZE_ADDRESS__)
  KDA_CHECK_SKIP("a sanitizer wants to be preloaded first");
#elif defined(__x86_64__)
  const Output output = shell("LD_PRELOAD=" KDA_CHECK_FTZ_LIBRARY " $KDA run " + small);
  INFO(output.err);
  CHECK(output.code == 4);
  CHECK_THAT(output.err, ContainsSubstring("FTZ"));
#else
  KDA_CHECK_SKIP("needs the flush-to-zero bit of x86");
#endif
}

TEST_CASE("the kernels of one instruction set share no function with those of another", "[cli]") {
#if defined(__SANITIZE_ADDRESS__)
  KDA_CHECK_SKIP("a sanitizer adds symbols of its own");
#endif
  // A function outside the set's namespace would be merged by the linker with its namesake from another set.
  for (const char* const isa : {"baseline", "x86_64_v3", "x86_64_v4"}) {
    const Output output =
        shell(std::string("nm -C --defined-only ") + KDA_CHECK_KERNEL_OBJECTS + "/kda_check_kernels_" + isa +
              ".dir/kda/kernels/kernels.cpp.o | grep ' [VWTD] ' | grep -v 'kda_check::kda::" + isa + "::'");
    INFO(output.out);
    CHECK(output.out.empty());
  }
}

TEST_CASE("forecast says what breaks before anything runs, and exits with 1 when that was selected",
          "[cli]") {
  const std::string file = kda_check::test::case_fixtures() + "/fla_bf16_prefill.h5";
  const Output safe = program("forecast " + file);
  CHECK(safe.code == 0);
  CHECK(safe.err.empty());
  CHECK_THAT(safe.out, ContainsSubstring("decay=anchor-first:16  safe, margin"));
  CHECK_THAT(safe.out, ContainsSubstring("inverse=doubling:64"));
  CHECK(program("forecast " + file + " --threads 3").out == safe.out);

  const Output breaks =
      program("forecast " + file + " --json --arithmetic decay=factored:32,storage=fp16@exponentials");
  CHECK(breaks.code == 1);
  const auto document = nlohmann::json::parse(breaks.out);
  CHECK(document["outlook"] == "breaks");
  CHECK(document["exit_code"] == 1);
  CHECK(document["selected"]["decay"]["form"] == "factored:32");
  CHECK(document["selected"]["decay"]["overflow"]["chunk"].is_number());
  CHECK(document["decay"].size() == 15);
  CHECK(document["inverse"].size() == 10);
  CHECK(document["heads"].size() == 1);

  CHECK(program("forecast " + file + " --arithmetic decay=anchor").code == 2);
  CHECK(program("forecast missing.h5").code == 3);
}
