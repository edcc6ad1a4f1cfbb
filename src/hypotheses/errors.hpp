// Errors of whole answers, held element by element, and shares of one along another.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kda/truth/gradient_oracle.hpp"
#include "tensor/unfilled.hpp"

namespace kda_check::hypotheses {

/// The oracle's answer held whole, without its magnitudes: the tensors of one pass by name.
struct ExactValues {
  tensor::Unfilled hi, lo;
};
using HeldOracle = std::map<std::string, ExactValues, std::less<>>;
/// o and final_state.
HeldOracle hold_oracle(const kda::Problem& problem, const kda::OracleOptions& options, int threads);
/// The gradients that a problem has.
HeldOracle hold_gradient_oracle(const kda::Problem& problem, const kda::OracleOptions& options,
                                std::size_t chunk_size, int threads);

/// Element by element, in fp64: exact for all formats but fp64, where the low part of the oracle counts too.
using Differences = std::vector<double>;
Differences difference(const tensor::Tensor& got, const ExactValues& exact);
Differences difference(const tensor::Tensor& got, const tensor::Tensor& expected);

/// The elements themselves.
Differences values(const tensor::Tensor& tensor);

/// The part of `whole` that `part` makes: <part, whole> / <whole, whole>. Shares of parts that add up to the
/// whole add up to 1. 0 where the whole is zero.
double share(const Differences& part, const Differences& whole);
/// The root of the mean of squares.
double rms(std::span<const double> values);
double rms(const ExactValues& exact);
/// Elements; all of them where type or shape is another.
std::size_t differing_bits(const tensor::Tensor& a, const tensor::Tensor& b);

}  // namespace kda_check::hypotheses
