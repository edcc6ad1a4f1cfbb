#include "base/output_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/interruption.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/temporary_folder.hpp"

namespace output_file_tests {

namespace fs = std::filesystem;
using namespace kda_check;
using test::TemporaryFolder;

namespace {

std::string text_of(const std::string& path) { return read_text(path, {"the file"}).text; }

void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

unsigned mode_of(const std::string& path) {
  struct stat status {};
  ::stat(path.c_str(), &status);
  return status.st_mode & 07777u;
}

/// The line that refuses a path.
std::string refusal(const std::string& path, OutputKind kind) {
  try {
    OutputFile output(path, kind);
    output.commit("new");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    CHECK_THAT(error.what(), ContainsSubstring(path));
    return error.found();
  }
  return "was written";
}

constexpr OutputKind kinds[] = {OutputKind::kept, OutputKind::report};

}  // namespace

TEST_CASE("a file is the old one until its replacement is committed, and nothing else is left", "[output]") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  for (const OutputKind kind : kinds) {
    put(path, "old");
    {
      OutputFile output(path, kind);
      CHECK(text_of(path) == "old");
    }
    CHECK(text_of(path) == "old");
    OutputFile output(path, kind);
    output.commit("new");
    CHECK(text_of(path) == "new");
    CHECK(folder.entries() == 1);
  }
}

TEST_CASE("a file that somebody else writes under the temporary name is put in place", "[output]") {
  const TemporaryFolder folder;
  put(folder / "source", std::string(3 << 20, 's'));
  OutputFile output(folder / "file", OutputKind::kept);
  const Descriptor source(::open((folder / "source").c_str(), O_RDONLY));
  output.copy_from(source.number());
  std::ofstream(output.temporary(), std::ios::app) << "and more";
  output.commit();
  std::string wanted(3 << 20, 's');
  CHECK(text_of(folder / "file") == wanted.append("and more"));
  CHECK(folder.entries() == 2);
}

TEST_CASE("a file that exists keeps its mode, a new one has that of the umask", "[output]") {
  const TemporaryFolder folder;
  const std::string old = folder / "old", fresh = folder / "fresh";
  put(old, "old");
  for (const unsigned mode : {0600u, 0640u, 0666u, 0755u}) {
    REQUIRE(::chmod(old.c_str(), mode) == 0);
    OutputFile(old, OutputKind::kept).commit("new");
    CHECK(mode_of(old) == mode);
  }
  const mode_t before = ::umask(0027);
  OutputFile(fresh, OutputKind::kept).commit("new");
  ::umask(before);
  CHECK(mode_of(fresh) == 0640);
}

TEST_CASE("symbolic links are followed, also to nothing; a loop is an error that leaves the link",
          "[output]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "elsewhere");
  put(folder / "elsewhere/target", "old");
  fs::create_symlink("elsewhere/target", folder / "link");
  fs::create_symlink("elsewhere/missing", folder / "dangling");
  fs::create_symlink("two", folder / "one");
  fs::create_symlink("one", folder / "two");
  for (const OutputKind kind : kinds) {
    OutputFile(folder / "link", kind).commit("new");
    OutputFile(folder / "dangling", kind).commit("made");
    CHECK(text_of(folder / "elsewhere/target") == "new");
    CHECK(text_of(folder / "elsewhere/missing") == "made");
    fs::remove(folder / "elsewhere/missing");
    CHECK_THAT(refusal(folder / "one", kind), ContainsSubstring("Too many levels of symbolic links"));
  }
  for (const char* const link : {"link", "dangling", "one", "two"}) CHECK(fs::is_symlink(folder / link));
  CHECK(folder.entries() == 5);
}

TEST_CASE("what cannot be written is refused before anything is written", "[output]") {
  const TemporaryFolder folder;
  for (const OutputKind kind : kinds) {
    CHECK_THAT(refusal(folder.path(), kind), ContainsSubstring("Is a directory"));
    CHECK_THAT(refusal(folder / "no/such", kind), ContainsSubstring("No such file"));
    CHECK_THAT(refusal("", kind), ContainsSubstring("No such file"));
    put(folder / "file", "old");
    CHECK_THAT(refusal(folder / "file/in", kind), ContainsSubstring("Not a directory"));
    if (::geteuid() == 0) continue;
    fs::permissions(folder / "file", fs::perms::owner_read);
    CHECK_THAT(refusal(folder / "file", kind), ContainsSubstring("Permission denied"));
    CHECK(text_of(folder / "file") == "old");
    fs::remove(folder / "file");
  }
}

