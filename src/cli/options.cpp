// Options that commands share, with one meaning.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/names.hpp"
#include "base/threads/parallel.hpp"
#include "cli/command.hpp"
#include "explain/invariants/invariants.hpp"
#include "kda/pool/pool.hpp"
#include "plan/requirements.hpp"

namespace kda_check::cli {

namespace {

/// A list, or "none" for an empty one.
std::function<void(Names)> into(std::optional<Names>& target, const char* flag) {
  return [&target, flag](Names names) {
    if (std::ranges::find(names, "none") != names.end()) {
      if (names.size() > 1) throw Error(ErrorKind::usage, fmt::format("{}: none beside other names", flag));
      names.clear();
    }
    target = std::move(names);
  };
}

}  // namespace

void add_resources(Parser& parser, ResourceOptions& options) {
  options.threads = options.limits.threads = available_threads();
  parser.group("Resources");
  parser.number(
      "--threads", 1, 1024,
      [&](std::size_t count) {
        options.threads = options.limits.threads = static_cast<int>(count), options.is_set = true;
      },
      "Threads to use; results do not depend on it (default: all processors)");
  parser.value(
      "--memory-limit", "SIZE",
      [&](const std::string& text) {
        const auto size = parse_size(text);
        if (!size)
          throw Error(ErrorKind::usage, fmt::format("--memory-limit {}: not a size", text), {},
                      "e.g. 512M, 8G or 8GiB");
        options.limits.memory_budget = *size;
        options.is_set = true;
      },
      "Memory for tensors and outputs; a problem that needs more is refused (default: half of what the "
      "process may use)");
}

void add_targets(Parser& parser, plan::Request& request, const char* text) {
  parser.positionals(request.targets, "TARGET...", text);
}

void add_variants(Parser& parser, plan::Selection& selection, const char* text) {
  parser.names("--variant", "NAME,...", into(selection.variants, "--variant"), text);
}

void add_recorded(Parser& parser, plan::Selection& selection, const char* text) {
  parser.names("--recorded", "NAME,...", into(selection.recorded, "--recorded"), text);
}

void add_dtypes(Parser& parser, plan::Selection& selection) {
  parser.names(
      "--dtype", "NAME,...", [&](Names names) { selection.dtypes = std::move(names); },
      "fp64, fp32, bf16, fp16 or fixture, the dtype of the file (default)");
}

void add_tensors(Parser& parser, plan::Selection& selection) {
  parser.names(
      "--tensor", "NAME,...",
      [&](Names names) {
        for (std::string& name : names) name = std::string(kda::in_ordinary_form(name));
        selection.tensors = std::move(names);
      },
      "Only these tensors, of either pass: o, final_state, dq, dk ...");
}

void add_passes(Parser& parser, plan::Selection& selection) {
  parser.flag(
      "--backward", [&] { selection.pass = kda::Pass::backward; },
      "The backward pass alone: the gradients of problems with do or dht");
  parser.flag(
      "--no-backward", [&] { selection.pass = kda::Pass::forward; }, "The forward pass alone: no gradients");
}

void add_arithmetic(Parser& parser, plan::Request& request) {
  parser.names(
      "--arithmetic", "KEY=VALUE,...", [&](Names words) { request.arithmetic = std::move(words); },
      "How variants compute: a preset, or settings such as decay=pair (kda-check list arithmetic)");
}

void add_chunk_size(Parser& parser, plan::Request& request) {
  parser.number(
      "--chunk-size", 1, 1024, [&](std::size_t rows) { request.chunk_size = rows; },
      "Rows of a chunk (default: the fixture's)");
}

void add_oracle_device(Parser& parser, plan::Request& request) {
  parser.choice(
      "--oracle-device", "DEVICE", plan::oracle_devices, request.oracle_device,
      "Where the oracle and twins run; auto (default): on a GPU if that is faster. No bit depends on it");
}

void add_selection(Parser& parser, plan::Request& request) {
  parser.group("What is selected");
  add_variants(parser, request.selection, "Variants to run, or none (default: all that can run here)");
  add_recorded(parser, request.selection, "Recorded outputs of the files to judge, or none (default: all)");
  add_dtypes(parser, request.selection);
  add_tensors(parser, request.selection);
  add_passes(parser, request.selection);
  add_arithmetic(parser, request);
  add_chunk_size(parser, request);
}

void add_limits(Parser& parser, plan::Judging& judging, const char* text) {
  parser.repeated(
      "--limit", "METRIC=VALUE",
      [&](const std::string& given) {
        if (judging.limits.empty()) judging.limits.push_back({std::string(plan::command_line), {}});
        judging.limits.front().requests.push_back(judge::parse_limit(given));
      },
      text);
}

void add_judging(Parser& parser, plan::Judging& judging) {
  parser.group("Limits");
  add_limits(parser, judging, "The limit of one metric: a number, exact (0) or none; repeatable");
  parser.value(
      "--max-ulp", "N",
      [&](const std::string& given) {
        if (judging.limits.empty()) judging.limits.push_back({std::string(plan::command_line), {}});
        judging.limits.front().requests.push_back(judge::parse_limit("max_ulp=" + given));
      },
      "Short for --limit max_ulp=N");
  parser.figure("--atol", judging.atol, "Every element must meet |got - expected| <= atol + rtol |expected|");
  parser.figure("--rtol", judging.rtol, "See --atol; it needs --atol");
  parser.number(
      "--worst", 0, 1000, [&](std::size_t points) { judging.worst = points; },
      "Points to list for a failed tensor (default 5)");
}

void check_judging(const plan::Judging& judging) {
  if (judging.rtol && !judging.atol)
    throw Error(ErrorKind::usage, "--rtol without --atol: elements near zero could not meet it", {},
                "e.g. --atol 1e-3; --atol 0 if that is meant");
  for (const judge::LimitLayer& layer : judging.limits)
    for (const judge::LimitRequest& limit : layer.requests)
      if (std::ranges::count(layer.requests, limit.metric, &judge::LimitRequest::metric) > 1)
        throw Error(ErrorKind::usage, fmt::format("two limits on {}", limit.metric));
}

void add_requirements(Parser& parser, plan::Request& request) {
  parser.names(
      "--require", "NAME,...", [&](Names names) { request.required = std::move(names); },
      "Fail unless these ran and were judged: a variant, a recorded output, the external program.\n"
      "gpu: do not start without a GPU that works (exit code 4)");
}

}  // namespace kda_check::cli
