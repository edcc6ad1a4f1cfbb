#include "explain/names/stage_bits.hpp"

#include <cmath>

#include "explain/stages/stage_walk.hpp"

namespace kda_check::explain {

namespace {

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

std::vector<Left> differing_stages(const kda::Problem& problem, const kda::Variant& variant,
                                   kda::RunOptions options, const kda::StageTensors& recorded,
                                   bool in_powers_of_two) {
  kda::StageTensors computed =
      kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(options.dtype));
  options.stages.computed = &computed;
  variant.run(problem, options);
  const bool is_log2 = options.arithmetic.gates != kda::Gates::natural;
  const StageWalk walk(problem, options.chunk_size);
  std::vector<Left> list;
  for (const kda::StageRow& row : kda::stages()) {
    const auto stage = static_cast<std::size_t>(row.stage);
    const tensor::Tensor &got = computed[stage], &expected = recorded[stage];
    if (expected.empty() || expected.shape() != got.shape()) continue;
    if (row.stage == kda::Stage::g_cumsum && is_log2 != in_powers_of_two) continue;
    Left left{std::string(row.name), 0, 0, {}};
    for (const kda::ChunkPlace& chunk : walk.chunks())
      walk.over_chunk(row.stage, chunk,
                      [&](const kda::ChunkPlace&, std::size_t, std::size_t, std::size_t element) {
                        ++left.elements;
                        if (same(got.value(element), expected.value(element))) return false;
                        ++left.differing;
                        if (!left.first || element < *left.first) left.first = element;
                        return false;
                      });
    list.push_back(std::move(left));
  }
  return list;
}

}  // namespace kda_check::explain
