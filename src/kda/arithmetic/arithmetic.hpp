// How a variant computes: data, chosen per run and printed with every result. The kernels are written once
// and ask it at each operation it governs. Seven axes: contraction, exponential, special functions,
// reduction, storage (with how a state is stored between tokens), the formulation (decay and inverse of the
// chunk form), and the segments a sequence is computed in. What each value means: docs/arithmetic.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kda/arithmetic/cast_points.hpp"
#include "kda/arithmetic/row_layout.hpp"
#include "kda/arithmetic/stored_state.hpp"
#include "numeric/exponentials.hpp"
#include "numeric/formats.hpp"

namespace kda_check::kda {

using numeric::Exponential;

/// a * b + c: one rounding, or one after each operation.
enum class Contraction : std::uint8_t { separate, fused };

/// The order in which a sum of products is added up, and where it is rounded.
enum class ReductionKind : std::uint8_t {
  sequential,  ///< from the first term upwards
  pairwise,    ///< neighbours first, then pairs of pairs
  tree,        ///< `width` strided running sums, then halves onto halves: a warp
  blocks,      ///< runs of `width` terms, then their sums from the first upwards
  mma,         ///< tensor core: terms cut off `width` bits below the largest, added exactly, cut to fp32
  triton,      ///< the same; and rows as Triton's tl.sum adds them on an H100 (kda/arithmetic/row_layout.hpp)
  triton_rows,   ///< the same, but scores take their channels in order: Triton's norm and gates, another's
                 ///< products
  lanes,         ///< as mma; and rows of the norm by the lanes of a warp, gates row by row
  lanes_paired,  ///< the same; and columns of a token form's state, by lanes that add two running sums
  split,         ///< as lanes, with operands that are not rounded split into three bf16 numbers each
  xla,           ///< a CPU under XLA: products from the first term on, rows by 16 strided sums
  simt,          ///< a GPU's other cores: rows by the tree of a warp, products by one thread for each sum
  exact,         ///< one rounding at the end
};
struct Reduction {
  ReductionKind kind = ReductionKind::sequential;
  int width = 0;
  bool operator==(const Reduction&) const = default;
};
/// Strided running sums that there is room for; of a GPU's thread, too.
inline constexpr std::size_t widest_tree = 1024, widest_tree_on_gpu = 256;

/// How exp(G_i - G_j), the decay between two tokens of a chunk, is formed (docs/kda.md, "Exponent
/// formulations"). `anchor_rows` says how many rows share an anchor. Left of the diagonal block the anchor is
/// the block's first row (`factored`: the row before it).
enum class DecayForm : std::uint8_t {
  pair,           ///< one exponential for each (i, j, channel); cannot overflow
  pair_late,      ///< the same over the whole square, masked afterwards
  pair_rows,      ///< the same; q or k of the row is multiplied by it first, and beta multiplies the score
  pair_products,  ///< the same; it multiplies the product of q, or k of the row, and k
  anchor_pair,    ///< factored left of the diagonal block, pairwise inside: what FLA does without safe_gate
  anchor_first,   ///< factored everywhere, anchor = first row of the block
  anchor_mid,     ///< factored everywhere, anchor in the diagonal block = its middle row: FLA with safe_gate
  anchor_bound,   ///< the same, but its first row plus half of what the lower bound lets a block decay
  factored,       ///< exp(G) exp(-G), G from the start of the block: FlashKDA's with blocks of 16
  reciprocal,     ///< the same; exp(-G) is the reciprocal of exp(G)
  clamp,          ///< anchor_first, the exponents of both factors clamped to +-`clamp` (in powers of two)
};

/// How (I + L)^-1 is formed (docs/kda.md, "Inverse formulations"). `inverse_rows` is the side of the diagonal
/// blocks; blocks are merged by products.
enum class InverseForm : std::uint8_t {
  substitution,   ///< (a) row by row over the whole chunk
  blocks,         ///< (b) row by row in each block
  doubling,       ///< (c) (I - L)(I + L^2)(I + L^4) ... in each block
  doubling_wide,  ///< the same; what a step adds up is not rounded. Blocks of 8 or 16
  horner,         ///< I - L (I - L (I - ...)) in each block
  paterson,       ///< B + L^4 (B + L^4 (B + ...)) in each block, B = I - L + L^2 - L^3
  nested,         ///< blocks of 4 rows, of 8, then of 32, each by products of what is left of L
  eliminate,      ///< rank-one updates in each block: as (b), every entry one running sum. Blocks of 8 or 16
  chains,         ///< the same; every entry four running sums, of every fourth term
  solve,          ///< none is multiplied: u, w and the inverse are solutions, blocks of 8 or 16 rows
};

/// Which blocks of the inverse are merged.
enum class Merge : std::uint8_t {
  nearest,  ///< neighbours, then those farther apart, all of them of one size
  halves,   ///< two and two, to blocks of twice the size, until they have 64 rows
  split,    ///< as halves; the second product is one sum for every `merge_rows` terms, rounded and added up
};

enum class Storage : std::uint8_t {
  none,        ///< nothing is rounded below the format of the computation
  upstream,    ///< where FLA's kernels round for this dtype (bf16, fp16; for fp32 and fp64 nothing)
  fla,         ///< as upstream, and in fp32 the operands of every product in tf32: the tensor cores' default
  triton,      ///< as upstream, and in fp32 as fla; but what a product cuts to tf32 is kept whole
  flash_kda,   ///< where FlashKDA rounds (docs/kda.md, "FlashKDA")
  h100_mma,    ///< where gpu-chunk rounds on tensor cores: operands alone; fp32 and fp64 nowhere
  sglang_jax,  ///< where sglang-jax's first kernel hands over to the next; fp32 and fp64 nowhere
  named,       ///< at the stages of `casts`
};

/// How G_n - G_i, the exponent of the decay from a token to the end of its chunk (kg), is formed. Errors of
/// running sums grow with the sums: near the end of a chunk, where little decays, a difference of two large
/// ones has lost what a sum of its own still has (docs/arithmetic.md, "tail").
enum class TailForm : std::uint8_t {
  difference,     ///< of two running sums from the start of the chunk: upstream
  suffix,         ///< a running sum from its end
  factored,       ///< never: exp(-G_i) exp(G_n) from rounded factors, k exp(-G_i) being one of the scores'
  factored_late,  ///< the same; k exp(-G_i) is not rounded before exp(G_n) multiplies it
};

/// How the norm and the gates divide, take roots and logarithms.
enum class Special : std::uint8_t {
  ieee,    ///< rounded once
  triton,  ///< what Triton makes of them on an H100: div.full, sqrt.approx, lg2.approx (numeric/h100.hpp)
  triton_logf,    ///< the same; a softplus of logf, which is what tl.log is
  fast,           ///< a norm of rsqrt.approx, sigmoids of tanh.approx, softplus as `triton`
  fast_floor,     ///< the same; a floor under the norm's sum, and a bounded gate that is one fma of its tanh
  fast_division,  ///< a norm of rsqrt.approx, sigmoids of rcp.approx, softplus as `triton`
  fast_signed,    ///< the same; beta's sigmoid of a negative number is exp(x) / (1 + exp(x))
};

/// What becomes of subnormal numbers in fp32.
enum class Subnormals : std::uint8_t {
  gradual,  ///< kept, as IEEE arithmetic has them
  flush,    ///< zeros of their sign, on their way in and as results: what nvcc's --use_fast_math does
};

/// What the gates of the chunk form are logarithms to.
enum class Gates : std::uint8_t {
  natural,    ///< the base e
  log2,       ///< 2: the sum over a chunk times log2(e), rounded; decays are powers of two
  log2_each,  ///< 2: the bound or the amplitude times log2(e), rounded, before it makes a gate
};

/// How writes, a chunk's kg^T v_new or a token's k (beta e)^T, join the decayed state.
enum class Update : std::uint8_t {
  chained,      ///< the sum starts from it
  transposed,   ///< that, but with state_v_first a sum of its own, onto which decay S is added by a fma: a
                ///< transposed dot of Triton's starts from nothing
  added,        ///< that, whatever the layout
  decay_fused,  ///< the same; and in the token forms, too, decay S is added to the write by a fma
};

/// Where a chunk subtracts what the state predicts, and how the token forms do.
enum class Delta : std::uint8_t {
  wy,        ///< behind the inverse: v_new = X (beta v) - X (beta k e^G) S
  residual,  ///< before it: v_new = X (beta (v - (k e^G) S)); u and w are not formed
  chained,   ///< as wy; v_new is one sum, from u on
  blocked,   ///< as wy; the prediction is one sum for every `blocked_channels`, and their sum
  fused,     ///< as wy; in the token forms, forwards, a write gate times v less the prediction is one fma
};

/// Where beta multiplies what a chunk writes. That of L is in its rows. `naive` is the token form with beta
/// on keys.
enum class BetaPart : std::uint8_t {
  rows,       ///< the rows that the inverse multiplies
  rows_late,  ///< the same, where a row is k e^G once that is multiplied
  columns,    ///< the columns of the inverse
  keys,       ///< the keys on the right of the scores, and those that write: v_new is without it
};

/// What scale multiplies.
enum class ScaledPart : std::uint8_t {
  scores,  ///< the scores, and (q e^G) S
  q,       ///< q e^G, rounded before and behind it as an operand is; scale is rounded like it
  q_late,  ///< q e^G, before it is rounded
  output,  ///< o, once it is summed; the token forms else multiply q
  norm,    ///< of the token forms: the reciprocal norm of q, where special=fast has one; else q
  before,  ///< q before the call, rounded as q is stored; the gradient of q behind it likewise
};

/// How a kernel gets the query heads that value heads share.
enum class Heads : std::uint8_t {
  grouped,   ///< as they are
  repeated,  ///< once for each value head: gradients of q and k are rounded, then added up
};

/// How the two parts of a chunk's o come together.
enum class Output : std::uint8_t {
  chained,  ///< Aqk v_new is added up from (q e^G) S on
  apart,    ///< both are sums of their own
  fused,    ///< the same; scale multiplies the first as the second is added
};

/// What a chunk's decays of q are counted from as it reads the state.
enum class Readout : std::uint8_t {
  start,   ///< the chunk's start: (q e^G) S
  first,   ///< its first row: (q e^(G - a)) (e^a S), a = G there
  centre,  ///< the same; a = the mean of G in its first and last row
};

/// How the states that enter the parts of a sequence are formed, of the maps S -> M S + A of the parts
/// before.
enum class SegmentMerge : std::uint8_t {
  none,        ///< a sequence is one part
  sequential,  ///< map after map is applied to the state
  tree,        ///< maps of 2^k parts are composed; a state goes through the largest first
};
struct Segments {
  SegmentMerge merge = SegmentMerge::none;
  int parts = 1;
  bool operator==(const Segments&) const = default;
};

/// What a tensor core adds in (docs/arithmetic.md, "Tensor cores").
enum class Accumulator : std::uint8_t {
  fp32,  ///< cut towards zero
  fp16,  ///< rounded to nearest even; accumulators are fp16 numbers kept as fp32
};

/// What a kernel was compiled for, where that decides bits: autotuning picks it, or a table of its caller's.
/// Read with ReductionKind::triton, and `norm` with `lanes`; a layout without registers, or a 0, is the first
/// of row_layout.hpp's.
struct Launch {
  RowLayout norm, pairs, substitution;
  std::size_t scan_rows = 0;  ///< of the running sum of the gates, at once
  TokenProgram block{};       ///< of a token form; no columns: FLA's
  // Backwards.
  WyBlock wy{};                       ///< of what goes through states and the inverse
  std::size_t intra_warps = 0;        ///< of what stays within a chunk
  std::size_t reverse_scan_rows = 0;  ///< of the running sum of dG
  RowLayout norm_gradient{};
  std::size_t gate_warps = 0;

