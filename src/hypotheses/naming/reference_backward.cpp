#include "hypotheses/naming/reference_backward.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/reference_chunk.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Gate;
using kda::Gradient;
using kda::Problem;
using kda::Sequence;
using plain::ChunkedHead;
using plain::Head;
using plain::HeadGradient;
using plain::Matrix;
using tensor::Tensor;

/// Of an index of the flat tensor that of the same element where two neighbouring axes are exchanged.
std::size_t exchanged(const tensor::Shape& shape, std::size_t axis, std::size_t i) {
  std::size_t width = 1;
  for (std::size_t rest = axis + 2; rest < shape.size(); ++rest) width *= shape[rest];
  const std::size_t first = shape[axis], second = shape[axis + 1], within = i / width % (first * second);
  const std::size_t other = within % second * first + within / second;
  return (i / width / (first * second) * first * second + other) * width + i % width;
}

Problem in_order(const Problem& problem, const OtherOrder& order) {
  Problem other = kda::clone(problem);
  Tensor& tensor = *order.of(other);
  const Tensor own = tensor.clone();
  const std::size_t count = own.shape()[order.axis];
  std::size_t width = 1;  // of an index
  for (std::size_t axis = order.axis + 1; axis < own.shape().size(); ++axis) width *= own.shape()[axis];
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (order.from == nullptr) {
      const std::size_t j = exchanged(own.shape(), order.axis, i);
      order.is_stored ? tensor.set(j, own.value(i)) : tensor.set(i, own.value(j));
      continue;
    }
    const std::size_t at = i / width % count, from = order.from(problem, at, count);
    tensor.set(i, from < count ? own.value(i - at * width + from * width) : 0);
  }
  return other;
}

Problem with_bounds(const Problem& problem, Bounds bounds) {
  Problem other = kda::clone(problem);
  for (std::size_t i = 1; i + 1 < other.cu_seqlens.size(); ++i) {
    std::int64_t& bound = other.cu_seqlens[i];
    bound = bounds == Bounds::ignored ? other.cu_seqlens.back() : bound + (bounds == Bounds::late ? 1 : -1);
  }
  if (bounds == Bounds::ignored && other.state_gradient)  // which nobody reads
    for (std::size_t n = other.state_gradient->size() / problem.sequences().size();
         n < other.state_gradient->size(); ++n)
      other.state_gradient->set(n, 0);
  return other;
}

/// 1 / sqrt(sum of squares + 1e-6)
double reciprocal_norm(const Matrix& rows, std::size_t row) {
  double squares = 1e-6;
  for (std::size_t x = 0; x < rows.columns(); ++x) squares += rows(row, x) * rows(row, x);
  return 1 / std::sqrt(squares);
}

Matrix clamped(Matrix a, double bound) {
  return applied(std::move(a), [bound](double x) { return std::clamp(x, -bound, bound); });
}

}  // namespace

/// The inputs of a problem, as the recurrence reads them and by head.
class BackwardInputs {
 public:
  explicit BackwardInputs(const Problem& problem) : problem_(problem), d_(problem.dimensions()) {}

  std::size_t query_head(std::size_t head) const { return head / problem_.heads_per_group(); }
  /// First element of the row of a token in a tensor [B,T,heads,width].
  std::size_t row(const Sequence& s, std::size_t t, std::size_t heads, std::size_t head,
                  std::size_t width) const {
    return ((s.batch * d_.T + s.begin + t) * heads + head) * width;
  }
  std::size_t in_state(std::size_t sequence, std::size_t head, std::size_t k, std::size_t v,
                       bool transposed = false) const {
    return state_element(d_, problem_.options.state_v_first != transposed, sequence, head, k, v);
  }
  Matrix state(const std::optional<Tensor>& tensor, std::size_t sequence, std::size_t head) const {
    Matrix part(d_.K, d_.V);
    for (std::size_t k = 0; tensor && k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) part(k, v) = tensor->value(in_state(sequence, head, k, v));
    return part;
  }
  double amplitude(std::size_t head) const {
    return problem_.A_log ? numeric::exp(problem_.A_log->value(head)) : 1;
  }
  double bias(std::size_t head, std::size_t channel) const {
    return problem_.dt_bias ? problem_.dt_bias->value(head * d_.decays() + channel) : 0;
  }

