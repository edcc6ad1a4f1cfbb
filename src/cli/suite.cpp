#include "cli/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::cli {

namespace fs = std::filesystem;

namespace {

/// cases/ as installed beside the program, or in the source tree the program was built from.
std::vector<fs::path> case_directories() {
  std::vector<fs::path> places;
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  if (!failure) places.push_back(program.parent_path().parent_path() / "share" / "kda-check" / "cases");
  places.emplace_back(KDA_CHECK_SOURCE_CASES);
  return places;
}

}  // namespace

std::vector<std::string> suite_names() {
  for (const fs::path& place : case_directories()) {
    std::vector<std::string> names;
    std::error_code failure;
    for (const fs::directory_entry& entry : fs::directory_iterator(place / "suites", failure))
      if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
    std::sort(names.begin(), names.end());
    if (!names.empty()) return names;
  }
  return {};
}

std::string Suite::place(const SuiteLine& line) const { return fmt::format("{}:{}", path, line.number); }

std::string Suite::path_of(const std::string& in_line) const {
  if (in_line.empty() || in_line.starts_with("/")) return in_line;
  return fs::proximate(fs::path(directory) / in_line).string();
}

Suite load_suite(const std::string& target) {
  const std::string name = target.substr(1);
  fs::path path = name;
  if (name.find('/') == std::string::npos && !name.ends_with(".txt")) {
    std::error_code failure;
    path.clear();
    for (const fs::path& place : case_directories())
      if (path.empty() && fs::exists(place / "suites" / (name + ".txt"), failure))
        path = place / "suites" / (name + ".txt");
    if (path.empty())
      throw Error(ErrorKind::usage, fmt::format("no suite '@{}'", name), {}, suggest(name, suite_names()));
  }
  std::error_code failure;
  if (fs::is_directory(path, failure))
    throw Error(ErrorKind::input, fmt::format("'{}' is a folder, not a suite", target), {},
                fmt::format("without the @: kda-check run {}", name));
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::input, "cannot open the suite", path.string());
  Suite suite;
  suite.path = path.string();
  suite.directory = path.parent_path().string();
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream stream(line.substr(0, line.find('#')));
    Words words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (!words.empty()) suite.lines.push_back({number, std::move(words)});
  }
  if (suite.lines.empty()) throw Error(ErrorKind::input, "the suite has no lines", suite.path);
  return suite;
}

}  // namespace kda_check::cli
