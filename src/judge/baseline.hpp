// A baseline: what every metric of every comparison was when somebody last looked. What may get worse before
// it counts, and the file it is kept in: docs/ci.md.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "numeric/formats.hpp"

namespace kda_check::judge {

/// Which number this is, in the order rows are sorted by.
struct ReadingKey {
  std::string fixture;
  std::string variant;  ///< "chunk", "gpu-chunk@NVIDIA H100 80GB HBM3", "expected/fla_chunk"
  std::string dtype, against, tensor, metric;
  std::string arithmetic;  ///< of what was run here; empty for recorded answers
  auto operator<=>(const ReadingKey&) const = default;
  /// "fixture variant dtype against against: tensor metric", for people.
  std::string text() const;
};

struct Reading {
  double value = 0;  ///< smaller is better
  numeric::DType storage = numeric::DType::fp32;
  bool sound = false;  ///< the tensor passed: fit to be measured against later
};

using Readings = std::map<ReadingKey, Reading>;
using Baseline = std::map<ReadingKey, double>;

/// The largest value that is no worse than `before`.
double allowed(std::string_view metric, double before, numeric::DType storage);
/// True also for a value that is not a number.
bool is_worse(std::string_view metric, double before, double after, numeric::DType storage);
/// True for a metric that new baselines have rows of.
bool is_kept(std::string_view metric);
/// The value as the file has it, in six digits.
double as_written(double value);
std::string value_text(double value);

/// Throws Error{input} naming path:line: a header or a row of another shape, a metric that does not exist, a
/// value that is no number >= 0, a row twice.
Baseline parse_baseline(std::string_view text, const std::string& path);
/// A header and the rows in order; ends with a newline.
std::string baseline_text(const Baseline& baseline);

struct Worsened {
  ReadingKey key;
  double before, after, allowed;
};
/// Readings beyond the slack of their row.
std::vector<Worsened> worsened(const Baseline& baseline, const Readings& readings);

/// What a reader of the baseline should know besides.
struct BaselineFindings {
  std::vector<ReadingKey> loose;  ///< more than four times what was measured, and a step
  std::vector<ReadingKey> fresh;  ///< measured, kept, and without a row
  std::vector<ReadingKey> stale;  ///< a row, and no such comparison
  std::vector<ReadingKey> lost;   ///< those of stale whose comparison was made without their tensor
  std::size_t met = 0;            ///< rows that were measured
};
BaselineFindings findings(const Baseline& baseline, const Readings& readings);

enum class Ratchet : unsigned char { better, worse };

/// The baseline after a run. Rows go down to what was measured; up only with Ratchet::worse, and then only
/// those beyond the slack. Sound readings without a row get one. Stale rows of fixtures among `readings` go
/// when `drop_stale`.
Baseline updated(const Baseline& baseline, const Readings& readings, Ratchet ratchet, bool drop_stale);

}  // namespace kda_check::judge
