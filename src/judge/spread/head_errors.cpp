#include "judge/spread/head_errors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "judge/spread/head_scale.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::judge {

namespace {

static_assert(kda::row_lanes == tile_side);

/// By row, of what are numbers.
std::vector<double> largest_values(const HeadRows& truth, std::size_t rows, std::size_t stride) {
  std::vector<double> largest(rows, 0.0), row(stride);
  for (std::size_t r = 0; r < rows; ++r) {
    truth.read(r, row.data());
    for (std::size_t v = 0; v < stride; ++v)
      if (const double x = std::fabs(row[v]); x <= std::numeric_limits<double>::max())
        largest[r] = std::max(largest[r], x);
  }
  return largest;
}

/// One row of the truth and of the fields, in its unit.
class Row {
 public:
  Row(const HeadValues& values, const Units& units, std::size_t stride, bool from_first_twin)
      : values_(values),
        units_(units),
        from_first_twin_(from_first_twin),
        exact_(stride),
        moved_(stride),
        reference_(stride),
        truth_(stride),
        error_(stride) {}

  void go_to(std::size_t row) {
    row_ = row, unit_ = units_.to_row(row);
    values_.truth.read(row, exact_.data());
    if (from_first_twin_) values_.fields.front().read(row, reference_.data());
    const double unit = unit_;
    for (std::size_t begin = 0; begin < exact_.size(); begin += tile_side) {
      const double* const exact = &exact_[begin];
      float* const truth = &truth_[begin];
      for (std::size_t i = 0; i < tile_side; ++i) truth[i] = static_cast<float>(exact[i] * unit);
    }
  }
  const std::vector<float>& truth() const { return truth_; }
  /// y - x of one field, or how far it is from the first twin; valid until the next call.
  const std::vector<float>& error(std::size_t field) {
    return error_to(from_first_twin_ ? reference_ : exact_, field);
  }
  const std::vector<float>& error_to_truth(std::size_t field) { return error_to(exact_, field); }
  /// False: it is not finite.
  bool read(const Direction& direction, std::vector<float>& to) {
    direction.answer.read(row_, moved_.data());
    const double unit = unit_, per_unit = 1 / direction.step;
    std::uint32_t largest = 0;
    for (std::size_t v = 0; v < to.size(); ++v) {
      const auto change = static_cast<float>((moved_[v] - exact_[v]) * per_unit);
      largest = std::max(largest, std::bit_cast<std::uint32_t>(change) & 0x7fff'ffff);
      to[v] = static_cast<float>(static_cast<double>(change) * unit);
    }
    return largest < 0x7f80'0000;
  }

 private:
  const std::vector<float>& error_to(const std::vector<double>& expected, std::size_t field) {
    values_.fields[field].read(row_, error_.data());
    kda::kernel_table().rows.errors({error_.size(), expected.data(), unit_, largest_error, error_.data()});
    return error_;
  }

  const HeadValues& values_;
  const Units& units_;
  const bool from_first_twin_;
  std::size_t row_ = 0;
  double unit_ = 1;
  std::vector<double> exact_, moved_, reference_;
  std::vector<float> truth_, error_;
};

float product(const std::vector<float>& a, const std::vector<float>& b) {
  return kda::kernel_table().rows.product(a.data(), b.data(), a.size());
}

/// Adds up the errors of one field, row by row.
class FieldSums {
 public:
  /// `weights`: of energies; `weights_along`: of slopes. They and the others must stay.
  FieldSums(const RowLayout& layout, const Tiles& tiles, const std::vector<float>& weights,
            const std::vector<float>& weights_along, double unit)
      : layout_(layout),
        tiles_(tiles),
        weights_(weights),
        weights_along_(weights_along),
        unit_(unit),
        columns_(padded_width(layout.width), 0.0F),
        columns_along_(columns_),
        tiles_of_row_(columns_.size() / tile_side) {
    sums_.row_energy.resize(layout.rows), sums_.row_along.resize(layout.rows);
    sums_.column_energy.assign(columns_.size(), 0.0), sums_.column_along.assign(columns_.size(), 0.0);
    sums_.tile_energy.assign(tiles.elements.size(), 0.0);
  }

