// Kernels that are wrong in what they do to a pool of states, and right in what they compute: each breaks
// laws of the life of a state, and no other (tests/selftest/pool_faults.cpp).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kda/pool/pool.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::hypotheses {

/// What a kernel does to a call that it should not: to the slots and rings of its pieces, to the states that
/// it reads, to those that it stores, and to the pool behind that.
struct PoolFault {
  using Pieces = std::vector<kda::PoolPiece>;  ///< stored `nowhere`, or in slot `to`

  const char *name = "", *what = "";
  std::function<void(const kda::PoolCall&, Pieces&)> slots = {};
  std::function<void(const kda::PoolCall&, const Pieces&, tensor::Tensor& states)> reads = {};
  std::function<void(const kda::PoolCall&, const Pieces&, tensor::Tensor& states)> stores = {};
  std::function<void(const kda::PoolCall&, tensor::Tensor& pool)> behind = {};
  /// Of a quantised pool, by the states that are read.
  std::function<kda::Quantiser(const kda::PoolCall&, const Pieces&, const tensor::Tensor& read)> quantiser =
      {};
  bool (*needs)(const kda::PoolCall&) = nullptr;  ///< what other calls lack; null: nothing
  bool is_candidate = true;  ///< of naming; not where it depends on calls before, or is told row by row
};

std::span<const PoolFault> pool_faults();

/// The recurrence, which stores in the pool itself, and has this fault. Of a problem that is no such call:
/// right.
kda::Answer with_pool_fault(const PoolFault& fault, const kda::Problem& problem,
                            const kda::RunOptions& options);

}  // namespace kda_check::hypotheses
