// What computations explain of one cut, and what it took to find out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hypotheses/cuts.hpp"
#include "hypotheses/explained.hpp"
#include "hypotheses/hypothesis.hpp"

namespace kda_check::hypotheses {

struct Scored {
  Hypothesis hypothesis;
  double score = -2;
};

/// How many times as long as others an order of sums takes. Slow ones are tried where nothing else gains.
double cost_of(const kda::Reduction& reduction);

/// Of one search, all cuts together.
struct Effort {
  /// `first`: the first cut; `most`: of what is spent.
  Effort(const Cut& first, double most);
  bool is_spent() const;

  double whole;           ///< tokens and heads of the first cut
  std::size_t tried = 0;  ///< computations
  double most;            ///< of what is spent
  double spent = 0;       ///< in computations on the first cut, in an order of sums that is not slow
};

/// Scores are means of Explained::robustly_by; none is computed twice. The cut and the effort must stay.
/// Throws Error{environment} for want of memory.
class Scores {
 public:
  Scores(const Cut& cut, int threads, Effort& effort);

  const kda::Problem& problem() const { return cut_.part.problem; }
  const Explained& measured() const { return measured_; }
  const Effort& effort() const { return effort_; }

  kda::Tensors prediction(const Hypothesis& hypothesis) const { return prediction(hypothesis, threads_); }

  Explained::Given given_by(const Hypothesis& hypothesis) const;
  /// Many blocks are explained to the bit, some not at all, few in part: what is left is a fault, and no
  /// setting.
  bool is_settled(const Hypothesis& hypothesis) const;
  /// Next to no block is explained: pairs of steps will not change that.
  bool is_hopeless(const Hypothesis& hypothesis) const;

  /// In the order of the list.
  std::vector<Scored> of(std::vector<Hypothesis> list);
  Scored of(Hypothesis hypothesis);
  /// The best first; of those that are as good the first.
  std::vector<Scored> ranked(std::vector<Hypothesis> list);
  static void sort(std::vector<Scored>& list);

 private:
  kda::Tensors prediction(const Hypothesis& hypothesis, int threads) const;

  const Cut& cut_;
  const int threads_;
  Effort& effort_;
  const Explained measured_;
  std::map<std::string, double> known_{};  ///< by identity
};

}  // namespace kda_check::hypotheses
