// What the recurrence of the oracle takes of one element of the inputs, beside norms (row_norm.hpp) and gates
// (gate_functions.hpp): on the CPU and on a GPU.
#pragma once

#include "kda/kernels/oracle_blocks.hpp"
#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

/// The raw gate with its bias. Infinite where the sum is in fp64, as the limit of the gate wants it.
KDA_CHECK_BOTH numeric::DoubleDouble biased_gate(numeric::DoubleDouble gate, numeric::DoubleDouble bias) {
  const double sum = gate.hi + bias.hi;
  const numeric::DoubleDouble exact = gate + bias;
  const bool finite = sum - sum == 0;
  return {finite ? exact.hi : sum, finite ? exact.lo : 0.0};
}

/// beta, from what is stored.
KDA_CHECK_BOTH numeric::DoubleDouble write_strength(double stored, bool sigmoid, bool allow_neg_eigval) {
  numeric::DoubleDouble value{stored};
  if (sigmoid) value = numeric::sigmoid(value) * (allow_neg_eigval ? 2.0 : 1.0);
  return value;
}

/// |1 - beta k^2| and |beta k|, for magnitudes.
KDA_CHECK_BOTH double retained_share(double beta, double key) {
  return numeric::absolute(1 - beta * key * key);
}
/// |1 - k read| of what is read along with an erase gate.
KDA_CHECK_BOTH double retained_of_read(double read, double key) { return numeric::absolute(1 - read * key); }
KDA_CHECK_BOTH double written_share(double beta, double key) { return numeric::absolute(beta * key); }

/// The norms of a token from sums over its channels, which begin with zeros.
struct TokenNormSums {
  double decay = 0, key = 0, query = 0;

  KDA_CHECK_BOTH void add(double channel_decay, double k, double q) {
    using numeric::fma;
    decay = channel_decay > decay ? channel_decay : decay;
    key = fma(k, k, key), query = fma(q, q, query);
  }
  KDA_CHECK_BOTH TokenNorms norms(double K) const {
    const double up = 1 + 2 * K * 0x1p-53;
    return {decay, numeric::square_root(key) * up, numeric::square_root(query) * up};
  }
};

}  // namespace kda_check::kda
