#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "hypotheses/errors.hpp"
#include "hypotheses/naming/faults.hpp"
#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/rank.hpp"
#include "hypotheses/naming/reference_backward.hpp"
#include "hypotheses/naming/reference_chunk.hpp"
#include "kda/bounds/log_decays.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/problem/heads.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using tensor::Tensor;

constexpr double most_work = 1 << 24, little_work = 1 << 19;  // some seconds; little
constexpr std::size_t least_chunks = 3;  // of a part: the one that deviates, and its neighbours

double work_of(const Problem& problem, std::size_t chunk_size) {
  const kda::Dimensions& d = problem.dimensions();
  const auto rows = static_cast<double>(std::min(chunk_size, d.T)), K = static_cast<double>(d.K);
  return static_cast<double>(d.B * d.T * d.HV) * (K * (static_cast<double>(d.V) + rows) + rows * rows);
}

/// A sum over tokens, which a kernel may form elsewhere, from what is right.
bool is_sum(std::string_view gradient) { return gradient == "dA_log" || gradient == "ddt_bias"; }

/// Of a problem that is too large: a query head of the sequence that fails, and of its tokens as many as can
/// be afforded.
struct Part {
  kda::Sequence sequence;                   ///< of the whole
  std::vector<std::size_t> queries, heads;  ///< of queries and of values
  std::size_t begin = 0, end = 0;           ///< tokens, from the sequence's first
  Problem problem;
  std::deque<Tensor> tensors;
  std::vector<FailedGradient> output;

  /// Whether a fault shows here as it does in the whole.
  bool has(const GradientReading& reading) const {
    const bool is_of_start = reading.states_from_zero || reading.fault == BackwardFault::early_initial ||
                             reading.fault == BackwardFault::first_token || reading.states != StateOf::own,
               is_of_end = reading.state_gradient != StateGradientOf::own ||
                           reading.fault == BackwardFault::cumulated_over_chunks;
    return !reading.is_of_others() && (begin == 0 || !is_of_start) &&
           (end == sequence.length() || !is_of_end);
  }
  Tensor of(const FailedGradient& one, std::size_t decays) const {
    Tensor tensor = kda::with_heads(one.name, *one.got, queries, heads, decays);
    if (is_sum(one.name)) return tensor;
    const bool is_state = one.name == "dinitial_state";
    tensor = tensor::picked(tensor, 0, std::vector{is_state ? sequence.index : sequence.batch});
    if (is_state) return tensor;
    std::vector<std::size_t> tokens(end - begin);
    std::iota(tokens.begin(), tokens.end(), sequence.begin + begin);
    return tensor::picked(tensor, 1, tokens);
  }
};

/// Tokens of the only sequence, between the right states.
Problem tokens_of(const Problem& head, std::size_t begin, std::size_t end, int threads,
                  const Tensor* leaving = nullptr) {
  Tensor entering;
  if (begin > 0)
    entering =
        kda::answer_in_fp64(tokens_of(head, 0, begin, threads), threads).final_state.named("initial_state");
  return kda::excerpt(head, {{0, 0, begin, end}}, kda::Layout::rows,
                      {begin > 0 ? &entering : nullptr, leaving});
}

/// Gradients go from the end to the start: the last token that deviates is the first that is wrong.
std::size_t last_deviation(const std::vector<Unit>& units, std::size_t tokens) {
  constexpr double clearly = 4;
  std::size_t last = 0;
  for (const Unit& unit : units) {
    if (is_sum(unit.tensor) || unit.tensor == "dinitial_state") continue;
    const std::size_t row = unit.right.size() / tokens;
    double largest = 0;
    for (std::size_t t = tokens; t-- > last;) {
      Distance distance;
      for (std::size_t i = t * row; i < (t + 1) * row; ++i) distance.add(unit.got[i], unit.right[i]);
      largest = std::max(largest, distance.expected.root());
      if (distance.size() > clearly * unit.limit * largest) last = t;
    }
  }
  return last;
}

std::vector<Unit> units_of(const std::vector<FailedGradient>& output, UnitValues right) {
  std::vector<Unit> units;
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double size = size_of(right[i]);
    units.push_back({output[i].name, output[i].limit, values(*output[i].got), std::move(right[i]),
                     size > 0 ? 1 / size : 0, !is_sum(output[i].name)});
  }
  return units;
}
UnitValues values_of(const std::vector<FailedGradient>& output, const kda::GradientTensors& tensors) {
  UnitValues list;
  for (const FailedGradient& one : output) {
    list.push_back(values(*std::ranges::find(tensors, one.name, &Tensor::name)));
    for (double& x : list.back()) x = in_range_of(one.got->dtype(), x);
  }
  return list;
}

