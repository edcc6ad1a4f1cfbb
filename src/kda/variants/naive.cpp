// naive: the definition, token by token (docs/kda.md, "Recurrent forward"): q scaled first, the write
// strength on the key.
#include "base/threads/parallel.hpp"
#include "kda/head/token_form.hpp"
#include "kda/problem/jobs.hpp"

namespace kda_check::kda {

namespace {

template <class T>
void run_head(const Problem& problem, const HeadJob& job, const TokenArithmetic& arithmetic, Answer& answer) {
  const std::size_t K = problem.dimensions().K, V = problem.dimensions().V, v_stride = padded(V);
  const HeadReader<T> reader(problem, arithmetic.operations);
  const Kernels<T>& kernel = kernels<T>();
  TokenInputs<T> in(K, v_stride, problem.dimensions().strength);
  tensor::Scratch<T> o(in.block_tokens * v_stride), state(K * v_stride), scratch(V);
  ColumnHalves<T> halves(problem, arithmetic, v_stride);
  StateStore<T> store(arithmetic.stored, problem.dimensions(), job.head, v_stride);
  const Sequence& s = job.sequence;
  reader.state(s, job.head, state.data(), v_stride);
  for (std::size_t begin = s.begin; begin < s.end; begin += in.block_tokens) {
    const std::size_t count = std::min(in.block_tokens, s.end - begin);
    in.load(reader, arithmetic, s, job.head, begin, count, K, v_stride);
    halves.load(arithmetic, s, job.head, begin, count);
    const std::size_t together = store.together(count);
    for (std::size_t t = 0; t < count; t += together) {
      halves.run(in, t, together, {0, v_stride}, v_stride, &o[t * v_stride], state.data(),
                 [&](const TokenSpan<T>& tokens, T* rows, T* states) {
                   if (arithmetic.is_plain()) {
                     kernel.naive[arithmetic.operations.is_fused](
                         {together, K, V, v_stride, tokens.q, tokens.k, tokens.decay, tokens.beta, tokens.v,
                          rows, states, scratch.data(), tokens.read, tokens.column_beta});
                   } else {
                     kernel.token({together, K, v_stride, v_stride, tokens.q, tokens.k, tokens.decay,
                                   tokens.beta, tokens.v, rows, states, v_stride,
                                   tokens.column_beta == nullptr, arithmetic.operations, arithmetic.casts,
                                   reader.scale(), tokens.read, tokens.column_beta, tokens.write});
                   }
                 });
      store.store(begin + t - s.begin, &in.decay[t * K], state.data());
    }
    store_output(o.data(), v_stride, problem, s, job.head, begin, count, {0, V}, answer.o);
  }
  store_state(state.data(), v_stride, problem, s, job.head, {0, V}, answer.final_state);
}

}  // namespace

Answer run_naive(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype, options.threads);
  const std::vector<HeadJob> jobs = head_jobs(problem);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    if (options.dtype == numeric::DType::fp64) {
      run_head<double>(problem, jobs[item], TokenArithmetic(problem, options), answer);
    } else {
      run_head<float>(problem, jobs[item], TokenArithmetic(problem, options), answer);
    }
  });
  return answer;
}

}  // namespace kda_check::kda
