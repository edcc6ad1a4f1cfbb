#include "selftest/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "engine/power/power.hpp"
#include "explain/invariants/rearrangement.hpp"
#include "hypotheses/naming/faulty_output.hpp"
#include "kda/bounds/log_decays.hpp"
#include "kda/regimes/regimes.hpp"
#include "plan/selection.hpp"

namespace kda_check::selftest {

namespace {

using kda::Answer;
using kda::Problem;
using kda::RunOptions;
using numeric::DType;
using tensor::Tensor;

constexpr DType dtypes[] = {DType::fp64, DType::fp32, DType::bf16, DType::fp16};

bool is_narrow(DType dtype) { return numeric::format_of(dtype).bytes == 2; }

/// In 16 bits the chunk form, whose products are of 16 bits; the recurrence computes in fp32 whatever it
/// stores.
std::string_view form_in(DType dtype) { return is_narrow(dtype) ? "chunk" : "recurrent"; }

Answer healthy(const Problem& problem, const RunOptions& options) {
  return kda::variant_named(form_in(options.dtype)).run(problem, options);
}

/// A name that stays: variants have views.
std::string_view kept(std::string name) {
  static std::set<std::string> names;
  return *names.insert(std::move(name)).first;
}

using Run = decltype(kda::Variant::run);

Subject mutant(std::string_view name, std::string_view what, std::string_view like, DType dtype, Run run) {
  Subject subject{kda::variant_named(like), name, like, dtype};
  subject.variant.name = name, subject.variant.summary = what, subject.variant.run = std::move(run);
  subject.healthy = false, subject.mutant = true, subject.under_laws = true;
  return subject;
}

// ---- those that are wrong in bits, or in one thing that no share can be had of

/// The recurrence of hypotheses/naming/interpretation.hpp in fp64.
Answer written_again(const Problem& problem, const RunOptions& options) {
  const Answer exact = hypotheses::answer_of(problem, hypotheses::Interpretation(problem));
  return {exact.o.converted_to(options.dtype),
          exact.final_state.converted_to(kda::state_dtype(options.dtype))};
}

Answer biased_bf16(const Problem& problem, const RunOptions& options) {
  RunOptions fine = options;
  fine.dtype = DType::fp32;
  const Answer exact = kda::run_recurrent(problem, fine);
  Answer answer{Tensor("o", options.dtype, exact.o.shape()), exact.final_state.clone()};
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, exact.o.value(i) * (1 + 0x1p-8));
  return answer;
}

Answer nan_as_zero(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  answer.o.set(answer.o.size() / 2, 0);
  return answer;
}

Answer silent_tf32(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.storage = kda::Storage::fla;
  return kda::run_chunk(problem, coarse);
}

/// Stores in fp16.
Answer silent_bf16(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.casts = kda::fla_cast_points(kda::Rounding::bf16, problem.beta_is_16_bit());
  coarse.arithmetic.storage = kda::Storage::named;
  return kda::run_chunk(problem, coarse);
}

Answer scale_off_by_an_ulp(const Problem& problem, const RunOptions& options) {
  Problem changed = kda::clone(problem);
  changed.options.scale = problem.scale() * (1 + 0x1p-23);
  return healthy(changed, options);
}

Answer wrong_head(const Problem& problem, const RunOptions& options) {
  const kda::Dimensions& d = problem.dimensions();
  Answer answer = healthy(problem, options);
  for (std::size_t row = 0; row < d.B * d.T; ++row)
    for (std::size_t v = 0; v < d.V; ++v) {
      const std::size_t first = row * d.HV * d.V + v;
      answer.o.set(first, answer.o.value(first + (d.HV - 1) * d.V));
    }
  return answer;
}

Answer looks_ahead(const Problem& problem, const RunOptions& options) {
  RunOptions ahead = options;
  ahead.arithmetic.decay = kda::DecayForm::anchor_mid;
  return kda::run_chunk(problem, ahead);
}

void flip_last_bit(Tensor& tensor, std::size_t element) { tensor.at(element)[0] ^= std::byte{1}; }

Answer second_sequence(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  const std::size_t N = problem.dimensions().N;
  if (N > 1) flip_last_bit(answer.final_state, answer.final_state.size() / N);
  return answer;
}

Answer odd_head(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  flip_last_bit(answer.o, 0);
  return answer;
}

Answer mask_by_zero(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  const double masked = 0 * problem.v.value(problem.v.size() - 1);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) + masked);
  return answer;
}

struct Other {
  std::string_view name, what, like;  ///< like: empty for that of the precision
  std::vector<DType> dtypes;
  Answer (*run)(const Problem&, const RunOptions&);
  bool healthy = false;
};

