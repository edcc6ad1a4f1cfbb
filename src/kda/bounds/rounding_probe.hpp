// What rounding the predictions of the delta rule leaves in o and in the state, to first order, where keys
// are alike.
//
// Random signs (kda/bounds/term_energies.hpp) take keys as independent: of a prediction k . S they see the
// K-th part of the energy of S. With keys alike it is most of it, and what is written is the difference of
// two large numbers. So the recurrence itself is run on a few random projections of v, +-1 from each column,
// which leave every energy of the state what it is on average; and beside it the recurrence of the error, to
// which each token adds what a factor that is off by 1 of itself does to its prediction, in a random
// direction:
//   E_t = (1 - beta k k^T) e^g_t E_t-1 + beta k n,   |n|^2 = |k . S'|^2 + sum_k k^2 S'^2
// A recurrence corrects its errors, for they are in what it predicts from. The chunk form solves for what its
// tokens write, from the products of their keys, and the terms of that sum,
//   sum over earlier j of the chunk of (k . e^(G - G_j) k_j)^2 |written_j|^2,
// are rounded in place of those over K. What it has solved for it rounds once more and adds up: such errors
// only decay until the chunk ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/tensor.hpp"

namespace kda_check::kda {

struct ProbeKernels;

/// Of errors of one kind each, for factors that are off by 1 of themselves.
struct ProbedErrors {
  double recurrence = 0;
  double solving = 0, writing = 0;  ///< of the chunk form
};

/// One head of one sequence, token by token.
class RoundingProbe {
 public:
  /// `stream`: of the random signs.
  RoundingProbe(std::size_t K, std::size_t V, std::size_t chunk_size, std::uint64_t stream);

  /// The state that it begins with, [K][V], in multiples of `unit`.
  void begin(const double* state, double unit);
  /// The next token; v in multiples of `unit`; `read`: what it reads the state along, null: key. Returns the
  /// energy of the error of its o, summed over V.
  ProbedErrors token(const float* decay, const double* query, const double* key, double beta, const double* v,
                     double unit, const double* read = nullptr);
  /// The energy of the error of the state.
  ProbedErrors of_state() const;

 private:
  static constexpr std::size_t width = 8;  ///< projections
  using Rows = std::vector<double>;        ///< [K][width]

  void project(const double* v, double unit, double* projected) const;
  void begin_chunk();
  /// The energy of the terms that the chunk form makes a token's prediction of.
  double terms_of_chunk(const float* decay, const double* key, const double* read);

  std::size_t K_, V_, chunk_size_, token_ = 0;
  std::uint64_t stream_;
  std::vector<double> signs_;  ///< [V][width]
  Rows state_, error_;
  Rows solved_, written_, carried_;  ///< errors of the chunk form; of what this and earlier chunks wrote
  std::size_t key_stride_;
  tensor::Scratch<float> keys_;  ///< [K][key_stride], of the tokens of this chunk, decayed
  tensor::Scratch<float> own_, products_;
  std::vector<double> writes_;  ///< energies of what they wrote
  const ProbeKernels& kernels_;
};

}  // namespace kda_check::kda
