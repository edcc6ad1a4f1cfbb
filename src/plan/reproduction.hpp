// How a recorded answer was computed, in our terms: what of ours takes its place where steps are taken.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fixture/fixture.hpp"
#include "kda/variants/variants.hpp"
#include "plan/request.hpp"

namespace kda_check::plan {

/// The variant that computes as a recorded group, and the words of its --arithmetic.
struct Reproduction {
  const kda::Variant* variant = nullptr;
  Names arithmetic;
  std::size_t chunk_size = 0;  ///< 0: that of the fixture
};

/// "chunk+fla": a variant of the registry, or one in a preset. Throws Error{usage} for one that does not
/// exist.
Reproduction reproduction_named(const std::string& text, std::span<const kda::Variant> registry);

/// Of a group that a known kernel, or `capture`, wrote; or that has the name of a GPU variant before an '@',
/// which is taken to be in that variant's own arithmetic. nullopt: nothing is known of it.
std::optional<Reproduction> reproduction_of(const fixture::ExpectedGroup& group,
                                            std::span<const kda::Variant> registry = kda::variants());

/// How an output is said to be computed.
struct Declaration {
  kda::Arithmetic arithmetic = {};  ///< as is usual where nothing is said, or it is not in chunks
  std::size_t chunk_size = 0;       ///< 0: nothing is said
};
Declaration declaration_of(const fixture::ExpectedGroup& group);

/// "kda-check 0.1.0: contraction=fused ...": what `capture` writes beside an answer, for reproduction_of.
std::string implementation_text(const kda::Variant& variant, const kda::RunOptions& options,
                                const kda::Outline& problem);

/// "gpu-chunk@nvidia-h100-80gb-hbm3": lower case, every run of other characters than a-z and 0-9 one '-'.
std::string captured_name(std::string_view variant, std::string_view device);

}  // namespace kda_check::plan
