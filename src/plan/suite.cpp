#include "plan/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/names.hpp"

namespace kda_check::plan {

namespace fs = std::filesystem;

namespace {

/// cases/ as installed beside the program, or in the source tree the program was built from.
std::vector<fs::path> case_folders() {
  std::vector<fs::path> places;
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  if (!failure) places.push_back(program.parent_path().parent_path() / "share" / "kda-check" / "cases");
  places.emplace_back(KDA_CHECK_SOURCE_CASES);
  return places;
}

/// Of a suite that came with the program; empty where there is none of that name.
fs::path shipped(const std::string& name) {
  std::error_code failure;
  for (const fs::path& place : case_folders())
    if (fs::exists(place / "suites" / (name + ".txt"), failure)) return place / "suites" / (name + ".txt");
  return {};
}

}  // namespace

std::vector<std::string> suite_names() {
  for (const fs::path& place : case_folders()) {
    std::vector<std::string> names;
    std::error_code failure;
    for (const fs::directory_entry& entry : fs::directory_iterator(place / "suites", failure))
      if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
    std::sort(names.begin(), names.end());
    if (!names.empty()) return names;
  }
  return {};
}

std::string Suite::place(const Line& line) const { return fmt::format("{}:{}", name, line.number); }

std::string Suite::path_of(const std::string& in_line) const {
  if (in_line.empty() || in_line.starts_with("/")) return in_line;
  return (fs::path(folder) / in_line).lexically_normal().string();
}

std::vector<Suite::Line> suite_lines(std::string_view text, const std::string& name) {
  std::vector<Suite::Line> lines;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    try {
      if (Words words = words_of(text.substr(0, end)); !words.empty())
        lines.push_back({number, std::move(words)});
    } catch (const Error& error) {
      throw error.in(fmt::format("{}:{}", name, number));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Suite load_suite(const std::string& name) {
  const std::string word = name.substr(1);
  Suite suite;
  suite.name = name;
  fs::path path = word;
  if (word.find('/') == std::string::npos && !word.ends_with(".txt")) {
    path = shipped(word);
    if (path.empty())
      throw Error(ErrorKind::usage, fmt::format("no suite '{}'", name), {}, suggest(word, suite_names()));
    // As seen from here; by name, the same on every machine.
    std::error_code failure;
    const fs::path near = fs::proximate(path, failure);
    if (!failure) path = near;
    suite.called = "cases/suites";
  } else {
    suite.called = path.parent_path().string();
  }
  std::error_code failure;
  if (fs::is_directory(path, failure))
    throw Error(ErrorKind::input, fmt::format("'{}' is a folder, not a suite", name), {},
                fmt::format("without the @: kda-check run {}", word));
  suite.path = path.string();
  suite.folder = path.parent_path().string();
  suite.lines = suite_lines(read_text(path.string(), {"the suite"}).text, name);
  if (suite.lines.empty()) throw Error(ErrorKind::input, "the suite has no lines", path.string());
  return suite;
}

}  // namespace kda_check::plan
