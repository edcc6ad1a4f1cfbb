// Correct computations whose errors say what those of an output may be: its twins (docs/verdicts.md).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hypotheses/hypothesis.hpp"

namespace kda_check::hypotheses {

/// One that is run beside an output.
struct Twin {
  const kda::Variant* variant;
  kda::RunOptions options;  ///< on one thread
};

struct Spread {
  std::vector<Twin> twins;   ///< what the test compares with
  std::vector<Twin> stable;  ///< lose no digits by their algorithm: what the bounds are measured by

  void add(Spread other);  ///< what is new of it
};

/// The twins, then the stable computations, as judge::TwinSetting wants them.
std::vector<Twin> in_one_list(Spread spread);

/// The same roundings, other orders of sums, exponentials and contractions. The first twin is the computation
/// itself; a variant of a GPU is emulated by that of the CPU. `bounds`: what the class licenses of it.
/// `is_ours`: the first twin gives its bits, and few others do.
Spread spread_around(const Hypothesis& known, const Hypothesis& bounds, const kda::Problem& problem,
                     bool is_ours = false);

/// All algorithms of a class: products in `compute`, o stored in `dtype`. `segments`: the parts that chunk
/// forms compute a sequence in. `long_chunks`: in those of 128 and 256 tokens, too.
Spread spread_of_class(const kda::Problem& problem, kda::Pass pass, numeric::ComputeFormat compute,
                       numeric::DType dtype, const kda::Segments& segments = {}, bool long_chunks = false);

/// Those whose stages are those of an output in chunks of that size. In 16 bits too a stage is fp32, the sum
/// of the gates, where the orders of sums tell.
std::vector<Twin> twins_of_stages(const kda::Problem& problem, numeric::ComputeFormat compute,
                                  numeric::DType dtype, std::size_t chunk_size);

}  // namespace kda_check::hypotheses
