#include "engine/comparing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "engine/ongoing.hpp"
#include "judge/verdict.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

using tensor::Tensor;

/// o, dv, dwrite and dbeta of columns are sums over K of independent terms, dq, dk, dg, derase and dbeta sums
/// over V; dg of a decay for all K over both.
double smallness_of(std::string_view name, const Tensor& tensor, const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  const bool of_columns = name == "dbeta" && d.strength == kda::Strength::value;
  if (name == "o" || name == "dv" || name == "dwrite" || of_columns)
    return judge::smallness_of_sums(tensor.size(), d.K);
  if (name == "dg" && d.has_scalar_decay) return judge::smallness_of_sums(tensor.size(), d.K * d.V);
  const bool over_values =
      name == "dq" || name == "dk" || name == "dg" || name == "dbeta" || name == "derase";
  return over_values ? judge::smallness_of_sums(tensor.size(), d.V) : 1.0;
}

/// Of the sums over tokens how many there are; others are as large as their terms.
std::size_t terms_of(std::string_view name, const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return name == "dA_log" ? d.B * d.T * d.decays() : name == "ddt_bias" ? d.B * d.T : 1;
}

/// 0 of nothing, and where the terms are beyond the range of fp64.
double finite_size(const numeric::ProductSum& part, const numeric::ProductSum& whole) {
  if (whole.is_zero()) return 0;
  const double size = relative_size(part, whole);
  return std::isfinite(size) ? size : 0;
}

/// The magnitude of o has what is left of the state. What the state was made of is larger where that cancels.
double beyond_magnitude(const Ongoing& item, const kda::TermEnergies& energies) {
  const double rounding = finite_size(energies.o.rounding, energies.o.terms);
  return std::max(1.0, finite_size(energies.o_magnitude, item.truth->magnitude_energy.total())) *
         numeric::root_of_squares(1, rounding);
}

/// What rounding the predictions leaves in o or the final state, by the form of what was computed.
void add_probed(judge::Condition& condition, const Ongoing& item, const kda::ErrorEnergy& error,
                judge::Form form) {
  const numeric::ProductSum energy = item.truth->energy.total();
  const kda::ProbedErrors& behind = item.truth->behind;
  const auto larger = [](double& a, double b) { a = std::max(a, b); };
  if (form != judge::Form::chunk) {
    larger(condition.rounding, finite_size(error.recurrence, energy));
    larger(condition.rounding_behind, behind.recurrence);
  }
  if (form != judge::Form::recurrence) {
    larger(condition.rounding, finite_size(error.writing, energy));
    larger(condition.rounding_behind, behind.writing);
    condition.solving = finite_size(error.solving, energy);
    condition.solving_behind = behind.solving;
  }
}

judge::Condition condition_of(const Ongoing& item, const kda::TermEnergies& energies, judge::Form form) {
  judge::Condition condition;
  const numeric::ProductSum energy = item.truth->energy.total();
  const double spread = item.truth->spread;
  const kda::TermEnergy* const own = energies.of(item.tensor);
  if (own == nullptr) {  // sums of dg over tokens
    const double of_dg = finite_size(energies.of("dg")->terms, energy);
    condition.cancellation = std::max({1.0, spread, item.tensor == "ddt_bias" ? of_dg : 0});
  } else if (spread > 0) {  // dbeta
    condition.cancellation = std::max(1.0, spread);
    if (std::isfinite(spread))
      condition.rounding = condition.cancellation * finite_size(own->rounding, own->terms);
  } else {
    condition.cancellation = std::max(1.0, finite_size(own->terms, energy));
    condition.rounding = finite_size(own->rounding, energy);
    if (item.tensor == "o") condition.magnitude = beyond_magnitude(item, energies);
    if (const kda::ErrorEnergy* const error = energies.error_of(item.tensor))
      add_probed(condition, item, *error, form);
  }
  return condition;
}

/// How many times larger what a tensor is a sum of is than the tensor; 1 where nobody knows.
double terms_over_truth(const Ongoing& item, const kda::TermEnergies& energies) {
  const double size = std::max(condition_of(item, energies, judge::Form::unknown).cancellation,
                               finite_size(item.truth->magnitude_energy.total(), item.truth->energy.total()));
  return std::isfinite(size) ? std::max(1.0, size) : 1;
}

judge::Computation computation_of(const Answered& answer, const judge::UnitsSum& units, const Ongoing& item,
                                  const Tensor& tensor, const kda::Problem& problem,
                                  const judge::Condition& condition) {
  return {answer.compute, tensor.dtype(),
          units.result(), smallness_of(item.tensor, tensor, problem),
          condition,      answer.form == judge::Form::recurrence ? 0 : item.truth->chunk_excess};
}

