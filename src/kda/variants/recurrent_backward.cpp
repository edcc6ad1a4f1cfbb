// recurrent, backwards (docs/kda.md, "Backward"). For each value head of a sequence: forwards for the
// prediction errors, with a checkpoint of the state before every block of tokens; then block by block from
// the last, the gradients of the predictions down the columns of the state, and, replayed from the
// checkpoint, what is summed along its rows. Columns do not meet, nor do rows: with more threads than heads
// several share a head, by tiles.
#include <fmt/format.h>

#include <deque>

#include "base/threads/parallel.hpp"
#include "kda/head/gradients.hpp"
#include "kda/head/token_form.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/variants/recurrent_backward_workspace.hpp"

namespace kda_check::kda {

namespace {

struct Block {
  std::size_t index, begin, count;
};
/// Blocks, or tiles of columns or of rows, [first, last).
struct Range {
  std::size_t first, last;
};

/// The value heads of one query head of one sequence, one after the other. Its memory is used again for the
/// next.
template <class T>
class HeadBackward {
 public:
  /// `longest`: no sequence to come is longer.
  HeadBackward(const Problem& problem, const Sequence& longest, const TokenArithmetic& arithmetic,
               const Team& team)
      : problem_(problem),
        reader_(problem, arithmetic.operations),
        s_(longest),
        arithmetic_(arithmetic),
        kernels_(arithmetic.is_plain() ? kernels<T>().token_backward[arithmetic.operations.is_fused]
                                       : kernels<T>().any_token_backward),
        team_(team),
        n_(problem, longest, arithmetic),
        lanes_(kernels<T>().tile_lanes),
        checkpoints_(n_.blocks * n_.state()),
        errors_(n_.value_rows()),
        matrix_(n_.state()),
        states_(n_.state()),
        gradient_(n_.state()),
        transposed_gradient_(n_.transposed_state()),
        dq_sum_(n_.group > 1 ? n_.key_rows() : 0),
        dk_sum_(n_.group > 1 ? n_.key_rows() : 0),
        span_(n_, team) {
    for (int thread = 0; thread < team.threads; ++thread) rows_.emplace_back(n_, lanes_);
  }

  void run(const Sequence& sequence, std::size_t query_head, HeadGradients<T>& gradients) {
    s_ = sequence;
    n_ = BackwardSizes(problem_, sequence, arithmetic_);
    for (std::size_t member = 0; member < n_.group; ++member) {
      head_ = query_head * n_.group + member;
      begin_with_initial_state();
      over_parts(n_.V, [&](const Range& columns, BlockRows<T>& rows) {
        for (std::size_t b = 0; b < n_.blocks; ++b) forwards(block_of(b), columns, rows);
      });
      begin_with_final_gradient();
      for (std::size_t last = n_.blocks; last > 0;) {
        const Range span{(last - 1) / team_.span_blocks() * team_.span_blocks(), last};
        backwards(span);
        hand_out(span, query_head, member, gradients);
        last = span.first;
      }
      hand_out_state(gradients);
    }
  }

 private:
  Block block_of(std::size_t b) const {
    const std::size_t begin = s_.begin + b * backward_block_tokens;
    return {b, begin, std::min(backward_block_tokens, s_.end - begin)};
  }
  /// Rows of a block in what its span leaves.
  T* key_rows(T* of_span, const Block& block) const {
    return of_span + block.index % team_.span_blocks() * backward_block_tokens * n_.k_stride;
  }
  T* value_rows(T* of_span, const Block& block) const {
    return of_span + block.index % team_.span_blocks() * backward_block_tokens * n_.v_stride;
  }
  T* errors_of(const Block& block) { return errors_.data() + (block.begin - s_.begin) * n_.v_stride; }
  T* checkpoint_of(const Block& block) { return checkpoints_.data() + block.index * n_.state(); }
  T* tile_of_columns(tensor::Scratch<T>& tiles, std::size_t tile) {
    return tiles.data() + tile * lanes_ * n_.K;
  }
  T* tile_of_rows(tensor::Scratch<T>& tiles, std::size_t tile) { return tiles.data() + tile * lanes_ * n_.V; }
  std::size_t tiles(std::size_t width) const { return (width + lanes_ - 1) / lanes_; }

