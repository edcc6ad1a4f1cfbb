#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/command.hpp"
#include "fixture/fixture.hpp"
#include "kda/bounds/gate_statistics.hpp"
#include "kda/problem/gradients.hpp"
#include "numeric/product_sum.hpp"
#include "plan/source.hpp"

namespace kda_check::cli {

namespace {

using report::Show;
using report::Value;

struct Range {
  double least = HUGE_VAL, greatest = -HUGE_VAL;
  numeric::ProductSum squares;
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
    range.squares.add_square(value);
  }
  return range;
}

struct Showing {
  const fixture::Fixture& file;
  bool with_values;

  report::Section tensors() const {
    report::Section section;
    section.key = section.title = "tensors";
    section.path = file.path();
    section.tabular = true;
    section.columns = {{"tensor", {}, Show::code}, {"type", {}}, {"shape", {}}};
    if (with_values)
      section.columns.insert(section.columns.end(), {{"min", {}, Show::figure},
                                                     {"max", {}, Show::figure},
                                                     {"rms", {}, Show::figure},
                                                     {"not_finite", "not finite", Show::count}});
    add(section, file.inputs());
    for (const fixture::ExpectedGroup& group : file.expected()) {
      add(section, group.tensors);
      add(section, group.stages);
    }
    return section;
  }

  void add(report::Section& section, const std::vector<fixture::DatasetInfo>& list) const {
    for (const fixture::DatasetInfo& info : list) {
      std::vector<Value> values = {info.path.substr(1), info.type_text, tensor::to_string(info.shape)};
      if (with_values) {
        const Range range = range_of(file.read(info));
        const bool any = range.finite > 0;
        const auto figure = [&](double value) { return any ? Value(value) : Value(); };
        values.insert(values.end(), {figure(range.least), figure(range.greatest),
                                     figure(range.squares.root_mean(range.finite)),
                                     static_cast<std::int64_t>(range.not_finite)});
      }
      section.add(std::move(values));
    }
  }

  report::Section answers() const {
    report::Section section;
    section.key = "answers", section.title = "recorded outputs";
    section.path = file.path();
    section.tabular = true;
    section.columns = {{"name", {}, Show::code},    {"compute", {}}, {"gradients", {}},
                       {"stages", {}, Show::count}, {"device", {}},  {"implementation", {}}};
    for (const fixture::ExpectedGroup& group : file.expected()) {
      std::string gradients;
      for (const kda::GradientRow& row : kda::gradients())
        if (group.tensor(row.name) != nullptr)
          gradients += fmt::format("{}{}", gradients.empty() ? "" : " ", row.name);
      const fixture::ComputeClaim claim = group.compute_claim(file.header().outline().operand_dtype());
      const std::string compute(numeric::row_of(claim.format).name);
      section.add({group.name,
                   claim.assumed_from.empty() ? compute
                                              : fmt::format("{} (assumed: {})", compute, claim.assumed_from),
                   gradients, static_cast<std::int64_t>(group.stages.size()), group.device,
                   group.implementation});
    }
    return section;
  }

  report::Section provenance() const {
    report::Section section;
    section.key = section.title = "provenance";
    section.path = file.path();
    section.tabular = true;
    section.columns = {{"key", {}}, {"value", {}}};
    for (const auto& [name, value] : file.provenance()) section.add({name, value});
    return section;
  }

