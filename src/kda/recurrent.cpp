// recurrent: the fused order of the decode kernels (docs/kda.md, "Recurrent forward"): per token normalise,
// scale, decay, predict, write beta (v - prediction), read out.
#include "base/parallel.hpp"
#include "kda/jobs.hpp"
#include "kda/token_tiles.hpp"

namespace kda_check::kda {

namespace {

template <class T>
class Recurrence {
 public:
  Recurrence(const Problem& problem, const RunOptions& options, Answer& answer)
      : problem_(problem),
        d_(problem.dimensions()),
        v_stride_(padded(d_.V)),
        lanes_(kernels<T>().tile_lanes),
        tiles_((d_.V + lanes_ - 1) / lanes_),
        arithmetic_(problem, options),
        reader_(problem, arithmetic_.operations),
        threads_(options.threads),
        jobs_(head_jobs(problem)),
        cut_(cut()),
        answer_(answer) {}

  void run() {
    if (!cut_.are_inputs_shared())
      parallel_for(jobs_.size(), threads_, [&](std::size_t item, int) { run_whole(jobs_[item]); });
    else if (!jobs_.empty())
      run_parts();
  }

 private:
  using Inputs = TokenInputs<T>;
  static constexpr std::size_t block_tokens = Inputs::block_tokens;

  HeadCut cut() const {
    constexpr std::size_t pieces = 4;
    // A scale is of all columns: a state that is stored stays whole.
    const std::size_t most_parts = arithmetic_.stored == StoredState{} ? tiles_ : 1;
    const std::size_t longest = jobs_.empty() ? 0 : jobs_.front().sequence.length(),
                      blocks = (longest + block_tokens - 1) / block_tokens;
    return cut_heads(jobs_.size(), most_parts, threads_, pieces,
                     block_tokens * (3 * d_.K + v_stride_) * sizeof(T), blocks);
  }

  tensor::Scratch<T> initial_state(const HeadJob& job) const {
    tensor::Scratch<T> rows(d_.K * v_stride_), state(d_.K * v_stride_);
    reader_.state(job.sequence, job.head, rows.data(), v_stride_);
    to_tiles(rows.data(), d_.K, v_stride_, lanes_, state.data());
    return state;
  }
  Inputs inputs(std::size_t rows) const { return {arithmetic_, d_.K, v_stride_, d_.strength, rows}; }
  void advance(const TokenSpan<T>& tokens, TileRange tiles, T* o, T* state) const {
    run_token_tiles(arithmetic_, tokens, d_.K, v_stride_, reader_.scale(), tiles, o, state);
  }
  LaneRange lanes_of(TileRange tiles) const {
    return {tiles.first * lanes_, std::min(d_.V, tiles.last * lanes_)};
  }
  void keep_output(const HeadJob& job, std::size_t begin, std::size_t count, TileRange tiles, const T* o) {
    store_output(o, v_stride_, problem_, job.sequence, job.head, begin, count, lanes_of(tiles), answer_.o);
  }
  void keep_state(const HeadJob& job, TileRange tiles, const T* state) {
    tensor::Scratch<T> rows(d_.K * v_stride_);
    from_tiles(state, d_.K, v_stride_, lanes_, tiles, rows.data());
    store_state(rows.data(), v_stride_, problem_, job.sequence, job.head, lanes_of(tiles),
                answer_.final_state);
  }

  void run_whole(const HeadJob& job) {
    const TileRange all{0, tiles_};
    const Sequence& s = job.sequence;
    Inputs in = inputs(block_tokens);
    tensor::Scratch<T> o(block_tokens * v_stride_), state = initial_state(job);
    StateStore<T> store(arithmetic_.stored, d_, job.head, lanes_);
    for (std::size_t begin = s.begin; begin < s.end; begin += block_tokens) {
      const std::size_t count = std::min(block_tokens, s.end - begin);
      in.load(reader_, arithmetic_, s, job.head, begin, count);
      const std::size_t together = store.together(count);
      for (std::size_t t = 0; t < count; t += together) {
        advance(in.span(t, together), all, &o[t * v_stride_], state.data());
        store.store(begin + t - s.begin, &in.decay[t * d_.K], state.data());
      }
      keep_output(job, begin, count, all, o.data());
    }
    keep_state(job, all, state.data());
  }

  /// Those heads that have tokens left, some blocks at a time: their inputs, and then their parts.
  void run_parts() {
    const std::size_t step = cut_.blocks * block_tokens, longest = jobs_.front().sequence.length();
    std::vector<tensor::Scratch<T>> states(jobs_.size());
    std::vector<Inputs> of_head;
    for (std::size_t head = 0; head < jobs_.size(); ++head) of_head.push_back(inputs(step));
    for (std::size_t from = 0; from == 0 || from < longest; from += step) {
      std::size_t heads = jobs_.size();
      while (from > 0 && jobs_[heads - 1].sequence.length() <= from) --heads;
      parallel_for(heads * cut_.blocks, threads_, [&](std::size_t item, int) {
        const std::size_t head = item / cut_.blocks, row = item % cut_.blocks * block_tokens;
        const Sequence& s = jobs_[head].sequence;
        if (from + row == 0) states[head] = initial_state(jobs_[head]);
        if (from + row >= s.length()) return;
        const Sequence tokens = s.block(from + row, block_tokens);
        of_head[head].load(reader_, arithmetic_, s, jobs_[head].head, tokens.begin, tokens.length(), row);
      });
      parallel_for(heads * cut_.parts, threads_, [&](std::size_t item, int) {
        const std::size_t head = item / cut_.parts, part = item % cut_.parts;
        run_part(jobs_[head], from, {cut_.first_tile(part, tiles_), cut_.first_tile(part + 1, tiles_)},
                 of_head[head], states[head].data());
      });
    }
  }
  /// From token `from` of the sequence on, which is the first of the inputs.
  void run_part(const HeadJob& job, std::size_t from, TileRange tiles, Inputs& in, T* state) {
    const Sequence& s = job.sequence;
    const std::size_t end = std::min(s.length(), from + cut_.blocks * block_tokens);
    tensor::Scratch<T> o(block_tokens * v_stride_);
    for (std::size_t at = from; at < end; at += block_tokens) {
      const std::size_t count = std::min(block_tokens, end - at);
      advance(in.span(at - from, count), tiles, o.data(), state);
      keep_output(job, s.begin + at, count, tiles, o.data());
    }
    if (end == s.length()) keep_state(job, tiles, state);
  }

  const Problem& problem_;
  const Dimensions d_;
  const std::size_t v_stride_, lanes_, tiles_;
  const TokenArithmetic arithmetic_;
  const HeadReader<T> reader_;
  const int threads_;
  const std::vector<HeadJob> jobs_;
  const HeadCut cut_;
  Answer& answer_;
};

template <class T>
Answer run_in(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  Recurrence<T>(problem, options, answer).run();
  return answer;
}

}  // namespace

Answer run_recurrent(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? run_in<double>(problem, options)
                                               : run_in<float>(problem, options);
}

}  // namespace kda_check::kda
