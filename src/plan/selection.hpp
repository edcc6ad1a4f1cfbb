// What a request selects: the words of a line, narrowed by those of the command line.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "explain/invariants/invariants.hpp"
#include "plan/plan.hpp"

namespace kda_check::plan {

bool has(const Names& names, std::string_view name);

/// Throws Error{usage} for names that exist nowhere and words that contradict each other. `own`: the command
/// line, or a line of a suite, alone.
void check_words(const Request& own);

/// Those named, in the order they are named in; all that can run here where none are named.
std::vector<const kda::Variant*> variants_of(const Request& request);

/// In the order they are named in, each once; that of the problem where none are named.
std::vector<numeric::DType> dtypes_of(const Request& request, const kda::Outline& problem);

/// A dtype that holds every value of the other.
bool holds_exactly(numeric::DType wide, numeric::DType narrow);

struct PassTensors {
  kda::Pass pass;
  Names tensors;
};
/// The tensors of each pass, in the order of reports; a pass without any is left out. Of both passes where
/// verdicts are asked for, else of the forward pass unless others are named. `known`: what the task can be
/// about.
std::vector<PassTensors> tensors_of(const Request& request, const std::vector<PassTensors>& known);
/// What a task can be about.
std::vector<PassTensors> known_tensors(Task task);

/// "--tensor o,dq --backward": the words that leave out others.
std::string words_for_tensors(const Selection& selection);

bool wants_recorded(const Request& request, std::string_view group);
bool wants_oracle(const Request& request);
bool wants_replay(const Request& request);
bool wants_reference(const Request& request, std::string_view group);
bool wants_law(const Request& request, const explain::Invariant& law);

/// Groups that the request names and a source does not have, as answers or as references.
Names missing_groups(const Request& request, const Source& source);
/// All groups that a request names.
Names named_groups(const Request& request);

/// Every way in which the selected variants answer a problem in `dtypes`, those that cannot with the reason:
/// the one loop over dtypes, variants and what they can do.
std::vector<Answer> computed_answers(const Request& request, const kda::Outline& problem,
                                     const std::vector<numeric::DType>& dtypes);
Answer computed_answer(const kda::Variant& variant, const kda::Outline& problem,
                       const kda::RunOptions& options);

/// The default arithmetic of a variant, changed by the assignments whose axes it has.
kda::RunOptions run_options(const kda::Variant& variant, const kda::Outline& problem, numeric::DType dtype,
                            const Names& arithmetic, std::size_t chunk_size);

/// Why a variant cannot run this way here; empty when it can.
std::string why_not(const kda::Variant& variant, const kda::Outline& problem, const kda::RunOptions& options);
/// "no backward pass"; empty for a variant that has the pass in this arithmetic.
std::string why_no_pass(kda::Pass pass, const kda::Variant& variant, const kda::Arithmetic& arithmetic = {},
                        const kda::Dimensions& dimensions = {});
/// Why a computed answer cannot have the bits of the recorded one it is held against: that is stored less
/// precisely. Empty where it can.
std::string why_no_bits(const Case& item, const Problem& problem);
/// Why what a chunk computes this way is not its stages; empty where it is.
std::string_view why_no_stages(const kda::Arithmetic& arithmetic);

}  // namespace kda_check::plan
