#include "engine/power_faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/threads/parallel.hpp"
#include "judge/measures/head_values.hpp"
#include "kda/bounds/log_decays.hpp"
#include "kda/problem/heads.hpp"

namespace kda_check::engine {

namespace {

using judge::Region;
using judge::RowLayout;
using numeric::DType;

/// Number `place` of `places` of [0, count), spread evenly and not at the edges of chunks.
std::size_t spread(std::size_t place, std::size_t places, std::size_t count) {
  constexpr double within = 0.6;
  const double share = (static_cast<double>(place) + within) / static_cast<double>(places);
  return std::min(count - 1, static_cast<std::size_t>(share * static_cast<double>(count)));
}

// ---- faults that are multiples of the answer

/// The cell of each row in the regions of one kind.
std::vector<std::uint32_t> cells_of(Region of_head, const RowLayout& layout) {
  for (judge::RowCells& rows : judge::row_cells(layout))
    if (rows.of_head == of_head) return std::move(rows.cell);
  return {};
}

std::vector<bool> rows_where(const std::vector<std::uint32_t>& cells, std::uint32_t cell) {
  std::vector<bool> rows(cells.size());
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = cells[r] == cell;
  return rows;
}

class Multiples {
 public:
  explicit Multiples(const FaultSite& site)
      : site_(site), layout_(site.layout), all_rows_(layout_.rows, true) {}

  std::vector<Fault> everywhere() const {
    const std::vector<std::uint32_t> position = cells_of(Region::position_of_head, layout_);
    const auto last = static_cast<std::uint32_t>(layout_.chunk - 1);
    std::vector<Fault> list{whole(FaultFamily::scale, all_rows_),
                            whole(FaultFamily::last_rows, rows_where(position, last))};
    if (numeric::format_of(site_.storage).bytes < 4) {
      list.push_back(whole(FaultFamily::truncation, all_rows_));
      list.back().truncates = true;
    }
    return list;
  }

  /// One of each kind at a row of a head.
  std::vector<Fault> at(std::size_t row, std::size_t head, std::size_t column) const {
    const std::vector<std::uint32_t> chunk = cells_of(Region::chunk_of_head, layout_);
    const judge::Tiles tiles = judge::tiles_of(layout_);
    std::vector<bool> only(layout_.rows);
    only[row] = true;
    const std::size_t side = judge::tile_side, first = column / side * side;
    const std::size_t last = std::min(first + side, layout_.width),
                      element = typical_column(layout_, site_.answer, row, head);
    return {
        of_head(FaultFamily::head, head, all_rows_),
        of_head(FaultFamily::chunk, head, rows_where(chunk, chunk[row])),
        of_head(FaultFamily::row, head, only),
        part(FaultFamily::column, head, all_rows_, column, column + 1),
        part(FaultFamily::tile, head, rows_where(tiles.row_of_tiles, tiles.row_of_tiles[row]), first, last),
        part(FaultFamily::element, head, only, element, element + 1)};
  }

 private:
  Fault whole(FaultFamily family, std::vector<bool> rows) const {
    return {family, "all heads", {}, std::move(rows), 0, layout_.width};
  }
  Fault of_head(FaultFamily family, std::size_t head, std::vector<bool> rows) const {
    return part(family, head, std::move(rows), 0, layout_.width);
  }
  Fault part(FaultFamily family, std::size_t head, std::vector<bool> rows, std::size_t first,
             std::size_t last) const {
    return {family, place(head, rows, first, last), head, std::move(rows), first, last};
  }
  std::string place(std::size_t head, const std::vector<bool>& rows, std::size_t first,
                    std::size_t last) const {
    std::string text;
    const auto add = [&](const char* one, std::size_t from, std::size_t to) {
      text +=
          from + 1 == to ? fmt::format("{} {}, ", one, from) : fmt::format("{}s {}..{}, ", one, from, to - 1);
    };
    const auto begin = std::ranges::find(rows, true), end = std::ranges::find(begin, rows.end(), false);
    if (begin != rows.begin() || end != rows.end())
      add(layout_.of_tokens ? "token" : "row", static_cast<std::size_t>(begin - rows.begin()),
          static_cast<std::size_t>(end - rows.begin()));
    if (first != 0 || last != layout_.width) add("column", first, last);
    return text + fmt::format("head {}", head);
  }

