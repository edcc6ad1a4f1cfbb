// An output that is made beside a regime, by a kernel with a fault or in settings of its own, as if somebody
// had recorded it: "control:T=64,fault=exp2,by=chunk+fla".
#pragma once

#include <optional>

#include "fixture/header.hpp"
#include "hypotheses/naming/faulty_output.hpp"
#include "kda/regimes/regimes.hpp"

namespace kda_check::plan {

class MadeOutput {
 public:
  /// Nothing where the regime's words ask for none. Throws Error{usage} for words that say nothing.
  static std::optional<MadeOutput> of(const kda::RegimeRequest& regime, const kda::Outline& problem);

  /// As a file would have it, without shapes.
  const fixture::ExpectedGroup& group() const { return group_; }
  /// Throws Error{usage} for a fault that changes nothing.
  kda::Tensors computed(const kda::Problem& problem, int threads) const;

 private:
  hypotheses::NamedFault fault_;
  const kda::Variant* variant_ = nullptr;
  kda::RunOptions options_;
  fixture::ExpectedGroup group_;
};

}  // namespace kda_check::plan
