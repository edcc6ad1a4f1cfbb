// chunk: the staged WY form, chunk by chunk (docs/kda.md, "Chunk forward"), with the cast points of FLA's
// kernels in bf16 and fp16.
#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <optional>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "kda/head_io.hpp"
#include "kda/jobs.hpp"
#include "kda/stage_exchange.hpp"

namespace kda_check::kda {

namespace {

/// Rows of the longest chunk there is, but for chunks beyond 64 rows no fewer than 64: blocks have up to 64.
std::size_t rows_needed(const Problem& problem, const RunOptions& options) {
  std::size_t longest = 64;
  for (const Sequence& s : problem.sequences()) longest = std::max(longest, s.length());
  return std::min(options.chunk_size, longest);
}

/// Elements of a ChunkWorkspace for chunks of `rows` rows.
std::size_t elements_needed(const Problem& problem, std::size_t rows) {
  const std::size_t k_stride = padded(problem.dimensions().K), v_stride = padded(problem.dimensions().V);
  return rows * (7 * k_stride + 4 * v_stride + 3 * padded(rows) + padding) +
         2 * problem.dimensions().K * v_stride + ChunkScratch(rows, k_stride, v_stride).total();
}

/// Everything one head needs for one chunk; the pointers of `block` point into it.
template <class T>
class ChunkWorkspace {
 public:
  ChunkWorkspace(const Problem& problem, const RunOptions& options, std::size_t rows)
      : rows_(rows),
        k_stride_(padded(problem.dimensions().K)),
        v_stride_(padded(problem.dimensions().V)),
        arena_(elements_needed(problem, rows)) {
    arena_.fill(T(0));
    T* next = arena_.data();
    const auto take = [&](std::size_t count) {
      T* const memory = next;
      next += count;
      return memory;
    };
    const std::size_t K = problem.dimensions().K;
    q = take(rows_ * k_stride_), k = take(rows_ * k_stride_), G = take(rows_ * k_stride_);
    tail = take(rows_ * k_stride_);
    v = take(rows_ * v_stride_), beta = take(rows_ * padding);
    block.key_dim = K, block.value_dim = problem.dimensions().V;
    block.key_stride = k_stride_, block.value_stride = v_stride_, block.score_stride = score_stride();
    block.q = q, block.k = k, block.v = v, block.beta = beta, block.G = G;
    block.tail = options.arithmetic.tail == TailForm::suffix ? tail : nullptr;
    block.w = take(rows_ * k_stride_), block.qg = take(rows_ * k_stride_), block.kg = take(rows_ * k_stride_);
    block.u = take(rows_ * v_stride_), block.v_new = take(rows_ * v_stride_),
    block.o = take(rows_ * v_stride_);
    block.Aqk = take(rows_ * score_stride()), block.L = take(rows_ * score_stride());
    block.Akk_inv = take(rows_ * score_stride());
    block.h = take(K * v_stride_), block.state = take(K * v_stride_);
    block.scratch = next;
    const Arithmetic& arithmetic = options.arithmetic;
    block.operations = operations_of(arithmetic);
    block.decay = arithmetic.decay, block.inverse = arithmetic.inverse;
    block.anchor_rows = std::min<std::size_t>(static_cast<std::size_t>(arithmetic.anchor_rows), rows_);
    block.inverse_rows = std::min(static_cast<std::size_t>(arithmetic.inverse_rows), (rows_ + 15) / 16 * 16);
    block.clamp = static_cast<T>(arithmetic.clamp * std::numbers::ln2);
    block.casts = cast_points(arithmetic, options.dtype, problem.beta_is_16_bit(), true);
    block.scale = static_cast<T>(problem.scale());
  }

  std::size_t k_stride() const { return k_stride_; }
  std::size_t v_stride() const { return v_stride_; }

  ChunkBlock<T> block{};
  T *q, *k, *G, *tail, *v, *beta;

 private:
  std::size_t score_stride() const { return padded(rows_); }

