// Stages of the chunk form (kda/problem/stages.hpp) in the shape that errors are added up in.
#pragma once

#include <cstddef>

#include "judge/measures/head_values.hpp"
#include "kda/problem/stages.hpp"

namespace kda_check::judge {

/// Of a stage in chunks of that size. Of h and dh a row is a channel of the key of one chunk; of triangles
/// columns up to the token's own count.
RowLayout stage_row_layout(kda::Stage stage, const kda::Problem& problem, std::size_t chunk_size);

/// Makes zeros of what does not count and of what has no error: where the truth is not finite.
/// All are [rows][padded_width(width)].
void clear_what_does_not_count(std::vector<double>& truth, std::vector<std::vector<float>>& fields,
                               const RowLayout& layout);

/// Natural sums of log gates in powers of two: the truth exactly, fields as kernels multiply.
void to_powers_of_two(std::vector<double>& truth);
void to_powers_of_two(std::vector<float>& field);

}  // namespace kda_check::judge
