// What the inputs of a problem alone say about a run of `chunk`: which ways to form the decay and the inverse
// overflow, which are silently wrong, how much accuracy the inverse costs. No kernel of the forward pass
// runs. Gates are read and summed in the arithmetic of the kernels, so that what is said about exponents is
// exact at the edges.
//
// Not forecast: values that grow because v, the states or an expanding recurrence are large (`DecayRate`
// bounds the last).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "explain/growth/head_scan.hpp"
#include "kda/problem/problem.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::explain {

enum class Outlook : unsigned char {
  safe,
  masked,  ///< infinite only in elements that the mask removes: the forward pass is finite, a backward is not
  flushes,  ///< loses whole weights without a trace when results below the normal range are flushed to zero
  wrong,    ///< finite, but not the answer
  breaks,   ///< the answer is not finite
};
std::string_view name_of(Outlook outlook);

struct DecayForecast {
  std::string form;  ///< "anchor-first:16"
  kda::Arithmetic arithmetic;
  Outlook outlook = Outlook::safe;
  ExponentRange range;
  FactorLimits limits;
  double margin = 0;  ///< limits.overflow - range.largest, or for `clamp` to the clamp
};

/// Formats of the operands of the products that form an inverse.
inline constexpr std::array<std::string_view, 4> operand_formats = {"fp32", "tf32", "bf16", "fp16"};

struct InverseForecast {
  std::string form;  ///< "doubling:16"
  kda::Arithmetic arithmetic;
  Outlook outlook = Outlook::safe;
  double largest = 0;             ///< |entry| met on the way
  double amplification = 1;       ///< of a relative error of the operands
  std::array<double, 4> error{};  ///< by operand_formats, relative to the largest entry of the inverse
  std::array<bool, 4> overflows{};
  std::optional<Place> divergence;  ///< doubling: where its errors, fed back through the state, overflow
  double error_in_run = 0;          ///< with the operands of the run that is forecast
};

struct Forecast {
  numeric::DType dtype;
  std::size_t chunk_size;
  kda::Arithmetic selected;
  std::optional<CommonFailure> chunk_forms;  ///< the first one that fails every form of `chunk`
  std::optional<CommonFailure> token_forms;  ///< the first one that fails `naive` and `recurrent`
  std::vector<DecayForecast> decays;         ///< all forms, with the storage of `selected`
  std::vector<InverseForecast> inverses;
  DecayForecast selected_decay;
  InverseForecast selected_inverse;
  InverseGrowth growth;
  std::vector<DecayRate> heads;

  /// A run of `chunk` with `selected`, flushing if its exponential does.
  Outlook outlook() const;
};

/// The dtype, the chunk size, the arithmetic and the threads of `options` are those of the run that is
/// forecast. Results do not depend on the number of threads.
Forecast forecast(const kda::Problem& problem, const kda::RunOptions& options);

}  // namespace kda_check::explain
