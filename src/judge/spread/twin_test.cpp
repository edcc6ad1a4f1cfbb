#include "judge/spread/twin_test.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/threads/parallel.hpp"
#include "judge/spread/head_scale.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::judge {

namespace {

constexpr double false_alarm = 1e-4;  ///< of all cells of a region together, were rows independent
/// Of a tensor with that many independent errors all twins may be right by luck: distances count half. With
/// fewer they say nothing.
constexpr double fewest_for_distances = 8;
constexpr double tiny = std::numeric_limits<double>::min();

/// z with `tail`, at most a half, of a normal distribution above it; within 5e-4 (Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 26.2.23).
double normal_quantile(double tail) {
  const double t = std::sqrt(-2 * numeric::log(tail));
  return t -
         (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

/// The slopes of all twins in one cell, in standard errors; 0 and a truncated operand are among them.
class SlopeRange {
 public:
  SlopeRange(const CellSums& truth, double slope_floor) {
    const double bound =
        truth.truth > 0 ? slope_floor * truth.truth / std::sqrt(std::max(truth.spread, tiny)) : 0;
    take(bound), take(-bound), take(0);
  }
  void take(double z) {
    if (z > high_)
      next_high_ = high_, high_ = z;
    else if (z > next_high_)
      next_high_ = z;
    if (z < low_)
      next_low_ = low_, low_ = z;
    else if (z < next_low_)
      next_low_ = z;
  }
  /// How far beyond all of them.
  double beyond(double z) const { return std::max({z - high_, low_ - z, 0.0}); }
  /// How far the one with this slope is beyond the others.
  double beyond_others(double z) const {
    return std::max({z == high_ ? z - next_high_ : 0, z == low_ ? next_low_ - z : 0, 0.0});
  }

 private:
  double high_ = -HUGE_VAL, next_high_ = -HUGE_VAL, low_ = HUGE_VAL, next_low_ = HUGE_VAL;
};

bool is_direction(Region region) {
  return region == Region::slowest_decay_of_head || region == Region::decays_of_head ||
         region == Region::slowest_decays || region == Region::decays;
}

bool has_slope(Region region) { return region != Region::element && region != Region::tile; }

}  // namespace

void CellSums::add(const CellSums& other) {
  energy += other.energy, along += other.along, truth += other.truth, spread += other.spread,
      elements += other.elements;
}
double CellSums::error() const { return elements > 0 ? std::sqrt(energy / elements) : 0; }
double CellSums::slope() const { return truth > 0 ? along / truth : 0; }
double CellSums::share() const { return truth > 0 && energy > 0 ? along * along / (truth * energy) : 0; }
double CellSums::sigmas() const { return truth > 0 ? along / std::sqrt(std::max(spread, tiny)) : 0; }

void TwinTest::Tally::merge(const Tally& other) {
  const auto merge_peaks = [](std::vector<Peak>& mine, const std::vector<Peak>& others) {
    mine.resize(std::max(mine.size(), others.size()));
    for (std::size_t i = 0; i < others.size(); ++i)
      if (others[i].value > mine[i].value) mine[i] = others[i];
  };
  twin_energy.resize(std::max(twin_energy.size(), other.twin_energy.size()), 0.0);
  for (std::size_t f = 0; f < other.twin_energy.size(); ++f)
    twin_energy[f] = std::max(twin_energy[f], other.twin_energy[f]);
  twin_slope = std::max(twin_slope, other.twin_slope);
  merge_peaks(energy, other.energy);
  merge_peaks(slope, other.slope);
  cells += other.cells;
}

TwinTest::TwinTest(TwinSetting setting)
    : setting_(std::move(setting)),
      first_alone_(setting_),
      row_cells_(row_cells(setting_.layout)),
      tiles_(tiles_of(setting_.layout)),
      column_elements_(setting_.layout.width, 0.0),
      heads_(setting_.layout.heads) {
  for (std::size_t r = 0; r < setting_.layout.rows; ++r)
    for (std::size_t v = 0; v < setting_.layout.columns(r); ++v) column_elements_[v] += 1;
  first_alone_.twins = 1, first_alone_.stable = 0;
}

TwinTest::Cells TwinTest::empty_cells(std::size_t count) const {
  return {setting_.twins + setting_.answers, std::vector<CellSums>(count)};
}

void TwinTest::add_rows(std::vector<CellSums>& cells, const std::vector<std::uint32_t>& cell_of_row,
                        const HeadErrors& errors, std::size_t field) const {
  if (errors.fields.empty()) return;
  const ErrorSums& sums = errors.fields[field];
  if (sums.row_energy.empty()) return;  // not fit
  for (std::size_t r = 0; r < cell_of_row.size(); ++r) {
    if (cell_of_row[r] == no_cell) continue;
    const auto truth = static_cast<double>(errors.row_truth[r]);
    cells[cell_of_row[r]].add({static_cast<double>(sums.row_energy[r]),
                               static_cast<double>(sums.row_along[r]), truth, truth * errors.coherence,
                               static_cast<double>(setting_.layout.columns(r))});
  }
}

void TwinTest::add_rows(Cells& cells, const std::vector<std::uint32_t>& cell_of_row,
                        const HeadErrors& errors) const {
  for (std::size_t f = 0; f < errors.fields.size(); ++f) add_rows(cells[f], cell_of_row, errors, f);
}

void TwinTest::add_columns(Cells& cells, const HeadErrors& errors) const {
  for (std::size_t f = 0; f < errors.fields.size(); ++f) {
    const ErrorSums& sums = errors.fields[f];
    if (sums.row_energy.empty()) continue;
    for (std::size_t v = 0; v < setting_.layout.width; ++v) {
      const double truth = errors.column_truth[v];
      cells[f][v].add({sums.column_energy[v], sums.column_along[v], truth, truth * errors.coherence,
                       column_elements_[v]});
    }
  }
}

void TwinTest::tally(Tally& into, const Cells& cells, std::size_t head, double slope_floor) const {
  Tally found{std::vector<double>(setting_.twins, 0.0), 0, std::vector<Peak>(setting_.answers),
              std::vector<Peak>(setting_.answers), static_cast<double>(cells.front().size())};
  const auto take = [head](Peak& peak, double value, std::size_t cell, const CellSums& sums) {
    if (value > peak.value) peak = {value, head, cell, sums};
  };
  for (std::size_t c = 0; c < cells.front().size(); ++c) {
    SlopeRange range(cells.back()[c], slope_floor);
    for (std::size_t f = 0; f < setting_.twins; ++f) {
      found.twin_energy[f] = std::max(found.twin_energy[f], cells[f][c].error());
      range.take(cells[f][c].sigmas());
    }
    for (std::size_t f = 0; f < setting_.twins; ++f)
      found.twin_slope = std::max(found.twin_slope, range.beyond_others(cells[f][c].sigmas()));
    for (std::size_t a = 0; a < setting_.answers; ++a) {
      const CellSums& sums = cells[setting_.twins + a][c];
      take(found.energy[a], sums.error(), c, sums);
      take(found.slope[a], range.beyond(sums.sigmas()), c, sums);
    }
  }
  into.merge(found);
}

void TwinTest::tally_tiles(Tallies& into, const HeadErrors& errors, std::size_t head) const {
  Cells tiles = empty_cells(tiles_.elements.size()), elements = empty_cells(1);
  for (std::size_t f = 0; f < tiles.size(); ++f) {
    const ErrorSums& sums = errors.fields[f];
    if (sums.row_energy.empty()) continue;
    for (std::size_t t = 0; t < tiles[f].size(); ++t)
      tiles[f][t].energy = sums.tile_energy[t], tiles[f][t].elements = tiles_.elements[t];
    elements[f][0].energy = sums.element_energy, elements[f][0].elements = 1;
  }
  tally(into[static_cast<std::size_t>(Region::tile)], tiles, head);
  Tally& of_elements = into[static_cast<std::size_t>(Region::element)];
  tally(of_elements, elements, head);
  for (std::size_t a = 0; a < setting_.answers; ++a) {
    const ErrorSums& sums = errors.fields[setting_.twins + a];
    of_elements.energy[a].cell = sums.element;
    of_elements.energy[a].sums.energy = sums.element_share;  // as tiles count it
  }
}

TwinTest::Cells TwinTest::cells_along(const HeadErrors& errors, std::size_t direction) const {
  const DirectionSums& along = errors.directions[direction];
  Cells cells = empty_cells(1);
  for (std::size_t f = 0; f < cells.size(); ++f) {
    if (errors.fields[f].row_energy.empty()) continue;  // not fit
    CellSums& sums = cells[f][0];
    sums.truth = along.squares, sums.spread = along.squares * along.coherence;
    sums.along = errors.fields[f].directions[direction].sum;
    for (const float row : errors.fields[f].row_energy) sums.energy += static_cast<double>(row);
    for (const double column : column_elements_) sums.elements += column;
  }
  return cells;
}

void TwinTest::tally_directions(Tallies& into, const HeadErrors& errors, std::size_t head) const {
  for (std::size_t n = 0; n < errors.directions.size(); ++n) {
    const DirectionSums& along = errors.directions[n];
    if (along.is_none()) continue;
    tally(into[static_cast<std::size_t>(along.region)], cells_along(errors, n), head,
          slope_floor() * std::fabs(along.truth) / along.squares);
  }
}

void TwinTest::tally_directions(Tallies& into) const {
  for (const auto& [of_head, of_all] : {std::pair(Region::slowest_decay_of_head, Region::slowest_decays),
                                        std::pair(Region::decays_of_head, Region::decays)}) {
    Cells cells = empty_cells(1);
    double truth = 0;
    for (const HeadPart& part : heads_)
      for (std::size_t n = 0; n < part.errors.directions.size(); ++n) {
        if (part.errors.directions[n].region != of_head || part.errors.directions[n].is_none()) continue;
        const Cells one = cells_along(part.errors, n);
        for (std::size_t f = 0; f < cells.size(); ++f) cells[f][0].add(one[f][0]);
        truth += part.errors.directions[n].truth;
      }
    const double squares = cells.back()[0].truth;
    if (squares > 0)
      tally(into[static_cast<std::size_t>(of_all)], cells, 0, slope_floor() * std::fabs(truth) / squares);
  }
}

bool TwinTest::has_to_measure(std::size_t head) const { return heads_[head].errors.fit.empty(); }

const RowCells& TwinTest::chunks() const {
  return *std::ranges::find(row_cells_, std::optional(Region::chunk_of_head), &RowCells::of_head);
}

void TwinTest::measure(std::size_t head, const HeadValues& values) {
  take(head, head_errors(setting_, tiles_, chunks(), values));
}

bool TwinTest::is_settled(std::size_t head, const HeadErrors& errors) const {
  const double most = setting_.most_rms_ratio * setting_.most_rms_ratio * errors.truth_squares;
  return can_settle(head) && errors.are_first_twin && errors.twin_squares.front() <= most;
}

bool TwinTest::settle(std::size_t head, const HeadValues& values) {
  if (!can_settle(head)) return false;
  HeadErrors errors = head_errors(first_alone_, tiles_, chunks(), values);
  if (!is_settled(head, errors)) return false;
  take(head, std::move(errors));
  return true;
}

bool TwinTest::reopen() {
  constexpr double far_more = 16;  // of squares
  const auto share = [](const HeadPart& part) {
    const double truth = part.errors.truth_squares;
    return truth > 0 ? part.errors.twin_squares.front() / truth : 0;
  };
  std::vector<double> shares;  // where it errs as a stable computation does
  for (const HeadPart& part : heads_)
    if (part.errors.twin_squares.size() > 1 && part.errors.fit.front()) shares.push_back(share(part));
  std::ranges::sort(shares);
  const double usual = shares.empty() ? 0 : shares[(shares.size() - 1) / 2];
  bool any = false;
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    HeadPart& part = heads_[head];
    if (part.errors.twin_squares.size() != 1 || !(share(part) > far_more * usual)) continue;
    part = {};
    setting_.in_full[head] = any = true;
  }
  return any;
}

void TwinTest::measure(std::size_t first, const HeadsOnGpu& values, int threads) {
  std::vector<HeadErrors> errors = head_errors_on_gpu(setting_, tiles_, chunks(), values, threads);
  parallel_for(errors.size(), threads, [&](std::size_t i, int) {
    if (has_to_measure(first + i)) take(first + i, std::move(errors[i]));
  });
}

void TwinTest::take(std::size_t head, HeadErrors errors) {
  HeadPart& part = heads_[head] = {};
  if (is_settled(head, errors)) {
    part.errors.fit = {true};
    part.errors.twin_squares = {errors.twin_squares.front()};
    part.errors.truth_squares = errors.truth_squares, part.errors.exponent = errors.exponent;
    return;
  }
  part.errors = std::move(errors);
  if (part.errors.fields.empty()) return;
  scale_columns(setting_, column_elements_, part.errors);
  const auto tally_as = [&](Region region, const Cells& cells) {
    tally(part.tallies[static_cast<std::size_t>(region)], cells, head);
  };
  for (const RowCells& rows : row_cells_) {
    if (!rows.of_head) continue;
    Cells cells = empty_cells(rows.count);
    add_rows(cells, rows.cell, part.errors);
    tally_as(*rows.of_head, cells);
  }
  Cells columns = empty_cells(setting_.layout.width);
  add_columns(columns, part.errors);
  tally_as(Region::column_of_head, columns);
  tally_tiles(part.tallies, part.errors, head);
  tally_directions(part.tallies, part.errors, head);
  for (ErrorSums& sums : part.errors.fields) sums.tile_energy = {};  // no region of all heads has tiles
}

std::vector<TwinJudgement> TwinTest::conclude(int threads) const {
  Tallies all;
  double coherence = 0;
  const std::size_t judged = judged_heads();
  if (judged == 0) return {};
  for (const HeadPart& part : heads_) {
    if (part.errors.fields.empty()) continue;
    coherence += part.errors.coherence / static_cast<double>(judged);
    for (std::size_t region = 0; region < region_count; ++region) all[region].merge(part.tallies[region]);
  }
  const bool one_head = setting_.layout.heads == 1;
  const RowCells whole{{}, Region::whole, std::vector<std::uint32_t>(setting_.layout.rows, 0), 1};
  std::vector<std::pair<const RowCells*, Cells>> regions{{&whole, empty_cells(1)}};
  for (const RowCells& rows : row_cells_)  // of one head alone, most of them were counted with it
    if (rows.of_all && (!one_head || !rows.of_head)) regions.emplace_back(&rows, empty_cells(rows.count));
  const std::size_t fields = setting_.twins + setting_.answers;
  parallel_for(regions.size() * fields, threads, [&](std::size_t item, int) {
    auto& [rows, cells] = regions[item / fields];
    for (const HeadPart& part : heads_)
      add_rows(cells[item % fields], rows->cell, part.errors, item % fields);
  });
  for (const auto& [rows, cells] : regions) tally(all[static_cast<std::size_t>(*rows->of_all)], cells, 0);
  if (!one_head) {
    Cells columns = empty_cells(setting_.layout.width);
    for (const HeadPart& part : heads_) add_columns(columns, part.errors);
    tally(all[static_cast<std::size_t>(Region::column)], columns, 0);
    tally_directions(all);
  }
  double elements = 0;  // of a head
  for (const double column : column_elements_) elements += column;
  // A row may have a single error, that of one dot product, though the twins' do not show it; but not where
  // the computation is known, or all is lost in storing it.
  const double most =
      setting_.left || are_errors_of_storage() ? elements : static_cast<double>(setting_.layout.rows);
  const double independent = static_cast<double>(judged) * std::min(elements / coherence, most);
  if (independent < fewest_for_distances) return {};
  std::vector<TwinJudgement> judgements;
  for (std::size_t a = 0; a < setting_.answers; ++a)
    judgements.push_back(judgement_of(a, all, coherence, independent));
  return judgements;
}

std::size_t TwinTest::judged_heads() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(heads_, [](const HeadPart& part) { return !part.errors.fields.empty(); }));
}

