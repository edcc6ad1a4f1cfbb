// recurrent: the fused order of the decode kernels (docs/kda.md, "Recurrent forward"): per token normalise,
// scale, decay, predict, write beta (v - prediction), read out.
#include "base/parallel.hpp"
#include "kda/jobs.hpp"
#include "kda/token_tiles.hpp"

namespace kda_check::kda {

namespace {

LaneRange lanes_of(const HeadJob& job, std::size_t tile_lanes, std::size_t V) {
  return {job.first_tile * tile_lanes, std::min(V, job.last_tile * tile_lanes)};
}

/// The tiles of one job, over the whole sequence. `state` is in tiles.
template <class T>
void run_tiles(const Problem& problem, const HeadJob& job, const TokenArithmetic& arithmetic, T* state,
               Answer& answer) {
  const std::size_t K = problem.dimensions().K, V = problem.dimensions().V, v_stride = padded(V);
  const HeadReader<T> reader(problem, arithmetic.operations);
  const Sequence& s = job.sequence;
  TokenInputs<T> in(K, v_stride, problem.dimensions().strength);
  tensor::Scratch<T> o(in.block_tokens * v_stride);
  StateStore<T> store(arithmetic.stored, problem.dimensions(), job.head, kernels<T>().tile_lanes);
  for (std::size_t begin = s.begin; begin < s.end; begin += in.block_tokens) {
    const std::size_t count = std::min(in.block_tokens, s.end - begin);
    in.load(reader, arithmetic, s, job.head, begin, count, K, v_stride);
    const std::size_t together = store.together(count);
    for (std::size_t t = 0; t < count; t += together) {
      run_token_tiles(arithmetic, in.span(t, together), K, v_stride, reader.scale(),
                      {job.first_tile, job.last_tile}, &o[t * v_stride], state);
      store.store(begin + t - s.begin, &in.decay[t * K], state);
    }
    store_output(o.data(), v_stride, problem, s, job.head, begin, count,
                 lanes_of(job, kernels<T>().tile_lanes, V), answer.o);
  }
}

template <class T>
Answer run_in(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  const Dimensions& d = problem.dimensions();
  const std::size_t lanes = kernels<T>().tile_lanes, v_stride = padded(d.V), state_size = d.K * v_stride;
  // A scale is of all columns: a state that is stored stays whole.
  const bool is_stored = options.arithmetic.stored != StoredState{};
  const std::vector<HeadJob> jobs =
      head_jobs(problem, (d.V + lanes - 1) / lanes, is_stored ? 1 : options.threads);
  parallel_for(jobs.size(), options.threads, [&](std::size_t item, int) {
    const HeadJob& job = jobs[item];
    tensor::Scratch<T> rows(state_size), tiles(state_size);
    HeadReader<T>(problem).state(job.sequence, job.head, rows.data(), v_stride);
    to_tiles(rows.data(), d.K, v_stride, lanes, tiles.data());
    run_tiles(problem, job, TokenArithmetic(problem, options), tiles.data(), answer);
    from_tiles(tiles.data(), d.K, v_stride, lanes, rows.data());
    store_state(rows.data(), v_stride, problem, job.sequence, job.head, lanes_of(job, lanes, d.V),
                answer.final_state);
  });
  return answer;
}

}  // namespace

Answer run_recurrent(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? run_in<double>(problem, options)
                                               : run_in<float>(problem, options);
}

}  // namespace kda_check::kda