  std::size_t rows_, k_stride_, v_stride_;
  tensor::Scratch<T> arena_;
};

/// tail_i = g_n + ... + g_i+1, in the order a sum from the end has.
template <class T>
void sum_tails(const Reduction& reduction, const T* g, std::size_t rows, std::size_t stride, T* tail) {
  const auto row = [&](std::size_t i) { return tail + i * stride; };
  for (std::size_t i = 0; i + 1 < rows; ++i) std::copy_n(g + (rows - 1 - i) * stride, stride, row(i));
  kernels<T>().cumulate(reduction, tail, rows - 1, stride);
  for (std::size_t i = 0; i < (rows - 1) / 2; ++i)
    std::swap_ranges(row(i), row(i) + stride, row(rows - 2 - i));
  std::fill_n(row(rows - 1), stride, T(0));
}

template <class T>
void run_head(const Problem& problem, const HeadJob& job, const RunOptions& options, std::size_t most_rows,
              Answer& answer) {
  const Operations operations = operations_of(options.arithmetic);
  const HeadReader<T> reader(problem, operations);
  ChunkWorkspace<T> work(problem, options, most_rows);
  const Sequence& s = job.sequence;
  const auto kernel = kernels<T>().chunk[static_cast<int>(options.arithmetic.contraction)];
  const std::size_t V = problem.dimensions().V;
  const Rounding normalised = work.block.casts.normalised;
  std::optional<StageExchange<T>> exchange;
  if (options.stages.asked()) exchange.emplace(problem, options.stages, s, options.chunk_size);
  reader.state(s, job.head, work.block.state, work.v_stride());
  for (std::size_t begin = s.begin; begin < s.end; begin += options.chunk_size) {
    const std::size_t rows = std::min(options.chunk_size, s.end - begin);
    reader.query(s, job.head, begin, rows, NormForm::reciprocal, normalised, work.q, work.k_stride());
    reader.key(s, job.head, begin, rows, NormForm::reciprocal, normalised, work.k, work.k_stride());
    reader.value(s, job.head, begin, rows, work.v, work.v_stride());
    reader.beta(s, job.head, begin, rows, work.beta);
    reader.log_decay(s, job.head, begin, rows, work.G, work.k_stride());
    if (work.block.tail != nullptr) {
      sum_tails(operations.reduction, work.G, rows, work.k_stride(), work.tail);
      kernels<T>().round(work.block.casts.g_cumsum, work.tail, rows * work.k_stride());
    }
    kernels<T>().cumulate(operations.reduction, work.G, rows, work.k_stride());  // F1
    kernels<T>().round(work.block.casts.g_cumsum, work.G, rows * work.k_stride());
    work.block.rows = rows;
    if (exchange) exchange->give(job.head, begin, work.block, work.G);
    kernel(work.block);
    if (exchange) exchange->tell(job.head, begin, work.block);
    store_output(work.block.o, work.v_stride(), problem, s, job.head, begin, rows, {0, V}, answer.o);
  }
  store_state(work.block.state, work.v_stride(), problem, s, job.head, {0, V}, answer.final_state);
}

void refuse_memory(const Problem& problem, const RunOptions& options, std::size_t rows, std::size_t jobs) {
  const std::size_t at_once = std::min(jobs, static_cast<std::size_t>(options.threads));
  const double width = options.dtype == numeric::DType::fp64 ? sizeof(double) : sizeof(float);
  const double bytes =
      width * static_cast<double>(at_once) * static_cast<double>(elements_needed(problem, rows));
  if (bytes <= static_cast<double>(options.memory_limit)) return;
  throw Error(ErrorKind::environment,
              fmt::format("chunks of {} rows take {:.3g} GB on {} threads; the memory limit is {:.3g} GB",
                          rows, bytes * 1e-9, at_once, static_cast<double>(options.memory_limit) * 1e-9),
              {}, "--chunk-size 64");
}

}  // namespace

Answer run_chunk(const Problem& problem, const RunOptions& options) {
  const std::vector<HeadJob> jobs = head_jobs(problem, 1, options.threads);
  const std::size_t rows = rows_needed(problem, options);
  refuse_memory(problem, options, rows, jobs.size());
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
