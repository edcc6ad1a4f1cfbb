// How far the stages of a chunk run are from the truth, and where that starts.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "judge/measures/measures.hpp"
#include "kda/truth/stage_oracle.hpp"

namespace kda_check::explain {

/// The stages of one answer. Stages recorded by FLA hold g_cumsum in powers of two.
struct StagesOfAnswer {
  const kda::StageTensors* tensors;  ///< empty ones are not compared
  bool g_cumsum_in_powers_of_two = false;
};

struct StageError {
  kda::Stage stage;
  numeric::DType dtype;
  judge::Measures measures;  ///< over the elements that count: triangles and ragged tails masked
  /// log2 of rms(magnitude) over rms(value): bits that the last sum of this stage cancels.
  double cancelled_bits = 0;
};

std::vector<StageError> stage_errors(const StagesOfAnswer& answer, const kda::StageTruths& truths,
                                     const kda::Problem& problem, std::size_t chunk_size, int threads);

/// The first element, chunk by chunk and stage by stage in the order of the computation, then by head, token
/// and channel, that is off by more than its limit, in units in the last place of its magnitude. The backward
/// pass comes after the whole forward pass and goes from the last chunk to the first.
using StageLimit = std::function<double(kda::Stage stage, numeric::DType storage)>;
struct Divergence {
  kda::Stage stage;
  kda::ChunkPlace chunk;
  std::size_t row, column;  ///< in the chunk; states: key, value
  double got, expected, scaled_ulp, limit;
};
std::optional<Divergence> first_divergence(const StagesOfAnswer& answer, const kda::StageTruths& truths,
                                           const kda::Problem& problem, std::size_t chunk_size,
                                           const StageLimit& limit);

/// The same between two answers, in units of the coarser format: where they stop agreeing.
std::optional<Divergence> first_divergence(const StagesOfAnswer& answer, const StagesOfAnswer& other,
                                           const kda::StageTruths& truths, const kda::Problem& problem,
                                           std::size_t chunk_size, const StageLimit& limit);

}  // namespace kda_check::explain
