#include "base/scratch_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"

namespace kda_check {

namespace {

std::string created(const std::string& ending) {
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(failure);
  std::string path = (folder / ("kda-check-XXXXXX" + ending)).string();
  const int descriptor = failure ? -1 : ::mkostemps(path.data(), static_cast<int>(ending.size()), O_CLOEXEC);
  if (descriptor < 0)
    throw Error(ErrorKind::environment, fmt::format("cannot make a temporary file: {}", std::strerror(errno)),
                {}, "TMPDIR says where");
  ::close(descriptor);
  return path;
}

}  // namespace

ScratchFile::ScratchFile(const std::string& ending) : file_(created(ending)) {}
ScratchFile::~ScratchFile() { std::remove(path().c_str()); }

}  // namespace kda_check
