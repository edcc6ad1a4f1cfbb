#include <cmath>
#include <limits>
#include <utility>

#include "hypotheses/errors.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "hypotheses/naming/rank.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::hypotheses {

Naming name_pool_fault(const kda::Problem& problem, const PoolOutput& output) {
  if (problem.pool->pieces.empty()) return {};
  const std::vector<std::size_t> alone = kda::slots_left_alone(*problem.pool);
  /// What a call leaves: o, the states that it stores, the slots that it leaves alone.
  const auto left_by = [&](const tensor::Tensor& o, const tensor::Tensor& states,
                           const tensor::Tensor& pool) {
    UnitValues left{values(o), values(states), values(tensor::picked(pool, 0, alone))};
    // Where there was NaN there has to be one.
    for (std::vector<double>& unit : left)
      for (double& x : unit)
        if (std::isnan(x)) x = std::numeric_limits<double>::max();
    return left;
  };
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64;
  const auto with = [&](const PoolFault& fault) {
    const kda::Answer answer = with_pool_fault(fault, problem, options);
    return left_by(answer.o, answer.final_state, answer.pool);
  };
  UnitValues right = with({}), got = left_by(*output.o, *output.final_state, *output.pool);
  const char* const names[] = {"o", "final_state", "state_pool"};
  const double limits[] = {output.o_limit, output.final_state_limit, 0};
  std::vector<Unit> units;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double size = size_of(right[i]);
    units.push_back({names[i], limits[i], std::move(got[i]), std::move(right[i]), size > 0 ? 1 / size : 0});
  }
  std::vector<Candidate> candidates;
  for (const PoolFault& fault : pool_faults())
    if (!fault.remembers)
      candidates.push_back({fault.name, fault.what, [&with, &fault] { return with(fault); }});
  Naming naming;
  naming.tried = candidates.size();
  rank(units, candidates, {.least_explained = 0.8, .least_near = 0.6, .hardly_less = 0.001}, 1, naming);
  return naming;
}

}  // namespace kda_check::hypotheses