const std::vector<Other>& others() {
  const std::vector<DType> all{DType::fp32, DType::bf16, DType::fp16};
  static const std::vector<Other> rows{
      {"written_again", "the recurrence in other code", {}, {DType::fp64}, written_again, true},
      {"scale_off_by_an_ulp",
       "a scale wrong by one step of fp32, in fp64",
       {},
       {DType::fp64},
       scale_off_by_an_ulp},
      {"biased_bf16", "o times 1 + 2^-8, in bf16", "recurrent", {DType::bf16}, biased_bf16},
      {"silent_tf32", "products in tf32 that say fp32", "chunk", {DType::fp32}, silent_tf32},
      {"silent_bf16", "products in bf16 that say fp16", {}, {DType::fp16}, silent_bf16},
      {"nan_as_zero", "one element is zero", {}, all, nan_as_zero},
      {"wrong_head", "the first head gets the output of the last", {}, all, wrong_head},
      {"looks_ahead", "anchors in later rows, undeclared", "chunk", all, looks_ahead},
      {"second_sequence", "one bit of the second sequence of a batch", {}, all, second_sequence},
      {"odd_head", "one bit of the first head", {}, all, odd_head},
      {"mask_by_zero", "what lies outside is multiplied by zero", {}, all, mask_by_zero},
  };
  return rows;
}

// ---- the known faults

Answer with_fault(const hypotheses::Fault& fault, const Problem& problem, const RunOptions& options) {
  if (!fault.applies(problem)) return healthy(problem, options);
  return hypotheses::misreading_answer(problem, hypotheses::misread(problem, fault, {}, options.chunk_size),
                                       kda::variant_named(form_in(options.dtype)), options);
}

std::vector<Subject> forward_mutants() {
  std::vector<Subject> all;
  for (const DType dtype : dtypes) {
    for (const Other& row : others()) {
      if (std::ranges::find(row.dtypes, dtype) == row.dtypes.end()) continue;
      all.push_back(mutant(row.name, row.what, row.like.empty() ? form_in(dtype) : row.like, dtype, row.run));
      all.back().healthy = row.healthy;
    }
    if (dtype == DType::fp64 || dtype == DType::fp16) continue;  // fp16 is as bf16
    for (const hypotheses::Fault& fault : hypotheses::faults()) {
      if (fault.is_variation || (is_narrow(dtype) && hypotheses::is_rounding(fault.name))) continue;
      all.push_back(mutant(fault.name, fault.meaning, form_in(dtype), dtype,
                           [&fault](const Problem& problem, const RunOptions& options) {
                             return with_fault(fault, problem, options);
                           }));
      // What is added is of fp64, and no law of bits holds for that.
      all.back().size = "in full", all.back().under_laws = false;
      all.back().shows = Subject::Shows::in_suite;
    }
    if (dtype != DType::fp32) continue;
    for (const hypotheses::PoolFault& fault : hypotheses::pool_faults()) {
      all.push_back(mutant(fault.name, fault.what, form_in(dtype), dtype,
                           [&fault](const Problem& problem, const RunOptions& options) {
                             return hypotheses::with_pool_fault(fault, problem, options);
                           }));
      // Where there is one request some have nothing to be wrong with.
      all.back().shows = Subject::Shows::in_suite;
    }
  }
  return all;
}

// ---- gradients

/// Masks after the exponentials: what lies above the diagonal overflows, and infinity times zero is NaN.
kda::GradientTensors masked_late(const Problem& problem, const RunOptions& options) {
  RunOptions late = options;
  late.arithmetic.decay = kda::DecayForm::pair_late;
  return kda::run_chunk_backward(problem, late);
}

/// Behind a healthy forward pass.
Subject backward_mutant(std::string_view name, std::string_view what, DType dtype,
                        decltype(kda::Variant::run_backward) run) {
  Subject subject = mutant(name, what, "chunk", dtype, kda::variant_named("chunk").run);
  subject.variant.run_backward = std::move(run);
  subject.pass = kda::Pass::backward, subject.under_laws = false;
  return subject;
}

