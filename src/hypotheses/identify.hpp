// Which computation gives an output: a search over settings that climbs what they explain of its error.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "hypotheses/climb.hpp"
#include "hypotheses/hypothesis.hpp"
#include "hypotheses/licence.hpp"
#include "hypotheses/recorded.hpp"
#include "hypotheses/search_limits.hpp"
#include "hypotheses/shares.hpp"

namespace kda_check::hypotheses {

struct SearchSettings {
  int threads = 1;
  std::vector<std::string> without_presets{};  ///< that are no starts
  const Hypothesis* forward = nullptr;         ///< of gradients: what computed o
  const Hypothesis* declared = nullptr;        ///< what is said of the output: the first start
  std::optional<Licence> licence{};            ///< what it is not to round is told
  double most_spent = hypotheses::most_spent;  ///< in computations on the first cut
  bool starts_only = false;                    ///< no search, and nothing beside the computation
  bool shares = true;                          ///< what each setting costs is asked, too
  bool ties = true;                            ///< what cannot be told apart is asked, too
  bool advise = false;                         ///< what to make finer first is asked, too
  Progress progress{};
};

/// How a search ended.
enum class Identity : std::uint8_t {
  identified,      ///< it explains the error on both cuts, or so many blocks that what is left is a fault's
  stranger,        ///< the best explains too little
  too_few_errors,  ///< to tell computations apart: starts alone were tried, and none explains them
  no_errors,       ///< the output is the truth, rounded
};

struct Identification {
  Identity end = Identity::no_errors;
  Hypothesis hypothesis;  ///< the best; of no_errors none
  double explained = 0;   ///< on the first cut (docs/explain.md)
  std::optional<double>
      again{};        ///< on the second one, of other heads and later tokens; none where the first is all
  double left = 1;    ///< share of the error that it leaves, of the tensor and the cut where that is most
  double blocks = 0;  ///< share of blocks that are explained to a hundredth, of the cut where it is smaller
  bool gives_most = false;     ///< of every tensor to the bit, on both cuts: the rest is a fault
  std::size_t errors = 0;      ///< elements of the first cut that have one
  std::size_t not_finite = 0;  ///< elements of the first cut that are NaN or infinite, and the truth is not
  double relative_error = 0;   ///< of the tensor where it is largest
  std::size_t differing = 0, elements = 0;          ///< bits on the first cut
  std::size_t tried = 0;                            ///< computations
  std::vector<std::string> unlicensed{};            ///< roundings of its own, where they tell
  bool is_licensed = true;                          ///< no: it has some, whether they tell or not
  bool is_as_declared = true;                       ///< no: what is said of it explains clearly less
  std::vector<std::string> cannot_be_told_apart{};  ///< other values of settings that explain as much, if asked
  std::vector<Advice> advice{};                     ///< where it is identified, and asked
  std::vector<Share> shares{};  ///< what each setting costs, where it is identified, and asked
};

/// Throws Error{environment} for want of memory. The same for any number of threads.
Identification identify(const RecordedOutput& recorded, numeric::DType dtype, const SearchSettings& settings);

}  // namespace kda_check::hypotheses
