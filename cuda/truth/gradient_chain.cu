// From the sums over V to the gradients of the tensors as they are stored: what GradientSums computes on the
// CPU (src/kda/truth/gradient_sums.cpp), by the same functions and in the same order of sums.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/truth/gradient_problem.cuh"

namespace kda_check::cuda {

namespace {

using kda::GradientSum;
using numeric::DoubleDouble;
using numeric::ProductSum;

/// One token and head of a part, and where it is.
struct PartToken {
  const GradientPiece* piece;
  std::size_t row, token;  ///< in the part, in the portion
};
/// The token of row `row` of the part.
__device__ PartToken token_of_row(const GradientPortion& p, std::size_t row) {
  int low = 0, high = p.piece_count - 1;  // the last piece with piece.row <= row
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.pieces[middle].row <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  // Empty pieces begin where the next one does; the search has passed them.
  return {p.pieces + low, row, p.pieces[low].first + (row - p.pieces[low].row)};
}

__device__ GradientSum element(const WithMagnitude& m, std::size_t at) {
  return {{m.hi[at], m.lo[at]}, m.magnitude[at], m.magnitude[at]};
}
__device__ void put(const WithMagnitude& m, std::size_t at, const GradientSum& x) {
  m.hi[at] = x.value.hi, m.lo[at] = x.value.lo, m.magnitude[at] = x.magnitude;
}

/// sum_v of what the final state and its gradient have in common, of first order: what the last chunk's sums
/// begin with. A thread a row of a state.
__global__ void begin_chunk_terms(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index();
  if (i >= std::size_t(p.piece_count) * p.heads * p.K) return;
  const int k = static_cast<int>(i % p.K), head = static_cast<int>(i / p.K % p.heads);
  const std::size_t n = i / p.K / p.heads;
  const GradientPiece& piece = p.pieces[n];
  if (!piece.ends()) return;
  double terms = 0;
  for (int v = 0; v < p.V; ++v) {
    const std::size_t at = p.state_at(n, head, k, v);
    const double gradient = p.stored_state(p.state_gradient, piece.sequence, head, k, v),
                 size = numeric::absolute(gradient);
    terms += p.final_states.magnitude[at] * size + numeric::absolute(p.final_states.hi[at]) * size;
  }
  p.end_terms[i] = terms;
}

/// A thread a channel of a piece, from its last token on.
__global__ void add_chunk_terms(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index();
  if (i >= std::size_t(p.piece_count) * p.heads * p.K) return;
  const int k = static_cast<int>(i % p.K), head = static_cast<int>(i / p.K % p.heads);
  const GradientPiece& piece = p.pieces[i / p.K / p.heads];
  double terms = piece.ends() ? 0.0 : p.chunk_terms[i], end_terms = p.end_terms[i];
  for (std::uint32_t t = piece.count; t-- > 0;) {
    const std::uint32_t next = piece.begin + t + 1;
    if (next == piece.length || next % p.chunk_size == 0) terms = end_terms;
    const std::size_t at = ((std::size_t(piece.row) + t) * p.heads + head) * p.K + k;
    const ChannelPairs& x = p.channels[((std::size_t(piece.first) + t) * p.heads + head) * p.K + k];
    terms += kda::chunk_terms(x.q_hi, p.sums[int(RowSum::query)].magnitude[at], x.k_hi,
                              p.sums[int(RowSum::key)].magnitude[at]);
    // Where the chunk before ends, sum_v S D is the dg of this token.
    end_terms = p.sums[int(RowSum::gate)].magnitude[at];
    p.dg_chunk[at] = end_terms + terms;
  }
  p.chunk_terms[i] = terms, p.end_terms[i] = end_terms;
}

constexpr int slope_tokens = 8;  ///< of a block: their amplitude is that of all

__global__ void __launch_bounds__(block_threads) find_slopes(const __grid_constant__ GradientPortion p) {
  const int k = static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x), head = static_cast<int>(blockIdx.y);
  if (k >= p.K) return;
  const std::size_t problem_head = p.first_head + head;
  const bool has_amplitude = p.A_log.data != nullptr, bounded = p.gate == kda::Gate::lower_bound;
  const kda::GateFunctions<double> gate(has_amplitude ? load<double>(p.A_log, problem_head) : 0.0);
  DoubleDouble bias{};
  if (p.dt_bias.data != nullptr) bias.hi = load<double>(p.dt_bias, problem_head * p.K + k);
  const int begin = static_cast<int>(blockIdx.x) * slope_tokens, end = min(begin + slope_tokens, p.rows);
  for (int row = begin; row < end; ++row) {
    const std::size_t token = token_of_row(p, row).token;
    const DoubleDouble raw{load<double>(p.g, (token * p.heads + head) * p.K + k)};
    const DoubleDouble y = p.dt_bias.data != nullptr ? kda::biased_gate(raw, bias) : raw;
    const DoubleDouble slope = bounded ? gate.bounded_slope(y, p.lower_bound) : gate.softplus_slope(y);
    DoubleDouble amplitude{};
    if (has_amplitude)
      amplitude = bounded ? kda::bounded_amplitude_slope(gate, p.dt_bias.data != nullptr ? raw + bias : raw,
                                                         slope, p.lower_bound)
                          : kda::softplus_amplitude_slope(gate.softplus(y));
    p.slopes[(std::size_t(row) * p.heads + head) * p.K + k] = {slope.hi, slope.lo, amplitude.hi,
                                                               amplitude.lo};
  }
}

__device__ GradientSum gate_sum(const GradientPortion& p, std::size_t at) {
  GradientSum dg = element(p.sums[int(RowSum::gate)], at);
  dg.chunk = p.dg_chunk[at];
  return dg;
}

/// A thread a token and head: what its channels add to dA_log.
__global__ void add_amplitudes(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index();
  if (i >= std::size_t(p.rows) * p.heads) return;
  GradientSum sum;
  double size = 0;
  for (int k = 0; k < p.K; ++k) {
    const std::size_t at = i * p.K + k;
    const GradientSum dg = gate_sum(p, at);
    const ChannelSlopes& slopes = p.slopes[at];
    sum.add(dg.times({slopes.amplitude_hi, slopes.amplitude_lo}));
    size += numeric::absolute(dg.value.hi * slopes.amplitude_hi);
  }
  sum.squares = ProductSum::square(size);
  p.amplitudes[i] = sum;
}

/// A thread a channel of a token: dg, through the gate. What dA_log takes is gone through by now.
__global__ void finish_gates(const __grid_constant__ GradientPortion p) {
  const std::size_t at = thread_index();
  if (at >= std::size_t(p.rows) * p.heads * p.K) return;
  GradientSum dg = gate_sum(p, at);
  if (p.gate != kda::Gate::none) dg = dg.times({p.slopes[at].gate_hi, p.slopes[at].gate_lo});
  put(p.dg, at, dg);
  p.dg_chunk[at] = dg.chunk;
}

/// A thread a parameter of a piece, from its last token on; the one behind the channels is A_log.
__global__ void add_parameters(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index(), width = std::size_t(p.K) + 1;
  if (i >= std::size_t(p.piece_count) * p.heads * width) return;
  const int k = static_cast<int>(i % width), head = static_cast<int>(i / width % p.heads);
  const GradientPiece& piece = p.pieces[i / width / p.heads];
  if ((k == p.K ? p.A_log : p.dt_bias).data == nullptr) return;
  GradientSum& parameter = p.parameters[(std::size_t(piece.sequence) * p.heads + head) * width + k];
  GradientSum sum = parameter;
  for (std::uint32_t t = piece.count; t-- > 0;) {
    const std::size_t row = (std::size_t(piece.row) + t) * p.heads + head;
    if (k == p.K) {
      sum.add(p.amplitudes[row]);
      continue;
    }
    GradientSum raw = element(p.dg, row * p.K + k);
    raw.chunk = p.dg_chunk[row * p.K + k];
    raw.squares = ProductSum::square(raw.value.hi);
    sum.add(raw);
  }
  parameter = sum;
}

/// A thread a token and head: dbeta.
template <class Step>
__global__ void finish_strengths(const __grid_constant__ GradientPortion p) {
  using Number = typename Step::Number;
  const std::size_t i = thread_index();
  if (i >= std::size_t(p.rows) * p.heads) return;
  const int head = static_cast<int>(i % p.heads);
  const std::size_t row = token_of_row(p, i / p.heads).token * p.heads + head;
  kda::PartialSum<Step, double> partial[kda::partial_sums];
#pragma unroll
  for (int l = 0; l < kda::partial_sums; ++l) partial[l] = {Step::exact(0.0), 0.0};
  ProductSum squares;
  for (int v = 0; v < p.value_stride; v += kda::partial_sums)
#pragma unroll
    for (int l = 0; l < kda::partial_sums; ++l) {
      const std::size_t at = row * p.value_stride + v + l;
      const Number r = Step::of(p.residual.hi[at], p.residual.lo[at]),
                   e = Step::of(p.error.hi[at], p.error.lo[at]);
      partial[l].add_product(r, p.residual.magnitude[at], e, p.error.magnitude[at]);
      if (v + l < p.V)
        squares.add_square(kda::strength_terms(p.residual_terms[at], p.error.hi[at], p.residual.hi[at],
                                               p.write.magnitude[at]));
    }
  Number sum = partial[0].sum;
  double magnitude = partial[0].magnitude;
#pragma unroll
  for (int l = 1; l < kda::partial_sums; ++l) {
    Step::add_sum(partial[l].sum, sum);
    magnitude = magnitude + partial[l].magnitude;
  }
  const GradientSum dbeta{Step::pair(Step::normalised(sum)), magnitude, magnitude, squares};
  const GradientSum result =
      dbeta.times(kda::strength_slope(load<double>(p.beta, row), p.beta_sigmoid, p.allow_neg_eigval));
  put(p.dbeta, i, result);
  p.dbeta_spread[i] = result.squares.root();
}

/// A thread a channel of a query head of a token: the sum over its value heads.
__global__ void add_heads(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index();
  if (i >= std::size_t(p.rows) * p.query_heads * p.K) return;
  const int k = static_cast<int>(i % p.K), query = static_cast<int>(i / p.K % p.query_heads);
  const std::size_t row = i / p.K / p.query_heads;
  GradientSum dq, dk;
  for (int n = 0; n < p.heads_per_query; ++n) {
    const std::size_t at = (row * p.heads + query * p.heads_per_query + n) * p.K + k;
    GradientSum q = element(p.sums[int(RowSum::query)], at), key = element(p.sums[int(RowSum::key)], at);
    dq.add(q.times(DoubleDouble{p.scale}));
    dk.add(key);
  }
  put(p.dq, i, dq);
  put(p.dk, i, dk);
}

/// A thread a row of q or k: dq and dk through the L2 norm.
__global__ void through_norms(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index(), rows = std::size_t(p.rows) * p.query_heads;
  if (i >= 2 * rows) return;
  const bool is_key = i >= rows;
  const std::size_t row = is_key ? i - rows : i,
                    stored = token_of_row(p, row / p.query_heads).token * p.query_heads + row % p.query_heads;
  const WithMagnitude& gradient = is_key ? p.dk : p.dq;
  const Tensor& x = is_key ? p.k : p.q;
  const kda::RowNorm norm = p.norms[2 * stored + is_key];
  const auto y = [&](int k) { return norm.normalised(DoubleDouble{1.0}, load<double>(x, stored * p.K + k)); };
  const auto dy = [&](int k) {
    const std::size_t at = row * p.K + k;
    return GradientSum{{gradient.hi[at], gradient.lo[at]}, gradient.magnitude[at], 0};
  };
  GradientSum along;
  for (int k = 0; k < p.K; ++k) along.add(dy(k).times(y(k)));
  for (int k = 0; k < p.K; ++k)
    put(gradient, row * p.K + k, kda::through_norm(along, dy(k), y(k), norm.reciprocal()));
}

__global__ void put_initial_states(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index(), size = std::size_t(p.K) * p.V;
  if (i >= std::size_t(p.piece_count) * p.heads * size) return;
  const std::size_t state = i / size, within = i % size, n = state / p.heads;
  const int head = static_cast<int>(state % p.heads),
            k = static_cast<int>(p.state_v_first ? within % p.K : within / p.V),
            v = static_cast<int>(p.state_v_first ? within / p.K : within % p.V);
  if (p.pieces[n].begins()) put(p.d_state, i, element(p.gradients, p.state_at(n, head, k, v)));
}

__global__ void begin_parameters(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index();
  if (i < std::size_t(p.sequence_count) * p.heads * (p.K + 1)) p.parameters[i] = GradientSum{};
}

/// A thread a parameter, over the sequences.
__global__ void end_parameters(const __grid_constant__ GradientPortion p) {
  const std::size_t i = thread_index(), width = std::size_t(p.K) + 1;
  if (i >= p.heads * width) return;
  const std::size_t head = i / width, k = i % width;
  GradientSum sum;
  for (int n = 0; n < p.sequence_count; ++n) sum.add(p.parameters[n * p.heads * width + i]);
  const bool is_amplitude = k == std::size_t(p.K);
  const std::size_t at = is_amplitude ? head : head * p.K + k;
  put(is_amplitude ? p.d_A : p.d_b, at, sum);
  (is_amplitude ? p.d_A_chunk : p.d_b_chunk)[at] = sum.chunk;
  (is_amplitude ? p.d_A_spread : p.d_b_spread)[at] = sum.squares.root();
}

template <class Kernel>
void launch_threads(Kernel kernel, std::size_t count, const GradientPortion& p, cudaStream_t stream) {
  launch_on(stream, "launching the chain rules of the gradient oracle", kernel,
            dim3(static_cast<unsigned>((count + block_threads - 1) / block_threads)), block_threads, 0, p);
}

}  // namespace

