#include "hypotheses/naming/interpretation.hpp"

#include <algorithm>
#include <numbers>
#include <utility>

#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/reference_chunk.hpp"
#include "kda/problem/shapes.hpp"
#include "numeric/elementary.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Dimensions;
using kda::Gate;
using kda::Problem;

/// The inputs of one head as the kernel takes them, token by token.
class HeadInputs {
 public:
  HeadInputs(const Problem& problem, const Interpretation& reading, const Excerpt& excerpt)
      : problem_(problem),
        reading_(reading),
        d_(problem.dimensions()),
        sequence_(excerpt.sequence),
        columns_(excerpt.columns),
        known_(excerpt.gates),
        head_(excerpt.head) {
    for (std::size_t input = 0; input < axes_.size(); ++input)
      axes_[input] = axes_of(d_, static_cast<TokenInput>(input), reading.chunk);
    if (!problem.A_log) return;
    A_log_ = problem.A_log->value(
        reading.A_log_of_query_head
            ? head_ / problem.heads_per_group()
            : (gate_head() + reading.further.parameters + reading.further.amplitude) % d_.HV);
    A_ = numeric::exp(A_log_);
  }

  /// q (with the scale) and k of token t: [K].
  void query(std::size_t t, std::vector<double>& row) const {
    key_row(reading_.query_key_swapped ? problem_.k : problem_.q, t, row, false, reading_.rows.query);
    for (double& x : row) x *= *reading_.options.scale;
  }
  void key(std::size_t t, std::vector<double>& row) const {
    key_row(reading_.query_key_swapped ? problem_.q : problem_.k, t, row, true, reading_.rows.key);
  }

  double value(std::size_t t, std::size_t lane) const {
    if (is_zeros(reading_.rows.value, t)) return 0;
    const std::size_t head = (head_ + reading_.further.value) % d_.HV;
    const std::size_t at = element(TokenInput::value, row_of(reading_.rows.value, t), head, column(lane));
    const double x = problem_.write ? problem_.write->value(at) * problem_.v.value(at) : problem_.v.value(at);
    if (!reading_.normalises_value) return x;
    double sum = norm_epsilon;
    for (std::size_t v = at - column(lane), end = v + d_.V; v < end; ++v)
      sum += problem_.v.value(v) * problem_.v.value(v);
    return x / std::sqrt(sum);
  }

  /// What predictions read the state along, from the key: erase * k where there is an erase gate.
  void read(std::size_t t, const std::vector<double>& key, std::vector<double>& row) const {
    row = key;
    if (reading_.rows.predicting_key != RowOf::itself)
      key_row(problem_.k, t, row, true, reading_.rows.predicting_key);
    if (reading_.prediction_of_raw_key) key_row(problem_.k, t, row, true, reading_.rows.key, false);
    if (!problem_.erase) return;
    for (std::size_t k = 0; k < d_.K; ++k)
      row[k] *= problem_.erase->value(((sequence_.batch * d_.T + t) * d_.HV + head_) * d_.K + k);
  }

  /// Of a column: where they have betas of their own, that; 1 with gates.
  double beta(std::size_t t, std::size_t lane) const {
    if (reading_.beta_one || problem_.beta.empty()) return 1;
    const std::optional<std::size_t> from = delayed(t, reading_.beta_delay);
    if (!from) return 0;
    const std::size_t head = reading_.beta_of_query_head ? head_ / problem_.heads_per_group()
                                                         : (head_ + reading_.further.beta) % d_.HV;
    double beta = problem_.beta.value(element(TokenInput::beta, row_of(reading_.rows.beta, *from), head,
                                              d_.strength == kda::Strength::value ? column(lane) : 0));
    if (reading_.options.beta_sigmoid) beta = sigmoid(beta) * (reading_.options.allow_neg_eigval ? 2 : 1);
    if (reading_.sigmoid_twice) beta = sigmoid(beta);
    beta = reading_.round_beta(beta * reading_.beta_factor);
    return reading_.beta_squared ? beta * beta : beta;
  }

  KnownGates known(std::size_t begin, std::size_t end) const {
    KnownGates known{begin, {}, {}};
    for (std::size_t t = begin; t < end; ++t)
      for (std::size_t k = 0; k < d_.K; ++k) {
        const GateInput in = gate_input(t, k, head_);
        known.inputs.push_back(in), known.values.push_back(in.function(in));
      }
    return known;
  }