  /// Calls body(part, rows of a thread) for as many parts of the tiles as there are threads.
  template <class Body>
  void over_parts(std::size_t width, Body body) {
    const std::size_t all = tiles(width), parts = std::min(all, rows_.size());
    parallel_for(parts, team_.threads, [&](std::size_t part, int thread) {
      body(Range{all * part / parts, all * (part + 1) / parts}, rows_[static_cast<std::size_t>(thread)]);
    });
  }

  void begin_with_initial_state() {
    reader_.state(s_, head_, matrix_.data(), n_.v_stride);
    for (std::size_t tile = 0; tile < tiles(n_.V); ++tile)
      copy_to_tile(matrix_.data(), n_.v_stride, n_.K, lanes_, tile, tile_of_columns(states_, tile));
  }

  void begin_with_final_gradient() {
    reader_.state_gradient(s_, head_, matrix_.data(), n_.v_stride);
    for (std::size_t tile = 0; tile < tiles(n_.V); ++tile)
      copy_to_tile(matrix_.data(), n_.v_stride, n_.K, lanes_, tile, tile_of_columns(gradient_, tile));
    for (std::size_t tile = 0; tile < tiles(n_.K); ++tile)
      copy_to_transposed_tile(matrix_.data(), n_.v_stride, n_.K, n_.V, lanes_, tile,
                              tile_of_rows(transposed_gradient_, tile));
  }

  HeadTokens tokens_of(const Block& block) const { return {s_, head_, block.begin, block.count}; }
  void load(const Block& block, BlockRows<T>& rows) {
    load_rows(reader_, arithmetic_, tokens_of(block), n_.k_stride, true,
              {rows.q, rows.k, rows.decay, rows.beta, rows.read, rows.column_beta, n_.v_stride});
  }
  void load_with_gradient(const Block& block, BlockRows<T>& rows) {
    load(block, rows);
    reader_.output_gradient(tokens_of(block), rows.d_o, n_.v_stride);
  }

  /// Errors and checkpoints.
  void forwards(const Block& block, const Range& columns, BlockRows<T>& rows) {
    load(block, rows);
    reader_.value(tokens_of(block), rows.d_o, n_.v_stride);
    for (std::size_t tile = columns.first; tile < columns.last; ++tile) {
      T* const state = tile_of_columns(states_, tile);
      copy_from_tile(state, n_.v_stride, n_.K, lanes_, tile, checkpoint_of(block));
      const std::size_t lane = tile * lanes_;
      kernels_.replay({block.count, n_.K, n_.k_stride, n_.v_stride, rows.q, rows.k, rows.decay, rows.beta,
                       rows.d_o + lane, errors_of(block) + lane, state, arithmetic_.operations,
                       arithmetic_.casts, rows.read, column_beta_of(rows, lane)});
    }
  }

  void backwards(const Range& span) {
    over_parts(n_.V, [&](const Range& columns, BlockRows<T>& rows) {
      for (std::size_t b = span.last; b-- > span.first;) {
        load_with_gradient(block_of(b), rows);
        for (std::size_t tile = columns.first; tile < columns.last; ++tile)
          down_columns(block_of(b), tile, rows);
      }
    });
    over_parts(n_.K, [&](const Range& keys, BlockRows<T>& rows) {
      for (std::size_t b = span.last; b-- > span.first;) {
        const Block block = block_of(b);
        // Alone, a thread still has them.
        if (team_.threads > 1) load_with_gradient(block, rows);
        weigh(errors_of(block), rows, 0, block.count, tiles(n_.V) * lanes_, rows.write);
        for (std::size_t tile = keys.first; tile < keys.last; ++tile) along_rows(block, tile, rows);
      }
    });
  }

  /// Gradients of the predictions.
  void down_columns(const Block& block, std::size_t tile, BlockRows<T>& rows) {
    const std::size_t lane = tile * lanes_;
    T* const r = value_rows(span_.r, block) + lane;
    kernels_.column_gradients({block.count, n_.K, n_.k_stride, n_.v_stride, rows.q, rows.k, rows.decay,
                               rows.beta, rows.d_o + lane, r, tile_of_columns(gradient_, tile),
                               arithmetic_.operations, arithmetic_.casts, rows.read,
                               column_beta_of(rows, lane)});
    weigh(r, rows, lane, block.count, lanes_, value_rows(span_.y, block) + lane);
  }

