#include "kda/head/head_io.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/interruption.hpp"
#include "base/threads/work.hpp"
#include "kda/arithmetic/rounded.hpp"
#include "kda/head/large_rows.hpp"
#include "kda/kernels/elements/special.hpp"
#include "kda/kernels/truth/gate_functions.hpp"

namespace kda_check::kda {

template <class T>
HeadReader<T>::HeadReader(const Problem& problem, const Operations& operations)
    : problem_(problem), kernels_(kernels<T>()), operations_(operations) {}

template <class T>
void HeadReader<T>::rows_of(const tensor::Tensor& tensor, std::size_t heads, std::size_t width,
                            const HeadTokens& tokens, T* rows, std::size_t stride) const {
  // The next token of a head is far from it; behind the last come those of the next call.
  constexpr std::size_t ahead = 4, line = 64;
  check_interruption();
  const std::size_t T_ = problem_.dimensions().T, bytes = numeric::format_of(tensor.dtype()).bytes;
  for (std::size_t t = 0; t < tokens.count; ++t) {
    const std::size_t element =
        ((tokens.sequence.batch * T_ + tokens.begin + t) * heads + tokens.head) * width;
    if (tokens.begin + t + ahead < T_)
      for (std::size_t at = 0; at < width * bytes; at += line)
        __builtin_prefetch(tensor.at(element + ahead * heads * width) + at);
    kernels_.widen(tensor.dtype(), tensor.at(element), rows + t * stride, width);
    if (stride > width) std::memset(rows + t * stride + width, 0, (stride - width) * sizeof(T));
  }
}

template <class T>
void HeadReader<T>::normalised_rows(const tensor::Tensor& tensor, const HeadTokens& tokens, NormForm form,
                                    Rounding rounding, T factor, T* rows, std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  rows_of(tensor, d.H, d.K,
          {tokens.sequence, tokens.head / problem_.heads_per_group(), tokens.begin, tokens.count}, rows,
          stride);
  if (!problem_.options.qk_l2norm) return;
  const auto ordinary = [&](std::size_t first, std::size_t some) {
    kernels_.normalise(
        {some, d.K, stride, rows + first * stride, form == NormForm::reciprocal, operations_, factor});
  };
  if constexpr (std::is_same_v<T, double>) {
    by_size(rows, tokens.count, d.K, stride, ordinary, [&](std::size_t t) {
      double* const x = rows + t * stride;
      const RowNorm norm = RowNorm::of(x, d.K);
      for (std::size_t k = 0; k < d.K; ++k) x[k] = norm.normalised(numeric::DoubleDouble{1.0}, x[k]).hi;
    });
  } else {
    ordinary(0, tokens.count);
  }
  kernels_.round(rounding, rows, tokens.count * stride);
}

template <class T>
void HeadReader<T>::query(const HeadTokens& tokens, NormForm form, Rounding rounding, T* rows,
                          std::size_t stride) const {
  normalised_rows(problem_.q, tokens, form, rounding, scales_norm() ? scale() : T(1), rows, stride);
}

template <class T>
bool HeadReader<T>::scales_norm() const {
  return operations_.scale == ScaledPart::norm && is_fast(operations_.special) && problem_.options.qk_l2norm;
}

template <class T>
void HeadReader<T>::key(const HeadTokens& tokens, NormForm form, Rounding rounding, T* rows,
                        std::size_t stride) const {
  normalised_rows(problem_.k, tokens, form, rounding, T(1), rows, stride);
}

template <class T>
void HeadReader<T>::value(const HeadTokens& tokens, T* rows, std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  rows_of(problem_.v, d.HV, d.V, tokens, rows, stride);
  if (!problem_.write) return;
  tensor::Scratch<T> gate(d.V);
  for (std::size_t t = 0; t < tokens.count; ++t) {
    rows_of(*problem_.write, d.HV, d.V, tokens.one(t), gate.data(), d.V);
    for (std::size_t v = 0; v < d.V; ++v) rows[t * stride + v] = gate[v] * rows[t * stride + v];
  }
}

template <class T>
void HeadReader<T>::value_and_write(const HeadTokens& tokens, T* rows, T* write, std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  rows_of(problem_.v, d.HV, d.V, tokens, rows, stride);
  rows_of(*problem_.write, d.HV, d.V, tokens, write, stride);
}

template <class T>
void HeadReader<T>::log_decay(const HeadTokens& tokens, T* rows, std::size_t stride,
                              GateProduct<T>* product) const {
  const Dimensions& d = problem_.dimensions();
  own_log_decays(tokens, rows, stride, product);
  if (!d.has_scalar_decay) return;
  for (T* const values : {rows, product == nullptr ? nullptr : product->factors})
    if (values != nullptr)
      for (std::size_t t = 0; t < tokens.count; ++t)
        std::fill_n(values + t * stride + 1, d.K - 1, values[t * stride]);
}

template <class T>
void HeadReader<T>::own_log_decays(const HeadTokens& tokens, T* rows, std::size_t stride,
                                   GateProduct<T>* product) const {
  const Dimensions& d = problem_.dimensions();
  rows_of(problem_.g, d.HV, d.decays(), tokens, rows, stride);
  if (problem_.options.gate == Gate::none) return;
  tensor::Scratch<T> bias_row(problem_.dt_bias ? d.decays() : 0);
  if (problem_.dt_bias) bias(tokens.head, bias_row.data());
  if constexpr (std::is_same_v<T, double>)
    if (std::fabs(log_amplitude(tokens.head)) > largest_ordinary_A_log)
      return gate_of_any_amplitude(tokens.head, tokens.count, bias_row.data(), rows, stride);
  GateBlock<T> block{tokens.count,
                     d.decays(),
                     stride,
                     rows,
                     problem_.dt_bias ? bias_row.data() : nullptr,
                     amplitude(tokens.head),
                     problem_.options.gate == Gate::lower_bound,
                     static_cast<T>(problem_.options.lower_bound.value_or(0.0)),
                     operations_.exponential,
                     operations_.special,
                     product == nullptr ? nullptr : product->factors};
  kernels_.gate(block);
  if (product == nullptr) return;
  product->of_tanh = block.lower_bounded && block.special == Special::fast_floor;
  product->constant = block.lower_bounded ? problem_.options.lower_bound.value_or(0.0)
                                          : -static_cast<double>(block.amplitude);
}

template <class T>
void HeadReader<T>::beta(const HeadTokens& tokens, T* values) const {
  if (problem_.beta.empty()) return void(std::fill_n(values, tokens.count, T(1)));
  rows_of(problem_.beta, problem_.dimensions().HV, 1, tokens, values, 1);
  through_sigmoid(values, tokens.count);
}

template <class T>
void HeadReader<T>::column_beta(const HeadTokens& tokens, T* rows, std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  rows_of(problem_.beta, d.HV, d.V, tokens, rows, stride);
  for (std::size_t t = 0; t < tokens.count; ++t) through_sigmoid(rows + t * stride, d.V);
}

template <class T>
void HeadReader<T>::read_key(const HeadTokens& tokens, const T* key, T* rows, std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  rows_of(*problem_.erase, d.HV, d.K, tokens, rows, stride);
  for (std::size_t i = 0; i < tokens.count * stride; ++i) rows[i] = rows[i] * key[i];
}

template <class T>
void HeadReader<T>::through_sigmoid(T* values, std::size_t count) const {
  if (!problem_.options.beta_sigmoid) return;
  const T factor = problem_.options.allow_neg_eigval ? T(2) : T(1);
  if (has_tanh(operations_.special)) {
    for (std::size_t t = 0; t < count; ++t) values[t] = factor * fast_sigmoid(values[t]);
    return;
  }
  if (operations_.special == Special::fast_signed) {  // exp(x) / (1 + exp(x)) of a negative x
    for (std::size_t t = 0; t < count; ++t) {
      const bool is_negative = !(values[t] >= 0);
      T e = is_negative ? values[t] : -values[t];
      kernels_.exponential(operations_.exponential, &e, &e, 1);
      values[t] = factor * divided(operations_.special, is_negative ? e : T(1), T(1) + e);
    }
    return;
  }
  for (std::size_t t = 0; t < count; ++t) values[t] = -values[t];
  kernels_.exponential(operations_.exponential, values, values, count);
  for (std::size_t t = 0; t < count; ++t)
    values[t] = factor * divided(operations_.special, T(1), T(1) + values[t]);  // m sigmoid(beta)
}

template <class T>
double HeadReader<T>::log_amplitude(std::size_t head) const {
  return problem_.A_log ? problem_.A_log->value(head) : 0.0;
}

template <class T>
void HeadReader<T>::gate_of_any_amplitude(std::size_t head, std::size_t count, const T* bias, T* rows,
                                          std::size_t stride) const {
  const GateFunctions<double> gate(log_amplitude(head));
  for (std::size_t t = 0; t < count; ++t)
    for (std::size_t k = 0; k < problem_.dimensions().decays(); ++k) {
      T& g = rows[t * stride + k];
      const numeric::DoubleDouble y{problem_.dt_bias ? static_cast<double>(g + bias[k])
                                                     : static_cast<double>(g)};
      g = static_cast<T>(problem_.options.gate == Gate::lower_bound
                             ? gate.bounded(y, problem_.options.lower_bound.value_or(0.0)).hi
                             : gate.softplus(y).hi);
    }
}

template <class T>
T HeadReader<T>::amplitude(std::size_t head) const {
  if (!problem_.A_log) return 1;
  T value = 0;
  kernels_.widen(problem_.A_log->dtype(), problem_.A_log->at(head), &value, 1);
  kernels_.exponential(operations_.exponential, &value, &value, 1);
  return flushed(operations_.subnormals, value);
}

template <class T>
void HeadReader<T>::bias(std::size_t head, T* values) const {
  const std::size_t decays = problem_.dimensions().decays();
  kernels_.widen(problem_.dt_bias->dtype(), problem_.dt_bias->at(head * decays), values, decays);
}

template <class T>
void HeadReader<T>::output_gradient(const HeadTokens& tokens, T* rows, std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  if (problem_.output_gradient) {
    rows_of(*problem_.output_gradient, d.HV, d.V, tokens, rows, stride);
  } else {
    std::memset(rows, 0, tokens.count * stride * sizeof(T));
  }
}

template <class T>
void HeadReader<T>::state(const Sequence& s, std::size_t head, T* rows, std::size_t stride) const {
  std::memset(rows, 0, problem_.dimensions().K * stride * sizeof(T));
  if (problem_.initial_state) state_of(*problem_.initial_state, s, head, rows, stride);
}

template <class T>
void HeadReader<T>::state_gradient(const Sequence& s, std::size_t head, T* rows, std::size_t stride) const {
  std::memset(rows, 0, problem_.dimensions().K * stride * sizeof(T));
  if (problem_.state_gradient) state_of(*problem_.state_gradient, s, head, rows, stride);
}

template <class T>
void HeadReader<T>::state_of(const tensor::Tensor& states, const Sequence& s, std::size_t head, T* rows,
                             std::size_t stride) const {
  const Dimensions& d = problem_.dimensions();
  const std::size_t first = (s.index * d.HV + head) * d.K * d.V;
  if (!problem_.options.state_v_first) {
    for (std::size_t k = 0; k < d.K; ++k)
      kernels_.widen(states.dtype(), states.at(first + k * d.V), rows + k * stride, d.V);
    return;
  }
  tensor::Scratch<T> column(d.K);
  for (std::size_t v = 0; v < d.V; ++v) {
    kernels_.widen(states.dtype(), states.at(first + v * d.K), column.data(), d.K);
    for (std::size_t k = 0; k < d.K; ++k) rows[k * stride + v] = column[k];
  }
}

template <class T>
void store_output(const T* rows, std::size_t stride, const Problem& problem, const HeadTokens& tokens,
                  LaneRange lanes, tensor::Tensor& o) {
  const Dimensions& d = problem.dimensions();
  for (std::size_t t = 0; t < tokens.count; ++t) {
    const std::size_t element =
        ((tokens.sequence.batch * d.T + tokens.begin + t) * d.HV + tokens.head) * d.V + lanes.first;
    kernels<T>().narrow(rows + t * stride + lanes.first, o.dtype(), o.at(element), lanes.last - lanes.first);
  }
  Work::count(tokens.count * (lanes.last - lanes.first));
}

template <class T>
void store_state(const T* rows, std::size_t stride, const Problem& problem, std::size_t row, std::size_t head,
                 LaneRange lanes, tensor::Tensor& states) {
  const Dimensions& d = problem.dimensions();
  const std::size_t first = (row * d.HV + head) * d.K * d.V;
  if (!problem.options.state_v_first) {
    for (std::size_t k = 0; k < d.K; ++k)
      kernels<T>().narrow(rows + k * stride + lanes.first, states.dtype(),
                          states.at(first + k * d.V + lanes.first), lanes.last - lanes.first);
    return;
  }
  tensor::Scratch<T> column(d.K);
  for (std::size_t v = lanes.first; v < lanes.last; ++v) {
    for (std::size_t k = 0; k < d.K; ++k) column[k] = rows[k * stride + v];
    kernels<T>().narrow(column.data(), states.dtype(), states.at(first + v * d.K), d.K);
  }
}

template <class T>
void store_states(const T* rows, std::size_t stride, const Problem& problem, const Sequence& s,
                  std::size_t tokens, std::size_t head, LaneRange lanes, Answer& answer) {
  problem.for_checkpoints(s.index, tokens, [&](std::size_t row) {
    store_state(rows, stride, problem, row, head, lanes, answer.checkpoints);
  });
  if (tokens == s.length()) store_state(rows, stride, problem, s.index, head, lanes, answer.final_state);
}

#define KDA_CHECK_INSTANTIATE(T)                                                                        \
  template class HeadReader<T>;                                                                         \
  template void store_output(const T*, std::size_t, const Problem&, const HeadTokens&, LaneRange,       \
                             tensor::Tensor&);                                                          \
  template void store_state(const T*, std::size_t, const Problem&, std::size_t, std::size_t, LaneRange, \
                            tensor::Tensor&);                                                           \
  template void store_states(const T*, std::size_t, const Problem&, const Sequence&, std::size_t,       \
                             std::size_t, LaneRange, Answer&);
KDA_CHECK_INSTANTIATE(float)
KDA_CHECK_INSTANTIATE(double)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::kda
