#include "engine/explain/place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/names.hpp"
#include "judge/measures/regions.hpp"
#include "kda/bounds/log_decays.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/problem/heads.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::engine {

namespace {

using Numbers = std::set<std::size_t>;

/// "3", "32..47", "0, 2 and 5..7"; empty where there are many.
std::string ranges_text(const Numbers& numbers) {
  constexpr std::size_t most_ranges = 3;
  std::vector<std::string> parts;
  for (auto begin = numbers.begin(); begin != numbers.end();) {
    auto end = begin;
    std::size_t last = *begin;
    while (++end != numbers.end() && *end == last + 1) last = *end;
    parts.push_back(last == *begin ? std::to_string(last) : fmt::format("{}..{}", *begin, last));
    begin = end;
  }
  if (parts.size() > most_ranges) return {};
  if (parts.size() < 2) return join(parts);
  const std::string last = parts.back();
  parts.pop_back();
  return fmt::format("{} and {}", join(parts), last);
}

/// "heads 1 and 3 alone", "above all" where others are wrong by less; empty where all are wrong, or too many
/// to be told.
std::string part_text(std::string_view what, const Numbers& wrong, std::size_t count, bool others_are_right) {
  if (wrong.empty() || wrong.size() >= count) return {};
  const std::string ranges = ranges_text(wrong);
  return ranges.empty() ? ranges
                        : fmt::format("{}{} {} {}", what, wrong.size() > 1 ? "s" : "", ranges,
                                      others_are_right ? "alone" : "above all");
}

/// What a tensor is compared with, and how both are read.
struct Sides {
  const tensor::Tensor &got, &truth;
  judge::RowLayout of_got, of_truth;
  std::vector<std::size_t> heads;  ///< of the tensor, those of the truth

  double got_at(std::size_t row, std::size_t head, std::size_t column) const {
    return got.value(of_got.element(row, heads[head], column));
  }
  double truth_at(std::size_t row, std::size_t head, std::size_t column) const {
    return truth.value(of_truth.element(row, head, column));
  }
};

/// Squares of the error, of the truth, and their product.
struct Sums {
  double error = 0, truth = 0, along = 0;

  void add(double got, double expected) {
    if (!std::isfinite(expected)) return;
    const double difference = got - expected;
    error += std::isfinite(difference) ? difference * difference : HUGE_VAL;
    truth += expected * expected;
    if (std::isfinite(got)) along += got * expected;
  }
};

/// Of each number along an axis.
using Along = std::map<std::size_t, Sums>;

struct WrongRow {
  std::size_t row, head;
};

class Whereabouts {
 public:
  Whereabouts(const Sides& sides, double limit) : sides_(sides), layout_(sides.of_truth), limit_(limit) {
    for (std::size_t n = 0; n + 1 < layout_.starts.size(); ++n)
      for (std::size_t head = 0; head < layout_.heads; ++head) look_at(n, layout_.numbers[n], head);
    if (rows_.empty()) return;
    look_at_columns();
    for (std::size_t n = 0; n + 1 < layout_.starts.size(); ++n)
      for (std::size_t i = 0; i < *rows_.begin() && layout_.starts[n] + i < layout_.starts[n + 1]; ++i)
        for (std::size_t head = 0; head < layout_.heads; ++head)
          for (std::size_t c = 0; c < layout_.width; ++c)
            before_.add(sides_.got_at(layout_.starts[n] + i, head, c),
                        sides_.truth_at(layout_.starts[n] + i, head, c));
  }

