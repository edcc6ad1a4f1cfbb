#include "explain/probe/interpretation.hpp"

#include <algorithm>

#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using kda::Dimensions;
using kda::Gate;
using kda::Problem;

constexpr double norm_epsilon = 1e-6;

double sigmoid(double x) { return 1 / (1 + numeric::exp(-x)); }
double softplus(double x) {
  return x > 0 ? x + numeric::log1p(numeric::exp(-x)) : numeric::log1p(numeric::exp(x));
}

/// The inputs of one head as the kernel takes them, token by token.
class HeadInputs {
 public:
  HeadInputs(const Problem& problem, const Interpretation& reading, const kda::Sequence& sequence,
             std::size_t head)
      : problem_(problem), reading_(reading), d_(problem.dimensions()), sequence_(sequence), head_(head) {
    if (problem.A_log && reading.A_log) amplitude_ = numeric::exp(problem.A_log->value(head));
  }

  /// q (with the scale) and k of token t: [K].
  void query(std::size_t t, std::vector<double>& row) const {
    key_row(problem_.q, t, row);
    for (double& x : row) x *= *reading_.options.scale;
  }
  void key(std::size_t t, std::vector<double>& row) const { key_row(problem_.k, t, row); }

  double value(std::size_t t, std::size_t lane) const {
    const std::size_t at = ((sequence_.batch * d_.T + t) * d_.HV + head_) * d_.V + lane;
    return problem_.write ? problem_.write->value(at) * problem_.v.value(at) : problem_.v.value(at);
  }

  /// What predictions read the state along, from the key: erase * k where there is an erase gate.
  void read(std::size_t t, const std::vector<double>& key, std::vector<double>& row) const {
    row = key;
    if (!problem_.erase) return;
    for (std::size_t k = 0; k < d_.K; ++k)
      row[k] *= problem_.erase->value(((sequence_.batch * d_.T + t) * d_.HV + head_) * d_.K + k);
  }

  /// Of a column: where they have betas of their own, that; 1 with gates.
  double beta(std::size_t t, std::size_t lane) const {
    if (reading_.beta_one || problem_.beta.empty()) return 1;
    const std::size_t row = (sequence_.batch * d_.T + t) * d_.HV + head_;
    double beta = problem_.beta.value(d_.strength == kda::Strength::value ? row * d_.V + lane : row);
    if (reading_.options.beta_sigmoid) beta = sigmoid(beta) * (reading_.options.allow_neg_eigval ? 2 : 1);
    beta *= reading_.beta_factor;
    return reading_.beta_squared ? beta * beta : beta;
  }

  /// What multiplies the rows of the state at token t: [K].
  void decay(std::size_t t, std::vector<double>& row) const {
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(t) - reading_.gate_delay;
    if (from < static_cast<std::ptrdiff_t>(sequence_.begin) ||
        from >= static_cast<std::ptrdiff_t>(sequence_.end)) {
      std::fill(row.begin(), row.end(), 1.0);
      return;
    }
    double sum = 0;
    for (std::size_t k = 0; k < d_.K; ++k) sum += row[k] = log_decay(static_cast<std::size_t>(from), k);
    for (double& x : row)
      x = reading_.decay(reading_.gate_factor * (reading_.gate_mean ? sum / static_cast<double>(d_.K) : x));
  }

 private:
  void key_row(const tensor::Tensor& tensor, std::size_t t, std::vector<double>& row) const {
    const std::size_t head = reading_.heads_interleaved ? head_ % d_.H : head_ / problem_.heads_per_group();
    const std::size_t first = ((sequence_.batch * d_.T + t) * d_.H + head) * d_.K;
    double squares = norm_epsilon;
    for (std::size_t k = 0; k < d_.K; ++k) {
      row[k] = tensor.value(first + k);
      squares += row[k] * row[k];
    }
    if (reading_.options.qk_l2norm)
      for (double& x : row) x /= std::sqrt(squares);
  }

  double log_decay(std::size_t t, std::size_t k) const {
    double x =
        problem_.g.value(((sequence_.batch * d_.T + t) * d_.HV + head_) * d_.decays() + k % d_.decays());
    if (reading_.options.gate == Gate::none) return x;
    if (problem_.dt_bias && reading_.dt_bias)
      x += problem_.dt_bias->value(head_ * d_.decays() + k % d_.decays());
    const double bound = reading_.options.lower_bound.value_or(0);
    if (reading_.clamped_softplus) return std::max(bound, -amplitude_ * softplus(x));
    if (reading_.options.gate == Gate::softplus) return -amplitude_ * softplus(x);
    return bound * sigmoid(amplitude_ * x);
  }

  const Problem& problem_;
  const Interpretation& reading_;
  const Dimensions& d_;
  const kda::Sequence& sequence_;
  const std::size_t head_;
  double amplitude_ = 1;
};

