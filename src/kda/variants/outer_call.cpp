#include "kda/variants/outer_call.hpp"

#include <numeric>

#include "kda/problem/heads.hpp"

namespace kda_check::kda {

namespace {

using tensor::Tensor;

/// x times scale, as a tensor of its element type: computed in fp32 but for fp64.
Tensor scaled(const Tensor& x, double scale) {
  Tensor result(x.name(), x.dtype(), x.shape());
  for (std::size_t i = 0; i < x.size(); ++i)
    result.set(i, x.dtype() == numeric::DType::fp64
                      ? x.value(i) * scale
                      : static_cast<float>(x.value(i)) * static_cast<float>(scale));
  return result;
}

/// [B,T,H,K] of [B,T,H * group,K]: sums over each group, from its first head on.
Tensor added_up(const Tensor& x, std::size_t group, numeric::DType dtype) {
  tensor::Shape shape = x.shape();
  shape[2] /= group;
  Tensor sums(x.name(), x.dtype(), shape);
  const std::size_t K = shape[3];
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t first = i / K * group * K + i % K;
    double sum = 0;
    for (std::size_t member = 0; member < group; ++member) {
      sum += x.value(first + member * K);
      if (dtype != numeric::DType::fp64) sum = static_cast<float>(sum);
    }
    sums.set(i, sum);
  }
  return sums;
}

}  // namespace

std::optional<OuterCall> outer_call(const Problem& problem, const RunOptions& options, Pass pass) {
  const Arithmetic& arithmetic = options.arithmetic;
  const bool is_repeated = arithmetic.heads == Heads::repeated && pass == Pass::backward &&
                           problem.heads_per_group() > 1,
             is_scaled = arithmetic.scale == ScaledPart::before;
  if (!is_repeated && !is_scaled) return std::nullopt;
  OuterCall call;
  call.options = options;
  call.options.arithmetic.heads = Heads::grouped;
  std::vector<std::size_t> values(problem.dimensions().HV), queries(problem.dimensions().H);
  std::iota(values.begin(), values.end(), std::size_t{0});
  std::iota(queries.begin(), queries.end(), std::size_t{0});
  if (is_repeated) {
    call.group_ = problem.heads_per_group();
    queries = values;
    for (std::size_t& query : queries) query /= call.group_;
  }
  call.problem = with_heads(problem, queries, values);
  if (is_scaled) {
    call.options.arithmetic.scale = ScaledPart::scores;
    call.scale_of_q_ = problem.scale();
    call.problem.options.scale = 1;
    call.problem.q = scaled(call.problem.q, call.scale_of_q_);
  }
  return call;
}

Tensors OuterCall::results(Tensors inner) const {
  for (const char* const name : {"dq", "dk"}) {
    const auto found = inner.find(name);
    if (found == inner.end()) continue;
    if (group_ > 1) found->second = added_up(found->second, group_, options.dtype);
    if (scale_of_q_ != 1 && found->first == "dq") found->second = scaled(found->second, scale_of_q_);
  }
  return inner;
}

}  // namespace kda_check::kda
