#include <algorithm>
#include <utility>

#include "hypotheses/errors.hpp"
#include "hypotheses/naming/rank.hpp"
#include "hypotheses/naming/reference_backward.hpp"

namespace kda_check::hypotheses {

Naming name_gradient_fault(const kda::Problem& problem, const std::vector<FailedGradient>& output,
                           std::size_t chunk_size, int threads) {
  const kda::Dimensions& d = problem.dimensions();
  constexpr double most = 1 << 24;  // some seconds
  const auto rows = static_cast<double>(std::min(chunk_size, d.T)), K = static_cast<double>(d.K);
  const double work =
      static_cast<double>(d.B * d.T * d.HV) * (K * (static_cast<double>(d.V) + rows) + rows * rows);
  if (!BackwardReference::can_differentiate(problem) || work > most) return {};

  const BackwardReference reference(problem, chunk_size);
  const auto with = [&](const GradientReading& reading) {
    UnitValues list;
    const kda::GradientTensors tensors = reference.gradients(reading, numeric::DType::fp64);
    for (const FailedGradient& one : output)
      list.push_back(values(*std::ranges::find(tensors, one.name, &tensor::Tensor::name)));
    return list;
  };
  std::vector<Unit> units;
  UnitValues right = with({});
  for (std::size_t i = 0; i < output.size(); ++i) {
    // A sum over tokens, which a kernel may form elsewhere, from what is right there.
    const bool is_sum = output[i].name == "dA_log" || output[i].name == "ddt_bias";
    const double size = size_of(right[i]);
    units.push_back({output[i].name, output[i].limit, values(*output[i].got), std::move(right[i]),
                     size > 0 ? 1 / size : 0, !is_sum});
  }
  std::vector<Candidate> candidates;
  for (const GradientFault& fault : gradient_faults())
    if (fault.applies(problem))
      candidates.push_back({fault.name, fault.meaning, [&with, &fault] { return with(fault.reading()); }});
  Naming naming;
  naming.tried = candidates.size();
  rank(units, candidates, {.least_explained = 0.9, .least_near = 0.6, .hardly_less = 0.01}, threads, naming);
  return naming;
}

}  // namespace kda_check::hypotheses
