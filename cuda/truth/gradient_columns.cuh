// The two passes of the gradient oracle that add up over K (src/kda/kernels/truth/gradient_step.hpp has its
// arithmetic): from the first token on the errors e and what is written, from the last token on the residuals
// r and dv. Neither needs the other. As in recurrence.cuh a block has 32 columns of the state of a
// head, a lane sixteen rows of one of them, and sums go from warp to warp, high parts before low parts; the
// last warp has the sums and hands back what they make of the state.
#pragma once

#include "cuda/truth/block.cuh"
#include "cuda/truth/gradient_problem.cuh"

namespace kda_check::cuda {

/// The columns of one head of one sequence; step i is its token i, or its last but i.
template <bool backwards>
struct ColumnPlace {
  const GradientPortion& p;
  int head, first_column;
  GradientPiece piece;

  __device__ explicit ColumnPlace(const GradientPortion& portion)
      : p(portion),
        head(static_cast<int>(blockIdx.y)),
        first_column(static_cast<int>(blockIdx.x) * warp_lanes),
        piece(portion.sequences[blockIdx.z]) {}
  __device__ int tokens() const { return static_cast<int>(piece.count); }
  /// Of [tokens][heads].
  __device__ std::size_t token(int i) const {
    const int t = backwards ? tokens() - 1 - i : i;
    return (std::size_t(piece.first) + t) * p.heads + head;
  }
};

/// What the rows of a warp make of a sum over K goes on to the next warp.
enum class Handed : int { high, terms, propagated, energy, low };
constexpr int handed_numbers = 5;

/// Shared memory of a block, in doubles, in this order.
template <bool backwards>
struct ColumnShared {
  int warps, rows, written, handed, magnitudes, barriers;

  __host__ __device__ explicit ColumnShared(int K)
      : warps(oracle_warps(K)),
        rows(OracleRows::size(K)),
        written(4 * warp_lanes),
        handed((warps + 1) * handed_numbers * warp_lanes),
        magnitudes((backwards ? 2 : 1) * oracle_rows * warps * warp_lanes),
        barriers(2 * warps + 1) {}
  __host__ __device__ std::size_t bytes() const {
    return sizeof(double) * std::size_t(rows + written + handed + magnitudes + barriers);
  }
};

template <class Step, bool backwards>
class GradientColumns {
 public:
  using Number = typename Step::Number;
  using Term = typename Step::Term;
  using Gradient = kda::StateGradient<Step, double>;
  static constexpr int rows = oracle_rows;

  __device__ GradientColumns(const GradientPortion& p, double* memory)
      : shared_(p.K),
        p_(p),
        place_(p),
        lane_(static_cast<int>(threadIdx.x) % warp_lanes),
        warp_(static_cast<int>(threadIdx.x) / warp_lanes),
        column_(place_.first_column + lane_),
        inputs_(memory, warp_) {
    // Rows beyond K are zeros.
    for (int i = static_cast<int>(threadIdx.x); i < shared_.rows; i += blockDim.x) memory[i] = 0;
    written_ = memory + shared_.rows + lane_;
    handed_ = written_ + shared_.written;
    double* const magnitudes = memory + shared_.rows + shared_.written + shared_.handed;
    magnitudes_ = magnitudes + warp_ * rows * warp_lanes + lane_;
    barriers_ = reinterpret_cast<ChainBarrier*>(magnitudes + shared_.magnitudes);
    if (threadIdx.x == 0)
      for (int i = 0; i < shared_.barriers; ++i) barriers_[i].begin(1);
    __syncthreads();
  }

  __device__ void run() {
    inputs_.fetch(place_, 0);
    Ahead next = ahead(0);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const double x = p_.stored_state(backwards ? p_.state_gradient : p_.initial_state,
                                       place_.piece.sequence, place_.head, warp_ * rows + r, column_);
      state_[r] = Step::exact(x);
      magnitude(r) = numeric::absolute(x);
      if constexpr (backwards) energy(r) = magnitude(r) * magnitude(r);
    }
    for (int i = 0; i < place_.tokens(); ++i) {
      wait_for_copies();
      __syncwarp();
      inputs_.fetch(place_, i + 1);
      const Ahead now = next;
      next = ahead(i + 1);
      if (i > 0) leave(i - 1);
      if constexpr (!backwards) keep(i);
      enter(i, now);
      add_up(i);
      if (is_last()) finish(i, now);
    }
  }

 private:
  /// What a token has for a column, on its way while the token before it is at work.
  struct Ahead {
    double value, beta_hi, beta_lo;  ///< do or v
  };
  __device__ Ahead ahead(int i) const {
    Ahead x{0, 0, 0};
    if (i >= place_.tokens() || !(backwards || is_last())) return x;
    const std::size_t token = place_.token(i);
    if (column_ < p_.value_stride)
      x.value = (backwards ? p_.incoming : p_.values)[token * p_.value_stride + column_];
    if (is_last()) x.beta_hi = p_.strengths[2 * token], x.beta_lo = p_.strengths[2 * token + 1];
    return x;
  }

