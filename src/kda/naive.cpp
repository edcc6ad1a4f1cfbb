// naive: the definition, token by token (kda-math 3): q scaled first, the write strength on the key.
#include "base/parallel.hpp"
#include "kda/head_io.hpp"
#include "kda/jobs.hpp"

namespace kda_check::kda {

namespace {

constexpr std::size_t block_tokens = 64;

template <class T>
void run_head(const Problem& problem, const HeadJob& job, Contraction contraction, Answer& answer) {
  const std::size_t K = problem.dimensions().K, V = problem.dimensions().V;
  const HeadReader<T> reader(problem);
  const Kernels<T>& kernel = kernels<T>();
  tensor::Scratch<T> q(block_tokens * K), k(block_tokens * K), decay(block_tokens * K), beta(block_tokens);
  tensor::Scratch<T> v(block_tokens * V), o(block_tokens * V), state(K * V), scratch(V);
  const Sequence& s = job.sequence;
  const T scale = reader.scale();
  reader.state(s, job.head, state.data(), V);
  for (std::size_t begin = s.begin; begin < s.end; begin += block_tokens) {
    const std::size_t count = std::min(block_tokens, s.end - begin);
    reader.query(s, job.head, begin, count, NormForm::division, Rounding::none, q.data(), K);
    for (std::size_t i = 0; i < count * K; ++i) q[i] = q[i] * scale;
    reader.key(s, job.head, begin, count, NormForm::division, Rounding::none, k.data(), K);
    reader.value(s, job.head, begin, count, v.data(), V);
    reader.beta(s, job.head, begin, count, beta.data());
    reader.log_decay(s, job.head, begin, count, decay.data(), K);
    kernel.exponential(decay.data(), decay.data(), count * K);
    kernel.naive[static_cast<int>(contraction)]({count, K, V, V, q.data(), k.data(), decay.data(),
                                                 beta.data(), v.data(), o.data(), state.data(),
                                                 scratch.data()});
    store_output(o.data(), V, problem, s, job.head, begin, count, {0, V}, answer.o);
  }
  store_state(state.data(), V, problem, s, job.head, {0, V}, answer.final_state);
}

}  // namespace

Answer run_naive(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  const std::vector<HeadJob> jobs = head_jobs(problem, 1, options.threads);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    if (options.dtype == numeric::DType::fp64) {
      run_head<double>(problem, jobs[item], options.arithmetic.contraction, answer);
    } else {
      run_head<float>(problem, jobs[item], options.arithmetic.contraction, answer);
    }
  });
  return answer;
}

}  // namespace kda_check::kda
