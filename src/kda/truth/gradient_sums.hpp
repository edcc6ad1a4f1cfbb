// From the gradients of one token's normalised q and k, log decay, beta and state to those of what is stored:
// sums over the value heads of a query head, over tokens and sequences for the gate's parameters, and the
// chain rules of norm, gate and sigmoid (docs/kda.md, "Backward"), in double-double with magnitudes.
#pragma once

#include <utility>
#include <vector>

#include "kda/kernels/truth/gradient_elements.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/oracle_inputs.hpp"

namespace kda_check::kda {

/// What one sequence adds to the gradients of A_log and dt_bias of one value head.
struct ParameterSums {
  GradientSum A_log;
  std::vector<GradientSum> dt_bias;  ///< [Dimensions::decays]
};

/// A block of tokens as the kernels leave it, and the slopes of what they were given.
struct BlockGradients {
  const double *q, *k;                         ///< [tokens][K], q with scale
  OracleMatrix dq, dk, dg, dv, dbeta;          ///< dq without scale
  OracleMatrix error, residual;                ///< e and r
  const double *error_terms, *residual_terms;  ///< |v| + sum_k |k P| and sum_k |k D|, rows of the same stride
  OracleRows gate_slope, amplitude_slope, beta_slope;
  OracleRows key;      ///< [tokens][K]
  OracleMatrix dread;  ///< with an erase gate; dk is then without it
};

/// Collects the gradients of one query head of one sequence, value head by value head, each from its last
/// token to its first.
class GradientSums {
 public:
  GradientSums(const Problem& problem, const Sequence& sequence, std::size_t chunk_size,
               GradientTruths& truths);
  void begin_head(std::size_t head, ParameterSums& parameters);
  /// [K], sum_v of the first-order size of final state times dht: what the last chunk's sums begin with.
  void set_final_terms(std::vector<double> terms) { end_terms_ = std::move(terms); }
  /// Before the rows of a block of tokens.
  void begin_block(const Sequence& tokens);
  /// Row `row` of the block, which is token `token` of the batch row.
  void add_token(const BlockGradients& block, std::size_t row, std::size_t token);
  /// The gradient of the initial state, [K][V].
  void put_state(const OracleMatrix& gradient);
  /// dq and dk of tokens whose value heads are all in: through the L2 norm.
  void finish(const Sequence& tokens);

 private:
  GradientTruth& truth(Gradient gradient) { return truths_[static_cast<std::size_t>(gradient)]; }
  void add_value_and_beta(const BlockGradients& block, std::size_t row, std::size_t token);
  void add_through_gates(const BlockGradients& block, std::size_t row, std::size_t token);
  void add_query_and_key(const BlockGradients& block, std::size_t row, std::size_t token);
  void add_gate(const BlockGradients& block, std::size_t row, std::size_t token);
  /// `y`: the normalised rows of the tokens, [count][K].
  void through_norm(GradientTruth& gradient, const Sequence& tokens, Pairs& y, Pairs& reciprocals) const;

  const Problem& problem_;
  const Dimensions d_;
  const OracleInputs inputs_;
  const Sequence& sequence_;
  const std::size_t chunk_size_;
  GradientTruths& truths_;
  std::size_t head_ = 0;
  ParameterSums* parameters_ = nullptr;
  /// [K]: what the chunk form adds up behind a token, and dg's magnitude of the token behind it.
  std::vector<double> chunk_terms_, end_terms_;
  /// [count][K] and [count][V] of the block, with erase and write gates: those, and v.
  std::vector<double> erase_, write_, values_;
};

}  // namespace kda_check::kda
