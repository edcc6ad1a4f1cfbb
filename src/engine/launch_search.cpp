#include "engine/launch_search.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kda/heads.hpp"
#include "kda/log_decays.hpp"
#include "kda/passes.hpp"
#include "kda/schema.hpp"
#include "numeric/formats.hpp"

namespace kda_check::engine {

namespace {

std::size_t differing_elements(const tensor::Tensor& a, const tensor::Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return a.size();
  const std::size_t bytes = numeric::format_of(a.dtype()).bytes;
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += std::memcmp(a.at(i), b.at(i), bytes) != 0;
  return count;
}

/// As many query heads as make some thousand tokens: a launch is that of all heads.
std::vector<std::size_t> first_heads(std::size_t heads, std::size_t tokens) {
  constexpr std::size_t enough = 8192;
  std::vector<std::size_t> first(
      std::clamp<std::size_t>(enough / std::max<std::size_t>(tokens, 1), 1, heads));
  std::iota(first.begin(), first.end(), std::size_t{0});
  return first;
}

class LaunchSearch {
 public:
  LaunchSearch(const kda::Variant& variant, const kda::Problem& whole, const kda::RunOptions& options,
               const Answered& recorded)
      : variant_(variant),
        queries_(first_heads(whole.dimensions().H, whole.dimensions().B * whole.dimensions().T)),
        heads_(queries_.size() * whole.heads_per_group()),
        problem_(part_of(whole)),
        options_(options) {
    for (const std::string name : {"o", "final_state"}) {
      const tensor::Tensor* const tensor = recorded.tensor(name);
      if (tensor != nullptr && tensor->dtype() == kda::dtype_of(name, problem_, options.dtype) &&
          tensor->shape() ==
              kda::expected_shape(*kda::find_spec(name), whole.dimensions(), whole.options.state_v_first))
        recorded_.emplace(name, kda::with_heads(name, *tensor, queries_, heads_, whole.dimensions().K));
    }
  }

  /// One part after the other, as they hardly meet, and once more.
  FoundLaunch run() {
    if (recorded_.empty()) return {};
    const std::size_t K = problem_.dimensions().K;
    const numeric::DType stored = problem_.dtype();
    const bool by_pairs = options_.arithmetic.decay == kda::DecayForm::anchor_pair;
    const std::vector<kda::RowLayout> norms = kda::norm_layouts(K, stored),
                                      pairs = kda::pair_layouts(K, stored),
                                      substitutions = kda::substitution_layouts(stored, by_pairs);
    best_.launch = {norms.front(), by_pairs ? pairs.front() : kda::RowLayout{}, substitutions.front(),
                    kda::scan_rows().front()};
    if (!problem_.options.qk_l2norm) best_.launch.norm = {};
    best_.differing = differing(best_.launch);
    for (int round = 0; round < 2 && best_.differing > 0; ++round) {
      for (const std::size_t rows : kda::scan_rows()) try_with(&kda::Launch::scan_rows, rows);
      if (problem_.options.qk_l2norm)
        for (const kda::RowLayout& layout : norms) try_with(&kda::Launch::norm, layout);
      if (by_pairs)
        for (const kda::RowLayout& layout : pairs) try_with(&kda::Launch::pairs, layout);
      for (const kda::RowLayout& layout : substitutions) try_with(&kda::Launch::substitution, layout);
    }
    return best_;
  }

 private:
  kda::Problem part_of(const kda::Problem& whole) {
    std::iota(heads_.begin(), heads_.end(), std::size_t{0});
    return kda::with_heads(whole, queries_, heads_);
  }

  template <class Part>
  void try_with(Part kda::Launch::*part, const Part& value) {
    if (best_.differing == 0 || best_.launch.*part == value) return;
    FoundLaunch tried = best_;
    tried.launch.*part = value;
    tried.differing = differing(tried.launch);
    if (tried.differing < best_.differing) best_ = tried;
  }

  std::size_t differing(const kda::Launch& launch) const {
    kda::RunOptions options = options_;
    options.arithmetic.launch = launch;
    const kda::Answer answer = variant_.run(problem_, options);
    std::size_t count = 0;
    for (const auto& [name, expected] : recorded_)
      count += differing_elements(kda::tensor_of(answer, name), expected);
    return count;
  }

  const kda::Variant& variant_;
  std::vector<std::size_t> queries_, heads_;
  const kda::Problem problem_;
  const kda::RunOptions& options_;
  std::map<std::string, tensor::Tensor, std::less<>> recorded_;
  FoundLaunch best_;
};

}  // namespace

bool has_open_launch(const kda::Variant& variant, const kda::RunOptions& options) {
  return variant.axes.chunk && options.arithmetic.reduction.kind == kda::ReductionKind::triton &&
         options.arithmetic.launch == kda::Launch{};
}

FoundLaunch launch_of(const kda::Variant& variant, const kda::Problem& problem,
                      const kda::RunOptions& options, const Answered& recorded) {
  return LaunchSearch(variant, problem, options, recorded).run();
}

}  // namespace kda_check::engine
