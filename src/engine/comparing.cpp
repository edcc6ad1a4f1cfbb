#include "engine/comparing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.hpp"
#include "engine/zeros.hpp"
#include "judge/verdict.hpp"
#include "kda/term_energies.hpp"
#include "numeric/elementary.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::engine {

namespace {

using judge::Comparison;
using tensor::Tensor;

/// One tensor of one pairing while the oracle runs.
struct Ongoing {
  std::size_t pairing;
  std::string tensor;
  const Tensor* got;
  const Tensor* expected;  ///< null: the oracle
  std::unique_ptr<Comparison> comparison;
  judge::UnitsSum got_units;
  std::optional<judge::UnitsSum> expected_units;
  numeric::ProductSum energy = {}, magnitude_energy = {};  ///< of what is expected, and of its magnitudes
  double spread = 0;  ///< of dbeta and of sums over tokens, as the oracle has it
  double chunk_excess = 0;

  /// What is expected, as far as its size matters.
  void weigh(std::size_t begin, std::size_t count, const double* values) {
    add_energy(count, values);
    got_units.add(begin, count, values);
    if (expected_units) expected_units->add(begin, count, values);
  }
  /// Of a sum over tokens.
  void weigh_sums(const std::vector<double>& values, const std::vector<double>& dg) {
    add_energy(values.size(), values.data());
    got_units.add_sums(values.size(), values.data(), dg);
    if (expected_units) expected_units->add_sums(values.size(), values.data(), dg);
  }
  void add_energy(std::size_t count, const double* values) { add_squares(count, values, energy); }
  static void add_squares(std::size_t count, const double* values, numeric::ProductSum& sum) {
    for (std::size_t i = 0; i < count; ++i)
      if (std::isfinite(values[i])) sum.add_square(values[i]);
  }
};

/// Of a gradient whose oracle has a spread: errors that are independent from term to term (docs/limits.md).
double spread_of(kda::Gradient gradient, const kda::GradientTruth& truth, std::size_t K) {
  const double spread = judge::ratio_of_sizes(truth.spread, truth.hi);
  // A product of two sums over K, whose terms err independently as well.
  return gradient == kda::Gradient::dbeta ? 1 + spread / std::sqrt(static_cast<double>(K)) : spread;
}

void widen_range(const Tensor& tensor, std::size_t begin, std::size_t count, std::vector<double>& values) {
  values.resize(count);
  numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    const auto elements = tensor.elements<decltype(tag)>();
    for (std::size_t i = 0; i < count; ++i) values[i] = numeric::widen(elements[begin + i]);
  });
}

/// Feeds elements [begin, begin + count) of one tensor to every comparison of that tensor.
class Feeder {
 public:
  explicit Feeder(std::vector<Ongoing>& ongoing) : ongoing_(ongoing) {}

  void feed(std::string_view tensor, std::size_t begin, std::size_t count,
            const judge::ExpectedValues& oracle) {
    for (Ongoing& item : ongoing_) {
      if (item.tensor != tensor) continue;
      item.weigh(begin, count, oracle.hi);
      Ongoing::add_squares(count, oracle.magnitude, item.magnitude_energy);
      if (item.expected == nullptr) {
        item.comparison->add(begin, count, oracle);
      } else {
        widen_range(*item.expected, begin, count, values_);
        zeros_.assign(count, 0.0);
        item.comparison->add(begin, count, {values_.data(), zeros_.data(), oracle.magnitude});
      }
    }
  }

 private:
  std::vector<Ongoing>& ongoing_;
  std::vector<double> values_, zeros_;
};

bool both_recur(const Pairing& pairing) {
  const auto recurs = [](const Answered& answer) { return answer.form == judge::Form::recurrence; };
  return recurs(*pairing.got) && (pairing.expected == nullptr || recurs(*pairing.expected));
}

/// Which of two magnitudes of a gradient a pairing is measured by (kda/gradient_oracle.hpp): that of the
/// recurrence where no side is another form.
const std::vector<double>& magnitude_for(const kda::GradientTruth& truth, const Pairing& pairing) {
  return both_recur(pairing) || truth.chunk_magnitude.empty() ? truth.magnitude : truth.chunk_magnitude;
}

