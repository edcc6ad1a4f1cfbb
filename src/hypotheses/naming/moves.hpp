// What a kernel may have in place of a matrix of the chunk form: elements of other rows, channels, chunks or
// heads, zeros, or what was weighted, decayed or rounded where it should not be. Each matrix with each of
// these is a fault that needs no row in the table of faults.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hypotheses/naming/reference_chunk.hpp"

namespace kda_check::hypotheses::plain {

/// [n][K], those of gates, [n][V], [n][n], [K][.], [n][1]
enum class Shape : std::uint8_t { keys, gates, values, scores, states, column };
/// A matrix where it is read: by all, or by one of its readers.
struct Site {
  /// What is computed anew: all; all but decays; L and Aqk and what follows, A and what follows, no more than
  /// what follows; the backward pass.
  enum class From : std::uint8_t { gates, inputs, scores, inverse, behind, backwards };
  std::string_view name, what;
  Shape shape;
  From from;
  bool leaves = false;  ///< its chunk, and nothing else reads it
};

/// An element of a matrix of so many rows and columns, of a chunk of `tile` rows where it is whole.
struct Element {
  std::ptrdiff_t row, column, rows, columns, tile;
};
struct Move {
  enum class Source : std::uint8_t { own, nothing, last_chunk, next_head, head_before, added };
  std::string name, meaning;  ///< goes on after the matrix: "is zero"
  unsigned shapes;            ///< bits by Shape
  Source source = Source::own;
  bool (*hits)(const Element& e) = nullptr;  ///< none: all
  Element (*from)(Element e) = nullptr;      ///< where it is read; beyond the matrix are zeros
  double (*change)(double x, const Element& e, const Chunk& chunk) = nullptr;
  Matrix (*made)(const Chunk& chunk) = nullptr;  ///< anew
  std::string_view only = {};                    ///< of this site
  bool mixes_columns = false;                    ///< what is behind a column depends on others
  const ScoreBlock* block = nullptr;  ///< alone; rows and columns are counted in it where they are moved

  bool is_beside() const { return source == Source::next_head || source == Source::head_before; }
  std::size_t head_beside(std::size_t head, std::size_t heads) const {
    return (head + (source == Source::next_head ? 1 : heads - 1)) % heads;
  }
};

struct MovedMatrix {
  const Site* site;
  const Move* move;
  std::string name() const;
  std::string meaning() const;
};
std::vector<MovedMatrix> moved_matrices(bool backwards, bool has_heads);

/// Puts the move where its matrix is read.
class Moving {
 public:
  /// Without a move it keeps what it sees. `beside`: what it keeps of another head.
  Moving(const Site* site, const Move* move, std::size_t tile, const std::vector<Matrix>* beside)
      : site_(site), move_(move), tile_(static_cast<std::ptrdiff_t>(tile)), beside_(beside) {}
  Matrix operator()(std::string_view site, Matrix own, const Chunk& chunk);
  /// Whether it changes what o has up to a row of the last of some chunks; `right`: the matrix of each.
  bool changes(const std::vector<Matrix>& right, const std::vector<Chunk>& chunks, std::size_t row);
  std::vector<Matrix> kept{};  ///< by chunk, in the order of their computation

 private:
  const Site* site_;
  const Move* move_;
  std::ptrdiff_t tile_;
  const std::vector<Matrix>* beside_;
};

}  // namespace kda_check::hypotheses::plain
