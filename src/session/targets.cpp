#include "session/targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::session {

namespace fs = std::filesystem;

std::vector<std::string> expanded_targets(const std::vector<std::string>& targets) {
  std::vector<std::string> files;
  for (const std::string& target : targets) {
    if (target.empty())
      throw Error(ErrorKind::usage, "a target is an empty word", {}, "kda-check run FILE.h5");
    std::error_code failure;
    if (!fs::is_directory(target, failure)) {
      files.push_back(target);
      continue;
    }
    std::vector<std::string> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(target, failure))
      if (entry.path().extension() == ".h5") inside.push_back(entry.path().string());
    if (failure)
      throw Error(ErrorKind::input, fmt::format("cannot read the folder: {}", failure.message()), target);
    if (inside.empty()) throw Error(ErrorKind::usage, fmt::format("{} holds no .h5 file", target));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  if (files.empty()) throw Error(ErrorKind::usage, "no fixture given", {}, "kda-check run FILE.h5");
  return without_repeats(std::move(files));
}

}  // namespace kda_check::session
