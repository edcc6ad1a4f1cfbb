// Verdicts under the laws of `run --invariants` (docs/serving.md), on variants and on programs of users.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "base/names.hpp"
#include "engine/external.hpp"
#include "engine/findings.hpp"
#include "engine/judged.hpp"
#include "engine/parity.hpp"
#include "plan/selection.hpp"

namespace kda_check::engine {

namespace {

using explain::Fill;
using judge::Verdict;
using tensor::Tensor;

/// While it lives, every block of memory is full of something when it is handed out, where the C library can
/// do that: 0xff.., which is NaN in every format, or 0x71.., 1.2e30 in fp32. One at a time in the process:
/// others who allocate meanwhile are given the same.
class FilledMemory {
 public:
  explicit FilledMemory(Fill fill) : active_(fill != Fill::whatever) {
    static std::mutex one;
    if (active_) alone_ = std::unique_lock(one);
    // The library fills with the complement of the lowest byte; 0 as a whole turns it off.
    if (active_) set(fill == Fill::nan ? 0x100 : 0xff - 0x71);
  }
  FilledMemory(const FilledMemory&) = delete;
  FilledMemory& operator=(const FilledMemory&) = delete;
  ~FilledMemory() {
    if (active_) set(0);
  }

 private:
  static void set([[maybe_unused]] int value) {
#ifdef M_PERTURB
    ::mallopt(M_PERTURB, value);
#endif
  }
  std::unique_lock<std::mutex> alone_;
  bool active_;
};

kda::Tensors solved(const kda::Variant& variant, const kda::Problem& problem, kda::Pass pass,
                    const kda::RunOptions& options, Fill fill) {
  if (std::string reason = plan::why_not(variant, problem, options); !reason.empty())
    throw NoAnswer{Verdict::skipped, std::move(reason)};
  const FilledMemory filled(fill);
  return kda::run_pass(pass, variant, problem, options);
}

/// States of it have other bits in each call.
bool has_drawn_states(const kda::Problem& problem, const Answered& reference) {
  return problem.pool && problem.pool->table.is_drawn() && reference.tensor("state_pool") != nullptr;
}

/// The trials of one law and what became of them.
class Trials {
 public:
  Trials(Context& context, const Answered& reference, const plan::Case& item)
      : context_(context), reference_(reference), item_(item) {}

  void take(explain::Trial trial) {
    tried_.push_back(trial.what);
    if (!trial.same_bits) {
      later_.push_back(std::make_unique<Later>(later(std::move(trial))));
      return;
    }
    std::vector<report::TensorResult> tensors;
    for (const explain::Pair& pair : trial.pairs) {
      const bool is_input = kda::find_spec(pair.name, {kda::TensorGroup::input}) != nullptr;
      if (!is_input && !wanted(pair.name)) continue;
      tensors.push_back(bits_of(pair, is_input));
    }
    keep(trial.what, std::move(tensors));
  }

  /// One case from all of them. Compares what may differ in its roundings: the oracle runs once for it.
  void conclude_into(report::CaseResult& result) {
    judge_later();
    result.trials = join(tried_);
    result.tensors = std::move(tensors_);
    conclude(result);
    if (result.verdict != Verdict::pass && !result.reason.empty())
      result.reason = what_ + ": " + result.reason;
    if (result.tensors.empty()) {
      result.verdict = Verdict::skipped;
      result.reason = "nothing was compared";
    }
  }

 private:
  struct Later {
    std::string what;
    Answered got, expected;
  };

  bool wanted(const std::string& name) const {
    return plan::has(item_.tensors, name) &&
           (name != "final_state" || !has_drawn_states(context_.problem(), reference_));
  }
  bool v_first() const { return context_.problem().options.state_v_first; }

  const Tensor& expected_of(const explain::Pair& pair) const {
    return pair.expected.empty() ? *reference_.tensor(pair.name) : pair.expected;
  }

  report::TensorResult bits_of(const explain::Pair& pair, bool is_input) const {
    return judged_by_bits(
        {pair.name, pair.got.shape(), pair.got.dtype(), v_first()}, pair.got, expected_of(pair),
        comparison_options(item_.asked->judging, context_.resources().threads, context_.resources().draw),
        is_input ? Sameness::data : Sameness::answers,
        // Whether a gradient is zero is not the law's question.
        is_input || item_.pass == kda::Pass::backward, "invariant");
  }

  Later later(explain::Trial trial) const {
    const Described& who = reference_;
    Later item{std::move(trial.what), {who, {}}, {who, {}}};
    for (explain::Pair& pair : trial.pairs) {
      item.expected.tensors.insert_or_assign(pair.name, pair.expected.empty()
                                                            ? reference_.tensor(pair.name)->clone()
                                                            : std::move(pair.expected));
      item.got.tensors.insert_or_assign(pair.name, std::move(pair.got));
    }
    return item;
  }

  void judge_later() {
    if (later_.empty()) return;
    const plan::Judging usual;
    std::vector<Pairing> pairings;
    for (const auto& item : later_) {
      Pairing& pairing = pairings.emplace_back();
      pairing.got = &item->got, pairing.expected = &item->expected;
      for (const std::string& name : item_.tensors)
        if (item->got.tensor(name) != nullptr) pairing.tensors.push_back(name);
      pairing.options = comparison_options(usual, context_.resources().threads, false);
    }
    const Truth truth = context_.truth(item_.pass, *item_.asked, item_.chunk_size(context_.plan().outline));
    std::vector<std::vector<report::TensorResult>> tensors(later_.size());
    for (Measured& item : measured(truth, pairings))
      tensors[item.pairing].push_back(judged({item.tensor, item.got->shape(), item.got->dtype(), v_first()},
                                             item.measures, std::move(item.limits), usual.worst_or_usual(),
                                             item.evidence));
    for (std::size_t i = 0; i < later_.size(); ++i) keep(later_[i]->what, std::move(tensors[i]));
  }

