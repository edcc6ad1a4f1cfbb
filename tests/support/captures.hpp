// Recorded answers of FLA's kernels, and the launches that autotuning had picked for them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/names.hpp"
#include "fixture/fixture.hpp"
#include "support/problems.hpp"

namespace kda_check::test {

struct Capture {
  fixture::Fixture file;
  kda::Problem problem;
  std::string name;
};
/// The captures that have answers of a kernel.
inline std::vector<Capture> captures_of(const char* group) {
  std::vector<Capture> captures;
  for (const std::string& path : all_fixture_files()) {
    fixture::Fixture file = fixture::Fixture::open(path);
    if (file.expected_named(group) == nullptr) continue;
    kda::Problem problem = file.read_problem();
    captures.push_back({std::move(file), std::move(problem), std::filesystem::path(path).stem().string()});
  }
  return captures;
}

/// Found by trying all, or drawn in autotuning's place and noted (`_launch`). What is not named is the layout
/// that is tried first.
inline std::string launch_of(const std::string& name) {
  const std::map<std::string, std::string> known = {
      {"fla_bf16_long", "pairs:2x32x1"},
      {"fla_bf16_gva", "pairs:8x8x1"},
      {"fla_bf16_k32_launch",
       "norm:2x16x1+pairs:8x4x1+substitution:1x4x4+wy:32x128x2+intra:4+"
       "reverse-scan:2+norm-backward:8x4x1+gate-backward:32"},
      {"fla_bf16_prefill", "gate-backward:16"},
      {"fla_bf16_softplus_backward", "gate-backward:16"},
      {"fla_bf16_softplus_gate", "gate-backward:16"},
      {"fla_fp16_c32", "scan:2"},
      {"fla_fp32_k32_launch",
       "pairs:1x32x1+substitution:1x4x4+scan:2+wy:64x128x2+intra:1+"
       "reverse-scan:2"},
      {"fla_fp32_k32_v64", "pairs:4x8x1"},
      {"fla_fp32_long", "pairs:2x32x1+scan:2"},
      {"fla_fp32_no_state", "pairs:4x16x1"},
      {"fla_fp32_small", "pairs:2x32x1"},
      {"fla_fp32_small_backward", "pairs:2x32x1"},
      {"fla_fp32_d60_ragged", "pairs:2x32x1"},
      {"fla_fp32_varlen", "pairs:2x32x1"},
      {"fla_fp32_varlen_gva_softplus", "scan:2+gate-backward:16"}};
  const auto found = known.find(name);
  return "launch=" + (found == known.end() ? std::string("scan:4") : found->second);
}

/// How much there must be to compare: with the captures in the source tree, and with those beside it.
inline std::size_t at_least(std::size_t everywhere, std::size_t with_large) {
  return large_fixtures().empty() ? everywhere : with_large;
}

}  // namespace kda_check::test