  Head head(const Sequence& s, std::size_t head) const {
    const kda::Options& options = problem_.options;
    Head in{unit_rows(problem_.q, s, head),
            unit_rows(problem_.k, s, head),
            rows(problem_.v, s, d_.HV, head, d_.V),
            log_decays(s, head),
            Matrix(s.length(), d_.V),
            state(problem_.initial_state, s.index, head),
            std::vector<double>(s.length()),
            problem_.scale()};
    if (problem_.output_gradient) in.d_o = rows(*problem_.output_gradient, s, d_.HV, head, d_.V);
    for (std::size_t t = 0; t < s.length(); ++t) {
      in.beta[t] = problem_.beta.value(row(s, t, d_.HV, head, 1));
      if (options.beta_sigmoid) in.beta[t] = (options.allow_neg_eigval ? 2 : 1) * sigmoid(in.beta[t]);
    }
    return in;
  }

 private:
  /// [tokens][K]; one for all channels where a head has one.
  Matrix log_decays(const Sequence& s, std::size_t head) const {
    Matrix of_channels(s.length(), d_.K);
    const kda::Options& options = problem_.options;
    GateInput in{0, 0, 0, amplitude(head), options.lower_bound.value_or(0), nullptr};
    for (std::size_t t = 0; t < s.length(); ++t)
      for (std::size_t x = 0; x < d_.K; ++x) {
        const std::size_t channel = x % d_.decays();
        in.g = problem_.g.value(row(s, t, d_.HV, head, d_.decays()) + channel), in.bias = bias(head, channel);
        of_channels(t, x) = options.gate == Gate::none       ? in.g
                            : options.gate == Gate::softplus ? softplus_gate(in)
                                                             : bounded_gate(in);
      }
    return of_channels;
  }
  Matrix rows(const Tensor& tensor, const Sequence& s, std::size_t heads, std::size_t head,
              std::size_t width) const {
    Matrix part(s.length(), width);
    for (std::size_t t = 0; t < s.length(); ++t)
      for (std::size_t i = 0; i < width; ++i) part(t, i) = tensor.value(row(s, t, heads, head, width) + i);
    return part;
  }
  Matrix unit_rows(const Tensor& tensor, const Sequence& s, std::size_t head) const {
    Matrix part = rows(tensor, s, d_.H, query_head(head), d_.K);
    for (std::size_t t = 0; problem_.options.qk_l2norm && t < part.rows(); ++t) {
      const double factor = reciprocal_norm(part, t);
      for (std::size_t x = 0; x < d_.K; ++x) part(t, x) *= factor;
    }
    return part;
  }

  const Problem& problem_;
  const kda::Dimensions d_;
};

/// One backward pass, by one reading.
class BackwardRun {
 public:
  BackwardRun(const BackwardReference& of, const GradientReading& reading, numeric::DType dtype)
      : of_(of),
        problem_(of.problem_),
        inputs_(problem_),
        d_(problem_.dimensions()),
        reading_(reading),
        tensors_(kda::allocate_gradients(problem_, dtype)) {
    if (reading.order.of != nullptr) other_ = in_order(problem_, reading.order);
    for (std::size_t i = 0; i < tensors_.size(); ++i) values_[i].assign(tensors_[i].size(), 0.0);
    // By value head: the norm comes behind the sum over a group.
    q_ = k_ = Matrix(d_.B * d_.T * d_.HV, d_.K);
    for (std::size_t head = 0; head < d_.HV; ++head) amplitudes_.push_back(inputs_.amplitude(head));
  }