  std::vector<std::string> facts() const {
    std::vector<std::string> lines;
    if (!file.description().empty()) lines.push_back(file.description());
    lines.push_back(file.options().scale ? fmt::format("scale {:.17g}", *file.options().scale)
                                         : std::string("scale 1/sqrt(K), not stored"));
    if (!file.cu_seqlens().empty()) {
      constexpr std::size_t most = 64;
      std::string text = "cu_seqlens";
      for (std::size_t i = 0; i < file.cu_seqlens().size() && i < most; ++i)
        text += fmt::format(" {}", file.cu_seqlens()[i]);
      if (file.cu_seqlens().size() > most) text += fmt::format(" ... ({})", file.cu_seqlens().size());
      lines.push_back(text);
    }
    if (const std::vector<kda::Checkpoint>& checkpoints = file.header().checkpoints; !checkpoints.empty()) {
      constexpr std::size_t most = 16;
      std::string text = fmt::format("{} checkpoints, tokens of a sequence:", checkpoints.size());
      for (std::size_t i = 0; i < checkpoints.size() && i < most; ++i)
        text += fmt::format("{} {} of {}", i > 0 ? "," : "", checkpoints[i].tokens, checkpoints[i].sequence);
      lines.push_back(text + (checkpoints.size() > most ? " ..." : ""));
    }
    if (file.header().slots) {
      const kda::SlotTable& table = *file.header().slots;
      lines.push_back(fmt::format(
          "a call on a pool of {} slots{}, {}{}{}{}{}{}; padding: {}", file.input("state_pool")->shape[0],
          table.quantisation ? fmt::format(" in {}", file.input("state_pool")->type_text) : "",
          table.columns == 0 ? "one for each sequence" : fmt::format("{} for each sequence", table.columns),
          table.accepted.empty() ? "" : ", by num_accepted_tokens",
          table.has_state.empty() ? "" : ", by has_initial_state",
          table.outputs.empty() ? "" : ", stored by output_indices",
          file.input("state_source") == nullptr ? "" : ", read from state_source",
          table.ring.rows == 0 ? "" : fmt::format(", behind rings of {} rows", table.ring.rows),
          kda::name_of(table.padding)));
      return lines;
    }
    std::string loss;
    for (const char* const name : {"do", "dht"})
      if (file.input(name) != nullptr) loss += fmt::format(" {}", name);
    lines.push_back(loss.empty() ? "backward: no loss (do, dht)" : "backward: loss" + loss);
    return lines;
  }
};

void show_file(const std::string& path, const ResourceOptions& resources, bool with_values,
               Progress& progress, report::Document& document) {
  const fixture::Fixture file = fixture::Fixture::open(path, resources.limits);
  const Showing showing{file, with_values};
  report::ProblemResult problem{file.name(), file.path(), plan::shape_text(file.dimensions()),
                                plan::options_text(file.header().outline()), showing.facts()};
  for (const std::string& warning : file.warnings()) progress.warn(fmt::format("{} ({})", warning, path));
  if (with_values) {
    const kda::Problem inputs = file.read_problem();
    for (const std::string& line : fixture::announce_values(inputs, resources.threads))
      progress.warn(fmt::format("{} ({})", line, path));
    const kda::GateStatistics gates =
        kda::gate_statistics(inputs, static_cast<std::size_t>(file.options().chunk_size), resources.threads);
    problem.notes.push_back(
        fmt::format("gates: largest sum over a chunk {:.4g}, remembered for up to {:.4g} tokens",
                    gates.largest_chunk_sum, gates.persistence));
  }
  document.problems.push_back(std::move(problem));
  document.sections.push_back(showing.tensors());
  if (!file.expected().empty()) document.sections.push_back(showing.answers());
  if (!file.provenance().empty()) document.sections.push_back(showing.provenance());
}

constexpr char show_footer[] = R"(Examples:
  kda-check show fla.h5                 shapes, options, the range of every tensor, whose outputs
  kda-check show fla.h5 --headers       without reading the values

Exit codes: 0 shown; 2 usage; 3 the file is missing or malformed.
)";

}  // namespace

int show_main(const Words& words) {
  Names targets;
  bool headers_only = false;
  OutputOptions output;
  ResourceOptions resources;
  Parser parser("show", "What a fixture holds: shapes, options, ranges of values, recorded outputs",
                show_footer);
  parser.positionals(targets, "FILE...", "Fixtures, folders of them");
  parser.group("What is selected");
  parser.flag("--headers", headers_only, "Do not read the values");
  add_output_options(parser, output);
  add_resources(parser, resources);
  if (!parser.parse(words)) return 0;
  if (targets.empty()) throw Error(ErrorKind::usage, "show: no file given", {}, "kda-check show FILE.h5");
  for (const std::string& target : targets)
    if (plan::is_regime(target))
      throw Error(ErrorKind::usage, fmt::format("show: '{}' is a regime, not a file", target), {},
                  fmt::format("kda-check make {} -o FILE.h5", target));
  return tell(words, output, targets, [&](Outputs&, Progress& progress, report::Document& document) {
    for (const std::string& target : targets)
      for (const plan::Target& file : plan::expanded(target)) {
        try {
          show_file(file.path, resources, !headers_only, progress, document);
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
          document.failures.push_back({error.what(), exit_code(error.kind()), file.path});
        }
      }
  });
}

}  // namespace kda_check::cli
