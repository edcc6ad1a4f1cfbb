// Shares of an error. With d the error of an answer and d_a the change that cause a makes on its own, the
// share of a is <d_a, d> / <d, d>: the part of the error that points along the whole. Shares of all causes,
// of what is left without any of them, and of their interaction add up to one.
#pragma once

#include <vector>

#include "kda/oracle.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::analysis {

/// The oracle's answer held whole.
struct HeldOracle {
  struct Values {
    std::vector<double> hi, lo, magnitude;
  };
  Values o, final_state;
};
HeldOracle hold_oracle(const kda::Problem& problem, kda::OraclePrecision precision, int threads);

/// Element by element, in fp64: exact for all formats but fp64, where the low part of the oracle counts too.
using Differences = std::vector<double>;
Differences difference(const tensor::Tensor& got, const HeldOracle::Values& exact);
Differences difference(const tensor::Tensor& got, const tensor::Tensor& expected);

/// <part, whole> / <whole, whole>; 0 where the whole is zero.
double share(const Differences& part, const Differences& whole);
/// The root of the mean of squares.
double rms(const Differences& values);
double rms(const HeldOracle::Values& exact);
std::size_t differing_bits(const tensor::Tensor& a, const tensor::Tensor& b);

}  // namespace kda_check::analysis