  bool is_found() const { return !rows_.empty(); }
  const Numbers& sequences() const { return sequences_; }
  const Numbers& heads() const { return heads_; }
  const Numbers& rows() const { return rows_; }  ///< in their sequences
  /// All of them where no columns are right.
  const Numbers& columns() const { return columns_; }
  bool is_zero() const { return is_zero_; }
  bool is_nan() const { return is_nan_; }
  const std::vector<WrongRow>& wrong_rows() const { return wrong_rows_; }
  /// Whether what has another number along an axis is right.
  bool are_others_right(const Along& axis, const Numbers& wrong) const {
    constexpr double about = 2;
    Sums others;
    for (const auto& [number, sums] : axis)
      if (!wrong.contains(number)) others.error += sums.error, others.truth += sums.truth;
    return others.error <= about * about * limit_ * limit_ * others.truth;
  }
  std::string sequences_text(std::string_view what, const Numbers& wrong, std::size_t count) const {
    return part_text(what, wrong, count, are_others_right(of_sequences_, sequences_));
  }
  std::string heads_text(std::size_t count) const {
    return part_text("head", heads_, count, are_others_right(of_heads_, heads_));
  }
  std::string rows_text(std::string_view what, std::size_t count) const {
    return part_text(what, rows_, count, are_others_right(of_rows_, rows_));
  }
  std::string columns_text() const {
    return part_text("column", columns_, layout_.width, are_others_right(of_columns_, columns_));
  }
  /// "token 127 in columns 32..47, token 191 in columns 0..15 alone", of few rows that err in a tile each,
  /// not all in the same; else empty.
  std::string tiles_text() const {
    if (tiles_.empty() || sequences_.size() > 1 ||
        std::ranges::count(tiles_, tiles_.front()) == std::ssize(tiles_))
      return {};
    constexpr std::size_t most_said = 3;
    std::vector<std::string> says;
    for (std::size_t i = 0; i < std::min(most_said, wrong_rows_.size()); ++i) {
      const WrongRow& at = wrong_rows_[i];
      const auto start = std::ranges::upper_bound(layout_.starts, at.row) - 1;
      const std::string head = heads_.size() > 1 ? fmt::format(" of head {}", sides_.heads[at.head]) : "";
      says.push_back(fmt::format("token {}{} in columns {}..{}", at.row - *start, head, tiles_[i].begin,
                                 tiles_[i].end - 1));
    }
    if (wrong_rows_.size() > most_said) says.emplace_back("...");
    return fmt::format("{} {}: a tile each, not all the same, as of a race", join(says),
                       are_others_right(of_rows_, rows_) ? "alone" : "above all");
  }
  /// Whether the rows before the first wrong one err no more than a right output may.
  bool is_right_before() const { return before_.error <= limit_ * limit_ * before_.truth; }
  /// What is there has nothing to do with what should be.
  bool is_unrelated() const {
    constexpr double alike = 0.3;
    const double got = wrong_.error + 2 * wrong_.along - wrong_.truth;  // its squares
    return std::isfinite(wrong_.error) && std::fabs(wrong_.along) < alike * std::sqrt(got * wrong_.truth);
  }

 private:
  static constexpr double clearly = 4;