  const FaultSite& site_;
  const RowLayout& layout_;
  const std::vector<bool> all_rows_;
};

// ---- faults that go on with the recurrence

/// One value head in fp64, its gates evaluated.
class IdealHead {
 public:
  IdealHead(const FaultSite& site, std::size_t head)
      : site_(site), head_(head), d_(site.problem.dimensions()), problem_(one_head(site.problem, head)) {
    exact_ = answer(problem_);
  }

  /// What the state after a token contributes to what follows: the answer is linear in the values, so it is
  /// the answer to those up to the token.
  Fault state(const kda::Sequence& sequence, std::size_t token) const {
    const std::size_t row = d_.V;
    const kda::Problem until =
        kda::with_inputs(problem_, [&](const kda::InputSlot& slot, const tensor::Tensor& tensor) {
          tensor::Tensor copy = tensor.clone();
          if (slot.name != "v") return copy;
          const std::size_t first = (sequence.batch * d_.T + sequence.begin) * row;
          for (std::size_t i = 0; i < copy.size(); ++i)
            if (i < first || i >= first + (token + 1) * row) copy.set(i, 0);
          return copy;
        });
    return fault(FaultFamily::state, fmt::format("after {}", token_text(sequence, token)), answer(until), {},
                 sequence, token + 1, 1);
  }

  /// The decay of one token left out.
  Fault missed_decay(const kda::Sequence& sequence, std::size_t token) const {
    tensor::Tensor g = problem_.g.clone();
    const std::size_t first = (sequence.batch * d_.T + sequence.begin + token) * d_.decays();
    for (std::size_t k = 0; k < d_.decays(); ++k) g.set(first + k, 0);
    return fault(FaultFamily::missed_decay, fmt::format("at {}", token_text(sequence, token)),
                 answer(with_gates(std::move(g))), exact_, sequence, token, 1);
  }

  /// A share of the log decay of the channel that remembers longest, for a small share.
  std::optional<Fault> slow_channel() const {
    constexpr double share = 0x1p-8;
    const std::optional<std::size_t> slowest = kda::slowest_channel(problem_, 0);
    if (!slowest) return std::nullopt;
    const tensor::Tensor changed = answer(kda::with_scaled_log_decays(problem_, {{0, slowest}}, 1 - share));
    Fault whole{FaultFamily::slow_channel,
                fmt::format("channel {}, head {}", *slowest, head_),
                head_,
                std::vector<bool>(site_.layout.rows),
                0,
                site_.layout.width};
    whole.direction.assign(site_.layout.rows * judge::padded_width(site_.layout.width), 0.0F);
    for (std::size_t r = 0; r < site_.layout.rows; ++r) take(whole, r, changed, exact_, 1 / share);
    return whole;
  }

 private:
  static kda::Problem one_head(const kda::Problem& problem, std::size_t head) {
    return kda::with_log_decays(kda::with_heads(
        problem, std::vector<std::size_t>{head / problem.heads_per_group()}, std::vector<std::size_t>{head}));
  }
  kda::Problem with_gates(tensor::Tensor g) const {
    kda::Problem changed = kda::clone(problem_);
    changed.g = std::move(g);
    return changed;
  }
  tensor::Tensor answer(const kda::Problem& problem) const {
    return kda::tensor_of(kda::answer_in_fp64(problem), site_.tensor).clone();
  }
  std::string token_text(const kda::Sequence& sequence, std::size_t token) const {
    return fmt::format("token {}, head {}", sequence.batch * d_.T + sequence.begin + token, head_);
  }