  kda::GradientTensors run() {
    const std::vector<Sequence> sequences = problem_.sequences();
    for (std::size_t head = 0; head < d_.HV; ++head) {
      Matrix behind(d_.K, d_.V);  // what the sequence behind leaves
      for (std::size_t n = sequences.size(); n-- > 0;) {
        HeadGradient gradient = of_chunks(sequences, n, head, behind);
        behind = gradient.state;
        keep(sequences[n], head, gradient);
      }
    }
    sum_groups(q_, reading_.query_groups, of(Gradient::dq));
    sum_groups(k_, reading_.key_groups, of(Gradient::dk));
    if (problem_.options.qk_l2norm) {
      through_norm(problem_.q, reading_.query_norm, of(Gradient::dq));
      through_norm(problem_.k, reading_.key_norm, of(Gradient::dk));
    }
    sum_parameters();
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      for (std::size_t element = 0; element < values_[i].size(); ++element)
        tensors_[i].set(element, values_[i][element]);
    return std::move(tensors_);
  }

  /// dht of a sequence, as it is read.
  static Matrix state_gradient(const Problem& problem, StateGradientOf which, std::size_t sequence,
                               std::size_t head) {
    const std::size_t last = problem.sequences().size() - 1;
    if (which == StateGradientOf::nobody || (which == StateGradientOf::last_alone && sequence != last))
      return {problem.dimensions().K, problem.dimensions().V};
    Matrix own = BackwardInputs(problem).state(problem.state_gradient, sequence, head);
    return which == StateGradientOf::transposed ? plain::transposed(own) : own;
  }

 private:
  std::vector<double>& of(Gradient gradient) { return values_[static_cast<std::size_t>(gradient)]; }
  bool has(Gradient gradient) { return !of(gradient).empty(); }

  HeadGradient of_chunks(const std::vector<Sequence>& sequences, std::size_t n, std::size_t head,
                         const Matrix& behind) const {
    const std::size_t number = n * d_.HV + head;
    if (!reading_.is_of_chunks()) return of_.right_[number];
    const Problem& read = other_ ? *other_ : problem_;
    Matrix d_state = state_gradient(read, reading_.state_gradient, sequences[n].index, head);
    if (reading_.state_gradient == StateGradientOf::with_next && n + 1 < sequences.size())
      for (std::size_t k = 0; k < d_.K; ++k)
        for (std::size_t v = 0; v < d_.V; ++v) d_state(k, v) += behind(k, v);
    const ChunkedHead& own = of_.heads_[number];
    if (reading_.token) return plain::token_gradient(own.head, *reading_.token, d_state);
    if (reading_.largest_state_gradient)
      d_state = clamped(std::move(d_state), *reading_.largest_state_gradient);
    if (reading_.largest_loss) {
      ChunkedHead of_less = own;
      for (plain::Chunk& chunk : of_less.chunks)
        chunk.d_o = clamped(std::move(chunk.d_o), *reading_.largest_loss);
      return plain::chunk_gradient(of_less, {}, d_state);
    }
    const Matrix* const carried_by = reading_.first_head_decay ? &of_.heads_[n * d_.HV].head.g : nullptr;
    if (other_) {
      const ChunkedHead of_other(BackwardInputs(read).head(sequences[n], head), own.chunk_size);
      return plain::chunk_gradient(of_other, reading_, d_state, carried_by);
    }
    if (reading_.move != nullptr && reading_.site->from != plain::Site::From::backwards) {
      const plain::Site* const site = reading_.site;
      Interpretation again(problem_);
      again.site = site, again.chunk_fault = ChunkFault::moved;
      std::vector<Matrix> beside;
      if (reading_.move->is_beside())
        beside = ChunkedHead(of_.heads_[n * d_.HV + reading_.move->head_beside(head, d_.HV)].head,
                             own.chunk_size, &again)
                     .kept;
      again.move = reading_.move, again.beside = &beside;
      return plain::chunk_gradient(ChunkedHead(own.head, own.chunk_size, &again), {}, d_state, carried_by);
    }
    if (reading_.move != nullptr && reading_.move->is_beside()) {
      const std::size_t other = reading_.move->head_beside(head, d_.HV);
      GradientReading reading = reading_, right;
      right.site = reading.site;
      const std::vector<Matrix> beside =
          plain::chunk_gradient(of_.heads_[n * d_.HV + other], right,
                                state_gradient(problem_, StateGradientOf::own, sequences[n].index, other))
              .kept;
      reading.beside = &beside;
      return plain::chunk_gradient(own, reading, d_state, carried_by);
    }
    if (reading_.misread != nullptr) {
      const Sequence& s = sequences[n];
      Head misread = plain::head_of(problem_, *reading_.misread, {s, s.begin, s.end, head});
      misread.d_o = own.head.d_o;
      return plain::chunk_gradient(ChunkedHead(std::move(misread), own.chunk_size), reading_, d_state,
                                   carried_by);
    }
    if (reading_.states != StateOf::own)
      return plain::chunk_gradient(with_states(own, n, head), reading_, d_state, carried_by);
    if (!reading_.states_from_zero) return plain::chunk_gradient(own, reading_, d_state, carried_by);
    Head from_zero = own.head;
    from_zero.state = Matrix(d_.K, d_.V);
    return plain::chunk_gradient(ChunkedHead(std::move(from_zero), own.chunk_size), reading_, d_state,
                                 carried_by);
  }

