// naive, backwards: the definition differentiated (docs/kda.md, "Backward"). For each value head of a
// sequence: forwards with a checkpoint of the state before every block of tokens; then block by block from
// the last, its states replayed and held, token by token. One thread has a query head.
#include <fmt/format.h>

#include "base/threads/parallel.hpp"
#include "kda/head/gradients.hpp"
#include "kda/head/token_form.hpp"
#include "kda/kernels/elements/gradient_rules.hpp"
#include "kda/problem/jobs.hpp"

namespace kda_check::kda {

namespace {

constexpr std::size_t block_tokens = parameter_block_tokens;

/// Scratch memory of one sequence of one query head, in elements.
struct NaiveSizes {
  std::size_t K, V, k_stride, v_stride, blocks, block_rows, group_rows;
  Strength strength;

  NaiveSizes(const Problem& problem, const Sequence& s)
      : K(problem.dimensions().K),
        V(problem.dimensions().V),
        k_stride(padded(K)),
        v_stride(padded(V)),
        blocks((s.length() + block_tokens - 1) / block_tokens),
        block_rows(std::min(s.length(), block_tokens)),
        group_rows(problem.heads_per_group() > 1 ? s.length() : 0),
        strength(problem.dimensions().strength) {}

  std::size_t state() const { return K * v_stride; }
  std::size_t checkpoints() const { return blocks * state(); }
  std::size_t sums() const { return group_rows * k_stride; }  ///< of dq, and of dk
  /// The states of a block, with D and P_t; its rows.
  std::size_t block() const {
    return (3 + block_rows) * state() + block_rows * (6 * k_stride + 3 * v_stride + 2) + 2 * k_stride +
           v_stride + of_strength();
  }
  /// erase * k and its gradient; betas of columns and their gradients.
  std::size_t of_strength() const {
    return strength == Strength::gates   ? 2 * block_rows * k_stride
           : strength == Strength::value ? 2 * block_rows * v_stride
                                         : 0;
  }
  std::size_t total() const { return checkpoints() + 2 * sums() + block(); }
};

/// The value heads of one query head of one sequence, one after the other.
template <class T>
class NaiveGroupBackward {
 public:
  NaiveGroupBackward(const Problem& problem, const Sequence& sequence, const TokenArithmetic& arithmetic)
      : problem_(problem),
        reader_(problem, arithmetic.operations),
        s_(sequence),
        arithmetic_(arithmetic),
        n_(problem, sequence),
        arena_(n_.total()),
        block_{} {
    arena_.fill(T(0));
    const std::size_t rows = n_.block_rows;
    const auto take = [this](std::size_t count) { return arena_.take(count); };
    checkpoints_ = take(n_.checkpoints()), dq_sum_ = take(n_.sums()), dk_sum_ = take(n_.sums());
    in_ = {take(rows * n_.k_stride), take(rows * n_.k_stride), take(rows * n_.k_stride), take(rows)};
    values_ = take(rows * n_.v_stride);
    block_.key_dim = n_.K, block_.value_dim = n_.V;
    block_.key_stride = n_.k_stride, block_.value_stride = n_.v_stride;
    block_.q = in_.q, block_.k = in_.k, block_.decay = in_.decay, block_.beta = in_.beta;
    block_.rows = values_, block_.states = take((1 + rows) * n_.state());
    block_.errors = take(rows * n_.v_stride), block_.gradient = take(n_.state());
    for (T** const of_keys : {&block_.dq, &block_.dk, &block_.dg}) *of_keys = take(rows * n_.k_stride);
    block_.dv = take(rows * n_.v_stride), block_.dbeta = take(rows);
    block_.decayed = take(n_.state()), block_.scratch = take(2 * n_.k_stride + n_.v_stride);
    if (n_.strength == Strength::gates)
      block_.read = in_.read = take(rows * n_.k_stride), block_.dread = take(rows * n_.k_stride);
    if (n_.strength == Strength::value) {
      block_.column_beta = in_.column_beta = take(rows * n_.v_stride),
      block_.dbeta = take(rows * n_.v_stride);
      in_.value_stride = n_.v_stride;
    }
    block_.operations = arithmetic.operations, block_.casts = arithmetic.casts;
  }

