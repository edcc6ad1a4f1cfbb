// How many units in the last place of its precision an answer may lose: what derived limits begin with
// (docs/verdicts.md).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "judge/measures/tensor_axes.hpp"
#include "kda/bounds/gate_statistics.hpp"
#include "numeric/formats.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::judge {

/// How an answer was computed, as far as its error depends on it.
enum class Form : unsigned char {
  recurrence,  ///< token by token
  chunk,       ///< with sums of gates over chunks
  unknown,     ///< somebody else's: either
};

/// Operands of tf32, bf16 or fp16, added up in fp32.
bool is_narrow(numeric::ComputeFormat compute);

/// Of one element, relative to its magnitude. `persistence`: tokens that it was carried over; `rounding`: the
/// E of sums of gates (kda/bounds/gate_statistics.hpp).
double units_lost(numeric::ComputeFormat compute, Form form, double persistence, double rounding);

/// Over the elements of a tensor.
struct UnitsLost {
  double rms = 0;      ///< each as much as its size counts in the tensor's rms
  double largest = 0;  ///< of those that decide the worst element

  /// The same everywhere.
  UnitsLost(double everywhere) : rms(everywhere), largest(everywhere) {}
  UnitsLost(double rms_of_all, double largest_of_all) : rms(rms_of_all), largest(largest_of_all) {}
};

/// Adds up one tensor of an answer, piece by piece: every token and head, and every row of a state, loses its
/// own units, and of the rms of the whole it has the share that its values have.
class UnitsSum {
 public:
  /// `gates`: of the answer's chunk size, with the rows of `problem`. Both must stay.
  UnitsSum(std::string_view tensor, const tensor::Shape& shape, const kda::Problem& problem,
           const kda::GateStatistics& gates, numeric::ComputeFormat compute, Form form);

  /// Elements [begin, begin + count) of what is expected: whole heads of tokens, whole states; each head's in
  /// their order.
  void add(std::size_t begin, std::size_t count, const double* values, int threads = 1);
  /// dA_log and ddt_bias, sums over tokens: `dg` as the tensor says how much each of these counts. Empty: as
  /// if the worst were all.
  void add_sums(std::size_t count, const double* values, std::span<const double> dg, int threads = 1);
  UnitsLost result() const;

 private:
  enum class Kind : unsigned char { narrow, output, state, gradient, state_gradient, parameter };
  /// What elements have in common.
  struct Row {
    double persistence = 0;  ///< where errors of both factors of a product add up
    double longest = 0;      ///< of either factor, both of which magnitudes count
    double rounding = 0;
  };
  /// Root mean square of units, each weighted by the energy of what loses them.
  class Mean {
   public:
    void add(double units, const numeric::ProductSum& energy);
    void add(const Mean& other);
    /// `otherwise`: of nothing but zeros.
    double rms(double otherwise) const;

   private:
    numeric::ProductSum lost_, energy_;
    bool is_unbounded_ = false;
  };

  double units_of(const Row& row) const { return units_lost(compute_, form_, row.persistence, row.rounding); }
  void add_row(std::size_t head, const Row& row, const numeric::ProductSum& energy);
  void add_state(std::size_t begin, const double* values);
  Row row_of(std::size_t token, std::size_t value_head) const;
  Row row_of_group(std::size_t row) const;
  std::size_t sequence_of(std::size_t token) const;

  const kda::Problem& problem_;
  const kda::GateStatistics& gates_;
  const numeric::ComputeFormat compute_;
  const Form form_;
  const TensorAxes axes_;
  const kda::Dimensions d_;
  const std::vector<kda::Sequence> sequences_;
  bool of_state_ = true, of_gradient_ = true;  ///< what a token's element is a sum over
  bool of_checkpoints_ = false;
  Kind kind_;
  // By head: they may come in any order.
  std::vector<Mean> means_;
  std::vector<double> largest_;
};

}  // namespace kda_check::judge
