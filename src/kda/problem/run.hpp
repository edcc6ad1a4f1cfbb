// A run of a variant: what it is asked, and what it answers.
#pragma once

#include <limits>

#include "kda/arithmetic/arithmetic.hpp"
#include "kda/problem/stages.hpp"

namespace kda_check::kda {

/// What a variant answers: o [B,T,HV,V] in the dtype of the run; final_state [N,HV,K,V] (or [N,HV,V,K]) in
/// fp32, or fp64 when the run is in fp64, and so are checkpoints [C,HV,K,V], where they are asked for.
struct Answer {
  tensor::Tensor o, final_state;
  tensor::Tensor checkpoints = {};
  /// All of a pool after a call on it (kda/pool/pool.hpp), of a kernel that stores there itself. Empty:
  /// whoever wants it stores the final states.
  tensor::Tensor pool = {};
  tensor::Tensor scale = {};  ///< of a quantised pool, beside its codes
};

struct RunOptions {
  numeric::DType dtype = numeric::DType::fp32;  ///< fp64 computes in fp64, all others in fp32
  Arithmetic arithmetic;
  std::size_t chunk_size = 64;
  int threads = 1;
  StageHooks stages;  ///< of the chunk form; the token forms have none
  std::size_t memory_limit = std::numeric_limits<std::size_t>::max();  ///< bytes of scratch memory
};

/// The element type of final_state in a run.
constexpr numeric::DType state_dtype(numeric::DType dtype) {
  return dtype == numeric::DType::fp64 ? numeric::DType::fp64 : numeric::DType::fp32;
}

}  // namespace kda_check::kda