Part part_of(const Problem& whole, const std::vector<FailedGradient>& output, const FailurePlace& place,
             std::size_t chunk_size, int threads, std::size_t least = least_chunks,
             double work = little_work) {
  Part part;
  part.sequence = whole.sequences().at(place.sequence), part.end = part.sequence.length();
  part.queries = {place.head / whole.heads_per_group()};
  part.heads = kda::value_heads_of(whole, part.queries);
  part.problem =
      kda::excerpt(kda::with_heads(whole, part.queries, part.heads), {part.sequence}, kda::Layout::rows);
  const auto keep = [&](std::size_t begin, std::size_t end) {
    part.begin = begin, part.end = end, part.output.clear(), part.tensors.clear();
    const bool is_whole = end - begin == part.sequence.length() && whole.sequences().size() == 1;
    for (const FailedGradient& one : output) {
      if (is_sum(one.name) ? !is_whole : one.name == "dinitial_state" && begin > 0) continue;
      part.tensors.push_back(part.of(one, whole.dimensions().decays()));
      part.output.push_back({one.name, &part.tensors.back(), one.limit, one.by_elements});
    }
  };
  const std::size_t length = part.end, chunks = (length + chunk_size - 1) / chunk_size;
  const double each = work_of(part.problem, chunk_size) / static_cast<double>(chunks);
  const std::size_t affordable = std::max(least, static_cast<std::size_t>(work / each));
  if (chunks > affordable) {
    keep(0, length);
    const kda::Tensors whole_head = kda::results_in_fp64(kda::Pass::backward, part.problem, threads);
    UnitValues right;
    for (const FailedGradient& one : part.output) right.push_back(values(whole_head.at(one.name)));
    const std::size_t deviation = last_deviation(units_of(part.output, std::move(right)), length),
                      last = std::min(chunks, deviation / chunk_size + 2),  // a carry may be the next one's
        first = last - std::min(last, affordable);
    const Problem head = std::move(part.problem);
    part.begin = first * chunk_size, part.end = std::min(length, last * chunk_size);
    Tensor leaving;
    if (part.end < length)
      leaving = std::move(
          kda::results_in_fp64(kda::Pass::backward, tokens_of(head, part.end, length, threads), threads)
              .at("dinitial_state"));
    part.problem = tokens_of(head, part.begin, part.end, threads, leaving.empty() ? nullptr : &leaving);
  }
  keep(part.begin, part.end);
  return part;
}

constexpr Thresholds of_gradients{
    .least_explained = 0.9, .least_near = 0.6, .hardly_less = 0.01, .times_left = 4, .most_named = 3};

/// What a backward pass reads otherwise than the forward pass did: faults of inputs.
struct Misread {
  std::string name, meaning;
  Interpretation reading;
  bool is_of_heads;
};
std::vector<Misread> misread_inputs(const Problem& problem) {
  using At = Fault::At;
  std::vector<Misread> list;
  const kda::Sequence s = problem.sequences().back();
  const std::size_t head = problem.dimensions().HV - 1;
  const auto read = [&](const Interpretation& reading) {
    return plain::head_of(problem, reading, {s, s.begin, s.end, head});
  };
  const plain::Head right = read(Interpretation(problem));
  for (const Fault& fault : faults()) {
    if (!fault.applies(problem)) continue;
    std::vector<std::size_t> places(fault.at == At::everywhere ? 1
                                    : fault.at == At::function ? other_softplus().size()
                                    : fault.at == At::row      ? rows_of_others
                                                               : 0);
    std::iota(places.begin(), places.end(), std::size_t{0});
    if (fault.at == At::head) places = {1, problem.dimensions().HV - 1};
    for (const std::size_t at : places) {
      Interpretation reading(problem);
      fault.apply(reading, at);
      const plain::Head got = read(reading);
      const bool is_other = got.q.values() != right.q.values() || got.k.values() != right.k.values() ||
                            got.v.values() != right.v.values() || got.g.values() != right.g.values() ||
                            got.beta != right.beta || got.scale != right.scale;
      if (is_other)
        list.push_back(
            {std::string(fault.name),
             fmt::format("the backward pass is one where {}{}", fault.meaning, words_of_place(fault, at)),
             reading, fault.at == At::head});
    }
  }
  return list;
}

