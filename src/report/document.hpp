// What a command found: plain data, the same for every command. Whoever works fills it, writers print it, and
// one rule says what it means for the exit code.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "judge/limits.hpp"
#include "judge/verdict.hpp"
#include "report/profile.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::report {

using judge::Verdict;

// ---- verdicts: answers against references, tensor by tensor

/// One element, ready to print.
struct PointResult {
  std::vector<std::size_t> index;
  std::string place;  ///< "o[b=0 t=412 h=3 v=17]"
  double got = 0, expected = 0, magnitude = 0;
  std::string got_hex, expected_hex;
  double off_by = 0;  ///< scaled_ulp where there is a magnitude, else steps; NaN: not known

  bool has_distance() const { return std::isfinite(got) && std::isfinite(expected) && !std::isnan(off_by); }
};

struct TensorResult {
  std::string name;
  tensor::Shape shape;
  std::string dtype;
  Verdict verdict = Verdict::inconclusive;
  std::string reason;
  std::string decided_by;  ///< the metric that did, where one did
  std::vector<std::pair<std::string, double>>
      metrics;  ///< in the order of judge::metrics(), those that apply
  std::vector<judge::Limit> limits;
  std::optional<PointResult> worst;     ///< of the metric that decided, else of scaled_ulp or max_ulp
  std::vector<PointResult> points;      ///< the worst points
  std::string worst_window;             ///< "b=0 t=408..415", empty without tokens
  std::string worst_head;               ///< "h=3", empty without heads
  std::optional<ErrorProfile> profile;  ///< when a report draws it
  std::optional<double> floor;          ///< the least error that is seen, in units of its terms; 0: any bit
  std::optional<judge::TwinJudgement> twins;  ///< when it was held against emulated kernels
  bool reference_fails = false;               ///< not compared: the answer it would be held against fails
};

/// Who gave the answer that is judged.
enum class Role : unsigned char {
  variant,   ///< one of ours
  recorded,  ///< the file: nothing was run
  external,  ///< a program of the user's
};

struct CaseResult {
  std::size_t number = 0;  ///< in the whole plan, from 1; 0 without a plan
  std::string place;       ///< who asked: "command line", "@ci:24"
  std::string fixture;     ///< what the fixture calls itself
  std::string path;        ///< of the fixture or regime, as typed
  std::string variant;     ///< row of the variant list, or the name of the recorded answer or the program
  Role role = Role::variant;
  std::string dtype, device, pass, arithmetic, compute, against;
  bool compute_assumed = false;  ///< the file does not say (fixture/header.hpp)
  std::string oracle;            ///< behind its magnitudes and, against the oracle, its truth
  /// Of values in fp64: none is further from the exact one than this share of its magnitude.
  std::optional<double> oracle_error;
  std::string oracle_device;  ///< where that ran: "cpu", "NVIDIA H100 80GB HBM3"
  Verdict verdict = Verdict::inconclusive;
  std::string reason;
  std::string trials;  ///< of an invariant: what was tried, "1 63 64* 100"
  std::vector<TensorResult> tensors;
  std::string repro;  ///< a command line that does this case alone

  bool recorded() const { return role == Role::recorded; }
};

// ---- sections: whatever else was found, as tables

/// Nothing, a flag, a whole number, a figure, words, figures along something, several sentences, what twins
/// say.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<double>,
                           std::vector<std::string>, judge::TwinJudgement>;

/// How a column is shown.
enum class Show : unsigned char {
  words,
  code,      ///< to be typed or looked up as it is
  count,     ///< integers
  figure,    ///< three digits
  tenths,    ///< one decimal
  share,     ///< of one, in percent; a bar in the page
  along,     ///< a line of blocks in text, a drawing in the page
  sentence,  ///< not in the table: a line of its own below it
  data,      ///< in JSON alone
};

enum class Detail : unsigned char { quiet, normal, verbose };

struct Column {
  std::string key;      ///< in JSON; empty: it is not there
  std::string heading;  ///< in text and in the page; empty: the key
  Show show = Show::words;
  Detail from = Detail::normal;  ///< verbose: only with -v