  /// Row r of (with - without) / share, where it is not zero.
  void take(Fault& fault, std::size_t r, const tensor::Tensor& with, const tensor::Tensor& without,
            double factor) const {
    const RowLayout of_one = judge::row_layout(site_.tensor, with.shape(), problem_, site_.layout.chunk);
    float* const to = &fault.direction[r * judge::padded_width(of_one.width)];
    for (std::size_t v = 0; v < of_one.width; ++v) {
      const std::size_t at = of_one.element(r, 0, v);
      const double difference = with.value(at) - (without.empty() ? 0 : without.value(at));
      to[v] = static_cast<float>(difference * factor);
      if (to[v] != 0) fault.rows[r] = true;
    }
  }
  Fault fault(FaultFamily family, std::string place, const tensor::Tensor& with,
              const tensor::Tensor& without, const kda::Sequence& sequence, std::size_t from,
              double factor) const {
    const RowLayout& layout = site_.layout;
    Fault fault{family, std::move(place), head_, std::vector<bool>(layout.rows), 0, layout.width};
    fault.direction.assign(layout.rows * judge::padded_width(layout.width), 0.0F);
    const std::size_t first =
        layout.of_tokens ? sequence.batch * d_.T + sequence.begin + from : sequence.index * d_.K;
    const std::size_t end =
        layout.of_tokens ? sequence.batch * d_.T + sequence.end : (sequence.index + 1) * d_.K;
    for (std::size_t r = first; r < end; ++r) take(fault, r, with, without, factor);
    return fault;
  }

