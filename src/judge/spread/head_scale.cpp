#include "judge/spread/head_scale.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kda_check::judge {

namespace {

/// How many times what is left of all blocks may be left of some.
constexpr double times_left = 4;

/// In units of rows and of their envelopes: what an error is multiplied by.
std::vector<float> weights_of(const std::vector<double>& envelope, const Units& units) {
  std::vector<float> weights(envelope.size());
  for (std::size_t r = 0; r < weights.size(); ++r)
    weights[r] = static_cast<float>(1 / std::sqrt(std::max(envelope[r] / units.squares_to_head(r), nothing)));
  return weights;
}

/// The mean over rows of the share of energy that lies along the truth; at least 1, what independent errors
/// have.
double coherence_of(const std::vector<RowSums>& fields, const std::vector<bool>& fit,
                    const std::vector<double>& truth, const std::vector<double>& envelope) {
  double most = 1;
  for (std::size_t f = 0; f < fit.size(); ++f) {
    if (!fit[f]) continue;
    double sum = 0;
    for (std::size_t r = 0; r < truth.size(); ++r)
      if (truth[r] > 0 && envelope[r] > 0)
        sum += fields[f].along[r] / envelope[r] * (fields[f].along[r] / truth[r]);
    most = std::max(most, sum / static_cast<double>(truth.size()));
  }
  return most;
}

/// Columns with fewer independent errors may be right by luck.
constexpr double fewest_of_a_column = 16;

/// The squares of what a column may err by, however little its twins do.
double least_of_column(const TwinSetting& setting, const HeadErrors& errors, std::size_t column) {
  const double of_truth = std::max(setting.storage_unit / 4, setting.operand_unit);
  return std::max(of_truth * of_truth * errors.column_truth[column], errors.column_least);
}

/// Of the energy of a column how much lies along the truth, the mean over columns and twins: one over the
/// number of its independent errors.
double share_along_columns(const TwinSetting& setting, const HeadErrors& errors) {
  double shares = 0, columns = 0;
  for (std::size_t f = 0; f < errors.fit.size(); ++f) {
    if (!errors.fit[f]) continue;
    for (std::size_t v = 0; v < errors.column_truth.size(); ++v) {
      const double energy = std::max(errors.fields[f].column_energy[v], least_of_column(setting, errors, v)),
                   along = errors.fields[f].column_along[v], truth = errors.column_truth[v];
      if (energy > 0 && truth > 0) shares += along / energy * (along / truth), columns += 1;
    }
  }
  return columns > 0 ? shares / columns : 0;
}

}  // namespace

Units::Units(std::span<const double> largest) : exponents_(largest.size()) {
  const double of_all = largest.empty() ? 0 : std::ranges::max(largest);
  of_head_ = of_all > 0 ? std::ilogb(of_all) : 0;
  for (std::size_t r = 0; r < largest.size(); ++r)
    exponents_[r] = largest[r] > 0 ? std::max(std::ilogb(largest[r]), of_head_ - farthest) : of_head_;
}
double Units::to_row(std::size_t row) const {
  return std::ldexp(1.0, std::clamp(-exponents_[row], -1022, 1023));
}
double Units::squares_to_head(std::size_t row) const {
  return std::ldexp(1.0, 2 * (exponents_[row] - of_head_));
}

void FirstLook::add_truth(std::size_t row, double squares, const Units& units) {
  truth_squares[row] = squares * units.squares_to_head(row);
  truth_total += truth_squares[row];
}

void FirstLook::add(RowSums& sums, std::size_t row, float squares, float along, const Units& units) {
  const double to_head = units.squares_to_head(row);
  sums.squares[row] = static_cast<double>(squares) * to_head;
  sums.along[row] = static_cast<double>(along) * to_head;
  sums.total += sums.squares[row];
}

bool FirstLook::are_first_twin(std::size_t twins) const {
  const RowSums& first = rows.front();
  return std::all_of(rows.begin() + static_cast<std::ptrdiff_t>(twins), rows.end(), [&](const RowSums& one) {
    return one.squares == first.squares && one.along == first.along;
  });
}

