#include "explain/names/ways.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>

#include "base/names.hpp"
#include "explain/names/launch_search.hpp"
#include "kda/arithmetic/launch_words.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/arithmetic/stored_words.hpp"
#include "kda/head/launch_choices.hpp"

namespace kda_check::explain {

namespace {

using kda::Problem;
using kda::Rounding;
using numeric::DType;

constexpr std::size_t usual_chunk_sizes[] = {16, 32, 64};
constexpr Rounding roundings[] = {Rounding::none, Rounding::bf16, Rounding::fp16, Rounding::tf32};

bool is_possible(const Way& way, const Problem& problem) {
  return (way.pass == kda::Pass::forward ||
          kda::lacks_gradients(way.options.arithmetic, problem.dimensions().strength).empty()) &&
         way.variant->has_dtype(way.options.dtype) && way.variant->unsupported(problem, way.options).empty();
}

kda::CastPoints casts_of(const Way& way, const Problem& problem) {
  return kda::cast_points(way.options.arithmetic, way.options.dtype, problem.beta_is_16_bit(),
                          way.variant->axes.chunk);
}

/// Whether a run of the way on the problem comes past a cast point.
bool has_point(const kda::CastPointRow& row, const Way& way, const Problem& problem) {
  if (row.point == &kda::CastPoints::normalised) return problem.options.qk_l2norm;
  if (row.point == &kda::CastPoints::initial_state && !problem.initial_state) return false;
  if (row.point == &kda::CastPoints::transition || row.point == &kda::CastPoints::segment_state)
    return way.options.arithmetic.segments.merge != kda::SegmentMerge::none;
  return (way.pass == kda::Pass::backward || !row.backward) &&
         (way.variant->axes.chunk ? row.in_chunk_form : row.in_token_forms);
}

std::string text_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::none:
      break;
    case Rounding::bf16:
      return "rounded to bf16";
    case Rounding::fp16:
      return "rounded to fp16";
    case Rounding::tf32:
      return "rounded to tf32";
  }
  return "not rounded";
}

/// "key=value" of a key, as describe() has it: that of the token forms leaves out what is usual, which that
/// of the chunk form names.
std::string word_of(const kda::Arithmetic& arithmetic, kda::ArithmeticAxes axes, const std::string& key) {
  for (const kda::ArithmeticAxes described : {axes, kda::ArithmeticAxes{true}})
    for (std::string& word : split(kda::describe(arithmetic, described), ' '))
      if (word.starts_with(key + "=")) return word;
  return key == "stored" ? "stored=" + kda::words_of(arithmetic.stored) : std::string();
}

class Near {
 public:
  Near(const Way& known, const Problem& problem) : known_(known), problem_(problem) {}

  std::vector<Way> ways() {
    for (const kda::AxisDescription& axis : kda::axis_descriptions())
      if (axis.key != "launch" && axis.key != "segments" &&
          kda::has_axis(known_.variant->axes, axis.key + "="))
        for (const std::string& name : axis.names) add_value(axis.key, name);
    if (known_.variant->axes.chunk)
      for (const std::size_t size : usual_chunk_sizes) add_chunk_size(size);
    if (known_.options.dtype != DType::fp64) add_cast_points();
    return std::move(ways_);
  }

 private:
  void add(Way way) {
    // Of another order of sums there is no launch to keep.
    if (!kda::is_triton(way.options.arithmetic.reduction)) way.options.arithmetic.launch = {};
    if (is_possible(way, problem_)) ways_.push_back(std::move(way));
  }

  void add_value(const std::string& key, std::string name) {
    if (name.ends_with(":N") || name.ends_with(":X")) name.resize(name.size() - 2);
    Way way = known_;
    kda::Arithmetic& arithmetic = way.options.arithmetic;
    kda::set_axis(arithmetic, key + "=" + name);
    const std::string before = word_of(known_.options.arithmetic, way.variant->axes, key);
    way.word = word_of(arithmetic, way.variant->axes, key);
    if (way.word == before) return;
    way.change = fmt::format("{} -> {}", before, way.word);
    add(std::move(way));
  }

  void add_chunk_size(std::size_t size) {
    if (size == known_.options.chunk_size) return;
    Way way = known_;
    way.options.chunk_size = size;
    way.change = fmt::format("chunks of {} -> {}", known_.options.chunk_size, size);
    add(std::move(way));
  }

