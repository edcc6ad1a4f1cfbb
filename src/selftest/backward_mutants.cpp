#include <array>
#include <utility>
#include <vector>

#include "hypotheses/naming/reference_backward.hpp"
#include "selftest/mutants.hpp"

namespace kda_check::selftest {

namespace {

using hypotheses::GradientFault;
using kda::GradientTensors;
using kda::Problem;
using kda::RunOptions;
using numeric::DType;
using BackwardRun = GradientTensors (*)(const Problem&, const RunOptions&);

GradientTensors gradients_again(const Problem& problem, const RunOptions& options) {
  return hypotheses::reference_backward(problem, options);
}

template <std::size_t row>
GradientTensors with(const Problem& problem, const RunOptions& options) {
  return hypotheses::reference_backward(problem, options, hypotheses::gradient_faults()[row].fault);
}
template <std::size_t... row>
constexpr std::array<BackwardRun, sizeof...(row)> backward_runs(std::index_sequence<row...>) {
  return {with<row>...};
}

/// Masks after the exponentials: what lies above the diagonal overflows, and infinity times zero is NaN.
GradientTensors masked_late(const Problem& problem, const RunOptions& options) {
  RunOptions late = options;
  late.arithmetic.decay = kda::DecayForm::pair_late;
  return kda::run_chunk_backward(problem, late);
}

}  // namespace

std::span<const BackwardMutant> backward_mutants() {
  static const std::vector<BackwardMutant> list = [] {
    constexpr std::array of_faults =
        backward_runs(std::make_index_sequence<hypotheses::gradient_fault_count>());
    std::vector<BackwardMutant> all{{"gradients_again", "the chunk form backwards in other code", "chunk",
                                     DType::fp64, true, gradients_again}};
    for (std::size_t i = 0; i < of_faults.size(); ++i)
      if (const GradientFault& fault = hypotheses::gradient_faults()[i]; !fault.of_softplus)
        all.push_back({fault.name, fault.meaning, "chunk", DType::fp32, false, of_faults[i]});
    all.push_back({"masked_late", "exponentials masked after they overflowed", "chunk", DType::fp32, false,
                   masked_late});
    return all;
  }();
  return list;
}

}  // namespace kda_check::selftest
