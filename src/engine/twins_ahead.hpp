// What twins answer on the GPU, computed ahead of who measures it: the first family while the truth is
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
  TwinsAhead(const kda::Problem& problem, std::vector<const std::vector<Twin>*> families);

  /// To all heads; nothing where it was taken before. Throws as gpu_answers_of does, and then has no more.
  std::optional<FamilyAnswers> take(const std::vector<Twin>& family);

 private:
  void begin_next();

  const kda::Problem& problem_;
  const std::vector<const std::vector<Twin>*> families_;
  std::size_t next_ = 0;
  std::future<FamilyAnswers> coming_ = {};  ///< of families_[next_]; its end waits for it
};

}  // namespace kda_check::engine
