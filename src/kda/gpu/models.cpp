#include "kda/gpu/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/append.hpp"
#include "base/threads/parallel.hpp"
#include "cuda/probe/instructions.hpp"
#include "kda/arithmetic/rounded.hpp"
#include "kda/gpu/product_draws.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda {

namespace {

using Watch = std::function<void(const std::string&)>;
namespace h100 = numeric::h100;

bool agree(float got, float expected) {
  return std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(expected) ||
         (got != got && expected != expected);
}
std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
std::string answers_text(float got, float expected) {
  return fmt::format("got 0x{:08x} ({:.9g}), expected 0x{:08x} ({:.9g})", bits_of(got), got,
                     bits_of(expected), expected);
}

// ---- functions

constexpr std::size_t piece = 2048;  ///< inputs at a time: they stay in a core's cache
constexpr std::size_t pieces_of_item = 32;

class FunctionReading {
 public:
  explicit FunctionReading(const h100::FunctionTrial& trial) : trial_(trial) {}

  void add(std::uint64_t first, std::span<const float> answers) {
    constexpr std::size_t each = piece * pieces_of_item;
    std::vector<Found> items((answers.size() + each - 1) / each);
    parallel_for(items.size(), available_threads(), [&](std::size_t item, int) {
      const std::size_t end = std::min(answers.size(), (item + 1) * each);
      for (std::size_t i = item * each; i < end; i += piece)
        compare(first + i, answers.subspan(i, std::min(piece, end - i)), items[item]);
    });
    for (const Found& found : items) {
      if (found_.mismatches == 0 && found.mismatches > 0) found_.first = found.first;
      found_.mismatches += found.mismatches;
    }
    inputs_ += answers.size();
  }

  ModelReading reading() const { return {trial_.name, "h100", inputs_, found_.mismatches, found_.first}; }

 private:
  struct Found {
    std::uint64_t mismatches = 0;
    std::string first;
  };

  void compare(std::uint64_t first, std::span<const float> got, Found& found) const {
    float x[piece], y[piece], expected[piece];
    for (std::size_t i = 0; i < got.size(); ++i) {
      const h100::Operands operands = h100::operands_of(trial_.inputs, first + i);
      x[i] = std::bit_cast<float>(operands.x), y[i] = std::bit_cast<float>(operands.y);
    }
    kernel_table().approximate({trial_.function, x, y, expected, got.size()});
    if (std::memcmp(got.data(), expected, got.size_bytes()) == 0) return;
    std::uint64_t mismatches = 0;  // but for NaN
    for (std::size_t i = 0; i < got.size(); ++i) mismatches += agree(got[i], expected[i]) ? 0 : 1;
    if (mismatches > 0 && found.mismatches == 0) {
      std::size_t i = 0;
      while (agree(got[i], expected[i])) ++i;
      const std::string divisor =
          trial_.inputs == h100::Inputs::patterns ? "" : fmt::format(" / 0x{:08x}", bits_of(y[i]));
      found.first = fmt::format("0x{:08x}{} ({:.9g}): {}", bits_of(x[i]), divisor, x[i],
                                answers_text(got[i], expected[i]));
    }
    found.mismatches += mismatches;
  }

  const h100::FunctionTrial& trial_;
  std::uint64_t inputs_ = 0;
  Found found_;
};

ModelReading read_function(const ModelledDevice& device, const h100::FunctionTrial& trial,
                           const ModelTrials& trials, const Watch& watch) {
  FunctionReading reading(trial);
  const std::uint64_t count = std::min(trial.count, trials.inputs);
  device.evaluate(trial, count, [&](std::uint64_t first, std::span<const float> answers) {
    if (watch)
      watch(fmt::format("{}: {:.0f} %", trial.name,
                        100.0 * static_cast<double>(first) / static_cast<double>(count)));
    reading.add(first, answers);
  });
  return reading.reading();
}

// ---- sums of tensor cores

struct SumFormat {
  const char* name;
  Rounding operands;
  Accumulator accumulator;
  const char* sinking;  ///< the sums whose largest exponent may have a floor; null: there are none so small
};
constexpr SumFormat sum_formats[] = {
    {"mma bf16", Rounding::bf16, Accumulator::fp32, "mma bf16 below 2^-132"},
    {"mma fp16", Rounding::fp16, Accumulator::fp32, nullptr},
    {"mma fp16 in fp16", Rounding::fp16, Accumulator::fp16, "mma fp16 in fp16 below 2^-20"},
    {"mma tf32", Rounding::tf32, Accumulator::fp32, "mma tf32 below 2^-132"},
};

constexpr Reduction core_models[] = {{ReductionKind::mma, 25}, {ReductionKind::mma, 24}};
constexpr std::size_t core_model_count = std::size(core_models);

constexpr std::size_t side = cuda::tile_side, tile_sums = side * side, tiles_at_once = 4096;

/// Tiles of one format, and what each model makes of them.
class TileReading {
 public:
  TileReading(const ModelledDevice& device, const SumFormat& format, bool sinking)
      : device_(device), format_(format), sinking_(sinking), depth_(cuda::tile_depth(format.operands)) {}

