#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "fixture/fixture.hpp"
#include "kda/gradients.hpp"
#include "kda/regime.hpp"
#include "session/describe.hpp"
#include "session/sources.hpp"

namespace kda_check::cli {

namespace {

struct Range {
  double least = HUGE_VAL, greatest = -HUGE_VAL, squares = 0;
  std::size_t finite = 0, not_finite = 0;
};

Range range_of(const tensor::Tensor& tensor) {
  Range range;
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const double value = tensor.value(i);
    if (!std::isfinite(value)) {
      ++range.not_finite;
      continue;
    }
    ++range.finite;
    range.least = std::min(range.least, value);
    range.greatest = std::max(range.greatest, value);
    range.squares += value * value;
  }
  return range;
}

/// `width`: of the column of paths.
void print_tensor(std::string& out, const fixture::Fixture& file, const fixture::DatasetInfo& info,
                  std::size_t width, bool with_values) {
  fmt::format_to(std::back_inserter(out), "  {:<{}} {:<5} {:<18}", printable(info.path.substr(1)), width,
                 info.type_text, tensor::to_string(info.shape));
  if (with_values) {
    const Range range = range_of(file.read(info));
    if (range.finite > 0)
      fmt::format_to(std::back_inserter(out), " min {:<11.4g} max {:<11.4g} rms {:.4g}", range.least,
                     range.greatest, std::sqrt(range.squares / static_cast<double>(range.finite)));
    if (range.not_finite > 0) fmt::format_to(std::back_inserter(out), "  {} not finite", range.not_finite);
  }
  out += '\n';
}

void print_tensors(std::string& out, const fixture::Fixture& file,
                   const std::vector<fixture::DatasetInfo>& list, std::size_t width, bool with_values) {
  for (const fixture::DatasetInfo& info : list) print_tensor(out, file, info, width, with_values);
}

/// As wide as the longest path of a tensor.
std::size_t path_width(const fixture::Fixture& file) {
  std::size_t width = 34;
  for (const fixture::ExpectedGroup& group : file.expected())
    for (const auto* const list : {&group.tensors, &group.stages})
      for (const fixture::DatasetInfo& info : *list) width = std::max(width, info.path.size() - 1);
  return width;
}

/// What the backward pass starts from and who answered it: "loss do dht; gradients in torch_fp64: dq dk".
std::string backward_text(const fixture::Fixture& file) {
  std::string seeds;
  for (const char* const name : {"do", "dht"})
    if (file.input(name) != nullptr) seeds += fmt::format(" {}", name);
  std::string text = seeds.empty() ? "no loss (do, dht)" : fmt::format("loss{}", seeds);
  for (const fixture::ExpectedGroup& group : file.expected()) {
    std::string names;
    for (const kda::GradientRow& row : kda::gradients())
      if (group.tensor(row.name) != nullptr) names += fmt::format(" {}", row.name);
    if (!names.empty()) text += fmt::format("; gradients in {}:{}", printable(group.name), names);
  }
  return text;
}

std::string shown(const std::string& path, const fixture::ReadLimits& limits, bool with_values, int threads) {
  const fixture::Fixture file = fixture::Fixture::open(path, limits);
  std::string out = fmt::format("{}\n", printable(file.name()));
  if (!file.description().empty())
    fmt::format_to(std::back_inserter(out), "{}\n", printable(file.description()));
  fmt::format_to(std::back_inserter(out), "{}  {}\n", session::shape_text(file.dimensions()),
                 session::options_text(file));
  if (file.options().scale) {
    fmt::format_to(std::back_inserter(out), "scale {:.17g}\n", *file.options().scale);
  } else {
    fmt::format_to(std::back_inserter(out), "scale 1/sqrt(K), not stored\n");
  }
  if (!file.cu_seqlens().empty()) {
    out += "cu_seqlens";
    for (const std::int64_t offset : file.cu_seqlens())
      fmt::format_to(std::back_inserter(out), " {}", offset);
    out += '\n';
  }
  fmt::format_to(std::back_inserter(out), "backward: {}\n", backward_text(file));
  for (const std::string& warning : file.warnings()) warn(fmt::format("{} ({})", warning, path));
  if (with_values) {
    const kda::Problem problem = file.read_problem();
    for (const std::string& line : fixture::announce_values(problem))
      warn(fmt::format("{} ({})", line, path));
    const kda::Regime regime =
        kda::regime_of(problem, static_cast<std::size_t>(file.options().chunk_size), threads);
    fmt::format_to(std::back_inserter(out),
                   "gates: largest sum over a chunk {:.4g}, remembered for up to {:.4g} tokens\n",
                   regime.largest_chunk_sum, regime.persistence);
  }
  out += "\ninputs\n";
  const std::size_t width = path_width(file);
  print_tensors(out, file, file.inputs(), width, with_values);
  for (const fixture::ExpectedGroup& group : file.expected()) {
    fmt::format_to(std::back_inserter(out), "\nexpected/{}  compute {}{}\n", printable(group.name),
                   numeric::row_of(group.compute_or_storage()).name,
                   group.compute ? "" : " (from the dtype of o)");
    if (!group.implementation.empty())
      fmt::format_to(std::back_inserter(out), "  {}{}{}\n", printable(group.implementation),
                     group.device.empty() ? "" : ", ", printable(group.device));
    print_tensors(out, file, group.tensors, width, with_values);
    print_tensors(out, file, group.stages, width, with_values);
  }
  if (!file.provenance().empty()) out += "\nprovenance\n";
  for (const auto& [name, value] : file.provenance())
    fmt::format_to(std::back_inserter(out), "  {} {}\n", printable(name), printable(value));
  return out;
}

constexpr char footer[] =
    "Examples:\n"
    "  kda-check show fla.h5                 shapes, options, the range of every tensor, who answered\n"
    "  kda-check show fla.h5 --headers       without reading the values\n"
    "\n"
    "Exit codes: 0 shown; 2 usage; 3 the file is missing or malformed.\n";

}  // namespace

int show_main(const Words& words) {
  std::string path;
  bool headers_only = false;
  fixture::ReadLimits limits;
  int threads = 1;
  CLI::App app;
  prepare(app, "show", "What a fixture holds: shapes, options, ranges of values, who answered");
  app.footer(footer);
  app.add_option("file", path, "A fixture")->required()->option_text("FILE");
  app.add_flag("--headers", headers_only, "Do not read the values");
  add_threads(app, threads);
  add_memory_limit(app, limits.memory_budget);
  if (const auto done = parse(app, words)) return *done;
  if (session::is_regime(path))
    throw Error(ErrorKind::usage, fmt::format("show: '{}' is a regime, not a file", path), {},
                fmt::format("kda-check make {} -o FILE.h5", path));
  write_stdout(shown(path, limits, !headers_only, threads));
  return 0;
}

}  // namespace kda_check::cli
