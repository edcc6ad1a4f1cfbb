// What the token form takes: the inputs of a block of tokens, and whether the fast kernels can compute what
// is asked for.
#pragma once

#include <algorithm>
#include <optional>

#include "kda/arithmetic/rounded.hpp"
#include "kda/head/head_io.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

/// The arithmetic of a token form, resolved for one run.
struct TokenArithmetic {
  Operations operations;
  CastPoints casts;
  StoredState stored;
  /// S += (beta k) e^T, not k (beta e)^T. Gates have no beta, and betas of columns stay with these.
  bool weighs_key;

  TokenArithmetic(const Problem& problem, const RunOptions& options)
      : operations(operations_of(options.arithmetic)),
        casts(cast_points(options.arithmetic, options.dtype, false, false)),
        stored(options.arithmetic.stored),
        weighs_key(operations.beta == BetaPart::keys && problem.dimensions().strength == Strength::head) {
    const Dimensions& d = problem.dimensions();
    const std::optional<tensor::Tensor>& initial = problem.initial_state;
    const numeric::DType state = initial ? initial->dtype() : numeric::DType::fp32;
    if (is_by_lanes(operations.reduction)) {
      const bool is_paired = options.arithmetic.reduction.kind == ReductionKind::lanes_paired;
      operations.norm = is_paired ? paired_norm_layout(d.K) : lane_layout(d.K);
      if (is_paired) operations.columns = paired_columns_layout(d.K);
      return;
    }
    const Launch& launch = options.arithmetic.launch;
    const bool is_pooled = launch.block.columns > 0;  // then there always is a state to load
    const StateBlock block{d.K, d.V, problem.options.state_v_first, initial || is_pooled ? &state : nullptr,
                           is_pooled ? launch.block : fla_token_program};
    operations.norm =
        launch.norm.registers > 0 ? launch.norm : recurrent_norm_layout(d.K, problem.dtype(), block.program);
    operations.columns = recurrent_state_layout(block);
    if (problem.options.qk_l2norm && operations.reduction.kind == ReductionKind::triton)
      operations.norm_halves = recurrent_norm_halves(operations.norm, block);
  }

  bool scales_output() const { return operations.scale == ScaledPart::output; }
  /// A write gate stays beside v until the prediction is subtracted.
  bool fuses_write() const { return operations.delta == Delta::fused; }
  /// The fast kernels add sequentially and round nothing on the way.
  bool is_plain() const {
    return operations.reduction.kind == ReductionKind::sequential && casts.prediction == Rounding::none &&
           casts.carry == Rounding::none && operations.subnormals == Subnormals::gradual &&
           operations.update != Update::decay_fused && !scales_output() && !fuses_write();
  }
};

/// Rows [count][stride] of the query, with scale if asked for, the key and exp(g), and [count] of beta. Null
/// are those that a problem does not have (kda::Strength).
template <class T>
struct TokenRows {
  T *q, *k, *decay, *beta;
  T* read = nullptr;         ///< [count][stride], erase * k; of a key that beta is on, k without it
  T* column_beta = nullptr;  ///< [count][value_stride], in place of beta
  std::size_t value_stride = 0;
};

/// Beta goes onto the key, and errors are multiplied by 1, which rounds nothing.
template <class T>
void weigh_key(const TokenRows<T>& rows, std::size_t count, std::size_t stride) {
  std::copy_n(rows.k, count * stride, rows.read);
  for (std::size_t t = 0; t < count; ++t)
    for (std::size_t k = t * stride; k < (t + 1) * stride; ++k) rows.k[k] = rows.beta[t] * rows.k[k];
  std::fill_n(rows.beta, count, T(1));
}

