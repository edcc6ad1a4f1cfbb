// What twins answer on the GPU, computed ahead of who measures it: the first two families while the truth is
// computed and compared, each other while the one before it is measured.
#pragma once

#include <cstddef>
#include <future>
#include <optional>
#include <vector>

#include "engine/twin_heads.hpp"

namespace kda_check::engine {

class TwinsAhead {
 public:
  /// Families that the GPU has, in the order they will be taken. They and the problem must stay.
  TwinsAhead(const kda::Problem& problem, Families families);

  /// To all heads; nothing where it was taken before. Throws as gpu_answers_of does, and then has no more.
  std::optional<FamilyAnswers> take(const std::vector<Twin>& family);

 private:
  /// All up to families_[end].
  void begin(std::size_t end);

  const kda::Problem& problem_;
  const Families families_;
  std::size_t begun_ = 0, taken_ = 0;
  std::vector<std::promise<FamilyAnswers>> coming_;  ///< of families_
  std::future<void> working_ = {};                   ///< its end waits for it
};

}  // namespace kda_check::engine
