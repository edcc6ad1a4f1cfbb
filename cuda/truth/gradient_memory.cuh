// The memory of the gradient oracle on the device.
#pragma once

#include <array>
#include <vector>

#include "cuda/device/memory.hpp"
#include "cuda/truth/gradient_oracle.hpp"
#include "cuda/truth/gradient_problem.cuh"

namespace kda_check::cuda {

/// Parts that are under way, each with memory of its own: one is computed, one comes down, one is handed out.
constexpr std::size_t gradient_slots = 3;

/// Query heads [first_query, first_query + queries) and their value heads.
struct GradientHeads {
  std::size_t first_query, queries, first, values;
};

/// How many of the next `query_heads` the device has memory for. Throws Error{environment} if not for one.
std::size_t gradient_heads_at_once(const GradientOracleRequest& request, std::size_t query_heads);

class GradientMemory {
 public:
  void allocate(const GradientOracleRequest& request, const GradientSchedule& schedule,
                const GradientHeads& heads);
  /// All of it, what parts have for themselves that of a slot, before any part.
  GradientPortion portion(const GradientOracleRequest& request, const GradientSchedule& schedule,
                          const GradientHeads& heads, std::size_t slot) const;
  void check_canaries() const;

 private:
  GradientPortion whole_{};
  std::array<GradientPortion, gradient_slots> slots_{};
  std::vector<DeviceMemory> memory_;
};

}  // namespace kda_check::cuda
