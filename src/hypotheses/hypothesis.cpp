#include "hypotheses/hypothesis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <span>

#include "base/append.hpp"
#include "base/names.hpp"
#include "hypotheses/launch_search.hpp"
#include "hypotheses/walk.hpp"
#include "kda/arithmetic/launch_words.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/arithmetic/stored_words.hpp"
#include "kda/head/launch_choices.hpp"
#include "kda/problem/excerpt.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using kda::Rounding;
using numeric::DType;

constexpr std::size_t usual_chunk_sizes[] = {16, 32, 64}, long_chunk_sizes[] = {128, 256};
constexpr int usual_widths[] = {4, 8, 16, 32, 64};  ///< of sums
constexpr int usual_parts[] = {2, 4, 8};            ///< of sequences
constexpr Rounding roundings[] = {Rounding::none, Rounding::bf16, Rounding::fp16, Rounding::tf32};

/// Whether a run of the hypothesis on the problem comes past a cast point.
bool has_point(const kda::CastPointRow& row, const Hypothesis& hypothesis, const Problem& problem) {
  if (row.point == &kda::CastPoints::normalised) return problem.options.qk_l2norm;
  if (row.point == &kda::CastPoints::initial_state && !problem.initial_state) return false;
  if (row.point == &kda::CastPoints::transition || row.point == &kda::CastPoints::segment_state)
    return hypothesis.options.arithmetic.segments.merge != kda::SegmentMerge::none;
  return (hypothesis.pass == kda::Pass::backward || !row.backward) &&
         (hypothesis.variant->axes.chunk ? row.in_chunk_form : row.in_token_forms);
}

/// "key=value" of a key, as describe() has it: that of the token forms leaves out what is usual, which that
/// of the chunk form names.
std::string word_of(const kda::Arithmetic& arithmetic, kda::ArithmeticAxes axes, const std::string& key) {
  for (const kda::ArithmeticAxes described : {axes, kda::ArithmeticAxes{true}})
    for (std::string& word : split(kda::describe(arithmetic, described), ' '))
      if (word.starts_with(key + "=")) return word;
  return key == "stored"     ? "stored=" + kda::words_of(arithmetic.stored)
         : key == "segments" ? "segments=none"
         : key == "heads"    ? "heads=grouped"
                             : std::string();
}

/// Query heads that are repeated outside are told from others by their gradients alone.
bool has_shared_heads(const Hypothesis& hypothesis, const Problem& problem) {
  return hypothesis.pass == kda::Pass::backward && problem.heads_per_group() > 1;
}

/// Of another order of sums there is no launch to keep.
void set_word(kda::Arithmetic& arithmetic, const std::string& word) {
  const kda::Reduction before = arithmetic.reduction;
  kda::set_axis(arithmetic, word);
  if (!(arithmetic.reduction == before) && !kda::is_triton(arithmetic.reduction)) arithmetic.launch = {};
}

class Neighbours {
 public:
  Neighbours(const Hypothesis& known, const Problem& problem)
      : known_(known), problem_(problem), longest_(kda::longest_of(problem.sequences())) {}

  std::vector<Hypothesis> all() {
    for (const kda::AxisDescription& axis : kda::axis_descriptions())
      if (axis.key != "launch" && (axis.key != "heads" || has_shared_heads(known_, problem_)) &&
          kda::has_axis(known_.variant->axes, axis.key + "="))
        for (const std::string& name : axis.names) add_value(axis.key, name);
    if (known_.variant->axes.chunk) add_chunk_sizes();
    if (known_.options.dtype != DType::fp64) add_cast_points();
    return std::move(found_);
  }

 private:
  void add(Hypothesis hypothesis, std::string step) {
    hypothesis.step = std::move(step);
    if (is_possible(hypothesis, problem_)) found_.push_back(std::move(hypothesis));
  }
  void add(const Setting& setting) { add(with_setting(known_, setting, problem_), setting.word); }

  void add_value(const std::string& key, std::string name) {
    const bool is_segments = key == "segments",
               has_width = is_segments ? name.ends_with(":P") : name == "tree:N" || name == "blocks:N";
    if (name.ends_with(":N") || name.ends_with(":X") || name.ends_with(":P")) name.resize(name.size() - 2);
    if (!has_width) return add_word(key, key + "=" + name);
    const std::span<const int> numbers =
        is_segments ? std::span<const int>(usual_parts) : std::span<const int>(usual_widths);
    for (const int number : numbers)
      if (!is_segments || static_cast<std::size_t>(number) * known_.options.chunk_size <= longest_)
        add_word(key, fmt::format("{}={}:{}", key, name, number));
  }

