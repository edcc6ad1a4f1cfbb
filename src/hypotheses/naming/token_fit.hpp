// Which numbers a head was given at its tokens, if its rows of o follow from others than they should be: one
// or two a token, which a row of V elements tells.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hypotheses/naming/reference_chunk.hpp"

namespace kda_check::hypotheses {

/// What a token multiplies otherwise.
enum class TokenFactor : std::uint8_t { beta, decay, query, value, key };

struct TokenFit {
  std::string_view name, meaning;  ///< of a cause
  std::vector<TokenFactor> which;
};
std::span<const TokenFit> token_fits();

struct FittedTokens {
  std::vector<std::vector<double>> factors;  ///< [which][tokens], 1 where nothing is wrong
  ExcerptAnswer answer;
};
/// `got`: [tokens][columns]; `noise`: of a row, of its size.
FittedTokens fitted_tokens(const plain::Head& head, const std::vector<double>& got, const TokenFit& fit,
                           double noise);

/// Where rows of a chunk lack what earlier ones wrote, of those with no decay between: exp(G_i - G_j) taken
/// for 0 where a rounding puts it above 1. `first_row`: of the first token in its chunk.
struct LostPairs {
  std::size_t lost = 0, tried = 0;
  ExcerptAnswer answer;
};
LostPairs lost_undecayed_pairs(const plain::Head& head, const std::vector<double>& got,
                               std::size_t chunk_size, std::size_t first_row);

/// The state [K][columns] before the first token that leaves least of `error`, [tokens][columns], of o: what
/// has to be added to that of `head`.
std::vector<double> fitted_start(const plain::Head& head, const std::vector<double>& error);

/// "at t=64 0.31, not 0.52 (that of t=50); ..." of tokens from `begin` on. `right`: what the factors
/// multiply; empty: the factors are said.
std::string text_of(const std::vector<double>& factors, const std::vector<double>& right, std::size_t begin,
                    double tolerance);

}  // namespace kda_check::hypotheses
