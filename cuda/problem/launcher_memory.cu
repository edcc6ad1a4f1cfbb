#include "cuda/problem/launcher_memory.cuh"

#include <algorithm>

#include "cuda/device/check.hpp"

namespace kda_check::cuda {

bool wants_stages(const Request& r) {
  return std::any_of(r.stages.begin(), r.stages.end(),
                     [](const Output& stage) { return stage.data != nullptr; });
}

std::vector<TokenRange> sequences_of(const Request& r) {
  std::vector<TokenRange> sequences;
  for (const kda::Sequence& s : r.sequences)
    sequences.push_back({static_cast<std::uint32_t>(s.batch * r.dimensions.T + s.begin),
                         static_cast<std::uint32_t>(s.length())});
  return sequences;
}

Pieces::Pieces(const std::vector<TokenRange>& sequences, std::uint32_t tokens) {
  for (const TokenRange& s : sequences) {
    const auto first = static_cast<std::uint32_t>(all.size());
    for (std::uint32_t t = 0; t < s.count; t += tokens)
      all.push_back({s.first + t, std::min(tokens, s.count - t)});
    of.push_back({first, static_cast<std::uint32_t>(all.size()) - first});
  }
}

std::size_t LauncherMemory::groups_that_fit(const Request& r, std::size_t bytes_of_group, double share) {
  if (wants_stages(r)) return r.dimensions.H;
  // Heads do not meet: those that find no room follow when the others are done.
  const std::size_t most = static_cast<std::size_t>(share * static_cast<double>(free_memory())) /
                           std::max<std::size_t>(bytes_of_group, 1);
  return std::clamp<std::size_t>(most, 1, r.dimensions.H);
}

void LauncherMemory::download_stages(const Request& r) const {
  for (std::size_t s = 0; s < r.stages.size(); ++s)
    if (r.stages[s].data != nullptr)
      memory_[stages_[s]].download(r.stages[s].data,
                                   r.stages[s].elements * numeric::format_of(r.stages[s].dtype).bytes);
}

void LauncherMemory::check_canaries() const {
  for (const DeviceMemory& memory : memory_) memory.check_canaries();
}

}  // namespace kda_check::cuda
