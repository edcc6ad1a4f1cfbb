// What a launcher has in device memory for its kernels: how the sequences are cut, and the arrays between
// kernels, for as many heads as find room.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/device/memory.hpp"
#include "cuda/problem/problem.cuh"
#include "cuda/problem/request.hpp"

namespace kda_check::cuda {

/// The sequences, over tokens numbered through all batch rows.
std::vector<TokenRange> sequences_of(const Request& r);

/// Sequences cut into pieces of `tokens` tokens, in their order.
struct Pieces {
  std::vector<TokenRange> all;
  std::vector<PieceRange> of;  ///< each sequence

  Pieces(const std::vector<TokenRange>& sequences, std::uint32_t tokens);
};

bool wants_stages(const Request& r);

/// An array of T that kernels leave to others, and the pointer that will point to it.
template <class T>
struct WorkArray {
  T** at;
  const char* name;
  std::size_t of_head;  ///< elements; of q and k those of a query head. 0: there is none, `at` is null
  bool of_query = false;
  std::optional<kda::Stage> stage = {};  ///< which it is
};

class LauncherMemory {
 public:
  template <class Element>
  const Element* uploaded(const char* name, const std::vector<Element>& values) {
    const DeviceMemory& memory = hold(DeviceMemory(name, values.size() * sizeof(Element)));
    memory.upload(values.data());
    return memory.as<const Element>();
  }
  /// For as many value heads as fit into that share of the free memory, whole groups, and their number; for
  /// all of them if stages are asked for. The rest is for what else is on its way.
  template <class T>
  int place(const Request& r, const std::vector<WorkArray<T>>& arrays, double share = 0.8) {
    const std::size_t group = r.dimensions.HV / r.dimensions.H;
    std::size_t bytes_of_group = 0;
    for (const WorkArray<T>& array : arrays)
      bytes_of_group += sizeof(T) * array.of_head * (array.of_query ? 1 : group);
    const std::size_t groups = groups_that_fit(r, bytes_of_group, share);
    for (const WorkArray<T>& array : arrays) {
      *array.at = nullptr;
      if (array.of_head == 0) continue;
      if (array.stage) stages_[static_cast<std::size_t>(*array.stage)] = memory_.size();
      const std::size_t elements = array.of_head * (array.of_query ? 1 : group) * groups;
      *array.at = hold(DeviceMemory(array.name, sizeof(T) * elements)).template as<T>();
    }
    return static_cast<int>(groups * group);
  }
  void download_stages(const Request& r) const;
  void check_canaries() const;

 private:
  static std::size_t groups_that_fit(const Request& r, std::size_t bytes_of_group, double share);
  const DeviceMemory& hold(DeviceMemory memory) {
    memory_.push_back(std::move(memory));
    return memory_.back();
  }

  std::vector<DeviceMemory> memory_;
  std::array<std::size_t, kda::stage_count> stages_{};  ///< where in memory_
};

/// Calls body(first_head, heads) for `together` of a problem's value heads after the other.
template <class Body>
void over_heads(const DeviceProblem& p, int together, Body body) {
  for (int first = 0; first < p.HV; first += together)
    body(first, together < p.HV - first ? together : p.HV - first);
}

}  // namespace kda_check::cuda