  void add(std::size_t r, const std::vector<float>& error, const std::vector<float>& truth) {
    const float weight = weights_[r], along_weight = weights_along_[r] * weights_along_[r];
    kda::RowEnergies row{
        error.size(),    error.data(),          truth.data(),         weight, largest_excess, along_weight,
        columns_.data(), columns_along_.data(), tiles_of_row_.data(), 0};
    kda::kernel_table().rows.energies(row);
    double row_energy = 0;
    double* const tile_energy = &sums_.tile_energy[tiles_.row_of_tiles[r] * tiles_.across];
    for (std::size_t tile = 0; tile < tiles_of_row_.size(); ++tile) {
      const auto of_tile = static_cast<double>(tiles_of_row_[tile]);
      row_energy += of_tile;
      tile_energy[tile] += of_tile;
      // An element's own share is at most that of these sixteen.
      if (of_tile > sums_.element_energy) find_element(r, tile * tile_side, error, truth);
    }
    sums_.row_energy[r] = static_cast<float>(row_energy);
    sums_.row_along[r] = row.along;
    if (r % rows_of_fp32_sums == rows_of_fp32_sums - 1 || r + 1 == layout_.rows) take_columns();
  }
  ErrorSums take(double squares) {
    sums_.squares = squares;
    return std::move(sums_);
  }

 private:
  static constexpr std::size_t rows_of_fp32_sums = 64;

  void find_element(std::size_t row, std::size_t begin, const std::vector<float>& error,
                    const std::vector<float>& truth) {
    const float weight = weights_[row];
    // Most tiles have none, which fp32 can tell with some slack; what is not negative is ordered as its bits.
    constexpr float surely = 1 - 0x1p-18F;
    const auto least = static_cast<float>(sums_.element_energy) * surely,
               unit = static_cast<float>(unit_) * weight;
    bool may_have = !(sums_.element_energy > nothing);
    for (std::size_t i = begin; i < begin + tile_side; ++i) {
      const float excess = error[i] * weight, rounding = truth[i] * unit;
      may_have |= std::bit_cast<std::int32_t>(excess * excess) >=
                  std::bit_cast<std::int32_t>(least * (1 + rounding * rounding));
    }
    if (!may_have) return;
    for (std::size_t i = begin; i < begin + tile_side; ++i) {
      const float excess = std::clamp(error[i] * weight, -largest_excess, largest_excess);
      const auto share = static_cast<double>(excess * excess);
      const double rounding = unit_ * static_cast<double>(truth[i]) * static_cast<double>(weight);
      const double energy = share / (1 + rounding * rounding);
      if (energy > sums_.element_energy) {
        sums_.element_energy = energy, sums_.element = row * layout_.width + i;
        sums_.element_share = share;
      }
    }
  }
  void take_columns() {
    for (std::size_t v = 0; v < columns_.size(); ++v) {
      sums_.column_energy[v] += static_cast<double>(columns_[v]), columns_[v] = 0;
      sums_.column_along[v] += static_cast<double>(columns_along_[v]), columns_along_[v] = 0;
    }
  }

  const RowLayout& layout_;
  const Tiles& tiles_;
  const std::vector<float>&weights_, &weights_along_;
  const double unit_;
  ErrorSums sums_;
  std::vector<float> columns_, columns_along_, tiles_of_row_;
};

/// The directions of a head, in units of one row after the other.
class DirectionRows {
 public:
  DirectionRows(const std::vector<Direction>& directions, std::size_t fields, std::size_t stride)
      : directions_(directions),
        rows_(directions.size(), std::vector<float>(stride)),
        sums_(regions_of(directions), fields) {}

