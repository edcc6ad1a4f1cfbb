#include "plan/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/shortage.hpp"
#include "kda/regimes/regimes.hpp"

namespace kda_check::plan {

namespace fs = std::filesystem;

namespace {

bool exists(const std::string& path) {
  std::error_code failure;
  return fs::exists(path, failure);
}

bool is_fixture_name(const fs::path& path) {
  return path.extension() == ".h5" || path.extension() == ".hdf5";
}

/// The fixtures below a folder, relative to it.
std::vector<fs::path> fixtures_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failure;
  fs::recursive_directory_iterator at(folder, failure);
  for (; !failure && at != fs::recursive_directory_iterator(); at.increment(failure)) {
    std::error_code unknown;
    if (is_fixture_name(at->path()) && !at->is_directory(unknown))
      found.push_back(at->path().lexically_relative(folder));
  }
  if (failure)
    throw Error(kind_of_failed_input(failure.value()),
                fmt::format("cannot read the folder: {}", failure.message()), folder.string());
  std::sort(found.begin(), found.end());
  return found;
}

std::string below(const std::string& folder, const std::string& text) {
  if (folder.empty() || text.starts_with("/")) return text;
  return (fs::path(folder) / text).lexically_normal().string();
}

/// Throws Error{usage} for a word that is neither a file nor a regime and does not look like a path, with the
/// nearest regime.
void refuse_unknown(const std::string& text) {
  const std::string_view word = std::string_view(text).substr(0, text.find(':'));
  const bool like_a_word = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_';
  });
  if (!like_a_word) return;
  std::vector<std::string> names;
  for (const kda::Recipe& recipe : kda::recipes()) names.emplace_back(recipe.name);
  std::string hint = suggest(word, names);
  if (!hint.starts_with("did")) hint = "kda-check list regimes";
  throw Error(ErrorKind::usage, fmt::format("'{}' is neither a file nor a regime", text), {}, hint);
}

}  // namespace

bool is_regime(const std::string& text) { return kda::names_recipe(text) && !exists(text); }

bool is_suite(const std::string& text) { return text.starts_with("@") && !exists(text); }

bool looks_like_a_target(const std::string& text) {
  std::error_code failure;
  return kda::names_recipe(text) || text.starts_with("@") || is_fixture_name(text) ||
         fs::is_directory(text, failure);
}

std::vector<Target> expanded(const std::string& text, const std::string& folder, const std::string& called) {
  if (text.empty()) throw Error(ErrorKind::usage, "a target is an empty word", {}, "kda-check run FILE.h5");
  const std::string path = below(folder, text), name = below(called, text);
  if (kda::names_recipe(text) && !exists(path)) return {{text, text, true}};
  if (!exists(path)) refuse_unknown(text);
  std::error_code failure;
  if (!fs::is_directory(path, failure)) return {{name, path, false}};
  std::vector<Target> targets;
  for (const fs::path& file : fixtures_below(path))
    targets.push_back({(fs::path(name) / file).string(), (fs::path(path) / file).string(), false});
  if (targets.empty())
    throw Error(ErrorKind::usage, fmt::format("{} holds no .h5 or .hdf5 file", path), {},
                "fixtures end so; python -m kda_check convert makes one of other formats (docs/python.md)");
  return targets;
}

}  // namespace kda_check::plan
