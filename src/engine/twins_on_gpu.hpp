// Twins that a GPU computes and holds against the truth: their answers do not leave it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/head_truths.hpp"
#include "engine/twin_tensor.hpp"
#include "engine/twins_ahead.hpp"

namespace kda_check::engine {

/// The recurrence with longer decays, for slopes along these; `options`: kda::scaled_decay_options().
Emulations decay_emulations(const kda::Problem& problem, const kda::RunOptions& options);

/// Of query heads [first, first + count), while their truth is there.
class TwinsOnGpu {
 public:
  /// `ahead`: what is computed already; may be null. All must stay.
  TwinsOnGpu(const kda::Problem& problem, const kda::RunOptions& decay_options, TwinsAhead* ahead,
             const HeadTruths& truths, std::size_t first, std::size_t count, int threads)
      : problem_(problem),
        decay_options_(decay_options),
        ahead_(ahead),
        truths_(truths),
        first_(first),
        count_(count),
        threads_(threads) {}

  // Both throw Error{environment} where the GPU fails or lacks memory.

  /// What twins answer, when it is there; the truth goes up meanwhile. To be asked for in the order of
  /// `ahead`.
  AnswersOnGpu answers(const std::vector<TwinTensor>& tensors, const std::vector<Twin>& family,
                       kda::Pass pass, bool has_decay_slopes);
  /// While others are asked for, too.
  void measure(std::vector<TwinTensor>& tensors, std::vector<TwinParameter>& parameters,
               const AnswersOnGpu& twins, bool has_decay_slopes);

 private:
  AnswersOnGpu answers_of(const Emulations& wanted);
  void measure(TwinTensor& tensor, const AnswersOnGpu& twins, bool has_decay_slopes);
  void measure(TwinParameter& parameter, const AnswersOnGpu& twins) const;
  kda::RowTensor truth_of(const TwinTensor& tensor);
  void add_directions(const TwinTensor& tensor, judge::HeadsOnGpu& values) const;

  const kda::Problem& problem_;
  const kda::RunOptions& decay_options_;
  TwinsAhead* const ahead_;
  const HeadTruths& truths_;
  const std::size_t first_, count_;
  const int threads_;
  std::optional<AnswersOnGpu> decays_ = {};
  std::mutex uploading_ = {};
  std::map<std::string, kda::TensorOnGpu> uploaded_ = {};  ///< the truth, by tensor
};

}  // namespace kda_check::engine
