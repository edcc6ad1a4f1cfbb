// Verdicts on answers held against the oracle, recorded answers and replays: cases that share a truth are
// compared in one pass over it, as many at a time as fit in memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "base/names.hpp"
#include "engine/explain/faults.hpp"
#include "engine/explain/not_finite.hpp"
#include "engine/explain/overflow.hpp"
#include "engine/explain/place.hpp"
#include "engine/findings.hpp"
#include "engine/judged.hpp"
#include "engine/missing_options.hpp"
#include "engine/twin_heads.hpp"
#include "engine/verdicts/pool_verdicts.hpp"
#include "kda/problem/shapes.hpp"
#include "plan/selection.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using plan::Case;
using plan::Reference;

/// Cases of one truth.
struct Group {
  const plan::Request* asked;  ///< by one of them, as all are as far as the truth is concerned
  kda::Pass pass;
  std::size_t chunk_size;
  std::vector<std::size_t> cases;
};

bool is_compared(const Case& item) {
  return item.question == plan::Question::verdict && item.skip.empty() && item.answer &&
         item.reference.kind != Reference::Kind::law;
}

std::vector<Group> groups_of(const plan::Problem& problem) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < problem.cases.size(); ++i) {
    const Case& item = problem.cases[i];
    if (!is_compared(item)) continue;
    // Only the magnitudes of gradients depend on the size of the chunks.
    const std::size_t rows = item.pass == kda::Pass::backward ? item.chunk_size(problem.outline) : 0;
    const auto same = std::ranges::find_if(groups, [&](const Group& group) {
      return group.pass == item.pass && group.chunk_size == rows &&
             group.asked->oracle == item.asked->oracle &&
             group.asked->oracle_device == item.asked->oracle_device;
    });
    if (same == groups.end())
      groups.push_back({item.asked.get(), item.pass, rows, {i}});
    else
      same->cases.push_back(i);
  }
  return groups;
}

/// "o in bf16 (usually fp32), ..." of tensors that are stored less precisely than in an answer of the
/// problem's element type.
std::string coarse_storage(const Answered& got, const plan::Names& tensors, const kda::Outline& problem) {
  std::string list;
  for (const std::string& name : tensors) {
    const numeric::Format &stored = numeric::format_of(got.tensor(name)->dtype()),
                          &usual = numeric::format_of(kda::dtype_of(name, problem, problem.dtype()));
    if (stored.precision < usual.precision)
      list += fmt::format("{}{} in {} (usually {})", list.empty() ? "" : ", ", name, stored.name, usual.name);
  }
  return list;
}

/// While a GPU computes answers the CPU has nothing to do but what limits follow from.
void begin_ahead(Context& context, const Group& group) {
  std::set<std::size_t> chunk_sizes;
  bool any_on_gpu = false, any_derived = false;
  const auto add = [&](const plan::Answer& answer) {
    any_on_gpu = any_on_gpu || (answer.is_computed() && kda::is_on_gpu(*answer.variant));
    chunk_sizes.insert(described(answer, group.pass, context.plan()).chunk_size);
  };
  for (const std::size_t index : group.cases) {
    const Case& item = context.plan().cases[index];
    add(context.plan().answers[*item.answer]);
    if (item.reference.kind == Reference::Kind::answer) add(context.plan().answers[item.reference.answer]);
    any_derived = any_derived || item.reference.kind != Reference::Kind::replay;
  }
  if (any_on_gpu && any_derived) context.begin_ahead(group.pass, chunk_sizes);
}

/// How the outputs of a plan are computed, one search for each and its pass.
class Computations {
 public:
  explicit Computations(Context& context) : context_(context) {}

  const Computation& of(std::size_t index, const Answered& output) {
    const Key key{index, output.pass};
    const auto known = found_.find(key);
    if (known != found_.end()) return known->second;
    if (output.role == report::Role::variant) {
      Computation& computation = found_[key] = computation_of_variant(output, context_.problem());
      // What stands in the place of a variant, as in the selftest, is somebody else's.
      if (!kda::is_ours(*context_.plan().answers[index].variant))
        computation.left = 0, computation.is_whole = computation.is_exact = true;
      return computation;
    }
    return found_[key] = search(index, output, {});
  }
  /// Longer, where none of those that people run is it. False: that finds nothing else.
  bool find(std::size_t index, const Answered& output, double most_spent) {
    Computation& known = found_[{index, output.pass}];
    Computation found = search(index, output, most_spent);
    if (!found.licensed && !known.licensed) return false;
    known = std::move(found);
    return true;
  }