  __device__ bool is_last() const { return warp_ == shared_.warps - 1; }
  __device__ ChainBarrier& barrier(int pass, int warp) { return barriers_[2 * warp + pass]; }
  __device__ ChainBarrier& write_is_there() { return barriers_[shared_.barriers - 1]; }
  /// Of what is before the rows of `warp`; behind the last one the sum.
  __device__ double& handed(int warp, Handed number) {
    return handed_[(warp * handed_numbers + static_cast<int>(number)) * warp_lanes];
  }
  __device__ double& magnitude(int r) { return magnitudes_[r * warp_lanes]; }
  __device__ double& energy(int r) { return magnitudes_[(shared_.warps * rows + r) * warp_lanes]; }
  __device__ bool has_row(int r) const { return warp_ * rows + r < p_.K; }
  /// As in recurrence.cuh.
  __device__ bool leaves(int r) const { return r % 4 == 0 && !has_row(r); }
  /// Rows beyond K stay zeros, whatever is infinite.
  __device__ void clear_beyond() {
    if (p_.K % 4 == 0) return;
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (!has_row(r)) {
        state_[r] = Step::exact(0.0), magnitude(r) = 0;
        if constexpr (backwards) energy(r) = 0;
      }
  }

  /// From the state of token i to that which leaves it.
  __device__ void leave(int i) {
    write_is_there().wait(i);
    const Number write = Step::of(written_[0], written_[warp_lanes]);
    const double terms = written_[2 * warp_lanes], along = backwards ? written_[3 * warp_lanes] : 0.0;
    const ChannelPairs* const rows_of_token = inputs_.at(i);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (leaves(r)) break;
      const ChannelPairs& x = rows_of_token[r];
      const Number key = Step::of(x.k_hi, x.k_lo);
      if constexpr (backwards) {
        const Gradient leaving = Gradient{state_[r], magnitude(r)}
                                     .before(key, write, terms, x.retained, x.written)
                                     .leaving(Step::of(x.decay_hi, x.decay_lo), x.decay_hi);
        state_[r] = leaving.value, magnitude(r) = leaving.magnitude;
        energy(r) = kda::leaving_energy(energy(r), along, x.k_hi, x.retained, x.written, x.decay_hi);
      } else {
        state_[r] = Step::updated(key, write, state_[r]);
        magnitude(r) = kda::updated_magnitude(magnitude(r), terms, x.retained, x.written);
      }
    }
    clear_beyond();
  }
  __device__ void enter(int i, const Ahead& now) {
    const ChannelPairs* const rows_of_token = inputs_.at(i);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (leaves(r)) break;
      const ChannelPairs& x = rows_of_token[r];
      if constexpr (backwards) {
        const Number q = Step::of(x.q_hi, x.q_lo);
        const Gradient entered = Gradient{state_[r], magnitude(r)}.entered(q, now.value);
        state_[r] = entered.value, magnitude(r) = entered.magnitude;
        energy(r) = Gradient::entered_energy(energy(r), q, now.value);
      } else {
        state_[r] = Step::scaled(state_[r], Step::of(x.decay_hi, x.decay_lo));
        magnitude(r) = magnitude(r) * x.decay_hi;
      }
    }
    clear_beyond();
  }
  /// The state that enters token i, where that is to be kept.
  __device__ void keep(int i) {
    if (i == 0 || i % p_.checkpoint_tokens != 0 || column_ >= p_.value_stride) return;
    const std::size_t state = place_.piece.checkpoint + i / p_.checkpoint_tokens - 1;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (!has_row(r)) break;
      const std::size_t at = p_.state_at(state, place_.head, warp_ * rows + r, column_);
      const numeric::DoubleDouble s = Step::pair(state_[r]);
      p_.checkpoints.hi[at] = s.hi, p_.checkpoints.lo[at] = s.lo, p_.checkpoints.magnitude[at] = magnitude(r);
    }
  }

  static __device__ Number key_of(const ChannelPairs& x) { return Step::of(x.k_hi, x.k_lo); }

  /// The sums over all rows up to those of this warp. What is before them comes late: what does not depend on
  /// it is done by then, as far as there are registers.
  __device__ void add_up(int i) {
    const ChannelPairs* const x = inputs_.at(i);
    double rest[rows];  // high parts of the terms, and then what they add to the low part
    if constexpr (Step::has_low)
#pragma unroll
      for (int r = 0; r < rows; ++r) rest[r] = Step::term(key_of(x[r]), state_[r]).hi;
    double start = 0, terms = 0, propagated = 0, along = 0;
    if (warp_ > 0) {
      barrier(0, warp_).wait(i);
      start = handed(warp_, Handed::high), terms = handed(warp_, Handed::terms);
      propagated = handed(warp_, Handed::propagated);
      if constexpr (backwards) along = handed(warp_, Handed::energy);
    }
    double high = start;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (!Step::has_low && !has_row(r)) break;
      if constexpr (Step::has_low) {
        const Term next{rest[r], 0.0};
        high = Step::added(high, next).hi;
        terms = Step::enlarged(terms, next);
      } else {
        const Term next = Step::term(key_of(x[r]), state_[r]);
        high = Step::added(high, next).hi;
        terms = Step::enlarged(terms, next);
      }
      const double key = x[r].k_hi;
      propagated = propagated + numeric::absolute(key) * magnitude(r);
      if constexpr (backwards) along = along + key * key * energy(r);
    }
    const int behind = warp_ + 1;
    handed(behind, Handed::high) = high, handed(behind, Handed::terms) = terms;
    handed(behind, Handed::propagated) = propagated;
    if constexpr (backwards) handed(behind, Handed::energy) = along;
    if (!is_last()) barrier(0, behind).arrive();

    if constexpr (Step::has_low) {
      double before = start;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const numeric::DoubleDouble step = Step::added(before, Step::term(key_of(x[r]), state_[r]));
        rest[r] = step.lo;
        before = step.hi;
      }
      double low = 0;
      if (warp_ > 0) {
        barrier(1, warp_).wait(i);
        low = handed(warp_, Handed::low);
      }
