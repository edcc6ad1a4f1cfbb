// What is asked for, as plain data: by the command line, or by one line of a suite.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fixture/fixture.hpp"
#include "judge/verdict.hpp"
#include "kda/problem/passes.hpp"
#include "kda/truth/oracle.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::plan {

using Names = std::vector<std::string>;

/// Where a request, or a limit, comes from, unless it is a line of a suite: "@ci:24".
inline constexpr std::string_view command_line = "command line";

/// What is wanted of every answer.
enum class Task : unsigned char {
  judge,    ///< a verdict: `run`
  power,    ///< what a gate would see
  capture,  ///< itself, in a file
  explain,  ///< why it is what it is
};

/// Which answers, references and tensors. A list that is not there selects what is usual.
struct Selection {
  std::optional<Names> variants;  ///< empty: none is run
  std::optional<Names> recorded;  ///< groups of the file; empty: none is judged
  std::optional<Names> dtypes;    ///< names, or "fixture"
  std::optional<Names> against;   ///< "oracle", "replay", "all", groups of the file
  std::optional<Names> tensors;
  std::optional<kda::Pass> pass;  ///< one alone

  bool is_empty() const { return !variants && !recorded && !dtypes && !against && !tensors && !pass; }
};

/// Somebody's kernel behind a command line (docs/file-format.md).
struct ExternalProgram {
  std::string command;            ///< for /bin/sh -c, {in} and {out} standing for two fixtures
  std::string name = "external";  ///< what reports call it
  int seconds = 600;              ///< after which it is ended

  bool operator==(const ExternalProgram&) const = default;
};

/// What a pairing of an answer with a reference is judged by.
struct Judging {
  std::vector<judge::LimitLayer> limits;  ///< of the line, then of the command line
  std::optional<double> atol, rtol;
  std::string allclose_source = std::string(command_line);  ///< of the two
  std::optional<std::size_t> worst;                         ///< points to list
  std::optional<double> floor;  ///< least error that has to be seen, in units of its terms; 0.05 usually
  std::optional<judge::Verdict> undecided;  ///< pass or fail: what INCONCLUSIVE is to be
  bool as_declared = false;                 ///< an output that computes otherwise than is said fails

  /// The usual number of points.
  std::size_t worst_or_usual() const { return worst.value_or(5); }
};

/// What the verdict on every answer of a line is to be, so that the line passes.
struct Expectation {
  judge::Verdict verdict = judge::Verdict::fail;
  std::string cause;     ///< a part of its reason; may be empty
  std::string incident;  ///< where it happened: "sglang#30860, sglang#31904"; may be empty
};

enum class OracleChoice : unsigned char { double_double, fp64, none };
inline constexpr std::string_view oracle_words[] = {"dd", "fp64", "none"};  ///< of --oracle
constexpr std::string_view word_of(OracleChoice choice) {
  return oracle_words[static_cast<std::size_t>(choice)];
}
/// In reports.
constexpr std::string_view name_of(OracleChoice choice) {
  return choice == OracleChoice::double_double ? "double-double" : word_of(choice);
}
/// nullopt for none.
std::optional<kda::OraclePrecision> precision_of(OracleChoice choice);

/// Where the oracle runs, and forwards the twins: automatic is a GPU, where there is one and it pays.
enum class OracleDeviceChoice : unsigned char { automatic, cpu, gpu };
inline constexpr std::string_view oracle_devices[] = {"auto", "cpu", "gpu"};  ///< of --oracle-device
constexpr std::string_view name_of(OracleDeviceChoice choice) {
  return oracle_devices[static_cast<std::size_t>(choice)];
}

struct Request {
  Task task = Task::judge;
  std::string command = "run";  ///< as typed
  std::string place = std::string(command_line);
  Names targets;  ///< files, folders, regimes, @suites
  Selection selection;
  Selection narrowing;  ///< of a line: what the command line selects among what it names
  Names arithmetic;     ///< key=value and presets
  std::optional<std::size_t> chunk_size;
  std::optional<OracleChoice> oracle;
  std::optional<OracleDeviceChoice> oracle_device;
  Judging judging;
  std::optional<Expectation> expectation;  ///< judge
  std::string tolerance;                   ///< path; empty: none
  Names required;                          ///< answers that must be among those that answered
  std::optional<ExternalProgram> external;
  bool stages = false;                ///< judge: the intermediates of the chunk form too
  std::optional<bool> test;           ///< judge: compare errors with those of emulated kernels; usually so
  std::optional<Names> invariants;    ///< judge: laws to try; empty: all
  std::optional<std::size_t> window;  ///< explain: tokens to a window of growth
  Names classes;                      ///< power: precisions of products; empty: that of the problem
  Names only = {"bits", "shares"};    ///< explain: sections
  Names between;                      ///< explain: two answers
  bool advise = false;                ///< explain: which settings to make finer first
  bool capture_stages = true;         ///< capture: of the chunk forms, too
  bool replace = false;               ///< capture: groups that exist
  std::string output;                 ///< capture: the file
  std::span<const kda::Variant> registry = kda::variants();  ///< where names of variants are looked up

  /// Whether `explain` is asked for a section.
  bool says(std::string_view section) const { return std::ranges::find(only, section) != only.end(); }
  bool has_test() const { return test.value_or(true); }
  OracleChoice oracle_or_usual() const { return oracle.value_or(OracleChoice::double_double); }
  /// Whether nothing was asked for and the oracle of such a problem begins in fp64, and goes on if that is
  /// exact enough.
  bool begins_in_fp64(const kda::Dimensions& dimensions, kda::Pass pass) const;
  /// The device that the oracle of such a problem runs on.
  kda::OracleDevice oracle_device_for(const kda::Dimensions& dimensions, kda::Pass pass) const;
};

/// Why the oracle of a pass cannot run on the GPU; empty when it can.
std::string why_no_gpu_oracle(const kda::Dimensions& dimensions, kda::Pass pass);

/// The request of a line under a command line: what selects narrows, single values and flags are replaced,
/// limits metric by metric.
Request under(Request line, const Request& command);

}  // namespace kda_check::plan