  ChunkedHead with_states(ChunkedHead own, std::size_t n, std::size_t head) const {
    const std::vector<plain::Chunk>& right = of_.heads_[n * d_.HV + head].chunks;
    const std::size_t count = of_.heads_.size() / d_.HV;
    const std::size_t other = reading_.states == StateOf::next_sequence       ? (n + 1) % count
                              : reading_.states == StateOf::sequence_before   ? (n + count - 1) % count
                              : reading_.states == StateOf::mirrored_sequence ? count - 1 - n
                                                                              : 0;
    const std::vector<plain::Chunk>& of_other = of_.heads_[other * d_.HV + head].chunks;
    for (std::size_t i = 0; i < right.size(); ++i) {
      Matrix& h = own.chunks[i].h;
      if (reading_.states == StateOf::chunk_before) h = right[i > 0 ? i - 1 : 0].h;
      if (reading_.states == StateOf::chunk_behind) h = i + 1 < right.size() ? right[i + 1].h : own.state;
      if (reading_.states == StateOf::first_chunk) h = right[0].h;
      if (reading_.states == StateOf::first_head) h = of_.heads_[n * d_.HV].chunks[i].h;
      if (reading_.is_of_other_sequence() && !of_other.empty())
        h = of_other[std::min(i, of_other.size() - 1)].h;
      if (reading_.states == StateOf::initial_alone && i > 0) h = Matrix(d_.K, d_.V);
      if (!reading_.states_of_all) continue;
      const Matrix prediction = plain::product(own.chunks[i].w, h);
      own.chunks[i].v_new = own.chunks[i].u;
      for (std::size_t row = 0; row < prediction.rows(); ++row)
        for (std::size_t y = 0; y < d_.V; ++y) own.chunks[i].v_new(row, y) -= prediction(row, y);
    }
    return own;
  }

