// What a case takes, before it is run: for the listing, for what is left on a terminal, and so that parts of
// a plan take about the same time. Figures of one processor (docs/performance.md); their ratios carry over,
// and a terminal corrects them by what it sees.
#pragma once

#include <cstddef>
#include <string>

#include "plan/plan.hpp"

namespace kda_check::plan {

/// Seconds on one thread, what its problem shares left out.
double seconds_of(const Case& item, const Problem& problem);
/// Seconds on one thread of its cases, its answers, its truth and reading it, each once.
double seconds_of(const Problem& problem);

/// Seconds on one thread of an answer to one pass, of the truth as `asked` wants it, and of the twins of one
/// kind of answer.
double run_seconds(const Answer& answer, const kda::Outline& problem, kda::Pass pass);
double oracle_seconds(const kda::Outline& problem, kda::Pass pass, const Request& asked);
double twin_seconds(const kda::Outline& problem, kda::Pass pass);
/// Steps that are counted (Work) of a run, or of the oracle: columns of v at all tokens; and of what takes
/// that long, whatever it is.
double steps_of_run(const kda::Outline& problem);
double steps_in(double seconds, const kda::Outline& problem);

/// Bytes that an answer to one pass takes.
std::size_t answer_bytes(const kda::Outline& problem, kda::Pass pass, numeric::DType dtype);
/// Bytes that twins take beside the answers to one pass: what is kept until the last head was measured (of
/// gradients the truth, too), and of each query head at once the largest family's answers (of two families
/// where a GPU computes them), its inputs and its truth.
struct TwinBytes {
  std::size_t kept = 0, per_head = 0;
};
TwinBytes twin_bytes(const Problem& problem, kda::Pass pass, bool on_gpu);
/// Bytes that a problem takes while its cases run, all its answers held at once: inputs, answers, and what
/// their comparison keeps.
std::size_t bytes_of(const Problem& problem);

/// The same for two plans of the same cases, wherever they are made.
std::string digest_of(const Plan& plan);

}  // namespace kda_check::plan