  void add_word(const std::string& key, const std::string& word) {
    Hypothesis hypothesis = known_;
    set_word(hypothesis.options.arithmetic, word);
    std::string step = word_of(hypothesis.options.arithmetic, hypothesis.variant->axes, key);
    if (step != word_of(known_.options.arithmetic, hypothesis.variant->axes, key))
      add(std::move(hypothesis), std::move(step));
  }

  void add_chunk_sizes() {
    for (const std::size_t size : usual_chunk_sizes) add_chunk_size(size);
    for (const std::size_t size : long_chunk_sizes)
      if (size / 2 < longest_) add_chunk_size(size);
  }

  void add_chunk_size(std::size_t size) {
    if (size != known_.options.chunk_size)
      add({fmt::format("chunk-size={}", size), nullptr, Rounding::none, size});
  }

  void add_cast_points() {
    const kda::CastPoints casts = casts_of(known_, problem_);
    for (const kda::CastPointRow& row : kda::cast_point_rows())
      if (has_point(row, known_, problem_))
        for (const Rounding rounding : roundings)
          if (rounding != casts.*row.point)
            add({fmt::format("{}@{}", name_of(rounding), row.name), row.point, rounding, 0});
    if (known_.variant->axes.chunk)
      for (const Rounding rounding : roundings) add_operands(casts, rounding);
  }

  void add_operands(const kda::CastPoints& casts, Rounding rounding) {
    Hypothesis hypothesis = known_;
    hypothesis.options.arithmetic.storage = kda::Storage::named;
    hypothesis.options.arithmetic.casts = casts;
    for (const kda::CastPointRow& row : kda::cast_point_rows())
      if (row.is_operand && has_point(row, known_, problem_))
        hypothesis.options.arithmetic.casts.*row.point = rounding;
    // What rounds as it is stored is not rounded as it is read, too.
    if (casts.tensor_core == rounding) hypothesis.options.arithmetic.casts.tensor_core = Rounding::none;
    add(std::move(hypothesis), fmt::format("{}@products", name_of(rounding)));
  }

  const Hypothesis& known_;
  const Problem& problem_;
  const std::size_t longest_;  ///< tokens of a sequence
  std::vector<Hypothesis> found_;
};

Hypothesis usual_of(const kda::Variant& variant, const Problem& problem, DType dtype, kda::Pass pass) {
  Hypothesis hypothesis;
  hypothesis.variant = &variant;
  hypothesis.pass = pass;
  hypothesis.options.dtype = dtype;
  hypothesis.options.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
  hypothesis.options.arithmetic = variant.default_arithmetic(problem, dtype);
  return hypothesis;
}

/// "launch=pairs:2x32x1"; empty where it is the one that is taken for an open one.
std::string launch_word(const Hypothesis& hypothesis, const Problem& problem) {
  const kda::Arithmetic& arithmetic = hypothesis.options.arithmetic;
  const kda::Launch launch =
      kda::left_open(arithmetic.launch, kda::launch_choices(problem, arithmetic, hypothesis.pass));
  return launch == kda::Launch{} ? std::string() : "launch=" + kda::words_of(launch);
}

}  // namespace

std::string_view name_of(Rounding rounding) {
  constexpr std::string_view names[] = {"none", "bf16", "fp16", "tf32"};
  return names[static_cast<std::size_t>(rounding)];
}

kda::CastPoints casts_of(const Hypothesis& hypothesis, const Problem& problem) {
  return kda::cast_points(hypothesis.options.arithmetic, hypothesis.options.dtype, problem.beta_is_16_bit(),
                          hypothesis.variant->axes.chunk);
}

bool is_possible(const Hypothesis& hypothesis, const Problem& problem) {
  return (hypothesis.pass == kda::Pass::forward ||
          kda::lacks_gradients(hypothesis.options.arithmetic, problem.dimensions().strength).empty()) &&
         hypothesis.variant->unsupported(problem, hypothesis.options).empty();
}