  /// The log decays of token t: [K].
  void gates(std::size_t t, std::vector<double>& row) const {
    const std::optional<std::size_t> from = delayed(t, reading_.gate_delay);
    if (!from || reading_.lost_decay == t) return std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t k = 0; k < d_.K; ++k)
      row[k] = reading_.sums_of_stream ? log_decay_of_stream(*from, k) : log_decay(*from, k);
    const auto one = reading_.one_gate;
    const double of_all = one != nullptr ? one(row) : 0;
    for (double& x : row) {
      x = reading_.gate_factor * (one != nullptr ? of_all : x);
      if (reading_.lowest_gate) x = std::max(x, -*reading_.lowest_gate);
    }
  }

  /// Of a row of zeros.
  void padding_gates(std::vector<double>& row) const {
    for (std::size_t k = 0; k < d_.K; ++k) {
      GateInput in = gate_input(sequence_.begin, k, gate_head());
      in.g = 0, row[k] = in.function(in);
    }
  }

 private:
  std::size_t column(std::size_t lane) const { return columns_.empty() ? lane : columns_[lane]; }
  /// Of the tensors of tokens.
  std::size_t row_of(RowOf of, std::size_t t) const {
    const std::size_t at = t - sequence_.begin;
    std::size_t batch = sequence_.batch;
    if (of == RowOf::first_chunk) t -= at - at % reading_.chunk;
    if (of == RowOf::chunk_before && at >= reading_.chunk) t -= reading_.chunk;
    if (of == RowOf::start_of_row) t = at;
    if (of == RowOf::first_batch) batch = 0;
    if ((of == RowOf::before || of == RowOf::before_or_zeros) && at > 0) --t;
    if ((of == RowOf::behind || of == RowOf::behind_or_zeros) && t + 1 < sequence_.end) ++t;
    return batch * d_.T + t;
  }
  bool is_zeros(RowOf of, std::size_t t) const {
    return (of == RowOf::before_or_zeros && t == sequence_.begin) ||
           (of == RowOf::behind_or_zeros && t + 1 == sequence_.end);
  }
  /// Of a tensor of tokens, `row` of them counted over the batch.
  std::size_t element(TokenInput input, std::size_t row, std::size_t head, std::size_t channel) const {
    const InputAxes& axes = axes_[static_cast<std::size_t>(input)];
    if (reading_.layout == nullptr || reading_.in_layout != input)
      return (row * axes.heads + head) * axes.width + channel;
    const std::size_t last = axes.B * axes.T * axes.heads * axes.width - 1;
    return std::min(reading_.layout->element(axes, row / d_.T, row % d_.T, head, channel), last);
  }
  std::size_t in_first_tile(std::size_t k) const { return plain::in_first_tile(k, d_.K); }
  std::size_t gate_head() const {
    return reading_.gate_of_first_head ? 0 : (head_ + reading_.further.gate) % d_.HV;
  }
  std::optional<std::size_t> delayed(std::size_t t, std::ptrdiff_t delay) const {
    if (delay == 0) return t;  // which a tail may read behind its end
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(t) - delay;
    const bool is_there = from >= static_cast<std::ptrdiff_t>(sequence_.begin) &&
                          from < static_cast<std::ptrdiff_t>(sequence_.end);
    return is_there ? std::optional(static_cast<std::size_t>(from)) : std::nullopt;
  }

  void key_row(const tensor::Tensor& tensor, std::size_t t, std::vector<double>& row, bool is_key, RowOf of,
               bool has_norm = true) const {
    const bool normalises = is_key ? reading_.normalises_key : reading_.normalises_query,
               of_first_tile =
                   is_key ? reading_.shifted.key_of_first_tile : reading_.shifted.query_of_first_tile;
    std::size_t head = (head_ / problem_.heads_per_group() + reading_.further.key) % d_.H;
    if (reading_.heads_interleaved || (is_key && reading_.key_interleaved)) head = head_ % d_.H;
    if (reading_.first_query_head) head = 0;
    const TokenInput input = is_key ? TokenInput::key : TokenInput::query;
    const std::size_t at = row_of(of, t);
    for (std::size_t k = 0; k < d_.K; ++k)
      row[k] =
          is_zeros(of, t) ? 0 : tensor.value(element(input, at, head, of_first_tile ? in_first_tile(k) : k));
    if (!reading_.options.qk_l2norm || !normalises || !has_norm) return;
    std::vector<double> of_heads(reading_.norm_of_heads ? d_.H * d_.K : 0);
    for (std::size_t k = 0; k < of_heads.size(); ++k)
      of_heads[k] = tensor.value((sequence_.batch * d_.T + t) * of_heads.size() + k);
    double length = reading_.length(reading_.norm_of_heads ? of_heads : row);
    if (reading_.more_epsilon > 0) length = std::sqrt(length * length + reading_.more_epsilon);
    for (double& x : row) x /= length;
  }

  /// The difference of sums that start anew at multiples of a chunk of the row, in chunks of the sequence.
  double log_decay_of_stream(std::size_t t, std::size_t k) const {
    const auto sum = [&](std::size_t last) {
      double total = 0;
      for (std::size_t at = last / reading_.chunk * reading_.chunk; at <= last; ++at)
        total += log_decay(at, k);
      return total;
    };
    return (t - sequence_.begin) % reading_.chunk == 0 ? sum(t) : sum(t) - sum(t - 1);
  }

  double log_decay(std::size_t t, std::size_t k) const {
    std::size_t head = gate_head();
    if (reading_.gate_of_query_head) head = head_ / problem_.heads_per_group();
    GateInput in = gate_input(t, k, head);
    for (const Interpretation::GateRule rule : reading_.gate_rules)
      if (rule != nullptr) rule(in);
    if (reading_.softplus != nullptr) return -in.A * reading_.softplus(in.g + in.bias);
    const double* const known = known_value(t, k, in);
    return known != nullptr ? *known : in.function(in);
  }
  GateInput gate_input(std::size_t t, std::size_t k, std::size_t head) const {
    std::size_t channel = reading_.shifted.gate_of_first_tile ? in_first_tile(k) : k;
    if (reading_.shifted.gate_of_next) channel = (k + 1) % d_.K;
    const double x = problem_.g.value(
        element(TokenInput::gate, row_of(reading_.rows.gate, t), head, channel % d_.decays()));
    if (reading_.options.gate == Gate::none) return {x, 0, 0, 1, 0, [](const GateInput& in) { return in.g; }};
    if (reading_.shifted.bias_of_first_tile) k = in_first_tile(k);
    head = (head + reading_.further.parameters + reading_.further.bias) % d_.HV;
    if (reading_.bias_of_query_head) head /= problem_.heads_per_group();
    double bias = 0;
    if (problem_.dt_bias)
      bias = problem_.dt_bias->value(reading_.bias_element != nullptr
                                         ? reading_.bias_element(head, k % d_.decays(), d_.HV, d_.decays())
                                         : head * d_.decays() + k % d_.decays());
    return {x,
            bias,
            A_log_,
            A_,
            reading_.options.lower_bound.value_or(usual_lower_bound),
            reading_.options.gate == Gate::softplus ? &softplus_gate : &bounded_gate};
  }
  /// That of the same input.
  const double* known_value(std::size_t t, std::size_t k, const GateInput& in) const {
    if (known_ == nullptr || t < known_->begin) return nullptr;
    const std::size_t at = (t - known_->begin) * d_.K + k;
    return at < known_->values.size() && known_->inputs[at] == in ? &known_->values[at] : nullptr;
  }

  const Problem& problem_;
  const Interpretation& reading_;
  const Dimensions& d_;
  const kda::Sequence& sequence_;
  const std::vector<std::size_t>& columns_;
  const KnownGates* const known_;
  const std::size_t head_;
  std::array<InputAxes, std::size(token_inputs)> axes_{};
  double A_log_ = 0, A_ = 1;
};