  bool operator==(const Launch&) const = default;
};

struct Arithmetic {
  Contraction contraction = Contraction::fused;
  Exponential exponential = Exponential::exact;
  Special special = Special::ieee;
  Subnormals subnormals = Subnormals::gradual;
  Reduction reduction;
  Storage storage = Storage::upstream;
  CastPoints casts;  ///< of Storage::named
  DecayForm decay = DecayForm::anchor_pair;
  int anchor_rows = 16;  ///< 16, 32 or 64; no more than the chunk
  double clamp = 126;    ///< of DecayForm::clamp
  InverseForm inverse = InverseForm::substitution;
  int inverse_rows = 16;  ///< 8, 16, 32 or 64; no more than the chunk
  Merge merge = Merge::nearest;
  int merge_rows = 16;                          ///< of Merge::split
  Accumulator accumulator = Accumulator::fp32;  ///< of the products that form the inverse
  TailForm tail = TailForm::difference;
  Gates gates = Gates::natural;
  Update update = Update::chained;
  Delta delta = Delta::wy;
  BetaPart beta = BetaPart::rows;
  ScaledPart scale = ScaledPart::scores;
  Heads heads = Heads::grouped;
  Output output = Output::chained;
  Readout readout = Readout::start;
  Segments segments;
  StoredState stored;
  Launch launch{};

