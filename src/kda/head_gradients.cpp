#include "kda/head_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kda/column_sums.hpp"
#include "kda/kernels/gate_functions.hpp"
#include "kda/kernels/gradient_rules.hpp"
#include "kda/kernels/row_norm.hpp"
#include "kda/kernels/special.hpp"
#include "kda/large_rows.hpp"

namespace kda_check::kda {

namespace {

/// (dy - (dy . y) y) / n of one row whose squares are beyond the range of fp64.
void through_norm(const double* x, const double* y, const double* dy, std::size_t K, double* dx) {
  const double reciprocal = RowNorm::of(x, K).reciprocal().hi;
  double along = 0;
  for (std::size_t k = 0; k < K; ++k) along += dy[k] * y[k];
  for (std::size_t k = 0; k < K; ++k) dx[k] = (dy[k] - along * y[k]) * reciprocal;
}

/// x times a slope that may be beyond the range of fp64: nothing times it is nothing.
double times_slope(double x, double slope) { return x == 0 && std::isinf(slope) ? 0.0 : x * slope; }

/// What the kernel `gate_gradient` computes, with slopes that no amplitude drives out of the range on their
/// way.
void through_gate(const GateGradientBlock<double>& block, double A_log) {
  const GateFunctions<double> gate(A_log);
  for (std::size_t t = 0; t < block.tokens; ++t) {
    double amplitude_sum = 0;
    for (std::size_t k = 0; k < block.key_dim; ++k) {
      const std::size_t at = t * block.key_stride + k;
      const numeric::DoubleDouble y{block.bias != nullptr ? block.x[at] + block.bias[k] : block.x[at]};
      double& gradient = block.gradient[at];
      const double by_amplitude =
          block.lower_bounded ? gate.bounded_amplitude_slope(y, block.lower_bound).hi : block.g[at];
      amplitude_sum += times_slope(gradient, by_amplitude);
      gradient = times_slope(gradient, block.lower_bounded ? gate.bounded_slope(y, block.lower_bound).hi
                                                           : gate.softplus_slope(y).hi);
    }
    block.amplitude_sums[t] = amplitude_sum;
  }
}

}  // namespace

template <class T>
HeadGradients<T>::HeadGradients(const Problem& problem, const Operations& operations,
                                const GradientForm& form, GradientTensors& gradients)
    : problem_(problem),
      d_(problem.dimensions()),
      reader_(problem, operations),
      operations_(operations),
      form_(form),
      gradients_(gradients) {
  if (has_gradient(problem, Gradient::dA_log))
    amplitude_parts_.assign((form.triton ? d_.B * d_.T : d_.N) * d_.HV, T(0));
  if (has_gradient(problem, Gradient::ddt_bias) && !form.triton)
    bias_parts_.assign(d_.N * d_.HV * d_.K, T(0));
}

template <class T>
void HeadGradients<T>::store(Gradient gradient, const Sequence& s, std::size_t heads, std::size_t head,
                             std::size_t begin, std::size_t count, std::size_t width, const T* rows,
                             std::size_t stride) {
  tensor::Tensor& target = tensor(gradient);
  for (std::size_t t = 0; t < count; ++t)
    kernels<T>().narrow(rows + t * stride, target.dtype(),
                        target.at(((s.batch * d_.T + begin + t) * heads + head) * width), width);
}

template <class T>
void HeadGradients<T>::normalised_rows(const tensor::Tensor& stored, Gradient gradient, const Sequence& s,
                                       std::size_t head, std::size_t begin, std::size_t count, T* rows,
                                       std::size_t stride) {
  if (problem_.options.qk_l2norm) {
    tensor::Scratch<T> x(count * stride), y(count * stride);
    reader_.rows_of(stored, d_.H, d_.K, s, head, begin, count, x.data(), stride);
    const std::size_t value_head = head * problem_.heads_per_group();
    const auto read = gradient == Gradient::dq ? &HeadReader<T>::query : &HeadReader<T>::key;
    (reader_.*read)(s, value_head, begin, count, form_.norm, form_.normalised, y.data(), stride);
    NormGradientBlock<T> block{count, d_.K, stride, x.data(), y.data(), rows, operations_};
    if (form_.triton) block.along = form_.triton->norm;
    if constexpr (std::is_same_v<T, double>) {
      LargeRows large(x.data(), count, d_.K, stride);
      large.keep([&](std::size_t t, double* dx) {
        through_norm(x.data() + t * stride, y.data() + t * stride, rows + t * stride, d_.K, dx);
      });
      kernels<T>().normalise_gradient(block);
      large.put_into(rows);
    } else {
      kernels<T>().normalise_gradient(block);
    }
  }
  store(gradient, s, d_.H, head, begin, count, d_.K, rows, stride);
}

template <class T>
void HeadGradients<T>::query(const Sequence& s, std::size_t head, std::size_t begin, std::size_t count,
                             T* rows, std::size_t stride) {
  normalised_rows(problem_.q, Gradient::dq, s, head, begin, count, rows, stride);
}

template <class T>
void HeadGradients<T>::key(const Sequence& s, std::size_t head, std::size_t begin, std::size_t count, T* rows,
                           std::size_t stride) {
  normalised_rows(problem_.k, Gradient::dk, s, head, begin, count, rows, stride);
}

template <class T>
void HeadGradients<T>::value(const Sequence& s, std::size_t head, std::size_t begin, std::size_t count,
                             const T* rows, std::size_t stride) {
  store(Gradient::dv, s, d_.HV, head, begin, count, d_.V, rows, stride);
}

template <class T>
void HeadGradients<T>::log_decay(const Sequence& s, std::size_t head, std::size_t begin, std::size_t count,
                                 T* rows, std::size_t stride) {
  const Options& options = problem_.options;
  if (options.gate != Gate::none) {
    tensor::Scratch<T> x(count * stride), g(count * stride), sums(count), bias(problem_.dt_bias ? d_.K : 0);
    reader_.rows_of(problem_.g, d_.HV, d_.K, s, head, begin, count, x.data(), stride);
    reader_.log_decay(s, head, begin, count, g.data(), stride);
    if (problem_.dt_bias) reader_.bias(head, bias.data());
    GateGradientBlock<T> block{count,
                               d_.K,
                               stride,
                               x.data(),
                               g.data(),
                               problem_.dt_bias ? bias.data() : nullptr,
                               reader_.amplitude(head),
                               options.gate == Gate::lower_bound,
                               static_cast<T>(options.lower_bound.value_or(0.0)),
                               operations_.exponential,
                               rows,
                               sums.data()};
    if (form_.triton)
      block.keys = form_.triton->gate.keys, block.special = operations_.special,
      block.is_fused = operations_.is_fused;
    if constexpr (std::is_same_v<T, double>) {
      if (std::fabs(reader_.log_amplitude(head)) > largest_ordinary_A_log) {
        through_gate(block, reader_.log_amplitude(head));
      } else {
        kernels<T>().gate_gradient(block);
      }
    } else {
      kernels<T>().gate_gradient(block);
    }
    T of_block = 0;
    for (std::size_t t = 0; t < count; ++t) of_block = of_block + sums[t];
    if (!amplitude_parts_.empty() && form_.triton) {
      for (std::size_t t = 0; t < count; ++t)
        amplitude_parts_[(s.batch * d_.T + begin + t) * d_.HV + head] = sums[t];
    } else if (!amplitude_parts_.empty()) {
      T& part = amplitude_parts_[s.index * d_.HV + head];
      part = part + of_block;
    }
  }
  store(Gradient::dg, s, d_.HV, head, begin, count, d_.K, rows, stride);
  if (!bias_parts_.empty()) add_bias(s, head, begin, count, rows, stride);
}

template <class T>
void HeadGradients<T>::add_bias(const Sequence& s, std::size_t head, std::size_t begin, std::size_t count,
                                const T* rows, std::size_t stride) {
  tensor::Scratch<T> stored(form_.bias_from_stored_gate ? count * stride : 0);
  if (form_.bias_from_stored_gate) {
    reader_.rows_of(tensor(Gradient::dg), d_.HV, d_.K, s, head, begin, count, stored.data(), stride);
    rows = stored.data();
  }
  T* const part = bias_parts_.data() + (s.index * d_.HV + head) * d_.K;
  for (std::size_t k = 0; k < d_.K; ++k) {
    T of_block = 0;
    for (std::size_t t = 0; t < count; ++t) of_block = of_block + rows[t * stride + k];
    part[k] = part[k] + of_block;
  }
}

template <class T>
void HeadGradients<T>::beta(const Sequence& s, std::size_t head, std::size_t begin, std::size_t count,
                            T* values) {
  if (problem_.options.beta_sigmoid) {
    const Kernels<T>& kernel = kernels<T>();
    tensor::Scratch<T> rising(count), falling(count);
    reader_.rows_of(problem_.beta, d_.HV, 1, s, head, begin, count, falling.data(), 1);
    for (std::size_t t = 0; t < count; ++t) rising[t] = -falling[t];
    kernel.exponential(operations_.exponential, rising.data(), rising.data(), count);
    kernel.exponential(operations_.exponential, falling.data(), falling.data(), count);
    const T factor = problem_.options.allow_neg_eigval ? T(2) : T(1);
    const auto by_triton = [&](T gradient, T exponential) {
      const T y = divided(operations_.special, T(1), T(1) + exponential);
      return gradient * factor * y * (T(1) - y);
    };
    for (std::size_t t = 0; t < count; ++t)
      values[t] = form_.triton ? by_triton(values[t], rising[t])
                               : through_strength(values[t], factor, sigmoid_from(rising[t]),
                                                  sigmoid_from(falling[t]));
  }
  store(Gradient::dbeta, s, d_.HV, head, begin, count, 1, values, 1);
}

template <class T>
void HeadGradients<T>::initial_state(const Sequence& s, std::size_t head, const T* rows, std::size_t stride) {
  if (problem_.initial_state)
    store_state(rows, stride, problem_, s, head, {0, d_.V}, tensor(Gradient::dinitial_state));
}

template <class T>
void HeadGradients<T>::sum_over_sequences(const std::vector<T>& parts, tensor::Tensor& sum) {
  const std::size_t count = sum.size();
  std::vector<T> total(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::size_t n = 1; n < d_.N; ++n)
    for (std::size_t i = 0; i < count; ++i) total[i] = total[i] + parts[n * count + i];
  kernels<T>().narrow(total.data(), sum.dtype(), sum.at(0), count);
}

/// dA_log: blocks of tokens of all sequences, then the sums of these. ddt_bias: dg as it is stored; the sum
/// is rounded as that is.
template <class T>
void HeadGradients<T>::sum_over_tokens() {
  const std::size_t tokens = d_.B * d_.T, width = d_.HV * d_.K;
  const auto put = [](const std::vector<T>& sums, tensor::Tensor& target) {
    kernels<T>().narrow(sums.data(), target.dtype(), target.at(0), sums.size());
  };
  if (!amplitude_parts_.empty()) {
    std::vector<T> blocks;
    for (std::size_t first = 0; first < tokens; first += gate_rows) {
      const std::vector<T> sums =
          block_column_sums(form_.triton->gate.rows, gate_rows, amplitude_parts_.data() + first * d_.HV,
                            std::min(gate_rows, tokens - first), d_.HV);
      blocks.insert(blocks.end(), sums.begin(), sums.end());
    }
    put(torch_column_sums(blocks, blocks.size() / d_.HV, d_.HV), tensor(Gradient::dA_log));
  }
  if (!has_gradient(problem_, Gradient::ddt_bias)) return;
  const tensor::Tensor& stored = tensor(Gradient::dg);
  std::vector<T> rows(tokens * width);
  kernels<T>().widen(stored.dtype(), stored.at(0), rows.data(), rows.size());
  std::vector<T> sums = torch_column_sums(rows, tokens, width);
  tensor::Tensor as_stored(stored.name(), stored.dtype(), {width});
  put(sums, as_stored);
  kernels<T>().widen(stored.dtype(), as_stored.at(0), sums.data(), width);
  put(sums, tensor(Gradient::ddt_bias));
}

template <class T>
void HeadGradients<T>::finish() {
  if (form_.triton) return sum_over_tokens();
  if (!amplitude_parts_.empty()) sum_over_sequences(amplitude_parts_, tensor(Gradient::dA_log));
  if (!bias_parts_.empty()) sum_over_sequences(bias_parts_, tensor(Gradient::ddt_bias));
}

template class HeadGradients<float>;
template class HeadGradients<double>;

}  // namespace kda_check::kda