std::vector<double> initial_state(const Problem& problem, const Interpretation& reading,
                                  const Excerpt& excerpt) {
  const Dimensions& d = problem.dimensions();
  const kda::Sequence& sequence = excerpt.sequence;
  const std::size_t width = excerpt.columns.empty() ? d.V : excerpt.columns.size();
  std::size_t head = excerpt.head;
  std::vector<double> state(d.K * width, 0.0);
  if (problem.initial_state && reading.initial_state) {
    const bool v_first = problem.options.state_v_first != reading.initial_state_transposed;
    const std::size_t own =
        reading.initial_sequence != nullptr ? reading.initial_sequence(sequence.index, d.N) : sequence.index;
    if (reading.initial_head != nullptr) head = reading.initial_head(head, d.HV, problem.heads_per_group());
    const std::size_t row = reading.initial_state_by_head ? head * d.N + own : own * d.HV + head;
    const double factor = reading.initial_scaled ? *reading.options.scale : 1;
    for (std::size_t i = 0; i < state.size(); ++i) {
      const std::size_t column = excerpt.columns.empty() ? i % width : excerpt.columns[i % width];
      state[i] = factor * reading.round_initial(problem.initial_state->value(
                              state_element(d, v_first, row / d.HV, row % d.HV, i / width, column)));
    }
  }
  return state;
}

/// Of a state that nobody sets back: what the sequences of the batch row before it leave behind.
std::vector<double> state_before(const Problem& problem, const Interpretation& reading,
                                 const Excerpt& excerpt) {
  if (!reading.goes_on) return initial_state(problem, reading, excerpt);
  const kda::Sequence& sequence = excerpt.sequence;
  std::vector<double> state;
  Interpretation right = reading;
  right.goes_on = false;
  for (const kda::Sequence& before : problem.sequences())
    if (before.index < sequence.index)
      state = answer_of(problem, right,
                        {before, before.begin, before.end, excerpt.head, std::move(state), excerpt.columns})
                  .state;
  return state.empty() ? initial_state(problem, reading, excerpt) : state;
}

/// State and rows of one head while its tokens go by; rows of the state are contiguous in V.
class Recurrence {
 public:
  Recurrence(const Problem& problem, const Interpretation& reading, const Excerpt& excerpt)
      : problem_(problem),
        reading_(reading),
        excerpt_(excerpt),
        inputs_(problem, reading, excerpt),
        K_(problem.dimensions().K),
        V_(excerpt.columns.empty() ? problem.dimensions().V : excerpt.columns.size()),
        state_(excerpt.start.empty() ? state_before(problem, reading, excerpt) : excerpt.start),
        carried_(keeps_carried() ? state_ : std::vector<double>()),
        kept_(reading.final != FinalState::right ? state_ : std::vector<double>()),
        writes_(keeps_writes() ? state_.size() : 0, 0.0),
        decayed_writes_(writes_),
        late_writes_(writes_),
        stale_(writes_),
        q_(K_),
        k_(K_),
        read_key_(K_),
        gates_(K_),
        decay_(K_),
        sums_(K_, 0.0),
        last_sums_(K_, 0.0),
        last_key_(K_, 0.0),
        part_start_(reading.joint != Joint::none ? state_ : std::vector<double>()),
        update_(V_, 0.0),
        last_update_(V_, 0.0),
        output_(V_, 0.0) {}

