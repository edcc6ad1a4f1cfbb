// chunk, backwards (docs/kda.md, "Chunk backward"): forwards through the sequence for the state that enters
// each chunk, then chunk by chunk from the last, whose forward arrays are computed again.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/parallel.hpp"
#include "kda/chunk_workspace.hpp"
#include "kda/head_gradients.hpp"
#include "kda/jobs.hpp"
#include "kda/stage_exchange.hpp"

namespace kda_check::kda {

namespace {

/// The backward arrays of one chunk.
template <class T>
class BackwardWorkspace {
 public:
  static std::size_t elements(const Problem& problem, std::size_t rows) {
    const std::size_t K = problem.dimensions().K, V = problem.dimensions().V, k_stride = padded(K),
                      v_stride = padded(V);
    return rows * (4 * k_stride + 4 * v_stride + 2 * padded(rows) + padding) + 2 * K * v_stride +
           ChunkBackwardScratch(rows, K, V, k_stride, v_stride, padded(rows)).total();
  }

  BackwardWorkspace(const Problem& problem, std::size_t rows) : arena_(elements(problem, rows)) {
    arena_.fill(T(0));
    const auto take = [this](std::size_t count) { return arena_.take(count); };
    const std::size_t K = problem.dimensions().K, k_stride = padded(K),
                      v_stride = padded(problem.dimensions().V);
    output_gradient = take(rows * v_stride);
    block.output_gradient = output_gradient;
    block.state_gradient = take(K * v_stride), block.dh = take(K * v_stride);
    block.dAqk = take(rows * padded(rows)), block.dAkk = take(rows * padded(rows));
    block.dv_local = take(rows * v_stride), block.dv = take(rows * v_stride);
    block.value_gradient = take(rows * v_stride);
    block.dw = take(rows * k_stride), block.dG = take(rows * k_stride);
    block.dq = take(rows * k_stride), block.dk = take(rows * k_stride);
    block.dbeta = take(rows * padding);
    block.scratch =
        take(ChunkBackwardScratch(rows, K, problem.dimensions().V, k_stride, v_stride, padded(rows)).total());
  }

  ChunkBackwardBlock<T> block{};
  T* output_gradient;

 private:
  tensor::Arena<T> arena_;
};

/// Scratch memory of one sequence of one query head, in elements: the entering states, and the sums of dq
/// and dk over the value heads of a group.
std::size_t elements_of_job(const Problem& problem, const Sequence& s, std::size_t chunk_size) {
  const Dimensions& d = problem.dimensions();
  const std::size_t chunks = (s.length() + chunk_size - 1) / chunk_size;
  const std::size_t sums = problem.heads_per_group() > 1 ? 2 * s.length() * padded(d.K) : 0;
  return (chunks + 1) * d.K * padded(d.V) + sums;
}

/// The value heads of one query head of one sequence, one after the other.
template <class T>
class GroupBackward {
 public:
  GroupBackward(const Problem& problem, const Sequence& sequence, const RunOptions& options, std::size_t rows)
      : problem_(problem),
        d_(problem.dimensions()),
        s_(sequence),
        reader_(problem, chunk_operations(problem, options)),
        chunk_size_(options.chunk_size),
        forward_(kernels<T>().chunk[static_cast<int>(options.arithmetic.contraction)]),
        backward_(kernels<T>().chunk_backward[static_cast<int>(options.arithmetic.contraction)]),
        work_(problem, options, rows),
        back_(problem, rows),
        state_size_(d_.K * padded(d_.V)),
        chunks_((sequence.length() + chunk_size_ - 1) / chunk_size_),
        entering_(chunks_ * state_size_),
        sums_(problem.heads_per_group() > 1 ? 2 * sequence.length() * padded(d_.K) : 0) {
    if (options.stages.asked()) exchange_.emplace(problem, options.stages, sequence, chunk_size_);
  }

  void run(std::size_t query_head, HeadGradients<T>& gradients) {
    const std::size_t group = problem_.heads_per_group();
    for (std::size_t member = 0; member < group; ++member) {
      const std::size_t head = query_head * group + member;
      forwards(head);
      reader_.state_gradient(s_, head, back_.block.state_gradient, work_.v_stride());
      for (std::size_t c = chunks_; c-- > 0;) {
        backwards(c, head, gradients);
        const std::size_t begin = begin_of(c), rows = rows_of(c), stride = work_.k_stride();
        T *dq = back_.block.dq, *dk = back_.block.dk;
        if (group > 1) {
          T* const sums = sums_.data() + (begin - s_.begin) * stride;
          dq = added_to_group(dq, rows * stride, member == 0, sums);
          dk = added_to_group(dk, rows * stride, member == 0, sums + sums_.size() / 2);
        }
        if (member + 1 < group) continue;
        gradients.query(s_, query_head, begin, rows, dq, stride);
        gradients.key(s_, query_head, begin, rows, dk, stride);
      }
      gradients.initial_state(s_, head, back_.block.state_gradient, work_.v_stride());
    }
  }

