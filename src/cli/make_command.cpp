#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/make.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "A regime is NAME or NAME:key=value,key=value (kda-check list regimes). All take B, T, H, HV, K, V, C, "
    "seed\n"
    "and dtype (fp32); the same words give the same file. What each must show: docs/regimes.md.\n"
    "\n"
    "Examples:\n"
    "  kda-check make corr_keys -o corr.h5\n"
    "  kda-check make corr_keys:rho=0.99,beta=0.5,T=512,dtype=bf16 -o corr.h5\n"
    "  kda-check make k3_layer1:seed=2 -o k3.h5 && kda-check run k3.h5\n"
    "  kda-check run k3_layer1:seed=2                    the same without a file\n";

void refuse_folder(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure))
    throw Error(ErrorKind::environment, "cannot write: it is a folder", path);
}

}  // namespace

int make_main(const Words& words) {
  session::MakeRequest request;
  CLI::App app;
  prepare(app, "make", "Write a regime as a fixture");
  app.footer(footer);
  app.add_option("regime", request.regime, "NAME or NAME:key=value,...")->required()->option_text("REGIME");
  app.add_option("-o,--output", request.path, "The file to write")->required()->option_text("FILE.h5");
  app.add_option("--compression", request.compression, "Level of deflate; 0 stores elements as they are (4)")
      ->check(CLI::Range(0, 9))
      ->option_text("0..9");
  add_memory_limit(app, request.limits.memory_budget);
  if (const auto done = parse(app, words)) return *done;
  refuse_folder(request.path);
  const report::FixtureResult made = session::make(request);
  write_stdout(fmt::format("{}  {}  {}  {}\n", made.path, made.name, made.shape, made.options));
  return 0;
}

}  // namespace kda_check::cli
