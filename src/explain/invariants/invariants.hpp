// What must hold of a kernel whatever its inputs: a problem is changed in a way of which it is known what it
// does to the answer. One row for each law; what each does and what breaks it: docs/serving.md.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/limits.hpp"
#include "kda/problem/passes.hpp"
#include "kda/problem/problem.hpp"

namespace kda_check::explain {

/// What the memory that outputs are written to holds before.
enum class Fill : unsigned char { whatever, nan, huge };

/// Who is tried, and in which pass: a variant with its arithmetic, or a program behind files.
struct Subject {
  kda::Pass pass = kda::Pass::forward;
  /// Every tensor that the pass has on this problem.
  std::function<kda::Tensors(const kda::Problem&, kda::Pass, Fill)> solve;
  /// Solves the problem and returns its inputs as they are afterwards.
  std::function<kda::Problem(const kda::Problem&)> inputs_after;
  judge::Form form = judge::Form::unknown;
  std::size_t chunk_size = 64;
  /// Its decay within a chunk is formed around a row that may come later (decay=anchor-mid): earlier rows
  /// then depend on later ones in their roundings.
  bool reads_ahead = false;
  /// The order of its sums may be that of the layout of a state that it loads: of whether there is one, of
  /// its element type, and of which extent is first.
  bool layout_decides = false;
  /// A state is all that a call leaves to the next.
  bool state_is_all = true;

  /// Whether calls that begin with a state of this type add in the order of a call on the problem.
  bool adds_as_in_one_call(const kda::Problem& problem, numeric::DType handed) const;
};

/// What it yields in its pass.
inline kda::Tensors solved(const Subject& subject, const kda::Problem& problem, Fill fill = Fill::whatever) {
  return subject.solve(problem, subject.pass, fill);
}

/// Two tensors that must agree; `name` as in kda/schema.
struct Pair {
  std::string name;
  tensor::Tensor got;
  tensor::Tensor expected;  ///< empty: the tensor of that name of the reference
};

/// Where a trial stands in the matrix of a law that compares every two of several ways
/// (explain/invariants/parity.hpp).
struct MatrixPlace {
  std::size_t row, column;
};

/// One thing tried. Where a place of a tensor is not concerned, got is what was expected.
struct Trial {
  std::string what;       ///< "cut at 63"
  bool same_bits = true;  ///< else within what rounding explains
  std::vector<Pair> pairs;
  std::optional<MatrixPlace> place = {};
};

/// What a law takes for granted of who is tried.
enum class Premise : unsigned char {
  nothing,
  state_is_all,  ///< Subject::state_is_all
  heads_alike,   ///< a head is computed as it would be in the place of another
};

struct Invariant {
  std::string_view name;
  /// Empty when it says something about this problem, else why not.
  std::string (*inapplicable)(const kda::Problem&, kda::Pass);
  /// Hands every trial to `sink`. `reference`: what the pass yields on the problem itself.
  void (*run)(const kda::Problem& problem, const kda::Tensors& reference, const Subject& subject,
              const std::function<void(Trial)>& sink);
  /// Makes calls on a pool of states: for programs only where the problem is one.
  bool calls_on_pools = false;
  bool by_name = false;  ///< tried only when it is asked for by its name
  Premise premise = Premise::nothing;
  bool of_checkpoints = false;  ///< tried where there are any, or when it is asked for by its name
};
std::span<const Invariant> invariants();

}  // namespace kda_check::explain
