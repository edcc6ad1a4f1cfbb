#include "kda/head/chunk_workspace.hpp"

#include <algorithm>
#include <numbers>

#include "kda/head/launch_choices.hpp"
#include "kda/kernels/elements/special.hpp"
#include "kda/problem/excerpt.hpp"

namespace kda_check::kda {

namespace {

/// tail_i = g_n + ... + g_i+1
template <class T>
void sum_tails(const Reduction& reduction, const T* g, std::size_t rows, std::size_t stride, T* tail) {
  std::copy_n(g + stride, (rows - 1) * stride, tail);
  cumulate_from_the_end(reduction, tail, rows - 1, stride);
  std::fill_n(tail + (rows - 1) * stride, stride, T(0));
}

}  // namespace

template <class T>
void cumulate_from_the_end(const Reduction& reduction, T* x, std::size_t rows, std::size_t stride) {
  const auto turn = [&] {
    for (std::size_t i = 0; i < rows / 2; ++i)
      std::swap_ranges(x + i * stride, x + (i + 1) * stride, x + (rows - 1 - i) * stride);
  };
  turn();
  kernels<T>().cumulate(reduction, x, rows, stride);
  turn();
}

template <class T>
void scan_from_the_end(std::size_t together, T* x, std::size_t rows, std::size_t chunk_rows,
                       std::size_t stride) {
  // Of the zeros those count that share a group with rows, and that there are more.
  const std::size_t behind = chunk_rows - rows,
                    zeros = behind % together + (behind >= together ? together : 0), all = zeros + rows;
  tensor::Scratch<T> turned(all * stride);
  std::fill_n(turned.data(), zeros * stride, T(0));
  for (std::size_t i = 0; i < rows; ++i)
    std::copy_n(x + i * stride, stride, turned.data() + (all - 1 - i) * stride);
  kernels<T>().scan({all, stride, together, turned.data(), nullptr, T(0), true});
  for (std::size_t i = 0; i < rows; ++i)
    std::copy_n(turned.data() + (all - 1 - i) * stride, stride, x + i * stride);
}

GradientLayouts chunk_gradient_layouts(const Problem& problem, const RunOptions& options,
                                       const Launch& launch) {
  const Dimensions& d = problem.dimensions();
  return gradient_layouts({d.K, d.V, options.chunk_size, problem.dtype(), problem.options.state_v_first,
                           has_sums_by_pairs(options.arithmetic.decay)},
                          launch.wy, launch.intra_warps);
}

Operations chunk_operations(const Problem& problem, const RunOptions& options) {
  Operations operations = operations_of(options.arithmetic);
  if (operations.update == Update::decay_fused) operations.update = Update::added;
  if (operations.scale == ScaledPart::norm) operations.scale = ScaledPart::scores;
  if (operations.update == Update::transposed)
    operations.update = problem.options.state_v_first ? Update::added : Update::chained;
  if (operations.reduction.kind == ReductionKind::xla)
    operations.scan_rows = options.arithmetic.launch.scan_rows;
  const bool by_lanes = is_by_lanes(operations.reduction);
  if (!by_lanes && operations.reduction.kind != ReductionKind::triton) return operations;
  const Launch launch = launch_in(problem, options.arithmetic, Pass::forward);
  operations.norm = launch.norm;
  if (by_lanes) return operations;
  operations.norm_halves = norm_halves(launch.norm, problem.dimensions().K);
  operations.pairs = launch.pairs, operations.substitution = launch.substitution;
  operations.scan_rows = launch.scan_rows;
  operations.interleaves_scores = options.arithmetic.reduction.kind == ReductionKind::triton &&
                                  numeric::format_of(problem.dtype()).bytes == 2;
  return operations;
}

std::size_t rows_needed(const Problem& problem, const RunOptions& options) {
  return std::min(options.chunk_size, std::max<std::size_t>(64, longest_of(problem.sequences())));
}

template <class T>
std::size_t ChunkWorkspace<T>::elements(const Problem& problem, std::size_t rows) {
  const std::size_t k_stride = padded(problem.dimensions().K), v_stride = padded(problem.dimensions().V);
  const std::size_t of_keys = problem.dimensions().strength == Strength::gates ? 9 : 8;
  return rows * (of_keys * k_stride + 4 * v_stride + 3 * padded(rows) + padding) +
         (rows + 15) / 16 * k_stride + 2 * problem.dimensions().K * v_stride +
         ChunkScratch(rows, k_stride, v_stride).total();
}

template <class T>
ChunkWorkspace<T>::ChunkWorkspace(const Problem& problem, const RunOptions& options, std::size_t rows)
    : rows_(rows),
      k_stride_(padded(problem.dimensions().K)),
      v_stride_(padded(problem.dimensions().V)),
      arena_(elements(problem, rows)) {
  arena_.fill(T(0));
  const auto take = [this](std::size_t count) { return arena_.take(count); };
  const std::size_t K = problem.dimensions().K;
  q_ = take(rows_ * k_stride_), k_ = take(rows_ * k_stride_), G = take(rows_ * k_stride_);
  tail_ = take(rows_ * k_stride_), factors_ = take(rows_ * k_stride_);
  v_ = take(rows_ * v_stride_), beta_ = take(rows_ * padding);
  read_ = problem.dimensions().strength == Strength::gates ? take(rows_ * k_stride_) : nullptr;
  block.key_dim = K, block.value_dim = problem.dimensions().V;
  block.key_stride = k_stride_, block.value_stride = v_stride_, block.score_stride = score_stride();
  block.q = q_, block.k = k_, block.read = read_ != nullptr ? read_ : k_, block.v = v_, block.beta = beta_,
  block.G = G;
  block.tail = options.arithmetic.tail == TailForm::suffix ? tail_ : nullptr;
  block.w = take(rows_ * k_stride_), block.qg = take(rows_ * k_stride_), block.kg = take(rows_ * k_stride_);
  block.u = take(rows_ * v_stride_), block.v_new = take(rows_ * v_stride_), block.o = take(rows_ * v_stride_);
  block.Aqk = take(rows_ * score_stride()), block.L = take(rows_ * score_stride());
  block.Akk_inv = take(rows_ * score_stride());
  block.h = take(K * v_stride_), block.state = take(K * v_stride_);
  block.scratch = take(ChunkScratch(rows, k_stride_, v_stride_).total());
  const Arithmetic& arithmetic = options.arithmetic;
  block.operations = chunk_operations(problem, options);
  block.decay = arithmetic.decay, block.inverse = arithmetic.inverse;
  block.anchor_rows = std::min<std::size_t>(static_cast<std::size_t>(arithmetic.anchor_rows), rows_);
  if (block.decay == DecayForm::anchor_bound) {
    bounds_ = take((rows_ + block.anchor_rows - 1) / block.anchor_rows * k_stride_), block.bounds = bounds_;
    const double widest = (arithmetic.anchor_rows - 1) * problem.options.lower_bound.value_or(0);
    half_span_ = static_cast<T>(widest / 2 / (arithmetic.gates == Gates::natural ? 1 : std::numbers::ln2));
  }
  block.inverse_rows = std::min(static_cast<std::size_t>(arithmetic.inverse_rows), (rows_ + 15) / 16 * 16);
  block.clamp = static_cast<T>(arithmetic.clamp * std::numbers::ln2);
  block.casts = cast_points(arithmetic, options.dtype, problem.beta_is_16_bit(), true);
  block.forms_w = options.stages.asked();
  block.scale = static_cast<T>(problem.scale());
}

template <class T>
void ChunkWorkspace<T>::load(const HeadReader<T>& reader, const HeadTokens& tokens) {
  const std::size_t rows = tokens.count;
  const CastPoints& casts = block.casts;
  const Reduction& reduction = block.operations.reduction;
  reader.query(tokens, NormForm::reciprocal, casts.normalised, q_, k_stride_);
  reader.key(tokens, NormForm::reciprocal, casts.normalised, k_, k_stride_);
  if (read_ != nullptr) reader.read_key(tokens, k_, read_, k_stride_);
  reader.value(tokens, v_, v_stride_);
  reader.beta(tokens, beta_);
  const bool by_triton = reduction.kind == ReductionKind::triton;
  const bool is_log2_each = block.operations.gates == Gates::log2_each;
  const bool has_factors = by_triton || is_log2_each;
  GateProduct<T> product{has_factors ? factors_ : nullptr};
  reader.log_decay(tokens, G, k_stride_, &product);
  const bool is_gated = product.constant != 0;
  const bool is_product = has_factors && is_gated && !product.of_tanh;  // else it has been rounded already
  if (is_log2_each) {
    product.constant = (is_gated ? product.constant : 1) * std::numbers::log2e;
    const T constant = static_cast<T>(product.constant);
    for (std::size_t e = 0; e < rows * k_stride_; ++e) {
      const T factor = is_gated ? factors_[e] : G[e];
      G[e] = is_gated && product.of_tanh ? bounded_by_tanh(constant, factor) : constant * factor;
    }
  }
  // XLA's kernels fill up a chunk, and decays are counted from its end: the same sum in another order.
  const bool is_filled_up = reduction.kind == ReductionKind::xla && block.operations.scan_rows > 0;
  const std::size_t summed = is_filled_up ? rows_ : rows;
  std::fill(G + rows * k_stride_, G + summed * k_stride_, T(0));
  block.filled_end = is_filled_up ? G + (summed - 1) * k_stride_ : nullptr;
  const auto to_base = [&](T* sums) {
    if (block.operations.gates == Gates::log2)
      for (std::size_t e = 0; e < summed * k_stride_; ++e) sums[e] = sums[e] * log2_of_e<T>;
    kernels<T>().round(casts.g_cumsum, sums, summed * k_stride_);
  };
  if (block.tail != nullptr) {
    sum_tails(reduction, G, rows, k_stride_, tail_);
    to_base(tail_);
  }
  if (block.operations.scan_rows > 0)  // F1
    kernels<T>().scan({summed, k_stride_, block.operations.scan_rows, G, is_product ? factors_ : nullptr,
                       static_cast<T>(product.constant), block.operations.is_fused});
  else
    kernels<T>().cumulate(reduction, G, rows, k_stride_);
  to_base(G);
  if (bounds_ != nullptr)
    for (std::size_t from = 0, b = 0; from < rows; from += block.anchor_rows, ++b)
      for (std::size_t k = 0; k < k_stride_; ++k)
        bounds_[b * k_stride_ + k] = G[from * k_stride_ + k] + half_span_;
  block.rows = rows;
}

template <class T>
void load_initial_state(const HeadReader<T>& reader, const CastPoints& casts, std::size_t key_dim,
                        const Sequence& s, std::size_t head, T* state, std::size_t stride) {
  reader.state(s, head, state, stride);
  kernels<T>().round(casts.initial_state, state, key_dim * stride);
}

template <class T>
void ChunkWorkspace<T>::load_state(const HeadReader<T>& reader, const Sequence& s, std::size_t head) {
  load_initial_state(reader, block.casts, block.key_dim, s, head, block.state, v_stride_);
}

template <class T>
void ChunkWorkspace<T>::set_state(const T* state) {
  std::copy_n(state, block.key_dim * v_stride_, block.state);
}

template void cumulate_from_the_end(const Reduction&, float*, std::size_t, std::size_t);
template void cumulate_from_the_end(const Reduction&, double*, std::size_t, std::size_t);
template void scan_from_the_end(std::size_t, float*, std::size_t, std::size_t, std::size_t);
template void scan_from_the_end(std::size_t, double*, std::size_t, std::size_t, std::size_t);
template void load_initial_state(const HeadReader<float>&, const CastPoints&, std::size_t, const Sequence&,
                                 std::size_t, float*, std::size_t);
template void load_initial_state(const HeadReader<double>&, const CastPoints&, std::size_t, const Sequence&,
                                 std::size_t, double*, std::size_t);
template class ChunkWorkspace<float>;
template class ChunkWorkspace<double>;

}  // namespace kda_check::kda
