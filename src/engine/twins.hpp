// Twins: correct kernels that this program emulates solve the same problem as an output, head by head; what
// their errors are says what its errors may be (judge/spread/twin_test.hpp, docs/verdicts.md).
#pragma once

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/answered.hpp"
#include "engine/computation.hpp"
#include "engine/decay_directions.hpp"
#include "engine/head_truths.hpp"
#include "engine/twin_tensor.hpp"

namespace kda_check::engine {

class TwinsAhead;
class TwinsOnGpu;

/// Answers of one pass through one problem, beside their twins.
class Twins {
 public:
  /// Told why twins do not compute on the GPU after all; null: they are not to.
  using CpuInstead = std::function<void(const std::string& reason)>;

  /// `heads_at_once`: whose answers there is memory for.
  Twins(const kda::Problem& problem, kda::Pass pass, int threads, std::size_t heads_at_once,
        CpuInstead cpu_instead);
  ~Twins();

  /// To be called before the others; `answer` must stay.
  void add(const Answered& answer, const Computation& computation);
  /// When all are added: what the GPU computes for them begins, if it computes for all heads at once.
  void begin(std::size_t heads_at_once);
  bool is_empty() const { return classes_.empty(); }
  /// Whether a GPU is to measure all of them: who has the truth there need not have it elsewhere.
  bool are_on_gpu() const;
  /// Runs the twins on these heads, while their truth is there.
  void measure(const HeadTruths& truths) { measure(truths, truths.first, truths.count); }
  /// Measures the heads that were not.
  void judge(TruthSource& truths);
  /// Of a tensor of an answer. Null where no three twins are like it, or it is not one that has errors: not
  /// finite, no rows.
  const judge::TwinJudgement* result(const tensor::Tensor& tensor) const;

  /// What the stable computations of its class read; also where there is no result: in gradients of
  /// parameters, and of too few errors. 0: none is known.
  double stable_rms_ratio(const tensor::Tensor& tensor) const;

 private:
  struct Class;
  void measure(const HeadTruths& truths, std::size_t first, std::size_t count);
  /// `decays`: of the heads of `truths` from `first` on.
  void measure_here(Class& one, const HeadTruths& truths, std::size_t first,
                    std::vector<std::optional<DecayDirections>>& decays);
  bool is_for_gpu(const Class& one) const;
  /// Whether this class will be when all that is `measuring` is done.
  bool is_measured_on_gpu(Class& one, TwinsOnGpu& gpu, std::deque<std::future<void>>& measuring);
  /// body(), and true unless the GPU fails: from then on all is the CPU's.
  bool tried_on_gpu(const std::function<void()>& body);
  void conclude();

  const kda::Problem& problem_;
  const kda::Pass pass_;
  const int threads_;                    ///< each with answers of a head
  const int runs_at_once_;               ///< of a head, too: forwards a run has but its answer
  const kda::RunOptions decay_options_;  ///< of who is asked for slopes along decays
  CpuInstead cpu_instead_;
  std::vector<std::unique_ptr<Class>> classes_;
  TwinResults results_ = {};
  std::unique_ptr<TwinsAhead> ahead_;  ///< of classes_
};

}  // namespace kda_check::engine
