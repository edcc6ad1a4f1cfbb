// recurrent, backwards (docs/kda.md, "Backward"). For each value head of a sequence: forwards for the
// prediction errors, with a checkpoint of the state before every block of tokens; then block by block from
// the last, the gradients of the predictions down the columns of the state, and, replayed from the
// checkpoint, what is summed along its rows.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/parallel.hpp"
#include "kda/head_gradients.hpp"
#include "kda/jobs.hpp"
#include "kda/token_form.hpp"

namespace kda_check::kda {

namespace {

/// Their history over one tile of keys, with a row of V, is to stay in the second-level cache.
constexpr std::size_t block_tokens = 32;

/// Scratch memory of one sequence of one query head, in elements.
struct Sizes {
  std::size_t K, V, k_stride, v_stride, tokens, blocks, group;

  Sizes(const Problem& problem, const Sequence& s)
      : K(problem.dimensions().K),
        V(problem.dimensions().V),
        k_stride(padded(K)),
        v_stride(padded(V)),
        tokens(s.length()),
        blocks((tokens + block_tokens - 1) / block_tokens),
        group(problem.heads_per_group()) {}

  std::size_t state() const { return K * v_stride; }
  std::size_t transposed_state() const { return V * k_stride; }
  std::size_t key_rows() const { return tokens * k_stride; }
  std::size_t value_rows() const { return tokens * v_stride; }
  /// What grows with the tokens (docs/kda.md, "Memory"): checkpoints, errors, and sums of dq and dk over the
  /// value heads of a group. Then a state, its gradient and that transposed; the history of a tile; and the
  /// rows of a block.
  std::size_t total(std::size_t lanes) const {
    return blocks * state() + value_rows() + (group > 1 ? 2 * key_rows() : 0) + 3 * state() +
           transposed_state() + (block_tokens + 1) * V * lanes +
           block_tokens * (6 * k_stride + 4 * v_stride + 2);
  }
};

/// Element (row, column) of tile `tile`: `lanes` columns wide, from column tile * lanes on.
template <class T>
void copy_to_tile(const T* matrix, std::size_t stride, std::size_t rows, std::size_t lanes, std::size_t tile,
                  T* to) {
  for (std::size_t row = 0; row < rows; ++row)
    std::copy_n(matrix + row * stride + tile * lanes, lanes, to + row * lanes);
}
template <class T>
void copy_from_tile(const T* from, std::size_t stride, std::size_t rows, std::size_t lanes, std::size_t tile,
                    T* matrix) {
  for (std::size_t row = 0; row < rows; ++row)
    std::copy_n(from + row * lanes, lanes, matrix + row * stride + tile * lanes);
}
/// A tile of the transposed matrix; `rows` of the matrix are there, lanes beyond them are zero.
template <class T>
void copy_to_transposed_tile(const T* matrix, std::size_t stride, std::size_t rows, std::size_t columns,
                             std::size_t lanes, std::size_t tile, T* to) {
  const std::size_t first = tile * lanes, used = std::min(lanes, rows - first);
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t lane = 0; lane < used; ++lane)
      to[column * lanes + lane] = matrix[(first + lane) * stride + column];
    for (std::size_t lane = used; lane < lanes; ++lane) to[column * lanes + lane] = 0;
  }
}

struct Block {
  std::size_t index, begin, count;
};

/// The rows of a block of tokens of one value head.
template <class T>
struct BlockRows {
  BlockRows(std::size_t k_stride, std::size_t v_stride)
      : q(block_tokens * k_stride),
        k(block_tokens * k_stride),
        decay(block_tokens * k_stride),
        dq(block_tokens * k_stride),
        dk(block_tokens * k_stride),
        dg(block_tokens * k_stride),
        d_o(block_tokens * v_stride),
        write(block_tokens * v_stride),
        r(block_tokens * v_stride),
        y(block_tokens * v_stride),
        beta(block_tokens),
        dbeta(block_tokens) {}
  tensor::Scratch<T> q, k, decay, dq, dk, dg, d_o, write, r, y, beta, dbeta;
};

/// The value heads of one query head of one sequence, one after the other. Its memory is used again for the
/// next.
template <class T>
class HeadBackward {
 public:
  /// `longest`: no sequence to come is longer.
  HeadBackward(const Problem& problem, const Sequence& longest, const TokenArithmetic& arithmetic)
      : problem_(problem),
        reader_(problem, arithmetic.operations),
        s_(longest),
        arithmetic_(arithmetic),
        kernels_(arithmetic.is_plain() ? kernels<T>().token_backward[arithmetic.operations.is_fused]
                                       : kernels<T>().any_token_backward),
        n_(problem, longest),
        lanes_(kernels<T>().tile_lanes),
        checkpoints_(n_.blocks * n_.state()),
        errors_(n_.value_rows()),
        matrix_(n_.state()),
        states_(n_.state()),
        row_state_(lanes_ * n_.V),
        history_(block_tokens * lanes_ * n_.V),
        gradient_(n_.state()),
        transposed_gradient_(n_.transposed_state()),
        dq_sum_(n_.group > 1 ? n_.key_rows() : 0),
        dk_sum_(n_.group > 1 ? n_.key_rows() : 0),
        rows_(n_.k_stride, n_.v_stride) {}