  const FaultSite& site_;
  const std::size_t head_;
  const kda::Dimensions d_;
  const kda::Problem problem_;
  tensor::Tensor exact_;
};

/// The sequence of a token of all of them, and its number there; one with a token after it if there is any.
std::pair<kda::Sequence, std::size_t> token_at(const kda::Problem& problem, std::size_t number) {
  const std::vector<kda::Sequence> sequences = problem.sequences();
  std::size_t before = 0;
  for (const kda::Sequence& sequence : sequences) {
    if (number < before + sequence.length())
      return {sequence, std::min(number - before, std::max<std::size_t>(2, sequence.length()) - 2)};
    before += sequence.length();
  }
  return {sequences.back(), 0};
}

bool changes_something(const Fault& fault) { return std::ranges::find(fault.rows, true) != fault.rows.end(); }

}  // namespace

std::size_t typical_column(const RowLayout& layout, const tensor::Tensor& answer, std::size_t row,
                           std::size_t head) {
  const auto size = [&](std::size_t v) { return std::fabs(answer.value(layout.element(row, head, v))); };
  double squares = 0;
  for (std::size_t v = 0; v < layout.width; ++v) squares += size(v) * size(v);
  const double typical = std::sqrt(squares / static_cast<double>(layout.width));
  std::size_t nearest = 0;
  for (std::size_t v = 1; v < layout.width; ++v)
    if (std::fabs(size(v) - typical) < std::fabs(size(nearest) - typical)) nearest = v;
  return nearest;
}

const std::vector<FaultRow>& fault_rows() {
  static const std::vector<FaultRow> rows{
      {FaultFamily::scale, "scale", "everything too large"},
      {FaultFamily::head, "head", "one head too large"},
      {FaultFamily::chunk, "chunk", "one chunk of one head"},
      {FaultFamily::last_rows, "last_rows", "the last row of every chunk"},
      {FaultFamily::row, "row", "one row of one head"},
      {FaultFamily::column, "column", "one column of one head"},
      {FaultFamily::tile, "tile", "a tile of 16 x 16"},
      {FaultFamily::element, "element", "one element"},
      {FaultFamily::state, "state", "the carried state too large, once"},
      {FaultFamily::slow_channel, "slow_channel", "share of its decay that the slowest channel loses"},
      {FaultFamily::missed_decay, "missed_decay", "the decay of one token missed", false},
      {FaultFamily::truncation, "truncation", "truncated, not rounded, when stored", false},
  };
  return rows;
}

std::vector<Fault> faults_on(const FaultSite& site, int threads) {
  const RowLayout& layout = site.layout;
  const Multiples multiples(site);
  const kda::Dimensions& d = site.problem.dimensions();
  std::vector<std::vector<Fault>> parts(site.places);
  parallel_for(site.places, threads, [&](std::size_t p, int) {
    const std::size_t head = spread(p, site.places, layout.heads);
    parts[p] = multiples.at(spread(p, site.places, layout.rows), head, spread(p, site.places, layout.width));
    const IdealHead ideal(site, head);
    const auto [sequence, token] = token_at(site.problem, spread(p, site.places, d.B * d.T));
    parts[p].push_back(ideal.state(sequence, token));
    if (std::optional<Fault> slow = ideal.slow_channel()) parts[p].push_back(std::move(*slow));
    parts[p].push_back(ideal.missed_decay(sequence, token));
  });
  std::vector<Fault> all = multiples.everywhere();
  for (std::vector<Fault>& part : parts) std::ranges::move(part, std::back_inserter(all));
  std::erase_if(all, [](const Fault& fault) { return !changes_something(fault); });
  std::ranges::stable_sort(all, {}, &Fault::family);
  return all;
}

namespace {

/// What a region has of a tensor: rows by head, and columns.
struct Extent {
  std::vector<std::vector<bool>> rows;
  std::size_t first_column, last_column;
};

Extent extent_of(const judge::Excess& found, const RowLayout& layout) {
  Extent extent{std::vector<std::vector<bool>>(layout.heads, std::vector<bool>(layout.rows)), 0,
                layout.width};
  const auto columns = [&](std::size_t first, std::size_t last) {
    extent.first_column = first, extent.last_column = std::min(last, layout.width);
  };
  const judge::Tiles tiles = judge::tiles_of(layout);
  const std::size_t cell = found.cell, tile_column = cell % tiles.across * judge::tile_side;
  switch (found.region) {
    case Region::element:
      extent.rows[found.head][cell / layout.width] = true;
      columns(cell % layout.width, cell % layout.width + 1);
      break;
    case Region::tile:
      for (std::size_t r = 0; r < layout.rows; ++r)
        extent.rows[found.head][r] = tiles.row_of_tiles[r] == cell / tiles.across;
      columns(tile_column, tile_column + judge::tile_side);
      break;
    case Region::column_of_head:
      extent.rows[found.head].assign(layout.rows, true);
      columns(cell, cell + 1);
      break;
    case Region::column:
      extent.rows.assign(layout.heads, std::vector<bool>(layout.rows, true));
      columns(cell, cell + 1);
      break;
    default:
      for (const judge::RowPlace& place :
           judge::rows_in(found.region, found.head, cell, layout, layout.rows * layout.heads))
        extent.rows[place.head][place.row] = true;
  }
  return extent;
}

std::vector<bool> with_whole_chunks(std::vector<bool> rows, const RowLayout& layout) {
  const std::vector<std::uint32_t> chunk = cells_of(Region::chunk_of_head, layout);
  std::vector<bool> chunks(layout.rows);
  for (std::size_t r = 0; r < layout.rows; ++r)
    if (rows[r]) chunks[chunk[r]] = true;
  for (std::size_t r = 0; r < layout.rows; ++r) rows[r] = chunks[chunk[r]];
  return rows;
}

}  // namespace

bool is_named(const Fault& fault, const judge::Excess& found, const RowLayout& layout) {
  const Extent extent = extent_of(found, layout);
  const bool may_be_part = !fault.direction.empty();
  const std::vector<bool> rows = may_be_part ? with_whole_chunks(fault.rows, layout) : fault.rows;
  if (!may_be_part && (extent.first_column != fault.first_column || extent.last_column != fault.last_column))
    return false;
  for (std::size_t h = 0; h < layout.heads; ++h)
    for (std::size_t r = 0; r < layout.rows; ++r) {
      const bool is_wrong = fault.has(h) && rows[r], is_found = extent.rows[h][r];
      if (is_found && !is_wrong) return false;
      if (is_wrong && !is_found && !may_be_part) return false;
    }
  return true;
}

}  // namespace kda_check::engine
