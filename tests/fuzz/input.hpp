// What the targets share.
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/descriptors.hpp"
#include "base/error.hpp"

namespace kda_check::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// What must hold of every input; else the input is kept as a crash.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Refusals are fine when they blame whoever gave the input.
inline void require_refusal(const Error& error) {
  require(error.kind() == ErrorKind::usage || error.kind() == ErrorKind::input);
}

/// A file in memory, for code that opens files by name.
class File {
 public:
  explicit File(std::string_view text) : file_(::memfd_create("input", MFD_CLOEXEC)) {
    require(write_all(file_.number(), text));
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", file_.number()); }

 private:
  Descriptor file_;
};

}  // namespace kda_check::fuzz