  ExcerptAnswer run() {
    if (reading_.chunk_fault != ChunkFault::none) return in_chunks();
    ExcerptAnswer answer;
    answer.o.reserve((excerpt_.end - excerpt_.begin) * V_);
    std::vector<double> last(V_);
    for (std::size_t t = excerpt_.begin; t < excerpt_.end; ++t) {
      const LastToken fate = t + 1 == excerpt_.sequence.end ? reading_.last_token : LastToken::computed;
      if (fate != LastToken::dropped) {
        const std::vector<double> before = output_;
        step(t);
        if (reading_.stale_row == t) output_ = before;
      }
      if (fate == LastToken::dropped || fate == LastToken::unwritten)
        std::fill(output_.begin(), output_.end(), 0.0);
      answer.o.insert(answer.o.end(), output_.begin(), output_.end());
      if (reading_.output_late)
        std::copy(last.begin(), last.end(), answer.o.end() - static_cast<std::ptrdiff_t>(V_)), last = output_;
    }
    end_chunk();
    hand_back();
    answer.state = std::move(state_);
    return answer;
  }

 private:
  /// The state behind the last token, as it is stored.
  void hand_back() {
    const std::size_t length = excerpt_.sequence.length(), rows = length % reading_.chunk;
    const bool is_shorter = length > reading_.chunk && rows != 0;
    switch (reading_.final) {
      case FinalState::right:
        break;
      case FinalState::zero:
        std::ranges::fill(state_, 0.0);
        break;
      case FinalState::initial:
      case FinalState::early:
      case FinalState::initial_again:
        state_ = kept_;
        break;
      case FinalState::decayed_again:
        for (std::size_t i = 0; i < K_; ++i) scale_row(i, decay_[i]);
        break;
      case FinalState::padding_decays:
        inputs_.padding_gates(gates_);
        for (std::size_t i = 0; i < K_ && rows != 0; ++i)
          scale_row(i, numeric::exp(static_cast<double>(reading_.chunk - rows) * gates_[i]));
        break;
      case FinalState::tail_lost:
        if (is_shorter) state_ = carried_;
        break;
      case FinalState::tail_decay_stale:
        for (std::size_t i = 0; i < K_ && is_shorter; ++i)
          scale_row(i, numeric::exp(last_sums_[i] - sums_[i]));
        break;
      case FinalState::tail_end_lost:
        for (std::size_t i = 0; i < K_ && is_shorter; ++i) scale_row(i, numeric::exp(-sums_[i]));
        break;
      case FinalState::rows_behind:
        if (rows != 0) apply_rows_behind(reading_.chunk - rows);
        break;
      case FinalState::stale_rows:
        if (is_shorter) add(stale_, 1, state_);
    }
    for (double& x : state_) x = reading_.round_final(x);
  }
  void apply_rows_behind(std::size_t count) {
    const std::size_t end = excerpt_.sequence.end;
    for (std::size_t t = end; t < std::min(end + count, problem_.dimensions().T); ++t) {
      inputs_.key(t, k_), inputs_.read(t, k_, read_key_);
      read(state_, read_key_, update_);
      for (std::size_t v = 0; v < V_; ++v) update_[v] = updated(t, v, update_[v]);
      for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += k_[i / V_] * update_[i % V_];
    }
  }
  /// The initial state is added, and what becomes of that is handed back.
  void start_again(std::size_t t) {
    std::vector<double> start = initial_state(problem_, reading_, excerpt_);
    add(state_, 1, start);
    kept_ = answer_of(problem_, Interpretation(problem_),
                      {excerpt_.sequence, t, excerpt_.end, excerpt_.head, std::move(start), excerpt_.columns})
                .state;
  }

  /// The same by the chunk form.
  ExcerptAnswer in_chunks() {
    const std::size_t tokens = excerpt_.end - excerpt_.begin;
    plain::Head head;
    if (plain::takes_loaded(reading_))
      head.k = plain::Matrix(tokens, K_), head.v = plain::Matrix(tokens, V_),
      head.scale = *reading_.options.scale;
    else
      head = plain::head_of(problem_, reading_, excerpt_);
    head.state = matrix_of(state_);
    Interpretation reading = reading_;
    std::vector<plain::Matrix> beside;
    if (reading.move != nullptr && reading.beside == nullptr)
      beside = kept_beside(problem_, reading, excerpt_), reading.beside = &beside;
    const plain::HeadAnswer found = plain::chunk_answer(
        head, reading.chunk, excerpt_.begin - excerpt_.sequence.begin, reading, states_of_stream());
    return {found.o.values(), found.state.values()};
  }