/// What of these needs no gate.
template <class T>
void load_operands(const HeadReader<T>& reader, const TokenArithmetic& arithmetic, const HeadTokens& tokens,
                   std::size_t stride, bool scales_query, const TokenRows<T>& rows) {
  const Rounding normalised = arithmetic.casts.normalised;
  reader.query(tokens, NormForm::division, normalised, rows.q, stride);
  const T scale = scales_query && !reader.scales_norm() ? reader.scale() : T(1);
  for (std::size_t i = 0; i < tokens.count * stride; ++i) rows.q[i] = rows.q[i] * scale;
  reader.key(tokens, NormForm::division, normalised, rows.k, stride);
  if (rows.column_beta != nullptr) {
    reader.column_beta(tokens, rows.column_beta, rows.value_stride);
    kernels<T>().round(arithmetic.casts.beta, rows.column_beta, tokens.count * rows.value_stride);
  } else {
    reader.beta(tokens, rows.beta);
    kernels<T>().round(arithmetic.casts.beta, rows.beta, tokens.count);
  }
  if (rows.read != nullptr && !arithmetic.weighs_key) reader.read_key(tokens, rows.k, rows.read, stride);
}
template <class T>
void load_decays(const HeadReader<T>& reader, const TokenArithmetic& arithmetic, const HeadTokens& tokens,
                 std::size_t stride, T* decay) {
  reader.log_decay(tokens, decay, stride);
  kernels<T>().round(arithmetic.casts.gate, decay, tokens.count * stride);
  kernels<T>().exponential(arithmetic.operations.exponential, decay, decay, tokens.count * stride);
  kernels<T>().round(arithmetic.casts.decay, decay, tokens.count * stride);
}

template <class T>
void load_rows(const HeadReader<T>& reader, const TokenArithmetic& arithmetic, const HeadTokens& tokens,
               std::size_t stride, bool scales_query, const TokenRows<T>& rows) {
  load_operands(reader, arithmetic, tokens, stride, scales_query, rows);
  if (arithmetic.weighs_key) weigh_key(rows, tokens.count, stride);
  load_decays(reader, arithmetic, tokens, stride, rows.decay);
}

/// Tokens as the kernels take them: rows from the first of them on, as in ColumnsBlock.
template <class T>
struct TokenSpan {
  std::size_t count;
  const T *q, *k, *decay, *beta, *v;
  const T *read, *column_beta, *write;
};

/// Inputs of `block_tokens` tokens of one head as the token kernels take them.
template <class T>
struct TokenInputs {
  static constexpr std::size_t block_tokens = 64;

  TokenInputs(std::size_t K, std::size_t v_stride, Strength strength, bool weighs_key = false)
      : key_dim(K),
        value_stride(v_stride),
        q(block_tokens * K),
        k(block_tokens * K),
        decay(block_tokens * K),
        beta(block_tokens),
        v(block_tokens * v_stride),
        own_read(strength == Strength::gates || weighs_key ? block_tokens * K : 0),
        own_column_beta(strength == Strength::value ? block_tokens * v_stride : 0),
        own_write(strength == Strength::gates ? block_tokens * v_stride : 0) {}

  void load(const HeadReader<T>& reader, const TokenArithmetic& arithmetic, const HeadTokens& tokens) {
    const TokenRows<T> rows{q.data(), k.data(),      decay.data(), beta.data(),
                            read(),   column_beta(), value_stride};
    load_operands(reader, arithmetic, tokens, key_dim, !arithmetic.scales_output(), rows);
    load_decays(reader, arithmetic, tokens, key_dim, rows.decay);
    fuses_write = arithmetic.fuses_write() && own_write.size() > 0;
    if (fuses_write)
      reader.value_and_write(tokens, v.data(), own_write.data(), value_stride);
    else
      reader.value(tokens, v.data(), value_stride);
    for (tensor::Scratch<T>* const own : {&q, &k, &decay, &beta, &v, &own_read, &own_column_beta, &own_write})
      flush(arithmetic, *own, tokens.count);
    if (arithmetic.weighs_key) weigh_key(rows, tokens.count, key_dim);
  }

  /// Null where the problem has none.
  T* read() { return own_read.size() > 0 ? own_read.data() : nullptr; }
  T* column_beta() { return own_column_beta.size() > 0 ? own_column_beta.data() : nullptr; }

  TokenSpan<T> span(std::size_t first, std::size_t count) {
    const std::size_t row = first * key_dim, value_row = first * value_stride;
    return {count,
            q.data() + row,
            k.data() + row,
            decay.data() + row,
            beta.data() + first,
            v.data() + value_row,
            read() == nullptr ? nullptr : read() + row,
            column_beta() == nullptr ? nullptr : column_beta() + value_row,
            fuses_write ? own_write.data() + value_row : nullptr};
  }

  const std::size_t key_dim, value_stride;
  tensor::Scratch<T> q, k, decay, beta, v, own_read, own_column_beta, own_write;
  bool fuses_write = false;  ///< and v is without it

