#include "kda/bounds/operand_sizes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/threads/parallel.hpp"
#include "numeric/elementary.hpp"
#include "numeric/product_sum.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda {

namespace {

/// Of a block; values that are not finite do not count.
numeric::ProductSum energy_of(const tensor::Tensor& tensor, std::size_t begin, std::size_t end) {
  numeric::ProductSum energy;
  numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    const auto elements = tensor.elements<decltype(tag)>();
    // Squares of finite values below fp64 are within its range. Apart, the sums are added up side by side.
    std::array<double, 16> sums{};
    if constexpr (!std::is_same_v<decltype(tag), double>)
      for (std::size_t i = begin; i < end; i += sums.size())
        for (std::size_t j = 0; j < std::min(sums.size(), end - i); ++j) {
          const double x = numeric::widen(elements[i + j]);
          sums[j] += x * x;
        }
    double all = 0;
    for (const double sum : sums) all += sum;
    if (std::is_same_v<decltype(tag), double> || !std::isfinite(all)) {
      for (std::size_t i = begin; i < end; ++i)
        if (const double x = numeric::widen(elements[i]); std::isfinite(x)) energy.add_square(x);
    } else {
      energy.add(all, 1);
    }
  });
  return energy;
}

double size_of(const tensor::Tensor& tensor, int threads) {
  constexpr std::size_t block = 1 << 18;
  std::vector<numeric::ProductSum> parts((tensor.size() + block - 1) / block);
  parallel_for(parts.size(), threads, [&](std::size_t i, int) {
    parts[i] = energy_of(tensor, i * block, std::min((i + 1) * block, tensor.size()));
  });
  numeric::ProductSum energy;
  for (const numeric::ProductSum& part : parts) energy.add(part);
  return energy.root_mean(tensor.size());
}

double size_of(const std::optional<tensor::Tensor>& tensor, int threads) {
  return tensor ? size_of(*tensor, threads) : 0;
}

/// Of beta itself, which may be stored before its sigmoid, or of the write gate in its place.
double size_of_beta(const Problem& problem) {
  if (problem.write) return size_of(*problem.write, 1);
  numeric::ProductSum energy;
  for (std::size_t i = 0; i < problem.beta.size(); ++i) {
    const double x = problem.beta.value(i),
                 beta = problem.options.beta_sigmoid ? 1 / (1 + numeric::exp(-x)) : x;
    if (std::isfinite(beta)) energy.add_square(beta);
  }
  return energy.root_mean(problem.beta.size());
}

}  // namespace

OperandSizes operand_sizes(const Problem& problem, int threads) {
  const double unit = 1 / std::sqrt(static_cast<double>(problem.dimensions().K));
  const bool is_normalised = problem.options.qk_l2norm;
  const double k = is_normalised ? unit : size_of(problem.k, threads);
  OperandSizes sizes;
  sizes.state = std::max(size_of_beta(problem) * k * size_of(problem.v, threads),
                         size_of(problem.initial_state, threads));
  if (problem.has_loss()) {
    const double q = is_normalised ? unit : size_of(problem.q, threads);
    sizes.state_gradient =
        std::max(q * size_of(problem.output_gradient, threads), size_of(problem.state_gradient, threads));
  }
  return sizes;
}

}  // namespace kda_check::kda
