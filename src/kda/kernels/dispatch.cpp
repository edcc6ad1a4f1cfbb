#include "kda/kernels/table.hpp"

namespace kda_check::kda {

namespace baseline {
extern const KernelTable table;
}
#ifdef KDA_CHECK_X86
namespace x86_64_v3 {
extern const KernelTable table;
}
namespace x86_64_v4 {
extern const KernelTable table;
}
#endif

KernelTables kernel_tables() {
  KernelTables tables{};
#ifdef KDA_CHECK_X86
  __builtin_cpu_init();
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) tables.table[tables.count++] = &x86_64_v4::table;
  if (v3) tables.table[tables.count++] = &x86_64_v3::table;
#endif
  tables.table[tables.count++] = &baseline::table;
  return tables;
}

const KernelTable& kernel_table() {
  static const KernelTable& best = *kernel_tables().table[0];
  return best;
}

}  // namespace kda_check::kda
