#include "kda/head/gradients.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/threads/work.hpp"
#include "kda/head/column_sums.hpp"
#include "kda/head/large_rows.hpp"
#include "kda/kernels/elements/gradient_rules.hpp"
#include "kda/kernels/elements/special.hpp"
#include "kda/kernels/truth/gate_functions.hpp"

namespace kda_check::kda {

namespace {

/// dy to (dy - (dy . y) y) / n, of one row whose squares are beyond the range of fp64.
void through_norm(const double* x, const double* y, std::size_t K, double* gradient) {
  const double reciprocal = RowNorm::of(x, K).reciprocal().hi;
  double along = 0;
  for (std::size_t k = 0; k < K; ++k) along += gradient[k] * y[k];
  for (std::size_t k = 0; k < K; ++k) gradient[k] = through_l2_norm(gradient[k], y[k], along, reciprocal);
}

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
      amplitude_sum += through_slope(gradient, by_amplitude);
      gradient = through_slope(gradient, block.lower_bounded ? gate.bounded_slope(y, block.lower_bound).hi
                                                             : gate.softplus_slope(y).hi);
    }
    block.amplitude_sums[t] = amplitude_sum;
  }
}

/// Gradients of a norm take its rows as they are: scale is in the gradients of the query already.
Operations with_plain_norm(Operations operations) {
  if (operations.scale == ScaledPart::norm) operations.scale = ScaledPart::scores;
  return operations;
}

}  // namespace

template <class T>
HeadGradients<T>::HeadGradients(const Problem& problem, const Operations& operations,
                                const GradientForm& form, GradientTensors& gradients)
    : problem_(problem),
      d_(problem.dimensions()),
      reader_(problem, with_plain_norm(operations)),
      operations_(operations),
      form_(form),
      gradients_(gradients) {
  if (has_gradient(problem, Gradient::dA_log))
    amplitude_parts_.assign((form.triton ? d_.B * d_.T : d_.N) * d_.HV, T(0));
  if (has_gradient(problem, Gradient::ddt_bias) && !form.triton)
    bias_parts_.assign(d_.N * d_.HV * d_.decays(), T(0));
}

template <class T>
void HeadGradients<T>::store(Gradient gradient, const HeadTokens& tokens, std::size_t heads,
                             std::size_t width, const T* rows, std::size_t stride) {
  tensor::Tensor& target = tensor(gradient);
  for (std::size_t t = 0; t < tokens.count; ++t)
    kernels<T>().narrow(
        rows + t * stride, target.dtype(),
        target.at(((tokens.sequence.batch * d_.T + tokens.begin + t) * heads + tokens.head) * width), width);
}

template <class T>
void HeadGradients<T>::normalised_rows(const tensor::Tensor& stored, Gradient gradient,
                                       const HeadTokens& tokens, T* rows, std::size_t stride) {
  if (problem_.options.qk_l2norm) {
    tensor::Scratch<T> x(tokens.count * stride), y(tokens.count * stride);
    reader_.rows_of(stored, d_.H, d_.K, tokens, x.data(), stride);
    const std::size_t value_head = tokens.head * problem_.heads_per_group();
    const auto read = gradient == Gradient::dq ? &HeadReader<T>::query : &HeadReader<T>::key;
    (reader_.*read)({tokens.sequence, value_head, tokens.begin, tokens.count}, form_.norm, form_.normalised,
                    y.data(), stride);
    const auto ordinary = [&](std::size_t first, std::size_t some) {
      const std::size_t at = first * stride;
      NormGradientBlock<T> block{some, d_.K, stride, &x[at], &y[at], rows + at, operations_};
      if (form_.triton) block.along = form_.triton->norm;
      kernels<T>().normalise_gradient(block);
    };
    if constexpr (std::is_same_v<T, double>)
      by_size(x.data(), tokens.count, d_.K, stride, ordinary,
              [&](std::size_t t) { through_norm(&x[t * stride], &y[t * stride], d_.K, rows + t * stride); });
    else
      ordinary(0, tokens.count);
  }
  store(gradient, tokens, d_.H, d_.K, rows, stride);
}