  void add(std::size_t first, std::size_t tiles) {
    a_.resize(tiles * side * depth_), b_.resize(a_.size()), start_.resize(tiles * tile_sums);
    parallel_for(tiles, available_threads(), [&](std::size_t tile, int) { draw(first, tile); });
    std::vector<float> got = start_;
    device_.multiply({format_.operands, format_.accumulator, tiles, a_.data(), b_.data(), got.data()});
    std::vector<Counts> counts(tiles);
    parallel_for(tiles, available_threads(), [&](std::size_t tile, int) {
      for (std::size_t model = 0; model < core_model_count; ++model)
        counts[tile].mismatches[model] = mismatches(model, first, tile, got.data(), nullptr);
    });
    for (std::size_t tile = 0; tile < tiles; ++tile)
      for (std::size_t model = 0; model < core_model_count; ++model) {
        const std::uint64_t found = counts[tile].mismatches[model];
        if (found == 0) continue;
        Found& all = found_[model];
        if (all.mismatches == 0) mismatches(model, first, tile, got.data(), &all.first);
        all.mismatches += found;
        all.of_kind[kind_index(first + tile)] += found;
      }
    sums_ += tiles * tile_sums;
  }

  ModelReading reading(std::size_t model) const {
    const Found& found = found_[model];
    ModelReading result{sinking_ ? format_.sinking : format_.name,
                        fmt::format("mma:{}", core_models[model].width), sums_, found.mismatches,
                        found.first};
    std::string kinds;
    for (std::size_t kind = 0; kind < draw_kinds.size() && !sinking_; ++kind)
      if (found.of_kind[kind] > 0)
        append(kinds, "{}{}: {}", kinds.empty() ? "" : ", ", draw_kinds[kind].name, found.of_kind[kind]);
    if (!kinds.empty()) result.first += fmt::format("; by kind of input: {}", kinds);
    return result;
  }

 private:
  struct Counts {
    std::uint64_t mismatches[core_model_count] = {};
  };
  struct Found {
    std::uint64_t mismatches = 0, of_kind[draw_kinds.size()] = {};
    std::string first;
  };

  static std::size_t kind_index(std::size_t number) { return number % draw_kinds.size(); }
  DrawKind kind(std::size_t number) const {
    return sinking_ ? DrawKind::sinking : draw_kinds[kind_index(number)].kind;
  }
  float* a(std::size_t tile) { return a_.data() + tile * side * depth_; }
  float* b(std::size_t tile) { return b_.data() + tile * side * depth_; }

  void draw(std::size_t first, std::size_t tile) {
    constexpr std::uint64_t seed = 1;
    const std::uint64_t stream =
        ((first + tile) * std::size(sum_formats) + static_cast<std::size_t>(&format_ - sum_formats)) * 2 +
        sinking_;
    ProductDraw numbers(seed, stream, format_.operands, format_.accumulator);
    numbers.fill(kind(first + tile), side, side, depth_, a(tile), b(tile), start_.data() + tile * tile_sums);
    if (format_.operands != Rounding::tf32) return;
    // What tf32 does not have is ignored; an infinity would be no number with it.
    const numeric::Random more(seed + 1, stream);
    for (std::size_t i = 0; i < side * depth_; ++i)
      for (float* const x : {a(tile) + i, b(tile) + i})
        if (*x - *x == 0)
          *x = std::bit_cast<float>(
              bits_of(*x) | static_cast<std::uint32_t>(more.bits(2 * i + (x == b(tile) + i)) & 0x1fff));
  }