  bool operator==(const Arithmetic&) const = default;
};

/// Rows and running sums of gates are added up as Triton does.
constexpr bool is_triton(const Reduction& reduction) {
  return reduction.kind == ReductionKind::triton || reduction.kind == ReductionKind::triton_rows;
}

/// Scores have one exponential for each pair of rows and each channel.
constexpr bool is_pairwise(DecayForm form) {
  return form == DecayForm::pair || form == DecayForm::pair_late || form == DecayForm::pair_rows ||
         form == DecayForm::pair_products;
}

/// Beta multiplies the rows that the inverse multiplies.
constexpr bool is_in_rows(BetaPart part) { return part == BetaPart::rows || part == BetaPart::rows_late; }

/// Channels of a sum of Delta::blocked.
inline constexpr std::size_t blocked_channels = 64;

/// Entries of a block are sums of their own, whatever the order of others.
constexpr bool is_one_of_eliminations(InverseForm form) {
  return form == InverseForm::eliminate || form == InverseForm::chains;
}

/// Every operation within half a unit in the last place: fused, exact, exact, none, pair, substitution.
Arithmetic ideal_arithmetic();

/// Rows of the norm are added up by the lanes of a warp, gates row by row.
constexpr bool is_by_lanes(const Reduction& reduction) {
  return reduction.kind == ReductionKind::lanes || reduction.kind == ReductionKind::lanes_paired ||
         reduction.kind == ReductionKind::split;
}
/// Products are those of a tensor core.
constexpr bool has_tensor_cores(const Reduction& reduction) {
  return reduction.kind == ReductionKind::mma || is_triton(reduction) || is_by_lanes(reduction);
}

/// Where a computation with these settings rounds. `beta_is_16_bit`: beta is stored in bf16 or fp16 and used
/// as it is. `chunk`: the chunk form, the only one whose upstream kernels round inside.
CastPoints cast_points(const Arithmetic& arithmetic, numeric::DType dtype, bool beta_is_16_bit, bool chunk);

/// Parts of the arithmetic a variant has; the others are not printed and may not be set.
struct ArithmeticAxes {
  bool chunk = false;  ///< decay, inverse, tail, segments and what else is of the chunk form
};

/// "contraction=fused exponential=exact ..." in the words --arithmetic takes.
std::string describe(const Arithmetic& arithmetic, ArithmeticAxes axes);

/// Applies "key=value" or the name of a preset to `arithmetic`. Throws Error{usage} for a key, value or
/// preset that does not exist.
void set_axis(Arithmetic& arithmetic, std::string_view assignment);

/// True if the axis of "key=value" exists for a variant with these axes.
bool has_axis(ArithmeticAxes axes, std::string_view assignment);

/// Why nothing can be computed this way in `dtype`; empty when it can.
std::string unsupported(const Arithmetic& arithmetic, numeric::DType dtype);

/// Why there are no gradients of what is computed this way; empty where there are.
constexpr std::string_view lacks_gradients(const Arithmetic& arithmetic) {
  if (arithmetic.stored != StoredState{}) return "no backward pass through a state stored below fp32";
  if (arithmetic.decay == DecayForm::pair_rows || arithmetic.decay == DecayForm::pair_products)
    return "no backward pass with decay=pair-rows and pair-products";
  if (arithmetic.inverse == InverseForm::solve) return "no backward pass with inverse=solve";
  if (arithmetic.readout != Readout::start) return "no backward pass with readout=first and centre";
  return arithmetic.beta == BetaPart::keys ? "no backward pass with beta=keys" : "";
}

/// A key of --arithmetic and what it takes.
struct AxisDescription {
  std::string key;
  std::vector<std::string> names;  ///< "tree:N": with a number to be filled in
  std::string grammar;             ///< of values without a name; mostly empty
  std::string summary;

  std::string values() const;
};
/// All of them, in the order of describe().
std::vector<AxisDescription> axis_descriptions();

}  // namespace kda_check::kda
