// `capture`: what variants answer, stored in a fixture as expected/<variant>@<device>, for machines without
// that device to compare with.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kda/variants.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct CaptureRequest {
  std::string target;  ///< a fixture, or a regime, which needs an output
  std::string output;  ///< empty: the fixture itself
  std::vector<std::string> variants;
  std::string dtype = "fixture";
  std::vector<std::string> arithmetic;    ///< key=value
  std::optional<std::size_t> chunk_size;  ///< nullopt: the fixture's
  bool stages = true;                     ///< of the chunk forms, too
  bool replace = false;                   ///< groups that exist
  fixture::ReadLimits limits;
  int threads = 1;
};

/// One group that was written.
struct Captured {
  std::string path, group, device, arithmetic, dtype, compute;
  std::vector<std::string> tensors;
  std::size_t stages = 0;
};

/// "gpu-chunk@nvidia-h100-80gb-hbm3": lower case, every run of other characters than a-z and 0-9 one '-'.
std::string captured_name(std::string_view variant, std::string_view device);

/// The variant that gives the bits of a captured group on any machine, and the words of its --arithmetic.
struct Reproduction {
  const kda::Variant* variant;
  std::vector<std::string> arithmetic;
  std::size_t chunk_size = 0;  ///< 0: that of the fixture
};
/// nullopt for a group that `capture` did not write.
std::optional<Reproduction> reproduction_of(const fixture::ExpectedGroup& group);

/// All groups are written or none. Throws Error{usage} for what a variant or the file cannot have and for
/// groups that exist, Error{environment} when a variant cannot run here or the file cannot be written,
/// Error{input} for a bad fixture.
std::vector<Captured> capture(const CaptureRequest& request, const Log& log);

}  // namespace kda_check::session
