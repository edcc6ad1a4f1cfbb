// Small text files, whole.
#pragma once

#include <cstddef>
#include <string>

#include "base/file_identity.hpp"

namespace kda_check {

struct TextRequest {
  std::string what;  ///< for messages: "the baseline"
  std::string hint = {};
  std::size_t most_bytes = std::size_t{256} << 20;
};

struct TextFile {
  std::string text;
  FileIdentity identity;  ///< of the file as it was read (OutputFile::replaces)
};

/// What a regular file or a pipe holds, lines ending with a line feed alone, without a byte order mark.
/// Throws Error{input}: a folder, a device, one that cannot be read, more bytes than wanted, UTF-16, one that
/// was written while it was read; Error{environment} where descriptors or memory are lacking. A pipe that
/// nobody writes is waited for (Interrupted).
TextFile read_text(const std::string& path, const TextRequest& request);

}  // namespace kda_check
