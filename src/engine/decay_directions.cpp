#include "engine/decay_directions.hpp"

#include "kda/bounds/log_decays.hpp"

namespace kda_check::engine {

DecayDirections::DecayDirections(const kda::Problem& problem, std::size_t query_head)
    : has_many_channels_(problem.dimensions().decays() > 1),
      answers_(kda::answers_with_scaled_decays(problem, query_head, static_cast<float>(1 + decay_step))) {}

std::vector<judge::Direction> DecayDirections::of(std::string_view tensor, const judge::RowLayout& layout,
                                                  std::size_t head) const {
  std::vector<judge::Direction> directions;
  if (!answers_.any_decays) return directions;
  const auto add = [&](judge::Region region, const kda::Answer& answer) {
    directions.push_back({region, judge::HeadRows(kda::tensor_of(answer, tensor), layout, head), decay_step});
  };
  add(judge::Region::slowest_decay_of_head, answers_.slowest);
  if (has_many_channels_) add(judge::Region::decays_of_head, answers_.all);
  return directions;
}

}  // namespace kda_check::engine