void drop(std::vector<judge::Limit>& limits, std::string_view metric) {
  std::erase_if(limits, [&](const judge::Limit& limit) { return limit.metric == metric; });
}

/// The smallest of what a tensor is made of, where it was rounded: the state, its gradient; infinite without
/// either.
double smallest_operand(std::string_view tensor, kda::Pass pass, const kda::OperandSizes& sizes) {
  double smallest = HUGE_VAL;
  const auto take = [&](double size) {
    if (size > 0) smallest = std::min(smallest, size);
  };
  if (tensor != "dv" && tensor != "dinitial_state") take(sizes.state);
  if (pass == kda::Pass::backward && tensor != "dq") take(sizes.state_gradient);
  return smallest;
}

/// Below the smallest normal number of a format what is rounded to it loses half a step of that range,
/// however small it is itself.
void allow_for_subnormals(std::vector<judge::Limit>& limits, const Pairing& pairing, const Ongoing& item,
                          const judge::Measures& measures, std::size_t terms, double operand, bool fades) {
  /// A tensor has elements that much smaller than their root mean square.
  constexpr double small_elements = 64;
  const double size = measures.expected_rms;
  if (size == 0) {  // no share of a truth of zero: each term may be off by half a step
    double step = 0;
    for (const Answered* const answer : {pairing.got, pairing.expected})
      if (answer != nullptr) step = std::max(step, answer->range().smallest_step());
    const bool is_within = measures.max_abs.value <= step / 2 * static_cast<double>(terms);
    for (judge::Limit& limit : limits)
      if (limit.metric == "scaled_ulp" && is_within)
        limit.value = std::max(limit.value, measures.scaled_ulp.value);
    return;
  }
  double storage = 0, arithmetic = 0;
  bool any_below = false;
  const auto allow = [&](const Answered* answer, const Tensor* tensor) {
    if (answer == nullptr) return;
    const auto below = [](double smallest) { return std::max(0.0, smallest - 1); };
    const numeric::Format& stored = numeric::format_of(tensor->dtype());
    storage += stored.unit_roundoff() * below(stored.smallest_normal() / size);
    const double normal = answer->range().smallest_normal();
    any_below = any_below || normal / size * small_elements > 1 || normal / operand > 1 ||
                (fades && !measures.expected_all_zero && answer->form != judge::Form::recurrence);
    arithmetic = std::max(
        {arithmetic, below(normal / size * std::sqrt(static_cast<double>(terms))), below(normal / operand)});
  };
  allow(pairing.got, item.got), allow(pairing.expected, item.expected);
  for (judge::Limit& limit : limits)
    if (limit.metric == "rms_ratio") {
      if (arithmetic > 0) limit.value *= 1 + arithmetic;  // may be infinite
      limit.value += storage;
    }
  // What is lost there is no share of an element's magnitude.
  if (any_below) drop(limits, "scaled_ulp");
}

std::vector<judge::Limit> limits_for(const Truth& truth, const Pairing& pairing, const Ongoing& item,
                                     const LimitGrounds& grounds, const judge::Measures& measures) {
  if (pairing.same_bits) return judge::replay_limits();
  const auto computation = [&](const Answered& answer, const judge::UnitsSum& units, const Tensor& tensor) {
    return computation_of(answer, units, item, tensor, truth.problem,
                          condition_of(item, grounds.energies, answer.form));
  };
  const judge::Computation got = computation(*pairing.got, item.got_units, *item.got);
  std::vector<judge::Limit> limits =
      item.expected == nullptr
          ? judge::derived_limits(got)
          : judge::derived_limits(got, computation(*pairing.expected, *item.expected_units, *item.expected));
  allow_for_subnormals(limits, pairing, item, measures, terms_of(item.tensor, truth.problem),
                       smallest_operand(item.tensor, truth.pass, grounds.operands),
                       truth.pass == kda::Pass::backward && !truth.problem.output_gradient);
  return limits;
}

/// Of all answers: in longer chunks more of what is rounded goes uncorrected.
std::size_t longest_chunk(const std::vector<Pairing>& pairings) {
  std::size_t longest = 1;
  for (const Pairing& pairing : pairings)
    for (const Answered* const answer : {pairing.got, pairing.expected})
      if (answer != nullptr) longest = std::max(longest, answer->chunk_size);
  return longest;
}

