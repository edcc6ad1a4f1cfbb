// recurrent, backwards (docs/kda.md, "Backward"). For each value head of a sequence: forwards for the
// prediction errors, with a checkpoint of the state before every block of tokens; backwards for the gradients
// of the predictions; then block by block from the last, replayed from its checkpoint, what is summed along
// the rows of the state.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "kda/head_gradients.hpp"
#include "kda/jobs.hpp"
#include "kda/token_form.hpp"

namespace kda_check::kda {

namespace {

constexpr std::size_t block_tokens = TokenInputs<float>::block_tokens;

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
  std::size_t key_rows() const { return tokens * k_stride; }
  std::size_t value_rows() const { return tokens * v_stride; }
  /// Checkpoints, initial and final gradient; errors and gradients of predictions; dq, dk, dg, and sums of
  /// dq and dk over the value heads of a group. docs/performance.md states it.
  std::size_t of_job() const {
    return (blocks + 2) * state() + 2 * value_rows() + (group > 1 ? 5 : 3) * key_rows();
  }
  /// Inputs of a block, all tiles of the state, and the history of a block over one tile of keys.
  std::size_t of_thread(std::size_t lanes) const {
    return block_tokens * (3 * k_stride + 4 * v_stride) + 2 * k_stride * v_stride + block_tokens * V * lanes;
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
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t row = tile * lanes + lane;
    for (std::size_t column = 0; column < columns; ++column)
      to[column * lanes + lane] = row < rows ? matrix[row * stride + column] : T(0);
  }
}

struct Block {
  std::size_t index, begin, count;
};

/// The value heads of one query head of one sequence, one after the other.
template <class T>
class HeadBackward {
 public:
  HeadBackward(const Problem& problem, const Sequence& sequence, const TokenArithmetic& arithmetic,
               int threads)
      : reader_(problem, arithmetic.operations),
        s_(sequence),
        arithmetic_(arithmetic),
        kernels_(arithmetic.is_plain() ? kernels<T>().token_backward[arithmetic.operations.is_fused]
                                       : kernels<T>().any_token_backward),
        threads_(threads),
        n_(problem, sequence),
        lanes_(kernels<T>().tile_lanes),
        checkpoints_(n_.blocks * n_.state()),
        final_gradient_(n_.state()),
        initial_gradient_(n_.state()),
        errors_(n_.value_rows()),
        predictions_(n_.value_rows()),
        dq_(n_.key_rows()),
        dk_(n_.key_rows()),
        dg_(n_.key_rows()),
        dq_sum_(n_.group > 1 ? n_.key_rows() : 0),
        dk_sum_(n_.group > 1 ? n_.key_rows() : 0) {}

  void run(std::size_t query_head, HeadGradients<T>& gradients) {
    for (std::size_t member = 0; member < n_.group; ++member) {
      head_ = query_head * n_.group + member;
      reader_.state_gradient(s_, head_, final_gradient_.data(), n_.v_stride);
      over_tiles(n_.V, [&](std::size_t first, std::size_t last) {
        forwards(first, last);
        backwards(first, last);
      });
      over_tiles(n_.K, [&](std::size_t first, std::size_t last) { along_rows(first, last); });
      hand_out_values(gradients);
      if (n_.group > 1) add_to_group(member == 0);
    }
    T* const dq = n_.group > 1 ? dq_sum_.data() : dq_.data();
    T* const dk = n_.group > 1 ? dk_sum_.data() : dk_.data();
    for (std::size_t b = n_.blocks; b-- > 0;) {
      const Block block = block_of(b);
      gradients.query(s_, query_head, block.begin, block.count, dq + key_row(block), n_.k_stride);
      gradients.key(s_, query_head, block.begin, block.count, dk + key_row(block), n_.k_stride);
    }
  }

 private:
  Block block_of(std::size_t b) const {
    const std::size_t begin = s_.begin + b * block_tokens;
    return {b, begin, std::min(block_tokens, s_.end - begin)};
  }
  std::size_t key_row(const Block& block) const { return (block.begin - s_.begin) * n_.k_stride; }
  std::size_t value_row(const Block& block) const { return (block.begin - s_.begin) * n_.v_stride; }

  void load(TokenInputs<T>& in, const Block& block) const {
    in.load(reader_, arithmetic_, s_, head_, block.begin, block.count, n_.k_stride, n_.v_stride);
  }

  /// Calls body(first, last) for groups of tiles, as many as there are threads.
  template <class Body>
  void over_tiles(std::size_t width, Body body) {
    const std::size_t tiles = (width + lanes_ - 1) / lanes_;
    const std::size_t parts = std::min(tiles, static_cast<std::size_t>(threads_));
    parallel_for(parts, threads_,
                 [&](std::size_t part, int) { body(tiles * part / parts, tiles * (part + 1) / parts); });
  }