std::vector<Setting> differing_settings(const Hypothesis& base, const Hypothesis& other,
                                        const Problem& problem) {
  std::vector<Setting> list;
  const kda::ArithmeticAxes axes = base.variant->axes;
  for (const kda::AxisDescription& axis : kda::axis_descriptions()) {
    if (axis.key == "storage" || axis.key == "launch" || !kda::has_axis(axes, axis.key + "=")) continue;
    std::string word = word_of(base.options.arithmetic, axes, axis.key);
    if (word != word_of(other.options.arithmetic, axes, axis.key))
      list.push_back({std::move(word), nullptr, Rounding::none, 0});
  }
  const kda::CastPoints casts = casts_of(base, problem), others = casts_of(other, problem);
  for (const kda::CastPointRow& row : kda::cast_point_rows())
    if (casts.*row.point != others.*row.point &&
        (has_point(row, base, problem) || has_point(row, other, problem)))
      list.push_back(
          {fmt::format("{}@{}", name_of(casts.*row.point), row.name), row.point, casts.*row.point, 0});
  if (axes.chunk && base.options.chunk_size != other.options.chunk_size)
    list.push_back({fmt::format("chunk-size={}", base.options.chunk_size), nullptr, Rounding::none,
                    base.options.chunk_size});
  return list;
}

Hypothesis with_setting(Hypothesis hypothesis, const Setting& setting, const Problem& problem) {
  kda::Arithmetic& arithmetic = hypothesis.options.arithmetic;
  if (setting.chunk_size != 0) {
    hypothesis.options.chunk_size = setting.chunk_size;
  } else if (setting.point != nullptr) {
    arithmetic.casts = casts_of(hypothesis, problem);
    arithmetic.storage = kda::Storage::named;
    arithmetic.casts.*setting.point = setting.rounding;
  } else {
    set_word(arithmetic, setting.word);
  }
  return hypothesis;
}

std::vector<Change> changes(const Hypothesis& from, const Hypothesis& to, const Problem& problem) {
  std::vector<Change> list;
  const std::vector<Setting> before = differing_settings(from, to, problem),
                             after = differing_settings(to, from, problem);
  for (std::size_t i = 0; i < after.size(); ++i)
    if (Hypothesis changed = with_setting(from, after[i], problem); is_possible(changed, problem))
      list.push_back({before[i].word, after[i].word, std::move(changed)});
  return list;
}

Hypothesis with_outputs_in(Hypothesis hypothesis, DType dtype, const Problem& problem) {
  hypothesis.options.arithmetic.casts = casts_of(hypothesis, problem);
  hypothesis.options.arithmetic.storage = kda::Storage::named;
  hypothesis.options.dtype = dtype;
  return hypothesis;
}

std::optional<Hypothesis> combined(const Hypothesis& base, const Hypothesis& a, const Hypothesis& b,
                                   const Problem& problem) {
  const std::vector<Setting> of_a = differing_settings(a, base, problem),
                             of_b = differing_settings(b, base, problem);
  const auto key_of = [](const Setting& setting) {
    return setting.point != nullptr ? setting.word.substr(setting.word.find('@'))
                                    : setting.word.substr(0, setting.word.find('='));
  };
  Hypothesis both = a;
  for (const Setting& setting : of_b) {
    if (std::ranges::any_of(of_a, [&](const Setting& other) { return key_of(other) == key_of(setting); }))
      return std::nullopt;
    both = with_setting(std::move(both), setting, problem);
  }
  if (!is_possible(both, problem)) return std::nullopt;
  return both;
}

Hypothesis described_from(const Hypothesis& base, Hypothesis hypothesis, const Problem& problem) {
  std::vector<std::string> changed, words;
  bool has_casts = false;
  for (const Setting& setting : differing_settings(hypothesis, base, problem)) {
    if (setting.chunk_size != 0) continue;
    changed.push_back(setting.word);
    if (setting.point == nullptr)
      words.push_back(setting.word);
    else
      has_casts = true;
  }
  if (has_casts) words.push_back(word_of(hypothesis.options.arithmetic, hypothesis.variant->axes, "storage"));
  if (!base.preset.empty() && hypothesis.options.arithmetic.launch == kda::Launch{} &&
      !(base.options.arithmetic.launch == kda::Launch{}))
    words.push_back("launch=any");
  hypothesis.preset = base.preset;
  hypothesis.change = join(changed, ", ");
  hypothesis.word = join(words, ",");
  hypothesis.changes = changed.size();
  return hypothesis;
}

std::string identity(const Hypothesis& hypothesis, const Problem& problem) {
  kda::Arithmetic arithmetic = hypothesis.options.arithmetic;
  const kda::CastPoints casts = casts_of(hypothesis, problem);
  arithmetic.casts = {};
  for (const kda::CastPointRow& row : kda::cast_point_rows())
    if (has_point(row, hypothesis, problem)) arithmetic.casts.*row.point = casts.*row.point;
  arithmetic.storage = kda::Storage::named;
  if (!has_shared_heads(hypothesis, problem)) arithmetic.heads = kda::Heads::grouped;
  const kda::ArithmeticAxes axes = hypothesis.variant->axes;
  const std::string text = kda::describe(arithmetic, axes);
  if (axes.chunk) return fmt::format("{} {}", text, hypothesis.options.chunk_size);
  return hypothesis.pass == kda::Pass::forward ? text : fmt::format("{} {}", text, hypothesis.variant->name);
}

