// What must hold before there is any work, and the exit code.
#include <unistd.h>

#include <cstdio>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/memory.hpp"
#include "base/sanitized.hpp"
#include "base/shortage.hpp"
#include "cli/app.hpp"
#include "cli/progress.hpp"
#include "fixture/reading_server.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/environment.hpp"

namespace {

void check_floating_point() {
  const std::string defect = kda_check::numeric::floating_point_defect();
  if (!defect.empty())
    throw kda_check::Error(
        kda_check::ErrorKind::environment, "every figure would be wrong: " + defect, {},
        "run without whatever changes the floating-point environment (LD_PRELOAD, -ffast-math libraries)");
  constexpr float e = 0x1p-23f;
  if (!kda_check::kda::kernel_table().keeps_roundings_apart(1 + e, 1 + e, -(1 + 2 * e)))
    throw kda_check::Error(kda_check::ErrorKind::internal, "the kernels were built with contraction", {},
                           "compile with -ffp-contract=off");
}

}  // namespace

int main(int argc, char** argv) {
  kda_check::give_back_large_blocks();
  kda_check::prepare_signals();
  kda_check::cli::reserve_standard_streams();
  const int code = kda_check::cli::guarded([&] {
    kda_check::require_stack();
    check_floating_point();
    kda_check::fixture::prepare_reading();
    return kda_check::cli::called_with({argv + 1, argv + argc});
  });
  std::fflush(nullptr);
  // All is written, and the system takes memory and devices back sooner than they would be tidied up.
  if (!kda_check::is_sanitized) ::_exit(code);
  return code;
}
