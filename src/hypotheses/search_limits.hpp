// What decides in a search. Calibrated by tests/hypotheses/identify.cpp (docs/explain.md, "How often it is
// right").
#pragma once

#include <cstddef>
#include <string_view>

namespace kda_check::hypotheses {

inline constexpr std::size_t fewest_errors =
    2000;  ///< of noise 2000 elements and e^7 ways explain 2 ln(ways) / n = 0.7 %
inline constexpr std::size_t fewest_errors_of_starts = 64;  ///< that explain them to identified_from
inline constexpr double identified_from = 0.9;              ///< explained, on both cuts
inline constexpr double exact_from = 0.99999;               ///< nothing is left to search for
inline constexpr double settled_from = 0.3;                 ///< blocks explained to the bit, to end a search
inline constexpr double partly_explained = 0.05;            ///< blocks, then
inline constexpr double good_from = 0.995;                  ///< other starts need not be climbed
inline constexpr double enough_of_hope = 0.5;               ///< of what a step gained before
inline constexpr double most_spent = 5000;  ///< a bound in seconds would make words depend on the load
inline constexpr std::size_t batch = 24;    ///< steps that are tried together
inline constexpr std::size_t batch_of_pairs = 240;
inline constexpr double screened_out = -2;  ///< in place of a score
/// Settings that bring roundings to bear that nothing came past.
inline constexpr std::string_view waking_keys[] = {
    "decay=", "inverse=", "tail=", "delta=", "beta=", "scale=", "output=", "update="};
inline constexpr double single_gain = 5e-4, pair_gain = 1e-3;  ///< that a step must gain
inline constexpr double tie = 1e-4;  ///< what settings that cannot be told apart differ in
/// A step that loses more of the smallest cut is not tried on the whole one: of what is explained there, of
/// what is not.
inline constexpr double lost_of_explained = 5e-3, lost_of_rest = 5e-2;
inline constexpr std::size_t most_starts = 60;                       ///< that are tried on the whole cut
inline constexpr double far_of_explained = 5e-2, far_of_rest = 0.3;  ///< the same of a start, below the best
inline constexpr double launch_from = 0.5;      ///< below it a launch is not what is missing
inline constexpr double hopeless_below = 0.05;  ///< blocks of which half is explained
inline constexpr double order_of_sums = 0.05;   ///< explained by it alone, in 16 bits
inline constexpr double as_good = 0.01;         ///< between starts
inline constexpr double most_of_licensed = 0.5,
                        most_of_narrow = 1;  ///< of a rounding that is not licensed: over the noise
inline constexpr std::size_t climbed = 4;    ///< starts
inline constexpr std::size_t paired = 9;     ///< single steps

}  // namespace kda_check::hypotheses
