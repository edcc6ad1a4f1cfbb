// What makes the difference between two outputs of one problem: the settings in which their computations
// differ.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hypotheses/hypothesis.hpp"
#include "hypotheses/recorded.hpp"

namespace kda_check::hypotheses {

/// An output and the computation that it is taken for.
struct Computed {
  const RecordedOutput* output;
  const Hypothesis* hypothesis;
  const Hypothesis* forward = nullptr;  ///< of gradients: what computed o, where that is known
};

/// A setting of the first output that the second has otherwise. Shares are of y_a - y_b: those of all steps
/// and what is left of both outputs add up to 1.
struct Step {
  std::string setting;  ///< "bf16@v_new", "decay=pair", "outputs in bf16", "variant chunk"
  std::string instead;  ///< what the second has: "none@v_new"
  double share = 0;     ///< the mean over the tensors that differ
  std::vector<std::pair<std::string, double>> of_tensors{};
};

struct Between {
  std::vector<Step> steps;                  ///< from b to a
  std::vector<std::string> without_effect;  ///< settings of a that b has otherwise, and that move no bit here
  double left_of_a = 0, left_of_b = 0;      ///< shares that neither's computation gives
  double difference = 0;  ///< rms of y_a - y_b over that of the truth, of the tensor where it is largest
  std::size_t differing = 0, elements = 0;  ///< bits
};

/// On the cut that `a` is identified on. The form, the format of outputs and a state that gradients start
/// from come first; then the setting that brings what is reached nearest to the computation of `a`, again and
/// again. Elements where an output is not finite are left out. Both are of one problem and pass and have the
/// same tensors. Throws Error{environment} for want of memory.
Between between(const Computed& a, const Computed& b, int threads);

/// The computation that makes no error, as `like` and with outputs in `dtype`: what is in fp64, or is the
/// truth rounded, is taken for it.
Hypothesis exact_like(Hypothesis like, numeric::DType dtype);

}  // namespace kda_check::hypotheses
