// What must hold of a kernel whatever its inputs (docs/invariants.md): a problem is changed in a way of which
// it is known what it does to the answer. One row for each law.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/limits.hpp"
#include "kda/passes.hpp"
#include "kda/problem.hpp"

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
};

/// Two tensors that must agree; `name` as in kda/schema.
struct Pair {
  std::string name;
  tensor::Tensor got;
  tensor::Tensor expected;  ///< empty: the tensor of that name of the reference
};

/// One thing tried. Where a place of a tensor is not concerned, got is what was expected.
struct Trial {
  std::string what;       ///< "cut at 63"
  bool same_bits = true;  ///< else within what rounding explains
  std::vector<Pair> pairs;
};

struct Invariant {
  std::string_view name;
  std::string_view law;      ///< what is done and what must hold
  std::string_view catches;  ///< what breaks it
  /// Empty when it says something about this problem, else why not.
  std::string (*inapplicable)(const kda::Problem&, kda::Pass);
  /// Hands every trial to `sink`. `reference`: what the pass yields on the problem itself.
  void (*run)(const kda::Problem& problem, const kda::Tensors& reference, const Subject& subject,
              const std::function<void(Trial)>& sink);
};
std::span<const Invariant> invariants();

}  // namespace kda_check::explain