std::vector<Subject> backward_mutants() {
  const auto with = [](const hypotheses::GradientReading& reading) {
    return [reading](const Problem& problem, const RunOptions& options) {
      return hypotheses::BackwardReference(problem, options.chunk_size).gradients(reading, options.dtype);
    };
  };
  std::vector<Subject> all{
      backward_mutant("gradients_again", "the chunk form backwards in other code", DType::fp64, with({}))};
  all.front().healthy = true;
  const Problem shown_on = kda::parse_regime(gradient_target).build();
  // Of terms those that are lost, of orders none: they go the same way in all else.
  for (const hypotheses::GradientFault& fault : hypotheses::gradient_faults())
    if (fault.applies(shown_on) && fault.order.of == nullptr &&
        (fault.term == hypotheses::Term::none || fault.of_term == hypotheses::TermFault::lost))
      all.push_back(backward_mutant(fault.name, fault.meaning, DType::fp32, with(fault.reading())));
  all.push_back(
      backward_mutant("masked_late", "exponentials masked after they overflowed", DType::fp32, masked_late));
  return all;
}

/// A problem that a healthy kernel has solved, and what is seen of faults in it. Stays where it is.
struct Site {
  Site(std::string_view regime, DType dtype, const char* tensor,
       const std::function<bool(std::string_view)>& is_wanted, int threads, std::size_t memory_budget)
      : problem(kda::parse_regime(fmt::format("{},dtype={}", regime, numeric::name_of(dtype))).build()),
        kernel(engine::healthy_kernel(problem, kda::variant_named(form_in(dtype)),
                                      options_on(problem, dtype, threads))),
        answers(problem, tensor, kernel, memory_budget),
        faults(wanted(answers.faults(1), is_wanted)),
        power(engine::power_of(problem, answers, faults,
                               kda::gate_statistics(problem, kernel.options.chunk_size, threads),
                               memory_budget)) {}

  static std::vector<engine::Fault> wanted(std::vector<engine::Fault> faults,
                                           const std::function<bool(std::string_view)>& is_wanted) {
    std::erase_if(faults, [&](const engine::Fault& fault) { return !is_wanted(fault.row->key); });
    return faults;
  }

  static RunOptions options_on(const Problem& problem, DType dtype, int threads) {
    const kda::Outline outline(problem);
    RunOptions options =
        plan::run_options(kda::variant_named(form_in(dtype)), outline, dtype, {}, outline.chunk_size());
    options.threads = threads;
    return options;
  }

  const Problem problem;
  const engine::HealthyKernel kernel;
  const engine::PowerAnswers answers;
  const std::vector<engine::Fault> faults;
  const engine::Power power;
};

}  // namespace

std::string_view Subject::finding(bool with_suite) const {
  const bool by_suite = with_suite && is_of_suite(), is_seen = !caught_by.empty();
  if (healthy) return !is_seen && passed && (!by_suite || in_suite.empty()) ? "passes" : "false alarm";
  if (shows == Shows::nowhere) return is_seen ? "seen below the floor" : "below the floor";
  if (by_suite) return !in_suite.empty() && (is_seen || shows == Shows::in_suite) ? "caught" : "missed";
  return is_seen ? "caught" : shows == Shows::in_suite ? "not seen" : "missed";
}

std::vector<Subject> mutants(kda::Pass pass) {
  return pass == kda::Pass::forward ? forward_mutants() : backward_mutants();
}

std::vector<Subject> mutants_at_floors(std::string_view regime,
                                       const std::function<bool(std::string_view key)>& is_wanted,
                                       int threads, std::size_t memory_budget) {
  // What nearly overflows as a whole, and what is next to nothing, is no fault to have a share of.
  constexpr double least_floor = 1e-8, most_floor = 1e4;
  std::vector<Subject> all;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (const char* const tensor : {"o", "final_state"}) {
      const auto site =
          std::make_shared<const Site>(regime, dtype, tensor, is_wanted, threads, memory_budget);
      for (std::size_t i = 0; i < site->power.faults.size(); ++i) {
        const engine::PlacePower& place = site->power.faults[i];
        const double floor = place.by_both.value_or(place.by_limits.value_or(HUGE_VAL));
        if (floor < least_floor || floor > most_floor) continue;
        for (const double factor : {2.0, 0.5}) {
          const double share = factor * floor;
          const bool of_o = tensor == std::string_view("o");
          Subject subject = mutant(
              place.row->key, place.row->says, form_in(dtype), dtype,
              [site, i, share, of_o](const Problem& problem, const RunOptions& options) {
                Answer answer = healthy(problem, options);
                (of_o ? answer.o : answer.final_state) = site->answers.tensor({&site->faults[i], share});
                return answer;
              });
          subject.variant.name = kept(fmt::format("{}-{}-{}", place.row->key, tensor, factor));
          subject.size = fmt::format("{:.3g} % of {}, {}", 100 * share, tensor, place.place);
          subject.shows = factor > 1 ? Subject::Shows::on_problem : Subject::Shows::nowhere;
          subject.under_laws = false;
          all.push_back(std::move(subject));
        }
      }
    }
  return all;
}

}  // namespace kda_check::selftest
