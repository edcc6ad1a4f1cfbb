#include "base/memory.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "base/names.hpp"
#include "base/threads/parallel.hpp"

namespace kda_check {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

/// The first word of a file as a number; no_limit where there is none ("max", no such file).
std::size_t number_in(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  std::size_t value = no_limit;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  return failure == std::errc{} && end == word.data() + word.size() ? value : no_limit;
}

/// A mounted file system of control groups (man 5 proc: mountinfo).
struct Mount {
  std::string root;   ///< the group that is at its top, as /proc/self/cgroup names groups
  std::string point;  ///< where it is
  bool version_2;
};

std::vector<Mount> group_mounts(const std::string& root) {
  std::ifstream file(root + "/proc/self/mountinfo");
  std::vector<Mount> mounts;
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> place = split(line.substr(0, dash), ' ');
    const std::vector<std::string> kind = split(line.substr(dash + 3), ' ');
    if (place.size() < 5 || kind.size() < 3) continue;
    const std::vector<std::string> options = split_commas(kind[2]);
    const bool of_memory = std::find(options.begin(), options.end(), "memory") != options.end();
    if (kind[0] == "cgroup2" || (kind[0] == "cgroup" && of_memory))
      mounts.push_back({place[3], root + place[4], kind[0] == "cgroup2"});
  }
  return mounts;
}

/// The group of this process in one hierarchy: "/user.slice/x" of the line "4:cpu,memory:/user.slice/x" or,
/// for version 2, "0::/user.slice/x".
std::optional<std::string> group_of_process(const std::string& root, bool version_2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> names = split_commas(line.substr(first + 1, second - first - 1));
    const bool wanted =
        version_2 ? names.empty() : std::find(names.begin(), names.end(), "memory") != names.end();
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// The least limit of a group and of all around it, as far as they can be seen from here.
std::size_t limit_of_groups(const std::string& root, const Mount& mount) {
  std::optional<std::string> group = group_of_process(root, mount.version_2);
  if (!group) return no_limit;
  if (mount.root != "/" && group->starts_with(mount.root)) group->erase(0, mount.root.size());
  const fs::path top = mount.point;
  const char* const name = mount.version_2 ? "memory.max" : "memory.limit_in_bytes";
  fs::path folder = (top / fs::path(*group).relative_path()).lexically_normal();
  std::size_t limit = number_in(top / name);  // also where the group is outside of what is mounted: "/../x"
  for (; folder != top && folder != folder.parent_path(); folder = folder.parent_path())
    limit = std::min(limit, number_in(folder / name));
  return limit;
}

std::size_t resource_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return no_limit;
  return limit.rlim_cur == RLIM_INFINITY ? no_limit : static_cast<std::size_t>(limit.rlim_cur);
}

std::size_t physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page)
                               : std::size_t{1} << 33;
}

}  // namespace

std::size_t usable_memory(const std::string& root) {
  std::size_t least = physical_memory();
  for (const Mount& mount : group_mounts(root)) least = std::min(least, limit_of_groups(root, mount));
  for (const int resource : {RLIMIT_AS, RLIMIT_DATA}) least = std::min(least, resource_limit(resource));
  return least;
}

void give_back_large_blocks() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 16 << 20);  // what small ones leave free is asked for again soon
}

void touch_pages(void* memory, std::size_t bytes, int threads) {
  constexpr std::size_t page = 4096;
  auto* const begin = static_cast<volatile char*>(memory);
  const std::size_t before = reinterpret_cast<std::uintptr_t>(memory) % large_page_bytes,
                    end = before + bytes;
  parallel_for((end + large_page_bytes - 1) / large_page_bytes, threads, [&](std::size_t i, int) {
    const std::size_t stop = std::min(end, (i + 1) * large_page_bytes);
    for (std::size_t at = std::max(before, i * large_page_bytes); at < stop; at += page)
      begin[at - before] = 0;
  });
}

std::optional<std::size_t> parse_size(std::string_view text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  std::string letters(unit);
  std::transform(letters.begin(), letters.end(), letters.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  double factor = letters.empty() || letters == "b" ? 1 : 0;
  constexpr std::string_view prefixes = "kmgt";
  if (const std::size_t power = letters.empty() ? std::string_view::npos : prefixes.find(letters[0]);
      power != std::string_view::npos) {
    const std::string rest = letters.substr(1);
    if (rest.empty() || rest == "i" || rest == "ib") factor = std::pow(1024.0, power + 1);
    if (rest == "b") factor = std::pow(1000.0, power + 1);
  }
  const double bytes = value * factor;
  if (!(bytes >= 1 && bytes <= 0x1p62)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

std::string size_text(std::size_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace kda_check
