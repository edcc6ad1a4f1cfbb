#include "selftest/reference_backward.hpp"

#include <array>
#include <cmath>
#include <numbers>

#include "explain/probe/interpretation.hpp"
#include "numeric/elementary.hpp"
#include "selftest/reference_chunk.hpp"

namespace kda_check::selftest {

namespace {

using kda::Gate;
using kda::Gradient;
using kda::Problem;
using kda::Sequence;
using plain::Head;
using plain::HeadGradient;
using plain::Matrix;
using tensor::Tensor;

double sigmoid(double x) { return 1 / (1 + numeric::exp(-x)); }
double softplus(double x) {
  return x > 0 ? x + numeric::log1p(numeric::exp(-x)) : numeric::log1p(numeric::exp(x));
}

/// 1 / sqrt(sum of squares + 1e-6)
double reciprocal_norm(const Matrix& rows, std::size_t row) {
  double squares = 1e-6;
  for (std::size_t x = 0; x < rows.columns(); ++x) squares += rows(row, x) * rows(row, x);
  return 1 / std::sqrt(squares);
}

class ReferenceBackward {
 public:
  ReferenceBackward(const Problem& problem, const kda::RunOptions& options, BackwardFault fault)
      : problem_(problem),
        d_(problem.dimensions()),
        options_(options),
        fault_(fault),
        tensors_(kda::allocate_gradients(problem, options.dtype)) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) values_[i].assign(tensors_[i].size(), 0.0);
  }

