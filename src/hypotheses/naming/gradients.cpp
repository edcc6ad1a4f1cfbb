#include <algorithm>
#include <cmath>

#include "base/threads/parallel.hpp"
#include "hypotheses/naming/naming.hpp"
#include "hypotheses/naming/reference_backward.hpp"

namespace kda_check::hypotheses {

namespace {

/// By tensor that failed or that is there beside it, in fp64.
using Gradients = std::vector<std::vector<double>>;

double root_of_squares(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) sum += (a[i] - b[i]) * (a[i] - b[i]);  // NaN where one is none
  return std::isnan(sum) ? HUGE_VAL : std::sqrt(sum);
}

class GradientSearch {
 public:
  GradientSearch(const kda::Problem& problem, const std::vector<FailedGradient>& output,
                 std::size_t chunk_size)
      : problem_(problem), output_(output) {
    options_.dtype = numeric::DType::fp64, options_.chunk_size = chunk_size, options_.threads = 1;
    for (const FailedGradient& one : output) {
      std::vector<double>& values = got_.emplace_back(one.got->size());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = one.got->value(i);
    }
  }

  Naming run(int threads) {
    Naming naming;
    const std::span<const GradientFault> list = gradient_faults();
    naming.tried = list.size();
    right_ = with(BackwardFault::none);
    for (std::size_t i = 0; i < output_.size(); ++i) {
      const std::vector<double> zeros(got_[i].size(), 0.0);
      sizes_.push_back(root_of_squares(right_[i], zeros)), before_.push_back(error(i, right_));
      errs_.push_back(before_[i] > output_[i].limit * sizes_[i]);
    }
    if (std::ranges::find(errs_, true) == errs_.end()) return naming;
    std::vector<double> shares(list.size());
    parallel_for(list.size(), threads,
                 [&](std::size_t i, int) { shares[i] = explained(with(list[i].fault)); });
    const std::size_t best = std::ranges::max_element(shares) - shares.begin();
    constexpr double least = 0.9, hardly_less = 0.01;
    if (shares[best] < least) return naming;
    const std::size_t worst = std::ranges::max_element(before_) - before_.begin();
    const Gradients of_best = with(list[best].fault);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (shares[i] < shares[best] - hardly_less) continue;
      const Gradients predicted = i == best ? of_best : with(list[i].fault);
      if (i != best && !are_alike(predicted, of_best)) continue;
      Cause cause{
          std::string(list[i].name), std::string(list[i].meaning),   shares[i],
          output_[worst].name,       before_[worst] / sizes_[worst], error(worst, predicted) / sizes_[worst]};
      naming.causes.insert(i == best ? naming.causes.begin() : naming.causes.end(), std::move(cause));
    }
    return naming;
  }

 private:
  Gradients with(BackwardFault fault) const {
    Gradients values;
    const kda::GradientTensors tensors = reference_backward(problem_, options_, fault);
    for (const FailedGradient& one : output_) {
      const auto found = std::ranges::find(tensors, one.name, &tensor::Tensor::name);
      std::vector<double>& list = values.emplace_back(one.got->size());
      for (std::size_t i = 0; i < list.size(); ++i) list[i] = found->value(i);
    }
    return values;
  }
  double error(std::size_t i, const Gradients& expected) const {
    return root_of_squares(got_[i], expected[i]);
  }

  /// Cause::explained; -1 where a tensor that is right would not stay so, nothing where what is predicted is
  /// as far from the output as from zero.
  double explained(const Gradients& expected) const {
    constexpr double most_left = 0.5;
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < output_.size(); ++i) {
      const double left = error(i, expected);
      if (errs_[i]) {
        const double share = left / before_[i];
        const double size = root_of_squares(expected[i], std::vector<double>(expected[i].size(), 0.0));
        sum += left <= most_left * size ? std::max(-1.0, 1 - share * share) : std::min(0.0, 1 - share);
        count += 1;
      } else if (!is_sum(i) && left > 2 * std::max(before_[i], output_[i].limit * sizes_[i])) {
        return -1;
      }
    }
    return sum / count;
  }

  /// Over tokens, which a kernel may form elsewhere, from what is right there.
  bool is_sum(std::size_t i) const { return output_[i].name == "dA_log" || output_[i].name == "ddt_bias"; }

  bool are_alike(const Gradients& a, const Gradients& b) const {
    constexpr double alike = 0.99;
    double aa = 0, bb = 0, ab = 0;
    for (std::size_t t = 0; t < a.size(); ++t)
      for (std::size_t i = 0; sizes_[t] > 0 && i < a[t].size(); ++i) {
        const double x = (a[t][i] - right_[t][i]) / sizes_[t], y = (b[t][i] - right_[t][i]) / sizes_[t];
        aa += x * x, bb += y * y, ab += x * y;
      }
    return aa > 0 && bb > 0 && ab >= alike * std::sqrt(aa * bb);
  }

  const kda::Problem& problem_;
  const std::vector<FailedGradient>& output_;
  kda::RunOptions options_;
  Gradients got_, right_;
  std::vector<double> sizes_, before_;
  std::vector<bool> errs_;  ///< beyond its limit
};

}  // namespace

Naming name_gradient_fault(const kda::Problem& problem, const std::vector<FailedGradient>& output,
                           std::size_t chunk_size, int threads) {
  const kda::Dimensions& d = problem.dimensions();
  constexpr double most = 1 << 24;  // some seconds
  const auto rows = static_cast<double>(std::min(chunk_size, d.T)), K = static_cast<double>(d.K);
  const double work =
      static_cast<double>(d.B * d.T * d.HV) * (K * (static_cast<double>(d.V) + rows) + rows * rows);
  if (!has_reference_backward(problem) || work > most) return {};
  return GradientSearch(problem, output, chunk_size).run(threads);
}

}  // namespace kda_check::hypotheses
