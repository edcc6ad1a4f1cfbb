#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "hypotheses/naming/naming.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::hypotheses {

namespace {

using tensor::Tensor;

double root_of_squares(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a.value(i), y = b.value(i);
    if (x != y && !(std::isnan(x) && std::isnan(y))) sum += (x - y) * (x - y);
  }
  return std::isnan(sum) ? HUGE_VAL : std::sqrt(sum);
}
double root_of_squares(const Tensor& a) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a.value(i) * a.value(i);
  return std::sqrt(sum);
}

/// What a call leaves: o, the states that it stores, the slots that it leaves alone.
using Left = std::array<Tensor, 3>;

}  // namespace

Naming name_pool_fault(const kda::Problem& problem, const PoolOutput& output) {
  if (problem.pool->pieces.empty()) return {};
  const std::vector<std::size_t> alone = kda::slots_left_alone(*problem.pool);
  const Left got{output.o->clone(), output.final_state->clone(), tensor::picked(*output.pool, 0, alone)};
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64;
  const auto left_by = [&](const PoolFault& fault) {
    kda::Answer answer = with_pool_fault(fault, problem, options);
    return Left{std::move(answer.o), std::move(answer.final_state), tensor::picked(answer.pool, 0, alone)};
  };
  const Left right = left_by({"", "", {}});
  std::array<double, 3> before{}, limits{};
  for (std::size_t i = 0; i < got.size(); ++i) {
    before[i] = root_of_squares(got[i], right[i]);
    limits[i] = i == 2 ? 0 : (i == 0 ? output.o_limit : output.final_state_limit) * root_of_squares(right[i]);
  }
  const auto errs = [&](std::size_t i) { return !(before[i] <= limits[i]); };

  Naming naming;
  double best = 0;
  for (const PoolFault& fault : pool_faults()) {
    if (fault.remembers) continue;
    ++naming.tried;
    const Left left = left_by(fault);
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double after = root_of_squares(got[i], left[i]);
      if (errs(i))
        sum += std::max(-1.0, 1 - after * after / (before[i] * before[i])), count += 1;
      else if (after > 2 * std::max(limits[i], before[i]))  // what is right has to stay so
        sum = -HUGE_VAL;
    }
    if (count == 0) return naming;
    constexpr double least = 0.8, hardly_less = 0.001;
    const double explained = sum / count;
    if (!(explained >= std::max(least, best - hardly_less))) continue;
    if (explained > best + hardly_less) naming.causes.clear();
    best = std::max(best, explained);
    const std::size_t worst = errs(0) ? 0 : errs(1) ? 1 : 2;
    const double size = std::max(root_of_squares(right[worst]), std::numeric_limits<double>::min());
    naming.causes.push_back({fault.name, fault.what, explained, worst == 0 ? "o" : "final_state",
                             before[worst] / size, root_of_squares(got[worst], left[worst]) / size});
  }
  return naming;
}

}  // namespace kda_check::hypotheses
