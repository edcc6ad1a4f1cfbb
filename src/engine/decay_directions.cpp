#include "engine/decay_directions.hpp"

#include "kda/log_decays.hpp"

namespace kda_check::engine {

namespace {

/// Of the difference quotients. What a direction loses by an answer in fp32 is noise beside errors of 16 bits
/// and tf32.
constexpr double share = 0x1p-6;

}  // namespace

DecayDirections::DecayDirections(const kda::Problem& problem, std::size_t query_head)
    : has_many_channels_(problem.dimensions().decays() > 1),
      answers_(kda::answers_with_scaled_decays(problem, query_head, static_cast<float>(1 + share))) {}

std::vector<judge::Direction> DecayDirections::of(std::string_view tensor, const judge::RowLayout& layout,
                                                  std::size_t head) const {
  std::vector<judge::Direction> directions;
  if (!answers_.any_decays) return directions;
  const auto add = [&](judge::Region region, const kda::Answer& answer) {
    directions.push_back({region, judge::HeadRows(kda::tensor_of(answer, tensor), layout, head), share});
  };
  add(judge::Region::slowest_decay_of_head, answers_.slowest);
  if (has_many_channels_) add(judge::Region::decays_of_head, answers_.all);
  return directions;
}

}  // namespace kda_check::engine
