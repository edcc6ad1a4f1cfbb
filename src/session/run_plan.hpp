// What a request to `run` asks for, understood and checked before the first file is opened.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session/requests.hpp"

namespace kda_check::session {

struct RunPlan {
  std::vector<const kda::Variant*> variants;
  std::vector<std::optional<numeric::DType>> dtypes;  ///< nullopt: the fixture's or regime's
  bool against_oracle = false, against_every_group = false, against_replay = false;
  std::vector<std::string> groups;
  std::vector<std::string> tensors;    ///< of the forward pass
  std::vector<std::string> gradients;  ///< of the backward pass

  bool wants_group(const std::string& name) const;
  bool compares(std::string_view tensor, bool has_loss) const;
};

/// Throws Error{usage} for what contradicts itself or does not exist.
RunPlan planned(const RunRequest& request);

}  // namespace kda_check::session