  void run(std::size_t query_head, HeadGradients<T>& gradients) {
    const std::size_t group = problem_.heads_per_group();
    for (std::size_t member = 0; member < group; ++member) {
      head_ = query_head * group + member;
      reader_.state(s_, head_, block_.states, n_.v_stride);
      for (std::size_t b = 0; b < n_.blocks; ++b) {
        std::copy_n(block_.states, n_.state(), checkpoints_ + b * n_.state());
        if (b + 1 == n_.blocks) break;  // replayed at once
        replay(b);
        std::copy_n(block_.states + block_.tokens * n_.state(), n_.state(), block_.states);
      }
      reader_.state_gradient(s_, head_, block_.gradient, n_.v_stride);
      for (std::size_t b = n_.blocks; b-- > 0;) {
        std::copy_n(checkpoints_ + b * n_.state(), n_.state(), block_.states);
        replay(b);
        reader_.output_gradient(s_, head_, begin_of(b), block_.tokens, values_, n_.v_stride);
        kernels<T>().naive_backward.gradients(block_);
        hand_out(b, query_head, member, gradients);
      }
      gradients.initial_state(s_, head_, block_.gradient, n_.v_stride);
    }
  }

 private:
  std::size_t begin_of(std::size_t b) const { return s_.begin + b * block_tokens; }

  /// From the state in the block.
  void replay(std::size_t b) {
    block_.tokens = std::min(block_tokens, s_.end - begin_of(b));
    load_rows(reader_, arithmetic_, s_, head_, begin_of(b), block_.tokens, n_.k_stride, true, in_);
    reader_.value(s_, head_, begin_of(b), block_.tokens, values_, n_.v_stride);
    kernels<T>().naive_backward.replay(block_);
  }

  void hand_out(std::size_t b, std::size_t query_head, std::size_t member, HeadGradients<T>& gradients) {
    const std::size_t begin = begin_of(b), tokens = block_.tokens, count = tokens * n_.k_stride;
    gradients.log_decay(s_, head_, begin, tokens, block_.dg, n_.k_stride);
    gradients.gates(s_, head_, begin, tokens, block_.k, block_.dk, block_.dread, n_.k_stride, block_.dv,
                    n_.v_stride);
    gradients.value(s_, head_, begin, tokens, block_.dv, n_.v_stride);
    gradients.beta(s_, head_, begin, tokens, block_.dbeta, n_.v_stride);
    T *dq = block_.dq, *dk = block_.dk;
    const T scale = reader_.scale();
    for (std::size_t i = 0; i < count; ++i) dq[i] = scale * dq[i];
    if (n_.group_rows > 0) {
      const std::size_t at = b * block_tokens * n_.k_stride;
      dq = added_to_group(dq, count, member == 0, dq_sum_ + at);
      dk = added_to_group(dk, count, member == 0, dk_sum_ + at);
    }
    if (member + 1 < problem_.heads_per_group()) return;
    gradients.query(s_, query_head, begin, tokens, dq, n_.k_stride);
    gradients.key(s_, query_head, begin, tokens, dk, n_.k_stride);
  }

  const Problem& problem_;
  const HeadReader<T> reader_;
  const Sequence s_;
  const TokenArithmetic& arithmetic_;
  const NaiveSizes n_;
  tensor::Arena<T> arena_;
  NaiveBackwardBlock<T> block_;
  std::size_t head_ = 0;
  T* checkpoints_;       ///< [blocks] matrices: the state entering each
  T *dq_sum_, *dk_sum_;  ///< [tokens][k_stride] over a group
  TokenRows<T> in_;      ///< of the block
  T* values_;            ///< [tokens][v_stride]: v, then do
};

template <class T>
GradientTensors naive_gradients_in(const Problem& problem, const RunOptions& options) {
  const TokenArithmetic arithmetic(problem, options);
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const std::size_t threads = std::min(static_cast<std::size_t>(options.threads), jobs.size());
  const Sequence& longest = jobs.front().sequence;
  refuse_memory(fmt::format("{} tokens backwards take", longest.length()),
                static_cast<double>(sizeof(T) * threads * NaiveSizes(problem, longest).total()), threads,
                options.memory_limit, 0);
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  HeadGradients<T> gradients(problem, arithmetic.operations,
                             {NormForm::division, arithmetic.casts.normalised, false}, tensors);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    NaiveGroupBackward<T>(problem, jobs[item].sequence, arithmetic).run(jobs[item].query_head, gradients);
  });
  gradients.finish();
  return tensors;
}

}  // namespace

GradientTensors run_naive_backward(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? naive_gradients_in<double>(problem, options)
                                               : naive_gradients_in<float>(problem, options);
}

}  // namespace kda_check::kda
