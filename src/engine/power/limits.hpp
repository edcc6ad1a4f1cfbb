// What derived limits alone see of faults, element by element: no answer has to be made for them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/power/answers.hpp"
#include "judge/limits.hpp"
#include "judge/measures/truth_values.hpp"
#include "kda/truth/oracle.hpp"

namespace kda_check::engine {

/// The truth of a tensor, and the exponents of the units that scaled_ulp counts in.
struct ExactTensor {
  ExactTensor(std::size_t size, bool in_fp64) : values(size, in_fp64), exponents(size) {}
  judge::TruthValues values;
  std::vector<std::int16_t> exponents;
};
/// Puts what the oracle hands out of a tensor of the forward pass there. `exact`, of its size, must stay.
kda::OracleSink into(ExactTensor& exact, std::string_view tensor, const kda::Dimensions& dimensions);

/// rms_ratio and scaled_ulp of healthy + share d.
class PowerOfLimits {
 public:
  PowerOfLimits(const PowerAnswers& answers, const ExactTensor& exact,
                const std::vector<judge::Limit>& limits);

  // Of the healthy answer.
  bool is_finite() const { return is_finite_; }  ///< and the truth
  double rms_ratio() const;
  double scaled_ulp() const { return scaled_ulp_; }

  /// The least share that breaks a limit, that on single elements by so much; none where no share does.
  std::optional<double> least(const Fault& fault, double times_ulp_limit = 1) const;

 private:
  template <class Use>
  void over(std::size_t head, const Fault* fault, const Use& use) const;

  const PowerAnswers& answers_;
  const ExactTensor& exact_;
  const judge::RowLayout& layout_;
  double rms_limit_ = 0, ulp_limit_ = 0;
  double errors_ = 0, truth_ = 0, scaled_ulp_ = 0;  ///< sums of squares; the largest
  bool is_finite_ = true;
};

}  // namespace kda_check::engine
