#include "kda/bounds/scaled_decays.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kda/bounds/log_decays.hpp"
#include "kda/head/token_tiles.hpp"

namespace kda_check::kda {

namespace {

/// One value head.
class HeadRun {
 public:
  HeadRun(const Problem& problem, std::size_t head)
      : problem_(problem),
        d_(problem.dimensions()),
        head_(head),
        arithmetic_(problem, scaled_decay_options(problem)),
        gates_(problem),
        reader_(problem, arithmetic_.operations),
        v_stride_(padded(d_.V)),
        tiles_((d_.V + kernels<float>().tile_lanes - 1) / kernels<float>().tile_lanes),
        g_(d_.B * d_.T * d_.K),
        in_(d_.K, v_stride_, d_.strength),
        o_(in_.block_tokens * v_stride_),
        state_(d_.K * v_stride_) {
    tensor::Scratch<float> rows(in_.block_tokens * padded(d_.K));
    over_blocks([&](const Sequence& s, std::size_t begin, std::size_t count) {
      gates_.log_decay(s, head, begin, count, rows.data(), padded(d_.K));
      for (std::size_t t = 0; t < count; ++t)
        std::copy_n(&rows[t * padded(d_.K)], d_.K, log_decay(s, begin + t));
    });
  }

  /// The channel that remembers longest, of those that decay at all.
  std::optional<std::size_t> slowest_channel() {
    std::vector<double> sums(d_.decays(), 0.0);
    for (std::size_t token = 0; token < d_.B * d_.T; ++token)
      for (std::size_t k = 0; k < d_.decays(); ++k) sums[k] += static_cast<double>(g_[token * d_.K + k]);
    return slowest_of(sums);
  }

  /// With the log decays [first, last) scaled, of as many as the problem has. The answer has `heads` heads,
  /// of which this is number `at`.
  void run(std::size_t first, std::size_t last, float factor, std::size_t heads, std::size_t at,
           Answer& answer) {
    const std::size_t lanes = kernels<float>().tile_lanes;
    tensor::Scratch<float> rows(d_.K * v_stride_);
    for (const Sequence& s : problem_.sequences()) {
      reader_.state(s, head_, rows.data(), v_stride_);
      to_tiles(rows.data(), d_.K, v_stride_, lanes, state_.data());
      over_blocks(s, [&](std::size_t begin, std::size_t count) {
        load(s, begin, count, first, last, factor);
        run_token_tiles(arithmetic_, in_.span(0, count), d_.K, v_stride_, reader_.scale(), {0, tiles_},
                        o_.data(), state_.data());
        for (std::size_t t = 0; t < count; ++t)
          std::copy_n(&o_[t * v_stride_], d_.V,
                      &answer.o.elements<float>()[((s.batch * d_.T + begin + t) * heads + at) * d_.V]);
      });
      from_tiles(state_.data(), d_.K, v_stride_, lanes, {0, tiles_}, rows.data());
      store(rows.data(), &answer.final_state.elements<float>()[(s.index * heads + at) * d_.K * d_.V]);
    }
  }

 private:
  /// Calls body(begin, count), tokens being counted in the batch row.
  template <class Body>
  void over_blocks(const Sequence& s, const Body& body) const {
    for (std::size_t begin = s.begin; begin < s.end; begin += in_.block_tokens)
      body(begin, std::min(in_.block_tokens, s.end - begin));
  }
  template <class Body>
  void over_blocks(const Body& body) const {
    for (const Sequence& s : problem_.sequences())
      over_blocks(s, [&](std::size_t begin, std::size_t count) { body(s, begin, count); });
  }
  float* log_decay(const Sequence& s, std::size_t token) { return &g_[(s.batch * d_.T + token) * d_.K]; }

  void load(const Sequence& s, std::size_t begin, std::size_t count, std::size_t first, std::size_t last,
            float factor) {
    in_.load_operands(reader_, arithmetic_, s, head_, begin, count, d_.K, v_stride_);
    std::copy_n(log_decay(s, begin), count * d_.K, in_.decay.data());
    const std::size_t each = d_.K / d_.decays();  // channels that share a decay
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t k = first * each; k < last * each; ++k) in_.decay[t * d_.K + k] *= factor;
    to_decays(arithmetic_, in_.decay.data(), count * d_.K);
  }
  void store(const float* rows, float* to) const {
    const bool v_first = problem_.options.state_v_first;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v)
        to[v_first ? v * d_.K + k : k * d_.V + v] = rows[k * v_stride_ + v];
  }

  const Problem& problem_;
  const Dimensions d_;
  const std::size_t head_;
  const TokenArithmetic arithmetic_;
  const HeadReader<float> gates_, reader_;
  const std::size_t v_stride_, tiles_;
  tensor::Scratch<float> g_;  ///< log decays: [tokens][K]
  TokenInputs<float> in_;
  tensor::Scratch<float> o_, state_;
};

Answer room_for(const Problem& problem) {
  Dimensions d = problem.dimensions();
  d.HV = problem.heads_per_group(), d.H = 1;
  const auto tensor = [&](std::string_view name) {
    return tensor::Tensor(std::string(name), numeric::DType::fp32,
                          expected_shape(*find_spec(name), d, problem.options.state_v_first));
  };
  return {tensor("o"), tensor("final_state")};
}

}  // namespace

// The recurrence as it is when nothing else is asked; gates are evaluated by themselves.
RunOptions scaled_decay_options(const Problem& problem) {
  RunOptions options;
  options.arithmetic = variant_named("recurrent").default_arithmetic(problem, options.dtype);
  return options;
}

ScaledDecayAnswers answers_with_scaled_decays(const Problem& problem, std::size_t query_head, float factor) {
  const std::size_t heads = problem.heads_per_group(), decays = problem.dimensions().decays();
  ScaledDecayAnswers answers{room_for(problem), room_for(problem)};
  for (std::size_t i = 0; i < heads; ++i) {
    HeadRun run(problem, query_head * heads + i);
    const std::optional<std::size_t> slowest = run.slowest_channel();
    answers.any_decays = answers.any_decays || slowest;
    const std::size_t first = slowest.value_or(0);
    run.run(first, slowest ? first + 1 : first, factor, heads, i, answers.slowest);
    run.run(0, slowest ? decays : 0, factor, heads, i, answers.all);
  }
  return answers;
}

}  // namespace kda_check::kda