  const std::string& title() const { return heading.empty() ? key : heading; }
};

using Field = std::pair<Column, Value>;

struct Table {
  std::string key;  ///< in JSON: an array of this name, an object for each row
  std::string title;
  std::vector<Column> columns;
  std::vector<std::vector<Value>> rows;
  Detail from = Detail::normal;  ///< verbose: only with -v
  bool by_column = false;        ///< in JSON an object of arrays, one for each column
  bool is_data = false;          ///< in JSON alone
};

/// One thing found: a row of its section's table, or a paragraph with tables of its own.
struct Entry {
  std::string title;          ///< of a paragraph
  std::vector<Value> values;  ///< one for each column of the section
  std::optional<Verdict> verdict;
  std::string reason;
  std::vector<Table> tables;
};

/// Columns of a tabular section that are drawn in the page, one over the other: a dot for each row, both axes
/// logarithmic.
struct Scatter {
  std::size_t name, along, over;
};

struct Section {
  std::string key;       ///< in JSON: entries are in the array of this name; of several sections one array
  std::string path;      ///< of the fixture or regime it is about; empty: none
  std::string title;     ///< one line; may be empty
  bool tabular = false;  ///< entries are rows of one table; else paragraphs
  std::vector<Column> columns;
  std::vector<Entry> entries;
  std::vector<std::string> notes;  ///< lines below
  std::optional<Scatter> scatter = {};

  /// One more entry of these values, whose other parts are for the caller to fill in.
  Entry& add(std::vector<Value> values);
  /// The same, with what the columns of all entries are.
  Entry& add_fields(std::vector<Field> fields);
};

// ---- the whole

struct ProblemResult {
  std::string name, path;
  std::string shape;               ///< "B=1 T=64 H=1 K=64 V=64"
  std::string options;             ///< "fp32 gate=none initial_state"
  std::vector<std::string> notes;  ///< what was not compared, and why
};

/// Something that could not be read, run or written, or that must have been there.
struct Failure {
  std::string message;
  int exit_code = 4;
  std::string path;  ///< of the fixture it is about; empty: none
};

/// Something that must be met somewhere in the whole: an answer that must be given. A part only says what it
/// knows of it.
struct Demand {
  std::string what;  ///< the same in all parts
  bool met = false;
  Failure failure;  ///< when it is met nowhere
};

/// What a run was to do, of all its parts.
struct PlanSummary {
  std::string digest;     ///< the same for all parts of one plan
  std::size_t cases = 0;  ///< of all parts
  std::size_t shard = 1, shards = 1;
  std::vector<Demand> demands;  ///< of a part: what is left to whoever has all of them
};

struct Document {
  std::string command;
  std::vector<std::string> argv;  ///< the words after kda-check
  bool judges = false;            ///< something must have passed for it to be a pass
  std::vector<ProblemResult> problems;
  std::vector<CaseResult> cases;
  std::vector<Section> sections;
  std::vector<Failure> failures;
  std::optional<PlanSummary> plan;
  std::string nothing_to_do;  ///< why there was nothing to do and that is no failure: an empty shard
  int signal = 0;             ///< that ended it before its end; 0: none did

  /// What was found of a part of the whole.
  void add(Document part);
  std::size_t count(Verdict verdict) const;
  bool is_interrupted() const { return signal != 0; }
  /// One of several: that nothing passed in it says nothing about the whole.
  bool is_part() const { return plan && plan->shards > 1; }
};

/// Those that are met nowhere, each once.
std::vector<Failure> unmet(const std::vector<Demand>& demands);

/// The one rule. 128 and the signal's number when it was interrupted; else that of the worst failure, if
/// there is one; else 1 when something failed or was inconclusive, when nothing was found, when verdicts were
/// asked for and nothing passed, or variants were to run and none did; else 0. What did not pass or run in a
/// part may have in another, so a part in which everything was skipped is 0: the whole is judged.
int exit_code(const Document& document);

/// What to say when no verdict and no failure says why the exit code is not 0; else empty.
std::string unexplained_failure(const Document& document);

}  // namespace kda_check::report
