#include "hypotheses/spread.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

namespace kda_check::hypotheses {

namespace {

using numeric::ComputeFormat;
using Words = std::vector<std::string_view>;

/// One way to compute, in the words of --arithmetic.
struct Row {
  bool chunk;
  std::size_t chunk_size;  ///< 0: that of the problem
  Words words;
  /// Differs from the others in the orders of its sums alone: the sum of the gates tells in fp32, and is
  /// nothing beside what is lost in narrower products.
  bool only_in_fp32 = false;
  /// Stages have the inverse in each row; in tensors of tokens it tells little.
  bool only_of_stages = false;
};

/// Every structure stands here twice, so that one of a kind is not held to be odd.
const Row algorithms[] = {
    {false, 0, {}},
    {false, 0, {"exponential=cuda", "contraction=separate"}},
    {false, 0, {"exponential=cuda-fast", "reduction=pairwise"}},
    {false, 0, {"exponential=exp2-scaled", "reduction=tree:32"}},
    {true, 0, {}},
    {true, 16, {"beta=columns", "exponential=cuda"}},
    {true, 0, {"decay=anchor-mid:32", "inverse=blocks:32", "exponential=exp2-scaled"}},
    {true, 0, {"decay=anchor-first", "exponential=cuda-fast", "inverse=doubling:16"}},
    {true, 32, {"beta=columns", "decay=pair", "reduction=blocks:16", "inverse=doubling:16"}},
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
};

/// In chunks as hardly anybody has them: what gates sum up to is lost there.
const Row in_long_chunks[] = {
    {true, 128, {"exponential=cuda"}},
    {true, 128, {"decay=anchor-mid", "contraction=separate"}},
    {true, 256, {"exponential=cuda"}},
    {true, 256, {"decay=anchor-mid", "contraction=separate"}},
};

/// What no rounding is changed by.
const Words orders[] = {
    {"reduction=blocks:16", "exponential=exp2-scaled"},
    {"reduction=tree:8", "exponential=cuda"},
    {"contraction=separate", "exponential=cuda-fast"},
    {"reduction=pairwise", "exponential=libm"},
    {"reduction=sequential", "contraction=separate", "exponential=cuda"},
};

/// What a chunk form loses no digits by.
const Words stable_words{"decay=anchor-pair:16", "inverse=substitution", "merge=nearest",
                         "accumulator=fp32",     "tail=difference",      "readout=start"};
/// Blocks are merged by products, whose operands a class may round.
const Words stable_orders[] = {
    {"exponential=cuda-fast"}, {"reduction=sequential", "contraction=separate"}, {"inverse=blocks:16"}};

const Words factored_within_blocks[] = {{"decay=anchor-mid:16"}};

/// Where chunk forms of a class round their intermediates: as FLA does, or operands of products alone, where
/// they are of another format than the tensors.
std::vector<std::string_view> storages_of(ComputeFormat compute, numeric::DType dtype) {
  using numeric::DType;
  switch (compute) {
    case ComputeFormat::fp32:
      return {"storage=none"};
    case ComputeFormat::tf32:
      if (dtype == DType::fp16) return {"storage=fla", "storage=tf32@products"};
      return {dtype == DType::fp32 ? "storage=fla" : "storage=tf32@products"};
    case ComputeFormat::bf16:
      return {dtype == DType::bf16 ? "storage=upstream" : "storage=bf16@products"};
    default:
      return {dtype == DType::fp16 ? "storage=upstream" : "storage=fp16@products"};
  }
}

/// Chunk forms in fp16 have tf32 operands on the way, which are no finer.
bool is_like(ComputeFormat twin, ComputeFormat output) {
  return twin == output || (twin == ComputeFormat::tf32 && output == ComputeFormat::fp16);
}

bool can_compute(const Twin& twin, const kda::Problem& problem) {
  return kda::unsupported(twin.options.arithmetic, twin.options.dtype).empty() &&
         twin.variant->unsupported(problem, twin.options).empty();
}

/// Nothing where this variant cannot do that, or its products would be in another format.
std::optional<Twin> twin_of(const Row& row, std::string_view storage, const kda::Problem& problem,
                            bool backward, ComputeFormat compute, numeric::DType dtype,
                            std::size_t chunk_size, const kda::Segments& segments) {
  const kda::Variant& variant = kda::variant_named(row.chunk ? "chunk" : "recurrent");
  Twin twin{&variant, {}};
  twin.options.dtype = dtype;
  twin.options.chunk_size = chunk_size;
  twin.options.arithmetic = variant.default_arithmetic(problem, dtype);
  if (row.chunk) kda::set_axis(twin.options.arithmetic, storage);
  for (const std::string_view word : row.words) kda::set_axis(twin.options.arithmetic, word);
  if (row.chunk) twin.options.arithmetic.segments = segments;
  if (!can_compute(twin, problem) ||
      !is_like(kda::compute_format(variant, dtype, twin.options.arithmetic, backward), compute))
    return std::nullopt;
  return twin;
}

Twin twin_of(const Hypothesis& known) {
  Twin twin{known.variant, known.options};
  if (kda::is_on_gpu(*twin.variant))
    twin.variant = &kda::variant_named(twin.variant->axes.chunk ? "chunk" : "recurrent");
  twin.options.threads = 1;
  return twin;
}

/// With every rounding by its name, so that words for orders change none.
Twin with_named_roundings(const Hypothesis& known, const kda::Problem& problem) {
  return twin_of(with_outputs_in(known, known.options.dtype, problem));
}

void add_once(std::vector<Twin>& list, Twin twin) {
  const bool is_known = std::ranges::any_of(list, [&](const Twin& one) {
    return one.variant == twin.variant && one.options.chunk_size == twin.options.chunk_size &&
           one.options.arithmetic == twin.options.arithmetic;
  });
  if (!is_known) list.push_back(std::move(twin));
}

/// Those of `base` in other words that are possible, each once.
void add_variations(std::vector<Twin>& list, const Twin& base, std::span<const Words> variations,
                    const kda::Problem& problem) {
  for (const Words& words : variations) {
    Twin other = base;
    for (const std::string_view word : words) {
      if (word.starts_with("inverse=") && !base.variant->axes.chunk) continue;
      Twin with = other;
      kda::set_axis(with.options.arithmetic, word);
      if (can_compute(with, problem)) other = std::move(with);
    }
    add_once(list, std::move(other));
  }
}

std::vector<Twin> stable_of(Twin twin, const kda::Problem& problem) {
  const kda::DecayForm decay = twin.options.arithmetic.decay;
  kda::set_axis(twin.options.arithmetic, "special=ieee");
  if (twin.variant->axes.chunk) {
    twin.options.arithmetic.casts.off_diagonal = kda::Rounding::none;  // pairs have no such operands
    if (twin.options.arithmetic.beta == kda::BetaPart::keys)
      kda::set_axis(twin.options.arithmetic, "beta=rows");
    for (const std::string_view word : stable_words) kda::set_axis(twin.options.arithmetic, word);
  }
  std::vector<Twin> list;
  if (can_compute(twin, problem)) list.push_back(twin);
  add_variations(list, twin, stable_orders, problem);
  // Within a block pairs read no operands. Those of a computation that factors decays there are rounded,
  // which loses no more digits than operands have, but in fp16 factors below its range.
  Hypothesis known;
  known.variant = twin.variant, known.options = twin.options;
  const kda::CastPoints casts = casts_of(known, problem);
  const auto is_rounded = [](kda::Rounding operands) {
    return operands == kda::Rounding::bf16 || operands == kda::Rounding::tf32;
  };
  const bool has_pairs = kda::is_pairwise(decay) || decay == kda::DecayForm::anchor_pair;
  if (twin.variant->axes.chunk && !has_pairs &&
      (is_rounded(casts.score_operands) || is_rounded(casts.tensor_core)))
    add_variations(list, twin, factored_within_blocks, problem);
  std::erase_if(list, [&](const Twin& one) { return !can_compute(one, problem); });
  return list;
}

}  // namespace

void Spread::add(Spread other) {
  for (Twin& twin : other.twins) add_once(twins, std::move(twin));
  for (Twin& one : other.stable) add_once(stable, std::move(one));
}

std::vector<Twin> in_one_list(Spread spread) {
  std::ranges::move(spread.stable, std::back_inserter(spread.twins));
  return std::move(spread.twins);
}

Spread spread_around(const Hypothesis& known, const Hypothesis& bounds, const kda::Problem& problem,
                     bool is_ours) {
  constexpr std::size_t few = 3;
  Spread spread;
  spread.twins.push_back(twin_of(known));
  add_variations(spread.twins, with_named_roundings(known, problem),
                 std::span(orders).first(is_ours ? few : std::size(orders)), problem);
  // What is computed in fp32 and stored in fewer bits does not tell algorithms apart.
  const kda::RunOptions& options = known.options;
  const ComputeFormat compute = kda::compute_format(*known.variant, options.dtype, options.arithmetic);
  if (!is_ours && compute == ComputeFormat::fp32 && numeric::format_of(options.dtype).bytes == 2)
    spread.add(
        {spread_of_class(problem, known.pass, compute, options.dtype, options.arithmetic.segments).twins,
         {}});
  spread.stable = stable_of(with_named_roundings(bounds, problem), problem);
  return spread;
}

Spread spread_of_class(const kda::Problem& problem, kda::Pass pass, ComputeFormat compute,
                       numeric::DType dtype, const kda::Segments& segments, bool long_chunks) {
  Spread spread;
  const bool backward = pass == kda::Pass::backward;
  const auto size_of = [&](std::size_t asked) {
    return asked != 0 ? asked : static_cast<std::size_t>(problem.options.chunk_size);
  };
  const std::vector<std::string_view> storages = storages_of(compute, dtype);
  const auto twin = [&](const Row& row, std::string_view storage) {
    return twin_of(row, storage, problem, backward, compute, dtype, size_of(row.chunk_size), segments);
  };
  const auto add = [&](std::span<const Row> rows, std::string_view storage) {
    for (const Row& row : rows) {
      const bool is_new = row.chunk || storage == storages.front();
      if (!is_new || row.only_of_stages || (row.only_in_fp32 && compute != ComputeFormat::fp32)) continue;
      if (auto one = twin(row, storage)) spread.twins.push_back(std::move(*one));
    }
  };
  for (const std::string_view storage : storages) {
    add(algorithms, storage);
    if (long_chunks) add(in_long_chunks, storage);
  }
  // Longer chunks lose more in sums of gates.
  const std::size_t long_chunk = long_chunks ? 256 : 128;
  for (const Row& row : {Row{false, 0, {}}, Row{true, 0, {}}, Row{true, long_chunk, {}}})
    if (const auto usual = twin(row, storages.front()))
      std::ranges::move(stable_of(*usual, problem), std::back_inserter(spread.stable));
  return spread;
}

std::vector<Twin> twins_of_stages(const kda::Problem& problem, ComputeFormat compute, numeric::DType dtype,
                                  std::size_t chunk_size) {
  std::vector<Twin> twins;
  for (const Row& row : algorithms) {
    if (!row.chunk) continue;
    // Rows that differ in their chunks, or in what is usual in fp32, may be one.
    if (auto twin =
            twin_of(row, storages_of(compute, dtype).front(), problem, false, compute, dtype, chunk_size, {}))
      add_once(twins, std::move(*twin));
  }
  return twins;
}

}  // namespace kda_check::hypotheses
