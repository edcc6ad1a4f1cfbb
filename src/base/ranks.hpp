// Processes that share a run: rank 0 plans, judges and reports, the others compute what it hands them. Who
// carries the bytes is behind this (mpi/mpi.hpp).
#pragma once

#include <cstddef>

namespace kda_check {

/// All functions throw Error{environment} when another process cannot be reached.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;

  virtual std::size_t rank() const = 0;
  virtual std::size_t count() const = 0;
  /// The `bytes` bytes of every rank, in the order of ranks, to all: count() times `bytes` in `all`.
  virtual void gather_all(const void* own, std::size_t bytes, void* all) = 0;
  virtual void send(std::size_t to, const void* data, std::size_t bytes) = 0;
  virtual void receive(std::size_t from, void* data, std::size_t bytes) = 0;
};

}  // namespace kda_check
