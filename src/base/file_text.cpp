#include "base/file_text.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace kda_check {

std::optional<std::string> file_text(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return std::nullopt;
  return text;
}

}  // namespace kda_check
