#include "engine/beyond_twins.hpp"

#include <algorithm>
#include <memory>

#include "base/threads/parallel.hpp"
#include "engine/gate_offset.hpp"
#include "engine/likeness.hpp"
#include "engine/twin_heads.hpp"

namespace kda_check::engine {

namespace {

/// One answer that is looked at.
struct Looked {
  const BeyondTwins& at;
  std::size_t heads_per_query_head;
  Likeness likeness;
  std::vector<GateSums> gates;  ///< by head
};

}  // namespace

std::vector<CloserLook> closer_looks(const kda::Problem& problem, bool has_gate_directions, int threads,
                                     TruthSource& source, const std::vector<BeyondTwins>& answers) {
  const std::size_t query_heads = problem.dimensions().H;
  std::vector<Looked> list;
  for (const BeyondTwins& at : answers)
    list.push_back({at, at.layout.heads / query_heads, Likeness(at.worst, at.layout, at.answer),
                    std::vector<GateSums>(at.layout.heads)});
  const auto needs = [&](std::size_t query_head) {
    return has_gate_directions || std::ranges::any_of(list, [&](const Looked& one) {
             for (std::size_t i = 0; i < one.heads_per_query_head; ++i)
               if (one.likeness.needs(query_head * one.heads_per_query_head + i)) return true;
             return false;
           });
  };
  const auto look = [&](const HeadTruths& truths, std::size_t query_head) {
    std::optional<GateDirection> direction;
    if (has_gate_directions) direction.emplace(one_query_head(problem, query_head));
    for (Looked& one : list)
      for (std::size_t i = 0; i < one.heads_per_query_head; ++i) {
        const std::size_t head = query_head * one.heads_per_query_head + i;
        const judge::HeadRows truth = truth_of(truths, one.at.tensor, one.at.layout, head);
        one.likeness.take(head, truth);
        if (direction)
          one.gates[head] = direction->sums(one.at.tensor, one.at.layout, head, i, truth, one.at.answer);
      }
  };
  for_heads(source, query_heads, needs, [&](const HeadTruths& truths, std::size_t first, std::size_t count) {
    parallel_for(count, threads, [&](std::size_t item, int) { look(truths, first + item); });
  });
  std::vector<CloserLook> looks;
  for (const Looked& one : list) {
    GateSums gates;
    for (const GateSums& of_head : one.gates) gates.add(of_head);
    looks.push_back({one.likeness.text(), has_gate_directions ? gates.offset() : std::nullopt});
  }
  return looks;
}

}  // namespace kda_check::engine
