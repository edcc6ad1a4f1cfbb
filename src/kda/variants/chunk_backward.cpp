// chunk, backwards (docs/kda.md, "Chunk backward"): forwards through the sequence for the state that enters
// each chunk, then chunk by chunk from the last, whose forward arrays are computed again.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/threads/parallel.hpp"
#include "kda/head/chunk_workspace.hpp"
#include "kda/head/gradients.hpp"
#include "kda/head/launch_choices.hpp"
#include "kda/head/stage_exchange.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/shards/segments.hpp"

namespace kda_check::kda {

namespace {

/// The backward arrays of one chunk.
template <class T>
class BackwardWorkspace {
 public:
  static std::size_t elements(const Problem& problem, std::size_t rows) {
    const std::size_t K = problem.dimensions().K, V = problem.dimensions().V, k_stride = padded(K),
                      v_stride = padded(V);
    const std::size_t of_keys = problem.dimensions().strength == Strength::gates ? 5 : 4;
    return rows * (of_keys * k_stride + 4 * v_stride + 2 * padded(rows) + padding) + 2 * K * v_stride +
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
    if (problem.dimensions().strength == Strength::gates) block.dread = take(rows * k_stride);
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
  return is_triton(arithmetic.reduction) && heads > accumulators ? accumulators : 1;
}

/// Chunks of the longest part of a sequence.
std::size_t most_chunks(const Sequence& s, const RunOptions& options) {
  const std::size_t parts = parts_of(s, options),
                    chunks = (s.length() + options.chunk_size - 1) / options.chunk_size;
  return (chunks + parts - 1) / parts;
}

/// Scratch memory of one sequence of one query head, in elements: the states that enter the chunks of a part,
/// and the sums of dq and dk over the value heads of a group.
std::size_t elements_of_job(const Problem& problem, const Sequence& s, const RunOptions& options) {
  const Dimensions& d = problem.dimensions();
  const std::size_t chunks = most_chunks(s, options);
  const std::size_t sums = sums_of_group(problem, options.arithmetic) * 2 * s.length() * padded(d.K);
  return (chunks + 1) * d.K * padded(d.V) + sums;
}

/// Gradients are those of scores with their scale.
template <class T>
void put_scale_into_scores(ChunkBlock<T>& block) {
  ScaledPart& scale = block.operations.scale;
  if (scale == ScaledPart::output || scale == ScaledPart::q_late) scale = ScaledPart::scores;
}

/// The gradients of the states behind the parts, backwards from the end.
template <class T>
void form_state_gradients(const Problem& problem, const RunOptions& options, std::size_t most_rows,
                          PartStates<T>& gradients) {
  const HeadReader<T> reader(problem, chunk_operations(problem, options));
  const auto kernel = kernels<T>().chunk_map_backward[static_cast<int>(options.arithmetic.contraction)];
  const std::size_t K = problem.dimensions().K, v_stride = padded(problem.dimensions().V);
  gradients.form(
      [&](const Sequence& s, std::size_t head, std::size_t passed, T* M, T* A) {
        ChunkWorkspace<T> work(problem, options, most_rows);
        BackwardWorkspace<T> back(problem, most_rows);
        work.block.forms_w = true;
        put_scale_into_scores(work.block);
        std::optional<StageExchange<T>> exchange;
        if (options.stages.given != nullptr) exchange.emplace(problem, options.stages, s, options.chunk_size);
        tensor::Scratch<T> scratch(2 * K * work.k_stride());
        const TokenRange tokens = part_of(s, options, parts_of(s, options) - 1 - passed);
        const std::size_t chunks = (tokens.end - tokens.begin + options.chunk_size - 1) / options.chunk_size;
        for (std::size_t c = chunks; c-- > 0;) {
          const std::size_t begin = tokens.begin + c * options.chunk_size,
                            rows = std::min(options.chunk_size, tokens.end - begin);
          work.load(reader, {s, head, begin, rows});
          reader.output_gradient({s, head, begin, rows}, back.output_gradient, v_stride);
          if (exchange) exchange->give(head, begin, work.block, work.G);
          if (exchange) exchange->give(head, begin, work.block, back.block);
          // The gradient starts from nothing: what the run has there is another's.
          back.block.given.dh = back.block.given.dv = nullptr;
          kernel(work.block, back.block, {M, scratch.data()});
        }
        std::copy_n(back.block.state_gradient, K * v_stride, A);
      },
      [&](const Sequence& s, std::size_t head, T* gradient) {
        reader.state_gradient(s, head, gradient, v_stride);
      });
}

/// The value heads of one query head of one sequence, one after the other.
template <class T>
class ChunkGroupBackward {
 public:
  ChunkGroupBackward(const Problem& problem, const Sequence& sequence, const RunOptions& options,
                     std::size_t rows, const PartStates<T>& states, const PartStates<T>& state_gradients)
      : problem_(problem),
        options_(options),
        states_(states),
        state_gradients_(state_gradients),
        d_(problem.dimensions()),
        s_(sequence),
        reader_(problem, chunk_operations(problem, options)),
        chunk_size_(options.chunk_size),
        forward_(kernels<T>().chunk[static_cast<int>(options.arithmetic.contraction)]),
        backward_(kernels<T>().chunk_backward[static_cast<int>(options.arithmetic.contraction)]),
        work_(problem, options, rows),
        back_(problem, rows),
        state_size_(d_.K * padded(d_.V)),
        entering_(most_chunks(sequence, options) * state_size_),
        group_sums_(sums_of_group(problem, options.arithmetic)),
        sums_(group_sums_ * 2 * sequence.length() * padded(d_.K)) {
    put_scale_into_scores(work_.block);
    if (is_triton(options.arithmetic.reduction)) {
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
      for (std::size_t part = parts_of(s_, options_); part-- > 0;) {
        const TokenRange tokens = part_of(s_, options_, part);
        enter(part, head);
        forwards(tokens, head);
        for (std::size_t c = chunks_in(tokens); c-- > 0;) {
          const std::size_t begin = tokens.begin + c * chunk_size_;
          const std::size_t rows = std::min(chunk_size_, tokens.end - begin), stride = work_.k_stride();
          backwards(begin, rows, entering_.data() + c * state_size_, head, gradients);
          T *dq = back_.block.dq, *dk = back_.block.dk;
          if (group > 1) {
            const bool is_last = member + 1 == group;
            dq = added_up(dq, rows * stride, member, is_last, (begin - s_.begin) * stride);
            dk = added_up(dk, rows * stride, member, is_last, sums_.size() / 2 + (begin - s_.begin) * stride);
          }
          if (member + 1 < group) continue;
          gradients.query({s_, query_head, begin, rows}, dq, stride);
          gradients.key({s_, query_head, begin, rows}, dk, stride);
        }
      }
      gradients.initial_state(s_, head, back_.block.state_gradient, work_.v_stride());
    }
  }

