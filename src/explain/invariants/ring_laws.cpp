// The laws of rings of writes behind the states of a pool: where a ring begins, what of it is taken back, and
// when it is folded into its state make no difference to who reads it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "explain/invariants/serving.hpp"
#include "kda/problem/excerpt.hpp"

namespace kda_check::explain {

namespace {

using kda::PoolCall;
using kda::PoolPiece;
using kda::Problem;
using kda::RingTable;
using kda::Tensors;
using tensor::Tensor;
using Sink = std::function<void(Trial)>;

std::string has_rings(const Problem& problem, kda::Pass) {
  return problem.pool && !problem.pool->ring.empty() ? "" : "this is no call behind rings";
}
std::string wraps(const Problem& problem, kda::Pass pass) {
  if (std::string why = has_rings(problem, pass); !why.empty()) return why;
  return problem.pool->table.ring.base.empty() ? "rings begin at row 0: there is no ring_base" : "";
}
std::string takes_back(const Problem& problem, kda::Pass pass) {
  if (std::string why = has_rings(problem, pass); !why.empty()) return why;
  if (std::ranges::any_of(problem.pool->pieces, &PoolPiece::is_stored))
    return "a ring is folded, and its state may be rounded between calls";
  const auto is_long = [](const PoolPiece& piece) { return piece.tokens.length() > 1; };
  return std::ranges::any_of(problem.pool->pieces, is_long) ? "" : "no sequence has two tokens";
}

PoolCall copy_of(const PoolCall& call) {
  return {kda::clone(call.problem), call.states.clone(), call.table, {}, kda::clone(call.ring), {}, {}};
}

/// o of a call, in the rows of the problem's own.
Tensor output_in(const Problem& problem, const Tensors& of_call) {
  Tensors o;
  o.emplace("o", of_call.at("o").clone());
  return std::move(kda::of_ordinary_form(*problem.pool, std::move(o)).at("o"));
}
Tensors asked(const Subject& subject, const Problem& call) {
  return kda::of_call(*call.pool, solved(subject, call));
}

/// All rings turned, so that row `base` is their first.
void wrap(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  const RingTable& ring = problem.pool->table.ring;
  for (const std::size_t base : {std::size_t{0}, ring.rows / 2, ring.rows - 1}) {
    PoolCall turned = copy_of(*problem.pool);
    for (const PoolPiece& piece : problem.pool->pieces) {
      const std::size_t n = piece.tokens.index, first = piece.from * ring.rows;
      for (auto& [name, rows] : turned.ring) {
        const Tensor& before = problem.pool->ring.at(name);
        const std::size_t bytes = rows.bytes() / (ring.rows * problem.pool->slots());
        for (std::size_t i = 0; i < ring.rows; ++i)
          std::memcpy(
              rows.data() + (first + (base + i) % ring.rows) * bytes,
              before.data() + (first + (static_cast<std::size_t>(ring.base[n]) + i) % ring.rows) * bytes,
              bytes);
      }
      turned.table.ring.base[n] = static_cast<std::int64_t>(base);
    }
    const Problem call = kda::ordinary_form(std::move(turned));
    Trial trial{fmt::format("rings begin at row {}", base), true, {}};
    for (auto& [name, tensor] : solved(subject, call))
      if (name == "o" || name == "final_state")
        trial.pairs.push_back({name, std::move(tensor), reference.at(name).clone()});
    sink(std::move(trial));
  }
}

/// The tokens of a call, of which some are accepted: the others are computed again, behind those.
void rollback(const Problem& problem, const Tensors&, const Subject& subject, const Sink& sink) {
  const PoolCall& call = *problem.pool;
  const Tensors first = asked(subject, problem);
  for (const auto& [name, ring] : call.ring)
    if (!first.contains(name)) return;  // u that nobody answers
  for (const bool all_but_one : {false, true}) {
    PoolCall next = copy_of(call);
    RingTable& ring = next.table.ring;
    ring.flush.reset();
    next.states = first.at("state_pool").clone();
    for (auto& [name, rows] : next.ring) rows = first.at(name).clone();
    std::vector<kda::Sequence> left;
    for (const kda::Sequence& sequence : call.problem.sequences()) {
      const std::size_t n = sequence.index, tokens = sequence.length();
      left.push_back(sequence);
      if (std::ranges::none_of(call.pieces, [&](const PoolPiece& one) { return one.tokens.index == n; }))
        continue;
      const std::size_t accepted = tokens < 2 ? 0 : all_but_one ? tokens - 1 : 1;
      ring.length[n] += static_cast<std::int64_t>(accepted);
      left.back() = sequence.part(accepted, tokens);
    }
    next.problem = kda::excerpt(call.problem, left, kda::Layout::packed);
    const Tensors again = asked(subject, kda::ordinary_form(std::move(next)));
    Tensors o;
    o.emplace("o", first.at("o").clone());
    const Tensor rest = again.at("o").converted_to(o.at("o").dtype());
    const std::size_t bytes = rest.bytes() / rest.shape()[1];
    std::size_t row = 0;
    for (const kda::Sequence& sequence : left) {
      if (sequence.length() > 0)
        std::memcpy(o.at("o").data() + kda::row_of(call.problem, sequence, 0) * bytes,
                    rest.data() + row * bytes, sequence.length() * bytes);
      row += sequence.length();
    }
    Trial trial{all_but_one ? "all tokens but one are accepted" : "one token is accepted",
                subject.form == judge::Form::recurrence,
                {}};
    trial.pairs.push_back({"o", output_in(problem, o), output_in(problem, first)});
    sink(std::move(trial));
  }
}

/// Rings that are folded otherwise.
void flush(const Problem& problem, const Tensors&, const Subject& subject, const Sink& sink) {
  const Tensors expected = asked(subject, problem);
  for (const bool always : {true, false}) {
    PoolCall other = copy_of(*problem.pool);
    RingTable& ring = other.table.ring;
    const bool fits = std::ranges::all_of(
        problem.pool->pieces, [&](const PoolPiece& piece) { return piece.length() <= ring.rows; });
    if (!always && !fits) continue;
    ring.flush = always ? std::optional<std::size_t>(0) : std::nullopt;
    Trial trial{always ? "rings are folded" : "no ring is folded", false, {}};
    trial.pairs.push_back({"o", output_in(problem, asked(subject, kda::ordinary_form(std::move(other)))),
                           output_in(problem, expected)});
    sink(std::move(trial));
  }
}

constexpr Invariant ring_rows[] = {
    {"wrap", wraps, wrap, true, true},
    {"rollback", takes_back, rollback, true, true},
    {"flush", has_rings, flush, true, true},
};

}  // namespace

std::span<const Invariant> laws_of_rings() { return ring_rows; }

}  // namespace kda_check::explain
