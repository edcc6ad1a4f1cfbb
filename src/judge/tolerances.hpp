// Limits written in a file, each with the reason for it: what derived limits do not know about a problem.
// The file and its precedence: docs/verdicts.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "judge/limits.hpp"

namespace kda_check::judge {

/// One [[rule]] of the file. A condition that is empty holds for everything.
struct ToleranceRule {
  std::string place;   ///< "cases/tolerances.toml:12", the source of its limits
  std::string reason;  ///< why the derived limits do not do here
  std::string tensor, dtype, variant, fixture, regime, against;
  std::vector<LimitRequest> limits;
};

/// One tensor of one comparison, in the words of the report.
struct Compared {
  std::string_view fixture, variant, dtype, against, tensor;
  numeric::DType storage;  ///< element type of the tensor
};

class Tolerances {
 public:
  /// Throws Error{input} with file:line: no TOML, unknown keys, metrics or values, no reason, no limit.
  static Tolerances read(const std::string& path);

  /// The rules for one tensor, in the order of the file: later ones lie over earlier ones. Remembers which
  /// were for something. A rule holds for comparisons with a replay only when it says so. Throws Error{input}
  /// for a limit finer than the element type can meet.
  std::vector<const ToleranceRule*> rules_for(const Compared& compared);

  const std::vector<ToleranceRule>& rules() const { return rules_; }
  /// Rules for a fixture or regime that was asked about, or for any, that were for none of its comparisons.
  /// Those for variants that cannot run on this machine do not count.
  std::vector<const ToleranceRule*> unused() const;

 private:
  struct Use {
    bool seen_fixture = false, matched = false;
  };
  std::vector<ToleranceRule> rules_;
  std::vector<Use> uses_;  ///< of the rules
};

}  // namespace kda_check::judge