  static int severity(const std::vector<report::TensorResult>& tensors) {
    int worst = 0;
    for (const report::TensorResult& tensor : tensors)
      worst = std::max(worst, tensor.verdict == Verdict::fail ? 2 : tensor.verdict == Verdict::pass ? 0 : 1);
    return worst;
  }

  void keep(const std::string& what, std::vector<report::TensorResult> tensors) {
    if (!tensors_.empty() && severity(tensors) <= severity(tensors_)) return;
    tensors_ = std::move(tensors);
    what_ = what;
  }

  Context& context_;
  const Answered& reference_;
  const plan::Case& item_;
  std::vector<std::string> tried_;
  std::vector<std::unique_ptr<Later>> later_;  // pairings point into it
  std::string what_;                           ///< the trial that tensors_ are from
  std::vector<report::TensorResult> tensors_;
};

explain::Subject subject_of(const kda::Variant& variant, kda::Pass pass, const kda::RunOptions& options) {
  explain::Subject subject;
  subject.pass = pass;
  subject.solve = [&variant, options](const kda::Problem& problem, kda::Pass of, Fill fill) {
    return solved(variant, problem, of, options, fill);
  };
  subject.inputs_after = [&variant, pass, options](const kda::Problem& problem) {
    kda::Problem copy = kda::clone(problem);
    solved(variant, copy, pass, options, Fill::whatever);
    return copy;
  };
  subject.form = variant.axes.chunk ? judge::Form::chunk : judge::Form::recurrence;
  subject.chunk_size = options.chunk_size;
  const kda::Arithmetic& arithmetic = options.arithmetic;
  subject.layout_decides = !variant.axes.chunk && kda::is_triton(arithmetic.reduction);
  subject.state_is_all = arithmetic.stored.rounding == kda::StateRounding::nearest;
  subject.reads_ahead = variant.axes.chunk && options.arithmetic.decay == kda::DecayForm::anchor_mid;
  return subject;
}

explain::Subject subject_of(Context& context, const plan::Case& item) {
  const plan::Answer& who = context.plan().answers[*item.answer];
  if (who.is_computed()) return subject_of(*who.variant, item.pass, context.options_of(who));
  return external_subject(*who.program, context.problem(), item.pass, context.resources().limits);
}

const explain::Invariant& law_of(const plan::Case& item) {
  const std::string_view name =
      std::string_view(item.reference.name).substr(item.reference.name.find(':') + 1);
  return *std::ranges::find(explain::invariants(), name, &explain::Invariant::name);
}

/// Why what the law takes for granted is not so; else empty.
std::string broken_premise(const explain::Invariant& law, const explain::Subject& subject,
                           const plan::Answer& who) {
  if (law.premise == explain::Premise::state_is_all && !subject.state_is_all)
    return "what is drawn or left over is not handed over with a state";
  if (law.premise == explain::Premise::heads_alike && who.is_computed() &&
      who.options.arithmetic.stored.rounding == kda::StateRounding::stochastic)
    return "every head draws numbers of its own";
  return {};
}

void try_law(Context& context, const plan::Case& item, report::CaseResult& result, Findings& findings) {
  const explain::Invariant& law = law_of(item);
  result.reason = law.inapplicable(context.problem(), item.pass);
  if (!result.reason.empty()) return;
  if (law.calls_on_pools && !context.problem().pool && !context.plan().answers[*item.answer].is_computed()) {
    result.reason = "programs are asked for calls on a pool where the problem is one";
    return;
  }
  const explain::Subject subject = subject_of(context, item);
  result.reason = broken_premise(law, subject, context.plan().answers[*item.answer]);
  if (!result.reason.empty()) return;
  const Answered& reference = context.answer(*item.answer, item.pass);
  const bool is_drawn = has_drawn_states(context.problem(), reference);
  if ((reference.tensor("state_scale") != nullptr || is_drawn) &&
      (law.name != "repeat" || context.plan().answers[*item.answer].is_computed())) {
    result.reason =
        is_drawn ? "states are rounded stochastically between calls" : "states are codes between calls";
    return;
  }
  context.progress(fmt::format("{} {}: {}", reference.name, numeric::name_of(reference.dtype), law.name));
  check_complete(reference, context.problem());
  Trials trials(context, reference, item);
  ParityTable table;
  law.run(context.problem(), reference.tensors, subject, [&](explain::Trial trial) {
    if (trial.place) table.take(trial, context.problem());
    trials.take(std::move(trial));
  });
  if (!table.is_empty())
    findings.sections.push_back(table.section(reference, context.plan().source->target().name, item.repro));
  trials.conclude_into(result);
}

}  // namespace

void judge_laws(Context& context, Findings& findings) {
  const plan::Problem& problem = context.plan();
  for (std::size_t i = 0; i < problem.cases.size(); ++i) {
    const plan::Case& item = problem.cases[i];
    if (item.question != plan::Question::verdict || item.reference.kind != plan::Reference::Kind::law)
      continue;
    report::CaseResult& result = findings.cases[i];
    try {
      try_law(context, item, result, findings);
    } catch (const NoAnswer& none) {
      result.verdict = none.verdict;
      result.reason = none.reason;
    }
    context.release();
  }
}

}  // namespace kda_check::engine