 private:
  using Key = std::pair<std::size_t, kda::Pass>;

  /// `most_spent`: none of the starts alone.
  Computation search(std::size_t index, const Answered& output, std::optional<double> most_spent) const {
    hypotheses::SearchSettings settings;
    settings.threads = context_.resources().threads;
    settings.starts_only = !most_spent, settings.most_spent = most_spent.value_or(0);
    settings.shares = settings.ties = false;
    settings.progress = [&](const std::string& what) {
      context_.progress(fmt::format("{}: {}", output.name, what));
    };
    const auto forward = found_.find({index, kda::Pass::forward});
    const bool is_known =
        output.pass == kda::Pass::backward && forward != found_.end() && forward->second.is_known();
    return identified_computation(output, context_.problem(),
                                  is_known ? &*forward->second.hypothesis : nullptr, settings);
  }

  Context& context_;
  std::map<Key, Computation> found_;
};

class Round {
 public:
  Round(Context& context, const Group& group, Computations& computations, Findings& findings)
      : context_(context), group_(group), computations_(computations), findings_(findings) {}

  /// False: no room for its answers beside those of this round.
  bool take(std::size_t index) {
    const Case& item = context_.plan().cases[index];
    const bool against_answer = item.reference.kind == Reference::Kind::answer;
    if (!cases_.empty() && (!context_.fits(*item.answer, item.pass) ||
                            (against_answer && !context_.fits(item.reference.answer, item.pass))))
      return false;
    try {
      Pairing pairing;
      pairing.got = &context_.answer(*item.answer, item.pass);
      if (against_answer) pairing.expected = &context_.answer(item.reference.answer, item.pass);
      if (item.reference.kind == Reference::Kind::replay) {
        pairing.expected = &context_.replay(*item.answer, item.pass);
        pairing.same_bits = true;
      }
      for (const std::string& name : item.tensors)  // a program answers what it likes
        if (pairing.got->tensor(name) == nullptr)
          throw NoAnswer{judge::Verdict::fail, fmt::format("its answer has no {}", name)};
      pairing.tensors = item.tensors;
      if (item.has_twins() && pairing.got->compute != numeric::ComputeFormat::fp64)
        pairing.computation = &computations_.of(*item.answer, *pairing.got);
      pairing.options =
          comparison_options(item.asked->judging, context_.resources().threads, context_.resources().draw);
      cases_.push_back(index);
      pairings_.push_back(std::move(pairing));
    } catch (const NoAnswer& none) {
      findings_.cases[index].verdict = none.verdict;
      findings_.cases[index].reason = none.reason;
    }
    return true;
  }

