#include "judge/spread/gpu_head_errors.hpp"

#include <algorithm>
#include <utility>

#include "base/threads/parallel.hpp"
#include "judge/spread/head_scale.hpp"

namespace kda_check::judge {

namespace {

using kda::Numbers;

/// The first row of each row of tiles, and the number of rows.
std::vector<std::uint32_t> rows_of_tiles(const Tiles& tiles) {
  std::vector<std::uint32_t> first;
  const std::size_t rows = tiles.row_of_tiles.size();
  for (std::size_t r = 0; r < rows; ++r)
    if (tiles.row_of_tiles[r] == first.size()) first.push_back(static_cast<std::uint32_t>(r));
  first.push_back(static_cast<std::uint32_t>(rows));
  return first;
}

/// One head after its first look.
struct Looked {
  HeadErrors errors = {};
  HeadWeights weights = {};
  std::vector<double> squares = {};  ///< by field, of the whole head
};

class HeadsRun {
 public:
  HeadsRun(const TwinSetting& setting, const Tiles& tiles, const RowCells& chunk_of, const HeadsOnGpu& values,
           int threads)
      : setting_(setting),
        tiles_(tiles),
        chunk_of_(chunk_of),
        values_(values),
        threads_(threads),
        rows_(setting.layout.rows),
        fields_(values.fields.size()),
        heads_(values.heads),
        looked_(values.heads) {}

  std::vector<HeadErrors> run() {
    const std::unique_ptr<kda::RowErrorSums> gpu = kda::row_errors_on_gpu(request());
    look(*gpu);
    if (std::ranges::any_of(looked_, [](const Looked& head) { return !head.weights.empty(); })) take(*gpu);
    std::vector<HeadErrors> errors;
    for (Looked& head : looked_) errors.push_back(std::move(head.errors));
    return errors;
  }

 private:
  kda::RowErrorRequest request() const {
    return {rows_,
            heads_,
            setting_.layout.width,
            values_.truth,
            values_.fields,
            values_.directions,
            values_.step,
            largest_error,
            largest_excess,
            setting_.storage_unit,
            rows_of_tiles(tiles_)};
  }
  template <class Body>
  void over_heads(const Body& body) const {
    parallel_for(heads_, threads_, [&](std::size_t head, int) { body(head); });
  }

  void look(kda::RowErrorSums& gpu) {
    const Numbers<double> largest = gpu.largest();
    Numbers<double> to_rows(heads_ * rows_);
    std::vector<std::optional<Units>> units(heads_);
    over_heads([&](std::size_t head) {
      units[head].emplace(largest.part(head, rows_));
      for (std::size_t r = 0; r < rows_; ++r) to_rows.values[head * rows_ + r] = units[head]->to_row(r);
    });
    const kda::RowProducts products = gpu.products(to_rows.part(0, to_rows.size));
    over_heads([&](std::size_t head) {
      FirstLook look(rows_, fields_);
      const std::span<const double> truth = products.truth.part(head, rows_);
      for (std::size_t r = 0; r < rows_; ++r) look.add_truth(r, truth[r], *units[head]);
      for (std::size_t f = 0; f < fields_; ++f) {
        const std::span<const float> squares = products.squares.part(f * heads_ + head, rows_),
                                     along = products.along.part(f * heads_ + head, rows_);
        for (std::size_t r = 0; r < rows_; ++r)
          FirstLook::add(look.rows[f], r, squares[r], along[r], *units[head]);
      }
      Looked& looked = looked_[head];
      looked.weights = weights_for(setting_, chunk_of_, *units[head], look, looked.errors);
      for (const RowSums& sums : look.rows) looked.squares.push_back(sums.total);
    });
  }

  void take(kda::RowErrorSums& gpu) {
    Numbers<float> weights(fields_ * heads_ * rows_), of_all(heads_ * rows_);
    over_heads([&](std::size_t head) {
      const HeadWeights& own = looked_[head].weights;
      // Of what is not measured, anything.
      const auto set = [&](const std::vector<float>& from, float* to) {
        from.empty() ? std::fill_n(to, rows_, 0.0F) : std::copy_n(from.data(), rows_, to);
      };
      set(own.of_all, &of_all.values[head * rows_]);
      for (std::size_t f = 0; f < fields_; ++f)
        set(own.empty() ? own.of_all : own.of_field[f], &weights.values[(f * heads_ + head) * rows_]);
    });
    const kda::RowSumsOfEnvelopes sums = gpu.sums(weights.part(0, weights.size), of_all.part(0, of_all.size));
    over_heads([&](std::size_t head) {
      if (!looked_[head].weights.empty()) take(sums, head);
    });
  }

