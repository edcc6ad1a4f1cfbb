// The options of a problem that are on or off, by name. Not in kda/terms/options.hpp, which nvcc compiles: it
// warns of pointers to members.
#pragma once

#include <string_view>

#include "kda/terms/options.hpp"

namespace kda_check::kda {

/// Those that are on or off, by their names in files, in the order in which they are written and told.
struct OptionFlag {
  std::string_view name;
  bool Options::*member;
};
inline constexpr OptionFlag option_flags[] = {{"qk_l2norm", &Options::qk_l2norm},
                                              {"beta_sigmoid", &Options::beta_sigmoid},
                                              {"allow_neg_eigval", &Options::allow_neg_eigval},
                                              {"state_v_first", &Options::state_v_first},
                                              {"safe_gate", &Options::safe_gate}};

}  // namespace kda_check::kda
