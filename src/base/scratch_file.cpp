#include "base/scratch_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"

namespace kda_check {

namespace {

std::string created(const std::string& ending) {
  const char* const wanted = std::getenv("TMPDIR");
  const std::string folder = wanted == nullptr || *wanted == '\0' ? "/tmp" : wanted;
  std::string path = folder + "/kda-check-XXXXXX" + ending;
  const int descriptor = ::mkostemps(path.data(), static_cast<int>(ending.size()), O_CLOEXEC);
  if (descriptor < 0)
    throw Error(ErrorKind::environment, fmt::format("cannot make a temporary file: {}", std::strerror(errno)),
                folder, "TMPDIR says where");
  ::close(descriptor);
  return path;
}

}  // namespace

ScratchFile::ScratchFile(const std::string& ending) : file_(created(ending)) {}
ScratchFile::~ScratchFile() { std::remove(path().c_str()); }

}  // namespace kda_check
