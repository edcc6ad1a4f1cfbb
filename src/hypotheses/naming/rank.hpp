// Which of several wrong answers an output is: what each explains of its error (docs/explain.md,
// "Explained").
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "hypotheses/naming/naming.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::hypotheses {

/// What is compared of an output: a tensor, or what a head has of it.
struct Unit {
  std::string tensor;
  double limit;  ///< of rms_ratio
  std::vector<double> got, right;
  double weight;            ///< of its elements where two predictions are compared
  bool has_to_stay = true;  ///< where it is right
};
/// Elements by unit.
using UnitValues = std::vector<std::vector<double>>;

struct Candidate {
  std::string fault, meaning;
  std::function<UnitValues()> answer;
};
/// More candidates, made of others: numbers of these, the best first; none where they explain nothing.
using MoreCandidates = std::function<std::vector<Candidate>(const std::vector<std::size_t>& best)>;

/// From when on a candidate is a cause.
struct Thresholds {
  double least_explained;
  std::size_t least_elements = 1;  ///< of what errs: fewer are explained by chance
  double least_near = 2;           ///< explained by the nearest; beyond 1 there is none
  double much_less = 0;            ///< units that err by less of what the worst does have nothing to explain
  double still_right = 2;          ///< limits that what has to stay right may err by
  // Of another cause than the best:
  double hardly_less = 2;                                  ///< explained
  double times_left = std::numeric_limits<double>::max();  ///< of each unit
  std::size_t most_named = std::numeric_limits<std::size_t>::max();
};

/// Sums of squares; a class that differs makes the ratio infinite.
struct Distance {
  numeric::ProductSum difference, expected;

  void add(double got, double wanted);
  double size() const { return difference.root(); }
  double ratio() const;
};
/// Infinite where that is too large for the format.
double in_range_of(numeric::DType dtype, double value);
bool is_right(const Unit& unit);
double size_of(const std::vector<double>& values);

/// Numbers of candidates, those that explain most first.
std::vector<std::size_t> best_first(const std::vector<Unit>& units, const std::vector<Candidate>& candidates,
                                    const Thresholds& thresholds, int threads);

/// The square of what is left, in units of what limits allow; what is not finite has no share.
double squares_left(const std::vector<Unit>& units, const UnitValues& answer);
/// The factor that leaves least: the best of a few, and on by Gauss and Newton.
double fitted_factor(const std::vector<Unit>& units, const std::function<UnitValues(double)>& answer);

/// Puts the causes, or what is nearest, into `naming`. `more` is asked where the best candidate does not
/// explain all.
void rank(const std::vector<Unit>& units, const std::vector<Candidate>& candidates,
          const Thresholds& thresholds, int threads, Naming& naming, const MoreCandidates& more = {});

}  // namespace kda_check::hypotheses
