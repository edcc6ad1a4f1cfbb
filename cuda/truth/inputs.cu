// The inputs of the oracle in double-double, from the tensors as they are stored: what OracleInputs computes
// on the CPU, by the same functions.
#include "cuda/device/check.hpp"
#include "cuda/truth/problem.cuh"
#include "kda/kernels/truth/gate_functions.hpp"
#include "kda/kernels/truth/oracle_elements.hpp"

namespace kda_check::cuda {

namespace {

using numeric::DoubleDouble;

/// A thread a row of q or k: its squares are added up in their order.
__global__ void find_norms(OraclePortion p) {
  const std::size_t i = thread_index(), rows = std::size_t(p.tokens) * p.query_heads;
  if (i >= 2 * rows) return;
  const bool is_key = i >= rows;
  const std::size_t row = is_key ? i - rows : i;
  const Tensor& tensor = is_key ? p.k : p.q;
  p.norms[2 * row + is_key] =
      kda::RowNorm::of(p.K, [&](std::size_t k) { return load<double>(tensor, row * p.K + k); });
}

__global__ void widen_values(Tensor from, double* to, std::size_t rows, int width, int stride) {
  const std::size_t i = thread_index();
  if (i >= rows * stride) return;
  const std::size_t row = i / stride, column = i % stride;
  to[i] =
      from.data != nullptr && column < std::size_t(width) ? load<double>(from, row * width + column) : 0.0;
}

__global__ void find_strengths(OraclePortion p) {
  const std::size_t i = thread_index();
  if (i >= std::size_t(p.tokens) * p.heads) return;
  const DoubleDouble beta = kda::write_strength(load<double>(p.beta, i), p.beta_sigmoid, p.allow_neg_eigval);
  p.strengths[2 * i] = beta.hi;
  p.strengths[2 * i + 1] = beta.lo;
}

/// Log decay of a raw gate.
__device__ DoubleDouble log_decay_of(const OraclePortion& p, const kda::GateFunctions<double>& gate,
                                     DoubleDouble raw) {
  if (p.gate == kda::Gate::none) return raw;
  return p.gate == kda::Gate::lower_bound ? gate.bounded(raw, p.lower_bound) : gate.softplus(raw);
}

/// A thread a channel of a head, over some tokens: the amplitude of the gate is that of all.
__global__ void __launch_bounds__(block_threads) fill_channels(OraclePortion p, int tokens_a_block) {
  const int k = static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x), head = static_cast<int>(blockIdx.y);
  if (k >= p.K) return;
  const int problem_head = p.first_head + head;
  const kda::GateFunctions<double> gate(
      p.A_log.data == nullptr ? 0.0 : load<double>(p.A_log, std::size_t(problem_head)));
  DoubleDouble bias{};
  if (p.dt_bias.data != nullptr) bias.hi = load<double>(p.dt_bias, std::size_t(problem_head) * p.K + k);
  const int begin = static_cast<int>(blockIdx.x) * tokens_a_block;
  const int end = begin + tokens_a_block < p.tokens ? begin + tokens_a_block : p.tokens;
  for (int t = begin; t < end; ++t) {
    const std::size_t row = std::size_t(t) * p.heads + head,
                      query_row = std::size_t(t) * p.query_heads + p.query_of(head);
    DoubleDouble raw{load<double>(p.g, row * p.K + k)};
    if (p.gate != kda::Gate::none && p.dt_bias.data != nullptr) raw = kda::biased_gate(raw, bias);
    const DoubleDouble decay = numeric::exp(log_decay_of(p, gate, raw));
    const double stored_q = load<double>(p.q, query_row * p.K + k),
                 stored_k = load<double>(p.k, query_row * p.K + k);
    DoubleDouble q = DoubleDouble{p.scale} * stored_q, key = DoubleDouble{1.0} * stored_k;
    if (p.qk_l2norm) {
      q = p.norms[2 * query_row].normalised(DoubleDouble{p.scale}, stored_q);
      key = p.norms[2 * query_row + 1].normalised(DoubleDouble{1.0}, stored_k);
    }
    const double beta = p.strengths[2 * row];
    p.channels[row * p.K + k] = {key.hi,
                                 key.lo,
                                 q.hi,
                                 q.lo,
                                 decay.hi,
                                 decay.lo,
                                 kda::retained_share(beta, key.hi),
                                 kda::written_share(beta, key.hi)};
  }
}

/// A thread a token of a head: its sums are in the order of the channels.
__global__ void find_token_norms(OraclePortion p) {
  const std::size_t row = thread_index();
  if (row >= std::size_t(p.tokens) * p.heads) return;
  kda::TokenNormSums sums;
  for (int k = 0; k < p.K; ++k) {
    const ChannelPairs& x = p.channels[row * p.K + k];
    sums.add(x.decay_hi, x.k_hi, x.q_hi);
  }
  p.token_norms[row] = sums.norms(p.K);
}

__global__ void begin_states(OraclePortion p, std::size_t count, std::size_t first) {
  const std::size_t i = thread_index();
  if (i >= count) return;
  double value = 0;
  if (p.initial_state.data != nullptr) {
    const std::size_t size = std::size_t(p.K) * p.V, state = i / size, within = i % size;
    const std::size_t sequence = first + state / p.heads, head = p.first_head + state % p.heads,
                      k = within / p.V, v = within % p.V;
    const std::size_t at = (sequence * p.all_heads + head) * size;
    value = load<double>(p.initial_state, at + (p.state_v_first ? v * p.K + k : within));
  }
  p.state.hi[i] = value;
  p.state.lo[i] = 0;
  p.state.magnitude[i] = numeric::absolute(value);
  if (p.errors != nullptr && i < count / p.K) p.errors[i] = 0;
}

unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((count + block_threads - 1) / block_threads);
}

}  // namespace