  template <class Number>
  static std::vector<Number> copied(const Numbers<Number>& numbers, std::size_t part, std::size_t count) {
    const std::span<const Number> from = numbers.part(part, count);
    return {from.begin(), from.end()};
  }

  void take(const kda::RowSumsOfEnvelopes& sums, std::size_t head) {
    HeadErrors& errors = looked_[head].errors;
    const HeadWeights& weights = looked_[head].weights;
    const std::size_t stride = padded_width(setting_.layout.width), tiles = tiles_.elements.size(),
                      sixteens = (rows_ + tile_side - 1) / tile_side;
    errors.row_truth = copied(sums.row_truth, head, rows_);
    errors.column_truth = copied(sums.column_truth, head, stride);
    for (std::size_t f = 0; f < fields_; ++f) {
      ErrorSums& field = errors.fields.emplace_back();
      if (weights.of_field[f].empty()) continue;
      const std::size_t part = f * heads_ + head;
      field.row_energy = copied(sums.row_energy, part, rows_);
      field.row_along = copied(sums.row_along, part, rows_);
      field.column_energy = copied(sums.column_energy, part, stride);
      field.column_along = copied(sums.column_along, part, stride);
      field.tile_energy = copied(sums.tile_energy, part, tiles);
      for (const kda::LargestElement& largest : sums.largest.part(part, sixteens))
        if (largest.energy > field.element_energy)
          field.element_energy = largest.energy, field.element_share = largest.share,
          field.element = static_cast<std::size_t>(largest.element);
      field.squares = looked_[head].squares[f];
    }
    take_directions(sums, head);
  }

  void take_directions(const kda::RowSumsOfEnvelopes& sums, std::size_t head) {
    const HeadWeights& weights = looked_[head].weights;
    const bool has_some = !values_.have_directions.empty() && values_.have_directions[head];
    const std::vector<Region> regions = has_some ? values_.regions : std::vector<Region>();
    AlongDirections directions(regions, fields_);
    for (std::size_t n = 0; n < regions.size(); ++n) {
      if (*sums.is_finite.part(n * heads_ + head, 1).data() == 0) directions.is_none(n);
      const std::span<const float> squares = sums.direction_squares.part(n * heads_ + head, rows_),
                                   truth = sums.direction_truth.part(n * heads_ + head, rows_);
      for (std::size_t r = 0; r < rows_; ++r) directions.add(n, squares[r], truth[r], weights.of_squares(r));
      for (std::size_t f = 0; f < fields_; ++f) {
        if (weights.of_field[f].empty()) continue;
        const std::span<const float> along =
            sums.along_directions.part((f * regions.size() + n) * heads_ + head, rows_);
        for (std::size_t r = 0; r < rows_; ++r) directions.add(f, n, along[r], weights.of_squares(r));
      }
    }
    directions.take(looked_[head].errors);
  }

  const TwinSetting& setting_;
  const Tiles& tiles_;
  const RowCells& chunk_of_;
  const HeadsOnGpu& values_;
  const int threads_;
  const std::size_t rows_, fields_, heads_;
  std::vector<Looked> looked_;
};

}  // namespace

kda::RowTensor rows_on_gpu(kda::TensorOnGpu tensor, numeric::DType stored_as, const RowLayout& layout,
                           std::size_t head) {
  return {std::move(tensor),
          stored_as,
          {layout.element(0, head, 0), layout.block_rows, layout.block_stride, layout.row_stride,
           layout.head_stride, layout.column_stride}};
}

std::vector<HeadErrors> head_errors_on_gpu(const TwinSetting& setting, const Tiles& tiles,
                                           const RowCells& chunk_of, const HeadsOnGpu& values, int threads) {
  return HeadsRun(setting, tiles, chunk_of, values, threads).run();
}

}  // namespace kda_check::judge
