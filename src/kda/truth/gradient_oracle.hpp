// The truth of the gradients: the recurrence backwards in double-double (about 106 bits), from the inputs
// exactly as stored, with norms, gates and sigmoids differentiated in double-double too (docs/kda.md,
// "Backward"), and the magnitude of every element. Checked by central differences of the forward oracle and
// against MPFR (tests/kda/truth/gradient_oracle.cpp).
#pragma once

#include <array>
#include <vector>

#include "kda/problem/gradients.hpp"
#include "kda/truth/oracle.hpp"
#include "tensor/unfilled.hpp"

namespace kda_check::kda {

/// One gradient, indexed like its tensor. The magnitude is the first-order effect of a relative error of 1 in
/// every sum and factor that the element is made of: the sums of the absolute values of their terms,
/// propagated. `chunk_magnitude`: what the chunk form's sum for the same element has instead, where it is
/// another: dg and what is made of it, which that form adds up over the rest of the chunk. Else empty.
/// `spread`: where the terms of a sum cancel, the size of a sum of errors that are independent from term to
/// term is a multiple of it. Of dA_log and ddt_bias, the root of the sum of the squares of what each token
/// adds (over K, the absolute values of what each channel adds); of dbeta = r . e, of what each v adds, |r|
/// E + R |e| (E and R over K, of absolute values). Else empty.
struct GradientTruth {
  tensor::Unfilled hi, lo, magnitude, chunk_magnitude, spread;
  const tensor::Unfilled& magnitude_of(bool chunk_form) const {
    return chunk_form && !chunk_magnitude.empty() ? chunk_magnitude : magnitude;
  }
};
/// By Gradient; those a problem does not have are empty.
using GradientTruths = std::array<GradientTruth, gradient_count>;

/// Why the gradient oracle of such a problem cannot run on the GPU; empty when it can.
std::string gpu_gradient_oracle_unavailable(const Dimensions& dimensions);

/// Bytes that run_gradient_oracle() takes, its result included.
double gradient_oracle_bytes(const Problem& problem, int threads);

/// `chunk_size`: of the chunk form that chunk_magnitude is for. Values may be infinite or NaN where the
/// recurrence overflows fp64; which NaN depends on the processor, and nothing else on the device. Throws
/// Error{environment} when a GPU fails or lacks memory.
GradientTruths run_gradient_oracle(const Problem& problem, const OracleOptions& options,
                                   std::size_t chunk_size, int threads);

}  // namespace kda_check::kda