  void look_at(std::size_t n, std::size_t sequence, std::size_t head) {
    const std::size_t begin = layout_.starts[n], end = layout_.starts[n + 1];
    std::vector<Sums> sums(end - begin);
    double mean = 0, largest = 0;
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t c = 0; c < layout_.width; ++c)
        sums[row - begin].add(sides_.got_at(row, head, c), sides_.truth_at(row, head, c));
      mean += sums[row - begin].truth / static_cast<double>(end - begin);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (Sums* const along : {&of_sequences_[sequence], &of_heads_[sides_.heads[head]], &of_rows_[i]})
        along->error += sums[i].error, along->truth += sums[i].truth;
      largest = std::max(largest, sums[i].truth);
      // A row that cancels is judged by the size of those before it; of other tensors than o no row is first.
      const double size = is_forward() ? largest : std::max(mean, sums[i].truth);
      if (!(std::sqrt(sums[i].error) > clearly * limit_ * std::sqrt(size))) continue;
      rows_.insert(i), sequences_.insert(sequence), heads_.insert(sides_.heads[head]);
      wrong_rows_.push_back({begin + i, head});
    }
  }

  struct Tile {
    std::size_t begin = 0, end = 0;
    bool operator==(const Tile&) const = default;
  };
  /// Columns as a kernel divides them, in which alone a row errs; empty where it errs otherwise.
  Tile tile_of(const WrongRow& at) const {
    double truth = 0;
    for (std::size_t c = 0; c < layout_.width; ++c)
      truth += sides_.truth_at(at.row, at.head, c) * sides_.truth_at(at.row, at.head, c);
    const double allowed = clearly * limit_ * std::sqrt(truth / static_cast<double>(layout_.width));
    Numbers wrong;
    for (std::size_t c = 0; c < layout_.width; ++c)
      if (!(std::fabs(sides_.got_at(at.row, at.head, c) - sides_.truth_at(at.row, at.head, c)) <= allowed))
        wrong.insert(c);
    for (const std::size_t size : {8, 16, 32})
      if (!wrong.empty() && size < layout_.width && *wrong.begin() / size == *wrong.rbegin() / size &&
          2 * wrong.size() >= size)
        return {*wrong.begin() / size * size, std::min(layout_.width, (*wrong.begin() / size + 1) * size)};
    return {};
  }
  /// Of few rows of o.
  void look_at_tiles() {
    constexpr std::size_t few = 8;
    if (!is_forward() || wrong_rows_.size() > few) return;
    for (const WrongRow& at : wrong_rows_) tiles_.push_back(tile_of(at));
    if (std::ranges::find(tiles_, Tile{}) != tiles_.end()) tiles_.clear();
    if (!tiles_.empty()) columns_.clear();
    for (const Tile& tile : tiles_)
      for (std::size_t c = tile.begin; c < tile.end; ++c) columns_.insert(c);
  }

  void look_at_columns() {
    for (const WrongRow& at : wrong_rows_)
      for (std::size_t c = 0; c < layout_.width; ++c)
        of_columns_[c].add(sides_.got_at(at.row, at.head, c), sides_.truth_at(at.row, at.head, c));
    for (const auto& [c, sums] : of_columns_)
      if (sums.error > clearly * clearly * limit_ * limit_ * sums.truth) columns_.insert(c);
    // One that is small in few rows may be right by chance.
    const std::size_t right = layout_.width - columns_.size();
    if (right < std::max<std::size_t>(4, layout_.width / 8))
      for (std::size_t c = 0; c < layout_.width; ++c) columns_.insert(c);
    look_at_tiles();
    is_zero_ = is_nan_ = true;
    for (const WrongRow& at : wrong_rows_)
      for (const std::size_t c : columns_) {
        const double got = sides_.got_at(at.row, at.head, c);
        wrong_.add(got, sides_.truth_at(at.row, at.head, c)), is_zero_ = is_zero_ && got == 0;
        is_nan_ = is_nan_ && std::isnan(got);
      }
  }

  bool is_forward() const { return sides_.truth.name() == "o"; }

  const Sides& sides_;
  const judge::RowLayout& layout_;
  const double limit_;
  Numbers sequences_, heads_, rows_, columns_;
  Along of_sequences_, of_heads_, of_rows_;  ///< of all rows
  Along of_columns_;                         ///< of wrong rows
  std::vector<WrongRow> wrong_rows_;
  std::vector<Tile> tiles_;  ///< of these, where each errs in one
  Sums wrong_, before_;
  bool is_zero_ = false, is_nan_ = false;
};

/// Whether what is wrong is right elsewhere: blocks of a sequence and a head, columns, rows.
class Displacement {
 public:
  Displacement(const Sides& sides, const Whereabouts& found, double limit)
      : sides_(sides), layout_(sides.of_truth), found_(found), limit_(limit) {}

  /// "it is that of head 0"; empty where it is nothing that is known.
  std::string text() const {
    constexpr double most = 1 << 26;  // products of elements
    const double size = static_cast<double>(found_.wrong_rows().size() * layout_.width),
                 others = static_cast<double>(layout_.rows * layout_.heads);
    if (size * others > most) return {};
    if (std::string of_blocks = by_blocks(); !of_blocks.empty()) return of_blocks;
    if (std::string of_columns = by_columns(); !of_columns.empty()) return of_columns;
    return by_rows();
  }

