// Whether an answer errs as kernels of its arithmetic do: its errors, region by region, beside those of
// twins. Statistics, limits and calibration: docs/verdicts.md.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "judge/measures/regions.hpp"
#include "judge/spread/gpu_head_errors.hpp"
#include "judge/spread/head_errors.hpp"
#include "judge/spread/twin_judgement.hpp"

namespace kda_check::judge {

/// Sums of a cell, each over its elements: e^2 / s^2, e x / s^2, x^2 / s^2, the last times the coherence.
struct CellSums {
  double energy = 0, along = 0, truth = 0, spread = 0, elements = 0;

  void add(const CellSums& other);
  double error() const;   ///< in units of what the worst twin errs by
  double slope() const;   ///< answer = (1 + slope) truth
  double share() const;   ///< of the energy, what the slope explains
  double sigmas() const;  ///< the slope in standard errors
};

class TwinTest {
 public:
  explicit TwinTest(TwinSetting setting);

  const TwinSetting& setting() const { return setting_; }
  /// Whether a head was not measured.
  bool has_to_measure(std::size_t head) const;
  /// One head; from any thread.
  void measure(std::size_t head, const HeadValues& values);
  /// The same by the first twin alone, which `values` has no other of: false, and nothing is measured, where
  /// the answers are not its, to the bit, or all twins are wanted.
  bool settle(std::size_t head, const HeadValues& values);
  /// Whether heads that were settled have to be measured after all: the first twin errs far more in them than
  /// where others were run, so that nothing says what these do.
  bool reopen();
  /// The same of heads from `first` on, as far as they have to be measured.
  void measure(std::size_t first, const HeadsOnGpu& values, int threads);
  /// One for each answer, when all heads were measured; none where no head has enough twins that are fit,
  /// or the tensor too few errors.
  std::vector<TwinJudgement> conclude(int threads = 1) const;
  /// The largest of the stable computations; 0 where none of them is finite.
  double stable_rms_ratio() const;
  /// Heads with enough twins that are fit.
  std::size_t judged_heads() const;

 private:
  struct Peak {
    double value = 0;
    std::size_t head = 0, cell = 0;
    CellSums sums;
  };
  /// What the cells of one kind of region leave behind.
  struct Tally {
    std::vector<double> twin_energy;  ///< of each twin: the largest
    double twin_slope = 0;            ///< the farthest a twin is from the others, in standard errors
    std::vector<Peak> energy, slope;  ///< of each answer: the largest
    double cells = 0;

    void merge(const Tally& other);
  };
  using Tallies = std::array<Tally, region_count>;
  /// Of one head: what its own regions leave, and the sums that regions of all heads are made of.
  struct HeadPart {
    Tallies tallies;
    HeadErrors errors;
  };
  /// Of one kind of region, by field - the twins, then the answers - and cell.
  using Cells = std::vector<std::vector<CellSums>>;

  const RowCells& chunks() const;
  /// What was measured of a head.
  void take(std::size_t head, HeadErrors errors);
  bool can_settle(std::size_t head) const { return !setting_.in_full.empty() && !setting_.in_full[head]; }
  bool is_settled(std::size_t head, const HeadErrors& errors) const;
  Cells empty_cells(std::size_t count) const;
  void add_rows(Cells& cells, const std::vector<std::uint32_t>& cell_of_row, const HeadErrors& errors) const;
  void add_rows(std::vector<CellSums>& cells, const std::vector<std::uint32_t>& cell_of_row,
                const HeadErrors& errors, std::size_t field) const;
  void add_columns(Cells& cells, const HeadErrors& errors) const;
  /// `slope_floor`: what truncated operands may leave.
  void tally(Tally& into, const Cells& cells, std::size_t head, double slope_floor) const;
  void tally(Tally& into, const Cells& cells, std::size_t head) const {
    tally(into, cells, head, slope_floor());
  }
  double slope_floor() const { return setting_.slope_floor.value_or(0); }
  /// Errors of one head along a direction.
  Cells cells_along(const HeadErrors& errors, std::size_t direction) const;
  void tally_directions(Tallies& into, const HeadErrors& errors, std::size_t head) const;
  /// Of all heads together.
  void tally_directions(Tallies& into) const;
  void tally_tiles(Tallies& into, const HeadErrors& errors, std::size_t head) const;
  /// The median of an answer's rows, in units of what the worst twin errs by there.
  double typical_error(std::size_t answer) const;
  /// `independent`: errors of the tensor that are so.
  TwinJudgement judgement_of(std::size_t answer, const Tallies& tallies, double coherence,
                             double independent) const;
  /// Whether twins err by little more than what storing their values costs.
  bool are_errors_of_storage() const;

  TwinSetting setting_, first_alone_;
  std::vector<RowCells> row_cells_;
  Tiles tiles_;
  std::vector<double> column_elements_;  ///< of a head
  std::vector<HeadPart> heads_;
};

}  // namespace kda_check::judge
