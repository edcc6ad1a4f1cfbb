#include "hypotheses/explained.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "hypotheses/search_limits.hpp"

namespace kda_check::hypotheses {

namespace {

constexpr std::size_t block_size = 16;   ///< elements that a fault spoils together
constexpr std::size_t short_row = 8;     ///< rows below it are blocks with their neighbours: those of tokens
constexpr std::size_t fewest_tiles = 3;  ///< of a tensor's, that are given
constexpr std::size_t fewest_rows = 4;   ///< of a tile, each of which a computation that differs may give
constexpr double nothing = 1e-20;        ///< of a block's squared error: what a projection leaves of none

std::vector<std::uint8_t> reaches_in(const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  std::vector<std::uint8_t> tokens(d.B * d.T);
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t t = 0; t < sequence.length(); ++t)
      for (const std::size_t rows : {1, 16, 64, 256})
        tokens[sequence.batch * d.T + sequence.begin + t] += t >= rows;
  return tokens;
}

}  // namespace

double mean_of(const std::vector<double>& list) {
  double sum = 0;
  for (const double value : list) sum += value;
  return list.empty() ? 0 : sum / static_cast<double>(list.size());
}
double least_of(const std::vector<double>& list, double of_none) {
  return list.empty() ? of_none : *std::ranges::min_element(list);
}

Explained::Explained(const kda::Problem& problem, const kda::Tensors& output, const HeldOracle& truth,
                     std::size_t from_token)
    : reaches_(reaches_in(problem)) {
  for (const auto& [name, tensor] : output) {
    if (tensor.size() == 0) continue;
    const ExactValues& exact = truth.find(name)->second;
    const Differences errors = difference(tensor, exact);
    const tensor::Shape& shape = tensor.shape();
    const std::size_t width = shape.back(), rows = tensor.size() / width;
    const std::size_t heads = kda::has_tokens(name) && shape.size() == 4 ? shape[2] : 1;
    OfTensor one{name, width, heads, 0, values(tensor), exact.hi.data(), {}, {}};
    std::size_t first_row = 0;
    if (kda::has_tokens(name)) first_row = rows / shape[1] * std::min(from_token, shape[1]);
    one.first_row = first_row;
    const auto block = [&](std::size_t first, std::size_t stride, std::size_t count) {
      double square = 0, along = 0, size = 0;
      for (std::size_t i = first; i < first + stride * count; i += stride) {
        square += errors[i] * errors[i], along += errors[i] * exact.hi[i], size += exact.hi[i] * exact.hi[i];
      }
      double beside = size > 0 ? square - along * along / size : square;
      if (!(beside > nothing * square)) beside = square > 0 && std::isfinite(square) ? 0 : square;
      return Block{first, stride, count, square, beside};
    };
    double of_error = 0, of_truth = 0;
    for (std::size_t row = first_row; row < rows; ++row) {
      one.rows.push_back(block(row * width, 1, width));
      if (std::isfinite(one.rows.back().error)) of_error += one.rows.back().error;
      for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
        errors_ += errors[i] != 0 && std::isfinite(errors[i]);
        not_finite_ += !std::isfinite(errors[i]) && std::isfinite(exact.hi[i]);
        if (std::isfinite(exact.hi[i])) of_truth += exact.hi[i] * exact.hi[i];
      }
    }
    if (width >= short_row) {
      for (std::size_t row = first_row; row < rows; ++row)
        for (std::size_t i = 0; i < width; i += block_size)
          one.blocks.push_back(block(row * width + i, 1, std::min(block_size, width - i)));
    } else {
      for (std::size_t row = first_row; row < rows; row += block_size)
        for (std::size_t i = 0; i < width; ++i)
          one.blocks.push_back(block(row * width + i, width, std::min(block_size, rows - row)));
    }
    if (of_truth > 0) relative_error_ = std::max(relative_error_, std::sqrt(of_error / of_truth));
    tensors_.push_back(std::move(one));
  }
}

