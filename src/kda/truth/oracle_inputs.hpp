// The inputs of a problem in double-double: norms, gates and sigmoids evaluated without the usual thresholds.
#pragma once

#include <vector>

#include "kda/kernels/table.hpp"
#include "kda/problem/problem.hpp"
#include "numeric/double_double.hpp"

namespace kda_check::kda {

/// Arrays of double-doubles as the kernels take them.
struct Pairs {
  explicit Pairs(std::size_t count) : hi(count), lo(count) {}
  tensor::Scratch<double> hi, lo;
  std::size_t size() const { return hi.size(); }
  OracleRows rows(std::size_t first = 0) { return {hi.data() + first, lo.data() + first}; }
  OracleLanes lanes(std::size_t first = 0) { return {hi.data() + first, lo.data() + first}; }
  numeric::DoubleDouble get(std::size_t i) { return {hi[i], lo[i]}; }
  void set(std::size_t i, numeric::DoubleDouble value) {
    hi[i] = value.hi;
    lo[i] = value.lo;
  }
};

/// What the recurrence, forwards or backwards, takes of a block of up to `tokens` tokens.
struct TokenPairs {
  TokenPairs(std::size_t tokens, std::size_t K, std::size_t stride, Strength strength)
      : q(tokens * K),
        k(tokens * K),
        decay(tokens * K),
        beta(tokens),
        v(tokens * stride),
        retained(tokens * K),
        written(tokens * K),
        own_read(strength == Strength::gates ? tokens * K : 0),
        erased(strength == Strength::gates ? tokens * K : 0),
        v_low(strength == Strength::gates ? tokens * stride : 0),
        column_beta(strength == Strength::value ? tokens * stride : 0) {}

  OracleRows read() { return own_read.size() > 0 ? own_read.rows() : k.rows(); }
  /// Of the columns from `lane` on.
  OracleStrength strength(std::size_t lane = 0) {
    return {beta.rows(), column_beta.size() > 0 ? column_beta.rows(lane) : OracleRows{nullptr, nullptr},
            retained.data(), written.data(), erased.size() > 0 ? erased.data() : written.data()};
  }
  const double* low_of_v() { return v_low.size() > 0 ? v_low.data() : nullptr; }

  Pairs q, k, decay, beta;                    ///< q with scale; exp of the log decay
  tensor::Scratch<double> v;                  ///< as it is stored, exact; with a write gate write * v
  tensor::Scratch<double> retained, written;  ///< |1 - beta k^2| and |beta k|, for magnitudes
  // Empty but with erase and write gates, or with betas of columns.
  Pairs own_read;                         ///< erase * k
  tensor::Scratch<double> erased, v_low;  ///< |erase k|; what v has beyond a double
  Pairs column_beta;                      ///< rows as those of v
  std::vector<TokenNorms> norms;          ///< for the recurrence in fp64
};

/// Throws Interrupted as HeadReader does.
class OracleInputs {
 public:
  explicit OracleInputs(const Problem& problem) : problem_(problem), d_(problem.dimensions()) {}

  /// All that tokens have; rows of v have `stride` elements. `in_fp64`: norms, too, and of
  /// decays no low parts.
  void tokens(const Sequence& tokens, std::size_t head, TokenPairs& rows, std::size_t stride,
              bool in_fp64 = false) const;
  /// [count][K] rows of q (with scale) or of k, L2-normalised if the problem says so.
  void query(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  void unscaled_query(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  void key(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// [count][K], what predictions read the state along: the key, with an erase gate erase * key.
  void read_key(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// [count][stride] of what is written, zeros beyond V. `low`: for what a product with a write gate has
  /// beyond a double; not used without one.
  void value(const Sequence& tokens, std::size_t head, double* rows, double* low, std::size_t stride) const;
  /// [count][K] log decays; where a head has one for all K, it in all of them.
  void log_decay(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// [count][K], the high parts of its exponentials.
  void high_decay(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// [count][stride], zeros beyond V.
  void column_beta(const Sequence& tokens, std::size_t head, Pairs& rows, std::size_t stride) const;
  /// [count]; 1 with erase and write gates.
  void beta(const Sequence& tokens, std::size_t head, Pairs& values) const;
  /// [count][stride] rows of do, zeros beyond V and where the problem has none.
  void output_gradient(const Sequence& tokens, std::size_t head, double* rows, std::size_t stride) const;

  // The derivatives of what is above, for the gradients with respect to what is stored.

  /// [count] 1 / sqrt(sum of squares + 1e-6) of the stored rows of q or of k.
  void reciprocal_norms(const tensor::Tensor& q_or_k, const Sequence& tokens, std::size_t head,
                        Pairs& values) const;
  // Of as many log decays as the head has (Dimensions::decays).

  /// [count][decays], d log decay / d raw gate; only with a gate.
  void gate_slopes(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// [count][decays], d log decay / d A_log, from the slopes above; only with A_log. Zero where the log decay
  /// is -inf, which it stays whatever the amplitude.
  void amplitude_slopes(const Sequence& tokens, std::size_t head, Pairs& gate_slopes, Pairs& rows) const;
  /// [count], of betas of columns [count][V]: d beta / d stored beta. There must be a beta.
  void beta_slopes(const Sequence& tokens, std::size_t head, Pairs& values) const;

  /// Where element (k, v) of a head's state is in initial_state and final_state.
  std::size_t state_index(const Sequence& s, std::size_t head, std::size_t k, std::size_t v) const {
    const std::size_t first = (s.index * d_.HV + head) * d_.K * d_.V;
    return first + (problem_.options.state_v_first ? v * d_.K + k : k * d_.V + v);
  }

 private:
  void widen_row(const tensor::Tensor& tensor, const Sequence& tokens, std::size_t t, std::size_t heads,
                 std::size_t head, std::size_t width, double* target) const;
  void key_rows(const tensor::Tensor& tensor, const Sequence& tokens, std::size_t head,
                numeric::DoubleDouble factor, Pairs& rows) const;
  /// [count][decays]
  void own_log_decays(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// What a head has one of for all channels to each of them.
  void over_channels(std::size_t count, Pairs& rows) const;
  /// Of `count` tokens, from the rows of all they have.
  void find_norms(std::size_t count, TokenPairs& rows) const;
  void raw_gates(const Sequence& tokens, std::size_t head, Pairs& rows) const;
  /// dt_bias of a head; null pointers inside without.
  Pairs bias_of(std::size_t head) const;
  /// One of the kernels that take a row of raw gates.
  void through_gate(void (*kernel)(const OracleGateBlock&), const Sequence& tokens, std::size_t head,
                    Pairs& rows) const;

  const Problem& problem_;
  const Dimensions d_;
};

}  // namespace kda_check::kda