void launch_oracle_states(const OraclePortion& p, int sequences, std::size_t first, cudaStream_t stream) {
  const std::size_t count = std::size_t(sequences) * p.heads * p.K * p.V;
  begin_states<<<blocks_for(count), block_threads, 0, stream>>>(p, count, first);
  check(cudaGetLastError(), "launching the states of the oracle");
}

void launch_oracle_values(const OraclePortion& p, const Tensor& from, double* to, cudaStream_t stream) {
  const std::size_t rows = std::size_t(p.tokens) * p.heads;
  widen_values<<<blocks_for(rows * p.value_stride), block_threads, 0, stream>>>(from, to, rows, p.V,
                                                                                p.value_stride);
  check(cudaGetLastError(), "launching the values of the oracle");
}

void launch_oracle_inputs(const OraclePortion& p, cudaStream_t stream) {
  const std::size_t rows = std::size_t(p.tokens) * p.heads;
  if (p.qk_l2norm)
    find_norms<<<blocks_for(2 * std::size_t(p.tokens) * p.query_heads), block_threads, 0, stream>>>(p);
  find_strengths<<<blocks_for(rows), block_threads, 0, stream>>>(p);
  launch_oracle_values(p, p.v, p.values, stream);
  // Enough blocks for every processor, and enough tokens for each that their amplitude costs little.
  constexpr int tokens_a_block = 8;
  const dim3 grid(static_cast<unsigned>((p.tokens + tokens_a_block - 1) / tokens_a_block),
                  static_cast<unsigned>(p.heads),
                  static_cast<unsigned>((p.K + block_threads - 1) / block_threads));
  fill_channels<<<grid, block_threads, 0, stream>>>(p, tokens_a_block);
  if (p.token_norms != nullptr) find_token_norms<<<blocks_for(rows), block_threads, 0, stream>>>(p);
  check(cudaGetLastError(), "launching the inputs of the oracle");
}

}  // namespace kda_check::cuda