  void judge() {
    if (cases_.empty()) return;
    context_.progress(group_.pass == kda::Pass::backward ? "comparing gradients" : "comparing");
    for (std::size_t i = 0; i < cases_.size(); ++i) describe(findings_.cases[cases_[i]], *pairings_[i].got);
    Truth truth = context_.truth(group_.pass, *group_.asked, group_.chunk_size);
    const bool has_twins = truth.oracle && std::ranges::any_of(pairings_, [](const Pairing& pairing) {
                             return pairing.computation != nullptr;
                           });
    if (has_twins) {
      const bool on_gpu = truth.oracle->device == kda::OracleDevice::gpu;
      truth.heads_of_twins = heads_for_twins(
          context_.plan(), group_.pass, truth.threads, on_gpu && group_.pass == kda::Pass::forward,
          context_.resources().limits.memory_budget, context_.memory_left());
      if (on_gpu) truth.twins_on_cpu_instead = context_.twins_on_cpu_instead();
    }
    std::vector<bool> beside_twins(pairings_.size(), false);
    for (Measured& item : measured_as_needed(truth)) {
      if (item.evidence.twins) beside_twins[item.pairing] = true;
      judge_one(item, item.pairing);
    }
    faults_.resize(pairings_.size());
    for (std::size_t i = 0; i < pairings_.size(); ++i)
      if (!context_.problem().pool) name_fault_of(i);
    const auto found = [&](std::size_t i, double most_spent) {
      return computations_.find(*context_.plan().cases[cases_[i]].answer, *pairings_[i].got, most_spent);
    };
    constexpr double usual = 1000, of_failures = 500;  // where more is found they fail yet
    judge_again(truth, [&](std::size_t i) {
      return is_worth_a_search(i) && found(i, fails_by_limits(i) ? of_failures : usual);
    });
    // As long as `explain` does, where another computation may make it pass.
    judge_again(truth, [&](std::size_t i) {
      return is_worth_a_search(i) && is_hardly_beyond(i) && !pairings_[i].computation->is_known() &&
             found(i, hypotheses::SearchSettings{}.most_spent);
    });
    judge_again(truth, [&](std::size_t i) {
      if (!needs_others_to_agree(i)) return false;
      Computation& near = near_.emplace_back();
      near.licensed = pairings_[i].computation->licensed;
      near.looks_further = true;
      pairings_[i].computation = &near;
      return true;
    });
    for (std::size_t i = 0; context_.problem().pool && i < pairings_.size(); ++i)
      if (judge_pool(*context_.problem().pool, *pairings_[i].got, pairings_[i].tensors,
                     context_.resources().threads, findings_.cases[cases_[i]]))
        name_fault_of(i);
    for (std::size_t i = 0; i < pairings_.size(); ++i) {
      const Pairing& pairing = pairings_[i];
      note_assumptions(*pairing.got, pairing.tensors);
      if (pairing.computation != nullptr && !pairing.computation->is_as_declared)
        note(fmt::format("{}: not as declared: it computes as {}", pairing.got->name,
                         pairing.computation->text));
      if (pairing.computation != nullptr && !beside_twins[i] && pairing.got->role != report::Role::variant)
        note(fmt::format("{}: its limits decide alone, as it has no three twins", pairing.got->name));
    }
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      report::CaseResult result = findings_.cases[cases_[i]];
      const Case& item = context_.plan().cases[cases_[i]];
      say_what_overflows(item, result);
      say_what_is_wrong(i, result);
      conclude(result);
      findings_.cases[cases_[i]] = std::move(result);  // concluded whole, or not at all
    }
  }

 private:
  /// Beside a truth in fp64, where that is exact enough for all outputs: it is then that from here on.
  std::vector<Measured> measured_as_needed(Truth& truth) {
    const bool in_fp64 = std::ranges::any_of(pairings_, [](const Pairing& pairing) {
      return pairing.got->compute == numeric::ComputeFormat::fp64;
    });
    if (truth.oracle && !in_fp64 &&
        group_.asked->begins_in_fp64(context_.problem().dimensions(), group_.pass)) {
      const kda::OracleOptions exact = *truth.oracle;
      truth.oracle->precision = kda::OraclePrecision::fp64;
      truth.oracle->most_error = 0x1p-30;  // a sixty-fourth of what fp32 rounds, a limit of it is more
      try {
        return measured(truth, pairings_);
      } catch (const kda::WideTruth&) {
        truth.oracle = exact;
      }
    }
    return measured(truth, pairings_);
  }
  /// Those that are wanted, all beside one truth.
  template <class Wanted>
  void judge_again(const Truth& truth, const Wanted& is_wanted) {
    std::vector<std::size_t> which;
    std::vector<Pairing> some;
    for (std::size_t i = 0; i < pairings_.size(); ++i)
      if (is_wanted(i)) which.push_back(i), some.push_back(pairings_[i]);
    if (which.empty()) return;
    for (const std::size_t i : which) findings_.cases[cases_[i]].tensors.clear();
    for (Measured& item : measured(truth, some)) judge_one(item, which[item.pairing]);
    for (const std::size_t i : which)  // other limits make no cause of what was none
      if (faults_[i].tried == 0 || !faults_[i].causes.empty()) name_fault_of(i);
  }

  /// Twins alone speak against somebody's output, and what is known gives it nearly at most: another
  /// computation may give it.
  bool needs_others_to_agree(std::size_t pairing) const {
    const Computation* const computation = pairings_[pairing].computation;
    if (computation == nullptr || computation->gives_most || !computation->unlicensed.empty() ||
        pairings_[pairing].got->role == report::Role::variant)
      return false;
    return !fails_by_limits(pairing) &&
           std::ranges::any_of(findings_.cases[cases_[pairing]].tensors, [](const auto& tensor) {
             return tensor.twins && tensor.twins->ratio > 1 && tensor.verdict != judge::Verdict::pass;
           });
  }
  /// Not by single elements, which other computations may have.
  bool fails_by_limits(std::size_t pairing) const {
    return std::ranges::any_of(findings_.cases[cases_[pairing]].tensors, [](const auto& tensor) {
      return tensor.verdict == judge::Verdict::fail && !tensor.decided_by.empty() &&
             tensor.decided_by != "scaled_ulp";
    });
  }

  void judge_one(Measured& item, std::size_t pairing) {
    const std::size_t index = cases_[pairing];
    if (item.truth_error) {
      findings_.cases[index].oracle = plan::name_of(plan::OracleChoice::fp64);
      findings_.cases[index].oracle_error = item.truth_error;
    }
    const Case& of = context_.plan().cases[index];
    const auto tensor = std::ranges::find(of.tensors, item.tensor) - of.tensors.begin();
    judge::Evidence& evidence = item.evidence;
    evidence.by_hand = of.limits[static_cast<std::size_t>(tensor)];
    evidence.floor = of.asked->judging.floor, evidence.undecided = of.asked->judging.undecided;
    const Computation* const computation = pairings_[pairing].computation;
    if (of.asked->judging.as_declared && computation != nullptr && !computation->is_as_declared)
      evidence.not_as_declared = "it computes as " + computation->text;
    if (evidence.twins) item.measures.has_twins = true, item.measures.twins = evidence.twins->ratio;
    if (item.tensor == "final_state") add_draws(item, *pairings_[pairing].got);
    report::TensorResult result =
        judged({item.tensor, item.got->shape(), item.got->dtype(), context_.problem().options.state_v_first,
                context_.problem().pool.get()},
               item.measures, std::move(item.limits), of.asked->judging.worst_or_usual(), evidence);
    if (const auto& call = context_.problem().pool)  // as places are told
      result.shape = item.tensor == "o" ? kda::shape_of("o", call->problem) : call->states.shape();
    if (context_.resources().draw) result.profile = report::profile_of(item.measures, item.series);
    findings_.cases[index].tensors.push_back(std::move(result));
  }

  /// Where states are to be rounded by lot: whether they are.
  void add_draws(Measured& item, const Answered& got) const {
    const auto& call = context_.problem().pool;
    const tensor::Tensor* const after = got.tensor("state_pool");
    if (!call || !call->table.is_drawn() || after == nullptr) return;
    const tensor::Tensor& right = *got.tensor("state_in_fp64");
    double squares = 0;
    for (std::size_t i = 0; i < right.size(); ++i) squares += right.value(i) * right.value(i);
    const judge::Limit* const limit = judge::find_limit(item.limits, "rms_ratio");
    const double error =
        (limit != nullptr ? limit->value : 0) * std::sqrt(squares / static_cast<double>(right.size()));
    std::string& said = item.evidence.unlicensed;
    const std::string fault = kda::not_by_lot(*call, *after, right, error);
    said += (said.empty() || fault.empty() ? "" : ", ") + fault;
  }

  /// A class, or an error that is no rounding's: far beyond the limit where a fault explains it.
  static bool is_far_beyond(const report::TensorResult& tensor, bool has_fault) {
    constexpr double most_of_roundings = 0.25;  // sums of gates in bf16 make tenths
    constexpr double most_of_faults = 4;
    if (tensor.decided_by.empty()) return false;
    const double* const read = report::metric(tensor, "rms_ratio");
    if (tensor.decided_by == "nonfinite" || read == nullptr || !(*read <= most_of_roundings)) return true;
    const judge::Limit* const limit = judge::find_limit(tensor.limits, "rms_ratio");
    return has_fault && limit != nullptr && *read > most_of_faults * limit->value;
  }

  /// Somebody's output that no known kernel gives as it is, and that twins or single elements speak against.
  bool is_worth_a_search(std::size_t pairing) const {
    const Computation* const computation = pairings_[pairing].computation;
    if (computation == nullptr || computation->is_exact ||
        pairings_[pairing].got->role == report::Role::variant)
      return false;
    bool is_beyond = false;
    for (const report::TensorResult& tensor : findings_.cases[cases_[pairing]].tensors) {
      if (tensor.verdict == judge::Verdict::fail && is_far_beyond(tensor, !faults_[pairing].causes.empty()))
        return false;
      is_beyond = is_beyond || ((tensor.twins || tensor.decided_by == "scaled_ulp") &&
                                tensor.verdict != judge::Verdict::pass);
    }
    return is_beyond;
  }

  /// Twins and limits, of every tensor.
  bool is_hardly_beyond(std::size_t pairing) const {
    constexpr double of_twins = 30, of_limits = 10;
    return std::ranges::all_of(findings_.cases[cases_[pairing]].tensors, [](const auto& tensor) {
      const double* const read = report::metric(tensor, "rms_ratio");
      const judge::Limit* const limit = judge::find_limit(tensor.limits, "rms_ratio");
      return (!tensor.twins || tensor.twins->ratio <= of_twins) &&
             (read == nullptr || limit == nullptr || *read <= of_limits * limit->value);
    });
  }

  /// Of a chunk form of ours that is not finite where the truth is.
  void say_what_overflows(const Case& item, report::CaseResult& result) const {
    const plan::Answer& answer = context_.plan().answers[*item.answer];
    if (!answer.is_computed() || !answer.variant->axes.chunk || item.pass != kda::Pass::forward ||
        item.reference.kind != Reference::Kind::oracle)
      return;
    const auto lost = [](const report::TensorResult& tensor) {
      return tensor.verdict == judge::Verdict::fail &&
             std::ranges::any_of(tensor.metrics,
                                 [](const auto& one) { return one.first == "nonfinite" && one.second > 0; });
    };
    const auto first = std::ranges::find_if(result.tensors, lost);
    if (first == result.tensors.end()) return;
    if (const std::string why = forecast_overflow(context_.problem(), context_.options_of(answer));
        !why.empty())
      first->reason += "; " + why;
  }

  /// The first tensor that fails, but for rings and scales, which say it themselves; the end where none does,
  /// or the output is ours, or compared with another.
  template <class Tensors>
  auto failed_of_somebody(std::size_t pairing, Tensors& tensors) const {
    const Pairing& of = pairings_[pairing];
    if (of.expected != nullptr || of.got->role == report::Role::variant) return tensors.end();
    return std::ranges::find_if(tensors, [](const report::TensorResult& tensor) {
      return tensor.verdict == judge::Verdict::fail && !kda::is_beside_pool(tensor.name);
    });
  }

  /// What is known gives all of it, and it errs nowhere more than others that compute so: it has no fault. Of
  /// what a call leaves in its pool that says nothing.
  bool fails_by_its_algorithm(std::size_t pairing) const {
    const Computation* const computation = pairings_[pairing].computation;
    return !context_.problem().pool && computation != nullptr && computation->is_whole &&
           computation->unlicensed.empty() &&
           std::ranges::none_of(findings_.cases[cases_[pairing]].tensors,
                                [](const auto& tensor) { return tensor.twins && tensor.twins->ratio > 1; });
  }

  /// Of somebody's output that fails, where one explains it.
  void name_fault_of(std::size_t pairing) {
    constexpr hypotheses::NamingEffort quick{256, 24};
    const Answered& got = *pairings_[pairing].got;
    const report::CaseResult& result = findings_.cases[cases_[pairing]];
    faults_[pairing] = {};
    if (failed_of_somebody(pairing, result.tensors) == result.tensors.end()) return;
    if (fails_by_its_algorithm(pairing)) return;
    context_.progress(got.name + ": what is wrong");
    if_affordable([&] {
      faults_[pairing] = named(context_.problem(), got, result, context_.resources().threads, quick);
    });
  }
  /// What is wrong is said beside the verdict, which does not wait for want of memory.
  template <class Body>
  static void if_affordable(const Body& body) {
    try {
      body();
    } catch (const std::bad_alloc&) {
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::environment) throw;
    }
  }

  /// Where the first tensor that fails of somebody's output is wrong, and which fault that is.
  void say_what_is_wrong(std::size_t pairing, report::CaseResult& result) const {
    const Answered& got = *pairings_[pairing].got;
    const auto failed = failed_of_somebody(pairing, result.tensors);
    if (failed == result.tensors.end()) return;
    const int threads = context_.resources().threads;
    // What a reader needs first stands first: what it is, where, and then by how much.
    std::vector<std::string> words;
    if_affordable([&] {
      const std::vector<hypotheses::Cause>& causes = faults_[pairing].causes;
      // What explains the elements before the first NaN says more than which chunks are lost.
      if (causes.empty() || hypotheses::is_rounding(causes.front().fault))
        words.push_back(not_finite_like(context_.problem(), got, *failed, threads));
      if (words.empty() || words.back().empty()) words.push_back(cause_text(faults_[pairing]));
      words.push_back(place_of_error(context_.problem(), got, *failed, rms_limit(*failed), threads));
    });
    words.push_back(std::move(failed->reason));
    std::erase(words, "");
    failed->reason = join(words, "; ");
  }

  void note(std::string text) {
    if (std::ranges::find(findings_.notes, text) == findings_.notes.end())
      findings_.notes.push_back(std::move(text));
  }

  /// What its limits follow from though nobody said so.
  void note_assumptions(const Answered& got, const plan::Names& tensors) {
    if (got.role == report::Role::variant || tensors.empty()) return;
    if (!got.unknown.empty())
      note(fmt::format("{}: not judged, as the format has no place for it: {}", got.name,
                       join(got.unknown, ", ")));
    if (!got.compute_assumed_from.empty())
      note(
          fmt::format("{}: compute assumed {}, {}; its limits follow from that. The attribute compute of its "
                      "group says it (docs/verdicts.md)",
                      got.name, numeric::row_of(got.compute).name, got.compute_assumed_from));
    if (const std::string list = coarse_storage(got, tensors, context_.plan().outline); !list.empty())
      note(fmt::format("{}: stored less precisely than the problem: {}. Limits allow for that rounding alone",
                       got.name, list));
  }

  /// What only the answer itself knows: of a program its device, its precision.
  void describe(report::CaseResult& result, const Answered& got) const {
    const report::CaseResult known = case_about(got, result.against);
    result.dtype = known.dtype, result.device = known.device, result.compute = known.compute;
    result.compute_assumed = known.compute_assumed;
    result.arithmetic = with_remark(known.arithmetic, context_.plan());
  }

  Context& context_;
  const Group& group_;
  Computations& computations_;
  Findings& findings_;
  std::deque<Computation> near_;
  std::vector<hypotheses::Naming> faults_;  ///< of pairings
  std::vector<std::size_t> cases_;
  std::vector<Pairing> pairings_;
};

/// Where the truth itself may have grown beyond everything, nobody's kernel is to blame.
void note_missing_options(const Context& context, Findings& findings) {
  const bool all_pass = std::ranges::all_of(findings.cases, [](const report::CaseResult& item) {
    return item.against != "oracle" || item.tensors.empty() || item.verdict == judge::Verdict::pass;
  });
  if (all_pass) return;
  for (std::string& line : missing_options(context.problem())) {
    if (context.resources().warning)
      context.resources().warning(fmt::format("{} ({})", line, context.plan().source->target().path));
    findings.notes.push_back(std::move(line));
  }
}

}  // namespace

void judge_verdicts(Context& context, Findings& findings) {
  Computations computations(context);
  for (const Group& group : groups_of(context.plan())) {
    begin_ahead(context, group);
    for (std::size_t next = 0; next < group.cases.size();) {
      Round round(context, group, computations, findings);
      while (next < group.cases.size() && round.take(group.cases[next])) ++next;
      round.judge();
      context.release();
    }
  }
  note_missing_options(context, findings);
}

}  // namespace kda_check::engine