void launch_gradient_chain(bool in_fp64, const GradientPortion& p, cudaStream_t stream) {
  const std::size_t pieces = std::size_t(p.piece_count) * p.heads, rows = std::size_t(p.rows) * p.heads,
                    query_rows = std::size_t(p.rows) * p.query_heads;
  if (p.rows == 0) return;
  launch_threads(begin_chunk_terms, pieces * p.K, p, stream);
  launch_threads(add_chunk_terms, pieces * p.K, p, stream);
  if (p.gate != kda::Gate::none) {
    const dim3 grid(static_cast<unsigned>((p.rows + slope_tokens - 1) / slope_tokens),
                    static_cast<unsigned>(p.heads),
                    static_cast<unsigned>((p.K + block_threads - 1) / block_threads));
    launch_on(stream, "launching the slopes of the gradient oracle", find_slopes, grid, block_threads, 0, p);
    if (p.A_log.data != nullptr) launch_threads(add_amplitudes, rows, p, stream);
  }
  launch_threads(finish_gates, rows * p.K, p, stream);
  if (p.gate != kda::Gate::none) launch_threads(add_parameters, pieces * (p.K + 1), p, stream);
  launch_threads(
      in_fp64 ? finish_strengths<kda::DoubleStep<double>> : finish_strengths<kda::DoubleDoubleStep<double>>,
      rows, p, stream);
  launch_threads(add_heads, query_rows * p.K, p, stream);
  if (p.qk_l2norm) launch_threads(through_norms, 2 * query_rows, p, stream);
}

void launch_gradient_initial_states(const GradientPortion& p, cudaStream_t stream) {
  launch_threads(put_initial_states, std::size_t(p.piece_count) * p.heads * p.K * p.V, p, stream);
}

void launch_gradient_parameters_begin(const GradientPortion& p, cudaStream_t stream) {
  launch_threads(begin_parameters, std::size_t(p.sequence_count) * p.heads * (p.K + 1), p, stream);
}
void launch_gradient_parameters_end(const GradientPortion& p, cudaStream_t stream) {
  launch_threads(end_parameters, std::size_t(p.heads) * (p.K + 1), p, stream);
}

}  // namespace kda_check::cuda
