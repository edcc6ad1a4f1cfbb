// What twins answer on the GPU, computed ahead of who measures it: the first of them while the truth is
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
  /// What the GPU is asked for, in the order it will be taken. The problem must stay.
  TwinsAhead(const kda::Problem& problem, std::vector<Emulations> wanted);

  /// To all heads; nothing where it was taken before. Throws as gpu_answers_of does, and then has no more.
  std::optional<AnswersOnGpu> take(const Emulations& wanted);

 private:
  /// All up to wanted_[end].
  void begin(std::size_t end);

  const kda::Problem& problem_;
  const std::vector<Emulations> wanted_;
  std::size_t begun_ = 0, taken_ = 0;
  std::vector<std::promise<AnswersOnGpu>> coming_;  ///< of wanted_
  std::future<void> working_ = {};                  ///< its end waits for it
};

}  // namespace kda_check::engine