#pragma unroll
      for (int r = 0; r < rows; ++r) low = low + rest[r];
      handed(behind, Handed::low) = low;
      if (!is_last()) barrier(1, behind).arrive();
    }
  }

  /// The last warp: what token i makes of its sums, for memory and for the rows of all warps.
  __device__ void finish(int i, const Ahead& now) {
    const int all = shared_.warps;
    const Number sum = Step::of(handed(all, Handed::high), Step::has_low ? handed(all, Handed::low) : 0.0),
                 beta = Step::of(now.beta_hi, now.beta_lo);
    const double terms = handed(all, Handed::terms), propagated = handed(all, Handed::propagated);
    const std::size_t at = place_.token(i) * p_.value_stride + column_;
    const bool is_there = column_ < p_.value_stride;
    if constexpr (backwards) {
      const double along = handed(all, Handed::energy), most = kda::residual_terms(terms, along);
      const Number residual = Step::normalised(sum), dv = Step::scaled(residual, beta);
      if (is_there) {
        store(p_.residual, at, residual, propagated);
        store(p_.dv, at, dv, propagated * numeric::absolute(now.beta_hi));
        p_.residual_terms[at] = most;
      }
      hand_back(-dv, most);
      written_[3 * warp_lanes] = along;
    } else {
      const auto token = kda::TokenError<Step, double>::of(now.value, sum, terms, propagated, beta);
      if (is_there) {
        store(p_.error, at, token.error, token.error_magnitude);
        store(p_.write, at, token.write, token.write_magnitude);
      }
      hand_back(token.write, token.write_magnitude);
    }
    write_is_there().arrive();
  }
  __device__ void hand_back(const Number& write, double terms) {
    const numeric::DoubleDouble x = Step::pair(write);
    written_[0] = x.hi, written_[warp_lanes] = x.lo, written_[2 * warp_lanes] = terms;
  }
  static __device__ void store(const WithMagnitude& to, std::size_t at, const Number& value,
                               double magnitude) {
    const numeric::DoubleDouble x = Step::pair(value);
    to.hi[at] = x.hi, to.lo[at] = x.lo, to.magnitude[at] = magnitude;
  }

  const ColumnShared<backwards> shared_;
  const GradientPortion& p_;
  const ColumnPlace<backwards> place_;
  const int lane_, warp_, column_;
  OracleRows inputs_;
  double *written_, *handed_, *magnitudes_;
  ChainBarrier* barriers_;
  Number state_[rows];
};

/// Two blocks a processor for K up to 128.
template <class Step, bool backwards>
__global__ void __launch_bounds__(512, 1) gradient_columns(const __grid_constant__ GradientPortion p) {
  extern __shared__ __align__(16) double gradient_memory[];
  if (p.sequences[blockIdx.z].count > 0) GradientColumns<Step, backwards>(p, gradient_memory).run();
}

template <class Step, bool backwards>
void launch_gradient_columns(const GradientPortion& p, cudaStream_t stream) {
  const ColumnShared<backwards> shared(p.K);
  launch_on(stream, "launching the columns of the gradient oracle", gradient_columns<Step, backwards>,
            dim3(static_cast<unsigned>((p.value_stride + warp_lanes - 1) / warp_lanes),
                 static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequence_count)),
            shared.warps * warp_lanes, shared.bytes(), p);
}

}  // namespace kda_check::cuda