TEST_CASE("a report goes into a pipe or a device as it is, a file that is kept does not", "[output]") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, std::string("/dev/null"), std::string("/dev/full")})
    CHECK(refusal(path, OutputKind::kept) == "cannot write: it is not a regular file");
  CHECK(refusal("/dev/null", OutputKind::report) == "was written");
  CHECK(refusal("/dev/full", OutputKind::report) == "cannot write: No space left on device");
  std::string read;
  std::thread reader([&] { read = text_of(pipe); });
  OutputFile(pipe).commit(std::string(1 << 20, 'x'));
  reader.join();
  CHECK(read == std::string(1 << 20, 'x'));
  CHECK(fs::is_fifo(pipe));
  CHECK(folder.entries() == 1);
}

TEST_CASE("a report to /dev/stdout goes where standard output is, after what is there", "[output]") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  for (const char* const name : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}) {
    put(path, "before ");
    test::Child child([&](const auto&) {
      ::dup2(::open(path.c_str(), O_WRONLY | O_APPEND), STDOUT_FILENO);
      write_stdout("first ");
      OutputFile(name).commit("second ");
      write_stdout("third");
      return 0;
    });
    CHECK(child.exit_status() == 0);
    CHECK(text_of(path) == "before first second third");
    CHECK(folder.entries() == 1);
  }
  CHECK_THAT(refusal("/proc/self/fd/77", OutputKind::report), ContainsSubstring("cannot write"));
}

TEST_CASE("standard output that is closed or full is an error", "[output]") {
  for (const bool closed : {true, false}) {
    test::Child child([&](const auto&) {
      if (closed)
        ::close(STDOUT_FILENO);
      else
        ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
      try {
        OutputFile("-").commit("text");
      } catch (const Error& error) {
        return std::string(error.what()).ends_with("(standard output)") ? 0 : 1;
      }
      return 2;
    });
    CHECK(child.exit_status() == 0);
  }
}

TEST_CASE("two files in the making for one path do not meet under one name", "[output]") {
  const TemporaryFolder folder;
  OutputFile one(folder / "file"), two(folder / "file");
  CHECK(folder.entries() == 2);
  one.commit("one");
  two.commit("two");  // a report: the last writer wins
  CHECK(text_of(folder / "file") == "two");
  CHECK(folder.entries() == 1);
  OutputFile(folder / std::string(250, 'n')).commit("a long name");
  CHECK(folder.entries() == 2);
}

TEST_CASE("a kept file that another process wrote meanwhile is not replaced", "[output]") {
  const TemporaryFolder folder;
  const std::string path = folder / "file", gone = folder / "gone", made = folder / "made";
  const auto refused = [&](OutputFile& output) {
    try {
      output.commit("mine");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::environment);
      return std::string(error.what()).find("was written by another process meanwhile") !=
                 std::string::npos &&
             std::string(error.what()).find("run again") != std::string::npos;
    }
    return false;
  };
  put(path, "read before");
  const TextFile read = read_text(path, {"the file"});
  put(path, "theirs");
  {
    OutputFile output(path, OutputKind::kept);
    output.replaces(read.identity);
    CHECK(refused(output));
  }
  {
    OutputFile output(path, OutputKind::kept);
    OutputFile(path, OutputKind::kept).commit("theirs, renamed");
    CHECK(refused(output));
  }
  CHECK(text_of(path) == "theirs, renamed");
  {
    OutputFile output(made, OutputKind::kept);
    put(made, "theirs");
    CHECK(refused(output));
  }
  CHECK(text_of(made) == "theirs");
  {
    put(gone, "read before");
    OutputFile output(gone, OutputKind::kept);
    fs::remove(gone);
    CHECK(refused(output));
  }
  CHECK(folder.entries() == 2);
}

TEST_CASE("of processes that add to one file at once none loses what another wrote", "[output]") {
  const TemporaryFolder folder;
  const std::string path = folder / "lines";
  put(path, "");
  std::vector<std::unique_ptr<test::Child>> children;
  for (int i = 0; i < 8; ++i)
    children.push_back(std::make_unique<test::Child>([&](const auto&) {
      int added = 0;
      for (int turn = 0; turn < 20; ++turn) {
        const TextFile before = read_text(path, {"the file"});
        OutputFile output(path, OutputKind::kept);
        output.replaces(before.identity);
        try {
          output.commit(before.text + "line\n");
          ++added;
        } catch (const Error&) {
        }
      }
      return added;
    }));
  int added = 0;
  for (auto& child : children) {
    const int its = child->exit_status();
    REQUIRE(its >= 0);
    added += its;
  }
  const std::string text = text_of(path);
  CHECK(added > 0);
  CHECK(std::count(text.begin(), text.end(), '\n') == added);
  CHECK(folder.entries() == 1);
}

}  // namespace output_file_tests