  /// `weight`: of squares.
  void begin(Row& row, double weight) {
    weight_ = weight;
    for (std::size_t n = 0; n < rows_.size(); ++n) {
      if (!row.read(directions_[n], rows_[n])) sums_.is_none(n);
      sums_.add(n, product(rows_[n], rows_[n]), product(rows_[n], row.truth()), weight);
    }
  }
  void add(std::size_t field, const std::vector<float>& error) {
    for (std::size_t n = 0; n < rows_.size(); ++n) sums_.add(field, n, product(rows_[n], error), weight_);
  }
  void take(HeadErrors& errors) { sums_.take(errors); }

 private:
  static std::vector<Region> regions_of(const std::vector<Direction>& directions) {
    std::vector<Region> regions;
    for (const Direction& direction : directions) regions.push_back(direction.region);
    return regions;
  }

  const std::vector<Direction>& directions_;
  std::vector<std::vector<float>> rows_;  ///< by direction
  AlongDirections sums_;
  double weight_ = 1;
};

}  // namespace

HeadErrors head_errors(const TwinSetting& setting, const Tiles& tiles, const RowCells& chunk_of,
                       const HeadValues& values) {
  const RowLayout& layout = setting.layout;
  const std::size_t R = layout.rows, stride = padded_width(layout.width), fields = values.fields.size();
  const Units units(largest_values(values.truth, R, stride));
  Row row(values, units, stride, setting.left.has_value());
  FirstLook look(R, fields);
  if (setting.left) look.twins_to_truth.assign(setting.twins, RowSums(R));
  for (std::size_t r = 0; r < R; ++r) {
    row.go_to(r);
    double sum = 0;
    for (const float x : row.truth()) sum += static_cast<double>(x) * static_cast<double>(x);
    look.add_truth(r, sum, units);
    for (std::size_t f = 0; f < fields; ++f) {
      const std::vector<float>& error = row.error(f);
      look.add(look.rows[f], r, product(error, error), product(error, row.truth()), units);
    }
    for (std::size_t f = 0; f < look.twins_to_truth.size(); ++f) {
      const std::vector<float>& error = row.error_to_truth(f);
      look.add(look.twins_to_truth[f], r, product(error, error), product(error, row.truth()), units);
    }
  }
  HeadErrors errors;
  const HeadWeights weights = weights_for(setting, chunk_of, units, look, errors);
  if (weights.empty()) return errors;

  errors.row_truth.resize(R), errors.column_truth.assign(stride, 0.0);
  std::vector<std::optional<FieldSums>> sums(fields);
  for (std::size_t f = 0; f < fields; ++f)
    if (!weights.of_field[f].empty())
      sums[f].emplace(layout, tiles, weights.of_field[f], weights.of_all, setting.storage_unit);
  DirectionRows directions(values.directions, fields, stride);
  for (std::size_t r = 0; r < R; ++r) {
    row.go_to(r);
    const double weight = weights.of_squares(r);
    double of_row = 0;
    const float* const truth = row.truth().data();
    double* const of_columns = errors.column_truth.data();
    for (std::size_t v = 0; v < stride; ++v) {
      const double share = static_cast<double>(truth[v]) * static_cast<double>(truth[v]) * weight;
      of_row += share, of_columns[v] += share;
    }
    errors.row_truth[r] = static_cast<float>(of_row);
    directions.begin(row, weight);
    for (std::size_t f = 0; f < fields; ++f) {
      if (!sums[f]) continue;
      const std::vector<float>& error = row.error(f);
      sums[f]->add(r, error, row.truth());
      directions.add(f, error);
    }
  }
  for (std::size_t f = 0; f < fields; ++f)
    errors.fields.push_back(sums[f] ? sums[f]->take(look.rows[f].total) : ErrorSums());
  directions.take(errors);
  return errors;
}

}  // namespace kda_check::judge