void compare_gradients(const Truth& truth, const std::vector<Pairing>& pairings,
                       std::vector<Ongoing>& ongoing, Twins& twins) {
  const kda::Problem& problem = truth.problem;
  check_gradient_memory(problem, truth.threads, truth.memory_budget,
                        "--no-backward compares the forward pass only; --memory-limit raises it");
  const kda::GradientTruths truths =
      kda::run_gradient_oracle(problem, *truth.oracle, truth.chunk_size, truth.threads);
  std::vector<double> values, zeros;
  for (Ongoing& item : ongoing)
    for (const kda::GradientRow& row : kda::gradients()) {
      if (row.name != item.tensor) continue;
      const kda::GradientTruth& exact = truths[static_cast<std::size_t>(row.gradient)];
      const std::size_t count = item.got->size();
      judge::ExpectedValues expected{exact.hi.data(), exact.lo.data(),
                                     magnitude_for(exact, pairings[item.pairing]).data()};
      if (item.expected != nullptr) {
        widen_range(*item.expected, 0, count, values);
        zeros.assign(count, 0.0);
        expected.hi = values.data(), expected.lo = zeros.data();
      }
      item.comparison->add(0, count, expected);
      if (row.gradient == kda::Gradient::dA_log || row.gradient == kda::Gradient::ddt_bias)
        item.weigh_sums(exact.hi, truths[static_cast<std::size_t>(kda::Gradient::dg)].hi);
      else
        item.weigh(0, count, exact.hi.data());
      if (!exact.spread.empty()) item.spread = spread_of(row.gradient, exact, problem.dimensions().K);
      item.chunk_excess = judge::ratio_of_sizes(exact.chunk_magnitude, exact.magnitude);
    }
  for (const kda::GradientRow& row : kda::gradients())
    if (const std::vector<double>& hi = truths[static_cast<std::size_t>(row.gradient)].hi; !hi.empty())
      twins.truth(row.name, hi.size(), 0, hi);
}

void run_comparisons(const Truth& truth, const std::vector<Pairing>& pairings, std::vector<Ongoing>& ongoing,
                     Twins& twins) {
  if (!truth.oracle) {
    std::vector<double> values;
    for (Ongoing& item : ongoing) {
      item.comparison->add_all(*item.expected);
      widen_range(*item.expected, 0, item.expected->size(), values);
      item.weigh(0, values.size(), values.data());
      const bool over_tokens = item.tensor == "dA_log" || item.tensor == "ddt_bias";
      if (over_tokens) item.spread = HUGE_VAL;  // the oracle's to know
    }
    return;
  }
  if (truth.pass == kda::Pass::backward) return compare_gradients(truth, pairings, ongoing, twins);
  const kda::Dimensions& d = truth.problem.dimensions();
  Feeder feeder(ongoing);
  kda::OracleSink sink;
  sink.output = [&](const kda::OracleOutput& block) {
    const std::size_t row = d.HV * d.V, begin = (block.batch * d.T + block.begin) * row,
                      count = block.count * row;
    feeder.feed("o", begin, count, {block.hi, block.lo, block.magnitude});
    twins.truth("o", d.B * d.T * row, begin, {block.hi, count});
  };
  sink.state = [&](const kda::OracleState& state) {
    const std::size_t size = d.K * d.V, begin = (state.sequence * d.HV + state.head) * size;
    feeder.feed("final_state", begin, size, {state.hi, state.lo, state.magnitude});
    twins.truth("final_state", d.N * d.HV * size, begin, {state.hi, size});
  };
  kda::run_oracle(truth.problem, *truth.oracle, truth.threads, sink);
}

/// o and dv are sums over K of independent terms, dq, dk, dg and dbeta sums over V.
double smallness_of(std::string_view name, const Tensor& tensor, const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  if (name == "o" || name == "dv") return judge::smallness_of_sums(tensor.size(), d.K);
  const bool over_values = name == "dq" || name == "dk" || name == "dg" || name == "dbeta";
  return over_values ? judge::smallness_of_sums(tensor.size(), d.V) : 1.0;
}

/// Of the sums over tokens how many there are; others are as large as their terms.
std::size_t terms_of(std::string_view name, const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return name == "dA_log" ? d.B * d.T * d.K : name == "ddt_bias" ? d.B * d.T : 1;
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
  return std::max(1.0, finite_size(energies.o_magnitude, item.magnitude_energy)) *
         numeric::root_of_squares(1, rounding);
}

