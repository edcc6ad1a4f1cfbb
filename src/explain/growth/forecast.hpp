// Which ways to form the decay and the inverse break in a run of `chunk`, which are silently wrong, how much
// accuracy the inverse costs. By how much and where a factor overflows the inputs say; whether the answer is
// finite, a run, wherever they leave that open.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "explain/growth/head_scan.hpp"
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

/// Where the answer of a run first is not finite.
struct Lost {
  std::string_view tensor;  ///< "o", "final_state"
  Place place;              ///< row and channel unused; of a state, the sequence's last chunk
};

struct DecayForecast {
  std::string form;  ///< "anchor-first:16"
  Outlook outlook = Outlook::safe;
  std::optional<Lost> lost;  ///< as a run says; none: factors alone say that it breaks
  ExponentRange range;
  FactorLimits limits;
  double margin = 0;  ///< limits.overflow - range.largest, or for `clamp` to the clamp
};

/// Formats of the operands of the products that form an inverse.
inline constexpr std::array<std::string_view, 4> operand_formats = {"fp32", "tf32", "bf16", "fp16"};

struct InverseForecast {
  std::string form;  ///< "doubling:16"
  Outlook outlook = Outlook::safe;
  std::optional<Lost> lost;
  double largest = 0;             ///< |entry| met on the way
  double amplification = 1;       ///< of a relative error of the operands
  std::array<double, 4> error{};  ///< by operand_formats, relative to the largest entry of the inverse
  std::array<bool, 4> overflows{};
  bool overflows_in_run = false;  ///< with the operands of the run that is forecast
  double error_in_run = 0;
};

struct Forecast {
  numeric::DType dtype;
  std::size_t chunk_size;
  kda::Arithmetic selected;
  std::optional<Lost> chunk_forms;    ///< where the stable form of `chunk` is lost, and with it every other
  std::optional<Lost> token_forms;    ///< of `recurrent`
  std::vector<DecayForecast> decays;  ///< all forms, with the storage of `selected`
  std::vector<InverseForecast> inverses;  ///< the same, between factors that decay
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

/// The decay of that run alone, without the run.
DecayForecast decay_forecast(const kda::Problem& problem, const kda::RunOptions& options);

/// The chunks of `rows` tokens in which o is not finite, by sequence and head.
std::vector<Place> lost_chunks(const kda::Problem& problem, const tensor::Tensor& o, std::size_t rows);

}  // namespace kda_check::explain
