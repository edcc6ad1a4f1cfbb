#include "judge/measures/measures.hpp"

#include <algorithm>
#include <cmath>

namespace kda_check::judge {

double DistanceHistogram::lower_end(std::size_t bin) {
  using numeric::bins_per_octave, numeric::distances_apart;
  if (bin < distances_apart) return static_cast<double>(bin);
  const std::size_t octave = (bin - distances_apart) / bins_per_octave,
                    within = (bin - distances_apart) % bins_per_octave;
  return std::ldexp(static_cast<double>(bins_per_octave + within), static_cast<int>(octave) + 1);
}

double DistanceHistogram::percentile(double share) const {
  std::uint64_t total = 0;
  for (const std::uint64_t count : bins_) total += count;
  const double wanted = share * static_cast<double>(total);
  std::uint64_t seen = 0;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen > 0 && static_cast<double>(seen) >= wanted) return lower_end(bin);
  }
  return 0;
}

std::vector<std::uint64_t> DistanceHistogram::by_power_of_two() const {
  std::vector<std::uint64_t> counts;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    if (bins_[bin] == 0) continue;
    int exponent = 0;
    if (bin > 0) std::frexp(lower_end(bin), &exponent);
    counts.resize(std::max(counts.size(), static_cast<std::size_t>(exponent) + 1));
    counts[static_cast<std::size_t>(exponent)] += bins_[bin];
  }
  return counts;
}

std::size_t Measures::mismatched_classes() const {
  std::size_t count = 0;
  for (std::size_t got = 0; got < class_count; ++got)
    for (std::size_t expected = 0; expected < class_count; ++expected)
      if (got != expected) count += classes[got][expected];
  return count;
}

std::size_t Measures::mismatched_where_decided(bool backward) const {
  /// What is lost spreads so far in chunk forms, against the order of tokens, too.
  constexpr std::size_t chunk = 64;
  std::size_t count = 0;
  for (const auto& [index, strand] : strands) {
    const bool is_away = backward ? strand.mismatches.last >= strand.lost.last + chunk
                                  : strand.mismatches.first + chunk <= strand.lost.first;
    if (strand.is_decided() || (strand.mismatched > 0 && is_away)) count += strand.mismatched;
  }
  return count;
}

}  // namespace kda_check::judge
