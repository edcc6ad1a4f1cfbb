// Everything a run will do, decided before anything runs: plain data that can be listed, costed, cut into
// shards, run, and reproduced case by case.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/request.hpp"
#include "plan/shard.hpp"
#include "plan/source.hpp"
#include "report/document.hpp"

namespace kda_check::plan {

/// Who answers a problem, and how.
struct Answer {
  enum class Origin : unsigned char { variant, recorded, external };
  Origin origin = Origin::variant;
  std::string name;                             ///< of the variant, the group, the program
  const kda::Variant* variant = nullptr;        ///< of a computed answer
  kda::RunOptions options;                      ///< of a computed answer; threads and memory are the engine's
  numeric::DType dtype = numeric::DType::fp32;  ///< of o
  std::optional<ExternalProgram> program;       ///< of an answer that a program gives
  /// Of a computed answer that a recorded one is taken for, with a launch that nobody named: that one, whose
  /// launch it has.
  std::optional<std::size_t> launched_as;
  std::string why_not;  ///< it cannot answer this problem here

  bool is_computed() const { return origin == Origin::variant; }
};

/// What an answer is held against.
struct Reference {
  enum class Kind : unsigned char {
    none,  ///< nothing: what overflows, a capture
    oracle,
    answer,  ///< another answer of the problem
    replay,  ///< the same arithmetic on the CPU: no bit may differ
    law,     ///< what must hold whatever the inputs
  };
  Kind kind = Kind::oracle;
  std::size_t answer = 0;  ///< of the problem's answers
  std::string name;        ///< as in reports: "oracle", "fla_chunk", "replay", "invariant:causality"
};

/// The question a case puts to its answer.
enum class Question : unsigned char { verdict, stages, growth, overflow, power, capture, faults, identity };
std::string_view name_of(Question question);

/// The unit that is listed, counted, costed, run, judged, reported and reproduced.
struct Case {
  std::size_t number = 0;                ///< in the whole plan, from 1
  std::shared_ptr<const Request> asked;  ///< by whom, with the settings that are not of one answer
  Question question = Question::verdict;
  std::optional<std::size_t> answer;  ///< of the problem's answers; none: one that is missing
  std::string who;                    ///< the name of the answer, there or not
  Reference reference;
  kda::Pass pass = kda::Pass::forward;
  Names tensors;
  std::vector<std::vector<judge::LimitLayer>> limits;  ///< for each tensor: rules, the line, the command line
  Names notes;                                         ///< the reasons of the rules among them
  std::string skip;                                    ///< why nothing is done
  double seconds = 0;                                  ///< on one thread, about
  std::string repro;                                   ///< a command line that does this case alone, here

  std::size_t chunk_size(const kda::Outline& problem) const {
    return asked->chunk_size.value_or(problem.chunk_size());
  }
  /// Whether errors are held against those of twins, if the answer has any.
  bool has_twins() const { return asked->has_test() && reference.kind == Reference::Kind::oracle; }
};

/// What cases share: a source, as stored or with its inputs rounded. They are read, its truth is streamed,
/// its gates are looked at once for all of them.
struct Problem {
  std::shared_ptr<const Source> source;
  std::optional<numeric::DType> rounded_to;
  kda::Outline outline;
  std::vector<Answer> answers;
  std::vector<Case> cases;
  Names notes;         ///< what is not done, and why
  double seconds = 0;  ///< of its cases and what they share
  std::size_t bytes = 0;

  /// "inputs rounded to bf16"; empty for those as stored.
  std::string remark() const;
};

/// An answer, or a device, that must have answered.
struct Requirement {
  std::string name;
  std::string place = std::string(command_line);  ///< who requires it: a line of a suite, of its own cases

  bool operator==(const Requirement&) const = default;
};

struct Plan {
  std::string command;
  std::vector<Problem> problems;  ///< in the order they were asked for
  std::size_t cases = 0;          ///< of all shards
  std::string digest;             ///< of all cases of all shards: shards of one plan have the same
  Shard shard;
  std::vector<Requirement> required;
  Names inputs;           ///< paths that are read: targets, suites, tolerances; no report may go there
  bool narrowed = false;  ///< less is run or compared than the targets hold
  std::vector<report::Failure> failures;  ///< targets that cannot be read, rules that match nothing
  Names warnings;

  double seconds() const;
};

}  // namespace kda_check::plan