judge::Condition condition_of(const Ongoing& item, const kda::TermEnergies& energies) {
  judge::Condition condition;
  const kda::TermEnergy* const own = energies.of(item.tensor);
  if (own == nullptr) {  // sums of dg over tokens
    const double of_dg = finite_size(energies.of("dg")->terms, item.energy);
    condition.cancellation = std::max({1.0, item.spread, item.tensor == "ddt_bias" ? of_dg : 0});
  } else if (item.spread > 0) {  // dbeta
    condition.cancellation = std::max(1.0, item.spread);
    if (std::isfinite(item.spread))
      condition.rounding = condition.cancellation * finite_size(own->rounding, own->terms);
  } else {
    condition.cancellation = std::max(1.0, finite_size(own->terms, item.energy));
    condition.rounding = finite_size(own->rounding, item.energy);
    if (item.tensor == "o") condition.magnitude = beyond_magnitude(item, energies);
  }
  return condition;
}

judge::Computation computation_of(const Answered& answer, const judge::UnitsSum& units, const Ongoing& item,
                                  const Tensor& tensor, const kda::Problem& problem,
                                  const judge::Condition& condition) {
  return {answer.compute, tensor.dtype(),
          units.result(), smallness_of(item.tensor, tensor, problem),
          condition,      answer.form == judge::Form::recurrence ? 0 : item.chunk_excess};
}

void drop(std::vector<judge::Limit>& limits, std::string_view metric) {
  std::erase_if(limits, [&](const judge::Limit& limit) { return limit.metric == metric; });
}

double rms_limit(const std::vector<judge::Limit>& limits) {
  return judge::find_limit(limits, "rms_ratio")->value;
}

/// The narrowest range of exponents on the way to a tensor: chunk forms keep operands in the element type of
/// the answer, but not what an initial state has decayed to.
const numeric::Format& narrowest(const Answered& answer, std::string_view tensor) {
  const numeric::Format &computed = numeric::format_of(numeric::range_of(answer.compute)),
                        &stored = numeric::format_of(answer.dtype);
  const bool stores_operands = answer.form != judge::Form::recurrence && tensor != "dinitial_state";
  return stores_operands && stored.smallest_normal() > computed.smallest_normal() ? stored : computed;
}

/// Below the smallest normal number of a format what is rounded to it loses half a step of that range,
/// however small it is itself.
void allow_for_subnormals(std::vector<judge::Limit>& limits, const Pairing& pairing, const Ongoing& item,
                          const judge::Measures& measures, std::size_t terms) {
  /// A tensor has elements that much smaller than their root mean square.
  constexpr double small_elements = 64;
  const double size = measures.expected_rms;
  if (size == 0) return;
  double storage = 0, arithmetic = 0;
  bool any_below = false;
  const auto allow = [&](const Answered* answer, const Tensor* tensor) {
    if (answer == nullptr) return;
    const auto below = [](double smallest) { return std::max(0.0, smallest - 1); };
    const numeric::Format& stored = numeric::format_of(tensor->dtype());
    storage += stored.unit_roundoff() * below(stored.smallest_normal() / size);
    const double smallest = narrowest(*answer, item.tensor).smallest_normal() / size;
    any_below = any_below || smallest * small_elements > 1;
    arithmetic = std::max(arithmetic, below(smallest * std::sqrt(static_cast<double>(terms))));
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
                                     const kda::TermEnergies& energies, const judge::Measures& measures) {
  if (pairing.same_bits) return judge::replay_limits();
  const auto derived = [&](const judge::Condition& condition) {
    const judge::Computation got =
        computation_of(*pairing.got, item.got_units, item, *item.got, truth.problem, condition);
    if (item.expected == nullptr) return judge::derived_limits(got);
    return judge::derived_limits(got, computation_of(*pairing.expected, *item.expected_units, item,
                                                     *item.expected, truth.problem, condition));
  };
  std::vector<judge::Limit> limits = derived(condition_of(item, energies));
  allow_for_subnormals(limits, pairing, item, measures, terms_of(item.tensor, truth.problem));
  // What cancels, or is next to the smallest numbers, widens a limit as far as it says anything. Beyond, an
  // answer that is lost in the rounding of its own terms is as good as zero, which has no ratio.
  const double wide = rms_limit(limits);
  const bool is_lost = wide >= judge::hollow_rms_ratio && std::isfinite(wide) && measures.has_magnitude &&
                       rms_limit(derived({})) < judge::hollow_rms_ratio;
  if (is_lost && measures.rms_ratio < judge::hollow_rms_ratio)
    std::ranges::find(limits, "rms_ratio", &judge::Limit::metric)->value =
        std::nextafter(judge::hollow_rms_ratio, 0);
  else if (is_lost && wide >= 1)
    drop(limits, "rms_ratio");
  return limits;
}

/// What twins say of what was measured.
void hold_against(Twins& twins, const std::vector<Pairing>& pairings, std::vector<Measured>& results) {
  if (twins.is_empty()) return;
  for (const Measured& item : results)
    if (const judge::Limit* const limit = judge::find_limit(item.limits, "rms_ratio"))
      twins.limit(*pairings[item.pairing].got, item.tensor, limit->value);
  twins.judge();
  for (Measured& item : results) {
    const Pairing& pairing = pairings[item.pairing];
    if (!pairing.twins) continue;
    if (const TwinResult* const found = twins.result(*pairing.got, pairing.twins_left_out, item.tensor))
      item.twins = *found;
  }
}

}  // namespace