  plain::Matrix matrix_of(const std::vector<double>& state) const {
    plain::Matrix matrix(K_, V_);
    for (std::size_t i = 0; i < state.size(); ++i) matrix(i / V_, i % V_) = state[i];
    return matrix;
  }
  /// What entered the chunks before the first one, as many as chunks of the packed row are fewer.
  std::deque<plain::Matrix> states_of_stream() const {
    std::deque<plain::Matrix> states;
    const kda::Sequence& own = excerpt_.sequence;
    const bool is_of_first = reading_.chunk_fault == ChunkFault::state_of_first;
    if (!is_of_first && reading_.chunk_fault != ChunkFault::state_of_stream) return states;
    const Interpretation right(problem_);
    const std::size_t first_of_row = is_of_first ? 0 : own.begin / reading_.chunk;
    for (const kda::Sequence& before : problem_.sequences()) {
      if (before.batch != own.batch || before.index >= own.index || before.begin == before.end) continue;
      std::vector<double> state = initial_state(
          problem_, right, {before, before.begin, before.end, excerpt_.head, {}, excerpt_.columns});
      for (std::size_t begin = before.begin; begin < before.end; begin += reading_.chunk) {
        states.push_back(matrix_of(state));
        const std::size_t end = std::min(before.end, begin + reading_.chunk);
        state = answer_of(problem_, right,
                          {before, begin, end, excerpt_.head, std::move(state), excerpt_.columns})
                    .state;
      }
    }
    states.erase(states.begin(),
                 states.begin() + static_cast<std::ptrdiff_t>(std::min(first_of_row, states.size())));
    return states;
  }

  /// S := decay S;  w = beta (v - S^T k);  S += k w^T;  o = S^T q
  void step(std::size_t t) {
    if ((t - excerpt_.sequence.begin) % reading_.chunk == 0) begin_chunk(t);
    if (reading_.lost_state == t) std::fill(state_.begin(), state_.end(), 0.0);
    if (reading_.joint != Joint::none && t > excerpt_.begin && (t - excerpt_.begin) % reading_.part == 0)
      join(t);
    if (reading_.final == FinalState::initial_again && t > excerpt_.begin &&
        t - excerpt_.begin == reading_.final_at)
      start_again(t);
    inputs_.query(t, q_), inputs_.key(t, k_), inputs_.read(t, k_, read_key_), inputs_.gates(t, gates_);
    for (std::size_t i = 0; i < K_; ++i) {
      const bool is_hit = plain::is_among(reading_.channels, i, K_);
      if (reading_.untouched && is_hit) q_[i] = k_[i] = read_key_[i] = gates_[i] = 0;
      const double sum = reading_.round_sums(sums_[i] + gates_[i]);
      // The difference of rounded sums, where they are rounded.
      const double gate = reading_.round_sums == &unchanged ? gates_[i] : sum - sums_[i];
      decay_[i] = reading_.round_decay(reading_.decay(gate)), sums_[i] = sum;
    }
    const bool reads_undecayed = reading_.predict_before_decay || reading_.decays_after_update;
    if (!reads_undecayed) apply_decay();
    if (reading_.prediction_of_query)
      for (std::size_t i = 0; i < K_; ++i) read_key_[i] = q_[i] / *reading_.options.scale;
    read(state_, read_key_, update_);
    if (reading_.write_of_query)
      for (std::size_t i = 0; i < K_; ++i) k_[i] = q_[i] / *reading_.options.scale;
    if (reading_.prediction_misses_last) forget_last();
    if (reading_.predict_before_decay) apply_decay();
    for (std::size_t v = 0; v < V_; ++v) update_[v] = updated(t, v, update_[v]);
    if (reading_.prediction_has_own) {
      double own = 0;
      for (std::size_t i = 0; i < K_; ++i) own += read_key_[i] * k_[i];
      for (std::size_t v = 0; v < V_; ++v) update_[v] /= 1 + own * inputs_.beta(t, v);
    }
    if (reading_.output_misses_own) read(state_, q_, output_);
    if (reading_.lost_write != t)
      for (std::size_t i = 0; i < K_; ++i)
        for (std::size_t v = 0; v < V_; ++v)
          state_[i * V_ + v] +=
              (reading_.write_factor != nullptr ? reading_.write_factor(decay_[i]) : 1) * k_[i] * update_[v];
    if (reading_.decayed_again)
      for (std::size_t i = 0; i < K_; ++i) q_[i] *= decay_[i];
    if (keeps_writes()) keep_write(t);
    if (reading_.round_state != &unchanged)
      for (double& x : state_) x = reading_.round_state(x);
    if (!reading_.output_misses_own) read(state_, q_, output_);
    if (const double beta = inputs_.beta(t, 0); reading_.output_has_own_unweighted && beta != 0)
      add_own(1 / beta - 1);
    for (double& x : output_) x *= reading_.output_factor;
    if (reading_.decays_after_update) apply_decay();
    if (reading_.round_stored != &unchanged)
      for (double& x : state_) x = reading_.round_stored(x);
    if (reading_.prediction_misses_last) last_key_ = k_, last_update_ = update_;
    if (reading_.final == FinalState::early && t == reading_.final_at) kept_ = state_;
  }