HeadWeights weights_for(const TwinSetting& setting, const RowCells& chunk_of, const Units& units,
                        const FirstLook& look, HeadErrors& errors) {
  errors.exponent = units.of_head(), errors.truth_squares = look.truth_total;
  for (std::size_t f = 0; f < setting.twins; ++f)
    errors.twin_squares.push_back(look.twins_to_truth.empty() ? look.rows[f].total
                                                              : look.twins_to_truth[f].total);
  errors.fit = errors.fit_in(setting);
  errors.are_first_twin = look.are_first_twin(setting.twins);
  HeadWeights weights;
  if (errors.fit_twins() < fewest_twins || errors.truth_squares == 0) return weights;
  Floors floors{std::max(setting.storage_unit / 4, setting.operand_unit),
                std::ldexp(setting.least_error, -units.of_head())};
  if (setting.left)
    floors.noise = &look.twins_to_truth.front(),
    floors.share_of_noise = std::max(times_left * *setting.left, least_left),
    floors.exact_below = setting.operand_unit / 8;
  const Envelope envelope(setting.layout, chunk_of, look.truth_squares, look.rows, errors.fit, floors);
  const std::vector<double> of_all = envelope.of_all();
  weights.of_all = weights_of(of_all, units);
  for (const double squares : of_all)
    errors.column_least += floors.least_error * floors.least_error / std::max(squares, nothing);
  errors.coherence = coherence_of(look.rows, errors.fit, look.truth_squares, of_all);
  weights.of_field.resize(look.rows.size());
  for (std::size_t f = 0; f < look.rows.size(); ++f) {
    if (f >= setting.twins)
      weights.of_field[f] = weights.of_all;
    else if (errors.fit[f])
      weights.of_field[f] = weights_of(envelope.without(f), units);
  }
  return weights;
}

void scale_columns(const TwinSetting& setting, const std::vector<double>& elements, HeadErrors& errors) {
  if (share_along_columns(setting, errors) > 1 / fewest_of_a_column) return;
  for (std::size_t v = 0; v < elements.size(); ++v) {
    const double least = least_of_column(setting, errors, v);
    double most = least, next = least;
    const ErrorSums* worst = nullptr;
    for (std::size_t f = 0; f < setting.twins; ++f) {
      if (!errors.fit[f]) continue;
      const double energy = errors.fields[f].column_energy[v];
      if (energy > most)
        next = most, most = energy, worst = &errors.fields[f];
      else
        next = std::max(next, energy);
    }
    if (!(next > 0)) continue;
    const auto times = [&](double squares) { return std::max(elements[v] / squares, 1.0); };
    errors.column_truth[v] *= times(most);
    for (ErrorSums& sums : errors.fields) {
      if (sums.row_energy.empty()) continue;  // not fit
      sums.column_energy[v] *= times(&sums == worst ? next : most), sums.column_along[v] *= times(most);
    }
  }
}

AlongDirections::AlongDirections(const std::vector<Region>& regions, std::size_t fields)
    : is_finite_(regions.size(), true), fields_(fields, std::vector<AlongDirection>(regions.size())) {
  for (const Region region : regions) sums_.push_back({region});
}

void AlongDirections::add(std::size_t direction, float squares, float truth, double weight) {
  sums_[direction].squares += static_cast<double>(squares) * weight;
  sums_[direction].truth += static_cast<double>(truth) * weight;
}

void AlongDirections::add(std::size_t field, std::size_t direction, float along, double weight) {
  const double share = static_cast<double>(along) * weight;
  fields_[field][direction].sum += share, fields_[field][direction].squares += share * share;
}

void AlongDirections::take(HeadErrors& errors) {
  for (std::size_t n = 0; n < sums_.size(); ++n)
    for (std::size_t f = 0; f < errors.fit.size(); ++f)
      if (errors.fit[f] && sums_[n].squares > 0)
        sums_[n].coherence = std::max(sums_[n].coherence, fields_[f][n].squares / sums_[n].squares);
  errors.directions = finite(sums_);
  for (std::size_t f = 0; f < errors.fields.size(); ++f) errors.fields[f].directions = finite(fields_[f]);
}

template <class Sums>
std::vector<Sums> AlongDirections::finite(const std::vector<Sums>& of_directions) const {
  std::vector<Sums> kept;
  for (std::size_t n = 0; n < of_directions.size(); ++n)
    if (is_finite_[n]) kept.push_back(of_directions[n]);
  return kept;
}

bool DirectionSums::is_none() const { return !(squares > 0) || !std::isfinite(squares); }

std::size_t HeadErrors::fit_twins() const { return static_cast<std::size_t>(std::ranges::count(fit, true)); }

std::vector<bool> HeadErrors::fit_in(const TwinSetting& setting) const {
  const std::size_t compared = setting.twins - setting.stable;
  double most = 0;
  for (std::size_t f = compared; f < twin_squares.size(); ++f)
    if (std::isfinite(twin_squares[f])) most = std::max(most, twin_squares[f]);
  // What is stored correctly is fit, however exact others are.
  most = std::max(most, setting.storage_unit * setting.storage_unit * truth_squares);
  most *= setting.most_of_stable * setting.most_of_stable;
  if (setting.stable == 0) most = setting.most_rms_ratio * setting.most_rms_ratio * truth_squares;
  std::vector<bool> are_fit;
  for (const double squares : twin_squares)  // NaN is not
    are_fit.push_back(are_fit.size() < compared && squares <= most);
  return are_fit;
}

}  // namespace kda_check::judge
