// How much memory there is, how the system hands it out, and sizes as people write them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kda_check {

/// Bytes that this process may use at most: the least of the physical memory, the limits of its control
/// groups and all groups around them (version 1 and 2), RLIMIT_AS and RLIMIT_DATA. What it uses already, and
/// what others do, is not taken off. `root`: the folder that stands for /, of tests.
std::size_t usable_memory(const std::string& root = "");

/// From now on blocks of a megabyte and more go back to the system when they are freed. Otherwise malloc()
/// comes to keep them, in the arenas of threads that have ended too, and small blocks that stay pin them
/// there.
void give_back_large_blocks();

inline constexpr std::size_t large_page_bytes = std::size_t{2} << 20;

/// Has the system hand out memory that nobody has written to yet, several threads at it, a large page each:
/// where threads fill what lies between that of others, each page is waited for by all of them. What is there
/// afterwards is not said.
void touch_pages(void* memory, std::size_t bytes, int threads);

/// "512M", "8G", "8GiB", "1.5 GiB", "4096" in bytes: K, M, G, T and KiB ... are powers of 1024, kB, KB, MB,
/// GB, TB powers of 1000, in either case; B are bytes. nullopt: no such size, none above 0, one beyond 2^62.
std::optional<std::size_t> parse_size(std::string_view text);

/// "300 bytes", "1.5 GiB".
std::string size_text(std::size_t bytes);

}  // namespace kda_check