  static void add(const std::vector<double>& from, double factor, std::vector<double>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
  }
  bool keeps_carried() const { return reading_.carries_undecayed || reading_.final == FinalState::tail_lost; }
  bool keeps_writes() const { return reading_.writes_undecayed || reading_.final == FinalState::stale_rows; }
  /// Of this chunk: as they are, decayed, and decayed those of rows that the last chunk lacks.
  void keep_write(std::size_t t) {
    const std::size_t row = (t - excerpt_.sequence.begin) % reading_.chunk;
    const bool is_late = row >= excerpt_.sequence.length() % reading_.chunk;
    for (std::size_t i = 0; i < K_; ++i)
      for (std::size_t v = 0; v < V_; ++v) {
        const std::size_t at = i * V_ + v;
        const double write = k_[i] * update_[v];
        writes_[at] += write;
        decayed_writes_[at] = decayed_writes_[at] * decay_[i] + write;
        late_writes_[at] = late_writes_[at] * decay_[i] + (is_late ? write : 0);
      }
  }
  void end_chunk() {
    if (reading_.writes_undecayed) add(writes_, 1, state_), add(decayed_writes_, -1, state_);
    if (reading_.carries_undecayed)
      for (std::size_t i = 0; i < state_.size(); ++i)
        state_[i] += carried_[i] * (1 - numeric::exp(sums_[i / V_]));
    for (std::vector<double>* const kept : {&writes_, &decayed_writes_}) std::ranges::fill(*kept, 0.0);
  }

  void begin_chunk(std::size_t t) {
    if (t > excerpt_.begin) end_chunk();
    if (keeps_writes()) stale_ = std::exchange(late_writes_, std::vector<double>(state_.size(), 0.0));
    last_sums_ = sums_;
    std::fill(sums_.begin(), sums_.end(), 0.0);
    std::fill(last_update_.begin(), last_update_.end(), 0.0);
    if (t == excerpt_.sequence.begin) return;
    if (reading_.loses_states) std::fill(state_.begin(), state_.end(), 0.0);
    if (reading_.round_carried != &unchanged)
      for (double& x : state_) x = reading_.round_carried(x);
    if (keeps_carried()) carried_ = state_;
  }

  double updated(std::size_t t, std::size_t v, double prediction) const {
    const double beta = inputs_.beta(t, v), value = inputs_.value(t, v) * (reading_.beta_on_value ? beta : 1);
    switch (reading_.beta_on) {
      case BetaOn::value:
        return beta * value - prediction;
      case BetaOn::prediction:
        return value - beta * prediction;
      case BetaOn::value_alone:
        return beta * value;
      default:
        return beta * reading_.round_residual(value - prediction);
    }
  }

  void scale_row(std::size_t i, double factor) {
    for (std::size_t v = 0; v < V_; ++v) state_[i * V_ + v] *= factor;
  }
  void apply_decay() {
    const std::vector<std::size_t>& columns = excerpt_.columns;
    if (reading_.decays_columns)
      for (std::size_t i = 0; i < state_.size(); ++i)
        state_[i] *= decay_[columns.empty() ? i % V_ : columns[i % V_]];
    for (std::size_t i = 0; i < K_ && !reading_.decays_columns; ++i) scale_row(i, decay_[i]);
  }
  /// target = S^T x
  void read(const std::vector<double>& state, const std::vector<double>& x,
            std::vector<double>& target) const {
    std::fill(target.begin(), target.end(), 0.0);
    for (std::size_t i = 0; i < K_; ++i)
      for (std::size_t v = 0; v < V_; ++v) target[v] += x[i] * state[i * V_ + v];
  }
  /// What the token writes once more, as o reads it.
  void add_own(double times) {
    double own = 0;
    for (std::size_t i = 0; i < K_; ++i) own += q_[i] * k_[i];
    add(update_, times * own, output_);
  }
  void forget_last() {
    double share = 0;
    for (std::size_t i = 0; i < K_; ++i) share += read_key_[i] * decay_[i] * last_key_[i];
    for (std::size_t v = 0; v < V_; ++v) update_[v] -= share * last_update_[v];
  }
  /// At the end of a part of the sequence.
  void join(std::size_t t) {
    const auto from = [&](std::size_t begin, std::size_t end, std::vector<double> start) {
      return answer_of(problem_, Interpretation(problem_),
                       {excerpt_.sequence, begin, end, excerpt_.head, std::move(start), excerpt_.columns})
          .state;
    };
    const auto decayed = [&](std::size_t begin, std::vector<double> state) {
      std::vector<double> sums(K_, 0.0);
      for (std::size_t s = begin; s < t; ++s) {
        inputs_.gates(s, gates_);
        add(gates_, 1, sums);
      }
      for (std::size_t i = 0; i < state.size(); ++i) state[i] *= numeric::exp(sums[i / V_]);
      return state;
    };
    const std::size_t part = t - reading_.part, chunk = t - std::min(reading_.part, reading_.chunk);
    const auto local = [&] { return from(part, t, std::vector<double>(state_.size(), 0.0)); };
    switch (reading_.joint) {
      case Joint::alone:
        state_ = local();
        break;
      case Joint::undecayed:
        state_ = part_start_, add(local(), 1, state_);
        break;
      case Joint::unerased:
        state_ = decayed(part, part_start_), add(local(), 1, state_);
        break;
      case Joint::chunk_twice:
        state_ = from(chunk, t, state_);
        break;
      case Joint::decay_twice:
        state_ = decayed(chunk, state_);
        break;
      case Joint::initial_lost:
        state_ = from(excerpt_.begin, t, std::vector<double>(state_.size(), 0.0));
        break;
      case Joint::one_part:
        if (part > excerpt_.begin) state_ = local();
        break;
      case Joint::chunk_lost:
        state_ = from(part, chunk, part_start_);
        break;
      default:
        state_ = from(t - 1, t, state_);
    }
    part_start_ = state_;
  }

