// Twins: the kernels that this program emulates solve the same problem as an answer, head by head; what their
// errors are says what its errors may be (judge/twin_test.hpp, docs/twins.md).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/answered.hpp"
#include "judge/truth_values.hpp"
#include "judge/twin_test.hpp"

namespace kda_check::engine {

/// What twins say of one tensor of an answer.
struct TwinResult {
  judge::TwinJudgement judgement;
  std::string place;             ///< of judgement.worst, where it is beyond the twins
  std::string likeness;          ///< what stands there instead: "zero", "the values of the token before"
  std::size_t twins = 0;         ///< that it was held against
  double largest_rms_ratio = 0;  ///< of a twin
  /// By how much of 2^-24 exp(A_log) all gates are off, where that explains most of the error.
  std::optional<double> gate_offset = {};
  bool structure_known = false;  ///< the answer says how it computes, and it is one that twins have
};

/// On how many of `threads` they may run: they hold the truth, and on every thread the answers of a family to
/// a query head. Throws Error{input} where that is more than `budget` bytes on one.
int threads_for_twins(const plan::Problem& problem, kda::Pass pass, int threads, std::size_t budget);

/// Answers of one pass through one problem, beside their twins.
class Twins {
 public:
  Twins(const kda::Problem& problem, kda::Pass pass, int threads);
  ~Twins();

  /// To be called before truth(); `answer` must stay. `left_out`: ways of computing that none of its twins
  /// may have; it then counts as one of a form that no twin has.
  void add(const Answered& answer, const plan::Names& left_out);
  bool is_empty() const { return classes_.empty(); }
  /// Elements [begin, begin + values.size()) of the tensor of that name and of this size.
  void truth(std::string_view tensor, std::size_t size, std::size_t begin, std::span<const double> values);
  /// The derived limit on rms_ratio of a tensor: a twin may err as much, however much that is.
  void limit(const Answered& answer, std::string_view tensor, double rms_ratio);
  /// Runs the twins, when the truth is complete.
  void judge();
  /// Null where no three twins are like this answer, or it is not one that has errors: not finite, no rows.
  const TwinResult* result(const Answered& answer, const plan::Names& left_out,
                           std::string_view tensor) const;

 private:
  struct Class;
  void judge(Class& one) const;

  const kda::Problem& problem_;
  const kda::Pass pass_;
  const int threads_;
  std::vector<std::unique_ptr<Class>> classes_;
  judge::TensorTruths truths_;
};

}  // namespace kda_check::engine
