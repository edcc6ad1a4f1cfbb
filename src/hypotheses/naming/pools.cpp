#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/names.hpp"
#include "hypotheses/errors.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "hypotheses/naming/rank.hpp"
#include "kda/bounds/log_decays.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::hypotheses {

namespace {

/// What a call leaves, by piece: rows of o, and the state that it stores.
struct Left {
  std::vector<double> o, states;
};

/// Reads and stores in slots that the table does not say, whatever the rule is by which they are found.
class Displaced {
 public:
  using With = std::function<Left(const PoolFault&)>;

  Displaced(const kda::PoolCall& call, const PoolOutput& output, const Left& got, const Left& right)
      : call_(call), output_(output), got_(got), right_(right) {
    std::size_t tokens = 0;
    for (const kda::PoolPiece& piece : call.pieces) {
      first_token_.push_back(tokens);
      tokens += piece.length();
    }
    row_ = got.o.size() / std::max<std::size_t>(1, tokens);
    state_ = got.states.size() / call.pieces.size();
    for (std::size_t p = 0; p < call.pieces.size(); ++p)
      if (!is_as(right, p)) wrong_.push_back(p);
  }

  std::optional<Cause> cause(const With& with) const {
    constexpr double most = 1 << 24;  // elements of states that are computed
    if (wrong_.empty()) return std::nullopt;
    if (std::optional<Cause> found = by_stores()) return found;
    const std::size_t slots = call_.read_from().shape()[0];
    std::vector<std::size_t> read(call_.pieces.size(), slots);
    double left = 0;
    /// Whoever is as it is from a state of slot `slot`, or from what its own slot held.
    const auto read_from = [&](std::optional<std::size_t> slot) {
      const Left one = with({.slots = [slot](const kda::PoolCall&, PoolFault::Pieces& pieces) {
        for (kda::PoolPiece& piece : pieces) piece.from = slot.value_or(piece.from), piece.from_zero = false;
      }});
      for (const std::size_t p : wrong_)
        if (read[p] == slots && is_as(one, p))
          read[p] = slot.value_or(call_.pieces[p].from),
          left = std::max(left, state_ratio(p, &one.states[p * state_]));
    };
    const auto is_known = [&](std::size_t p) { return read[p] < slots; };
    if (std::ranges::any_of(wrong_, [&](std::size_t p) { return call_.pieces[p].from_zero; }))
      read_from(std::nullopt);
    if (!std::ranges::all_of(wrong_, is_known)) {
      if (static_cast<double>(slots * call_.pieces.size()) * static_cast<double>(state_) > most)
        return std::nullopt;
      for (std::size_t slot = 0; slot < slots; ++slot) read_from(slot);
      if (!std::ranges::all_of(wrong_, is_known)) return std::nullopt;
    }
    std::vector<std::string> says;
    const char* name = "stale_start";
    for (const std::size_t p : wrong_) {
      const kda::PoolPiece& piece = call_.pieces[p];
      if (piece.from_zero && read[p] == piece.from) {
        says.push_back(fmt::format("sequence {} starts from what its slot held: has_initial_state is false",
                                   piece.tokens.index));
        continue;
      }
      name = "other_slot_read";
      says.push_back(fmt::format("request {} reads slot {}, {}", piece.tokens.index, read[p],
                                 piece.from_zero ? std::string("and has_initial_state is false")
                                                 : fmt::format("not slot {}", piece.from)));
    }
    return told(name, std::move(says), left);
  }

 private:
  static double ratio(const double* a, const double* b, std::size_t count) {
    Distance sum;
    for (std::size_t i = 0; i < count; ++i) sum.add(a[i], b[i]);
    return sum.ratio();
  }
  double state_ratio(std::size_t p, const double* other) const {
    return ratio(&got_.states[p * state_], other, state_);
  }
  bool is_state(std::size_t p, const double* other) const {
    return state_ratio(p, other) <= output_.final_state_limit;
  }
  bool has_output(const Left& other, std::size_t p) const {
    const std::size_t first = first_token_[p] * row_;
    return ratio(&got_.o[first], &other.o[first], call_.pieces[p].length() * row_) <= output_.o_limit;
  }
  bool is_silent(std::size_t p) const {
    const auto first = got_.o.begin() + static_cast<std::ptrdiff_t>(first_token_[p] * row_);
    return std::all_of(first, first + static_cast<std::ptrdiff_t>(call_.pieces[p].length() * row_),
                       [](double x) { return x == 0; });
  }
  bool is_as(const Left& other, std::size_t p) const {
    return has_output(other, p) && is_state(p, &other.states[p * state_]);
  }

