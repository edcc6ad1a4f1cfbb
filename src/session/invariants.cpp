#include "session/invariants.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "base/names.hpp"
#include "compare/comparison.hpp"
#include "session/judging.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

namespace {

using analysis::Fill;
using compare::Verdict;
using tensor::Tensor;

/// While it lives, every block of memory is full of something when it is handed out, where the C library can
/// do that: 0xff.., which is NaN in every format, or 0x71.., 1.2e30 in fp32.
class FilledMemory {
 public:
  explicit FilledMemory(Fill fill) : active_(fill != Fill::whatever) {
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
  bool active_;
};

kda::Answer solved(const kda::Variant& variant, const kda::Problem& problem, const kda::RunOptions& options,
                   Fill fill) {
  if (std::string reason = why_not(variant, problem, options); !reason.empty())
    throw NoAnswer{Verdict::skipped, std::move(reason)};
  const FilledMemory filled(fill);
  return variant.run(problem, options);
}

/// The same kind of answer without its tensors.
Answered described_as(const Answered& other) {
  Answered copy;
  copy.name = other.name, copy.recorded = other.recorded, copy.device = other.device;
  copy.arithmetic = other.arithmetic, copy.dtype = other.dtype, copy.compute = other.compute;
  copy.form = other.form;
  return copy;
}

std::vector<compare::Limit> limits_on_bits() {
  return {{"nonfinite", 0, "invariant"}, {"differing_bits", 0, "invariant"}};
}

/// The trials of one invariant and what became of them.
class Trials {
 public:
  Trials(const kda::Problem& problem, const Answered& reference, const CompareRequest& request)
      : problem_(problem), reference_(reference), request_(request) {}

  void take(analysis::Trial trial) {
    tried_.push_back(trial.what);
    if (!trial.same_bits) {
      later_.push_back(std::make_unique<Later>(later(std::move(trial))));
      return;
    }
    std::vector<report::TensorResult> tensors;
    for (const analysis::Pair& pair : trial.pairs) {
      const bool is_input = pair.name != "o" && pair.name != "final_state";
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
    return std::find(request_.tensors.begin(), request_.tensors.end(), name) != request_.tensors.end();
  }

  const Tensor& expected_of(const analysis::Pair& pair) const {
    return pair.expected.empty() ? *reference_.tensor(pair.name) : pair.expected;
  }

  report::TensorResult bits_of(const analysis::Pair& pair, bool is_input) const {
    const bool v_first = problem_.options.state_v_first;
    const Tensor& expected = expected_of(pair);
    compare::Comparison comparison(pair.name, pair.got, v_first, false,
                                   comparison_options(request_.judging, request_.threads));
    comparison.add_all(expected);
    report::TensorResult result = judged(pair.name, pair.got, v_first, comparison.finish(), limits_on_bits(),
                                         {}, {.zeros_decide = is_input});
    // Inputs may hold NaN: they are data, not an answer.
    if (is_input && result.verdict == Verdict::inconclusive &&
        std::memcmp(pair.got.data(), expected.data(), expected.bytes()) == 0)
      result.verdict = Verdict::pass, result.reason.clear();
    return result;
  }

  Later later(analysis::Trial trial) const {
    Later item{std::move(trial.what), described_as(reference_), described_as(reference_)};
    for (analysis::Pair& pair : trial.pairs) {
      item.expected.hold(pair.name, pair.expected.empty() ? reference_.tensor(pair.name)->clone()
                                                          : std::move(pair.expected));
      item.got.hold(pair.name, std::move(pair.got));
    }
    return item;
  }

  void judge_later() {
    if (later_.empty()) return;
    std::vector<Pairing> pairings;
    for (const auto& item : later_) pairings.push_back({&item->got, &item->expected});
    const JudgingRequest judging;
    const CompareRequest compare{request_.tensors, request_.oracle, request_.threads, judging,
                                 request_.regime};
    std::vector<report::CaseResult> cases = compared(problem_, pairings, compare);
    for (std::size_t i = 0; i < cases.size(); ++i) keep(later_[i]->what, std::move(cases[i].tensors));
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

  const kda::Problem& problem_;
  const Answered& reference_;
  const CompareRequest& request_;
  std::vector<std::string> tried_;
  std::vector<std::unique_ptr<Later>> later_;  // pairings point into it
  std::string what_;                           ///< the trial that tensors_ are from
  std::vector<report::TensorResult> tensors_;
};

}  // namespace

analysis::Subject subject_of(const kda::Variant& variant, const kda::RunOptions& options) {
  analysis::Subject subject;
  subject.solve = [&variant, options](const kda::Problem& problem, Fill fill) {
    return solved(variant, problem, options, fill);
  };
  subject.inputs_after = [&variant, options](const kda::Problem& problem) {
    kda::Problem copy = kda::clone(problem);
    solved(variant, copy, options, Fill::whatever);
    return copy;
  };
  subject.form = variant.axes.chunk ? compare::Form::chunk : compare::Form::recurrence;
  subject.chunk_size = options.chunk_size;
  subject.reads_ahead = variant.axes.chunk && options.arithmetic.decay == kda::DecayForm::anchor_mid;
  return subject;
}

std::vector<report::CaseResult> invariant_cases(const kda::Problem& problem, const Answered& reference,
                                                const analysis::Subject& subject,
                                                const CompareRequest& request, const Log& log) {
  const kda::Answer answer{reference.o->clone(), reference.final_state->clone()};
  std::vector<report::CaseResult> cases;
  for (const analysis::Invariant& invariant : analysis::invariants()) {
    if (log.progress)
      log.progress(
          fmt::format("{} {}: {}", reference.name, numeric::name_of(reference.dtype), invariant.name));
    report::CaseResult& item =
        cases.emplace_back(case_about(reference, fmt::format("invariant:{}", invariant.name)));
    item.verdict = Verdict::skipped;
    item.reason = invariant.inapplicable(problem);
    if (!item.reason.empty()) continue;
    try {
      Trials trials(problem, reference, request);
      invariant.run(problem, answer, subject, [&](analysis::Trial trial) { trials.take(std::move(trial)); });
      trials.conclude_into(item);
    } catch (const NoAnswer& none) {
      item.verdict = none.verdict;
      item.reason = none.reason;
    }
  }
  return cases;
}

}  // namespace kda_check::session