 private:
  std::size_t begin_of(std::size_t c) const { return s_.begin + c * chunk_size_; }
  std::size_t rows_of(std::size_t c) const { return std::min(chunk_size_, s_.end - begin_of(c)); }

  void forwards(std::size_t head) {
    reader_.state(s_, head, work_.block.state, work_.v_stride());
    for (std::size_t c = 0; c < chunks_; ++c) {
      std::copy_n(work_.block.state, state_size_, entering_.data() + c * state_size_);
      if (c + 1 == chunks_) break;  // computed again at once
      forward(c, head);
    }
  }

  /// From the state in the block.
  void forward(std::size_t c, std::size_t head) {
    work_.load(reader_, s_, head, begin_of(c), rows_of(c));
    if (exchange_) exchange_->give(head, begin_of(c), work_.block, work_.G);
    forward_(work_.block);
  }

  void backwards(std::size_t c, std::size_t head, HeadGradients<T>& gradients) {
    const std::size_t begin = begin_of(c), rows = rows_of(c);
    back_.block.entering_state = entering_.data() + c * state_size_;
    std::copy_n(back_.block.entering_state, state_size_, work_.block.state);
    forward(c, head);
    reader_.output_gradient(s_, head, begin, rows, back_.output_gradient, work_.v_stride());
    ChunkBackwardBlock<T>& block = back_.block;
    if (exchange_) exchange_->give(head, begin, work_.block, block);
    backward_(work_.block, block);
    if (exchange_) exchange_->tell(head, begin, work_.block, block);
    cumulate_from_the_end(work_.block.operations.reduction, block.dG, rows,
                          work_.k_stride());  // dg_t = dG_n + ... + dG_t (B5)
    gradients.value(s_, head, begin, rows, block.value_gradient, work_.v_stride());
    gradients.beta(s_, head, begin, rows, block.dbeta);
    gradients.log_decay(s_, head, begin, rows, block.dG, work_.k_stride());
  }

  const Problem& problem_;
  const Dimensions d_;
  const Sequence s_;
  const HeadReader<T> reader_;
  const std::size_t chunk_size_;
  void (*const forward_)(const ChunkBlock<T>&);
  void (*const backward_)(const ChunkBlock<T>&, const ChunkBackwardBlock<T>&);
  ChunkWorkspace<T> work_;
  BackwardWorkspace<T> back_;
  const std::size_t state_size_, chunks_;
  tensor::Scratch<T> entering_;  ///< [chunks][K][v_stride]
  tensor::Scratch<T> sums_;      ///< dq, dk [tokens][k_stride] of a group
  std::optional<StageExchange<T>> exchange_;
};

template <class T>
GradientTensors run_in(const Problem& problem, const RunOptions& options) {
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const std::size_t rows = rows_needed(problem, options);
  const double elements = static_cast<double>(
      ChunkWorkspace<T>::elements(problem, rows) + BackwardWorkspace<T>::elements(problem, rows) +
      elements_of_job(problem, jobs.front().sequence, options.chunk_size));
  const std::size_t at_once = std::min(jobs.size(), static_cast<std::size_t>(options.threads));
  const double bytes = static_cast<double>(sizeof(T) * at_once) * elements;
  refuse_memory(
      fmt::format("chunks of {} rows backwards over {} tokens take", rows, jobs.front().sequence.length()),
      bytes, at_once, options.memory_limit, rows);
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  const CastPoints casts = cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true);
  HeadGradients<T> gradients(problem, chunk_operations(problem, options),
                             {NormForm::reciprocal, casts.normalised, casts.dv_local != Rounding::none},
                             tensors);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    GroupBackward<T>(problem, jobs[item].sequence, options, rows).run(jobs[item].query_head, gradients);
  });
  gradients.finish();
  return tensors;
}

}  // namespace

GradientTensors run_chunk_backward(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? run_in<double>(problem, options)
                                               : run_in<float>(problem, options);
}

}  // namespace kda_check::kda