double TwinTest::stable_rms_ratio() const {
  int exponent = std::numeric_limits<int>::min();
  for (const HeadPart& part : heads_) exponent = std::max(exponent, part.errors.exponent);
  double largest = 0;
  for (std::size_t f = setting_.twins - setting_.stable; f < setting_.twins; ++f) {
    double error = 0, truth = 0, of_fit = 0, first_of_fit = 0, first_of_settled = 0;
    for (const HeadPart& part : heads_) {
      if (part.errors.twin_squares.empty()) return 0;  // not measured
      const double unit = std::ldexp(1.0, 2 * (part.errors.exponent - exponent));
      const double first = part.errors.twin_squares.front() * unit;
      if (part.errors.twin_squares.size() == 1) {
        first_of_settled += first;
      } else {
        error += part.errors.twin_squares[f] * unit;
        if (part.errors.fit.front()) of_fit += part.errors.twin_squares[f] * unit, first_of_fit += first;
      }
      truth += part.errors.truth_squares * unit;
    }
    // In other heads it errs as it does beside the first twin where both were run, and that loses no digits.
    if (first_of_settled > 0) error += of_fit / first_of_fit * first_of_settled;
    if (truth > 0 && std::isfinite(error)) largest = std::max(largest, std::sqrt(error / truth));
  }
  return largest;
}

