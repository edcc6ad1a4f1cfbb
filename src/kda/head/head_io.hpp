// Between the tensors of a problem and the rows a kernel works on: one head of one sequence, a block of
// tokens at a time, widened to T with gate, norm and sigmoid applied. Never a copy of a whole tensor.
//
// In fp64 a norm whose squares are beyond the range, and a gate whose amplitude is, are the functions
// themselves (kda/kernels/truth/row_norm.hpp, kda/kernels/truth/gate_functions.hpp), rounded; in fp32 they
// are what one operation after the other gives: losing them there is what kernels are judged for.
#pragma once

#include <cstddef>

#include "kda/kernels/table.hpp"
#include "kda/problem/problem.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

/// Beyond +-this A_log, products with exp(A_log) may leave the range of fp64 on their way.
inline constexpr double largest_ordinary_A_log = 600;

/// A log decay as a product, where a gate makes it one: that of the bound or of -exp(A_log) with the sigmoid
/// or the softplus.
template <class T>
struct GateProduct {
  T* factors;            ///< [count][stride], or null: not asked for
  double constant = 0;   ///< before it is rounded to T; 0: there is no gate
  bool of_tanh = false;  ///< factors are tanh of half the sigmoid's argument
};

/// Tokens of one head of a sequence; `begin` is counted in its batch row.
struct HeadTokens {
  Sequence sequence;
  std::size_t head, begin, count;

  HeadTokens one(std::size_t t) const { return {sequence, head, begin + t, 1}; }
};

enum class NormForm : unsigned char { division, reciprocal };

/// T is float or double. Functions may be called from several threads. Whatever goes along tokens reads them
/// here: it throws Interrupted when a signal asks for the end.
template <class T>
class HeadReader {
 public:
  explicit HeadReader(const Problem& problem, const Operations& operations = {});

  /// [count][K] rows of q or k from `begin` on, of the query head that value head `head` reads; L2-normalised
  /// if the problem says so, and then rounded.
  void query(const HeadTokens& tokens, NormForm form, Rounding rounding, T* rows, std::size_t stride) const;
  void key(const HeadTokens& tokens, NormForm form, Rounding rounding, T* rows, std::size_t stride) const;
  /// [count][V] of what is written: v, with a write gate write * v; elements up to `stride` are set to zero.
  void value(const HeadTokens& tokens, T* rows, std::size_t stride) const;
  /// The two by themselves. There must be a write gate.
  void value_and_write(const HeadTokens& tokens, T* rows, T* write, std::size_t stride) const;
  /// [count][K] natural logs of the decay; where a head has one for all K, it in all of them.
  void log_decay(const HeadTokens& tokens, T* rows, std::size_t stride,
                 GateProduct<T>* product = nullptr) const;
  /// The same, as many as the head has (Dimensions::decays): [count][stride].
  void own_log_decays(const HeadTokens& tokens, T* rows, std::size_t stride,
                      GateProduct<T>* product = nullptr) const;
  /// [count]; 1 where erase and write gates stand in its place. Not for betas of columns.
  void beta(const HeadTokens& tokens, T* values) const;
  /// [count][V] betas of columns; elements up to `stride` are set to zero.
  void column_beta(const HeadTokens& tokens, T* rows, std::size_t stride) const;
  /// [count][K], erase * key: what predictions read the state along where there is an erase gate.
  void read_key(const HeadTokens& tokens, const T* key, T* rows, std::size_t stride) const;
  /// The initial state as [K][stride], zeros without one.
  void state(const Sequence& s, std::size_t head, T* rows, std::size_t stride) const;

  /// do as [count][V] and dht as [K][stride]; zeros for what the loss does not have.
  void output_gradient(const HeadTokens& tokens, T* rows, std::size_t stride) const;
  void state_gradient(const Sequence& s, std::size_t head, T* rows, std::size_t stride) const;

  /// [count][width] rows of one of `heads` heads of a tensor [B,T,heads,width], as stored; zeros up to
  /// `stride`.
  void rows_of(const tensor::Tensor& tensor, std::size_t heads, std::size_t width, const HeadTokens& tokens,
               T* rows, std::size_t stride) const;
  /// exp(A_log) of a head, 1 without.
  T amplitude(std::size_t head) const;
  /// A_log of a head as stored, 0 without.
  double log_amplitude(std::size_t head) const;
  /// dt_bias of a head, [Dimensions::decays]. There must be one.
  void bias(std::size_t head, T* values) const;
  T scale() const { return static_cast<T>(problem_.scale()); }
  /// Rows of q have scale in their norm.
  bool scales_norm() const;

 private:
  void through_sigmoid(T* values, std::size_t count) const;
  void gate_of_any_amplitude(std::size_t head, std::size_t count, const T* bias, T* rows,
                             std::size_t stride) const;
  void state_of(const tensor::Tensor& states, const Sequence& s, std::size_t head, T* rows,
                std::size_t stride) const;
  void normalised_rows(const tensor::Tensor& tensor, const HeadTokens& tokens, NormForm form,
                       Rounding rounding, T factor, T* rows, std::size_t stride) const;

  const Problem& problem_;
  const Kernels<T>& kernels_;
  const Operations operations_;
};

/// V lanes [first, last) of a head, what one job writes.
struct LaneRange {
  std::size_t first, last;
};

/// Rounds those lanes of [count][stride] rows into `o` at the tokens from `begin` on.
template <class T>
void store_output(const T* rows, std::size_t stride, const Problem& problem, const HeadTokens& tokens,
                  LaneRange lanes, tensor::Tensor& o);

/// Rounds those lanes of [K][stride] rows into row `row` of a tensor of states, in the problem's layout.
template <class T>
void store_state(const T* rows, std::size_t stride, const Problem& problem, std::size_t row, std::size_t head,
                 LaneRange lanes, tensor::Tensor& states);
/// ... into all that are the state behind so many tokens of the sequence.
template <class T>
void store_states(const T* rows, std::size_t stride, const Problem& problem, const Sequence& s,
                  std::size_t tokens, std::size_t head, LaneRange lanes, Answer& answer);

}  // namespace kda_check::kda
