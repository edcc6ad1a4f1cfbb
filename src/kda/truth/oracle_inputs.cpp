#include "kda/truth/oracle_inputs.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/interruption.hpp"
#include "kda/kernels/truth/gradient_elements.hpp"
#include "kda/kernels/truth/oracle_elements.hpp"
#include "kda/kernels/truth/row_norm.hpp"
#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

using numeric::DoubleDouble;

void OracleInputs::widen_row(const tensor::Tensor& tensor, const Sequence& tokens, std::size_t t,
                             std::size_t heads, std::size_t head, std::size_t width, double* target) const {
  check_interruption();
  const std::size_t row = (tokens.batch * d_.T + tokens.begin + t) * heads + head;
  kernels<double>().widen(tensor.dtype(), tensor.at(row * width), target, width);
}

void OracleInputs::reciprocal_norms(const tensor::Tensor& q_or_k, const Sequence& tokens, std::size_t head,
                                    Pairs& values) const {
  std::vector<double> stored(d_.K);
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    widen_row(q_or_k, tokens, t, d_.H, head / problem_.heads_per_group(), d_.K, stored.data());
    values.set(t, RowNorm::of(stored.data(), d_.K).reciprocal());
  }
}

void OracleInputs::key_rows(const tensor::Tensor& tensor, const Sequence& tokens, std::size_t head,
                            DoubleDouble factor, Pairs& rows) const {
  for (std::size_t t = 0; t < tokens.length(); ++t)
    widen_row(tensor, tokens, t, d_.H, head / problem_.heads_per_group(), d_.K, rows.hi.data() + t * d_.K);
  kernel_table().oracle.keys({tokens.length(), d_.K, rows.lanes(), factor, problem_.options.qk_l2norm});
}

void OracleInputs::tokens(const Sequence& tokens, std::size_t head, TokenPairs& rows, std::size_t stride,
                          bool in_fp64) const {
  query(tokens, head, rows.q);
  key(tokens, head, rows.k);
  value(tokens, head, rows.v.data(), rows.v_low.data(), stride);
  if (in_fp64) {
    high_decay(tokens, head, rows.decay);
    find_norms(tokens.length(), rows);
  } else {
    log_decay(tokens, head, rows.decay);
    kernel_table().oracle.exponential(rows.decay.lanes(), tokens.length() * d_.K);
  }
  if (d_.strength == Strength::value) return column_beta(tokens, head, rows.column_beta, stride);
  beta(tokens, head, rows.beta);
  if (d_.strength == Strength::gates) {
    read_key(tokens, head, rows.own_read);
    for (std::size_t at = 0; at < tokens.length() * d_.K; ++at) {
      const double key = rows.k.hi[at], read = rows.own_read.hi[at];
      rows.retained[at] = retained_of_read(read, key);
      rows.written[at] = std::fabs(key), rows.erased[at] = std::fabs(read);
    }
    return;
  }
  for (std::size_t t = 0; t < tokens.length(); ++t)
    for (std::size_t k = 0; k < d_.K; ++k) {
      const double key = rows.k.hi[t * d_.K + k], strength = rows.beta.hi[t];
      rows.retained[t * d_.K + k] = retained_share(strength, key);
      rows.written[t * d_.K + k] = written_share(strength, key);
    }
}

void OracleInputs::find_norms(std::size_t count, TokenPairs& rows) const {
  rows.norms.resize(count);
  for (std::size_t t = 0; t < count; ++t) {
    TokenNormSums sums;
    for (std::size_t at = t * d_.K; at < (t + 1) * d_.K; ++at)
      sums.add(rows.decay.hi[at], rows.k.hi[at], rows.q.hi[at]);
    rows.norms[t] = sums.norms(static_cast<double>(d_.K));
    // What is erased along another row than is written to may grow without one.
    if (rows.own_read.size() > 0) rows.norms[t].decay = HUGE_VAL;
  }
}

void OracleInputs::query(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  key_rows(problem_.q, tokens, head, DoubleDouble{problem_.scale()}, rows);
}

void OracleInputs::unscaled_query(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  key_rows(problem_.q, tokens, head, DoubleDouble{1.0}, rows);
}

void OracleInputs::key(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  key_rows(problem_.k, tokens, head, DoubleDouble{1.0}, rows);
}

void OracleInputs::read_key(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  key(tokens, head, rows);
  if (!problem_.erase) return;
  std::vector<double> gate(d_.K);
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    widen_row(*problem_.erase, tokens, t, d_.HV, head, d_.K, gate.data());
    for (std::size_t k = 0; k < d_.K; ++k) rows.set(t * d_.K + k, rows.get(t * d_.K + k) * gate[k]);
  }
}

void OracleInputs::value(const Sequence& tokens, std::size_t head, double* rows, double* low,
                         std::size_t stride) const {
  std::vector<double> gate(problem_.write ? d_.V : 0);
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    double* const row = rows + t * stride;
    std::memset(row, 0, stride * sizeof(double));
    widen_row(problem_.v, tokens, t, d_.HV, head, d_.V, row);
    if (!problem_.write) continue;
    std::memset(low + t * stride, 0, stride * sizeof(double));
    widen_row(*problem_.write, tokens, t, d_.HV, head, d_.V, gate.data());
    for (std::size_t v = 0; v < d_.V; ++v) {
      const DoubleDouble product = DoubleDouble{row[v]} * gate[v];
      row[v] = product.hi, low[t * stride + v] = product.lo;
    }
  }
}

