// Tensors whose truth is exactly zero, not only too small for fp64: what follows from the zeros of the
// inputs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comparing.hpp"

namespace kda_check::engine {

class Zeros {
 public:
  /// `truth` must stay.
  explicit Zeros(const Truth& truth) : truth_(truth) {}

  /// Whether the truth of this tensor of the pass is exactly zero everywhere. The first question runs an
  /// oracle in fp64, on a problem with the same zeros (kda/bounds/zero_pattern.hpp).
  bool exact(std::string_view tensor);

 private:
  const Truth& truth_;
  std::optional<std::vector<std::string>> names_;
};

}  // namespace kda_check::engine
