// `explain --only faults`: which fault explains an output that errs beyond its limits.
#include "engine/explain/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/names.hpp"
#include "engine/explain/not_finite.hpp"
#include "engine/explain/place.hpp"
#include "engine/findings.hpp"
#include "engine/judged.hpp"
#include "hypotheses/naming/rank.hpp"
#include "kda/bounds/log_decays.hpp"
#include "kda/problem/excerpt.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::engine {

using report::Show;
using report::TensorResult;

double rms_limit(const TensorResult& tensor) {
  if (const judge::Limit* const limit = judge::find_limit(tensor.limits, "rms_ratio");
      limit != nullptr && limit->value > 0)
    return limit->value;
  const auto dtype = numeric::dtype_named(tensor.dtype);
  return 16 * std::ldexp(1.0, -numeric::format_of(dtype.value_or(numeric::DType::fp32)).precision);
}

namespace {

/// Sequence and value head of the worst element of the tensor that failed.
hypotheses::FailurePlace place_of(const kda::Problem& problem, const TensorResult& tensor) {
  if (!tensor.worst) return {};
  const std::vector<std::size_t>& index = tensor.worst->index;
  if (tensor.name == "final_state" || tensor.name == "dinitial_state") return {index[0], index[1]};
  if (index.size() < 3) {  // of a parameter
    const std::size_t head =
        tensor.shape.size() == 1 ? index[0] / (tensor.shape[0] / problem.dimensions().HV) : index[0];
    return {0, head};
  }
  hypotheses::FailurePlace place;
  for (const kda::Sequence& sequence : problem.sequences())
    if (sequence.batch == index[0] && sequence.begin <= index[1] && index[1] < sequence.end)
      place.sequence = sequence.index;
  const bool is_of_query = tensor.name == "dq" || tensor.name == "dk";
  place.head = index[2] * (is_of_query ? problem.heads_per_group() : 1);
  return place;
}

/// Sequence and head of the ordinary form of a call where an output errs most, in units of its limits.
hypotheses::FailurePlace worst_place(const kda::Problem& problem, const hypotheses::FailedOutput& output,
                                     int threads) {
  const kda::Dimensions& d = problem.dimensions();
  const kda::Answer right = kda::answer_in_fp64(problem, threads);
  const std::size_t state = d.K * d.V;
  hypotheses::FailurePlace worst;
  double largest = 0;
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head) {
      hypotheses::Distance of_o, of_state;
      for (std::size_t t = sequence.begin; t < sequence.end; ++t)
        for (std::size_t v = 0; v < d.V; ++v) {
          const std::size_t at = ((sequence.batch * d.T + t) * d.HV + head) * d.V + v;
          of_o.add(output.o->value(at), right.o.value(at));
        }
      for (std::size_t i = (sequence.index * d.HV + head) * state, end = i + state; i < end; ++i)
        of_state.add(output.final_state->value(i), right.final_state.value(i));
      const double error =
          std::max(of_o.ratio() / output.o_limit, of_state.ratio() / output.final_state_limit);
      if (error > largest) largest = error, worst = {sequence.index, head};
    }
  return worst;
}

std::string with_ratios(const hypotheses::Cause& cause) {
  return fmt::format("{} ({}), {:.1f} % explained: {} rms_ratio {:.3g} -> {:.3g}", cause.meaning, cause.fault,
                     100 * cause.explained, cause.tensor, cause.before, cause.after);
}

std::string fault_reason(const hypotheses::Naming& naming) {
  std::vector<std::string> causes;
  for (const hypotheses::Cause& cause : naming.causes) causes.push_back(with_ratios(cause));
  std::string text = "as if " + join(causes, ", or as if ");
  if (causes.empty())
    text = naming.tried == 0 ? "no known fault could be tried (docs/explain.md, What it cannot see)"
                             : fmt::format("none of {} known faults explains it", naming.tried);
  if (naming.nearest) text += "; the nearest: as if " + with_ratios(*naming.nearest);
  return text;
}

/// "b=0 t=0..129 h=0,1"
std::string scope_text(const hypotheses::Naming& naming) {
  if (naming.begin == naming.end) return {};
  std::string heads;
  for (const std::size_t head : naming.heads) heads += fmt::format("{}{}", heads.empty() ? "" : ",", head);
  return fmt::format("b={} t={}..{} h={}", naming.sequence.batch, naming.begin, naming.end - 1, heads);
}

}  // namespace

