// chunk: the staged WY form, chunk by chunk (docs/kda.md, "Chunk forward"), with the cast points of FLA's
// kernels in bf16 and fp16.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/parallel.hpp"
#include "kda/chunk_workspace.hpp"
#include "kda/jobs.hpp"
#include "kda/stage_exchange.hpp"

namespace kda_check::kda {

namespace {

template <class T>
void run_head(const Problem& problem, const HeadJob& job, const RunOptions& options, std::size_t most_rows,
              Answer& answer) {
  const HeadReader<T> reader(problem, chunk_operations(problem, options));
  ChunkWorkspace<T> work(problem, options, most_rows);
  const Sequence& s = job.sequence;
  const auto kernel = kernels<T>().chunk[static_cast<int>(options.arithmetic.contraction)];
  const std::size_t V = problem.dimensions().V;
  std::optional<StageExchange<T>> exchange;
  if (options.stages.asked()) exchange.emplace(problem, options.stages, s, options.chunk_size);
  work.load_state(reader, s, job.head);
  for (std::size_t begin = s.begin; begin < s.end; begin += options.chunk_size) {
    const std::size_t rows = std::min(options.chunk_size, s.end - begin);
    work.load(reader, s, job.head, begin, rows);
    if (exchange) exchange->tell_gates(job.head, begin, work.block);
    if (exchange) exchange->give(job.head, begin, work.block, work.G);
    kernel(work.block);
    if (exchange) exchange->tell(job.head, begin, work.block);
    store_output(work.block.o, work.v_stride(), problem, s, job.head, begin, rows, {0, V}, answer.o);
  }
  store_state(work.block.state, work.v_stride(), problem, s, job.head, {0, V}, answer.final_state);
}

}  // namespace

Answer run_chunk(const Problem& problem, const RunOptions& options) {
  const std::vector<HeadJob> jobs = head_jobs(problem, 1, options.threads);
  const std::size_t rows = rows_needed(problem, options);
  const std::size_t at_once = std::min(jobs.size(), static_cast<std::size_t>(options.threads));
  const double width = options.dtype == numeric::DType::fp64 ? sizeof(double) : sizeof(float);
  const double bytes = width * static_cast<double>(at_once) *
                       static_cast<double>(ChunkWorkspace<float>::elements(problem, rows));
  refuse_memory(fmt::format("chunks of {} rows take", rows), bytes, at_once, options.memory_limit, rows);
  Answer answer = allocate_answer(problem, options.dtype);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    if (options.dtype == numeric::DType::fp64) {
      run_head<double>(problem, jobs[item], options, rows, answer);
    } else {
      run_head<float>(problem, jobs[item], options, rows, answer);
    }
  });
  return answer;
}

}  // namespace kda_check::kda