template <class T>
void HeadGradients<T>::query(const HeadTokens& tokens, T* rows, std::size_t stride) {
  normalised_rows(problem_.q, Gradient::dq, tokens, rows, stride);
}

template <class T>
void HeadGradients<T>::key(const HeadTokens& tokens, T* rows, std::size_t stride) {
  normalised_rows(problem_.k, Gradient::dk, tokens, rows, stride);
}

template <class T>
void HeadGradients<T>::value(const HeadTokens& tokens, const T* rows, std::size_t stride) {
  store(Gradient::dv, tokens, d_.HV, d_.V, rows, stride);
  Work::count(tokens.count * d_.V);
}

template <class T>
void HeadGradients<T>::log_decay(const HeadTokens& tokens, T* rows, std::size_t stride) {
  const Options& options = problem_.options;
  const std::size_t decays = d_.decays();
  if (d_.has_scalar_decay)  // sum_k, from k = 0 upwards
    for (std::size_t t = 0; t < tokens.count; ++t)
      for (std::size_t k = 1; k < d_.K; ++k) rows[t * stride] = rows[t * stride] + rows[t * stride + k];
  if (options.gate != Gate::none) {
    tensor::Scratch<T> x(tokens.count * stride), g(tokens.count * stride), sums(tokens.count),
        bias(problem_.dt_bias ? decays : 0);
    reader_.rows_of(problem_.g, d_.HV, decays, tokens, x.data(), stride);
    reader_.own_log_decays(tokens, g.data(), stride);
    if (problem_.dt_bias) reader_.bias(tokens.head, bias.data());
    GateGradientBlock<T> block{tokens.count,
                               decays,
                               stride,
                               x.data(),
                               g.data(),
                               problem_.dt_bias ? bias.data() : nullptr,
                               reader_.amplitude(tokens.head),
                               options.gate == Gate::lower_bound,
                               static_cast<T>(options.lower_bound.value_or(0.0)),
                               operations_.exponential,
                               rows,
                               sums.data()};
    if (form_.triton)
      block.keys = form_.triton->gate.keys, block.special = operations_.special,
      block.is_fused = operations_.is_fused;
    if constexpr (std::is_same_v<T, double>) {
      if (std::fabs(reader_.log_amplitude(tokens.head)) > largest_ordinary_A_log) {
        through_gate(block, reader_.log_amplitude(tokens.head));
      } else {
        kernels<T>().gate_gradient(block);
      }
    } else {
      kernels<T>().gate_gradient(block);
    }
    T of_block = 0;
    for (std::size_t t = 0; t < tokens.count; ++t) of_block = of_block + sums[t];
    if (!amplitude_parts_.empty() && form_.triton) {
      for (std::size_t t = 0; t < tokens.count; ++t)
        amplitude_parts_[(tokens.sequence.batch * d_.T + tokens.begin + t) * d_.HV + tokens.head] = sums[t];
    } else if (!amplitude_parts_.empty()) {
      T& part = amplitude_parts_[tokens.sequence.index * d_.HV + tokens.head];
      part = part + of_block;
    }
  }
  store(Gradient::dg, tokens, d_.HV, decays, rows, stride);
  if (!bias_parts_.empty()) add_bias(tokens, rows, stride);
}

template <class T>
void HeadGradients<T>::add_bias(const HeadTokens& tokens, const T* rows, std::size_t stride) {
  tensor::Scratch<T> stored(form_.bias_from_stored_gate ? tokens.count * stride : 0);
  if (form_.bias_from_stored_gate) {
    reader_.rows_of(tensor(Gradient::dg), d_.HV, d_.decays(), tokens, stored.data(), stride);
    rows = stored.data();
  }
  T* const part = bias_parts_.data() + (tokens.sequence.index * d_.HV + tokens.head) * d_.decays();
  for (std::size_t k = 0; k < d_.decays(); ++k) {
    T of_block = 0;
    for (std::size_t t = 0; t < tokens.count; ++t) of_block = of_block + rows[t * stride + k];
    part[k] = part[k] + of_block;
  }
}