 private:
  struct Block {
    std::size_t n, head;
    auto operator<=>(const Block&) const = default;
  };
  bool is_near(const Sums& sums) const {
    constexpr double about = 2;
    return sums.truth > 0 && sums.error <= about * about * limit_ * limit_ * sums.truth;
  }
  std::size_t begin_of(std::size_t n) const { return layout_.starts[n]; }
  std::size_t length_of(std::size_t n) const { return layout_.starts[n + 1] - layout_.starts[n]; }
  std::size_t number_of(std::size_t row) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(layout_.starts, row) - layout_.starts.begin()) -
           1;
  }

  bool is_block(const Block& got, const Block& truth) const {
    if (length_of(got.n) != length_of(truth.n)) return false;
    Sums sums;
    for (std::size_t i = 0; i < length_of(got.n); ++i)
      for (std::size_t c = 0; c < layout_.width; ++c)
        sums.add(sides_.got_at(begin_of(got.n) + i, got.head, c),
                 sides_.truth_at(begin_of(truth.n) + i, truth.head, c));
    return is_near(sums);
  }
  std::string by_blocks() const {
    std::set<Block> wrong;
    for (const WrongRow& at : found_.wrong_rows()) wrong.insert({number_of(at.row), at.head});
    std::set<std::pair<std::size_t, std::size_t>> heads, sequences;
    for (const Block& block : wrong) {
      std::optional<Block> owner;
      for (std::size_t h = 0; h < layout_.heads && !owner; ++h)
        if (h != block.head && is_block(block, {block.n, h})) owner = {block.n, h};
      for (std::size_t n = 0; n + 1 < layout_.starts.size() && !owner; ++n)
        if (n != block.n && is_block(block, {n, block.head})) owner = {n, block.head};
      if (!owner) return {};
      if (owner->n != block.n) sequences.insert({layout_.numbers[block.n], layout_.numbers[owner->n]});
      if (owner->head != block.head) heads.insert({sides_.heads[block.head], sides_.heads[owner->head]});
    }
    std::vector<std::string> says;
    for (const auto& [got, truth] : sequences)
      says.push_back(fmt::format("{0} {1} has what belongs to {0} {2}", layout_.what_starts(), got, truth));
    for (const auto& [got, truth] : heads)
      says.push_back(fmt::format("head {} has what belongs to head {}", got, truth));
    constexpr std::size_t most_said = 3;
    if (says.size() > most_said) says.resize(most_said), says.emplace_back("...");
    return join(says);
  }

  std::string by_columns() const {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const std::size_t got : found_.columns()) {
      std::size_t owner = layout_.width;
      for (std::size_t c = 0; c < layout_.width && owner == layout_.width; ++c) {
        Sums sums;
        for (const WrongRow& at : found_.wrong_rows())
          sums.add(sides_.got_at(at.row, at.head, got), sides_.truth_at(at.row, at.head, c));
        if (is_near(sums)) owner = c;
      }
      if (owner == layout_.width) return {};
      if (owner != got) pairs.emplace_back(got, owner);  // the first of others may be right where it is
    }
    return order_text("column", pairs);
  }

  /// Rows of a block that are those of others of it.
  std::string by_rows() const {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const WrongRow& at : found_.wrong_rows()) {
      const std::size_t n = number_of(at.row);
      std::size_t owner = layout_.rows;
      for (std::size_t row = begin_of(n); row < begin_of(n) + length_of(n) && owner == layout_.rows; ++row) {
        Sums sums;
        for (std::size_t c = 0; c < layout_.width; ++c)
          sums.add(sides_.got_at(at.row, at.head, c), sides_.truth_at(row, at.head, c));
        if (row != at.row && is_near(sums)) owner = row;
      }
      if (owner == layout_.rows) return {};
      pairs.emplace_back(at.row - begin_of(n), owner - begin_of(n));
    }
    return order_text(layout_.of_tokens ? "token" : "channel", pairs);
  }

  static std::string order_text(const char* what,
                                const std::vector<std::pair<std::size_t, std::size_t>>& pairs) {
    if (pairs.empty()) return {};
    const auto distance = [](const auto& pair) {
      return static_cast<std::ptrdiff_t>(pair.second) - static_cast<std::ptrdiff_t>(pair.first);
    };
    // A shift may go around the end.
    const std::ptrdiff_t shift = distance(pairs[pairs.size() / 2]);
    const auto shifted =
        std::ranges::count_if(pairs, [&](const auto& pair) { return distance(pair) == shift; });
    if (10 * shifted >= 9 * std::ssize(pairs))
      return fmt::format("{}what is there belongs {} {}{} {}", shifted < std::ssize(pairs) ? "most of " : "",
                         std::abs(shift), what, std::abs(shift) > 1 ? "s" : "",
                         shift > 0 ? "later" : "earlier");
    return fmt::format("{} {} has what belongs to {} {}: in another order", what, pairs.front().first, what,
                       pairs.front().second);
  }

  const Sides& sides_;
  const judge::RowLayout& layout_;
  const Whereabouts& found_;
  const double limit_;
};

/// Heads of the truth: all, or that of the worst element where all would take long; none where that would.
std::vector<std::size_t> affordable_heads(const kda::Problem& problem, const report::TensorResult& failed) {
  constexpr double most = 1 << 29;  // elements of states: a second or two
  const kda::Dimensions& d = problem.dimensions();
  const double work = static_cast<double>(d.B * d.T) * static_cast<double>(d.K * d.V);
  std::vector<std::size_t> heads;
  if (work * static_cast<double>(d.HV) <= most) {
    for (std::size_t head = 0; head < d.HV; ++head) heads.push_back(head);
  } else if (work <= most && failed.worst && !problem.pool) {
    const kda::TensorSpec& spec =
        *kda::find_spec(failed.name, {kda::TensorGroup::output, kda::TensorGroup::gradient});
    if (spec.group == kda::TensorGroup::output) heads.push_back(failed.worst->index[spec.is_state ? 1 : 2]);
  }
  return heads;
}