std::vector<double> first_state(const Problem& problem, const Interpretation& reading,
                                const Excerpt& excerpt) {
  if (!excerpt.start.empty()) return excerpt.start;
  const Dimensions& d = problem.dimensions();
  std::vector<double> state(d.K * excerpt.lanes, 0.0);
  if (!problem.initial_state || !reading.initial_state) return state;
  const bool v_first = problem.options.state_v_first != reading.initial_state_transposed;
  for (std::size_t k = 0; k < d.K; ++k)
    for (std::size_t lane = 0; lane < excerpt.lanes; ++lane)
      state[k * excerpt.lanes + lane] = problem.initial_state->value(
          state_element(d, v_first, excerpt.sequence.index, excerpt.head, k, excerpt.first_lane + lane));
  return state;
}

/// State and rows of one head while its tokens go by; rows of the state are contiguous in the lanes.
struct Recurrence {
  const std::size_t lanes;
  std::vector<double> state, q, k, read_key, decay, update, output;

  Recurrence(std::size_t K, std::vector<double> first, std::size_t lane_count)
      : lanes(lane_count),
        state(std::move(first)),
        q(K),
        k(K),
        read_key(K),
        decay(K),
        update(lanes),
        output(lanes) {}

  void apply_decay() {
    for (std::size_t i = 0; i < decay.size(); ++i)
      for (std::size_t lane = 0; lane < lanes; ++lane) state[i * lanes + lane] *= decay[i];
  }
  /// target = S^T x
  void read(const std::vector<double>& x, std::vector<double>& target) const {
    std::fill(target.begin(), target.end(), 0.0);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t lane = 0; lane < lanes; ++lane) target[lane] += x[i] * state[i * lanes + lane];
  }
  /// S += k update^T
  void write() {
    for (std::size_t i = 0; i < k.size(); ++i)
      for (std::size_t lane = 0; lane < lanes; ++lane) state[i * lanes + lane] += k[i] * update[lane];
  }
};

/// S := decay S;  u = beta (v - S^T k);  S += k u^T;  o = S^T q
void step(Recurrence& now, const HeadInputs& inputs, const Interpretation& reading, std::size_t t,
          std::size_t first_lane) {
  inputs.query(t, now.q);
  inputs.key(t, now.k);
  inputs.read(t, now.k, now.read_key);
  inputs.decay(t, now.decay);
  if (!reading.predict_before_decay) now.apply_decay();
  now.read(now.read_key, now.update);
  if (reading.predict_before_decay) now.apply_decay();
  for (std::size_t lane = 0; lane < now.lanes; ++lane) {
    const double beta = inputs.beta(t, first_lane + lane);
    const double value = inputs.value(t, first_lane + lane) * (reading.beta_on_value ? beta : 1);
    now.update[lane] = beta * (value - now.update[lane]);
  }
  if (reading.lost_write != t) now.write();
  now.read(now.q, now.output);
  for (double& x : now.output) x *= reading.output_factor;
}

}  // namespace

std::size_t state_element(const Dimensions& d, bool v_first, std::size_t sequence, std::size_t head,
                          std::size_t k, std::size_t v) {
  return (sequence * d.HV + head) * d.K * d.V + (v_first ? v * d.K + k : k * d.V + v);
}

ExcerptAnswer answer_of(const Problem& problem, const Interpretation& reading, const Excerpt& excerpt) {
  const HeadInputs inputs(problem, reading, excerpt.sequence, excerpt.head);
  Recurrence now(problem.dimensions().K, first_state(problem, reading, excerpt), excerpt.lanes);
  ExcerptAnswer answer;
  answer.o.reserve((excerpt.end - excerpt.begin) * excerpt.lanes);
  for (std::size_t t = excerpt.begin; t < excerpt.end; ++t) {
    const LastToken fate = t + 1 == excerpt.sequence.end ? reading.last_token : LastToken::computed;
    if (fate != LastToken::dropped) {
      const std::vector<double> before = fate == LastToken::stale ? now.output : std::vector<double>();
      step(now, inputs, reading, t, excerpt.first_lane);
      if (fate == LastToken::stale) now.output = before;
    }
    if (fate == LastToken::dropped || fate == LastToken::unwritten)
      std::fill(now.output.begin(), now.output.end(), 0.0);
    answer.o.insert(answer.o.end(), now.output.begin(), now.output.end());
  }
  answer.state = std::move(now.state);
  return answer;
}

kda::Answer answer_of(const Problem& problem, const Interpretation& reading) {
  const Dimensions& d = problem.dimensions();
  const bool v_first = problem.options.state_v_first;
  const auto empty = [&](const char* name) {
    return tensor::Tensor(name, numeric::DType::fp64, kda::expected_shape(*kda::find_spec(name), d, v_first));
  };
  kda::Answer answer{empty("o"), empty("final_state")};
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head) {
      const ExcerptAnswer part =
          answer_of(problem, reading, {sequence, sequence.begin, sequence.end, head, 0, d.V, {}});
      for (std::size_t i = 0; i < part.o.size(); ++i)
        answer.o.set(((sequence.batch * d.T + sequence.begin + i / d.V) * d.HV + head) * d.V + i % d.V,
                     part.o[i]);
      for (std::size_t i = 0; i < part.state.size(); ++i)
        answer.final_state.set(state_element(d, v_first, sequence.index, head, i / d.V, i % d.V),
                               part.state[i]);
    }
  return answer;
}

}  // namespace kda_check::explain