/// What errs, multiplied by a number of its own.
Candidate by_factors(const std::vector<Unit>& units) {
  UnitValues values;
  std::string text;
  for (const Unit& unit : units) {
    values.push_back(unit.right);
    double along = 0, squares = 0;
    for (std::size_t i = 0; i < unit.right.size(); ++i)
      along += unit.got[i] * unit.right[i], squares += unit.right[i] * unit.right[i];
    if (is_right(unit) || !(squares > 0)) continue;
    for (double& x : values.back()) x *= along / squares;
    text += fmt::format("{}{} is {:.4g}", text.empty() ? "" : ", ", unit.tensor, along / squares);
  }
  return {"factor", text + " of what it should be", [values] { return values; }};
}

/// do and dht held within bounds that explain most, in units of their largest.
template <class With>
std::vector<Candidate> by_bounds(const Problem& problem, const std::vector<Unit>& units, const With& with) {
  const struct {
    const char *name, *what;
    const std::optional<Tensor>& tensor;
    std::optional<double> GradientReading::*bound;
  } bounded[] = {{"do_clamped", "do", problem.output_gradient, &GradientReading::largest_loss},
                 {"dht_clamped", "dht", problem.state_gradient, &GradientReading::largest_state_gradient}};
  std::vector<Candidate> list;
  for (const auto& one : bounded) {
    if (!one.tensor) continue;
    double largest = 0;
    for (std::size_t i = 0; i < one.tensor->size(); ++i)
      largest = std::max(largest, std::fabs(one.tensor->value(i)));
    const auto held = [&](double factor) {
      GradientReading reading;
      reading.*(one.bound) = factor * largest;
      return reading;
    };
    const double factor = fitted_factor(units, [&](double of_largest) { return with(held(of_largest)); });
    list.push_back({one.name, fmt::format("{} is held within +-{:.4g}", one.what, factor * largest),
                    [&with, reading = held(factor)] { return with(reading); }});
  }
  return list;
}

/// Where single elements fail each counts in relation to the truth, however small it is.
void weigh_elements(const std::vector<FailedGradient>& output, std::vector<Unit>& units,
                    UnitValues& weights) {
  constexpr double share_left = 1.0 / 32;  // of what they err by
  for (std::size_t i = 0; i < units.size(); ++i) {
    Unit& unit = units[i];
    weights.emplace_back(unit.right.size(), 1.0);
    if (!output[i].by_elements) continue;
    Distance distance;
    for (std::size_t j = 0; j < unit.right.size(); ++j) {
      const double weight = unit.right[j] != 0 ? 1 / std::fabs(unit.right[j]) : 0;
      weights[i][j] = weight, unit.got[j] *= weight, unit.right[j] *= weight;
      distance.add(unit.got[j], unit.right[j]);
    }
    const double size = distance.expected.root();
    unit.weight = size > 0 ? 1 / size : 0;
    unit.limit = share_left * distance.ratio();
  }
}

/// `only`: those of the faults that are tried; `is_read`: of misread inputs.
template <class Only, class IsRead>
Naming named(const Problem& problem, const std::vector<FailedGradient>& output, std::size_t chunk_size,
             int threads, std::size_t first_chunk, const Only& only, const IsRead& is_read) {
  const BackwardReference reference(problem, chunk_size);
  UnitValues weights;  // of elements, where they differ
  const auto with = [&](const GradientReading& reading) {
    UnitValues list = values_of(output, reference.gradients(reading, numeric::DType::fp64));
    for (std::size_t i = 0; i < weights.size(); ++i)
      for (std::size_t j = 0; j < weights[i].size(); ++j) list[i][j] *= weights[i][j];
    return list;
  };
  std::vector<Unit> units = units_of(output, with({}));
  if (std::ranges::all_of(units, is_right)) weigh_elements(output, units, weights);
  const auto candidates = [&](std::optional<std::size_t> only_chunk) {
    std::vector<Candidate> list;
    for (const GradientFault& fault : gradient_faults()) {
      GradientReading reading = fault.reading();
      if (!fault.applies(problem) || !only(fault, reading) ||
          (only_chunk && reading.term == Term::none && reading.fault == BackwardFault::none))
        continue;
      reading.only_chunk = only_chunk;
      list.push_back(
          {fault.name,
           fault.meaning + (only_chunk ? fmt::format(", in chunk {} alone", *only_chunk + first_chunk) : ""),
           [&with, reading] { return with(reading); }});
    }
    return list;
  };
  Naming naming;
  const std::vector<Candidate> of_all = candidates({});
  naming.tried = of_all.size();
  rank(units, of_all, of_gradients, threads, naming);
  if (!naming.causes.empty()) return naming;
  std::optional<Cause> nearest = std::exchange(naming.nearest, {});
  Thresholds of_factors = of_gradients;
  of_factors.least_explained = 0.99;
  rank(units, {by_factors(units)}, of_factors, threads, naming);
  if (!naming.causes.empty()) return naming;
  rank(units, by_bounds(problem, units, with), of_gradients, threads, naming);
  if (!naming.causes.empty()) return naming;
  if (problem.sequences().size() == 1) {  // a chunk alone: the last that deviates
    const std::size_t last = last_deviation(units, problem.dimensions().T);
    rank(units, candidates(last / chunk_size), of_gradients, threads, naming);
  }
  if (naming.causes.empty()) {
    std::vector<Candidate> list;
    for (const Misread& one : misread_inputs(problem))
      if (is_read(one))
        list.push_back({one.name, one.meaning, [&with, reading = one.reading] {
                          GradientReading by;
                          by.misread = &reading;
                          return with(by);
                        }});
    rank(units, list, of_gradients, threads, naming);
  }
  if (nearest && (!naming.nearest || naming.nearest->explained < nearest->explained) && naming.causes.empty())
    naming.nearest = std::move(nearest);
  return naming;
}

