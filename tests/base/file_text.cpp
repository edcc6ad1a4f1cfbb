#include "base/file_text.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/temporary_folder.hpp"

namespace file_text_tests {

using namespace kda_check;
using test::TemporaryFolder;

namespace {

std::string refusal(const std::string& path, std::size_t most_bytes = 1 << 20) {
  try {
    read_text(path, {"the list", "make one", most_bytes});
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    const std::string line = error.what();
    CHECK_THAT(line, ContainsSubstring("cannot read the list: ") && ContainsSubstring(path) &&
                         ContainsSubstring("make one"));
    return error.found();
  }
  return "was read";
}

}  // namespace

TEST_CASE("text is read whole from a file and from a pipe", "[text]") {
  const TemporaryFolder folder;
  const std::string path = folder / "file", pipe = folder / "pipe", text(300'000, 'x');
  std::ofstream(path) << text;
  const TextFile file = read_text(path, {"the list"});
  CHECK(file.text == text);
  CHECK(file.identity == FileIdentity::of(path));
  CHECK(file.identity.exists());
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] {
    std::ofstream stream(pipe);
    for (const char letter : text) stream << letter;
  });
  CHECK(read_text(pipe, {"the list"}).text == text);
  writer.join();
  std::ofstream(path) << "";
  CHECK(read_text(path, {"the list"}).text.empty());
}

TEST_CASE("what never ends, has no text or is too much is refused", "[text]") {
  const TemporaryFolder folder;
  CHECK_THAT(refusal("/dev/zero"), ContainsSubstring("it is a device"));
  CHECK_THAT(refusal("/dev/null"), ContainsSubstring("it is a device"));
  CHECK_THAT(refusal(folder.path()), ContainsSubstring("it is a folder"));
  CHECK_THAT(refusal(folder / "missing"), ContainsSubstring("No such file"));
  const std::string path = folder / "file", pipe = folder / "pipe";
  std::ofstream(path) << std::string(1001, 'x');
  CHECK_THAT(refusal(path, 1000), ContainsSubstring("more than 1000 bytes"));
  CHECK(refusal(path, 1001) == "was read");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  test::Child writer([&](const auto&) {
    const int descriptor = ::open(pipe.c_str(), O_WRONLY);
    while (::write(descriptor, "endless ", 8) == 8) {
    }
    return 0;
  });
  CHECK_THAT(refusal(pipe, 102'400), ContainsSubstring("more than 100.0 KiB"));
}

TEST_CASE("a file written on another system has the same lines", "[text]") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const auto read = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return read_text(path, {"the list"}).text;
  };
  CHECK(read("\xef\xbb\xbfone\r\ntwo\r\n") == "one\ntwo\n");
  CHECK(read("one\ntwo") == "one\ntwo");
  CHECK(read("a\rb\r\r\n\r") == "a\rb\r\n\r");
  std::ofstream(path, std::ios::binary) << "\xff\xfeo\0n\0";
  CHECK_THAT(refusal(path), ContainsSubstring("UTF-16"));
}

}  // namespace file_text_tests
