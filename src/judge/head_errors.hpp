// The errors of answers and of twins - emulated kernels that solved the same problem - in one head, in units
// of what twins err by in the same row: what is added up over regions (docs/twins.md).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "judge/regions.hpp"

namespace kda_check::judge {

/// One head of the truth, of every twin and of every answer: [rows][width].
struct HeadValues {
  const double* truth = nullptr;
  std::vector<const double*> twins, answers;
};

/// Of one twin or answer, e its error, x the truth, s the envelope of its row: sums of e^2 / s^2 and of e x /
/// s^2.
struct ErrorSums {
  std::vector<double> row_energy, row_along;
  std::vector<double> column_energy, column_along;
  std::vector<double> tile_energy;
  double element_energy = 0;  ///< the largest e^2 / (s^2 + (u x)^2), u half a step of the element type at 1
  double element_share = 0;   ///< e^2 / s^2 there
  std::size_t element = 0;    ///< row * width + column
};

struct HeadErrors {
  std::vector<double> row_truth, column_truth;  ///< sums of x^2 / s^2
  double coherence = 1;                         ///< how much of the energy of a row lies along x, at most
  std::vector<ErrorSums> twins;                 ///< energies without the twin itself in the envelope
  std::vector<ErrorSums> answers;
};

/// `chunk_of`: cells of Region::chunk_of_head. `storage_unit`: u.
HeadErrors head_errors(const RowLayout& layout, const Tiles& tiles, const RowCells& chunk_of,
                       const HeadValues& values, double storage_unit);

}  // namespace kda_check::judge