void OracleInputs::output_gradient(const Sequence& tokens, std::size_t head, double* rows,
                                   std::size_t stride) const {
  std::memset(rows, 0, tokens.length() * stride * sizeof(double));
  if (!problem_.output_gradient) return;
  for (std::size_t t = 0; t < tokens.length(); ++t)
    widen_row(*problem_.output_gradient, tokens, t, d_.HV, head, d_.V, rows + t * stride);
}

void OracleInputs::raw_gates(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  std::memset(rows.lo.data(), 0, tokens.length() * d_.decays() * sizeof(double));
  for (std::size_t t = 0; t < tokens.length(); ++t)
    widen_row(problem_.g, tokens, t, d_.HV, head, d_.decays(), rows.hi.data() + t * d_.decays());
}

Pairs OracleInputs::bias_of(std::size_t head) const {
  Pairs bias(problem_.dt_bias ? d_.decays() : 0);
  if (problem_.dt_bias) {
    bias.lo.fill(0);
    kernels<double>().widen(problem_.dt_bias->dtype(), problem_.dt_bias->at(head * d_.decays()),
                            bias.hi.data(), d_.decays());
  }
  return bias;
}

void OracleInputs::through_gate(void (*kernel)(const OracleGateBlock&), const Sequence& tokens,
                                std::size_t head, Pairs& rows) const {
  raw_gates(tokens, head, rows);
  const double A_log = problem_.A_log ? problem_.A_log->value(head) : 0.0;
  Pairs bias = bias_of(head);
  for (std::size_t t = 0; t < tokens.length(); ++t)
    kernel({d_.decays(), rows.lanes(t * d_.decays()),
            problem_.dt_bias ? bias.rows() : OracleRows{nullptr, nullptr}, A_log,
            problem_.options.gate == Gate::lower_bound, problem_.options.lower_bound.value_or(0.0),
            problem_.options.gate != Gate::none});
}

void OracleInputs::log_decay(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  own_log_decays(tokens, head, rows);
  over_channels(tokens.length(), rows);
}

void OracleInputs::high_decay(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  through_gate(kernel_table().oracle.decay, tokens, head, rows);
  over_channels(tokens.length(), rows);
}

void OracleInputs::over_channels(std::size_t count, Pairs& rows) const {
  if (d_.has_scalar_decay)
    for (std::size_t i = count * d_.K; i-- > 0;) rows.set(i, rows.get(i / d_.K));
}

void OracleInputs::own_log_decays(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  if (problem_.options.gate == Gate::none) {
    raw_gates(tokens, head, rows);
  } else {
    through_gate(kernel_table().oracle.gate, tokens, head, rows);
  }
}

void OracleInputs::gate_slopes(const Sequence& tokens, std::size_t head, Pairs& rows) const {
  through_gate(kernel_table().oracle.gate_slope, tokens, head, rows);
}

void OracleInputs::amplitude_slopes(const Sequence& tokens, std::size_t head, Pairs& gate_slopes,
                                    Pairs& rows) const {
  const std::size_t count = tokens.length() * d_.decays();
  if (problem_.options.gate == Gate::softplus) {
    own_log_decays(tokens, head, rows);
    for (std::size_t i = 0; i < count; ++i) rows.set(i, softplus_amplitude_slope(rows.get(i)));
    return;
  }
  const GateFunctions<double> gate(problem_.A_log->value(head));
  raw_gates(tokens, head, rows);
  Pairs bias = bias_of(head);
  for (std::size_t i = 0; i < count; ++i) {
    DoubleDouble y = rows.get(i);
    if (problem_.dt_bias) y = y + bias.get(i % d_.decays());
    rows.set(i, bounded_amplitude_slope(gate, y, gate_slopes.get(i), *problem_.options.lower_bound));
  }
}

void OracleInputs::beta(const Sequence& tokens, std::size_t head, Pairs& values) const {
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    double stored = 1;
    if (!problem_.beta.empty()) widen_row(problem_.beta, tokens, t, d_.HV, head, 1, &stored);
    values.set(t, write_strength(stored, problem_.options.beta_sigmoid, problem_.options.allow_neg_eigval));
  }
}

void OracleInputs::column_beta(const Sequence& tokens, std::size_t head, Pairs& rows,
                               std::size_t stride) const {
  std::vector<double> stored(d_.V);
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    widen_row(problem_.beta, tokens, t, d_.HV, head, d_.V, stored.data());
    for (std::size_t v = 0; v < stride; ++v)
      rows.set(t * stride + v, v < d_.V ? write_strength(stored[v], problem_.options.beta_sigmoid,
                                                         problem_.options.allow_neg_eigval)
                                        : DoubleDouble{0.0});
  }
}

void OracleInputs::beta_slopes(const Sequence& tokens, std::size_t head, Pairs& values) const {
  const std::size_t width = d_.strength == Strength::value ? d_.V : 1;
  std::vector<double> stored(width);
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    widen_row(problem_.beta, tokens, t, d_.HV, head, width, stored.data());
    for (std::size_t v = 0; v < width; ++v)
      values.set(t * width + v,
                 strength_slope(stored[v], problem_.options.beta_sigmoid, problem_.options.allow_neg_eigval));
  }
}

}  // namespace kda_check::kda
