#include "judge/twin_test.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric/elementary.hpp"

namespace kda_check::judge {

namespace {

constexpr double false_alarm = 1e-4;  ///< of all cells of a region together, were rows independent
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

bool has_slope(Region region) { return region != Region::element && region != Region::tile; }

std::vector<float> narrowed(const std::vector<double>& wide) { return {wide.begin(), wide.end()}; }

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
      row_cells_(row_cells(setting_.layout)),
      tiles_(tiles_of(setting_.layout)),
      heads_(setting_.layout.heads) {}

TwinTest::Cells TwinTest::empty_cells(std::size_t count) const {
  const std::vector<CellSums> none(count);
  return {none, {setting_.twins, none}, {setting_.answers, none}};
}

void TwinTest::tally(Tally& into, const Cells& cells, std::size_t head) const {
  Tally found{std::vector<double>(setting_.twins, 0.0), 0, std::vector<Peak>(setting_.answers),
              std::vector<Peak>(setting_.answers), static_cast<double>(cells.truth.size())};
  const auto take = [head](Peak& peak, double value, std::size_t cell, const CellSums& sums) {
    if (value > peak.value) peak = {value, head, cell, sums};
  };
  for (std::size_t c = 0; c < cells.truth.size(); ++c) {
    SlopeRange range(cells.truth[c], setting_.slope_floor);
    for (std::size_t f = 0; f < setting_.twins; ++f) {
      found.twin_energy[f] = std::max(found.twin_energy[f], cells.twins[f][c].error());
      range.take(cells.twins[f][c].sigmas());
    }
    for (std::size_t f = 0; f < setting_.twins; ++f)
      found.twin_slope = std::max(found.twin_slope, range.beyond_others(cells.twins[f][c].sigmas()));
    for (std::size_t a = 0; a < setting_.answers; ++a) {
      const CellSums& sums = cells.answers[a][c];
      take(found.energy[a], sums.error(), c, sums);
      take(found.slope[a], range.beyond(sums.sigmas()), c, sums);
    }
  }
  into.merge(found);
}

void TwinTest::tally_tiles(Tallies& into, const HeadErrors& errors, std::size_t head) const {
  const auto cells_of = [&](const ErrorSums& sums) {
    std::vector<CellSums> cells;
    for (std::size_t t = 0; t < tiles_.elements.size(); ++t)
      cells.push_back({sums.tile_energy[t], 0, 0, 0, tiles_.elements[t]});
    return cells;
  };
  Cells tiles{std::vector<CellSums>(tiles_.elements.size()), {}, {}}, elements = empty_cells(1);
  for (std::size_t f = 0; f < setting_.twins; ++f) {
    tiles.twins.push_back(cells_of(errors.twins[f]));
    elements.twins[f][0] = {errors.twins[f].element_energy, 0, 0, 0, 1};
  }
  for (std::size_t a = 0; a < setting_.answers; ++a) {
    tiles.answers.push_back(cells_of(errors.answers[a]));
    elements.answers[a][0] = {errors.answers[a].element_energy, 0, 0, 0, 1};
  }
  tally(into[static_cast<std::size_t>(Region::tile)], tiles, head);
  Tally& of_elements = into[static_cast<std::size_t>(Region::element)];
  tally(of_elements, elements, head);
  for (std::size_t a = 0; a < setting_.answers; ++a) {
    of_elements.energy[a].cell = errors.answers[a].element;
    of_elements.energy[a].sums.energy = errors.answers[a].element_share;  // as tiles count it
  }
}

void TwinTest::measure(std::size_t head, const HeadValues& values) {
  const RowLayout& l = setting_.layout;
  const auto chunks = std::ranges::find(row_cells_, std::optional(Region::chunk_of_head), &RowCells::of_head);
  const HeadErrors errors = head_errors(l, tiles_, *chunks, values, setting_.storage_unit);
  HeadPart& part = heads_[head];
  part.coherence = errors.coherence;
  const double width = static_cast<double>(l.width), k2 = errors.coherence;

  for (const RowCells& rows : row_cells_) {
    if (!rows.of_head) continue;
    Cells cells = empty_cells(rows.count);
    for (std::size_t r = 0; r < l.rows; ++r) {
      const std::uint32_t c = rows.cell[r];
      const double D = errors.row_truth[r];
      cells.truth[c].add({0, 0, D, D * k2, width});
      for (std::size_t f = 0; f < setting_.twins; ++f)
        cells.twins[f][c].add(
            {errors.twins[f].row_energy[r], errors.twins[f].row_along[r], D, D * k2, width});
      for (std::size_t a = 0; a < setting_.answers; ++a)
        cells.answers[a][c].add(
            {errors.answers[a].row_energy[r], errors.answers[a].row_along[r], D, D * k2, width});
    }
    tally(part.tallies[static_cast<std::size_t>(*rows.of_head)], cells, head);
  }
  Cells columns = empty_cells(l.width);
  for (std::size_t v = 0; v < l.width; ++v) {
    const double D = errors.column_truth[v], n = static_cast<double>(l.rows);
    columns.truth[v] = {0, 0, D, D * k2, n};
    for (std::size_t f = 0; f < setting_.twins; ++f)
      columns.twins[f][v] = {errors.twins[f].column_energy[v], errors.twins[f].column_along[v], D, D * k2, n};
    for (std::size_t a = 0; a < setting_.answers; ++a)
      columns.answers[a][v] = {errors.answers[a].column_energy[v], errors.answers[a].column_along[v], D,
                               D * k2, n};
  }
  tally(part.tallies[static_cast<std::size_t>(Region::column_of_head)], columns, head);
  tally_tiles(part.tallies, errors, head);

  part.row_truth = narrowed(errors.row_truth);
  part.column_truth = errors.column_truth;
  for (const ErrorSums& sums : errors.twins) {
    part.twin_energy.push_back(narrowed(sums.row_energy)),
        part.twin_along.push_back(narrowed(sums.row_along));
    part.twin_columns.push_back(sums.column_energy), part.twin_columns_along.push_back(sums.column_along);
  }
  for (const ErrorSums& sums : errors.answers) {
    part.answer_energy.push_back(narrowed(sums.row_energy));
    part.answer_along.push_back(narrowed(sums.row_along));
    part.answer_columns.push_back(sums.column_energy), part.answer_columns_along.push_back(sums.column_along);
  }
}

TwinTest::Cells TwinTest::cells_of_rows(const RowCells& rows) const {
  Cells cells = empty_cells(rows.count);
  const double width = static_cast<double>(setting_.layout.width);
  for (const HeadPart& part : heads_)
    for (std::size_t r = 0; r < setting_.layout.rows; ++r) {
      const std::uint32_t c = rows.cell[r];
      const double D = static_cast<double>(part.row_truth[r]), Dk = D * part.coherence;
      cells.truth[c].add({0, 0, D, Dk, width});
      for (std::size_t f = 0; f < setting_.twins; ++f)
        cells.twins[f][c].add({static_cast<double>(part.twin_energy[f][r]),
                               static_cast<double>(part.twin_along[f][r]), D, Dk, width});
      for (std::size_t a = 0; a < setting_.answers; ++a)
        cells.answers[a][c].add({static_cast<double>(part.answer_energy[a][r]),
                                 static_cast<double>(part.answer_along[a][r]), D, Dk, width});
    }
  return cells;
}

TwinTest::Cells TwinTest::cells_of_columns() const {
  Cells cells = empty_cells(setting_.layout.width);
  const double n = static_cast<double>(setting_.layout.rows);
  for (const HeadPart& part : heads_)
    for (std::size_t v = 0; v < setting_.layout.width; ++v) {
      const double D = part.column_truth[v], Dk = D * part.coherence;
      cells.truth[v].add({0, 0, D, Dk, n});
      for (std::size_t f = 0; f < setting_.twins; ++f)
        cells.twins[f][v].add({part.twin_columns[f][v], part.twin_columns_along[f][v], D, Dk, n});
      for (std::size_t a = 0; a < setting_.answers; ++a)
        cells.answers[a][v].add({part.answer_columns[a][v], part.answer_columns_along[a][v], D, Dk, n});
    }
  return cells;
}

std::vector<TwinJudgement> TwinTest::conclude() const {
  Tallies all;
  double coherence = 0;
  for (const HeadPart& part : heads_) {
    coherence += part.coherence / static_cast<double>(heads_.size());
    for (std::size_t region = 0; region < region_count; ++region) all[region].merge(part.tallies[region]);
  }
  const auto add = [&](Region region, const Cells& cells) {
    tally(all[static_cast<std::size_t>(region)], cells, 0);
  };
  const bool one_head = setting_.layout.heads == 1;
  for (const RowCells& rows : row_cells_)  // of one head alone, most of them were counted with it
    if (rows.of_all && (!one_head || !rows.of_head)) add(*rows.of_all, cells_of_rows(rows));
  if (!one_head) add(Region::column, cells_of_columns());
  add(Region::whole,
      cells_of_rows({{}, Region::whole, std::vector<std::uint32_t>(setting_.layout.rows, 0), 1}));
  std::vector<TwinJudgement> judgements;
  for (std::size_t a = 0; a < setting_.answers; ++a) judgements.push_back(judgement_of(a, all, coherence));
  return judgements;
}

double TwinTest::typical_error(std::size_t answer) const {
  std::vector<float> rows;
  for (const HeadPart& part : heads_)
    rows.insert(rows.end(), part.answer_energy[answer].begin(), part.answer_energy[answer].end());
  if (rows.empty()) return 0;
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::ranges::nth_element(rows, middle);
  return std::sqrt(static_cast<double>(*middle) / static_cast<double>(setting_.layout.width));
}

TwinJudgement TwinTest::judgement_of(std::size_t answer, const Tallies& tallies, double coherence) const {
  /// A coarser region has to explain more.
  constexpr double clearly_more = 1.05;
  constexpr double least_error_of_a_twin = 1e-3;
  constexpr double typical_of_even = 1.0 / 3;
  const Tally& whole = tallies[static_cast<std::size_t>(Region::whole)];
  TwinJudgement judgement;
  judgement.energy = whole.energy[answer].value;
  double best = 0;
  bool whole_is_beyond = false;
  for (std::size_t index = 0; index < region_count; ++index) {
    const Tally& tally = tallies[index];
    const auto region = static_cast<Region>(index);
    if (tally.cells == 0) continue;
    double twins_energy = 1;
    for (std::size_t f = 0; f < setting_.twins; ++f)
      twins_energy = std::max(twins_energy,
                              tally.twin_energy[f] / std::max(whole.twin_energy[f], least_error_of_a_twin));
    const double energy_limit = twin_factor * twins_energy;
    const Peak& energy = tally.energy[answer];
    const double energy_ratio = energy.value / energy_limit;
    judgement.ratio = std::max(judgement.ratio, energy_ratio);
    if (energy_ratio > 1) {
      whole_is_beyond = whole_is_beyond || region == Region::whole;
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
    if (!has_slope(region) || setting_.slope_floor == 0) continue;
    const Peak& slope = tally.slope[answer];
    const double quantile = normal_quantile(false_alarm / 2 / tally.cells),
                 slope_limit = std::max(quantile, tally.twin_slope),
                 slope_ratio = slope.value / (twin_factor * slope_limit);
    judgement.ratio = std::max(judgement.ratio, slope_ratio);
    if (slope_ratio <= 1) continue;
    judgement.by_slope = true;
    const double sigmas = slope.value * quantile / slope_limit, likelihood = sigmas * sigmas / 2;
    if (likelihood > best * clearly_more) {
      best = likelihood;
      judgement.worst = {region,       slope.head,         slope.cell, slope_ratio, slope.sums.error(),
                         energy_limit, slope.sums.slope(), sigmas};
    }
  }
  judgement.uneven =
      judgement.ratio > 1 && (!whole_is_beyond || typical_error(answer) < typical_of_even * judgement.energy);
  return judgement;
}

}  // namespace kda_check::judge
