// chunk: the staged WY form, chunk by chunk (docs/kda.md, "Chunk forward"), with the cast points of FLA's
// kernels in bf16 and fp16.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/threads/parallel.hpp"
#include "kda/head/chunk_workspace.hpp"
#include "kda/head/stage_exchange.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/shards/segments.hpp"
#include "kda/shards/shared_run.hpp"

namespace kda_check::kda {

namespace {

/// A part of a sequence, for one head.
struct PartJob {
  Sequence sequence;
  std::size_t head, part;
};

/// Of all parts, or of that which this rank has.
std::vector<PartJob> part_jobs(const Problem& problem, const RunOptions& options, const Ranks* ranks) {
  std::vector<PartJob> jobs;
  for (const HeadJob& job : head_jobs(problem))
    for (std::size_t part = 0; part < parts_of(job.sequence, options); ++part)
      if (ranks == nullptr || ranks->rank() == part) jobs.push_back({job.sequence, job.head, part});
  return jobs;
}

/// A sequence without tokens keeps its state; there may be a million of them.
template <class T>
void keep_state(const Problem& problem, const PartJob& job, const RunOptions& options, Answer& answer) {
  const std::size_t K = problem.dimensions().K, V = problem.dimensions().V, stride = padded(V);
  const HeadReader<T> reader(problem, chunk_operations(problem, options));
  tensor::Scratch<T> state(K * stride);
  load_initial_state(reader, cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true),
                     K, job.sequence, job.head, state.data(), stride);
  store_states(state.data(), stride, problem, job.sequence, 0, job.head, {0, V}, answer);
}

template <class T>
void run_part(const Problem& problem, const PartJob& job, const RunOptions& options, std::size_t most_rows,
              const PartStates<T>& states, Answer& answer) {
  const HeadReader<T> reader(problem, chunk_operations(problem, options));
  ChunkWorkspace<T> work(problem, options, most_rows);
  const Sequence& s = job.sequence;
  const auto kernel = kernels<T>().chunk[static_cast<int>(options.arithmetic.contraction)];
  const std::size_t V = problem.dimensions().V;
  std::optional<StageExchange<T>> exchange;
  if (options.stages.asked()) exchange.emplace(problem, options.stages, s, options.chunk_size);
  const auto store = [&](std::size_t token) {
    store_states(work.block.state, work.v_stride(), problem, s, token - s.begin, job.head, {0, V}, answer);
  };
  if (job.part == 0) {
    work.load_state(reader, s, job.head);
    store(s.begin);
  } else {
    work.set_state(states.entering(s, job.head, job.part));
  }
  const TokenRange tokens = part_of(s, options, job.part);
  for (std::size_t begin = tokens.begin; begin < tokens.end; begin += options.chunk_size) {
    const std::size_t rows = std::min(options.chunk_size, tokens.end - begin);
    // A state inside the chunk is the final one of a shorter problem.
    for (std::size_t at = problem.next_state(s, begin - s.begin) + s.begin; at < begin + rows;
         at = problem.next_state(s, at - s.begin) + s.begin) {
      const std::vector<T> entering(work.block.state,
                                    work.block.state + problem.dimensions().K * work.v_stride());
      work.load(reader, {s, job.head, begin, at - begin});
      kernel(work.block);
      store(at);
      work.set_state(entering.data());
    }
    work.load(reader, {s, job.head, begin, rows});
    if (exchange) exchange->tell_gates(job.head, begin, work.block);
    if (exchange) exchange->give(job.head, begin, work.block, work.G);
    kernel(work.block);
    if (exchange) exchange->tell(job.head, begin, work.block);
    store_output(work.block.o, work.v_stride(), problem, {s, job.head, begin, rows}, {0, V}, answer.o);
    store(begin + rows);
  }
}

/// Throws where the memory limit does not allow what run_jobs takes.
template <class T>
void check_memory(const Problem& problem, const RunOptions& options, const std::vector<PartJob>& jobs) {
  const std::size_t rows = rows_needed(problem, options);
  const std::size_t at_once = std::min(jobs.size(), static_cast<std::size_t>(options.threads));
  const double elements =
      static_cast<double>(at_once) * static_cast<double>(ChunkWorkspace<T>::elements(problem, rows)) +
      PartStates<T>::elements(problem, options);
  refuse_memory(fmt::format("chunks of {} rows take", rows), sizeof(T) * elements, at_once,
                options.memory_limit, rows);
}

template <class T>
Answer run_jobs(const Problem& problem, const RunOptions& options, Ranks* ranks,
                const std::vector<PartJob>& jobs) {
  const std::size_t rows = rows_needed(problem, options);
  // Of other ranks' tokens an answer has no memory until somebody fills them.
  Answer answer = allocate_answer(problem, options.dtype, ranks == nullptr ? options.threads : 1);
  PartStates<T> states(problem, options, ranks);
  form_states(problem, options, rows, states);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    if (jobs[item].sequence.length() == 0)
      keep_state<T>(problem, jobs[item], options, answer);
    else
      run_part<T>(problem, jobs[item], options, rows, states, answer);
  });
  return answer;
}

template <class T>
Answer chunks_in(const Problem& problem, const RunOptions& options) {
  Ranks* const ranks = ranks_of(options);
  if (ranks != nullptr && !problem.checkpoints.empty())
    throw Error(ErrorKind::environment, "ranks hand on no checkpoints");
  const std::vector<PartJob> jobs = part_jobs(problem, options, ranks);
  check_memory<T>(problem, options, jobs);  // other ranks would wait for what never comes
  const auto run = [&] { return run_jobs<T>(problem, options, ranks, jobs); };
  return ranks == nullptr ? run() : shared_run(problem, options, *ranks, run);
}

}  // namespace

Answer run_chunk(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? chunks_in<double>(problem, options)
                                               : chunks_in<float>(problem, options);
}

}  // namespace kda_check::kda