std::vector<Hypothesis> starts(const Problem& problem, DType dtype, kda::Pass pass) {
  std::vector<Hypothesis> found;
  std::set<std::string> known;
  const auto add = [&](Hypothesis hypothesis) {
    if (is_possible(hypothesis, problem) && known.insert(identity(hypothesis, problem)).second)
      found.push_back(std::move(hypothesis));
  };
  const auto add_in_chunks = [&](Hypothesis hypothesis) {
    add(hypothesis);
    if (!hypothesis.variant->axes.chunk) return;
    for (const std::size_t size : usual_chunk_sizes) {
      hypothesis.options.chunk_size = size;
      add(hypothesis);
    }
  };
  const std::span<const kda::Preset> presets = kda::presets();
  const auto add_preset = [&](const kda::Variant& variant, const kda::Preset& preset) {
    Hypothesis hypothesis = usual_of(variant, problem, dtype, pass);
    hypothesis.preset = preset.name;
    kda::set_axis(hypothesis.options.arithmetic, preset.name);
    add_in_chunks(std::move(hypothesis));
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
    add_in_chunks(usual_of(*variant, problem, dtype, pass));
  }
  return found;
}

std::vector<Hypothesis> plain_starts(const Problem& problem, DType dtype, numeric::ComputeFormat compute,
                                     kda::Pass pass) {
  const kda::Variant& chunk = kda::variant_named("chunk");
  std::vector<Hypothesis> found;
  const auto add = [&](std::size_t size, std::initializer_list<std::string> words) {
    Hypothesis hypothesis = usual_of(chunk, problem, dtype, pass);
    hypothesis.options.chunk_size = size;
    for (const std::string& word : words) kda::set_axis(hypothesis.options.arithmetic, word);
    if (is_possible(hypothesis, problem)) found.push_back(std::move(hypothesis));
  };
  std::vector<std::pair<std::string, const char*>> storages{{"none", "difference"}};
  if (dtype != DType::fp64) {
    const bool is_fp16 = dtype == DType::fp16 || compute == numeric::ComputeFormat::fp16;
    const std::string narrow = is_fp16 ? "fp16" : "bf16";
    storages.emplace_back("tf32@tensor_core", "difference");
    storages.emplace_back(narrow + "@tensor_core", "difference");
    storages.emplace_back(narrow + "@tensor_core+" + narrow + "@exponentials", "difference");
    storages.emplace_back(narrow + "@tensor_core+" + narrow + "@exponentials", "factored");
  }
  for (const auto& [storage, tail] : storages)
    for (const std::size_t size : usual_chunk_sizes)
      for (const char* const decay : {"pair", "anchor-pair", "anchor-first", "anchor-first:64", "anchor-mid",
                                      "anchor-mid:32", "factored"})
        for (const char* const beta : {"rows", "columns", "keys"})
          for (const char* const delta : {"wy", "residual"})
            add(size, {"storage=" + storage, fmt::format("tail={}", tail), fmt::format("decay={}", decay),
                       fmt::format("beta={}", beta), fmt::format("delta={}", delta)});
  return found;
}

std::vector<Hypothesis> moves(const Hypothesis& known, const Problem& problem) {
  return Neighbours(known, problem).all();
}

std::string text_of(const Hypothesis& hypothesis, const Problem& problem) {
  std::string text(hypothesis.variant->name);
  if (!hypothesis.preset.empty()) text += " under " + hypothesis.preset;
  if (hypothesis.variant->axes.chunk &&
      hypothesis.options.chunk_size != static_cast<std::size_t>(problem.options.chunk_size))
    append(text, " in chunks of {}", hypothesis.options.chunk_size);
  if (const std::string launch = launch_word(hypothesis, problem); !launch.empty()) text += " with " + launch;
  return hypothesis.change.empty() ? text : text + ", " + hypothesis.change;
}

std::string arithmetic_words(const Hypothesis& hypothesis, const Problem& problem) {
  std::vector<std::string> words{hypothesis.preset, launch_word(hypothesis, problem), hypothesis.word};
  std::erase(words, std::string());
  return join(words, ",");
}

}  // namespace kda_check::hypotheses