/// Whether a change of a matrix reaches what errs, and clearly nothing that is right.
bool changes_what_errs(const std::vector<Unit>& units, const UnitValues& changed) {
  constexpr double clearly = 30, hardly = 0.25;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const double limit = (is_right(units[i]) ? clearly : hardly) * units[i].limit;
    const bool is_changed = !is_right({{}, limit, changed[i], units[i].right, 0});
    // What is wrong on a diagonal alone leaves dg as it is: no decay lies between a token and itself.
    if (units[i].tensor == "dg" && is_right(units[i])) continue;
    if (units[i].has_to_stay && is_changed == is_right(units[i])) return false;
  }
  return true;
}

/// No fault of the table, but a matrix of the chunk form that is another one: looked for in a head and the
/// chunk that deviates, and asked of all where that does not take long.
Naming named_by_move(const Problem& problem, const std::vector<FailedGradient>& output,
                     const FailurePlace& place, std::size_t chunk_size, int threads) {
  std::vector<plain::MovedMatrix> list = plain::moved_matrices(true, problem.dimensions().HV > 1), beside;
  std::ranges::copy_if(list, std::back_inserter(beside), [](const plain::MovedMatrix& one) {
    return one.move->is_beside() && one.move->hits == nullptr;
  });
  std::erase_if(list, [](const plain::MovedMatrix& one) { return one.move->is_beside(); });
  constexpr std::size_t most_asked = 48, few = 3, chunks = 2;
  const Part part = part_of(problem, output, place, chunk_size, threads, chunks, 0);
  std::map<const plain::Site*, bool> is_suspect;  // in the part, and so in the whole
  const auto ranked = [&](const Problem& of, const std::vector<FailedGradient>& got,
                          std::vector<plain::MovedMatrix> moved, std::size_t most_named,
                          std::optional<std::size_t> only_chunk = {}) {
    const BackwardReference reference(of, chunk_size);
    const auto with = [&](const GradientReading& reading) {
      return values_of(got, reference.gradients(reading, numeric::DType::fp64));
    };
    const std::vector<Unit> units = units_of(got, with({}));
    for (const plain::MovedMatrix& one : moved) {
      if (one.move->name != "halved") continue;
      GradientReading reading;
      reading.site = one.site, reading.move = one.move;
      is_suspect[one.site] = changes_what_errs(units, with(reading));
    }
    std::erase_if(moved, [&](const plain::MovedMatrix& one) {
      // The signs of two factors may cancel where halves do not; nothing is added to the first that is
      // computed.
      const auto found = is_suspect.find(one.site);
      return found != is_suspect.end() && !found->second && one.move->name != "negated" &&
             one.move->source != plain::Move::Source::added;
    });
    std::vector<Candidate> candidates;
    for (const plain::MovedMatrix& one : moved) {
      const bool is_of_gradients = one.site->from == plain::Site::From::backwards;
      if (only_chunk && !is_of_gradients) continue;
      GradientReading reading;
      reading.site = one.site, reading.move = one.move, reading.only_chunk = only_chunk;
      const std::string where =
          only_chunk ? fmt::format(", in chunk {} alone",
                                   *only_chunk + (&of == &part.problem ? part.begin / chunk_size : 0))
                     : "";
      candidates.push_back({one.name(),
                            is_of_gradients ? one.meaning() + where
                                            : fmt::format("the backward pass is one where {}", one.meaning()),
                            [&with, reading] { return with(reading); }});
    }
    Thresholds thresholds = of_gradients;
    thresholds.most_named = most_named;
    Naming naming;
    rank(units, candidates, thresholds, threads, naming);
    return naming;
  };
  Naming naming = ranked(part.problem, part.output, list, most_asked);
  std::optional<std::size_t> alone;
  if (naming.causes.empty()) {  // in the last chunk that deviates
    const BackwardReference reference(part.problem, chunk_size);
    UnitValues right = values_of(part.output, reference.gradients({}, numeric::DType::fp64));
    const std::size_t tokens = part.end - part.begin;
    alone = last_deviation(units_of(part.output, std::move(right)), tokens) / chunk_size;
    naming = ranked(part.problem, part.output, list, most_asked, alone);
    *alone += part.begin / chunk_size;
  }
  if (work_of(problem, chunk_size) > most_work) {
    if (naming.causes.size() > few) naming.causes.resize(few);
    return naming;
  }
  std::erase_if(list, [&](const plain::MovedMatrix& one) {
    return std::ranges::find(naming.causes, one.name(), &Cause::fault) == naming.causes.end();
  });
  if (!list.empty()) naming = ranked(problem, output, list, few, alone);
  return naming.causes.empty() ? ranked(problem, output, beside, few) : naming;
}

}  // namespace