  ColumnsBlock<T> columns(TokenInputs<T>& in, const Block& block, const T* rows, T* sums, T* state) const {
    return {block.count,      n_.K,           n_.k_stride, n_.v_stride, in.q.data(), in.k.data(),
            in.decay.data(),  in.beta.data(), rows,        sums,        state,       arithmetic_.operations,
            arithmetic_.casts};
  }

  /// Errors and checkpoints of tiles [first, last) of V lanes.
  void forwards(std::size_t first, std::size_t last) {
    TokenInputs<T> in(n_.k_stride, n_.v_stride);
    tensor::Scratch<T> matrix(n_.state()), states(n_.state());
    reader_.state(s_, head_, matrix.data(), n_.v_stride);
    const auto state = [&](std::size_t tile) { return states.data() + tile * lanes_ * n_.K; };
    for (std::size_t tile = first; tile < last; ++tile)
      copy_to_tile(matrix.data(), n_.v_stride, n_.K, lanes_, tile, state(tile));
    for (std::size_t b = 0; b < n_.blocks; ++b) {
      const Block block = block_of(b);
      load(in, block);
      for (std::size_t tile = first; tile < last; ++tile) {
        copy_from_tile(state(tile), n_.v_stride, n_.K, lanes_, tile, checkpoints_.data() + b * n_.state());
        const std::size_t lane = tile * lanes_;
        kernels_.replay(
            columns(in, block, in.v.data() + lane, errors_.data() + value_row(block) + lane, state(tile)));
      }
    }
  }

  /// Gradients of the predictions, and of the initial state, of the same tiles.
  void backwards(std::size_t first, std::size_t last) {
    TokenInputs<T> in(n_.k_stride, n_.v_stride);
    tensor::Scratch<T> d_o(block_tokens * n_.v_stride), states(n_.state());
    const auto state = [&](std::size_t tile) { return states.data() + tile * lanes_ * n_.K; };
    for (std::size_t tile = first; tile < last; ++tile)
      copy_to_tile(final_gradient_.data(), n_.v_stride, n_.K, lanes_, tile, state(tile));
    for (std::size_t b = n_.blocks; b-- > 0;) {
      const Block block = block_of(b);
      load(in, block);
      reader_.output_gradient(s_, head_, block.begin, block.count, d_o.data(), n_.v_stride);
      for (std::size_t tile = first; tile < last; ++tile) {
        const std::size_t lane = tile * lanes_;
        kernels_.column_gradients(columns(in, block, d_o.data() + lane,
                                          predictions_.data() + value_row(block) + lane, state(tile)));
      }
    }
    for (std::size_t tile = first; tile < last; ++tile)
      copy_from_tile(state(tile), n_.v_stride, n_.K, lanes_, tile, initial_gradient_.data());
  }

  /// dq, dk and dg of tiles [first, last) of K lanes.
  void along_rows(std::size_t first, std::size_t last) {
    TokenInputs<T> in(n_.k_stride, n_.v_stride);
    tensor::Scratch<T> d_o(block_tokens * n_.v_stride), write(block_tokens * n_.v_stride),
        y(block_tokens * n_.v_stride), state(lanes_ * n_.V), gradients((last - first) * lanes_ * n_.V),
        history(block_tokens * lanes_ * n_.V);
    const auto gradient = [&](std::size_t tile) { return gradients.data() + (tile - first) * lanes_ * n_.V; };
    for (std::size_t tile = first; tile < last; ++tile)
      copy_to_transposed_tile(final_gradient_.data(), n_.v_stride, n_.K, n_.V, lanes_, tile, gradient(tile));
    for (std::size_t b = n_.blocks; b-- > 0;) {
      const Block block = block_of(b);
      load(in, block);
      reader_.output_gradient(s_, head_, block.begin, block.count, d_o.data(), n_.v_stride);
      weigh(errors_.data() + value_row(block), in, block, write.data());
      weigh(predictions_.data() + value_row(block), in, block, y.data());
      for (std::size_t tile = first; tile < last; ++tile) {
        copy_to_transposed_tile(checkpoints_.data() + b * n_.state(), n_.v_stride, n_.K, n_.V, lanes_, tile,
                                state.data());
        const std::size_t lane = tile * lanes_, at = key_row(block) + lane;
        kernels_.row_gradients({block.count, n_.V, n_.k_stride, n_.v_stride, in.q.data() + lane,
                                in.k.data() + lane, in.decay.data() + lane, write.data(), y.data(),
                                d_o.data(), dq_.data() + at, dk_.data() + at, dg_.data() + at, state.data(),
                                gradient(tile), history.data(), arithmetic_.operations, arithmetic_.casts});
      }
    }
    const T scale = reader_.scale();
    for (std::size_t t = 0; t < n_.tokens; ++t)
      for (std::size_t k = first * lanes_; k < last * lanes_; ++k)
        dq_[t * n_.k_stride + k] = scale * dq_[t * n_.k_stride + k];
  }

