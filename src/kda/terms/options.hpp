// The options and sizes of a problem, and intervals of its tokens: all that kernels of either processor know
// of it beside its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kda_check::kda {

/// From the stored g to the natural log of the decay.
enum class Gate : std::uint8_t {
  none,         ///< g is the log decay
  softplus,     ///< -exp(A_log) * softplus(g + dt_bias)
  lower_bound,  ///< lower_bound * sigmoid(exp(A_log) * (g + dt_bias)); without A_log the factor is 1
};
std::string_view name_of(Gate gate);

struct Options {
  std::optional<double> scale;  ///< multiplies q; missing: 1 / sqrt(K)
  int chunk_size = 64;
  Gate gate = Gate::none;
  std::optional<double> lower_bound;
  bool qk_l2norm = false;         ///< q and k divided by sqrt(sum of squares + 1e-6)
  bool beta_sigmoid = false;      ///< beta := sigmoid(beta)
  bool allow_neg_eigval = false;  ///< ... times 2
  bool state_v_first = false;     ///< states are [.., V, K]
  bool safe_gate = false;  ///< the writer promised gates in [lower_bound, 0); selects FLA's anchored diagonal

  bool operator==(const Options&) const = default;
};

/// What a write is weighed by (docs/kda.md, "The family"): the shapes of a problem's inputs say it.
enum class Strength : std::uint8_t {
  head,   ///< beta [B,T,HV]: one number for a value head
  value,  ///< beta [B,T,HV,V]: one for each of its columns
  gates,  ///< erase [B,T,HV,K] and write [B,T,HV,V] in place of beta
};

/// Sizes: B batch, T tokens (of all sequences when packed), H query/key heads, HV value heads, K key and V
/// value width, N sequences (B when not packed), C chunk length, NT chunks of a batch row (summed over the
/// sequences).
struct Dimensions {
  std::size_t B = 0, T = 0, H = 0, HV = 0, K = 0, V = 0, N = 0, C = 0, NT = 0;
  std::size_t checkpoints = 0;    ///< states inside sequences that are asked for
  bool has_scalar_decay = false;  ///< g [B,T,HV], one log decay for all K of a value head
  Strength strength = Strength::head;

  /// Log decays that a value head has at a token.
  std::size_t decays() const { return has_scalar_decay ? 1 : K; }
  bool operator==(const Dimensions&) const = default;
};

/// Tokens [begin, end) of batch row `batch`: a sequence or part of one, with state number `index`.
struct Sequence {
  std::size_t index, batch, begin, end;
  std::size_t length() const { return end - begin; }
  /// Tokens [from, to), counted from the first of these.
  Sequence part(std::size_t from, std::size_t to) const { return {index, batch, begin + from, begin + to}; }
  /// From number `from` on, at most `most`.
  Sequence block(std::size_t from, std::size_t most) const {
    return part(from, from + most < length() ? from + most : length());
  }
};

}  // namespace kda_check::kda
