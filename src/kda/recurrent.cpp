// recurrent: the fused order of the decode kernels (docs/kda.md, "Recurrent forward"): per token normalise,
// scale, decay, predict, write beta (v - prediction), read out.
#include "base/parallel.hpp"
#include "kda/jobs.hpp"
#include "kda/token_form.hpp"

namespace kda_check::kda {

namespace {

/// [K][stride] rows to tiles of [K][lanes], and back.
template <class T>
void to_tiles(const T* rows, std::size_t K, std::size_t stride, std::size_t lanes, T* tiles) {
  for (std::size_t v = 0; v < stride; v += lanes)
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t lane = 0; lane < lanes; ++lane)
        tiles[v * K + k * lanes + lane] = rows[k * stride + v + lane];
}
template <class T>
void from_tiles(const T* tiles, std::size_t K, std::size_t stride, std::size_t lanes, T* rows) {
  for (std::size_t v = 0; v < stride; v += lanes)
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t lane = 0; lane < lanes; ++lane)
        rows[k * stride + v + lane] = tiles[v * K + k * lanes + lane];
}

LaneRange lanes_of(const HeadJob& job, std::size_t tile_lanes, std::size_t V) {
  return {job.first_tile * tile_lanes, std::min(V, job.last_tile * tile_lanes)};
}

/// The tiles of one job, over the whole sequence. `state` is in tiles.
template <class T>
void run_tiles(const Problem& problem, const HeadJob& job, const TokenArithmetic& arithmetic, T* state,
               Answer& answer) {
  const std::size_t K = problem.dimensions().K, V = problem.dimensions().V, v_stride = padded(V);
  const Kernels<T>& kernel = kernels<T>();
  const HeadReader<T> reader(problem, arithmetic.operations);
  const Sequence& s = job.sequence;
  TokenInputs<T> in(K, v_stride);
  tensor::Scratch<T> o(in.block_tokens * v_stride);
  for (std::size_t begin = s.begin; begin < s.end; begin += in.block_tokens) {
    const std::size_t count = std::min(in.block_tokens, s.end - begin);
    in.load(reader, arithmetic, s, job.head, begin, count, K, v_stride);
    for (std::size_t tile = job.first_tile; tile < job.last_tile; ++tile) {
      const std::size_t lane = tile * kernel.tile_lanes;
      if (arithmetic.is_plain()) {
        kernel.recurrent[arithmetic.operations.is_fused]({count, K, v_stride, in.q.data(), in.k.data(),
                                                          in.decay.data(), in.beta.data(), in.v.data() + lane,
                                                          o.data() + lane, state + lane * K});
      } else {
        kernel.token({count, K, kernel.tile_lanes, v_stride, in.q.data(), in.k.data(), in.decay.data(),
                      in.beta.data(), in.v.data() + lane, o.data() + lane, state + lane * K,
                      kernel.tile_lanes, false, arithmetic.operations, arithmetic.casts, reader.scale()});
      }
    }
    store_output(o.data(), v_stride, problem, s, job.head, begin, count, lanes_of(job, kernel.tile_lanes, V),
                 answer.o);
  }
}

template <class T>
Answer run_in(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  const Dimensions& d = problem.dimensions();
  const std::size_t lanes = kernels<T>().tile_lanes, v_stride = padded(d.V), state_size = d.K * v_stride;
  const std::vector<HeadJob> jobs = head_jobs(problem, (d.V + lanes - 1) / lanes, options.threads);
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