  /// target_t = beta_t rows_t
  void weigh(const T* rows, TokenInputs<T>& in, const Block& block, T* target) const {
    for (std::size_t t = 0; t < block.count; ++t)
      for (std::size_t v = 0; v < n_.v_stride; ++v)
        target[t * n_.v_stride + v] = rows[t * n_.v_stride + v] * in.beta[t];
  }

  /// What belongs to one value head.
  void hand_out_values(HeadGradients<T>& gradients) {
    tensor::Scratch<T> beta(block_tokens), dv(block_tokens * n_.v_stride), dbeta(block_tokens);
    for (std::size_t b = n_.blocks; b-- > 0;) {
      const Block block = block_of(b);
      T *const e = errors_.data() + value_row(block), *const r = predictions_.data() + value_row(block);
      reader_.beta(s_, head_, block.begin, block.count, beta.data());
      for (std::size_t t = 0; t < block.count; ++t)
        for (std::size_t v = 0; v < n_.v_stride; ++v)
          dv[t * n_.v_stride + v] = r[t * n_.v_stride + v] * beta[t];
      kernels<T>().row_dots({block.count, n_.V, n_.v_stride, r, e, dbeta.data(), arithmetic_.operations});
      gradients.value(s_, head_, block.begin, block.count, dv.data(), n_.v_stride);
      gradients.beta(s_, head_, block.begin, block.count, dbeta.data());
      gradients.log_decay(s_, head_, block.begin, block.count, dg_.data() + key_row(block), n_.k_stride);
    }
    gradients.initial_state(s_, head_, initial_gradient_.data(), n_.v_stride);
  }

  void add_to_group(bool is_first) {
    for (const auto& [part, sum] : {std::pair{&dq_, &dq_sum_}, std::pair{&dk_, &dk_sum_}})
      for (std::size_t i = 0; i < n_.key_rows(); ++i)
        (*sum)[i] = is_first ? (*part)[i] : (*sum)[i] + (*part)[i];
  }

  const HeadReader<T> reader_;
  const Sequence s_;
  const TokenArithmetic& arithmetic_;
  const TokenBackwardKernels<T>& kernels_;
  const int threads_;
  const Sizes n_;
  const std::size_t lanes_;
  std::size_t head_ = 0;
  tensor::Scratch<T> checkpoints_;  ///< [blocks][K][v_stride], entering each block
  tensor::Scratch<T> final_gradient_, initial_gradient_;
  tensor::Scratch<T> errors_, predictions_;  ///< [tokens][v_stride] e_t and r_t
  tensor::Scratch<T> dq_, dk_, dg_;          ///< [tokens][k_stride] of one value head
  tensor::Scratch<T> dq_sum_, dk_sum_;       ///< over a group
};

template <class T>
GradientTensors run_in(const Problem& problem, const RunOptions& options) {
  const TokenArithmetic arithmetic(options);
  const std::vector<GroupJob> jobs = group_jobs(problem);
  // Few heads are shared by several threads each, by tiles.
  const int at_once = std::min(options.threads, static_cast<int>(jobs.size()));
  const int of_each = std::max(1, options.threads / std::max(1, at_once));
  const Sizes largest(problem, jobs.front().sequence);
  const double bytes = static_cast<double>(sizeof(T)) * at_once *
                       (static_cast<double>(largest.of_job()) +
                        of_each * static_cast<double>(largest.of_thread(kernels<T>().tile_lanes)));
  if (bytes > static_cast<double>(options.memory_limit))
    throw Error(ErrorKind::environment,
                fmt::format("{} tokens backwards take {:.3g} GB on {} threads; the memory limit is {:.3g} GB",
                            largest.tokens, bytes * 1e-9, options.threads,
                            static_cast<double>(options.memory_limit) * 1e-9),
                {}, "--threads 1");
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  HeadGradients<T> gradients(problem, arithmetic.operations,
                             {NormForm::division, arithmetic.casts.normalised, false}, tensors);
  parallel_for(jobs.size(), at_once, [&](std::size_t item, int) {
    HeadBackward<T>(problem, jobs[item].sequence, arithmetic, of_each).run(jobs[item].query_head, gradients);
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