bool TwinTest::are_errors_of_storage() const {
  constexpr double little_more = 4;
  const double step = setting_.storage_unit * setting_.storage_unit / 3;
  return std::ranges::all_of(heads_, [&](const HeadPart& part) {
    for (std::size_t f = 0; f < part.errors.fit.size(); ++f)
      if (part.errors.fit[f] && part.errors.twin_squares[f] > little_more * step * part.errors.truth_squares)
        return false;
    return true;
  });
}

double TwinTest::typical_error(std::size_t answer) const {
  std::vector<float> rows;
  for (const HeadPart& part : heads_) {
    if (part.errors.fields.empty()) continue;
    const std::vector<float>& of_head = part.errors.fields[setting_.twins + answer].row_energy;
    for (std::size_t r = 0; r < of_head.size(); ++r)
      rows.push_back(of_head[r] / static_cast<float>(setting_.layout.columns(r)));
  }
  if (rows.empty()) return 0;
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::ranges::nth_element(rows, middle);
  return std::sqrt(static_cast<double>(*middle));
}

TwinJudgement TwinTest::judgement_of(std::size_t answer, const Tallies& tallies, double coherence,
                                     double independent) const {
  /// A coarser region has to explain more.
  constexpr double clearly_more = 1.05;
  constexpr double least_error_of_a_twin = 1e-3;
  constexpr double far_beyond = 10;
  // Where sums have another order one element is stored as its other neighbour.
  constexpr double of_a_neighbour = 2;
  const Tally& whole = tallies[static_cast<std::size_t>(Region::whole)];
  TwinJudgement judgement;
  judgement.twins = setting_.twins - setting_.stable;
  judgement.energy = whole.energy[answer].value;
  const double factor = setting_.factor * (1 + fewest_for_distances / independent);
  const CellSums& sums_of_whole = whole.energy[answer].sums;
  const double one_step =
      setting_.left && sums_of_whole.elements > 0
          ? of_a_neighbour * setting_.storage_unit * std::sqrt(sums_of_whole.truth / sums_of_whole.elements)
          : 0;
  double best = 0, most_along = 0.5;
  for (std::size_t index = 0; index < region_count; ++index) {
    const Tally& tally = tallies[index];
    const auto region = static_cast<Region>(index);
    if (tally.cells == 0) continue;
    double twins_energy = 1;
    for (std::size_t f = 0; f < setting_.twins; ++f)
      // Of differences that are mostly none the whole is no measure.
      twins_energy = std::max(
          twins_energy,
          tally.twin_energy[f] / (setting_.left ? 1 : std::max(whole.twin_energy[f], least_error_of_a_twin)));
    const Peak& energy = tally.energy[answer];
    const bool has_steps = region != Region::element && energy.sums.elements > 0;
    const double energy_limit = numeric::root_of_squares(
        factor * twins_energy, has_steps ? one_step / std::sqrt(energy.sums.elements) : 0);
    const bool is_whole = region == Region::whole && energy.sums.truth > 0;
    if (is_whole) judgement.floor = energy_limit * std::sqrt(energy.sums.elements / energy.sums.truth);
    // Along a direction energies are those of heads, which are regions of their own.
    const double energy_ratio = is_direction(region) ? 0 : energy.value / energy_limit;
    judgement.ratio = std::max(judgement.ratio, energy_ratio);
    if (energy_ratio > 1) {
      const double q = energy.sums.energy / energy.sums.elements;
      const double likelihood = energy.sums.elements * (q - 1 - numeric::log(q)) / 2 / coherence;
      if (likelihood > best * clearly_more) {
        best = likelihood;
        judgement.worst = {region,
                           energy.head,
                           energy.cell,
                           energy_ratio,
                           energy.value,
                           energy_limit,
                           energy.sums.share() > 0.5 ? energy.sums.slope() : 0,
                           0};
      }
    }
    if (!has_slope(region) || !setting_.slope_floor) continue;
    const Peak& slope = tally.slope[answer];
    const double quantile = normal_quantile(false_alarm / 2 / tally.cells),
                 slope_limit = std::max(quantile, tally.twin_slope),
                 slope_ratio = slope.value / (factor * slope_limit);
    if (is_whole)
      judgement.floor = std::min(
          judgement.floor,
          *setting_.slope_floor + factor * slope_limit * std::sqrt(energy.sums.spread) / energy.sums.truth);
    judgement.ratio = std::max(judgement.ratio, slope_ratio);
    if (slope_ratio <= 1) continue;
    judgement.by_slope = true;
    const double sigmas = slope.value * quantile / slope_limit;
    double likelihood = sigmas * sigmas / 2;
    // Most of the error is along it: no place says more.
    if (const double along = is_direction(region) ? slope.sums.share() : 0; along > most_along)
      most_along = along, likelihood = HUGE_VAL, best = 0;
    if (likelihood > best * clearly_more) {
      best = likelihood;
      judgement.worst = {region,       slope.head,         slope.cell, slope_ratio, slope.sums.error(),
                         energy_limit, slope.sums.slope(), sigmas};
    }
  }
  if (judgement.ratio > 1) {
    const double typical = typical_error(answer);
    judgement.uneven = typical <= 1 || judgement.ratio > far_beyond * typical;
    const Excess& worst = judgement.worst;
    judgement.place = place_of(worst.region, worst.head, worst.cell, setting_.layout);
  }
  return judgement;
}

}  // namespace kda_check::judge