  void run(const Sequence& sequence, std::size_t query_head, HeadGradients<T>& gradients) {
    s_ = sequence;
    n_ = Sizes(problem_, sequence);
    for (std::size_t member = 0; member < n_.group; ++member) {
      head_ = query_head * n_.group + member;
      forwards();
      begin_with_final_gradient();
      for (std::size_t b = n_.blocks; b-- > 0;) {
        const Block block = block_of(b);
        backwards(block);
        hand_out(block, query_head, member, gradients);
      }
      hand_out_state(gradients);
    }
  }

 private:
  Block block_of(std::size_t b) const {
    const std::size_t begin = s_.begin + b * block_tokens;
    return {b, begin, std::min(block_tokens, s_.end - begin)};
  }
  T* errors_of(const Block& block) { return errors_.data() + (block.begin - s_.begin) * n_.v_stride; }
  T* tile_of_columns(tensor::Scratch<T>& tiles, std::size_t tile) {
    return tiles.data() + tile * lanes_ * n_.K;
  }
  T* tile_of_rows(tensor::Scratch<T>& tiles, std::size_t tile) { return tiles.data() + tile * lanes_ * n_.V; }

  /// Errors and checkpoints.
  void forwards() {
    reader_.state(s_, head_, matrix_.data(), n_.v_stride);
    for (std::size_t tile = 0; tile * lanes_ < n_.V; ++tile)
      copy_to_tile(matrix_.data(), n_.v_stride, n_.K, lanes_, tile, tile_of_columns(states_, tile));
    for (std::size_t b = 0; b < n_.blocks; ++b) {
      const Block block = block_of(b);
      load(block);
      reader_.value(s_, head_, block.begin, block.count, rows_.y.data(), n_.v_stride);
      for (std::size_t tile = 0; tile * lanes_ < n_.V; ++tile) {
        T* const state = tile_of_columns(states_, tile);
        copy_from_tile(state, n_.v_stride, n_.K, lanes_, tile, checkpoints_.data() + b * n_.state());
        const std::size_t lane = tile * lanes_;
        kernels_.replay({block.count, n_.K, n_.k_stride, n_.v_stride, rows_.q.data(), rows_.k.data(),
                         rows_.decay.data(), rows_.beta.data(), rows_.y.data() + lane,
                         errors_of(block) + lane, state, arithmetic_.operations, arithmetic_.casts});
      }
    }
  }

  void load(const Block& block) {
    load_rows(reader_, arithmetic_, s_, head_, block.begin, block.count, n_.k_stride,
              {rows_.q.data(), rows_.k.data(), rows_.decay.data(), rows_.beta.data()});
  }

  void begin_with_final_gradient() {
    reader_.state_gradient(s_, head_, matrix_.data(), n_.v_stride);
    for (std::size_t tile = 0; tile * lanes_ < n_.V; ++tile)
      copy_to_tile(matrix_.data(), n_.v_stride, n_.K, lanes_, tile, tile_of_columns(gradient_, tile));
    for (std::size_t tile = 0; tile * lanes_ < n_.K; ++tile)
      copy_to_transposed_tile(matrix_.data(), n_.v_stride, n_.K, n_.V, lanes_, tile,
                              tile_of_rows(transposed_gradient_, tile));
  }

  void backwards(const Block& block) {
    load(block);
    reader_.output_gradient(s_, head_, block.begin, block.count, rows_.d_o.data(), n_.v_stride);
    for (std::size_t tile = 0; tile * lanes_ < n_.V; ++tile) down_columns(block, tile);
    weigh(errors_of(block), block, rows_.write.data());
    weigh(rows_.r.data(), block, rows_.y.data());
    for (std::size_t tile = 0; tile * lanes_ < n_.K; ++tile) along_rows(block, tile);
    const T scale = reader_.scale();
    for (std::size_t i = 0; i < block.count * n_.k_stride; ++i) rows_.dq[i] = scale * rows_.dq[i];
  }

  /// Gradients of the predictions.
  void down_columns(const Block& block, std::size_t tile) {
    const std::size_t lane = tile * lanes_;
    kernels_.column_gradients({block.count, n_.K, n_.k_stride, n_.v_stride, rows_.q.data(), rows_.k.data(),
                               rows_.decay.data(), rows_.beta.data(), rows_.d_o.data() + lane,
                               rows_.r.data() + lane, tile_of_columns(gradient_, tile),
                               arithmetic_.operations, arithmetic_.casts});
  }