std::string cause_text(const hypotheses::Naming& naming) {
  constexpr double near_enough = 0.6;
  std::vector<std::string> causes;
  for (const hypotheses::Cause& cause : naming.causes)
    causes.push_back(fmt::format("{} ({})", cause.meaning, cause.fault));
  if (causes.empty()) {
    const std::optional<hypotheses::Cause>& nearest = naming.nearest;
    return nearest && nearest->explained >= near_enough
               ? fmt::format("no known bug; the nearest: as if {} ({}): {:.1f} % explained", nearest->meaning,
                             nearest->fault, 100 * nearest->explained)
               : std::string();
  }
  const hypotheses::Cause& first = naming.causes.front();
  return fmt::format("{}: as if {}: {:.1f} % explained{}",
                     hypotheses::is_rounding(first.fault) ? "rounding" : "bug", join(causes, ", or as if "),
                     100 * first.explained,
                     first.left_in.empty() ? "" : "; something else is wrong in " + first.left_in + ", too");
}

namespace {

/// A checkpoint is the final state of the tokens before it: what is wrong with it is named as of one.
hypotheses::Naming named_as_final_state(const kda::Problem& problem, const Answered& got,
                                        const TensorResult& failed, const TensorResult* o, int threads,
                                        const hypotheses::NamingEffort& effort) {
  if (!failed.worst) return {};
  const std::size_t row = failed.worst->index[0];
  const kda::Checkpoint& at = problem.checkpoints[row];
  const kda::Sequence sequence = problem.sequences()[at.sequence];
  if (at.tokens == 0) return {};
  const kda::Problem before = kda::excerpt(problem, {sequence.part(0, at.tokens)}, kda::Layout::rows);
  const tensor::Tensor state =
      tensor::picked(*got.tensor(failed.name), 0, std::array{row}).named("final_state");
  hypotheses::FailedOutput output;
  output.final_state = &state, output.final_state_limit = rms_limit(failed);
  tensor::Tensor rows;
  if (o != nullptr) {
    const tensor::Tensor& all = *got.tensor("o");
    const std::size_t bytes = all.bytes() / (all.shape()[0] * all.shape()[1]);
    rows = tensor::Tensor("o", all.dtype(), {1, at.tokens, all.shape()[2], all.shape()[3]});
    std::memcpy(rows.data(), all.data() + kda::row_of(problem, sequence, 0) * bytes, at.tokens * bytes);
    output.o = &rows, output.o_limit = rms_limit(*o);
  }
  hypotheses::Naming naming =
      hypotheses::name_fault(before, output, {0, failed.worst->index[1]}, threads, effort);
  naming.sequence = sequence;
  constexpr std::string_view as_named = "the final state", meant = "the checkpoint";
  for (hypotheses::Cause& cause : naming.causes)
    if (const std::size_t found = cause.meaning.find(as_named); found != std::string::npos)
      cause.meaning.replace(found, as_named.size(), meant);
  return naming;
}

}  // namespace

hypotheses::Naming named(const kda::Problem& problem, const Answered& got, const report::CaseResult& failed,
                         int threads, const hypotheses::NamingEffort& effort) {
  if (got.pass == kda::Pass::backward) {
    std::vector<hypotheses::FailedGradient> gradients;
    for (const TensorResult& tensor : failed.tensors)
      gradients.push_back({tensor.name, got.tensor(tensor.name), rms_limit(tensor),
                           tensor.verdict == judge::Verdict::fail && tensor.decided_by == "scaled_ulp"});
    // Sums over tokens, which have no place in a sequence, are the last.
    const auto first = std::ranges::find(failed.tensors, judge::Verdict::fail, &TensorResult::verdict);
    const hypotheses::FailurePlace place =
        first != failed.tensors.end() ? place_of(problem, *first) : hypotheses::FailurePlace{};
    return hypotheses::name_gradient_fault(problem, gradients, place, got.chunk_size, threads);
  }
  hypotheses::FailedOutput output;
  const auto found = [&](std::string_view name) {
    const auto one = std::ranges::find(failed.tensors, name, &TensorResult::name);
    return one == failed.tensors.end() ? nullptr : &*one;
  };
  const TensorResult *const o = found("o"), *const state = found("final_state"),
                            *const checkpoints = found("checkpoints");
  const auto fails = [](const TensorResult* tensor) {
    return tensor != nullptr && tensor->verdict == judge::Verdict::fail;
  };
  if (fails(checkpoints) && !fails(o) && !fails(state))
    return named_as_final_state(problem, got, *checkpoints, o, threads, effort);
  if (o == nullptr && state == nullptr) return {};
  if (o != nullptr) output.o = got.tensor("o"), output.o_limit = rms_limit(*o);
  if (state != nullptr)
    output.final_state = got.tensor("final_state"), output.final_state_limit = rms_limit(*state);
  if (problem.pool) {
    constexpr double most = 1 << 24;  // elements of states for each fault: a second or two
    const kda::Dimensions& d = problem.dimensions();
    const tensor::Tensor* const pool = got.tensor("state_pool");
    const bool is_large = static_cast<double>(d.B * d.T) * static_cast<double>(d.HV * d.K * d.V) > most ||
                          (pool != nullptr && static_cast<double>(pool->size()) > most);
    if (o == nullptr || state == nullptr || pool == nullptr || is_large) return {};
    hypotheses::Naming naming = hypotheses::name_pool_fault(
        problem, {output.o, output.final_state, pool, output.o_limit, output.final_state_limit});
    if (!naming.causes.empty()) return naming;
    // What it computes may be wrong, not what it does to the pool.
    const std::size_t tried = naming.tried;
    naming = hypotheses::name_fault(problem, output, worst_place(problem, output, threads), threads, effort);
    naming.tried += tried;
    return naming;
  }
  const bool by_o = o != nullptr && (state == nullptr || o->verdict == judge::Verdict::fail);
  return hypotheses::name_fault(problem, output, place_of(problem, by_o ? *o : *state), threads, effort);
}