  const Problem& problem_;
  const Interpretation& reading_;
  const Excerpt& excerpt_;
  const HeadInputs inputs_;
  const std::size_t K_, V_;
  std::vector<double> state_, carried_, kept_;  ///< carried_: before the chunk; kept_: what is handed back
  std::vector<double> writes_, decayed_writes_, late_writes_, stale_;
  std::vector<double> q_, k_, read_key_, gates_, decay_;
  std::vector<double> sums_, last_sums_;  ///< of the log decays in a chunk; in the one before
  std::vector<double> last_key_, part_start_, update_, last_update_, output_;
};

/// Where the sequences of a packed row begin late or early.
ExcerptAnswer with_other_bounds(const Problem& problem, Interpretation reading, const Excerpt& excerpt) {
  Problem other = kda::clone(problem);
  for (std::size_t i = 1; i + 1 < other.cu_seqlens.size(); ++i) other.cu_seqlens[i] += reading.begins_late;
  reading.begins_late = 0;
  ExcerptAnswer answer;
  const auto width =
      static_cast<std::ptrdiff_t>(excerpt.columns.empty() ? problem.dimensions().V : excerpt.columns.size());
  for (const kda::Sequence& s : other.sequences()) {
    const std::size_t begin = std::max(s.begin, excerpt.begin), end = std::min(s.end, excerpt.end);
    if (begin >= end) continue;
    const ExcerptAnswer part =
        answer_of(other, reading, {s, s.begin, s.end, excerpt.head, {}, excerpt.columns});
    const auto row = [&](std::size_t t) {
      return part.o.begin() + static_cast<std::ptrdiff_t>(t - s.begin) * width;
    };
    answer.o.insert(answer.o.end(), row(begin), row(end));
    if (s.index == excerpt.sequence.index) answer.state = part.state;
  }
  return answer;
}

}  // namespace

std::vector<plain::Matrix> kept_beside(const Problem& problem, const Interpretation& reading,
                                       Excerpt excerpt) {
  if (!reading.move->is_beside()) return {};
  Interpretation right(problem);
  excerpt.head = reading.move->head_beside(excerpt.head, problem.dimensions().HV);
  excerpt.gates = nullptr;
  const Excerpt before{excerpt.sequence, excerpt.sequence.begin, excerpt.begin, excerpt.head, {},
                       excerpt.columns};
  excerpt.start = answer_of(problem, right, before).state;
  const plain::Head head = plain::head_of(problem, right, excerpt);
  right.site = reading.site;
  return plain::chunk_answer(head, reading.chunk, excerpt.begin - excerpt.sequence.begin, right).kept;
}

plain::Head plain::head_of(const Problem& problem, const Interpretation& reading, const Excerpt& excerpt) {
  const HeadInputs inputs(problem, reading, excerpt);
  const Dimensions& d = problem.dimensions();
  const std::size_t tokens = excerpt.end - excerpt.begin, K = d.K,
                    V = excerpt.columns.empty() ? d.V : excerpt.columns.size();
  const double scale = *reading.options.scale;
  Head head{Matrix(tokens, K),
            Matrix(tokens, K),
            Matrix(tokens, V),
            Matrix(tokens, K),
            {},
            Matrix(K, V),
            std::vector<double>(tokens),
            scale};
  std::vector<double> q(K), k(K), gates(K);
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::size_t t = excerpt.begin + i;
    inputs.query(t, q), inputs.key(t, k), inputs.gates(t, gates);
    for (std::size_t x = 0; x < K; ++x)
      head.q(i, x) = q[x] / scale, head.k(i, x) = k[x],
                head.g(i, x) =
                    reading.decay == &exponential ? gates[x] : numeric::log(reading.decay(gates[x]));
    for (std::size_t v = 0; v < V; ++v) head.v(i, v) = inputs.value(t, v);
    head.beta[i] = inputs.beta(t, 0);
  }
  const std::vector<double> state = answer_of(problem, Interpretation(problem),
                                              {excerpt.sequence, excerpt.begin, excerpt.begin, excerpt.head,
                                               excerpt.start, excerpt.columns})
                                        .state;
  for (std::size_t i = 0; i < state.size(); ++i) head.state(i / V, i % V) = state[i];
  return head;
}