  kda::GradientTensors run() {
    for (const Sequence& s : problem_.sequences())
      for (std::size_t head = 0; head < d_.HV; ++head) differentiate(s, head);
    if (problem_.options.qk_l2norm && fault_ != BackwardFault::norm_dropped) {
      through_norm(problem_.q, of(Gradient::dq));
      through_norm(problem_.k, of(Gradient::dk));
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      for (std::size_t element = 0; element < values_[i].size(); ++element)
        tensors_[i].set(element, values_[i][element]);
    return std::move(tensors_);
  }

 private:
  std::vector<double>& of(Gradient gradient) { return values_[static_cast<std::size_t>(gradient)]; }
  bool has(Gradient gradient) { return !of(gradient).empty(); }
  std::size_t query_head(std::size_t head) const { return head / problem_.heads_per_group(); }

  /// First element of the row of a token in a tensor [B,T,heads,width].
  std::size_t row(const Sequence& s, std::size_t t, std::size_t heads, std::size_t head,
                  std::size_t width) const {
    return ((s.batch * d_.T + s.begin + t) * heads + head) * width;
  }
  Matrix rows(const Tensor& tensor, const Sequence& s, std::size_t heads, std::size_t head,
              std::size_t width) const {
    Matrix part(s.length(), width);
    for (std::size_t t = 0; t < s.length(); ++t)
      for (std::size_t i = 0; i < width; ++i) part(t, i) = tensor.value(row(s, t, heads, head, width) + i);
    return part;
  }
  std::size_t in_state(const Sequence& s, std::size_t head, std::size_t k, std::size_t v) const {
    return explain::state_element(d_, problem_.options.state_v_first, s.index, head, k, v);
  }
  Matrix state(const std::optional<Tensor>& tensor, const Sequence& s, std::size_t head) const {
    Matrix part(d_.K, d_.V);
    for (std::size_t k = 0; tensor && k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) part(k, v) = tensor->value(in_state(s, head, k, v));
    return part;
  }

  /// q or k as the recurrence reads it.
  Matrix unit_rows(const Tensor& tensor, const Sequence& s, std::size_t head) const {
    Matrix part = rows(tensor, s, d_.H, query_head(head), d_.K);
    for (std::size_t t = 0; problem_.options.qk_l2norm && t < part.rows(); ++t) {
      const double factor = reciprocal_norm(part, t);
      for (std::size_t x = 0; x < d_.K; ++x) part(t, x) *= factor;
    }
    return part;
  }
  double amplitude(std::size_t head) const {
    return problem_.A_log ? numeric::exp(problem_.A_log->value(head)) : 1;
  }
  double bias(std::size_t head, std::size_t channel) const {
    return problem_.dt_bias ? problem_.dt_bias->value(head * d_.K + channel) : 0;
  }

  Head read(const Sequence& s, std::size_t head) const {
    const kda::Options& options = problem_.options;
    Head in{unit_rows(problem_.q, s, head),
            unit_rows(problem_.k, s, head),
            rows(problem_.v, s, d_.HV, head, d_.V),
            rows(problem_.g, s, d_.HV, head, d_.K),
            Matrix(s.length(), d_.V),
            state(problem_.initial_state, s, head),
            Matrix(d_.K, d_.V),
            std::vector<double>(s.length()),
            problem_.scale()};
    if (problem_.output_gradient) in.d_o = rows(*problem_.output_gradient, s, d_.HV, head, d_.V);
    if (fault_ != BackwardFault::state_gradient_lost) in.d_state = state(problem_.state_gradient, s, head);
    for (std::size_t t = 0; t < s.length(); ++t) {
      in.beta[t] = problem_.beta.value(row(s, t, d_.HV, head, 1));
      if (options.beta_sigmoid) in.beta[t] = (options.allow_neg_eigval ? 2 : 1) * sigmoid(in.beta[t]);
      for (std::size_t x = 0; options.gate != Gate::none && x < d_.K; ++x) {
        const double y = in.g(t, x) + bias(head, x);
        in.g(t, x) = options.gate == Gate::softplus ? -amplitude(head) * softplus(y)
                                                    : *options.lower_bound * sigmoid(amplitude(head) * y);
      }
    }
    return in;
  }

  void differentiate(const Sequence& s, std::size_t head) {
    const Head in = read(s, head);
    HeadGradient gradient = plain::chunk_gradient(in, options_.chunk_size, fault_);
    // What a value head adds to its query head: all, or what the last one leaves.
    const double earlier = fault_ == BackwardFault::last_of_group ? 0 : 1;
    for (std::size_t t = 0; t < s.length(); ++t) {
      for (std::size_t x = 0; x < d_.K; ++x) {
        const std::size_t shared = row(s, t, d_.H, query_head(head), d_.K) + x;
        double &q = of(Gradient::dq)[shared], &k = of(Gradient::dk)[shared];
        q = earlier * q + gradient.q(t, x);
        k = earlier * k + gradient.k(t, x);
      }
      for (std::size_t y = 0; y < d_.V; ++y)
        of(Gradient::dv)[row(s, t, d_.HV, head, d_.V) + y] = gradient.v(t, y);
      of(Gradient::dbeta)[row(s, t, d_.HV, head, 1)] = gradient.beta[t] * sigmoid_slope(s, t, head);
    }
    for (std::size_t k = 0; has(Gradient::dinitial_state) && k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v)
        of(Gradient::dinitial_state)[in_state(s, head, k, v)] = gradient.state(k, v);
    through_gate(s, head, in.g, gradient.g);
  }

  double sigmoid_slope(const Sequence& s, std::size_t t, std::size_t head) const {
    if (!problem_.options.beta_sigmoid) return 1;
    const double x = problem_.beta.value(row(s, t, d_.HV, head, 1));
    return (problem_.options.allow_neg_eigval ? 2 : 1) * sigmoid(x) * sigmoid(-x);
  }

  /// s (1 - s) at z
  double bounded_slope(double z) const {
    if (fault_ != BackwardFault::sigmoid_lost) return sigmoid(z) * sigmoid(-z);
    const auto rounded = static_cast<float>(sigmoid(z));
    return static_cast<double>(rounded * (1 - rounded));
  }

  void through_gate(const Sequence& s, std::size_t head, const Matrix& g, Matrix& gradient) {
    const Gate gate = problem_.options.gate;
    const std::size_t taken = fault_ == BackwardFault::gate_of_next_head ? (head + 1) % d_.HV : head;
    const double A = amplitude(taken);
    const double unit = fault_ == BackwardFault::base_two ? std::numbers::log2e : 1;
    const double raised = fault_ == BackwardFault::amplitude_not_raised ? 1 / A : 1;
    for (std::size_t t = 0; t < s.length(); ++t)
      for (std::size_t x = 0; x < d_.K; ++x) {
        const std::size_t element = row(s, t, d_.HV, head, d_.K) + x;
        double dg = unit * gradient(t, x), dA = 0;
        if (gate != Gate::none) {
          const double y = problem_.g.value(element) + bias(taken, x);
          if (gate == Gate::softplus) dA = dg * g(t, x), dg *= -A * sigmoid(y);
          if (gate == Gate::lower_bound)
            dg *= *problem_.options.lower_bound * bounded_slope(A * y) * A, dA = dg * y;
        }
        of(Gradient::dg)[element] = dg;
        if (has(Gradient::dA_log)) of(Gradient::dA_log)[head] += raised * dA;
        const bool by_channel = fault_ == BackwardFault::bias_by_channel;
        if (has(Gradient::ddt_bias))
          of(Gradient::ddt_bias)[by_channel ? x * d_.HV + head : head * d_.K + x] += dg;
      }
  }

  /// dx = (dy - (dy . y) y) / |x|, in place, once dy is summed over a group.
  void through_norm(const Tensor& stored, std::vector<double>& gradient) const {
    Matrix x(gradient.size() / d_.K, d_.K);
    for (std::size_t t = 0; t < x.rows(); ++t) {
      for (std::size_t i = 0; i < d_.K; ++i) x(t, i) = stored.value(t * d_.K + i);
      const double factor = reciprocal_norm(x, t);
      double along = 0;
      for (std::size_t i = 0; i < d_.K; ++i) along += gradient[t * d_.K + i] * x(t, i) * factor;
      if (fault_ == BackwardFault::norm_not_projected) along = 0;
      for (std::size_t i = 0; i < d_.K; ++i) {
        double& dx = gradient[t * d_.K + i];
        dx = factor * (dx - along * x(t, i) * factor);
      }
    }
  }

  const Problem& problem_;
  const kda::Dimensions d_;
  const kda::RunOptions& options_;
  const BackwardFault fault_;
  kda::GradientTensors tensors_;
  std::array<std::vector<double>, kda::gradient_count> values_;  ///< by Gradient
};

}  // namespace

kda::GradientTensors reference_backward(const Problem& problem, const kda::RunOptions& options,
                                        BackwardFault fault) {
  return ReferenceBackward(problem, options, fault).run();
}

}  // namespace kda_check::selftest