namespace {

report::Table causes_table(const char* key, const std::vector<hypotheses::Cause>& list) {
  report::Table table;
  table.key = key, table.is_data = true;
  table.columns = {{"fault", {}, Show::code},       {"meaning", {}},
                   {"explained", {}, Show::figure}, {"tensor", {}},
                   {"rms_ratio", {}, Show::figure}, {"rms_ratio_with_it", {}, Show::figure}};
  for (const hypotheses::Cause& cause : list)
    table.rows.push_back(
        {cause.fault, cause.meaning, cause.explained, cause.tensor, cause.before, cause.after});
  return table;
}

void add_entry(report::Section& section, const plan::Case& item, const report::CaseResult& result,
               const hypotheses::Naming& finding, const std::string& place) {
  const bool fails = result.verdict == judge::Verdict::fail;
  report::Entry& entry = section.add_fields(
      {{{"output", {}}, item.who},
       {{"pass", {}, Show::data}, std::string(kda::name_of(item.pass))},
       {{"dtype", {}, Show::data}, result.dtype},
       {{"fails", {}, Show::sentence}, fails ? report::Value(result.reason) : report::Value()},
       {{"tried", {}, Show::data}, static_cast<std::int64_t>(finding.tried)},
       {{"scope", {}, Show::data}, scope_text(finding)},
       {{"repro", {}, Show::data}, item.repro}});
  const bool backward = item.pass == kda::Pass::backward;
  entry.title = fmt::format("{}, {}{}", item.who, backward ? "gradients, " : "", result.dtype);
  entry.verdict = result.verdict;
  entry.reason = fails                   ? fault_reason(finding) + (place.empty() ? "" : "; " + place)
                 : result.reason.empty() ? "within its limits"
                                         : result.reason;
  std::vector<hypotheses::Cause> nearest;
  if (finding.nearest) nearest.push_back(*finding.nearest);
  entry.tables = {causes_table("causes", finding.causes), causes_table("nearest", nearest)};
}

}  // namespace

void find_faults(Context& context, Findings& findings) {
  const plan::Problem& plan = context.plan();
  const kda::Problem& problem = context.problem();
  const int threads = context.resources().threads;
  std::vector<const plan::Case*> cases;
  std::vector<report::CaseResult> results;
  for (const kda::Pass pass : kda::every_pass) {
    std::vector<Pairing> pairings;
    const std::size_t before = cases.size();
    for (const plan::Case& item : plan.cases) {
      if (item.question != plan::Question::faults || item.pass != pass) continue;
      Pairing pairing;
      pairing.got = &context.answer(*item.answer, pass), pairing.tensors = item.tensors;
      pairing.options = comparison_options(item.asked->judging, threads, false);
      cases.push_back(&item), pairings.push_back(std::move(pairing));
      results.push_back(begun(item, plan));
    }
    if (pairings.empty()) continue;
    context.progress(pass == kda::Pass::backward ? "comparing gradients" : "comparing");
    const plan::Case& first = *cases[before];
    for (Measured& item :
         measured(context.truth(pass, *first.asked, first.chunk_size(plan.outline)), pairings))
      results[before + item.pairing].tensors.push_back(
          judged({item.tensor, item.got->shape(), item.got->dtype(), problem.options.state_v_first},
                 item.measures, std::move(item.limits), 0, item.evidence));
  }
  if (cases.empty()) return;
  keep_finished(findings, section_of(context, "faults"), [&](report::Section& section) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      conclude(results[i]);
      hypotheses::Naming finding;
      std::string place;
      const auto failed = std::ranges::find(results[i].tensors, judge::Verdict::fail, &TensorResult::verdict);
      if (results[i].verdict == judge::Verdict::fail && failed != results[i].tensors.end()) {
        context.progress(fmt::format("faults of {}", cases[i]->who));
        const Answered& got = context.answer(*cases[i]->answer, cases[i]->pass);
        finding = named(problem, got, results[i], threads, {});
        std::vector<std::string> words{not_finite_like(problem, got, *failed, threads),
                                       place_of_error(problem, got, *failed, rms_limit(*failed), threads)};
        std::erase(words, "");
        place = join(words, "; ");
      }
      add_entry(section, *cases[i], results[i], finding, place);
    }
  });
  context.release();
}

}  // namespace kda_check::engine