/// What twins say of what was measured.
void compare_with_twins(Twins& twins, TruthSource& truths, const std::vector<Pairing>& pairings,
                        std::vector<Measured>& results) {
  twins.judge(truths);
  for (Measured& item : results) {
    const Pairing& pairing = pairings[item.pairing];
    if (pairing.computation == nullptr) continue;
    const Computation& computation = *pairing.computation;
    judge::Evidence& evidence = item.evidence;
    if (const judge::TwinJudgement* const found = twins.result(*item.got)) evidence.twins = *found;
    evidence.computation_is_known = computation.is_known();
    evidence.computation_is_whole = !computation.left || computation.is_whole;
    // All of it: no fault is left.
    if (evidence.twins && computation.left && evidence.twins->ratio <= 1)
      evidence.computes_as = computation.text;
    evidence.stable_rms_ratio = twins.stable_rms_ratio(*item.got);
  }
}

std::shared_future<LimitGrounds> no_grounds() {
  std::promise<LimitGrounds> none;
  none.set_value({});
  return none.get_future().share();
}

}  // namespace

LimitGrounds limit_grounds(const kda::Problem& problem, kda::Pass pass, std::size_t chunk_size, int threads) {
  return {kda::term_energies(problem, pass, chunk_size, threads), kda::operand_sizes(problem, threads)};
}

std::vector<Measured> measured(const Truth& truth, const std::vector<Pairing>& pairings) {
  std::vector<Ongoing> ongoing = ongoing_comparisons(truth, pairings);
  Twins twins(truth.problem, truth.pass, truth.threads, truth.heads_of_twins, truth.twins_on_cpu_instead);
  if (truth.oracle)
    for (const Pairing& pairing : pairings)
      if (pairing.computation != nullptr) twins.add(*pairing.got, *pairing.computation);
  const auto is_derived = [](const Pairing& pairing) { return !pairing.same_bits; };
  const bool any_derived = !ongoing.empty() && std::ranges::any_of(pairings, is_derived);
  const std::shared_future<LimitGrounds> grounds =
      any_derived ? truth.grounds(longest_chunk(pairings)) : no_grounds();
  std::unique_ptr<TruthSource> truths;
  if (!ongoing.empty()) truths = run_comparisons(truth, pairings, ongoing, twins);

  std::vector<Measured> results;
  for (Ongoing& item : ongoing)
    if (const std::vector<double> least = std::exchange(item.truth->least_magnitudes, {}); !least.empty())
      item.truth->behind = grounds.get().energies.outputs.over(least);
  for (Ongoing& item : ongoing) {
    const Pairing& pairing = pairings[item.pairing];
    judge::Measures measures = item.comparison->finish();
    std::vector<judge::Limit> limits = limits_for(truth, pairing, item, grounds.get(), measures);
    Measured& last = results.emplace_back(Measured{item.pairing,
                                                   item.tensor,
                                                   item.got,
                                                   std::move(measures),
                                                   item.comparison->take_series(),
                                                   std::move(limits),
                                                   {}});
    last.evidence.terms = terms_over_truth(item, grounds.get().energies);
    last.truth_error = item.truth->error;
    last.evidence.compute = pairing.got->compute;
    if (pairing.computation != nullptr) last.evidence.unlicensed = pairing.computation->unlicensed;
    last.evidence.backward = truth.pass == kda::Pass::backward;
    last.evidence.chunks_cancel = last.tensor == "dg" && truth.problem.options.gate != kda::Gate::lower_bound;
    last.evidence.is_sum_over_tokens = item.tensor == "dA_log" || item.tensor == "ddt_bias";
    last.evidence.of_two_outputs = item.expected != nullptr;
    // What cancels to zero everywhere, dg of single tokens, is judged by its magnitude: nothing has a ratio
    // to it. The chunk form makes the initial state's gradient of other terms than the recurrence, whose
    // magnitude it has.
    if (truth.pass == kda::Pass::backward && last.measures.has_magnitude && last.measures.expected_all_zero)
      drop(last.limits, "rms_ratio");
    else if (item.tensor == "dinitial_state" && !both_recur(pairing))
      drop(last.limits, "scaled_ulp");
    last.evidence.zeros_decide = truth.oracle && !pairing.same_bits && item.expected == nullptr;
  }
  if (truths != nullptr) compare_with_twins(twins, *truths, pairings, results);
  return results;
}

void check_gradient_memory(const kda::Problem& problem, int threads, std::size_t budget,
                           const std::string& hint) {
  const double bytes = kda::gradient_oracle_bytes(problem, threads) +
                       kda::term_energies_bytes(problem, kda::Pass::backward, threads);
  if (bytes <= static_cast<double>(budget)) return;
  throw Error(ErrorKind::input,
              fmt::format("the truth of the gradients takes {:.3g} GB; the memory budget is {:.3g} GB",
                          bytes * 1e-9, static_cast<double>(budget) * 1e-9),
              {}, hint);
}

}  // namespace kda_check::engine
