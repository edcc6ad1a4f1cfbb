#include "engine/missing_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "numeric/product_sum.hpp"

namespace kda_check::engine {

namespace {

struct Range {
  double least = 0, most = 0;
};

Range range_of(const tensor::Tensor& tensor) {
  Range range;
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    range.least = std::min(range.least, tensor.value(i));
    range.most = std::max(range.most, tensor.value(i));
  }
  return range;
}

/// The largest |k|.
double largest_norm(const kda::Problem& problem) {
  const std::size_t K = problem.dimensions().K;
  double largest = 0;
  for (std::size_t row = 0; row < problem.k.size() / K; ++row) {
    numeric::ProductSum square;
    for (std::size_t i = 0; i < K; ++i) square.add_square(problem.k.value(row * K + i));
    largest = std::max(largest, square.root());
  }
  return largest;
}

}  // namespace

std::vector<std::string> missing_options(const kda::Problem& problem) {
  const kda::Options& options = problem.options;
  std::vector<std::string> list;
  // 1 - beta |k|^2 is what a token keeps of the state along its key.
  constexpr double most = 2;
  const Range beta = options.beta_sigmoid ? Range{0, options.allow_neg_eigval ? 2.0 : 1.0}
                                          : range_of(problem.erase ? *problem.erase : problem.beta);
  const double norm = options.qk_l2norm ? 1 : largest_norm(problem), square = norm * norm;
  const bool grows = beta.least < 0 || beta.most * square > most;
  if (grows && !options.beta_sigmoid && (beta.least < 0 || beta.most > most))
    list.push_back(fmt::format(
        "the recurrence itself grows: {} goes from {:.3g} to {:.3g}, and {}",
        problem.erase ? "erase" : "beta", beta.least, beta.most,
        problem.erase ? "no sigmoid is applied to it" : "options/beta_sigmoid is not set; is it missing?"));
  // Rounding leaves a key of norm 1 close to it.
  if (grows && !options.qk_l2norm && square > 1.1)
    list.push_back(
        fmt::format("the recurrence itself grows: keys have norms up to {:.3g}, and options/qk_l2norm is not "
                    "set; is it missing?",
                    norm));
  if (const double gate = range_of(problem.g).most; options.gate == kda::Gate::none && gate > 0)
    list.push_back(fmt::format(
        "the recurrence itself grows: g is up to {:.3g}, and options/gate is none; are these gates "
        "that softplus or lower_bound make decays of?",
        gate));
  return list;
}

}  // namespace kda_check::engine
