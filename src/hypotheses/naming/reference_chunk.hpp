// One value head of a sequence, forwards and backwards in chunks, as the recurrence sees it: fp64, in loops,
// with bugs to switch on (docs/kda.md, "Chunk forward" and "Chunk backward").
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/reference_backward.hpp"

namespace kda_check::hypotheses::plain {

class Moving;

class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t columns)
      : rows_(rows), columns_(columns), values_(rows * columns, 0.0) {}
  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  double& operator()(std::size_t row, std::size_t column) { return values_[row * columns_ + column]; }
  double operator()(std::size_t row, std::size_t column) const { return values_[row * columns_ + column]; }
  double* row(std::size_t row) { return values_.data() + row * columns_; }
  const double* row(std::size_t row) const { return values_.data() + row * columns_; }
  const std::vector<double>& values() const { return values_; }

 private:
  std::size_t rows_ = 0, columns_ = 0;
  std::vector<double> values_;
};

/// function(a(i, j))
template <class Function>
Matrix applied(Matrix a, Function function) {
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) = function(a(i, j));
  return a;
}
/// factor(i, j) a(i, j)
template <class Factor>
Matrix weighted(Matrix a, Factor factor) {
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) *= factor(i, j);
  return a;
}

Matrix transposed(const Matrix& a);
Matrix product(const Matrix& a, const Matrix& b);
/// I - L + L^2 - ... of so many terms.
Matrix series(const Matrix& L, std::size_t terms);

/// What the recurrence reads: q, k, g [tokens][K] (k and q after the norm, q without scale, g the natural log
/// of the decay), v and d_o [tokens][V], beta [tokens], states [K][V].
struct Head {
  Matrix q, k, v, g, d_o, state;
  std::vector<double> beta;
  double scale;
};

/// Those of an excerpt, as a reading takes them, and the right state before it.
Head head_of(const kda::Problem& problem, const Interpretation& reading, const Excerpt& excerpt);

/// The gradients of the same.
struct HeadGradient {
  Matrix q, k, v, g, state;
  std::vector<double> beta;
  std::vector<Matrix> kept = {};  ///< what a moved matrix was, by chunk
};

bool is_among(Channels some, std::size_t channel, std::size_t K);
/// The channel of the first tile that lies where this one does in its own.
std::size_t in_first_tile(std::size_t channel, std::size_t K);

/// [tokens][V], and the state behind them. `first_row`: of the first token in its chunk. Of the reading what
/// it says of the chunk form.
struct HeadAnswer {
  Matrix o, state;
  std::vector<Matrix> kept = {};  ///< what a moved matrix was, by chunk
};
/// `earlier`: states that o reads where it is taken for chunks before its own, the first chunk's the oldest.
HeadAnswer chunk_answer(const Head& head, std::size_t chunk_size, std::size_t first_row,
                        const Interpretation& reading, std::deque<Matrix> earlier = {});

/// The rows of one chunk and what the forward pass makes of them.
struct Chunk {
  std::size_t begin = 0, n = 0, K = 0;
  double scale = 1;
  const Interpretation* reading = nullptr;  ///< none: right
  Matrix q, k, v, d_o, G;
  Matrix read_key;      ///< k of predictions
  Matrix starts, ends;  ///< exp(G), exp(G_n - G)
  std::vector<double> beta;
  Matrix L, A, Aqk;       ///< A = (I + L)^-1; scores with scale
  Matrix raised;          ///< k exp(G)
  Matrix lowered;         ///< k exp(G_n - G)
  Matrix u, w, v_new, h;  ///< h enters the chunk
  /// [n][n][K], of rows from rows before them; of copies, too.
  std::shared_ptr<const std::vector<double>> decays;
  Moving* moving = nullptr;  ///< what is read from elsewhere, if anything is

