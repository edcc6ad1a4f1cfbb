// Wrong kernels that the gate must catch, and some written another way that it must let pass
// (docs/developing.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::selftest {

/// A kernel on trial, and what was found about it.
struct Subject {
  /// Where a wrong kernel must be caught.
  enum class Shows : std::uint8_t {
    everywhere,  ///< on one problem, and by a line of the suite
    in_suite,    ///< by a line of the suite: the one problem need not show it
    on_problem,  ///< on the one problem, which it is made for
    nowhere,     ///< below what can be seen of it on the one problem
  };

  kda::Variant variant;   ///< under a name of its own among those of its dtype and pass
  std::string_view name;  ///< what reports call it
  std::string_view like;  ///< the variant whose limits are its own
  numeric::DType dtype = numeric::DType::fp32;
  kda::Pass pass = kda::Pass::forward;
  bool healthy = true, mutant = false;
  std::string size = {};  ///< of what is wrong: "in full", "1.2 % in token 77, head 2"; may be empty
  Shows shows = Shows::everywhere;
  bool under_laws = false;  ///< tried under the invariants, too

  std::vector<std::string> caught_by =
      {};                     ///< "oracle: o rms_ratio 0.2 > 1e-06", one for each check that failed
  bool passed = false;        ///< some comparison passed
  std::string in_suite = {};  ///< the first line of the suite that catches it
  bool tried = false;         ///< on everything it is to be tried on

  bool is_of_suite() const { return mutant && shows <= Shows::in_suite; }
  /// "passes", "false alarm"; "caught", by the suite as well; "missed"; "not seen" where it need not show;
  /// "below the floor" where it must not.
  std::string_view finding(bool with_suite) const;
};

/// For gradients, with a loss: norm, gate, bias and sigmoid in the kernel besides.
inline constexpr char gradient_target[] = "bwd_chain:T=130,H=2,HV=4,K=48,V=32,C=64";

/// Wrong kernels as a whole, and some that are right. In the order of precisions: fp64, fp32, bf16, fp16.
std::vector<Subject> mutants(kda::Pass pass);

/// Faults in one place of the problem that `regime` describes, of twice and half the share that `power` says
/// is seen there, in the same order. Those alone whose key is wanted.
std::vector<Subject> mutants_at_floors(std::string_view regime,
                                       const std::function<bool(std::string_view key)>& is_wanted,
                                       int threads, std::size_t memory_budget);

}  // namespace kda_check::selftest
