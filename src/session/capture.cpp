#include "session/capture.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/replacement.hpp"
#include "fixture/extension.hpp"
#include "kda/variants.hpp"
#include "report/version.hpp"
#include "session/make.hpp"
#include "session/selection.hpp"
#include "session/sources.hpp"
#include "session/staging.hpp"

namespace kda_check::session {

namespace {

using numeric::DType;

/// One variant, how it is run, and what came of it.
struct Shot {
  const kda::Variant* variant;
  std::string group;
  kda::RunOptions options;
  kda::Answer answer;
  kda::StageTensors stages;  ///< empty tensors: none are kept
  bool with_stages = false;
};

std::vector<const kda::Variant*> runnable_variants(const CaptureRequest& request) {
  if (request.variants.empty())
    throw Error(ErrorKind::usage, "capture: no variant named", {}, "--variant gpu-chunk, for one");
  const std::vector<const kda::Variant*> variants = selected_variants(request.variants);
  check_arithmetic(request.arithmetic, variants);
  for (const kda::Variant* const variant : variants)
    if (const std::string reason = variant->unavailable(); !reason.empty())
      throw Error(ErrorKind::environment, fmt::format("{}: {}", variant->name, reason), {},
                  fmt::format("on a CPU --variant {} --arithmetic h100 gives the same bits, except in fp64",
                              variant->replay));
  return variants;
}

void check_groups(const Source& source, const std::vector<Shot>& shots, bool replace) {
  if (replace) return;
  for (const Shot& shot : shots)
    if (source.expected_named(shot.group) != nullptr)
      throw Error(ErrorKind::usage, fmt::format("expected/{} exists", shot.group), source.path(),
                  "--replace writes it anew");
}

DType dtype_of(const CaptureRequest& request, DType stored) {
  const DType dtype = selected_dtypes({request.dtype}).front().value_or(stored);
  if (!holds_exactly(dtype, stored))
    throw Error(ErrorKind::usage,
                fmt::format("--dtype {} does not hold the {} inputs of {}", numeric::name_of(dtype),
                            numeric::name_of(stored), request.target),
                {}, "what is captured answers the stored inputs; write rounded ones first");
  return dtype;
}

/// Stages have the shapes of the file's chunks: other chunks leave them out or are refused.
void check_chunks(const CaptureRequest& request, const Shot& shot, int of_file) {
  if (!shot.with_stages || shot.options.chunk_size == static_cast<std::size_t>(of_file)) return;
  throw Error(ErrorKind::usage,
              fmt::format("--chunk-size {}: stages are stored in the chunks of the problem, {} tokens",
                          shot.options.chunk_size, of_file),
              {},
              is_regime(request.target)
                  ? fmt::format("--no-stages, or the regime with C={}", shot.options.chunk_size)
                  : "--no-stages");
}

Shot planned_shot(const kda::Variant& variant, const kda::Problem& problem, DType dtype,
                  const CaptureRequest& request) {
  const auto of_file = static_cast<std::size_t>(problem.options.chunk_size);
  Shot shot;
  shot.variant = &variant;
  shot.group = captured_name(variant.name, kda::device_of(variant));
  shot.options = run_options(variant, problem, dtype, request.arithmetic,
                             request.chunk_size.value_or(of_file), request.threads);
  shot.options.memory_limit = request.limits.memory_budget;
  shot.with_stages = request.stages && variant.axes.chunk;
  if (const std::string reason = variant.unsupported(problem, shot.options); !reason.empty())
    throw Error(ErrorKind::usage, fmt::format("{}: {}", variant.name, reason));
  check_chunks(request, shot, problem.options.chunk_size);
  return shot;
}

void check_memory(const std::vector<Shot>& shots, const kda::Problem& problem, std::size_t budget) {
  constexpr double mebibyte = 1 << 20;
  std::size_t bytes = 0;
  for (const Shot& shot : shots) {
    if (!shot.with_stages) continue;
    const kda::Dimensions d = kda::chunked_dimensions(problem, shot.options.chunk_size);
    for (const kda::StageRow& row : kda::stages())
      bytes += tensor::element_count(
                   kda::expected_shape(*kda::find_spec(row.name), d, problem.options.state_v_first)) *
               numeric::format_of(kda::state_dtype(shot.options.dtype)).bytes;
  }
  if (bytes > budget)
    throw Error(ErrorKind::input,
                fmt::format("the stages take {:.1f} MiB, the memory budget is {:.1f} MiB",
                            static_cast<double>(bytes) / mebibyte, static_cast<double>(budget) / mebibyte),
                {}, "--no-stages, or --memory-limit");
}

void take(Shot& shot, const kda::Problem& problem) {
  if (shot.with_stages) {
    shot.stages =
        kda::allocate_stages(problem, shot.options.chunk_size, kda::state_dtype(shot.options.dtype));
    shot.options.stages.computed = &shot.stages;
  }
  shot.answer = shot.variant->run(problem, shot.options);
  if (shot.with_stages)
    store_as_rounded(shot.stages, kda::cast_points(shot.options.arithmetic, shot.options.dtype,
                                                   problem.beta_is_16_bit(), true));
}

/// Before the chunk length in `implementation`, where it is not that of the file.
constexpr std::string_view chunk_size_word = "chunk-size=";

fixture::ExpectedAnswer expected_answer(const Shot& shot, const kda::Problem& problem) {
  fixture::ExpectedAnswer answer;
  answer.name = shot.group;
  answer.implementation =
      fmt::format("kda-check {}: {}", version, kda::describe(shot.options.arithmetic, shot.variant->axes));
  if (shot.variant->axes.chunk &&
      shot.options.chunk_size != static_cast<std::size_t>(problem.options.chunk_size))
    answer.implementation += fmt::format(" {}{}", chunk_size_word, shot.options.chunk_size);
  answer.device = kda::device_of(*shot.variant);
  answer.compute = kda::compute_format(*shot.variant, shot.options.dtype, shot.options.arithmetic);
  answer.tensors = {&shot.answer.o, &shot.answer.final_state};
  if (shot.with_stages)
    for (const tensor::Tensor& stage : shot.stages)
      if (!stage.empty()) answer.stages.push_back(&stage);
  return answer;
}

Captured described(const Shot& shot, const fixture::ExpectedAnswer& answer, const std::string& path) {
  Captured result{path,
                  "expected/" + shot.group,
                  answer.device,
                  kda::describe(shot.options.arithmetic, shot.variant->axes),
                  std::string(numeric::name_of(shot.options.dtype)),
                  std::string(numeric::row_of(answer.compute).name),
                  {},
                  answer.stages.size()};
  for (const tensor::Tensor* const tensor : answer.tensors) result.tensors.push_back(tensor->name());
  return result;
}

}  // namespace

std::string captured_name(std::string_view variant, std::string_view device) {
  std::string name = fmt::format("{}@", variant);
  const std::size_t first = name.size();
  for (const char letter : device) {
    const bool upper = letter >= 'A' && letter <= 'Z';
    if (upper || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9')) {
      name += static_cast<char>(upper ? letter - 'A' + 'a' : letter);
    } else if (name.size() > first && name.back() != '-') {
      name += '-';
    }
  }
  if (name.back() == '-') name.pop_back();
  return name;
}

std::optional<Reproduction> reproduction_of(const fixture::ExpectedGroup& group) {
  const std::string name = group.name.substr(0, group.name.find('@'));
  const std::size_t words = group.implementation.find(": ");
  if (name == group.name || !group.implementation.starts_with("kda-check ") || words == std::string::npos)
    return std::nullopt;
  for (const kda::Variant& variant : kda::variants()) {
    if (variant.name != name) continue;
    const kda::Variant& here = variant.replay.empty() ? variant : kda::variant_named(variant.replay);
    Reproduction found{&here, {}, 0};
    for (std::string& word : split(std::string_view(group.implementation).substr(words + 2), ' ')) {
      if (word.starts_with(chunk_size_word)) {
        found.chunk_size = std::strtoul(word.c_str() + chunk_size_word.size(), nullptr, 10);
      } else {
        found.arithmetic.push_back(std::move(word));
      }
    }
    return found;
  }
  return std::nullopt;
}

std::vector<Captured> capture(const CaptureRequest& request, const Log& log) {
  const std::vector<const kda::Variant*> variants = runnable_variants(request);
  const bool regime = is_regime(request.target);
  if (regime && request.output.empty())
    throw Error(ErrorKind::usage, fmt::format("capture: '{}' is a regime, not a file", request.target), {},
                "-o FILE.h5 says where it is written, with the answers");
  Source source = Source::open(request.target, request.limits);
  if (log.warning)
    for (const std::string& warning : source.warnings())
      log.warning(fmt::format("{} ({})", warning, source.path()));
  const DType dtype = dtype_of(request, source.dtype());
  const kda::Problem problem = source.take_problem();
  std::vector<Shot> shots;
  for (const kda::Variant* const variant : variants)
    shots.push_back(planned_shot(*variant, problem, dtype, request));
  check_groups(source, shots, request.replace);
  check_memory(shots, problem, request.limits.memory_budget);

  // Where nothing can be written, nothing is run.
  const std::string& path = request.output.empty() ? request.target : request.output;
  std::unique_ptr<fixture::Extension> extension;
  if (regime) {
    const Replacement can_be_made(path);
  } else {
    extension = std::make_unique<fixture::Extension>(request.target, path);
  }
  std::vector<fixture::ExpectedAnswer> answers;
  for (Shot& shot : shots) {
    if (log.progress) log.progress(fmt::format("{}: {}", source.name(), shot.variant->name));
    take(shot, problem);
    answers.push_back(expected_answer(shot, problem));
  }
  if (extension) {
    extension->commit(answers, request.replace);
  } else {
    fixture::WriteRequest file = regime_file(kda::parse_regime(request.target), problem);
    file.expected = answers;
    fixture::write_fixture(path, file);
  }
  std::vector<Captured> captured;
  for (std::size_t i = 0; i < shots.size(); ++i) captured.push_back(described(shots[i], answers[i], path));
  return captured;
}

}  // namespace kda_check::session
