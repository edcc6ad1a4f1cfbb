// The one place where exceptions end and become a line on standard error and an exit code.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/memory.hpp"
#include "base/names.hpp"
#include "base/shortage.hpp"
#include "cli/app.hpp"
#include "cli/progress.hpp"
#include "fixture/reading_server.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/environment.hpp"

namespace {

int report(kda_check::ErrorKind kind, const char* text) {
  std::fflush(stdout);
  kda_check::cli::write_stderr(fmt::format("kda-check: error: {}\n", kda_check::printable(text)));
  return kda_check::exit_code(kind);
}

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
  using kda_check::ErrorKind;
  kda_check::give_back_large_blocks();
  kda_check::prepare_signals();
  kda_check::cli::reserve_standard_streams();
  try {
    kda_check::require_stack();
    check_floating_point();
    kda_check::fixture::prepare_reading();
    return kda_check::cli::app_main(argc, argv);
  } catch (const kda_check::Interrupted& interrupted) {
    kda_check::end_by_signal(interrupted.signal);
  } catch (const kda_check::Error& error) {
    return report(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorKind::environment,
                  "out of memory; hint: smaller fixtures, a smaller shape or fewer --threads");
  } catch (const std::exception& error) {
    return report(
        ErrorKind::internal,
        fmt::format("a bug in kda-check: {}; hint: please report it with the command line", error.what())
            .c_str());
  }
}