/// Which sequences, in the words of the problem; of a call on a pool its rows or slots.
std::string sequences_text(const kda::Problem& problem, const judge::RowLayout& layout,
                           const Whereabouts& found) {
  const bool of_states = !layout.of_tokens;
  const Numbers& wrong = found.sequences();
  if (layout.of_checkpoints && wrong.size() == 1) {
    const kda::Checkpoint& one = problem.checkpoints[*wrong.begin()];
    return fmt::format("checkpoint {} (behind {} tokens{})", *wrong.begin(), one.tokens,
                       problem.sequences().size() > 1 ? fmt::format(" of sequence {}", one.sequence) : "");
  }
  if (layout.of_checkpoints) return found.sequences_text("checkpoint", wrong, layout.numbers.size());
  if (!problem.pool) return found.sequences_text("sequence", wrong, layout.numbers.size());
  Numbers all, some;
  const auto name = [&](const kda::PoolPiece& piece) { return of_states ? piece.to : piece.tokens.index; };
  for (std::size_t n = 0; n < problem.pool->pieces.size(); ++n) {
    if (of_states && !problem.pool->pieces[n].is_stored()) continue;
    all.insert(name(problem.pool->pieces[n]));
    if (wrong.contains(n)) some.insert(name(problem.pool->pieces[n]));
  }
  return found.sequences_text(of_states ? "slot" : "request", some, all.size());
}

/// What the first wrong checkpoint is instead: the state some tokens from there, or rounded where it is
/// stored in more bits; empty where it is neither.
std::string other_state_text(const kda::Problem& problem, const Sides& sides, const Whereabouts& found,
                             double limit, int threads) {
  constexpr std::size_t reach = 4;
  const std::size_t wrong = *found.sequences().begin(), K = problem.dimensions().K;
  const kda::Checkpoint& at = problem.checkpoints[wrong];
  const kda::Sequence sequence = problem.sequences()[at.sequence];
  const std::size_t first = at.tokens - std::min(reach, at.tokens),
                    last = std::min(at.tokens + reach, sequence.length());
  if (last == 0) return {};
  kda::Problem near = kda::excerpt(problem, {sequence.part(0, last)}, kda::Layout::rows);
  for (std::size_t tokens = first; tokens <= last; ++tokens) near.checkpoints.push_back({0, tokens});
  near.validate();
  const kda::Tensors states = kda::results_in_fp64(kda::Pass::forward, near, threads);
  const tensor::Tensor& others = states.at("checkpoints");
  const judge::RowLayout layout = judge::row_layout("checkpoints", others.shape(), near, 1);
  std::vector<Sums> sums(last - first + 1);
  bool is_bf16 = numeric::format_of(sides.got.dtype()).bytes > 2;
  for (const WrongRow& row : found.wrong_rows()) {
    if (row.row / K != wrong) continue;
    for (std::size_t c = 0; c < layout.width; ++c) {
      const double got = sides.got_at(row.row, row.head, c);
      is_bf16 = is_bf16 && got == numeric::through_bf16(static_cast<float>(got));
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i].add(got, others.value(layout.element(i * K + row.row % K, row.head, c)));
    }
  }
  std::size_t best = at.tokens - first;
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (sums[i].error < sums[best].error) best = i;
  const std::size_t tokens = first + best, shift = std::max(tokens, at.tokens) - std::min(tokens, at.tokens);
  if (shift > 0 && sums[best].error <= 4 * limit * limit * sums[best].truth)
    return fmt::format("it is the state {} token{} {}", shift, shift > 1 ? "s" : "",
                       tokens > at.tokens ? "later" : "earlier");
  return is_bf16 ? "every element is one of bf16: rounded before it was stored" : "";
}

std::string tokens_text(const Whereabouts& found, const std::string& heads, std::size_t longest,
                        std::size_t chunk) {
  const Numbers& rows = found.rows();
  const std::size_t first = *rows.begin(), last = *rows.rbegin();
  constexpr std::size_t few = 8;
  if (rows.size() == 1 || (rows.size() <= few && last - first + 1 > rows.size()))
    if (std::string some = found.rows_text("token", longest); !some.empty()) return some;
  if (first == 0) return {};
  const std::string place =
      chunk < longest ? fmt::format(" (row {} of chunk {})", first % chunk, first / chunk) : "";
  if (!found.is_right_before()) return fmt::format("far off from token {}{}", first, place);
  return fmt::format("right up to token {}{}, wrong from {}{}", first - 1, heads, first, place);
}

}  // namespace

