// recurrent: the fused order of the decode kernels (docs/kda.md, "Recurrent forward"): per token normalise,
// scale, decay, predict, write beta (v - prediction), read out.
#include <memory>

#include "base/threads/shared_work.hpp"
#include "kda/head/token_tiles.hpp"
#include "kda/problem/jobs.hpp"

namespace kda_check::kda {

namespace {

/// Who wants work waits for the end of so many: some tens of microseconds.
constexpr std::size_t tokens_at_once = 16;
static_assert(tokens_at_once <= TokenInputs<float>::block_tokens);

/// Some tiles of V lanes of one head of one sequence, from token `begin` on. Tiles do not meet: a thread that
/// has nothing to do gets half of those of another, and both go on from there.
template <class T>
struct Piece {
  Sequence sequence;
  std::size_t head, begin;
  TileRange tiles;
  std::shared_ptr<tensor::Scratch<T>> state;  ///< of all tiles; null before the first token
};

template <class T>
class Run {
 public:
  Run(const Problem& problem, const RunOptions& options, Answer& answer)
      : problem_(problem),
        d_(problem.dimensions()),
        arithmetic_(problem, options),
        reader_(problem, arithmetic_.operations),
        answer_(answer),
        v_stride_(padded(d_.V)),
        work_(heads()) {}

  void run(int threads) {
    work_.run(threads, [&](Piece<T> piece) { run(std::move(piece)); });
  }

 private:
  std::vector<Piece<T>> heads() const {
    std::vector<Piece<T>> pieces;
    for (const HeadJob& job : head_jobs(problem_))
      pieces.push_back(
          {job.sequence, job.head, job.sequence.begin, {0, (d_.V + lanes_ - 1) / lanes_}, nullptr});
    return pieces;
  }

  void run(Piece<T> piece) {
    const Sequence& s = piece.sequence;
    if (piece.state == nullptr) {
      load_state(piece);
      store(piece, 0);
    }
    TokenInputs<T> in(d_.K, v_stride_, d_.strength, arithmetic_.weighs_key);
    ColumnHalves<T> halves(problem_, arithmetic_, v_stride_);
    tensor::Scratch<T> o(tokens_at_once * v_stride_);
    StateStore<T> between_tokens(arithmetic_.stored, d_, piece.head, lanes_);
    for (std::size_t begin = piece.begin, count = 0; begin < s.end; begin += count) {
      if (work_.is_wanted()) hand_on_half(piece, begin);
      count = std::min(tokens_at_once, problem_.next_state(s, begin - s.begin) + s.begin - begin);
      in.load(reader_, arithmetic_, {s, piece.head, begin, count});
      halves.load(arithmetic_, {s, piece.head, begin, count});
      const std::size_t together = between_tokens.together(count);
      for (std::size_t t = 0; t < count; t += together) {
        const LaneRange columns{piece.tiles.first * lanes_, piece.tiles.last * lanes_};
        halves.run(in, t, together, columns, lanes_, &o[t * v_stride_], piece.state->data(),
                   [&](const TokenSpan<T>& tokens, T* rows, T* state) {
                     run_token_tiles(arithmetic_, tokens, d_.K, v_stride_, reader_.scale(), piece.tiles, rows,
                                     state);
                   });
        between_tokens.store(begin + t - s.begin, &in.decay[t * d_.K], piece.state->data());
      }
      store_output(o.data(), v_stride_, problem_, {s, piece.head, begin, count}, lanes_of(piece), answer_.o);
      store(piece, begin + count - s.begin);
    }
  }

  void store(const Piece<T>& piece, std::size_t tokens) {
    if (!problem_.has_state(piece.sequence, tokens)) return;
    tensor::Scratch<T> rows(d_.K * v_stride_);
    from_tiles(piece.state->data(), d_.K, v_stride_, lanes_, piece.tiles, rows.data());
    store_states(rows.data(), v_stride_, problem_, piece.sequence, tokens, piece.head, lanes_of(piece),
                 answer_);
  }

  /// A scale is of all columns: a state that is stored stays whole.
  void hand_on_half(Piece<T>& piece, std::size_t begin) {
    if (arithmetic_.stored != StoredState{} || piece.tiles.last - piece.tiles.first < 2) return;
    Piece<T> half = piece;
    half.begin = begin;
    half.tiles.first = piece.tiles.last = (piece.tiles.first + piece.tiles.last) / 2;
    work_.hand_on(std::move(half));
  }

  void load_state(Piece<T>& piece) const {
    tensor::Scratch<T> rows(d_.K * v_stride_);
    reader_.state(piece.sequence, piece.head, rows.data(), v_stride_);
    piece.state = std::make_shared<tensor::Scratch<T>>(rows.size());
    to_tiles(rows.data(), d_.K, v_stride_, lanes_, piece.state->data());
  }

  LaneRange lanes_of(const Piece<T>& piece) const {
    return {piece.tiles.first * lanes_, std::min(d_.V, piece.tiles.last * lanes_)};
  }

  const Problem& problem_;
  const Dimensions d_;
  const TokenArithmetic arithmetic_;
  const HeadReader<T> reader_;
  Answer& answer_;
  const std::size_t v_stride_, lanes_ = kernels<T>().tile_lanes;
  SharedWork<Piece<T>> work_;
};

template <class T>
Answer steps_in(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype, options.threads);
  Run<T>(problem, options, answer).run(options.threads);
  return answer;
}

}  // namespace

Answer run_recurrent(const Problem& problem, const RunOptions& options) {
  return options.dtype == numeric::DType::fp64 ? steps_in<double>(problem, options)
                                               : steps_in<float>(problem, options);
}

}  // namespace kda_check::kda