  /// dq, dk and dg.
  void along_rows(const Block& block, std::size_t tile, BlockRows<T>& rows) {
    copy_to_transposed_tile(checkpoint_of(block), n_.v_stride, n_.K, n_.V, lanes_, tile, rows.state);
    const std::size_t lane = tile * lanes_;
    kernels_.row_gradients({block.count,
                            n_.V,
                            n_.k_stride,
                            n_.v_stride,
                            rows.q + lane,
                            rows.k + lane,
                            rows.decay + lane,
                            rows.write,
                            value_rows(span_.y, block),
                            rows.d_o,
                            key_rows(span_.dq, block) + lane,
                            key_rows(span_.dk, block) + lane,
                            key_rows(span_.dg, block) + lane,
                            rows.state,
                            tile_of_rows(transposed_gradient_, tile),
                            rows.history,
                            arithmetic_.operations,
                            arithmetic_.casts,
                            rows.read == nullptr ? nullptr : rows.read + lane,
                            span_.dread == nullptr ? nullptr : key_rows(span_.dread, block) + lane});
  }

  /// Betas of columns from `lane` on; null where there are none.
  static const T* column_beta_of(const BlockRows<T>& rows, std::size_t lane) {
    return rows.column_beta == nullptr ? nullptr : rows.column_beta + lane;
  }

  /// target_t = beta_t rows_t, the first `width` of each row, which are columns from `lane` on
  void weigh(const T* from, const BlockRows<T>& rows, std::size_t lane, std::size_t count, std::size_t width,
             T* target) {
    const T* const column_beta = column_beta_of(rows, lane);
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t v = 0; v < width; ++v) {
        const std::size_t at = t * n_.v_stride + v;
        target[at] = from[at] * (column_beta == nullptr ? rows.beta[t] : column_beta[at]);
      }
  }

  void hand_out(const Range& span, std::size_t query_head, std::size_t member, HeadGradients<T>& gradients) {
    parallel_for(span.last - span.first + 1, team_.threads, [&](std::size_t item, int) {
      if (item > 0) return hand_out(block_of(span.first + item - 1), query_head, member, gradients);
      // The gate's parameters are sums over tokens, whose order is part of their result.
      for (std::size_t b = span.last; b-- > span.first;) {
        const Block block = block_of(b);
        gradients.log_decay(tokens_of(block), key_rows(span_.dg, block), n_.k_stride);
      }
    });
  }

  void hand_out(const Block& block, std::size_t query_head, std::size_t member, HeadGradients<T>& gradients) {
    T *const r = value_rows(span_.r, block), *const dv = value_rows(span_.y, block);
    const std::size_t count = block.count * n_.k_stride;
    T *dq = key_rows(span_.dq, block), *dk = key_rows(span_.dk, block);
    tensor::Scratch<T> key(n_.has_read ? count : 0);
    if (n_.has_read) {
      reader_.key(tokens_of(block), NormForm::division, arithmetic_.casts.normalised, key.data(),
                  n_.k_stride);
      gradients.gates(tokens_of(block), key.data(), dk, key_rows(span_.dread, block), n_.k_stride, dv,
                      n_.v_stride);
    }
    gradients.value(tokens_of(block), dv, n_.v_stride);
    if (n_.has_column_betas()) {  // r_t * e_t
      const T* const error = errors_of(block);
      for (std::size_t i = 0; i < block.count * n_.v_stride; ++i) r[i] = r[i] * error[i];
      gradients.beta(tokens_of(block), r, n_.v_stride);
    } else {
      T dbeta[backward_block_tokens];
      if (arithmetic_.weighs_key)
        through_weighed_key(block, key.data(), dk, dbeta);
      else
        kernels<T>().row_dots(
            {block.count, n_.V, n_.v_stride, r, errors_of(block), dbeta, arithmetic_.operations});
      gradients.beta(tokens_of(block), dbeta, 1);
    }
    const T scale = reader_.scale();
    for (std::size_t i = 0; i < count; ++i) dq[i] = scale * dq[i];
    if (n_.group > 1) {
      const std::size_t at = (block.begin - s_.begin) * n_.k_stride;
      dq = added_to_group(dq, count, member == 0, dq_sum_.data() + at);
      dk = added_to_group(dk, count, member == 0, dk_sum_.data() + at);
    }
    if (member + 1 < n_.group) return;
    gradients.query({s_, query_head, block.begin, block.count}, dq, n_.k_stride);
    gradients.key({s_, query_head, block.begin, block.count}, dk, n_.k_stride);
  }

