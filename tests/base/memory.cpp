#include "base/memory.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/temporary_folder.hpp"

namespace memory_tests {

namespace fs = std::filesystem;
using namespace kda_check;
using test::TemporaryFolder;

namespace {

/// A made-up system: files of /proc and /sys under a folder.
class System {
 public:
  void put(const std::string& path, const std::string& text) const {
    const fs::path file = folder_.path() + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::size_t memory() const { return usable_memory(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

constexpr char unlimited[] = "9223372036854771712\n";

}  // namespace

TEST_CASE("memory is limited by the group of the process and by all around it, version 2", "[memory]") {
  const System system;
  const std::size_t physical = system.memory();
  CHECK(physical > (1 << 24));
  system.put("/proc/self/mountinfo",
             "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  system.put("/proc/self/cgroup", "0::/user.slice/job.scope\n");
  CHECK(system.memory() == physical);
  system.put("/sys/fs/cgroup/user.slice/job.scope/memory.max", "max\n");
  CHECK(system.memory() == physical);
  system.put("/sys/fs/cgroup/user.slice/job.scope/memory.max", "2097152\n");
  CHECK(system.memory() == 2097152);
  system.put("/sys/fs/cgroup/user.slice/memory.max", "1048576\n");
  CHECK(system.memory() == 1048576);
  system.put("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  CHECK(system.memory() == 2097152);
  system.put("/sys/fs/cgroup/other/memory.max", "4096\n");
  CHECK(system.memory() == 2097152);
}

TEST_CASE("memory is limited by groups of version 1", "[memory]") {
  const System system;
  const std::size_t physical = system.memory();
  system.put("/proc/self/mountinfo",
             "30 1 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "31 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  system.put("/proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:memory:/a/b\n0::/\n");
  system.put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", unlimited);
  system.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited);
  CHECK(system.memory() == physical);
  system.put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3145728\n");
  CHECK(system.memory() == 3145728);
}

TEST_CASE("memory is limited by the group of a container, which is mounted as the top", "[memory]") {
  const System system;
  system.put("/proc/self/mountinfo",
             "30 1 0:25 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  system.put("/proc/self/cgroup", "4:memory:/docker/abc\n");
  system.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5242880\n");
  CHECK(system.memory() == 5242880);
  // The groups of the machine are named, those of the container are to be seen.
  system.put("/proc/self/cgroup", "4:memory:/../../machine/abc\n");
  CHECK(system.memory() == 5242880);
}

TEST_CASE("memory is limited by what the shell allows", "[memory]") {
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    test::Child child([&](const auto&) {
      const rlimit limit{std::size_t{1} << 40, RLIM_INFINITY}, less{123 << 20, RLIM_INFINITY};
      ::setrlimit(resource, &limit);
      if (usable_memory("/no/such/system") >= std::size_t{1} << 40) return 1;
      ::setrlimit(resource, &less);
      return usable_memory("/no/such/system") == 123 << 20 ? 0 : 2;
    });
    CHECK(child.exit_status() == 0);
  }
}

TEST_CASE("sizes are read as people write them", "[memory]") {
  CHECK(parse_size("4096") == 4096);
  CHECK(parse_size("512M") == std::size_t{512} << 20);
  CHECK(parse_size("8G") == std::size_t{8} << 30);
  CHECK(parse_size("8GiB") == std::size_t{8} << 30);
  CHECK(parse_size("8gib") == std::size_t{8} << 30);
  CHECK(parse_size("8Gi") == std::size_t{8} << 30);
  CHECK(parse_size("8GB") == 8'000'000'000);
  CHECK(parse_size("1.5 GiB") == std::size_t{3} << 29);
  CHECK(parse_size("2k") == 2048);
  CHECK(parse_size("1T") == std::size_t{1} << 40);
  CHECK(parse_size("100 B") == 100);
  for (const char* const wrong : {"", "G", "8X", "8GiBs", "8 G B", "-1", "0", "0.5", "nan", "inf", "1e30",
                                  "8Kb b", "9999999T", "8ib", "0x10", " 8"}) {
    INFO(wrong);
    CHECK_FALSE(parse_size(wrong));
  }
}

TEST_CASE("sizes are told in the largest unit that leaves a whole part", "[memory]") {
  CHECK(size_text(0) == "0 bytes");
  CHECK(size_text(1023) == "1023 bytes");
  CHECK(size_text(1536) == "1.5 KiB");
  CHECK(size_text(std::size_t{8} << 30) == "8.0 GiB");
  CHECK(size_text(~std::size_t{0}) == "16.0 EiB");
}

TEST_CASE("Pages are touched within the memory that is asked for alone, wherever it begins and ends") {
  constexpr unsigned char mark = 0xa5;
  std::vector<unsigned char> memory(3 * large_page_bytes, mark);
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, large_page_bytes + 17})
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{4097}, large_page_bytes + 5}) {
      std::fill(memory.begin(), memory.end(), mark);
      touch_pages(memory.data() + first, count, 4);
      INFO(first << ' ' << count);
      CHECK(std::all_of(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(first),
                        [](unsigned char byte) { return byte == mark; }));
      CHECK(std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(first + count), memory.end(),
                        [](unsigned char byte) { return byte == mark; }));
      CHECK((count == 0 || memory[first] == 0));
    }
}

}  // namespace memory_tests
