// Builds a plan, request by request: targets become problems, selections become answers and cases.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "judge/tolerances.hpp"
#include "plan/plan.hpp"
#include "plan/selection.hpp"

namespace kda_check::plan {

/// One target under one request, with the problems that its dtypes make of it: one as it is stored, for those
/// that hold its inputs exactly, and one for each dtype that they are rounded to.
struct Asked {
  std::shared_ptr<const Request> request;
  std::shared_ptr<const Source> source;

  struct Part {
    std::size_t problem;                 ///< of the plan
    std::vector<numeric::DType> dtypes;  ///< that answers are computed in
    bool as_stored;
  };
  std::vector<Part> parts;
};

class Builder {
 public:
  Builder(Plan& plan, const fixture::ReadLimits& limits) : plan_(plan), limits_(limits) {}

  /// All cases of one request. A target that cannot be read becomes a failure of the plan. Throws
  /// Error{usage}.
  void add(const std::shared_ptr<const Request>& request, const std::vector<Target>& targets);
  /// To be called when all requests are in: groups that no target has, rules for nothing, costs and repro
  /// lines. Throws Error{usage}.
  void finish();

  // What the tasks build cases with.

  Problem& problem(const Asked::Part& part) { return plan_.problems[part.problem]; }
  /// Every way in which the selected variants answer, those that cannot with the reason.
  std::vector<std::size_t> computed_answers(const Asked& asked, const Asked::Part& part);
  std::vector<std::size_t> recorded_answers(const Asked& asked, const Asked::Part& part);
  std::optional<std::size_t> external_answer(const Asked& asked, const Asked::Part& part);
  /// A computed answer by the words of `--between`: "chunk", "chunk+fla".
  std::size_t computed_answer(const Asked::Part& part, const kda::Variant& variant,
                              const kda::RunOptions& options);
  /// One that a recorded answer is taken for.
  std::size_t reproduction(const Asked::Part& part, std::size_t recorded, const kda::Variant& variant,
                           const kda::RunOptions& options);
  Case& add_case(const Asked& asked, const Asked::Part& part, Case item);
  /// With the limits of each tensor.
  Case& add_verdict(const Asked& asked, const Asked::Part& part, Case item);
  /// With what is asked of the twins of each stage.
  Case& add_stages(const Asked& asked, const Asked::Part& part, Case item);
  /// The target lacks what is asked of it: a failure of the plan, and the others go on.
  void fail(const Asked& asked, const Error& error);
  /// An answer that is there is not judged: a failure of the plan, too.
  void fail_to_judge(const Asked& asked, const std::string& what, const std::string& hint);
  void add_note(const Asked::Part& part, std::string note);
  void warn(const Asked& asked, const std::string& text);

 private:
  /// `only`: on that metric; empty: on any.
  std::vector<judge::LimitLayer> limits_of(const Asked& asked, const Case& item, std::string_view dtype,
                                           std::string_view tensor, numeric::DType storage, Names& notes,
                                           std::string_view only = {});
  std::shared_ptr<const Source> looked_at(const Target& target);
  std::size_t problem_of(const std::shared_ptr<const Source>& source, std::optional<numeric::DType> rounded);
  std::size_t keep(const Asked::Part& part, Answer answer);
  /// Problems of one source follow one another, as reports show them.
  void gather_by_source();

  Plan& plan_;
  const fixture::ReadLimits& limits_;
  std::map<std::string, std::shared_ptr<const Source>> sources_;  ///< by path
  std::map<std::string, std::shared_ptr<judge::Tolerances>> tolerances_;
  struct NamedGroup {
    std::string name, place;
    bool found = false;
  };
  std::vector<NamedGroup> named_groups_;  ///< that some target must have
};

// One file each: cases_<task>.cpp.
void add_verdicts(Builder& builder, const Asked& asked);
void add_powers(Builder& builder, const Asked& asked);
void add_captures(Builder& builder, const Asked& asked);
void add_explanations(Builder& builder, const Asked& asked);

}  // namespace kda_check::plan