  void add_cast_points() {
    const kda::CastPoints casts = casts_of(known_, problem_);
    for (const kda::CastPointRow& row : kda::cast_point_rows()) {
      if (!has_point(row, known_, problem_)) continue;
      for (const Rounding rounding : roundings) {
        if (rounding == casts.*row.point) continue;
        Way way = known_;
        way.options.arithmetic.storage = kda::Storage::named;
        way.options.arithmetic.casts = casts;
        way.options.arithmetic.casts.*row.point = rounding;
        way.change =
            fmt::format("storage: {} {} -> {}", row.name, text_of(casts.*row.point), text_of(rounding));
        way.word = "storage=" + kda::axis_value(way.options.arithmetic, "storage");
        add(std::move(way));
      }
    }
  }

  const Way& known_;
  const Problem& problem_;
  std::vector<Way> ways_;
};

/// "launch=pairs:2x32x1"; empty where it is the one that is taken for an open one.
std::string launch_word(const Way& way, const Problem& problem) {
  const kda::Arithmetic& arithmetic = way.options.arithmetic;
  const kda::Launch launch =
      kda::left_open(arithmetic.launch, kda::launch_choices(problem, arithmetic, way.pass));
  return launch == kda::Launch{} ? std::string() : "launch=" + kda::words_of(launch);
}

}  // namespace

std::string identity(const Way& way, const Problem& problem) {
  kda::Arithmetic arithmetic = way.options.arithmetic;
  const kda::CastPoints casts = casts_of(way, problem);
  arithmetic.casts = {};
  for (const kda::CastPointRow& row : kda::cast_point_rows())
    if (has_point(row, way, problem)) arithmetic.casts.*row.point = casts.*row.point;
  arithmetic.storage = kda::Storage::named;
  const kda::ArithmeticAxes axes = way.variant->axes;
  const std::string text = kda::describe(arithmetic, axes);
  if (axes.chunk) return fmt::format("{} {}", text, way.options.chunk_size);
  return way.pass == kda::Pass::forward ? text : fmt::format("{} {}", text, way.variant->name);
}

std::vector<Way> known_ways(const Problem& problem, DType dtype, kda::Pass pass) {
  std::vector<Way> ways;
  std::set<std::string> known;
  const auto add = [&](Way way) {
    if (is_possible(way, problem) && known.insert(identity(way, problem)).second)
      ways.push_back(std::move(way));
  };
  const auto add_in_chunks = [&](Way way) {
    add(way);
    if (!way.variant->axes.chunk) return;
    for (const std::size_t size : usual_chunk_sizes) {
      way.options.chunk_size = size;
      add(way);
    }
  };
  const std::span<const kda::Preset> presets = kda::presets();
  const auto usual_of = [&](const kda::Variant& variant) {
    Way way;
    way.variant = &variant;
    way.pass = pass;
    way.options.dtype = dtype;
    way.options.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
    way.options.arithmetic = variant.default_arithmetic(problem, dtype);
    return way;
  };
  const auto add_preset = [&](const kda::Variant& variant, const kda::Preset& preset) {
    Way way = usual_of(variant);
    way.preset = preset.name;
    kda::set_axis(way.options.arithmetic, preset.name);
    add_in_chunks(std::move(way));
  };
  // Of those that compute alike the first is named: kernels before what any variant may be, and of these the
  // last of the lists, what is special to a form.
  for (auto preset = presets.rbegin(); preset != presets.rend(); ++preset)
    if (!preset->variant.empty()) add_preset(kda::variant_named(preset->variant), *preset);
  const auto variants = kda::variants();
  for (auto variant = variants.rbegin(); variant != variants.rend(); ++variant) {
    if (kda::is_on_gpu(*variant)) continue;
    for (auto preset = presets.rbegin(); preset != presets.rend(); ++preset)
      if (preset->variant.empty()) add_preset(*variant, *preset);
    add_in_chunks(usual_of(*variant));
  }
  return ways;
}

std::vector<Way> ways_near(const Way& known, const Problem& problem) { return Near(known, problem).ways(); }

std::string text_of(const Way& way, const Problem& problem) {
  std::string text(way.variant->name);
  if (!way.preset.empty()) text += " under " + way.preset;
  if (way.variant->axes.chunk &&
      way.options.chunk_size != static_cast<std::size_t>(problem.options.chunk_size))
    fmt::format_to(std::back_inserter(text), " in chunks of {}", way.options.chunk_size);
  if (const std::string launch = launch_word(way, problem); !launch.empty()) text += " with " + launch;
  return way.change.empty() ? text : text + ", " + way.change;
}

std::string arithmetic_words(const Way& way, const Problem& problem) {
  std::vector<std::string> words{way.preset, launch_word(way, problem), way.word};
  std::erase(words, std::string());
  return join(words, ",");
}

}  // namespace kda_check::explain