Naming name_gradient_fault(const Problem& problem, const std::vector<FailedGradient>& output,
                           const FailurePlace& place, std::size_t chunk_size, int threads) {
  if (!BackwardReference::can_differentiate(problem)) return {};
  const double work = work_of(problem, chunk_size);
  const auto or_by_move = [&](Naming naming) {
    if (!naming.causes.empty()) return naming;
    Naming moved = named_by_move(problem, output, place, chunk_size, threads);
    naming.causes = std::move(moved.causes);
    return naming;
  };
  if (work <= little_work)
    return or_by_move(named(
        problem, output, chunk_size, threads, 0,
        [](const GradientFault&, const GradientReading&) { return true; },
        [](const Misread&) { return true; }));
  // A sequence is differentiated whole once, to find where it deviates.
  constexpr double longest = 1 << 29;  // some seconds
  const kda::Dimensions& d = problem.dimensions();
  const auto tokens = static_cast<double>(problem.sequences().at(place.sequence).length());
  if (tokens * static_cast<double>(problem.heads_per_group() * d.K * d.V) > longest) return {};
  if (tokens == 0) {
    const auto longer = [](const kda::Sequence& a, const kda::Sequence& b) {
      return a.length() < b.length();
    };
    const std::vector<kda::Sequence> all = problem.sequences();
    const std::size_t longest_one = std::ranges::max_element(all, longer)->index;
    return all[longest_one].length() == 0
               ? Naming{}
               : name_gradient_fault(problem, output, {longest_one, place.head}, chunk_size, threads);
  }
  const Part part = part_of(problem, output, place, chunk_size, threads);
  Naming of_part = named(
      part.problem, part.output, chunk_size, threads, part.begin / chunk_size,
      [&](const GradientFault&, const GradientReading& reading) { return part.has(reading); },
      [](const Misread&) { return true; });
  of_part.sequence = part.sequence, of_part.heads = part.heads;
  of_part.begin = part.sequence.begin + part.begin, of_part.end = part.sequence.begin + part.end;
  if (work > most_work) return or_by_move(std::move(of_part));
  // Of the whole: what explains the part, what does not show there, and what is soon tried.
  Naming naming = named(
      problem, output, chunk_size, threads, 0,
      [&](const GradientFault& fault, const GradientReading& reading) {
        const bool was_tried = part.has(reading) && fault.applies(part.problem);
        return !reading.is_of_chunks() || !was_tried ||
               std::ranges::count(of_part.causes, fault.name, &Cause::fault) > 0;
      },
      [&](const Misread& one) {
        return one.is_of_heads || std::ranges::count(of_part.causes, one.meaning, &Cause::meaning) > 0;
      });
  return or_by_move(naming.causes.empty() ? std::move(of_part) : std::move(naming));
}

}  // namespace kda_check::hypotheses