  void keep(const Sequence& s, std::size_t head, HeadGradient& gradient) {
    const Head& in = of_.heads_[s.index * d_.HV + head].head;
    const double by_scale = reading_.query_scale_power < 0   ? 1 / in.scale
                            : reading_.query_scale_power > 0 ? in.scale
                                                             : 1;
    for (std::size_t t = s.length(); reading_.late && t-- > 0;)
      for (std::size_t x = 0; x < d_.K; ++x) gradient.g(t, x) = t > 0 ? gradient.g(t - 1, x) : 0;
    for (std::size_t t = 0; t < s.length(); ++t) {
      const std::size_t row = inputs_.row(s, t, d_.HV, head, 1);
      for (std::size_t x = 0; x < d_.K; ++x)
        q_(row, x) = by_scale * gradient.q(t, x), k_(row, x) = gradient.k(t, x);
      const bool is_unweighted = reading_.write_strength_lost && in.beta[t] != 0;
      for (std::size_t y = 0; y < d_.V; ++y)
        of(Gradient::dv)[row * d_.V + y] = gradient.v(t, y) / (is_unweighted ? in.beta[t] : 1);
      const bool is_lost = reading_.divided_by_beta && in.beta[t] == 0;
      of(Gradient::dbeta)[row] = is_lost ? 0 : gradient.beta[t] * sigmoid_slope(row);
      for (std::size_t x = d_.decays(); x < d_.K; ++x) gradient.g(t, x % d_.decays()) += gradient.g(t, x);
      for (std::size_t x = 0; x < d_.decays(); ++x) through_gate(s, t, head, x, in.g(t, x), gradient.g(t, x));
    }
    if (!has(Gradient::dinitial_state) || (reading_.initial_of_first && s.index > 0)) return;
    const std::size_t sequence = reading_.initial_reversed ? d_.N - 1 - s.index : s.index;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v)
        of(Gradient::dinitial_state)[inputs_.in_state(sequence, head, k, v, reading_.initial_transposed)] =
            gradient.state(k, v);
  }

  double sigmoid_slope(std::size_t element) const {
    if (!problem_.options.beta_sigmoid) return 1;
    const double x = problem_.beta.value(element), most = problem_.options.allow_neg_eigval ? 2 : 1;
    return reading_.sigmoid_slope != nullptr ? reading_.sigmoid_slope(x, most)
                                             : most * sigmoid(x) * sigmoid(-x);
  }

  /// From the gradient of a log decay to that of what it is made of.
  void through_gate(const Sequence& s, std::size_t t, std::size_t head, std::size_t channel, double gate,
                    double gradient) {
    const std::size_t element = inputs_.row(s, t, d_.HV, head, d_.decays()) + channel;
    const double dg = reading_.gate_unit * gradient;
    of(Gradient::dg)[element] = dg;
    if (problem_.options.gate == Gate::none) return;
    const bool is_bounded = problem_.options.gate == Gate::lower_bound;
    const std::size_t taken = reading_.gate_of_next_head ? (head + 1) % d_.HV : head;
    const double x = problem_.g.value(element), y = x + inputs_.bias(taken, channel), A = amplitudes_[taken],
                 bound =
                     is_bounded ? *problem_.options.lower_bound : std::numeric_limits<double>::quiet_NaN();
    const Slope at{x,
                   y,
                   A,
                   problem_.A_log ? problem_.A_log->value(taken) : 0,
                   bound,
                   gate,
                   static_cast<double>(d_.decays())};
    double slope = is_bounded ? bound * sigmoid(A * y) * sigmoid(-A * y) * A : -A * sigmoid(y);
    if (reading_.slope != nullptr) slope = reading_.slope(at);
    const double of_amplitude = reading_.amplitude != nullptr ? reading_.amplitude(at)
                                : is_bounded                  ? y * slope
                                                              : gate;
    of(Gradient::dg)[element] = dg * slope;
    const Summand one{s.batch, s.index, d_.N, t, s.length(), of_.chunk_size_, channel, d_.decays()};
    const auto counts = [&](bool (*by)(const Summand&)) { return by == nullptr || by(one); };
    if (has(Gradient::dA_log) && counts(reading_.counts_for_amplitude))
      of(Gradient::dA_log)[head] += dg * of_amplitude;
    if (has(Gradient::ddt_bias) && counts(reading_.counts_for_bias))
      of(Gradient::ddt_bias)[reading_.bias_by_channel ? channel * d_.HV + head
                                                      : head * d_.decays() + channel] +=
          dg * (reading_.bias != nullptr ? reading_.bias(at) : slope);
  }

  /// Of all value heads of a query head.
  void sum_groups(const Matrix& of_heads, GroupSum how, std::vector<double>& sums) const {
    const std::size_t group = problem_.heads_per_group();
    for (std::size_t row = 0; row < d_.B * d_.T; ++row)
      for (std::size_t query = 0; query < d_.H; ++query)
        for (std::size_t x = 0; x < d_.K; ++x) {
          double sum = 0;
          const std::size_t first = how == GroupSum::last            ? group - 1
                                    : how == GroupSum::without_first ? 1
                                                                     : 0,
                            end = how == GroupSum::first          ? 1
                                  : how == GroupSum::without_last ? group - 1
                                                                  : group;
          for (std::size_t i = first; i < end; ++i) {
            const std::size_t head = how == GroupSum::interleaved ? i * d_.H + query : query * group + i;
            const double one = of_heads(row * d_.HV + head, x);
            sum = how == GroupSum::in_bf16 ? to_bf16(sum + to_bf16(one)) : sum + one;
          }
          sums[(row * d_.H + query) * d_.K + x] =
              how == GroupSum::mean ? sum / static_cast<double>(group) : sum;
        }
  }

  /// dx = (dy - (dy . y) y) / |x|, in place.
  void through_norm(const Tensor& stored, GradientReading::Norm (*norm)(double, double),
                    std::vector<double>& gradient) const {
    Matrix x(gradient.size() / d_.K, d_.K);
    for (std::size_t t = 0; t < x.rows(); ++t) {
      for (std::size_t i = 0; i < d_.K; ++i) x(t, i) = stored.value(t * d_.K + i);
      const double r = reciprocal_norm(x, t);
      const auto [a, b] = norm != nullptr ? norm(r, static_cast<double>(d_.K)) : GradientReading::Norm{r, r};
      double along = 0;
      for (std::size_t i = 0; i < d_.K; ++i) along += gradient[t * d_.K + i] * x(t, i) * r;
      for (std::size_t i = 0; i < d_.K; ++i) {
        double& dx = gradient[t * d_.K + i];
        dx = a * dx - b * along * x(t, i) * r;
      }
    }
  }

  void sum_parameters() {
    std::vector<double>&A = of(Gradient::dA_log), &bias = of(Gradient::ddt_bias);
    const std::size_t group = problem_.heads_per_group();
    const auto sum_over = [](std::vector<double>& values, std::size_t first, std::size_t count,
                             std::size_t step) {
      double sum = 0;
      for (std::size_t i = 0; i < count; ++i) sum += values[first + i * step];
      for (std::size_t i = 0; i < count; ++i) values[first + i * step] = sum;
    };
    for (std::size_t head = 0; reading_.amplitude_of_group && head < A.size(); head += group)
      sum_over(A, head, group, 1);
    for (std::size_t x = 0; reading_.bias_of_heads && x < std::min(bias.size(), d_.decays()); ++x)
      sum_over(bias, x, d_.HV, d_.decays());
  }

  const BackwardReference& of_;
  const Problem& problem_;
  const BackwardInputs inputs_;
  const kda::Dimensions d_;
  const GradientReading& reading_;
  std::optional<Problem> other_;    ///< as it is read in another order
  Matrix q_, k_;                    ///< [B T HV][K]
  std::vector<double> amplitudes_;  ///< by value head
  kda::GradientTensors tensors_;
  std::array<std::vector<double>, kda::gradient_count> values_;  ///< by Gradient
};

bool BackwardReference::can_differentiate(const Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return !problem.erase && !problem.beta.empty() && d.strength != kda::Strength::value && d.K > 0;
}

BackwardReference::BackwardReference(const Problem& problem, std::size_t chunk_size)
    : problem_(problem), chunk_size_(chunk_size) {
  const BackwardInputs inputs(problem);
  for (const Sequence& s : problem.sequences())
    for (std::size_t head = 0; head < problem.dimensions().HV; ++head) {
      heads_.emplace_back(inputs.head(s, head), chunk_size);
      right_.push_back(plain::chunk_gradient(
          heads_.back(), {}, BackwardRun::state_gradient(problem, StateGradientOf::own, s.index, head)));
    }
}

BackwardReference::~BackwardReference() = default;

kda::GradientTensors BackwardReference::gradients(const GradientReading& reading,
                                                  numeric::DType dtype) const {
  if (reading.bounds == Bounds::own) return BackwardRun(*this, reading, dtype).run();
  const Problem other = with_bounds(problem_, reading.bounds);
  GradientReading rest = reading;
  rest.bounds = Bounds::own;
  return BackwardReference(other, chunk_size_).gradients(rest, dtype);
}

}  // namespace kda_check::hypotheses
