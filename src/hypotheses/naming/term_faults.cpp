#include "hypotheses/naming/term_faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "hypotheses/naming/conditions.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using enum TermFault;
using Changes = std::vector<TermFault>;

struct FaultWords {
  TermFault fault;
  std::string_view name, meaning;
};
constexpr FaultWords fault_words[] = {
    {lost, "lost", "{} is missing"},
    {lost_alone, "lost_alone", "{} is missing"},
    {negated, "negated", "{} has the other sign"},
    {undecayed, "undecayed", "{} lacks its decay"},
    {exp2, "exp2", "{} decays by 2^G, not by exp(G)"},
    {log2e_twice, "log2e_twice", "{} decays by exp(G log2(e)): G was scaled for exp2 and exp was used"},
    {unscaled, "unscaled", "{} lacks the scale"},
    {scaled_twice, "scaled_twice", "{} has the scale once more"},
    {unweighted, "without_beta", "{} lacks beta"},
    {weighted, "with_beta", "{} has beta once more"},
    {weighted_behind, "weighted_behind", "in {} beta is behind A"},
    {decayed_behind, "decayed_behind", "in {} the decay is behind A"},
    {doubled, "doubled", "{} counts twice"},
    {first_tile, "first_tile", "{} is summed over the first tile of columns alone"},
    {last_tile, "last_tile", "{} is summed over the last tile of columns alone"},
    {decay_of_first_tile, "decay_of_first_tile", "in {} the second tile of channels decays as the first"},
    {decay_of_first_channel, "decay_of_first_channel", "in {} all channels decay as the first"},
    {gate_less, "gate_less",
     "{} lacks the gate of one row: its decay ends a row early, or begins a row late"},
};

/// Of a term what kernels get wrong: first what selftest and power try, then the same in other ways; and of
/// those that decay that they decay otherwise, or not in a part of the channels.
struct ChunkTermRow {
  ChunkTerm term;
  std::string_view name, what;
  Changes usual, others;
  bool decays = true;
};
const ChunkTermRow chunk_term_rows[] = {
    {ChunkTerm::L, "L", "L", {undecayed}, {unweighted, scaled_twice}},
    {ChunkTerm::Aqk, "scores", "Aqk", {undecayed, unscaled}, {scaled_twice}},
    {ChunkTerm::u, "u", "u", {}, {weighted_behind}, false},
    {ChunkTerm::w, "w", "w", {undecayed, unweighted}, {weighted_behind, decayed_behind}},
    {ChunkTerm::carry, "carry", "the state that goes on to the next chunk", {}, {}},
    {ChunkTerm::writes, "writes", "what a chunk writes", {}, {}},
    {ChunkTerm::readout,
     "readout",
     "what o reads of the state before its chunk",
     {undecayed, unscaled},
     {scaled_twice}},
};

bool has_chunks_of_channels(const Problem& p) { return has_chunk_form(p) && has_channels(p); }

bool (*condition(TermFault fault))(const Problem&) {
  return fault == decay_of_first_tile || fault == decay_of_first_channel ? has_chunks_of_channels
                                                                         : has_chunk_form;
}

const FaultWords& words_of(TermFault fault) {
  return *std::ranges::find(fault_words, fault, &FaultWords::fault);
}

/// Rows of a table refer to words that stay.
std::string_view kept(std::string text) {
  static std::deque<std::string> all;
  return all.emplace_back(std::move(text));
}

}  // namespace

std::string_view name_of(TermFault fault) { return words_of(fault).name; }
std::string with_fault(std::string_view term, TermFault fault) {
  return fmt::format(fmt::runtime(words_of(fault).meaning), term);
}

std::vector<Fault> term_faults() {
  std::vector<Fault> list;
  const auto add = [&](const ChunkTermRow& row, const Changes& changes, bool is_variation, bool in_part) {
    for (const TermFault change : changes)
      list.push_back({kept(fmt::format("{}_{}", row.name, name_of(change))),
                      kept(with_fault(row.what, change)), condition(change), nullptr, Fault::At::chunk,
                      is_variation, in_part, row.term, change});
  };
  for (const ChunkTermRow& row : chunk_term_rows) {
    add(row, row.usual, false, false), add(row, row.others, true, false);
    if (!row.decays) continue;
    add(row, {exp2, log2e_twice, decay_of_first_tile, decay_of_first_channel, gate_less}, true, false),
        add(row, {undecayed}, true, true);
  }
  return list;
}

}  // namespace kda_check::hypotheses
