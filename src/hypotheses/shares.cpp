#include "hypotheses/shares.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/threads/parallel.hpp"
#include "hypotheses/walk.hpp"

namespace kda_check::hypotheses {

namespace {

constexpr double least_share = 1e-3;
constexpr double least_gain = 1.05;  ///< of a step of advice
constexpr double most_gain =
    10;  ///< of all: beyond it decides what a search need not find, a hundredth of the squares
constexpr double most_left = 0.33;  ///< of the error, its computation being found: a tenth of the squares
constexpr std::array<std::string_view, 6> costly_keys{
    "contraction=", "exponential=", "special=", "reduction=", "accumulator=", "scale=before"};

std::vector<Change> everything_off(const Hypothesis& whole, const kda::Problem& problem) {
  Hypothesis ideal = whole;
  ideal.options.arithmetic = kda::ideal_arithmetic();
  std::vector<Change> list = changes(whole, ideal, problem);
  std::erase_if(list, [](const Change& one) {
    return one.before.find('@') == std::string::npos &&
           std::ranges::none_of(costly_keys,
                                [&](std::string_view key) { return one.before.starts_with(key); });
  });
  if (numeric::format_of(whole.options.dtype).bytes == 2) {
    Hypothesis without = with_outputs_in(whole, numeric::DType::fp32, problem);
    if (is_possible(without, problem))
      list.push_back({fmt::format("outputs in {}", numeric::name_of(whole.options.dtype)), "outputs in fp32",
                      std::move(without)});
  }
  return list;
}

/// Errors on a cut, of the tensor where that of `whole` is largest.
class CutErrors {
 public:
  CutErrors(const Hypothesis& whole, const Cut& cut) : cut_(cut) {
    const kda::Tensors answer = run(whole);
    for (const auto& [name, recorded] : cut.part.recorded) {
      const double error = of(answer, name);
      if (worst_.empty() || error > whole_) worst_ = name, whole_ = error;
    }
  }

  double whole() const { return whole_; }
  /// What `whole` does not give of the output.
  double left(const Hypothesis& whole) const {
    if (worst_.empty()) return 0;
    const kda::Tensors& recorded = cut_.part.recorded;
    const kda::Tensors answer = as_recorded(run(whole), recorded);
    const double size = rms(cut_.truth.find(worst_)->second);
    return size > 0 ? rms(difference(recorded.at(worst_), answer.at(worst_))) / size : 0;
  }
  /// Of each with a setting off.
  std::vector<double> of(const std::vector<Change>& list, int threads) const {
    std::vector<double> errors(worst_.empty() ? 0 : list.size());
    parallel_for(errors.size(), threads,
                 [&](std::size_t i, int) { errors[i] = of(run(list[i].hypothesis), worst_); });
    return errors;
  }

 private:
  double of(const kda::Tensors& answer, const std::string& name) const {
    const ExactValues& exact = cut_.truth.find(name)->second;
    const double size = rms(exact);
    return size > 0 ? rms(difference(answer.at(name), exact)) / size : 0;
  }
  kda::Tensors run(const Hypothesis& one) const {
    kda::RunOptions options = one.options;
    options.threads = 1;
    return kda::run_pass(one.pass, *one.variant, cut_.part.problem, options);
  }

  const Cut& cut_;
  std::string worst_{};
  double whole_ = 0;
};

}  // namespace

std::vector<Share> shares_of(const Hypothesis& hypothesis, const Cut& cut, int threads) {
  const std::vector<Change> list = everything_off(hypothesis, cut.part.problem);
  const CutErrors errors(hypothesis, cut);
  std::vector<Share> shares;
  for (std::size_t i = 0; const double without : errors.of(list, threads)) {
    const double ratio = without / errors.whole();
    shares.push_back({list[i++].before, 1 - ratio * ratio, 1 / ratio});
  }
  std::erase_if(shares, [](const Share& one) { return !(one.share >= least_share); });
  std::ranges::stable_sort(shares, std::ranges::greater{}, &Share::share);
  return shares;
}

std::vector<Advice> advice_of(const Hypothesis& hypothesis, const Cut& cut, int threads) {
  const CutErrors errors(hypothesis, cut);
  std::vector<Advice> steps;
  double left = errors.left(hypothesis);
  if (left > most_left * errors.whole()) left = 0;  // a fault's
  const double whole = std::sqrt(errors.whole() * errors.whole() + left * left);
  double error = whole;
  const auto candidates = [&](const Hypothesis& now) { return everything_off(now, cut.part.problem); };
  const auto errors_without = [&](const std::vector<Change>& list) {
    std::vector<double> without = errors.of(list, threads);
    for (double& one : without) one = std::sqrt(one * one + left * left);
    return without;
  };
  walk(hypothesis, candidates, errors_without, [&](const Change& off, double without) {
    if (!(error / without >= least_gain)) return false;
    steps.push_back({off.before, error / without, whole / without});
    error = without;
    return steps.back().together <= most_gain;
  });
  return steps;
}

}  // namespace kda_check::hypotheses