template <class T>
void HeadGradients<T>::beta(const HeadTokens& tokens, T* values, std::size_t stride) {
  if (problem_.beta.empty()) return;
  const bool is_of_columns = d_.strength == Strength::value;
  const std::size_t width = is_of_columns ? d_.V : 1;
  if (problem_.options.beta_sigmoid && !is_of_columns) through_sigmoid(tokens, 1, values);
  if (problem_.options.beta_sigmoid && is_of_columns)
    for (std::size_t t = 0; t < tokens.count; ++t) through_sigmoid(tokens.one(t), width, values + t * stride);
  store(Gradient::dbeta, tokens, d_.HV, width, values, is_of_columns ? stride : 1);
}

/// [count][width], without gaps.
template <class T>
void HeadGradients<T>::through_sigmoid(const HeadTokens& tokens, std::size_t width, T* values) {
  const Kernels<T>& kernel = kernels<T>();
  const std::size_t all = tokens.count * width;
  tensor::Scratch<T> rising(all), falling(all);
  reader_.rows_of(problem_.beta, d_.HV, width, tokens, falling.data(), width);
  for (std::size_t i = 0; i < all; ++i) rising[i] = -falling[i];
  kernel.exponential(operations_.exponential, rising.data(), rising.data(), all);
  kernel.exponential(operations_.exponential, falling.data(), falling.data(), all);
  const T factor = problem_.options.allow_neg_eigval ? T(2) : T(1);
  const auto by_triton = [&](T gradient, T exponential) {
    const T y = divided(operations_.special, T(1), T(1) + exponential);
    return gradient * factor * y * (T(1) - y);
  };
  for (std::size_t i = 0; i < all; ++i)
    values[i] = form_.triton
                    ? by_triton(values[i], rising[i])
                    : through_strength(values[i], factor, sigmoid_from(rising[i]), sigmoid_from(falling[i]));
}

template <class T>
void HeadGradients<T>::gates(const HeadTokens& tokens, const T* key, T* dk, T* dread, std::size_t k_stride,
                             T* dv, std::size_t v_stride) {
  if (d_.strength != Strength::gates) return;
  tensor::Scratch<T> gate(std::max(d_.K, d_.V)), of_gate(std::max(d_.K, d_.V)), v(d_.V);
  for (std::size_t t = 0; t < tokens.count; ++t) {
    reader_.rows_of(*problem_.erase, d_.HV, d_.K, tokens.one(t), gate.data(), d_.K);
    for (std::size_t k = 0; k < d_.K; ++k) {
      const std::size_t at = t * k_stride + k;
      of_gate[k] = key[at] * dread[at];
      dk[at] = dk[at] + gate[k] * dread[at];
    }
    store(Gradient::derase, tokens.one(t), d_.HV, d_.K, of_gate.data(), d_.K);
    reader_.rows_of(*problem_.write, d_.HV, d_.V, tokens.one(t), gate.data(), d_.V);
    reader_.rows_of(problem_.v, d_.HV, d_.V, tokens.one(t), v.data(), d_.V);
    for (std::size_t i = 0; i < d_.V; ++i) {
      T& of_value = dv[t * v_stride + i];
      of_gate[i] = v[i] * of_value;
      of_value = gate[i] * of_value;
    }
    store(Gradient::dwrite, tokens.one(t), d_.HV, d_.V, of_gate.data(), d_.V);
  }
}

template <class T>
void HeadGradients<T>::initial_state(const Sequence& s, std::size_t head, const T* rows, std::size_t stride) {
  if (problem_.initial_state)
    store_state(rows, stride, problem_, s.index, head, {0, d_.V}, tensor(Gradient::dinitial_state));
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
  const std::size_t tokens = d_.B * d_.T, width = d_.HV * d_.decays();
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