template <class Value>
std::vector<double> Explained::means(const kda::Tensors& prediction, bool robust, Value value) const {
  std::vector<double> list;
  for (const OfTensor& one : tensors_) {
    Differences left = values(prediction.find(one.name)->second);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = one.output[i] - left[i];
    double explained = 0;
    std::size_t counted = 0;
    for (const Block& block : robust ? one.blocks : one.rows) {
      double square = 0, along = 0, size = 0;
      // An error that lies along the truth altogether has no other part.
      const bool is_beside = robust && block.error_beside > 0;
      for (std::size_t i = block.first; i < block.first + block.stride * block.count; i += block.stride) {
        square += left[i] * left[i];
        if (is_beside) along += left[i] * one.truth[i], size += one.truth[i] * one.truth[i];
      }
      double beside = size > 0 ? square - along * along / size : square;
      if (is_beside && !(beside > nothing * square)) beside = std::isfinite(square) ? 0 : square;
      const double error = is_beside ? block.error_beside : block.error;
      if (!std::isfinite(error) || (error == 0 && beside == 0)) continue;
      explained += value(std::isfinite(beside) && error > 0 ? std::max(-1.0, 1 - beside / error) : -1);
      ++counted;
    }
    if (counted > 0) list.push_back(explained / static_cast<double>(counted));
  }
  return list;
}

std::vector<double> Explained::by(const kda::Tensors& prediction) const {
  return means(prediction, false, std::identity{});
}
std::vector<double> Explained::robustly_by(const kda::Tensors& prediction) const {
  return means(prediction, true, std::identity{});
}
std::vector<double> Explained::blocks_explained_by(const kda::Tensors& prediction, double least) const {
  return means(prediction, true, [&](double explained) { return explained >= least ? 1.0 : 0.0; });
}
Explained::Given Explained::given_by(const kda::Tensors& prediction) const {
  Given all{0, true};
  std::set<double> given_errors;
  for (const OfTensor& one : tensors_) {
    const tensor::Tensor& predicted = prediction.find(one.name)->second;
    const std::size_t rows = one.output.size() / one.width;
    struct Tile {
      bool is_given = true;
      std::uint8_t reach = 0;
      std::size_t rows = 0;
      std::vector<double> errors = {};
    };
    std::vector<Tile> tiles(((rows + one.heads - 1) / one.heads + block_size - 1) / block_size * one.heads);
    for (std::size_t row = one.first_row; row < rows; ++row) {
      Tile& tile = tiles[row / one.heads / block_size * one.heads + row % one.heads];
      ++tile.rows;
      if (kda::has_tokens(one.name)) tile.reach = std::max(tile.reach, reaches_[row / one.heads]);
      for (std::size_t i = row * one.width; i < (row + 1) * one.width; ++i) {
        tile.is_given = tile.is_given && predicted.value(i) == one.output[i];
        if (one.output[i] != one.truth[i]) tile.errors.push_back(one.output[i] - one.truth[i]);
      }
    }
    std::map<std::uint8_t, std::pair<std::size_t, std::size_t>> by_reach;  // given, there
    for (const Tile& tile : tiles) {
      if (tile.is_given && tile.errors.empty()) continue;
      auto& [given, there] = by_reach[tile.reach];
      ++there, given += tile.is_given;
      if (!tile.is_given) continue;
      for (const double error : tile.errors)
        if (given_errors.size() < fewest_errors_of_starts && std::isfinite(error)) given_errors.insert(error);
    }
    const bool may_be_luck =
        std::ranges::all_of(tiles, [](const Tile& tile) { return tile.rows < fewest_rows; });
    std::size_t tiles_given = 0;
    for (const auto& [reach, counts] : by_reach) {
      tiles_given += counts.first;
      all.is_most = all.is_most && (may_be_luck ? 1 : 2) * counts.first >= counts.second;
    }
    all.tiles += tiles_given;
    all.is_most = all.is_most && (tiles_given >= fewest_tiles || !kda::has_tokens(one.name));
  }
  all.is_most = all.is_most && given_errors.size() >= fewest_errors_of_starts;
  return all;
}
}  // namespace kda_check::hypotheses
