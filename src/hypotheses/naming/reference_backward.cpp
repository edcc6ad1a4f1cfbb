#include "hypotheses/naming/reference_backward.hpp"

#include <array>
#include <cmath>
#include <numbers>

#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/reference_chunk.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Gate;
using kda::Gradient;
using kda::Problem;
using kda::Sequence;
using plain::Head;
using plain::HeadGradient;
using plain::Matrix;
using tensor::Tensor;

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
    return state_element(d_, problem_.options.state_v_first, s.index, head, k, v);
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
    const bool of_first = fault_ == BackwardFault::first_state_gradient;
    if (fault_ != BackwardFault::state_gradient_lost)
      in.d_state = state(problem_.state_gradient, of_first ? problem_.sequences().front() : s, head);
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
    Head in = read(s, head);
    if (fault_ == BackwardFault::first_head_decay) in.carried_by = read(s, 0).g;
    if (fault_ == BackwardFault::states_from_zero) in.state = Matrix(d_.K, d_.V);
    HeadGradient gradient = plain::chunk_gradient(in, options_.chunk_size, fault_);
    for (std::size_t t = 0; fault_ == BackwardFault::unscaled_query && t < s.length(); ++t)
      for (std::size_t x = 0; x < d_.K; ++x) gradient.q(t, x) /= in.scale;
    for (std::size_t t = 0; fault_ == BackwardFault::write_strength_lost && t < s.length(); ++t)
      for (std::size_t y = 0; in.beta[t] != 0 && y < d_.V; ++y) gradient.v(t, y) /= in.beta[t];
    for (std::size_t t = s.length(); fault_ == BackwardFault::late && t-- > 0;)
      for (std::size_t x = 0; x < d_.K; ++x) gradient.g(t, x) = t > 0 ? gradient.g(t - 1, x) : 0;
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
    if (!problem_.options.beta_sigmoid || fault_ == BackwardFault::sigmoid_slope_lost) return 1;
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
    const bool loses_tail = fault_ == BackwardFault::tail_not_summed;
    const std::size_t summed =
        loses_tail ? s.length() / options_.chunk_size * options_.chunk_size : s.length();
    const bool has_amplitude = fault_ != BackwardFault::first_row_summed || s.batch == 0;
    for (std::size_t t = 0; t < s.length(); ++t)
      for (std::size_t x = 0; x < d_.K; ++x) {
        const std::size_t element = row(s, t, d_.HV, head, d_.K) + x;
        double dg = unit * gradient(t, x), dA = 0;
        if (gate != Gate::none) {
          const double y = problem_.g.value(element) + bias(taken, x);
          const double of_decay = dg;
          if (gate == Gate::softplus) {
            dA = dg * (fault_ == BackwardFault::amplitude_by_slope ? -A * sigmoid(y) : g(t, x));
            dg *= -A * sigmoid(y);
          }
          if (gate == Gate::lower_bound)
            dg *= *problem_.options.lower_bound * bounded_slope(A * y) * A, dA = dg * y;
          if (fault_ == BackwardFault::slope_lost) dg = of_decay;
          if (fault_ == BackwardFault::amplitude_sign) dA = -dA;
        }
        of(Gradient::dg)[element] = dg;
        if (t >= summed) continue;
        if (has(Gradient::dA_log) && has_amplitude) of(Gradient::dA_log)[head] += raised * dA;
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

std::span<const GradientFault> gradient_faults() {
  using enum BackwardFault;
  static constexpr GradientFault list[] = {
      {"norm_dropped", "dq and dk are those of the normalised rows", norm_dropped},
      {"norm_not_projected", "dq and dk are divided by the norm and not projected", norm_not_projected},
      {"gate_of_next_head", "the derivative of the gate takes A_log and dt_bias of another head",
       gate_of_next_head},
      {"inclusive_mask", "dAkk has the diagonal, too", inclusive_mask},
      {"first_token_masked", "dg of the first token is missing", first_token},
      {"unscaled_scores", "dAqk lacks the scale", unscaled_scores},
      {"not_transposed", "dAkk is A dA A, not A^T dA A^T", not_transposed},
      {"last_of_group", "dq and dk are those of one value head, not the sum over its group", last_of_group},
      {"bias_by_channel", "ddt_bias is in the other layout", bias_by_channel},
      {"amplitude_not_raised", "dA_log lacks exp(A_log)", amplitude_not_raised},
      {"base_two", "dg is that of a gate in powers of two", base_two},
      {"early_rounding", "the terms of dg are rounded to bf16 before they cancel", early_rounding},
      {"sigmoid_lost", "the derivative of a saturated gate is s (1 - s) in fp32", sigmoid_lost},
      {"state_gradient_lost", "dht is not read", state_gradient_lost},
      {"last_row_of_tile", "a shorter last chunk loses what the decay of the state adds to dg",
       last_row_of_tile},
      {"erase_lost", "dbeta lacks what the prediction adds to it", erase_lost},
      {"slope_lost", "dg and ddt_bias lack the derivative of the gate", slope_lost},
      {"amplitude_by_slope", "dA_log takes the derivative of softplus for softplus", amplitude_by_slope,
       true},
      {"amplitude_sign", "dA_log has the other sign", amplitude_sign},
      {"unscaled_query", "dq lacks the scale", unscaled_query},
      {"write_strength_lost", "dv lacks beta", write_strength_lost},
      {"chunks_apart", "the gradient of the state does not reach the chunk before", chunks_apart},
      {"gradient_late", "dg is a token late", late},
      {"tail_decay_lost", "in a shorter last chunk the decay of dk to its end is read from a row behind it",
       tail_decay_lost},
      {"sigmoid_slope_lost", "dbeta lacks the derivative of the sigmoid", sigmoid_slope_lost},
      {"tail_not_summed", "dA_log and ddt_bias lack the rows of a shorter last chunk", tail_not_summed},
      {"first_row_summed", "dA_log is the sum of batch row 0 alone", first_row_summed, true},
      {"initial_gradient_early", "dinitial_state is the gradient of the state behind the first chunk",
       early_initial},
      {"local_masked", "what o gives dv lacks its own token, and so does all that follows from it",
       local_masked},
      {"value_masked", "dv lacks what o of its own token adds to it", value_masked},
      {"states_from_zero", "states are computed again without the initial state", states_from_zero},
      {"first_state_gradient", "dht of sequence 0 is read for all", first_state_gradient, true},
      {"gradient_not_cumulated", "dg lacks its sum to the end of the chunk", not_cumulated},
      {"first_head_decay", "the gradient of the state decays from chunk to chunk by the gates of head 0",
       first_head_decay},
      {"key_prediction_lost", "dk lacks what predictions add to it", key_prediction_lost},
      {"query_state_lost", "dq lacks what the state before its chunk adds to it", query_state_lost},
  };
  return list;
}

bool has_reference_backward(const Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return d.decays() == d.K && !problem.erase && !problem.beta.empty() && d.strength != kda::Strength::value;
}

kda::GradientTensors reference_backward(const Problem& problem, const kda::RunOptions& options,
                                        BackwardFault fault) {
  return ReferenceBackward(problem, options, fault).run();
}

}  // namespace kda_check::hypotheses
