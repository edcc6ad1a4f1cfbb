#include "kda/bounds/scaled_decays.hpp"

#include "kda/bounds/log_decays.hpp"
#include "kda/problem/heads.hpp"

namespace kda_check::kda {

// The recurrence as it is when nothing else is asked; gates are evaluated by themselves.
RunOptions scaled_decay_options(const Problem& problem) {
  RunOptions options;
  options.arithmetic = variant_named("recurrent").default_arithmetic(problem, options.dtype);
  return options;
}

ScaledDecayAnswers answers_with_scaled_decays(const Problem& problem, std::size_t query_head, float factor) {
  const std::vector<std::size_t> query{query_head}, heads = value_heads_of(problem, query);
  const Problem part = with_log_decays(with_heads(problem, query, heads), numeric::DType::fp32);
  std::vector<DecayOf> slowest, all;
  for (std::size_t head = 0; head < heads.size(); ++head)
    if (const std::optional<std::size_t> channel = slowest_channel(part, head))
      slowest.emplace_back(head, channel), all.emplace_back(head, std::nullopt);
  const RunOptions options = scaled_decay_options(problem);
  return {run_recurrent(with_scaled_log_decays(part, slowest, factor), options),
          run_recurrent(with_scaled_log_decays(part, all, factor), options), !all.empty()};
}

}  // namespace kda_check::kda