std::vector<Measured> measured(const Truth& truth, const std::vector<Pairing>& pairings) {
  const bool v_first = truth.problem.options.state_v_first;
  std::vector<Ongoing> ongoing;
  for (std::size_t i = 0; i < pairings.size(); ++i)
    for (const std::string& name : pairings[i].tensors) {
      const Tensor* const got = pairings[i].got->tensor(name);
      const Tensor* const expected =
          pairings[i].expected != nullptr ? pairings[i].expected->tensor(name) : nullptr;
      judge::ComparisonOptions options = pairings[i].options;
      options.against_oracle = expected == nullptr;
      options.threads = truth.threads;
      options.cu_seqlens = truth.problem.cu_seqlens;
      const auto units_of = [&](const Answered& answer) {
        return judge::UnitsSum(name, got->shape(), truth.problem, truth.gates(answer.chunk_size),
                               answer.compute, answer.form);
      };
      ongoing.push_back({i,
                         name,
                         got,
                         expected,
                         std::make_unique<Comparison>(name, *got, v_first, truth.oracle.has_value(), options),
                         units_of(*pairings[i].got),
                         {}});
      if (expected != nullptr) ongoing.back().expected_units.emplace(units_of(*pairings[i].expected));
    }
  Twins twins(truth.problem, truth.pass, truth.threads_of_twins);
  if (truth.oracle)
    for (const Pairing& pairing : pairings)
      if (pairing.twins) twins.add(*pairing.got, pairing.twins_left_out);
  if (!ongoing.empty()) run_comparisons(truth, pairings, ongoing, twins);

  kda::TermEnergies energies;
  const auto is_derived = [](const Pairing& pairing) { return !pairing.same_bits; };
  if (!ongoing.empty() && std::ranges::any_of(pairings, is_derived))
    energies = kda::term_energies(truth.problem, truth.pass, truth.threads);

  std::vector<Measured> results;
  Zeros zeros(truth);
  for (Ongoing& item : ongoing) {
    const Pairing& pairing = pairings[item.pairing];
    judge::Measures measures = item.comparison->finish();
    std::vector<judge::Limit> limits = limits_for(truth, pairing, item, energies, measures);
    Measured& last = results.emplace_back(Measured{item.pairing,
                                                   item.tensor,
                                                   item.got,
                                                   std::move(measures),
                                                   item.comparison->take_series(),
                                                   std::move(limits),
                                                   {}});
    // What cancels to zero everywhere, dg of single tokens, is judged by its magnitude: nothing has a ratio
    // to it. The chunk form makes the initial state's gradient of other terms than the recurrence, whose
    // magnitude it has.
    if (truth.pass == kda::Pass::backward && last.measures.has_magnitude && last.measures.expected_all_zero)
      drop(last.limits, "rms_ratio");
    else if (item.tensor == "dinitial_state" && !both_recur(pairing))
      drop(last.limits, "scaled_ulp");
    if (const judge::Measures& m = last.measures; m.expected_all_zero && m.got_all_zero && m.undecided == 0)
      last.judging.zeros_decide = zeros.exact(item.tensor);
  }
  hold_against(twins, pairings, results);
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
