// From the gradients of one head's recurrence to those of the tensors as they are stored: norm, gate and
// sigmoid backwards, and the sums over value heads, tokens and sequences (docs/kda.md, "Backward").
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kda/head/head_io.hpp"
#include "kda/problem/gradients.hpp"

namespace kda_check::kda {

/// The layouts that Triton's kernels add up in.
struct TritonGradients {
  RowLayout norm;
  GateLayouts gate;
};

/// How the gradients of a run are formed where its forms differ.
struct GradientForm {
  NormForm norm = NormForm::division;
  Rounding normalised = Rounding::none;  ///< of q and k after the norm
  /// ddt_bias sums the elements of dg as they are stored, not before: FLA's chunk form.
  bool bias_from_stored_gate = false;
  /// Of reduction=triton; else sums are in the order of all else.
  std::optional<TritonGradients> triton{};
};

/// Writes the gradients of one head of one sequence, a block of tokens at a time, each block once, and
/// several at the same time. Those of log_decay() of one head of one sequence must come one by one from its
/// last token backwards: it adds them up.
template <class T>
class HeadGradients {
 public:
  HeadGradients(const Problem& problem, const Operations& operations, const GradientForm& form,
                GradientTensors& gradients);

  /// [count][stride] gradients of the query, or key, as the recurrence reads it (normalised, for dq without
  /// scale), summed over the value heads of `head`, a query head. Overwritten.
  void query(const HeadTokens& tokens, T* rows, std::size_t stride);
  void key(const HeadTokens& tokens, T* rows, std::size_t stride);
  /// [count][stride]; `head` is a value head from here on.
  void value(const HeadTokens& tokens, const T* rows, std::size_t stride);
  /// [count][stride] gradients of the log decay of every channel: where a head has one for all K, their sum
  /// is its gradient. Overwritten.
  void log_decay(const HeadTokens& tokens, T* rows, std::size_t stride);
  /// [count] gradients of beta, of betas of columns [count][stride]. Overwritten. Nothing without a beta.
  void beta(const HeadTokens& tokens, T* values, std::size_t stride);
  /// With erase and write gates, before key() and value(): [count][k_stride] of the key as it was used, its
  /// gradient without and that of what is read along, erase * key; [count][v_stride] of write * v. Then `dk`
  /// is the gradient of the key, `dv` that of v. Nothing without gates.
  void gates(const HeadTokens& tokens, const T* key, T* dk, T* dread, std::size_t k_stride, T* dv,
             std::size_t v_stride);
  /// [K][stride]
  void initial_state(const Sequence& s, std::size_t head, const T* rows, std::size_t stride);

  /// The sums over sequences, in their order: call once, when everything is written.
  void finish();

 private:
  void through_sigmoid(const HeadTokens& tokens, std::size_t width, T* values);
  tensor::Tensor& tensor(Gradient gradient) { return gradients_[static_cast<std::size_t>(gradient)]; }
  void normalised_rows(const tensor::Tensor& stored, Gradient gradient, const HeadTokens& tokens, T* rows,
                       std::size_t stride);
  void store(Gradient gradient, const HeadTokens& tokens, std::size_t heads, std::size_t width, const T* rows,
             std::size_t stride);
  void add_bias(const HeadTokens& tokens, const T* rows, std::size_t stride);
  void sum_over_sequences(const std::vector<T>& parts, tensor::Tensor& sum);
  void sum_over_tokens();

  const Problem& problem_;
  const Dimensions d_;
  const HeadReader<T> reader_;
  const Operations operations_;
  const GradientForm form_;
  GradientTensors& gradients_;
  /// [N][HV] (with Triton's layouts [B*T][HV]: of tokens), [N][HV*decays]
  std::vector<T> amplitude_parts_, bias_parts_;
};

/// sum += part, or sum = part for the first value head of a group; returns sum.
template <class T>
T* added_to_group(const T* part, std::size_t count, bool is_first, T* sum) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = is_first ? part[i] : sum[i] + part[i];
  return sum;
}

}  // namespace kda_check::kda
