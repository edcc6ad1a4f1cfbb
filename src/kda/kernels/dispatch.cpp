// Which of the tables is used. Compiled for any processor, as is everything that runs before one is chosen.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "kda/kernels/table.hpp"

extern "C" {
extern const kda_check::kda::KernelTable kda_check_kernels_baseline, kda_check_kernels_x86_64_v3,
    kda_check_kernels_x86_64_v4;
}

namespace kda_check::kda {

namespace {

/// An instruction set this program has kernels for.
struct Built {
  std::string_view name;
  const KernelTable* table;
  bool (*runs_here)();
};

#if defined(__x86_64__)
[[maybe_unused]] bool has_v3() {  // a native build has one of them
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
[[maybe_unused]] bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

/// Best first. Which there are is decided in cmake/kernels.cmake.
constexpr Built built[] = {
#ifdef KDA_CHECK_HAS_x86_64_v4
    {"x86_64_v4", &kda_check_kernels_x86_64_v4, has_v4},
#endif
#ifdef KDA_CHECK_HAS_x86_64_v3
    {"x86_64_v3", &kda_check_kernels_x86_64_v3, has_v3},
#endif
#ifdef KDA_CHECK_HAS_baseline
    {"baseline", &kda_check_kernels_baseline, [] { return true; }},
#endif
};

std::string names_of(bool that_run_here) {
  std::string names;
  for (const Built& set : built)
    if (!that_run_here || set.runs_here()) names += (names.empty() ? "" : ", ") + std::string(set.name);
  return names;
}

const KernelTable& chosen_table() {
  const KernelTables tables = kernel_tables();
  if (tables.count == 0)
    throw Error(ErrorKind::environment,
                "this program was built for " + names_of(false) + ", which this processor does not have", {},
                "build it here, or with the CMake preset release, which has kernels for every processor");
  const char* const wanted = std::getenv("KDA_CHECK_ISA");
  if (wanted == nullptr || *wanted == '\0') return *tables.table[0];
  for (int i = 0; i < tables.count; ++i)
    if (std::string_view(tables.table[i]->instruction_set) == wanted) return *tables.table[i];
  throw Error(ErrorKind::usage, "KDA_CHECK_ISA: no kernels for '" + std::string(wanted) +
                                    "' that run here; wanted one of " + names_of(true));
}

}  // namespace

KernelTables kernel_tables() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  KernelTables tables{};
  for (const Built& set : built)
    if (set.runs_here()) tables.table[tables.count++] = set.table;
  return tables;
}

const KernelTable& kernel_table() {
  static const KernelTable& chosen = chosen_table();
  return chosen;
}

}  // namespace kda_check::kda
