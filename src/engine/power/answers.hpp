// A problem solved by a healthy kernel and by its twins, each once, and answers with faults held against the
// twins, as many as are wanted.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decay_directions.hpp"
#include "engine/power/faults.hpp"
#include "engine/twin_heads.hpp"
#include "judge/measures/head_values.hpp"
#include "judge/spread/twin_test.hpp"

namespace kda_check::engine {

/// A healthy kernel of a class, whose answer faults are put into, and what it is held against.
struct HealthyKernel {
  const kda::Variant* variant;
  kda::RunOptions options;  ///< with threads
  std::vector<Twin> twins;  ///< the kernel itself, and others that round as it does; then stable computations
  std::size_t stable = 0;   ///< of these

  numeric::ComputeFormat compute() const {
    return kda::compute_format(*variant, options.dtype, options.arithmetic);
  }
};

/// One that rounds nowhere but where its class may.
HealthyKernel healthy_kernel(const kda::Problem& problem, const kda::Variant& variant,
                             const kda::RunOptions& options);

/// A healthy answer with a share of a fault; of none, itself.
struct Trial {
  const Fault* fault;
  double share;
};

/// One head of the healthy answer, [rows][padded_width].
struct HealthyHead {
  std::vector<float> exact, stored;  ///< before and after it is rounded to its element type
};

class PowerAnswers {
 public:
  /// Of a tensor of the forward pass. Runs them, on the kernel's threads. Problem and kernel must stay.
  /// Throws Error{input} where the memory budget is too small.
  PowerAnswers(const kda::Problem& problem, std::string_view tensor, const HealthyKernel& kernel,
               std::size_t memory_budget);

  const HealthyKernel& kernel() const { return kernel_; }
  bool has_twins() const { return kernel_.twins.size() - kernel_.stable >= judge::fewest_twins; }
  const std::string& name() const { return tensor_; }
  /// In `places` of each (faults.hpp).
  std::vector<Fault> faults(std::size_t places = 3) const;
  const judge::RowLayout& layout() const { return layout_; }
  const tensor::Tensor& healthy() const { return healthy_; }  ///< in fp32
  numeric::DType storage() const { return storage_; }
  HealthyHead head(std::size_t head) const;
  /// That head with a share of a fault, as it is stored.
  std::vector<float> faulty(const HealthyHead& healthy, std::size_t head, const Trial& trial) const;

  tensor::Tensor tensor(const Trial& trial) const;

  /// One for each trial, its ratio in units of what a verdict lets pass; none where fewer than three twins
  /// are fit.
  std::vector<judge::TwinJudgement> judged(const judge::TruthValues& truth,
                                           const std::vector<Trial>& trials) const;
  double stable_rms_ratio(const judge::TruthValues& truth) const;

 private:
  judge::TwinTest measured(const judge::TruthValues& truth, const std::vector<Trial>& trials) const;

  const kda::Problem& problem_;
  const HealthyKernel& kernel_;
  const std::string tensor_;
  tensor::Tensor healthy_;
  numeric::DType storage_;
  judge::RowLayout layout_, layout_of_twins_;
  std::vector<std::vector<tensor::Tensor>> twins_;      ///< by query head
  std::vector<std::optional<DecayDirections>> decays_;  ///< by query head, where slopes judge
};

}  // namespace kda_check::engine