 private:
  /// The first `count` rows of `block_tokens`.
  static void flush(const TokenArithmetic& arithmetic, tensor::Scratch<T>& rows, std::size_t count) {
    const Subnormals subnormals = arithmetic.operations.subnormals;
    if (subnormals != Subnormals::flush) return;
    for (std::size_t i = 0; i < rows.size() / block_tokens * count; ++i)
      rows[i] = flushed(subnormals, rows[i]);
  }
};

/// Tokens through a state whose columns read q and k by either half's norm (NormHalves::columns): all go both
/// ways, and each column is taken from its own. Elsewhere they go once.
template <class T>
class ColumnHalves {
 public:
  ColumnHalves(const Problem& problem, const TokenArithmetic& arithmetic, std::size_t v_stride)
      : in_turn_(arithmetic.operations.norm_halves.columns),
        K_(problem.dimensions().K),
        v_stride_(v_stride),
        reader_(problem, of_upper(arithmetic.operations)),
        o_(in_turn_ > 0 ? TokenInputs<T>::block_tokens * v_stride : 0),
        state_(in_turn_ > 0 ? K_ * v_stride : 0) {
    if (in_turn_ > 0) upper_.emplace(K_, v_stride, problem.dimensions().strength, arithmetic.weighs_key);
  }

  /// As TokenInputs::load().
  void load(const TokenArithmetic& arithmetic, const HeadTokens& tokens) {
    if (upper_) upper_->load(reader_, arithmetic, tokens);
  }
  /// run(tokens, o, state) for tokens [first, first + count) of those loaded. `columns`: those that it
  /// computes, in whole strips of `lanes`.
  template <class Run>
  void run(TokenInputs<T>& lower, std::size_t first, std::size_t count, LaneRange columns, std::size_t lanes,
           T* o, T* state, Run run) {
    if (upper_) std::copy(state + columns.first * K_, state + columns.last * K_, &state_[columns.first * K_]);
    run(lower.span(first, count), o, state);
    if (!upper_) return;
    run(upper_->span(first, count), o_.data(), state_.data());
    for (std::size_t v = columns.first; v < columns.last; ++v) {
      if (v / in_turn_ % 2 == 0) continue;
      for (std::size_t t = 0; t < count; ++t) o[t * v_stride_ + v] = o_[t * v_stride_ + v];
      for (std::size_t k = 0; k < K_; ++k) {
        const std::size_t at = (v / lanes * K_ + k) * lanes + v % lanes;
        state[at] = state_[at];
      }
    }
  }

 private:
  static Operations of_upper(Operations operations) {
    operations.of_upper_columns = true;
    return operations;
  }

  const std::size_t in_turn_, K_, v_stride_;
  const HeadReader<T> reader_;
  std::optional<TokenInputs<T>> upper_;
  tensor::Scratch<T> o_, state_;
};

/// The state of a head between tokens, as TokenArithmetic::stored has it.
template <class T>
class StateStore {
 public:
  /// Columns lie in strips of `lanes`.
  StateStore(const StoredState& stored, const Dimensions& d, std::size_t head, std::size_t lanes)
      : dimensions_(d),
        stored_(stored),
        head_(head),
        lanes_(lanes),
        residual_(stored.rounding == StateRounding::feedback ? d.K * padded(d.V) : 0),
        scales_(stored.scale == StateScale::none ? 0 : std::max(d.K, padded(d.V))) {
    std::fill_n(residual_.data(), residual_.size(), T(0));
  }

  /// How many of `count` tokens may pass before the state is stored.
  std::size_t together(std::size_t count) const { return is_needed() ? 1 : count; }
  /// Behind the token at `position` of the sequence.
  void store(std::size_t position, const T* decay, T* state) {
    if constexpr (sizeof(T) == sizeof(float))  // fp64 computations store all they have
      if (is_needed())
        kernel_table().store_state({dimensions_.K, dimensions_.V, lanes_, stored_, state, residual_.data(),
                                    decay, head_, position, scales_.data()});
  }

 private:
  bool is_needed() const { return stored_.format != StateFormat::fp32; }

  const Dimensions dimensions_;
  const StoredState stored_;
  const std::size_t head_, lanes_;
  tensor::Scratch<T> residual_, scales_;
};

}  // namespace kda_check::kda
