// chunk, backwards (docs/kda.md, "Chunk backward"): forwards through the sequence for the state that enters
// each chunk, then chunk by chunk from the last, whose forward arrays are computed again.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/parallel.hpp"
#include "kda/chunk_workspace.hpp"
#include "kda/head_gradients.hpp"
#include "kda/jobs.hpp"
#include "kda/launch_choices.hpp"
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

/// Running sums over the value heads of a group: PyTorch adds up more than four in four of them, in turn.
std::size_t sums_of_group(const Problem& problem, const Arithmetic& arithmetic) {
  constexpr std::size_t accumulators = 4;
  const std::size_t heads = problem.heads_per_group();
  if (heads == 1) return 0;
  return arithmetic.reduction.kind == ReductionKind::triton && heads > accumulators ? accumulators : 1;
}

/// Scratch memory of one sequence of one query head, in elements: the entering states, and the sums of dq
/// and dk over the value heads of a group.
std::size_t elements_of_job(const Problem& problem, const Sequence& s, const RunOptions& options) {
  const Dimensions& d = problem.dimensions();
  const std::size_t chunks = (s.length() + options.chunk_size - 1) / options.chunk_size;
  const std::size_t sums = sums_of_group(problem, options.arithmetic) * 2 * s.length() * padded(d.K);
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
        group_sums_(sums_of_group(problem, options.arithmetic)),
        sums_(group_sums_ * 2 * sequence.length() * padded(d_.K)) {
    work_.block.forms_w = true;
    if (options.arithmetic.reduction.kind == ReductionKind::triton) {
      const Launch launch = launch_in(problem, options.arithmetic, Pass::backward);
      back_.block.layouts = chunk_gradient_layouts(problem, options, launch);
      reverse_scan_rows_ = launch.reverse_scan_rows;
    }
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
          const bool is_last = member + 1 == group;
          dq = added_up(dq, rows * stride, member, is_last, (begin - s_.begin) * stride);
          dk = added_up(dk, rows * stride, member, is_last, sums_.size() / 2 + (begin - s_.begin) * stride);
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
    work_.load_state(reader_, s_, head);
    for (std::size_t c = 0; c < chunks_; ++c) {
      std::copy_n(work_.block.state, state_size_, entering_.data() + c * state_size_);
      if (c + 1 == chunks_) break;  // computed again at once
      forward(c, head);
    }
  }

  /// What a value head has, added to those of its group before it, `place` being theirs.
  T* added_up(const T* part, std::size_t count, std::size_t member, bool is_last, std::size_t place) {
    const auto sums = [&](std::size_t i) {
      return sums_.data() + place + i * s_.length() * work_.k_stride();
    };
    added_to_group(part, count, member < group_sums_, sums(member % group_sums_));
    for (std::size_t i = 1; is_last && i < group_sums_; ++i) added_to_group(sums(i), count, false, sums(0));
    return sums(0);
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
    const Reduction& reduction = work_.block.operations.reduction;  // dg_t = dG_n + ... + dG_t (B5)
    if (reduction.kind == ReductionKind::triton)
      scan_from_the_end(reverse_scan_rows_, block.dG, rows, chunk_size_, work_.k_stride());
    else
      cumulate_from_the_end(reduction, block.dG, rows, work_.k_stride());
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
  std::size_t reverse_scan_rows_ = 0;
  tensor::Scratch<T> entering_;  ///< [chunks][K][v_stride]
  const std::size_t group_sums_;
  tensor::Scratch<T> sums_;  ///< dq, dk [running sum][tokens][k_stride] of a group
  std::optional<StageExchange<T>> exchange_;
};

TritonGradients triton_gradients(const Problem& problem, const Launch& launch) {
  TritonGradients gradients{launch.norm_gradient, {}};
  if (problem.options.gate != Gate::none)
    gradients.gate = gate_layouts(problem.dimensions().K, problem.g.dtype(), launch.gate_warps);
  return gradients;
}

template <class T>
GradientTensors run_in(const Problem& problem, const RunOptions& options) {
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const std::size_t rows = rows_needed(problem, options);
  const double elements = static_cast<double>(ChunkWorkspace<T>::elements(problem, rows) +
                                              BackwardWorkspace<T>::elements(problem, rows) +
                                              elements_of_job(problem, jobs.front().sequence, options));
  const std::size_t at_once = std::min(jobs.size(), static_cast<std::size_t>(options.threads));
  const double bytes = static_cast<double>(sizeof(T) * at_once) * elements;
  refuse_memory(
      fmt::format("chunks of {} rows backwards over {} tokens take", rows, jobs.front().sequence.length()),
      bytes, at_once, options.memory_limit, rows);
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  const CastPoints casts = cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true);
  GradientForm form{NormForm::reciprocal, casts.normalised, casts.dv_local != Rounding::none};
  if (options.arithmetic.reduction.kind == ReductionKind::triton)
    form.triton = triton_gradients(problem, launch_in(problem, options.arithmetic, Pass::backward));
  HeadGradients<T> gradients(problem, chunk_operations(problem, options), form, tensors);
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
