#include "engine/twin_family.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "judge/spread/twin_test.hpp"

namespace kda_check::engine {

namespace {

using numeric::ComputeFormat;

constexpr std::string_view chunk_size_is = "chunk-size=";

/// One way to compute, in the words of --arithmetic.
struct Row {
  bool chunk;
  std::size_t chunk_size;  ///< 0: that of the problem
  std::vector<std::string_view> words;
  /// Differs from the others in the orders of its sums alone: the sum of the gates tells in fp32, and is
  /// nothing beside what is lost in narrower products.
  bool only_in_fp32 = false;
  /// Stages have the inverse in each row; in tensors of tokens it tells little.
  bool only_of_stages = false;
  /// In the manner of the answer, for those of a manner that is not usual; the others would be let err as
  /// much.
  bool in_its_manner = false;
};

const Row rows[] = {
    {false, 0, {}},
    {false, 0, {"exponential=cuda", "contraction=separate"}},
    {false, 0, {"exponential=cuda-fast", "reduction=pairwise"}},
    {false, 0, {"exponential=exp2-scaled", "reduction=tree:32"}},
    {true, 0, {}},
    {true, 16, {"exponential=cuda"}},
    {true, 0, {"decay=anchor-mid:32", "inverse=blocks:32", "exponential=exp2-scaled"}},
    {true, 0, {"decay=anchor-first", "exponential=cuda-fast", "inverse=doubling:16"}},
    {true, 32, {"decay=pair", "reduction=blocks:16", "inverse=doubling:16"}},
    {true, 16, {"decay=anchor-mid", "tail=suffix", "exponential=exp2-scaled"}},
    {true, 16, {"decay=pair", "tail=suffix", "contraction=separate"}},
    {true, 0, {"reduction=blocks:16", "exponential=cuda-fast"}, true},
    {true, 0, {"reduction=tree:8", "exponential=exp2-scaled", "contraction=separate"}, true},
    {true, 32, {"reduction=tree:64", "exponential=cuda"}, true},
    {true, 0, {"inverse=blocks:16", "exponential=cuda"}, false, true},
    {true,
     0,
     {"decay=anchor-mid", "inverse=blocks:16", "tail=suffix", "exponential=exp2-scaled"},
     false,
     true},
    {true, 0, {"exponential=cuda-fast"}, false, false, true},
    {true, 0, {"exponential=cuda", "contraction=separate", "inverse=blocks:16"}, false, false, true},
};

/// Where a chunk form rounds its intermediates.
std::string_view storage_of(ComputeFormat compute) {
  switch (compute) {
    case ComputeFormat::fp32:
      return "storage=none";
    case ComputeFormat::tf32:
      return "storage=fla";
    default:
      return "storage=upstream";
  }
}

/// Chunk forms in fp16 have tf32 operands on the way, which are no finer.
bool is_like(ComputeFormat twin, ComputeFormat answer) {
  return twin == answer || (twin == ComputeFormat::tf32 && answer == ComputeFormat::fp16);
}

/// Nothing where this variant cannot do that, or its products would be in another format.
std::optional<Twin> twin_of(const Row& row, const kda::Problem& problem, bool backward, ComputeFormat compute,
                            numeric::DType dtype, std::size_t chunk_size, const kda::Segments& segments,
                            const Manner& manner = {}) {
  const kda::Variant& variant = kda::variant_named(row.chunk ? "chunk" : "recurrent");
  Twin twin{&variant, {}};
  twin.options.dtype = dtype;
  twin.options.chunk_size = chunk_size;
  twin.options.arithmetic = variant.default_arithmetic(problem, dtype);
  if (row.chunk) kda::set_axis(twin.options.arithmetic, storage_of(compute));
  if (row.in_its_manner) manner.take_over(twin.options.arithmetic);
  for (const std::string_view word : row.words) kda::set_axis(twin.options.arithmetic, word);
  if (row.chunk) twin.options.arithmetic.segments = segments;
  manner.surround(twin.options.arithmetic);
  if (!kda::unsupported(twin.options.arithmetic, dtype).empty() ||
      !variant.unsupported(problem, twin.options).empty() ||
      !is_like(kda::compute_format(variant, dtype, twin.options.arithmetic, backward), compute))
    return std::nullopt;
  return twin;
}

}  // namespace

std::vector<Twin> twin_family(const kda::Problem& problem, kda::Pass pass, ComputeFormat compute,
                              numeric::DType dtype, judge::Form form, const Manner& manner,
                              const kda::Segments& segments) {
  std::vector<Twin> family;
  for (const Row& row : rows) {
    if (form == (row.chunk ? judge::Form::recurrence : judge::Form::chunk)) continue;
    if (row.only_of_stages || (row.only_in_fp32 && compute != ComputeFormat::fp32)) continue;
    if (row.in_its_manner && manner.is_usual()) continue;
    const std::size_t own_size = row.in_its_manner ? manner.chunk_size() : row.chunk_size,
                      chunk_size =
                          own_size != 0 ? own_size : static_cast<std::size_t>(problem.options.chunk_size);
    if (auto twin =
            twin_of(row, problem, pass == kda::Pass::backward, compute, dtype, chunk_size, segments, manner))
      family.push_back(std::move(*twin));
  }
  return family;
}

judge::Form form_for_twins(const Answered& answer, const plan::Names& left_out) {
  return left_out.empty() ? answer.form : judge::Form::unknown;
}

std::vector<Twin> family_of(const kda::Problem& problem, kda::Pass pass, const Answered& answer,
                            const plan::Names& left_out) {
  if (answer.compute == ComputeFormat::fp64) return {};
  std::vector<Twin> family =
      twin_family(problem, pass, answer.compute, answer.dtype, form_for_twins(answer, left_out),
                  manner_of(answer, problem), answer.segments);
  leave_out(family, left_out);
  if (family.size() < judge::fewest_twins) family.clear();
  return family;
}

std::vector<Twin> stage_family(const kda::Problem& problem, ComputeFormat compute, numeric::DType dtype,
                               std::size_t chunk_size) {
  std::vector<Twin> family;
  for (const Row& row : rows) {
    if (!row.chunk || row.in_its_manner) continue;
    std::optional<Twin> twin = twin_of(row, problem, false, compute, dtype, chunk_size, {});
    if (!twin) continue;
    // Rows that differ in their chunks, or in what is usual in fp32, may be one.
    const bool is_known = std::ranges::any_of(
        family, [&](const Twin& other) { return other.options.arithmetic == twin->options.arithmetic; });
    if (!is_known) family.push_back(std::move(*twin));
  }
  return family;
}

bool computes(const Twin& twin, std::string_view way) {
  if (way == "chunk" || way == "recurrence") return (way == "chunk") == twin.variant->axes.chunk;
  if (way.starts_with(chunk_size_is))
    return twin.variant->axes.chunk &&
           way.substr(chunk_size_is.size()) == std::to_string(twin.options.chunk_size);
  // Padded, a word is found whole.
  const std::string words = " " + kda::describe(twin.options.arithmetic, twin.variant->axes) + " ",
                    wanted = " " + std::string(way);
  return words.find(wanted + " ") != std::string::npos || words.find(wanted + ":") != std::string::npos;
}

void leave_out(std::vector<Twin>& family, const std::vector<std::string>& ways) {
  for (const std::string& way : ways)
    std::erase_if(family, [&](const Twin& twin) { return computes(twin, way); });
}

void check_way(std::string_view way) {
  if (way == "chunk" || way == "recurrence") return;
  if (way.starts_with(chunk_size_is)) {
    const std::string_view count = way.substr(chunk_size_is.size());
    if (!count.empty() && count.find_first_not_of("0123456789") == std::string_view::npos) return;
    throw Error(ErrorKind::usage, fmt::format("{}: wanted a number of rows, chunk-size=16", way));
  }
  kda::Arithmetic any;
  kda::set_axis(any, way);
}

}  // namespace kda_check::engine