  /// dq, dk and dg.
  void along_rows(const Block& block, std::size_t tile) {
    copy_to_transposed_tile(checkpoints_.data() + block.index * n_.state(), n_.v_stride, n_.K, n_.V, lanes_,
                            tile, row_state_.data());
    const std::size_t lane = tile * lanes_;
    kernels_.row_gradients({block.count, n_.V, n_.k_stride, n_.v_stride, rows_.q.data() + lane,
                            rows_.k.data() + lane, rows_.decay.data() + lane, rows_.write.data(),
                            rows_.y.data(), rows_.d_o.data(), rows_.dq.data() + lane, rows_.dk.data() + lane,
                            rows_.dg.data() + lane, row_state_.data(),
                            tile_of_rows(transposed_gradient_, tile), history_.data(), arithmetic_.operations,
                            arithmetic_.casts});
  }

  /// target_t = beta_t rows_t
  void weigh(const T* rows, const Block& block, T* target) {
    for (std::size_t t = 0; t < block.count; ++t) {
      const T beta = rows_.beta[t];
      const std::size_t row = t * n_.v_stride;
      for (std::size_t v = 0; v < n_.v_stride; ++v) target[row + v] = rows[row + v] * beta;
    }
  }

  void hand_out(const Block& block, std::size_t query_head, std::size_t member, HeadGradients<T>& gradients) {
    kernels<T>().row_dots({block.count, n_.V, n_.v_stride, rows_.r.data(), errors_of(block),
                           rows_.dbeta.data(), arithmetic_.operations});
    gradients.value(s_, head_, block.begin, block.count, rows_.y.data(), n_.v_stride);
    gradients.beta(s_, head_, block.begin, block.count, rows_.dbeta.data());
    gradients.log_decay(s_, head_, block.begin, block.count, rows_.dg.data(), n_.k_stride);
    T *dq = rows_.dq.data(), *dk = rows_.dk.data();
    if (n_.group > 1) {
      const std::size_t at = (block.begin - s_.begin) * n_.k_stride, count = block.count * n_.k_stride;
      dq = added_to_group(dq, count, member == 0, dq_sum_.data() + at);
      dk = added_to_group(dk, count, member == 0, dk_sum_.data() + at);
    }
    if (member + 1 < n_.group) return;
    gradients.query(s_, query_head, block.begin, block.count, dq, n_.k_stride);
    gradients.key(s_, query_head, block.begin, block.count, dk, n_.k_stride);
  }

  void hand_out_state(HeadGradients<T>& gradients) {
    for (std::size_t tile = 0; tile * lanes_ < n_.V; ++tile)
      copy_from_tile(tile_of_columns(gradient_, tile), n_.v_stride, n_.K, lanes_, tile, matrix_.data());
    gradients.initial_state(s_, head_, matrix_.data(), n_.v_stride);
  }

  const Problem& problem_;
  const HeadReader<T> reader_;
  Sequence s_;
  const TokenArithmetic& arithmetic_;
  const TokenBackwardKernels<T>& kernels_;
  Sizes n_;
  const std::size_t lanes_;
  std::size_t head_ = 0;
  tensor::Scratch<T> checkpoints_;          ///< [blocks][K][v_stride], entering each block
  tensor::Scratch<T> errors_;               ///< [tokens][v_stride] e_t
  tensor::Scratch<T> matrix_;               ///< [K][v_stride] a state or its gradient, on its way
  tensor::Scratch<T> states_;               ///< tiles of V lanes
  tensor::Scratch<T> row_state_, history_;  ///< [V][lanes] and [block_tokens][V][lanes] of a tile of K lanes
  tensor::Scratch<T> gradient_;             ///< tiles of V lanes
  tensor::Scratch<T> transposed_gradient_;  ///< tiles of K lanes
  tensor::Scratch<T> dq_sum_, dk_sum_;      ///< [tokens][k_stride] over a group
  BlockRows<T> rows_;
};

template <class T>
GradientTensors run_in(const Problem& problem, const RunOptions& options) {
  const TokenArithmetic arithmetic(options);
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const int workers_wanted = std::min(options.threads, static_cast<int>(jobs.size()));
  const Sizes longest(problem, jobs.front().sequence);
  const double bytes = static_cast<double>(sizeof(T)) * workers_wanted *
                       static_cast<double>(longest.total(kernels<T>().tile_lanes));
  refuse_memory(fmt::format("{} tokens backwards take", longest.tokens), bytes,
                static_cast<std::size_t>(workers_wanted), options.memory_limit, "--threads 1");
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  HeadGradients<T> gradients(problem, arithmetic.operations,
                             {NormForm::division, arithmetic.casts.normalised, false}, tensors);
  std::deque<HeadBackward<T>> workers;
  for (int worker = 0; worker < workers_wanted; ++worker)
    workers.emplace_back(problem, jobs.front().sequence, arithmetic);
  parallel_for(jobs.size(), workers_wanted, [&](std::size_t item, int worker) {
    workers[static_cast<std::size_t>(worker)].run(jobs[item].sequence, jobs[item].query_head, gradients);
  });
  gradients.finish();
  return tensors;
}

}  // namespace

GradientTensors run_recurrent_backward(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? run_in<double>(problem, options)
                                               : run_in<float>(problem, options);
}

}  // namespace kda_check::kda
