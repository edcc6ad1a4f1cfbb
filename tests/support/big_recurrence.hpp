// The recurrence at 200 bits, forwards and backwards: the truth that the oracles are held to.
#pragma once

#include <algorithm>
#include <vector>

#include "kda/problem/problem.hpp"
#include "support/big.hpp"

namespace kda_check::test {

/// The recurrence at 200 bits, written from its definition (docs/kda.md, "Recurrent forward"), one number at
/// a time.
struct BigRecurrence {
  explicit BigRecurrence(const kda::Problem& problem) : p(problem), d(problem.dimensions()) {
    o.resize(d.B * d.T * d.HV * d.V);
    state.resize(d.N * d.HV * d.K * d.V);
    for (const kda::Sequence& s : p.sequences())
      for (std::size_t head = 0; head < d.HV; ++head) run(s, head);
  }

  std::vector<Big> row(const tensor::Tensor& tensor, const kda::Sequence& s, std::size_t t,
                       std::size_t head) const {
    std::vector<Big> values;
    for (std::size_t k = 0; k < d.K; ++k)
      values.emplace_back(tensor.value(((s.batch * d.T + t) * d.H + head / (d.HV / d.H)) * d.K + k));
    if (!p.options.qk_l2norm) return values;
    Big sum = Big(1.0) / Big(1e6);
    for (const Big& value : values) sum = sum + value * value;
    for (Big& value : values) value = value / sqrt(sum);
    return values;
  }

  Big log_decay(const kda::Sequence& s, std::size_t t, std::size_t head, std::size_t k) const {
    const bool is_scalar = p.g.shape().size() == 3;
    const std::size_t width = is_scalar ? 1 : d.K, channel = is_scalar ? 0 : k;
    const Big raw(p.g.value(((s.batch * d.T + t) * d.HV + head) * width + channel));
    if (p.options.gate == kda::Gate::none) return raw;
    const Big y = p.dt_bias ? raw + Big(p.dt_bias->value(head * width + channel)) : raw;
    const Big amplitude = p.A_log ? exp(Big(p.A_log->value(head))) : Big(1.0);
    if (p.options.gate == kda::Gate::softplus) return -(amplitude * softplus(y));
    return Big(*p.options.lower_bound) * sigmoid(amplitude * y);
  }

  /// Of a column: where they have betas of their own, that; 1 with gates.
  Big beta(const kda::Sequence& s, std::size_t t, std::size_t head, std::size_t v) const {
    if (p.erase) return Big(1.0);
    const std::size_t at = (s.batch * d.T + t) * d.HV + head;
    const Big stored(p.beta.value(p.beta.shape().size() == 4 ? at * d.V + v : at));
    if (!p.options.beta_sigmoid) return stored;
    return Big(p.options.allow_neg_eigval ? 2.0 : 1.0) * sigmoid(stored);
  }

  std::size_t state_at(const kda::Sequence& s, std::size_t head, std::size_t k, std::size_t v) const {
    return (s.index * d.HV + head) * d.K * d.V + (p.options.state_v_first ? v * d.K + k : k * d.V + v);
  }

  void run(const kda::Sequence& s, std::size_t head) {
    std::vector<std::vector<Big>> S(d.K, std::vector<Big>(d.V));
    for (std::size_t k = 0; k < d.K; ++k)
      for (std::size_t v = 0; v < d.V; ++v)
        S[k][v] = p.initial_state ? Big(p.initial_state->value(state_at(s, head, k, v))) : Big(0.0);
    for (std::size_t t = s.begin; t < s.end; ++t) {
      const std::vector<Big> q = row(p.q, s, t, head), key = row(p.k, s, t, head);
      const Big scale(p.scale());
      std::vector<Big> read = key;
      for (std::size_t k = 0; k < d.K && p.erase; ++k)
        read[k] = Big(p.erase->value(((s.batch * d.T + t) * d.HV + head) * d.K + k)) * key[k];
      for (std::size_t k = 0; k < d.K; ++k) {
        const Big decay = exp(log_decay(s, t, head, k));
        for (std::size_t v = 0; v < d.V; ++v) S[k][v] = decay * S[k][v];
      }
      for (std::size_t v = 0; v < d.V; ++v) {
        const std::size_t at = ((s.batch * d.T + t) * d.HV + head) * d.V + v;
        const Big strength = beta(s, t, head, v);
        Big error(p.v.value(at));
        if (p.write) error = Big(p.write->value(at)) * error;
        for (std::size_t k = 0; k < d.K; ++k) error = error - read[k] * S[k][v];
        for (std::size_t k = 0; k < d.K; ++k) S[k][v] = S[k][v] + key[k] * (strength * error);
        Big output(0.0);
        for (std::size_t k = 0; k < d.K; ++k) output = output + q[k] * S[k][v];
        o[at] = scale * output;
      }
    }
    for (std::size_t k = 0; k < d.K; ++k)
      for (std::size_t v = 0; v < d.V; ++v) state[state_at(s, head, k, v)] = S[k][v];
  }

  const kda::Problem& p;
  const kda::Dimensions d;
  std::vector<Big> o, state;
};

/// The largest |oracle - truth| / magnitude.
inline double worst(const std::vector<numeric::DoubleDouble>& got, const std::vector<Big>& truth,
                    std::span<const double> magnitude) {
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double apart = abs(Big(got[i]) - truth[i]).to_double();
    if (apart > 0) error = std::max(error, apart / magnitude[i]);
  }
  return error;
}

}  // namespace kda_check::test