  /// From the gradient of beta k to those of beta and, with that of what predictions read along, k.
  void through_weighed_key(const Block& block, const T* key, T* dk, T* dbeta) {
    kernels<T>().row_dots({block.count, n_.K, n_.k_stride, key, dk, dbeta, arithmetic_.operations});
    T beta[backward_block_tokens];
    reader_.beta(tokens_of(block), beta);
    kernels<T>().round(arithmetic_.casts.beta, beta, block.count);
    const T* const dread = key_rows(span_.dread, block);
    for (std::size_t t = 0; t < block.count; ++t)
      for (std::size_t k = t * n_.k_stride; k < (t + 1) * n_.k_stride; ++k)
        dk[k] = beta[t] * dk[k] + dread[k];
  }

  void hand_out_state(HeadGradients<T>& gradients) {
    for (std::size_t tile = 0; tile < tiles(n_.V); ++tile)
      copy_from_tile(tile_of_columns(gradient_, tile), n_.v_stride, n_.K, lanes_, tile, matrix_.data());
    gradients.initial_state(s_, head_, matrix_.data(), n_.v_stride);
  }

  const Problem& problem_;
  const HeadReader<T> reader_;
  Sequence s_;
  const TokenArithmetic& arithmetic_;
  const TokenBackwardKernels<T>& kernels_;
  const Team team_;
  BackwardSizes n_;
  const std::size_t lanes_;
  std::size_t head_ = 0;
  tensor::Scratch<T> checkpoints_;          ///< [blocks][K][v_stride], entering each block
  tensor::Scratch<T> errors_;               ///< [tokens][v_stride] e_t
  tensor::Scratch<T> matrix_;               ///< [K][v_stride] a state or its gradient, on its way
  tensor::Scratch<T> states_;               ///< tiles of V lanes
  tensor::Scratch<T> gradient_;             ///< tiles of V lanes
  tensor::Scratch<T> transposed_gradient_;  ///< tiles of K lanes
  tensor::Scratch<T> dq_sum_, dk_sum_;      ///< [tokens][k_stride] over a group
  SpanRows<T> span_;
  std::vector<BlockRows<T>> rows_;  ///< of each thread
};

template <class T>
GradientTensors recurrent_gradients_in(const Problem& problem, const RunOptions& options) {
  const TokenArithmetic arithmetic(problem, options);
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const int workers_wanted = std::min(options.threads, static_cast<int>(jobs.size()));
  const std::size_t lanes = kernels<T>().tile_lanes;
  const Team team = team_for(problem, jobs.front().sequence, jobs.size(), options.threads, lanes);
  const BackwardSizes longest(problem, jobs.front().sequence, arithmetic);
  const double bytes =
      static_cast<double>(sizeof(T)) * workers_wanted * static_cast<double>(longest.total(lanes, team));
  refuse_memory(fmt::format("{} tokens backwards take", longest.tokens), bytes,
                static_cast<std::size_t>(workers_wanted * team.threads), options.memory_limit, 0);
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  HeadGradients<T> gradients(problem, arithmetic.operations,
                             {NormForm::division, arithmetic.casts.normalised, false}, tensors);
  std::deque<HeadBackward<T>> workers;
  for (int worker = 0; worker < workers_wanted; ++worker)
    workers.emplace_back(problem, jobs.front().sequence, arithmetic, team);
  parallel_for(jobs.size(), workers_wanted, [&](std::size_t item, int worker) {
    workers[static_cast<std::size_t>(worker)].run(jobs[item].sequence, jobs[item].query_head, gradients);
  });
  gradients.finish();
  return tensors;
}

}  // namespace

GradientTensors run_recurrent_backward(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? recurrent_gradients_in<double>(problem, options)
                                               : recurrent_gradients_in<float>(problem, options);
}

}  // namespace kda_check::kda
