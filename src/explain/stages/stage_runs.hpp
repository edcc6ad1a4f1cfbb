// The intermediates of the chunk form as runs tell them, and as they come out when those before them are
// exact.
#pragma once

#include <string>

#include "explain/stages/stage_errors.hpp"
#include "judge/limits.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::explain {

/// What is compared of one answer's stages.
struct StagedAnswer {
  numeric::ComputeFormat compute = numeric::ComputeFormat::fp32, backward_compute = compute;
  bool recorded = false;
  kda::StageTensors tensors;
  bool g_cumsum_in_powers_of_two = false;
  std::vector<StageError> own;  ///< given exact inputs; empty when recorded

  StagesOfAnswer view() const { return {&tensors, g_cumsum_in_powers_of_two}; }
};

/// What the stages of a problem are judged by.
struct StageSetting {
  const kda::Problem& problem;
  const kda::StageTruths& truths;
  const kda::GateStatistics& gates;
  std::size_t chunk_size;
  int threads;
  kda::Passes passes = kda::Passes::forward;
};

/// Runs a variant of the chunk form and keeps its stages; once more with every stage given exactly on
/// `replay`, the same variant on the CPU; null: that is not to be had.
StagedAnswer staged(const StageSetting& setting, const kda::Variant& variant, const kda::Variant* replay,
                    kda::RunOptions options);

/// What the chunk form may lose in one element of a stage, in units of its magnitude.
double agreement_limit(const StagedAnswer& answer, kda::Stage stage, numeric::DType storage,
                       const StageSetting& setting);

/// "Aqk, chunk 3 (b=0 t=192..255), h=1, token 200, column 7: ..." and the values.
std::string describe(const Divergence& divergence);

/// Stages that the arithmetic rounds to 16 bits, in that format, unless that would change a value: ULPs are
/// then counted in it.
void store_as_rounded(kda::StageTensors& tensors, const kda::CastPoints& casts);

/// Elements of all stages; bytes that stages and their truth take.
std::size_t stage_elements(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes);
std::size_t stage_bytes(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes);

/// Throws Error{input} when stages and their truth would take more than `budget` bytes.
void check_stage_memory(const kda::Problem& problem, std::size_t chunk_size, std::size_t budget,
                        kda::Passes passes = kda::Passes::forward);

}  // namespace kda_check::explain