double factor_of(TermFault fault, double scale) {
  switch (fault) {
    case TermFault::lost:
      return 0;
    case TermFault::negated:
      return -1;
    case TermFault::unscaled:
      return 1 / scale;
    case TermFault::scaled_twice:
      return scale;
    case TermFault::doubled:
      return 2;
    default:
      return 1;
  }
}

double l2norm(std::span<const double> row) { return std::sqrt(squares(row) + norm_epsilon); }
double squares(std::span<const double> row) {
  double sum = 0;
  for (const double x : row) sum += x * x;
  return sum;
}
double softplus_gate(const GateInput& in) { return -in.A * softplus(in.g + in.bias); }
double bounded_gate(const GateInput& in) { return in.bound * sigmoid(in.A * (in.g + in.bias)); }
std::span<const OtherFunction> other_softplus() {
  static constexpr OtherFunction list[] = {
      {"max(x, 0)", [](double x) { return std::max(x, 0.0); }},
      {"x", [](double x) { return x; }},
      {"x sigmoid(x)", [](double x) { return x * sigmoid(x); }},
      {"sigmoid(x)", [](double x) { return sigmoid(x); }},
      {"exp(x)", [](double x) { return numeric::exp(x); }},
      {"softplus(softplus(x))", [](double x) { return softplus(softplus(x)); }},
      {"softplus(2 x) / 2", [](double x) { return softplus(2 * x) / 2; }},
      {"log2(1 + exp2(x))", [](double x) { return softplus(x * std::numbers::ln2) / std::numbers::ln2; }},
      {"log(1 + exp(x)), which overflows where exp(x) leaves fp32",
       [](double x) { return x > 88.72 ? HUGE_VAL : softplus(x); }},
      {"log(1 + exp(x)), which overflows where exp(x) leaves fp16",
       [](double x) { return x > 11.09 ? HUGE_VAL : softplus(x); }},
      {"linear from 2 on", [](double x) { return x > 2 ? x : softplus(x); }},
      {"linear from 5 on", [](double x) { return x > 5 ? x : softplus(x); }},
      {"linear from 10 on", [](double x) { return x > 10 ? x : softplus(x); }},
  };
  return list;
}
double unchanged(double x) { return x; }
double exponential(double x) { return numeric::exp(x); }
double sigmoid(double x) { return 1 / (1 + numeric::exp(-x)); }
double softplus(double x) {
  return x > 0 ? x + numeric::log1p(numeric::exp(-x)) : numeric::log1p(numeric::exp(x));
}
double to_fp16(double x) { return static_cast<double>(numeric::through_fp16(static_cast<float>(x))); }
double to_bf16(double x) { return static_cast<double>(numeric::through_bf16(static_cast<float>(x))); }

std::size_t state_element(const Dimensions& d, bool v_first, std::size_t sequence, std::size_t head,
                          std::size_t k, std::size_t v) {
  return (sequence * d.HV + head) * d.K * d.V + (v_first ? v * d.K + k : k * d.V + v);
}

ExcerptAnswer answer_of(const Problem& problem, const Interpretation& reading, const Excerpt& excerpt) {
  if (reading.begins_late != 0) return with_other_bounds(problem, reading, excerpt);
  return Recurrence(problem, reading, excerpt).run();
}

KnownGates known_gates(const Problem& problem, const Excerpt& excerpt) {
  if (problem.options.gate == Gate::none) return {};
  return HeadInputs(problem, Interpretation(problem), excerpt).known(excerpt.begin, excerpt.end);
}

kda::Answer answer_of(const Problem& problem, const Interpretation& reading) {
  const Dimensions& d = problem.dimensions();
  const bool v_first = problem.options.state_v_first;
  kda::Answer answer{
      tensor::Tensor("o", numeric::DType::fp64, kda::shape_of("o", problem)),
      tensor::Tensor("final_state", numeric::DType::fp64, kda::shape_of("final_state", problem))};
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head) {
      const ExcerptAnswer part = answer_of(problem, reading, {sequence, sequence.begin, sequence.end, head});
      for (std::size_t i = 0; i < part.o.size(); ++i)
        answer.o.set(((sequence.batch * d.T + sequence.begin + i / d.V) * d.HV + head) * d.V + i % d.V,
                     part.o[i]);
      for (std::size_t i = 0; i < part.state.size(); ++i)
        answer.final_state.set(state_element(d, v_first != reading.final_state_transposed, sequence.index,
                                             head, i / d.V, i % d.V),
                               part.state[i]);
    }
  return answer;
}

}  // namespace kda_check::hypotheses