  /// exp(G_i - G_j), of K channels.
  const double* between(std::size_t i, std::size_t j) const { return &(*decays)[(i * n + j) * K]; }
  Matrix moved(std::string_view site, Matrix matrix) const;
  double to_end(std::size_t i, std::size_t c) const { return ends(i, c); }
  double from_start(std::size_t i, std::size_t c) const { return starts(i, c); }
  std::size_t end() const { return n - (is(ChunkFault::end_of_row_before) && n > 1 ? 2 : 1); }
  double to_end_from_start(std::size_t c) const { return from_start(end(), c); }
  void sum_and_multiply_decays();

  bool is(ChunkFault fault) const { return reading != nullptr && reading->chunk_fault == fault; }
  bool is(ChunkTerm term, TermFault fault) const {
    return is(ChunkFault::of_term) && reading->chunk_term == term && reading->term_fault == fault;
  }
  /// What a channel of a term is multiplied by; its decay; its beta.
  double factor(ChunkTerm term, std::size_t channel, double scale) const {
    const bool is_hit =
        is(ChunkFault::of_term) && reading->chunk_term == term && is_among(reading->channels, channel, K);
    return is_hit ? factor_of(reading->term_fault, scale) : 1;
  }
  double decay(ChunkTerm term, std::size_t channel, double right) const;
  bool changes_decay(ChunkTerm term) const {
    return is(term, TermFault::undecayed) || is(term, TermFault::decayed_behind) ||
           is(term, TermFault::exp2) || is(term, TermFault::log2e_twice);
  }
  /// exp(G), exp(G_n - G) and exp(G_i - G_j) as a term has them: by a gate less where that is its fault.
  double from_start(ChunkTerm term, std::size_t i, std::size_t channel) const {
    const std::size_t less = is(term, TermFault::gate_less) ? 1 : 0;
    return i < less ? 1 : from_start(i - less, of_decay(term, channel));
  }
  double to_end(ChunkTerm term, std::size_t i, std::size_t channel) const {
    const std::size_t row = is(term, TermFault::gate_less) ? std::min(i + 1, n - 1) : i;
    return to_end(row, of_decay(term, channel));
  }
  const double* between(ChunkTerm term, std::size_t i, std::size_t j) const {
    return between(i > j && is(term, TermFault::gate_less) ? i - 1 : i, j);
  }
  /// The channel that a term reads of the decays.
  std::size_t of_decay(ChunkTerm term, std::size_t channel) const {
    if (is(term, TermFault::decay_of_first_channel)) return 0;
    return is(term, TermFault::decay_of_first_tile) ? in_first_tile(channel, K) : channel;
  }
  double weight(ChunkTerm term, std::size_t row) const {
    return is(term, TermFault::unweighted) || is(term, TermFault::weighted_behind) ? 1 : beta[row];
  }

 private:
  void part_anchors(std::vector<double>& all) const;
  double across(double sum) const;
};

/// Chunks as they are rightly, of a head that chunk_answer gets.
std::vector<Chunk> right_chunks(const Head& head, std::size_t chunk_size, std::size_t first_row);

/// Whether it needs no inputs beside such chunks.
bool takes_loaded(const Interpretation& reading);

/// A head with its forward pass, which all its backward passes share.
struct ChunkedHead {
  /// `reading`: of the chunk form; none: right.
  ChunkedHead(Head of, std::size_t chunk_size, const Interpretation* reading = nullptr);

  Head head;
  std::size_t chunk_size;
  std::vector<Chunk> chunks;
  Matrix state;                   ///< after the last
  std::vector<Matrix> kept = {};  ///< what a moved matrix was, by chunk
};
/// `d_state`: dht. `carried_by`: gates that the gradient of the state decays by from chunk to chunk; null:
/// its own.
HeadGradient chunk_gradient(const ChunkedHead& of, const GradientReading& reading, const Matrix& d_state,
                            const Matrix* carried_by = nullptr);

/// The same token by token.
HeadGradient token_gradient(const Head& head, const TokenReading& reading, const Matrix& d_state);

}  // namespace kda_check::hypotheses::plain
