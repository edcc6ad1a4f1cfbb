#include "engine/decay_directions.hpp"

#include <cmath>
#include <optional>

#include "kda/log_decays.hpp"

namespace kda_check::engine {

namespace {

/// Of the difference quotients. What a direction loses by an answer in fp32 is noise beside errors of 16 bits
/// and tf32.
constexpr double share = 0x1p-6;

}  // namespace

DecayDirections::DecayDirections(const kda::Problem& problem) {
  const kda::Problem plain = kda::with_log_decays(problem, numeric::DType::fp32);
  std::vector<kda::DecayOf> all, slowest;
  for (std::size_t head = 0; head < plain.dimensions().HV; ++head)
    if (const std::optional<std::size_t> channel = kda::slowest_channel(plain, head))
      all.emplace_back(head, std::nullopt), slowest.emplace_back(head, channel);
  if (all.empty()) return;
  const auto add = [&](judge::Region region, const std::vector<kda::DecayOf>& which) {
    changed_.push_back(
        {region, kda::answer_in(numeric::DType::fp32, kda::with_scaled_log_decays(plain, which, 1 + share))});
  };
  add(judge::Region::slowest_decay_of_head, slowest);
  if (plain.dimensions().K > 1) add(judge::Region::decays_of_head, all);
}

std::vector<judge::Direction> DecayDirections::of(std::string_view tensor, const judge::RowLayout& layout,
                                                  std::size_t head, const judge::HeadRows& truth) const {
  const std::size_t stride = judge::padded_width(layout.width);
  std::vector<double> exact(stride), with(stride);
  std::vector<judge::Direction> directions;
  for (const Changed& changed : changed_) {
    const judge::HeadRows answer(kda::tensor_of(changed.answer, tensor), layout, head);
    std::vector<float> values(layout.rows * stride);
    bool is_finite = true;
    for (std::size_t r = 0; r < layout.rows; ++r) {
      truth.read(r, exact.data()), answer.read(r, with.data());
      for (std::size_t v = 0; v < stride; ++v) {
        const double change = (with[v] - exact[v]) / share;
        values[r * stride + v] = static_cast<float>(change);
        is_finite = is_finite && std::isfinite(values[r * stride + v]);
      }
    }
    if (is_finite) directions.push_back({changed.region, judge::HeadRows(std::move(values), layout.width)});
  }
  return directions;
}

}  // namespace kda_check::engine
