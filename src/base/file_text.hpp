// Small text files, whole.
#pragma once

#include <optional>
#include <string>

namespace kda_check {

/// The bytes of a file; nullopt for one that cannot be read, a folder among them.
std::optional<std::string> file_text(const std::string& path);

}  // namespace kda_check