  /// Of one tile; `text`: where the first is described.
  std::uint64_t mismatches(std::size_t model, std::size_t first, std::size_t tile, const float* got,
                           std::string* text) {
    TensorCore core = tensor_core(core_models[model], format_.operands, format_.accumulator);
    core.of_operands = format_.operands;
    const float* const start = start_.data() + tile * tile_sums;
    float expected[tile_sums];
    std::copy_n(start, tile_sums, expected);
    kernel_table().tensor_core({core, side, side, depth_, a(tile), b(tile), expected});
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < tile_sums; ++i) {
      const float answer = got[tile * tile_sums + i];
      if (agree(answer, expected[i])) continue;
      if (count == 0 && text != nullptr)
        *text = fmt::format("{}: {}", sum_text(first, tile, i), answers_text(answer, expected[i]));
      ++count;
    }
    return count;
  }

  std::string sum_text(std::size_t first, std::size_t tile, std::size_t i) {
    std::string text =
        sinking_ ? std::string() : fmt::format("{}: ", draw_kinds[kind_index(first + tile)].name);
    append(text, "{:a}", start_[tile * tile_sums + i]);
    for (std::size_t d = 0; d < depth_; ++d) {
      const float left = rounded(format_.operands, a(tile)[i / side * depth_ + d]),
                  right = rounded(format_.operands, b(tile)[d * side + i % side]);
      if (left * 0 == 0 && right * 0 == 0 && (left == 0 || right == 0)) continue;
      append(text, " + {:a}*{:a}", left, right);
    }
    return text;
  }

  const ModelledDevice& device_;
  const SumFormat& format_;
  const bool sinking_;
  const std::size_t depth_;
  std::vector<float> a_, b_, start_;
  std::uint64_t sums_ = 0;
  Found found_[core_model_count];
};

TileReading read_sums(const ModelledDevice& device, const SumFormat& format, bool sinking,
                      const ModelTrials& trials, const Watch& watch) {
  TileReading reading(device, format, sinking);
  const std::size_t all = (trials.sums + tile_sums - 1) / tile_sums, tiles = sinking ? (all + 9) / 10 : all;
  for (std::size_t first = 0; first < tiles; first += tiles_at_once) {
    if (watch) watch(fmt::format("{}: {} %", sinking ? format.sinking : format.name, 100 * first / tiles));
    reading.add(first, std::min(tiles_at_once, tiles - first));
  }
  return reading;
}

/// A device has one kind of tensor core: where a model holds, the others are rejected, and what is below is
/// asked of it alone.
void read_format(const ModelledDevice& device, const SumFormat& format, const ModelTrials& trials,
                 const Watch& watch, std::vector<ModelReading>& readings) {
  const TileReading sums = read_sums(device, format, false, trials, watch);
  bool one_holds = false;
  for (std::size_t model = 0; model < core_model_count; ++model)
    one_holds = one_holds || sums.reading(model).holds();
  for (std::size_t model = 0; model < core_model_count; ++model) {
    readings.push_back(sums.reading(model));
    readings.back().is_rejected = one_holds && !readings.back().holds();
  }
  if (format.sinking == nullptr) return;
  const TileReading sinking = read_sums(device, format, true, trials, watch);
  for (std::size_t model = 0; model < core_model_count; ++model)
    if (!one_holds || sums.reading(model).holds()) readings.push_back(sinking.reading(model));
}

}  // namespace

ModelledDevice gpu_at_hand() {
  return {[](const h100::FunctionTrial& trial, std::uint64_t count, const TakeAnswers& take) {
            cuda::evaluate({trial.function, trial.inputs, count}, take);
          },
          [](const Tiles& tiles) {
            cuda::multiply({tiles.format, tiles.accumulator, tiles.count, tiles.a, tiles.b, tiles.c});
          }};
}

std::vector<ModelReading> read_models(const ModelledDevice& device, const ModelTrials& trials,
                                      const Watch& watch) {
  std::vector<ModelReading> readings;
  for (const h100::FunctionTrial& trial : h100::function_trials)
    readings.push_back(read_function(device, trial, trials, watch));
  for (const SumFormat& format : sum_formats) read_format(device, format, trials, watch, readings);
  return readings;
}

}  // namespace kda_check::kda
