// A sequence in parts (docs/arithmetic.md, "segments"): where it is cut, what each part does to the state
// that enters it, S -> M S + A, and the states that enter the parts. Forwards parts are passed from the first
// on, backwards, where the state is its gradient, from the last.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/ranks.hpp"
#include "kda/kernels/table.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

/// Parts of a sequence: as many as asked for, or as it has chunks.
std::size_t parts_of(const Sequence& sequence, const RunOptions& options);

/// Tokens [begin, end) of a part, whole chunks but for the sequence's last one.
struct TokenRange {
  std::size_t begin, end;
};
TokenRange part_of(const Sequence& sequence, const RunOptions& options, std::size_t part);

/// The states that enter the parts of every head of every sequence.
template <class T>
class PartStates {
 public:
  /// Its memory, in elements, that of merging included.
  static double elements(const Problem& problem, const RunOptions& options);

  /// `ranks`: rank r forms the maps of part r, and they are exchanged; null: all are formed here.
  PartStates(const Problem& problem, const RunOptions& options, Ranks* ranks = nullptr);

  /// What forms the map of a part: M is the identity and A zero when it gets them, [K][k_stride] and
  /// [K][v_stride]. `passed`: the number of the part in the order they are passed.
  using FormMap = std::function<void(const Sequence& s, std::size_t head, std::size_t passed, T* M, T* A)>;
  /// What loads the state that enters the part that is passed first, [K][v_stride].
  using FirstState = std::function<void(const Sequence& s, std::size_t head, T* state)>;
  /// The maps of all parts but those that are passed last, then the states.
  void form(const FormMap& form_map, const FirstState& first);

  /// [K][v_stride], entering a part that is not passed first.
  const T* entering(const Sequence& s, std::size_t head, std::size_t passed) const;

 private:
  struct Map {
    T *M, *A;
  };
  struct Job {
    Sequence sequence;
    std::size_t head, passed;
  };
  Map map(const Sequence& s, std::size_t head, std::size_t passed);
  T* state(const Sequence& s, std::size_t head, std::size_t passed);
  /// The map of two runs of tokens one after the other.
  Map composed(const Map& first, const Map& then, T* memory);
  /// M S + A
  void apply(const Map& map, const T* state, T* result);
  /// y = M x, or y + M x.
  void multiply(const T* M, const T* x, std::size_t stride, std::size_t columns, bool adds, T* y);
  void merge(const Sequence& s, std::size_t head, const FirstState& first);
  void exchange(const std::vector<Job>& cut);

  const Problem& problem_;
  const RunOptions& options_;
  const std::size_t K_, k_stride_, v_stride_;
  Ranks* const ranks_;
  const CastPoints casts_;
  const Operations operations_;
  std::vector<std::size_t> first_;  ///< by sequence: its first part that is not passed last, head 0
  tensor::Scratch<T> memory_;       ///< of each: M, A and the state behind it
};

/// Forwards, in chunks of at most `most_rows` rows.
template <class T>
void form_states(const Problem& problem, const RunOptions& options, std::size_t most_rows,
                 PartStates<T>& states);

}  // namespace kda_check::kda
