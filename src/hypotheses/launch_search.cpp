#include "hypotheses/launch_search.hpp"

#include <algorithm>
#include <vector>

#include "base/threads/parallel.hpp"
#include "kda/head/launch_choices.hpp"

namespace kda_check::hypotheses {

namespace {

class LaunchSearch {
 public:
  LaunchSearch(const kda::Variant& variant, const RecordedPart& part, const kda::RunOptions& options)
      : variant_(variant), part_(part), options_(options) {}

  /// One part after the other, as they hardly meet, and once more.
  kda::Launch run() {
    best_ = options_.arithmetic.launch;
    if (part_.recorded.empty()) return best_;
    const kda::LaunchChoices choices = kda::launch_choices(part_.problem, options_.arithmetic, part_.pass);
    best_ = kda::filled_in(best_, choices);
    least_ = differing(best_, options_.threads);
    for (int round = 0; round < 2 && least_ > 0; ++round) {
      try_all(&kda::Launch::reverse_scan_rows, choices.reverse_scan_rows);
      try_all(&kda::Launch::wy, choices.wy);
      try_all(&kda::Launch::intra_warps, choices.intra_warps);
      try_all(&kda::Launch::norm_gradient, choices.norm_gradient);
      try_all(&kda::Launch::gate_warps, choices.gate_warps);
      // Backwards o and final_state may have left some of these open.
      try_all(&kda::Launch::scan_rows, choices.scan_rows);
      try_all(&kda::Launch::norm, choices.norm);
      try_all(&kda::Launch::pairs, choices.pairs);
      try_all(&kda::Launch::substitution, choices.substitution);
    }
    return best_;
  }

 private:
  /// The first of the best.
  template <class Part>
  void try_all(Part kda::Launch::*part, const std::vector<Part>& choices) {
    if (least_ == 0) return;
    std::vector<kda::Launch> launches;
    for (const Part& choice : choices) {
      if (best_.*part == choice) continue;
      launches.push_back(best_);
      launches.back().*part = choice;
    }
    std::vector<std::size_t> counts(launches.size());
    parallel_for(launches.size(), options_.threads,
                 [&](std::size_t i, int) { counts[i] = differing(launches[i], 1); });
    const auto least = std::ranges::min_element(counts);
    if (least == counts.end() || *least >= least_) return;
    best_ = launches[static_cast<std::size_t>(least - counts.begin())];
    least_ = *least;
  }

  std::size_t differing(const kda::Launch& launch, int threads) const {
    kda::RunOptions options = options_;
    options.arithmetic.launch = launch;
    options.threads = threads;
    return differing_bits(
        as_recorded(kda::run_pass(part_.pass, variant_, part_.problem, options), part_.recorded),
        part_.recorded);
  }

  const kda::Variant& variant_;
  const RecordedPart& part_;
  const kda::RunOptions& options_;
  kda::Launch best_;
  std::size_t least_ = 0;  ///< elements that differ under it
};

}  // namespace

bool has_open_launch(const kda::Variant& variant, const kda::RunOptions& options) {
  return variant.axes.chunk && kda::is_triton(options.arithmetic.reduction) &&
         options.arithmetic.launch == kda::Launch{};
}

kda::Launch launch_of(const kda::Variant& variant, const RecordedPart& part, const kda::RunOptions& options) {
  return LaunchSearch(variant, part, options).run();
}

}  // namespace kda_check::hypotheses