  /// All that is wrong are states that belong in other slots, or were not stored, and requests left out.
  std::optional<Cause> by_stores() const {
    std::vector<std::string> says;
    const std::vector<double> before = values(call_.states), held = values(call_.read_from());
    double left = 0;
    const char* name = "request_left_out";  // unless a state is elsewhere
    for (const std::size_t p : wrong_) {
      const std::size_t to = call_.pieces[p].to;
      if (!call_.pieces[p].is_stored()) return std::nullopt;
      const double *const old = &before[to * state_], *const read = &held[call_.pieces[p].from * state_];
      if (!has_output(right_, p)) {
        if (!is_silent(p) || !is_state(p, old)) return std::nullopt;
        says.push_back(fmt::format("request {} is left out: its o is zero, and slot {} keeps its state",
                                   call_.pieces[p].tokens.index, to));
        left = std::max(left, state_ratio(p, old));
        continue;
      }
      name = "other_slot_stored";
      const double* found = nullptr;
      std::size_t owner = 0;
      while (owner < call_.pieces.size() && !is_state(p, &right_.states[owner * state_])) ++owner;
      if (owner < call_.pieces.size()) {
        found = &right_.states[owner * state_];
        says.push_back(
            fmt::format("slot {} has the state that belongs in slot {}", to, call_.pieces[owner].to));
      } else if (is_state(p, read)) {
        found = read;
        says.push_back(fmt::format("slot {} has the state that was read", to));
      } else if (is_state(p, old)) {
        found = old;
        says.push_back(fmt::format("slot {} keeps the state that it had", to));
      } else {
        return std::nullopt;
      }
      left = std::max(left, state_ratio(p, found));
    }
    return told(name, std::move(says), left);
  }

  /// `left`: rms_ratio of the state that errs most, as said.
  Cause told(const char* name, std::vector<std::string> says, double left) const {
    constexpr std::size_t most_said = 3;
    says.erase(std::unique(says.begin(), says.end()), says.end());
    if (says.size() > most_said) says.resize(most_said), says.emplace_back("...");
    double before = 0;
    for (const std::size_t p : wrong_) before = std::max(before, state_ratio(p, &right_.states[p * state_]));
    const double explained = before > 0 ? 1 - (left / before) * (left / before) : 1;
    return {name, join(says), explained, "final_state", before, left};
  }

  const kda::PoolCall& call_;
  const PoolOutput& output_;
  const Left &got_, &right_;
  std::vector<std::size_t> first_token_, wrong_;
  std::size_t row_ = 0, state_ = 0;
};

}  // namespace

Naming name_pool_fault(const kda::Problem& problem, const PoolOutput& output) {
  if (problem.pool->pieces.empty()) return {};
  const std::vector<std::size_t> alone = kda::slots_left_alone(*problem.pool);
  const std::optional<kda::Answer> exact = problem.pool->is_quantised() || problem.pool->table.is_drawn()
                                               ? std::optional(kda::answer_in_fp64(problem))
                                               : std::nullopt;
  /// What a call leaves: o, the states that it stores, the slots that it leaves alone.
  const auto left_by = [&](const tensor::Tensor& o, const tensor::Tensor& states,
                           const tensor::Tensor& pool) {
    UnitValues left{values(o), values(states), values(tensor::picked(pool, 0, alone))};
    const std::vector<kda::PoolPiece>& pieces = problem.pool->pieces;
    const std::size_t size = left[1].size() / pieces.size();
    for (std::size_t p = 0; p < pieces.size(); ++p)  // a state that is stored nowhere is nobody's
      if (!pieces[p].is_stored())
        std::fill_n(left[1].begin() + static_cast<std::ptrdiff_t>(p * size), size, 0.0);
    // Where there was NaN there has to be one.
    for (std::vector<double>& unit : left)
      for (double& x : unit)
        if (std::isnan(x)) x = std::numeric_limits<double>::max();
    return left;
  };
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64;
  const auto with = [&](const PoolFault& fault) {
    kda::Answer answer = with_pool_fault(fault, problem, options);
    if (exact) kda::allow_rounding(*problem.pool, answer.final_state, exact->final_state);
    return left_by(answer.o, answer.final_state, answer.pool);
  };
  UnitValues right = with({}), got = left_by(*output.o, *output.final_state, *output.pool);
  const char* const names[] = {"o", "final_state", "state_pool"};
  const double limits[] = {output.o_limit, output.final_state_limit, 0};
  std::vector<Unit> units;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double size = size_of(right[i]);
    units.push_back({names[i], limits[i], std::move(got[i]), std::move(right[i]), size > 0 ? 1 / size : 0});
  }
  std::vector<Candidate> candidates;
  for (const PoolFault& fault : pool_faults())
    if (fault.is_candidate && (fault.needs == nullptr || fault.needs(*problem.pool)))
      candidates.push_back({fault.name, fault.what, [&with, &fault] { return with(fault); }});
  Naming naming;
  naming.tried = candidates.size();
  const Left got_left{units[0].got, units[1].got}, right_left{units[0].right, units[1].right};
  rank(units, candidates, {.least_explained = 0.8, .least_near = 0.6, .hardly_less = 0.001}, 1, naming);
  if (naming.causes.empty()) {
    const auto left = [&](const PoolFault& fault) {
      UnitValues answer = with(fault);
      return Left{std::move(answer[0]), std::move(answer[1])};
    };
    if (std::optional<Cause> cause = Displaced(*problem.pool, output, got_left, right_left).cause(left))
      naming.causes.push_back(std::move(*cause));
  }
  return naming;
}

}  // namespace kda_check::hypotheses
