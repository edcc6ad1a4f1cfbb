#include "cli/shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/names.hpp"
#include "session/targets.hpp"

namespace kda_check::cli {

namespace fs = std::filesystem;

namespace {

/// FNV-1a, then a finalizer: FNV's low bits alone are poor, and the shard is the remainder of them.
class Hash {
 public:
  void add(std::string_view word) {
    for (const char letter : word) step(static_cast<unsigned char>(letter));
    step(0);  // so that words do not run together
  }
  std::uint64_t value() const {
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 33u)) * 0xff51afd7ed558ccdu;
    mixed = (mixed ^ (mixed >> 33u)) * 0xc4ceb9fe1a85ec53u;
    return mixed ^ (mixed >> 33u);
  }

 private:
  void step(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3u; }
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

std::size_t number(std::string_view text) {
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc{} && end == text.data() + text.size() ? value : 0;
}

/// A folder becomes the files in it, as they would be written beside it.
std::vector<std::string> files_of(const std::string& target, const std::string& directory) {
  const fs::path here = fs::path(directory) / target;
  std::error_code failure;
  if (target.empty() || !fs::is_directory(here, failure)) return {target};
  std::vector<std::string> files;
  for (const std::string& file : session::expanded_targets({here.string()}))
    files.push_back((fs::path(target) / fs::path(file).filename()).string());
  return files;
}

}  // namespace

bool Shard::holds(const std::string& target, const Words& line) const {
  Hash hash;
  hash.add(target);
  for (const std::string& word : line) hash.add(word);
  return hash.value() % count == index - 1;
}

std::string Shard::text() const { return fmt::format("{}/{}", index, count); }

Shard parse_shard(const std::string& text) {
  const std::size_t slash = std::min(text.find('/'), text.size());
  Shard shard;
  shard.index = number(std::string_view(text).substr(0, slash));
  shard.count = slash < text.size() ? number(std::string_view(text).substr(slash + 1)) : 0;
  if (shard.index < 1 || shard.index > shard.count)
    throw CLI::ValidationError("--shard", "'" + text + "' is not I/N with 1 <= I <= N, e.g. 2/4");
  return shard;
}

void add_shard(CLI::App& app, Shard& shard) {
  app.add_option_function<std::string>(
         "--shard", [&shard](const std::string& text) { shard = parse_shard(text); },
         "Only the targets of part I of N; together the parts are the whole, none twice")
      ->option_text("I/N")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::vector<std::string> targets_in(const Shard& shard, const std::vector<std::string>& targets,
                                    const Words& line, const std::string& directory, std::size_t& total) {
  std::vector<std::string> kept;
  for (const std::string& target : without_repeats(targets))
    for (std::string& file : files_of(target, directory)) {
      ++total;
      if (shard.holds(file, line)) kept.push_back(std::move(file));
    }
  return kept;
}

}  // namespace kda_check::cli
