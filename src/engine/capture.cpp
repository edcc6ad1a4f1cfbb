// `capture`: what variants answer, stored in a fixture as expected/<variant>@<device>, for machines without
// that device to compare with.
#include <fmt/format.h>

#include <memory>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "engine/findings.hpp"
#include "engine/regime_file.hpp"
#include "explain/stages/stage_runs.hpp"
#include "fixture/extension.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/passes.hpp"
#include "plan/reproduction.hpp"
#include "plan/selection.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using report::Show;

/// One variant, how it is run, and what came of it.
struct Shot {
  const plan::Case* item;
  const plan::Answer* who;
  kda::RunOptions options;
  bool with_stages = false;
  kda::Tensors tensors;
  kda::StageTensors stages;  ///< empty tensors: none are kept
};

void check_memory(const std::vector<Shot>& shots, const kda::Problem& problem, std::size_t budget) {
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
    throw Error(
        ErrorKind::input,
        fmt::format("the stages take {}, the memory budget is {}", size_text(bytes), size_text(budget)), {},
        "--no-stages, or --memory-limit");
}

void take(Shot& shot, const kda::Problem& problem) {
  if (shot.with_stages) {
    shot.stages =
        kda::allocate_stages(problem, shot.options.chunk_size, kda::state_dtype(shot.options.dtype));
    shot.options.stages.computed = &shot.stages;
  }
  shot.tensors = kda::run_pass(kda::Pass::forward, *shot.who->variant, problem, shot.options);
  if (shot.item->tensors.size() > shot.tensors.size()) {
    kda::RunOptions without_stages = shot.options;
    without_stages.stages = {};
    shot.tensors.merge(kda::run_pass(kda::Pass::backward, *shot.who->variant, problem, without_stages));
  }
  if (problem.pool) shot.tensors = kda::of_call(*problem.pool, shot.tensors);
  if (shot.with_stages)
    explain::store_as_rounded(shot.stages, kda::cast_points(shot.options.arithmetic, shot.options.dtype,
                                                            problem.beta_is_16_bit(), true));
}

fixture::ExpectedAnswer expected_answer(const Shot& shot, const kda::Outline& outline) {
  const kda::Variant& variant = *shot.who->variant;
  fixture::ExpectedAnswer answer;
  answer.device = kda::device_of(variant);
  answer.name = plan::captured_name(variant.name, answer.device);
  answer.implementation = plan::implementation_text(variant, shot.options, outline);
  answer.compute = kda::compute_format(variant, shot.options.dtype, shot.options.arithmetic);
  for (const auto& [name, tensor] : shot.tensors)
    if (kda::is_beside_pool(name) || plan::has(shot.item->tensors, kda::in_ordinary_form(name)))
      answer.tensors.push_back(&tensor);
  answer.g_cumsum_in_powers_of_two = shot.options.arithmetic.gates != kda::Gates::natural;
  if (shot.with_stages)
    for (const tensor::Tensor& stage : shot.stages)
      if (!stage.empty()) answer.stages.push_back(&stage);
  return answer;
}

void add(report::Section& section, const Shot& shot, const fixture::ExpectedAnswer& answer,
         const std::string& path) {
  const std::string dtype(numeric::name_of(shot.options.dtype)),
      compute(numeric::row_of(*answer.compute).name);
  section.add({path, "expected/" + answer.name, shot.item->tensors,
               static_cast<std::int64_t>(answer.stages.size()), report::precision_text(dtype, compute), dtype,
               compute, answer.device, kda::describe(shot.options.arithmetic, shot.who->variant->axes)});
}

}  // namespace

void capture_answers(Context& context, Findings& findings) {
  const plan::Problem& plan = context.plan();
  const kda::Problem& problem = context.problem();
  std::vector<Shot> shots;
  for (const plan::Case& item : plan.cases) {
    if (item.question != plan::Question::capture) continue;
    const plan::Answer& who = plan.answers[*item.answer];
    shots.push_back({&item,
                     &who,
                     context.options_of(who),
                     item.asked->capture_stages && who.variant->axes.chunk && !problem.pool,
                     {},
                     {}});
  }
  if (shots.empty()) return;
  const plan::Request& request = *shots.front().item->asked;
  check_memory(shots, problem, context.resources().limits.memory_budget);

  // Where nothing can be written, nothing is run.
  const plan::Target& target = plan.source->target();
  const std::string path = request.output.empty() ? target.path : request.output;
  std::unique_ptr<fixture::Extension> extension;
  std::optional<OutputFile> made;
  if (target.is_regime) {
    made.emplace(path, OutputKind::kept);
  } else {
    extension = std::make_unique<fixture::Extension>(target.path, path, context.source().identity());
  }
  std::vector<fixture::ExpectedAnswer> answers;
  for (Shot& shot : shots) {
    context.progress(shot.who->name);
    take(shot, problem);
    answers.push_back(expected_answer(shot, plan.outline));
  }
  if (extension) {
    extension->commit(answers, request.replace);
  } else {
    const kda::RegimeRequest regime = kda::parse_regime(target.path);
    RegimeFile file = regime_file(regime, problem, context.resources().threads);
    file.request.expected.insert(file.request.expected.end(), answers.begin(), answers.end());
    fixture::write_fixture(*made, file.request);
  }
  report::Section section;
  section.key = "captured";
  section.path = target.name;
  section.tabular = true;
  section.columns = {{"file", {}, Show::code},    {"group", {}, Show::code},      {"tensors", {}},
                     {"stages", {}, Show::count}, {"precision", "dtype/compute"}, {"dtype", {}, Show::data},
                     {"compute", {}, Show::data}, {"device", {}, Show::data},     {"arithmetic", {}}};
  for (std::size_t i = 0; i < shots.size(); ++i) add(section, shots[i], answers[i], path);
  findings.sections.push_back(std::move(section));
}

}  // namespace kda_check::engine