std::string place_of_error(const kda::Problem& problem, const Answered& got,
                           const report::TensorResult& failed, double limit, int threads) {
  const tensor::Tensor* const tensor = got.tensor(failed.name);
  const std::vector<std::size_t> heads = affordable_heads(problem, failed);
  if (tensor == nullptr || heads.empty() || tensor->size() == 0 || failed.name == "state_pool") return {};
  const bool all_heads = heads.size() == problem.dimensions().HV;
  std::optional<kda::Problem> of_heads;
  if (!all_heads)
    of_heads = kda::with_heads(problem, std::vector{heads.front() / problem.heads_per_group()}, heads);
  const kda::Problem& looked_at = of_heads ? *of_heads : problem;
  const kda::Tensors truths = kda::results_in_fp64(got.pass, looked_at, threads);
  const auto truth = truths.find(failed.name);
  if (truth == truths.end()) return {};
  const auto layout = [&](const tensor::Tensor& of, const kda::Problem& in) {
    return judge::row_layout(failed.name, of.shape(), in, got.chunk_size);
  };
  Sides sides{*tensor, truth->second, layout(*tensor, problem), layout(truth->second, looked_at), heads};
  if (sides.of_truth.rows == 0) return {};
  if (all_heads) {  // of q and k a tensor has fewer
    sides.heads.resize(sides.of_truth.heads);
    for (std::size_t head = 0; head < sides.heads.size(); ++head) sides.heads[head] = head;
  }
  const bool of_states = !sides.of_truth.of_tokens;
  const Whereabouts found(sides, limit);
  if (!found.is_found()) return {};

  std::size_t longest = 0;
  for (std::size_t n = 0; n + 1 < sides.of_truth.starts.size(); ++n)
    longest = std::max(longest, sides.of_truth.starts[n + 1] - sides.of_truth.starts[n]);
  const std::size_t all = sides.of_got.heads;
  const std::string some_heads = all_heads ? found.heads_text(all) : std::string();
  const std::string tiles = found.tiles_text();
  std::vector<std::string> parts;
  const auto say = [&](std::string text) {
    if (!text.empty()) parts.push_back(std::move(text));
  };
  say(sequences_text(problem, sides.of_truth, found));
  if (of_states) {
    say(some_heads);
    say(found.rows_text("channel", longest));
  } else if (got.pass == kda::Pass::forward) {
    say(some_heads);
    const bool in_all = all_heads && all > 1 && found.heads().size() == all;
    const std::string in_heads = in_all ? " in all heads" : "";
    // Behind a ring a token has another number than in the call.
    if (tiles.empty() && (!problem.pool || problem.pool->ring.empty()))
      say(tokens_text(found, in_heads, longest, std::max<std::size_t>(1, got.chunk_size)));
  } else {
    say(some_heads);
    if (longest > 1 && found.rows().size() < longest)
      say(found.rows().size() == 1
              ? found.rows_text("token", longest)
              : fmt::format("tokens {}..{}", *found.rows().begin(), *found.rows().rbegin()));
  }
  const std::string columns = tiles.empty() ? found.columns_text() : tiles;
  say(columns);
  std::string text = join(parts);
  std::string elsewhere = found.is_zero() ? "" : Displacement(sides, found, limit).text();
  if (elsewhere.empty() && sides.of_truth.of_checkpoints && found.is_nan())
    elsewhere = "NaN, never written?";
  else if (elsewhere.empty() && sides.of_truth.of_checkpoints && !found.is_zero())
    elsewhere = other_state_text(looked_at, sides, found, limit, threads);
  if (found.is_zero())
    text += text.empty() ? "zero, never written?" : ": zero, never written?";
  else if (!elsewhere.empty())
    text += (text.empty() ? "" : ": ") + elsewhere;
  else if (!columns.empty() && found.is_unrelated())
    text += ": what is there has nothing to do with the truth";
  if (!all_heads && !text.empty())
    text = fmt::format("of head {}, the only one looked at: {}", heads.front(), text);
  return text;
}

}  // namespace kda_check::engine