 private:
  std::size_t chunks_in(const TokenRange& tokens) const {
    return (tokens.end - tokens.begin + chunk_size_ - 1) / chunk_size_;
  }

  /// The state that enters a part, and the gradient of the one that leaves it.
  void enter(std::size_t part, std::size_t head) {
    const std::size_t passed = parts_of(s_, options_) - 1 - part;
    if (part == 0)
      work_.load_state(reader_, s_, head);
    else
      work_.set_state(states_.entering(s_, head, part));
    if (passed == 0)
      reader_.state_gradient(s_, head, back_.block.state_gradient, work_.v_stride());
    else
      std::copy_n(state_gradients_.entering(s_, head, passed), state_size_, back_.block.state_gradient);
  }

  void forwards(const TokenRange& tokens, std::size_t head) {
    T* entering = entering_.data();
    for (std::size_t begin = tokens.begin; begin < tokens.end; begin += chunk_size_) {
      std::copy_n(work_.block.state, state_size_, entering);
      entering += state_size_;
      if (begin + chunk_size_ >= tokens.end) break;  // computed again at once
      forward(begin, chunk_size_, head);
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
  void forward(std::size_t begin, std::size_t rows, std::size_t head) {
    work_.load(reader_, {s_, head, begin, rows});
    if (exchange_) exchange_->give(head, begin, work_.block, work_.G);
    forward_(work_.block);
  }

  void backwards(std::size_t begin, std::size_t rows, const T* entering, std::size_t head,
                 HeadGradients<T>& gradients) {
    back_.block.entering_state = entering;
    const HeadTokens tokens{s_, head, begin, rows};
    work_.set_state(entering);
    forward(begin, rows, head);
    reader_.output_gradient(tokens, back_.output_gradient, work_.v_stride());
    ChunkBackwardBlock<T>& block = back_.block;
    if (exchange_) exchange_->give(head, begin, work_.block, block);
    backward_(work_.block, block);
    if (exchange_) exchange_->tell(head, begin, work_.block, block);
    const Reduction& reduction = work_.block.operations.reduction;  // dg_t = dG_n + ... + dG_t (B5)
    if (reduction.kind == ReductionKind::triton)
      scan_from_the_end(reverse_scan_rows_, block.dG, rows, chunk_size_, work_.k_stride());
    else
      cumulate_from_the_end(reduction, block.dG, rows, work_.k_stride());
    gradients.gates(tokens, work_.block.k, block.dk, block.dread, work_.k_stride(), block.value_gradient,
                    work_.v_stride());
    gradients.value(tokens, block.value_gradient, work_.v_stride());
    gradients.beta(tokens, block.dbeta, 1);
    gradients.log_decay(tokens, block.dG, work_.k_stride());
  }

  const Problem& problem_;
  const RunOptions& options_;
  const PartStates<T>&states_, &state_gradients_;
  const Dimensions d_;
  const Sequence s_;
  const HeadReader<T> reader_;
  const std::size_t chunk_size_;
  void (*const forward_)(const ChunkBlock<T>&);
  void (*const backward_)(const ChunkBlock<T>&, const ChunkBackwardBlock<T>&);
  ChunkWorkspace<T> work_;
  BackwardWorkspace<T> back_;
  const std::size_t state_size_;
  std::size_t reverse_scan_rows_ = 0;
  tensor::Scratch<T> entering_;  ///< [chunks of a part][K][v_stride]
  const std::size_t group_sums_;
  tensor::Scratch<T> sums_;  ///< dq, dk [running sum][tokens][k_stride] of a group
  std::optional<StageExchange<T>> exchange_;
};

TritonGradients triton_gradients(const Problem& problem, const Launch& launch) {
  TritonGradients gradients{launch.norm_gradient, {}};
  if (problem.options.gate != Gate::none)
    gradients.gate = gate_layouts(problem.dimensions().decays(), problem.g.dtype(), launch.gate_warps);
  return gradients;
}

/// Of a sequence without tokens: its initial state is its final one.
template <class T>
void keep_gradient(const Problem& problem, const GroupJob& job, const RunOptions& options,
                   HeadGradients<T>& gradients) {
  const Dimensions& d = problem.dimensions();
  const HeadReader<T> reader(problem, chunk_operations(problem, options));
  tensor::Scratch<T> rows(d.K * padded(d.V));
  const std::size_t group = problem.heads_per_group();
  for (std::size_t head = job.query_head * group; head < (job.query_head + 1) * group; ++head) {
    reader.state_gradient(job.sequence, head, rows.data(), padded(d.V));
    gradients.initial_state(job.sequence, head, rows.data(), padded(d.V));
  }
}

template <class T>
GradientTensors chunk_gradients_in(const Problem& problem, const RunOptions& options) {
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const std::size_t rows = rows_needed(problem, options);
  const double elements = static_cast<double>(ChunkWorkspace<T>::elements(problem, rows) +
                                              BackwardWorkspace<T>::elements(problem, rows) +
                                              elements_of_job(problem, jobs.front().sequence, options));
  const std::size_t at_once = std::min(jobs.size(), static_cast<std::size_t>(options.threads));
  const double bytes = static_cast<double>(sizeof(T) * at_once) * elements +
                       static_cast<double>(2 * sizeof(T)) * PartStates<T>::elements(problem, options);
  refuse_memory(
      fmt::format("chunks of {} rows backwards over {} tokens take", rows, jobs.front().sequence.length()),
      bytes, at_once, options.memory_limit, rows);
  GradientTensors tensors = allocate_gradients(problem, options.dtype);
  const CastPoints casts = cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true);
  GradientForm form{NormForm::reciprocal, casts.normalised, casts.dv_local != Rounding::none};
  if (is_triton(options.arithmetic.reduction))
    form.triton = triton_gradients(problem, launch_in(problem, options.arithmetic, Pass::backward));
  HeadGradients<T> gradients(problem, chunk_operations(problem, options), form, tensors);
  PartStates<T> states(problem, options), state_gradients(problem, options);
  form_states(problem, options, rows, states);
  form_state_gradients(problem, options, rows, state_gradients);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    if (jobs[item].sequence.length() == 0)
      keep_gradient(problem, jobs[item], options, gradients);
    else
      ChunkGroupBackward<T>(problem, jobs[item].sequence, options, rows, states, state_gradients)
          .run(jobs[item].query_head, gradients);
  });
  gradients.finish();
  return tensors;
}

}  // namespace

GradientTensors run_chunk_backward(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? chunk_gradients_in<double>(problem, options)
                                               : chunk_gradients_in<float>(problem, options);
}

}  // namespace kda_check::kda
