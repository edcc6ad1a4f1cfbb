#include "engine/power/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/threads/parallel.hpp"
#include "judge/measures/head_values.hpp"
#include "kda/bounds/log_decays.hpp"
#include "kda/problem/heads.hpp"
#include "numeric/rounding.hpp"

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

constexpr FaultRow in_cells[] = {
    {"scale", "everything too large"},
    {"head", "one head too large"},
    {"chunk", "one chunk of one head"},
    {"last_rows", "the last row of every chunk"},
    {"row", "one row of one head"},
    {"column", "one column of one head"},
    {"tile", "a tile of 16 x 16"},
    {"element", "one element"},
    {"slow_channel", "share of its decay that the slowest channel loses"},
    {"truncation", "one head truncated, not rounded, when stored"},
};

const FaultRow* row_of(std::string_view key) {
  return &*std::ranges::find(fault_rows(), key, &FaultRow::key);
}

/// The column of a row of a head whose value is nearest to a typical one.
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

/// As `Storage` holds it: the nearest that is no larger.
template <class Storage>
float towards_zero(float x) {
  Storage stored = numeric::round_to<Storage>(x);
  if (std::fabs(numeric::widen(stored)) > std::fabs(x)) {
    auto bits = __builtin_bit_cast(numeric::BitsOf<Storage>, stored);
    stored = __builtin_bit_cast(Storage, --bits);  // sign and magnitude: one step towards zero
  }
  return static_cast<float>(numeric::widen(stored));
}

class Multiples {
 public:
  explicit Multiples(const FaultSite& site)
      : site_(site), layout_(site.layout), all_rows_(layout_.rows, true) {}

  std::vector<Fault> everywhere() const {
    const std::vector<std::uint32_t> position = cells_of(Region::position_of_head, layout_);
    const auto last = static_cast<std::uint32_t>(layout_.chunk - 1);
    return {whole("scale", all_rows_), whole("last_rows", rows_where(position, last))};
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
    return {of_head("head", head, all_rows_),
            of_head("chunk", head, rows_where(chunk, chunk[row])),
            of_head("row", head, only),
            part("column", head, all_rows_, column, column + 1),
            part("tile", head, rows_where(tiles.row_of_tiles, tiles.row_of_tiles[row]), first, last),
            part("element", head, only, element, element + 1),
            truncation(head)};
  }

 private:
  /// To what the answer would be if it were stored towards zero.
  Fault truncation(std::size_t head) const {
    Fault fault = of_head("truncation", head, all_rows_);
    fault.direction = judge::HeadRows(site_.answer, layout_, head).read_all<float>(layout_.rows);
    numeric::visit_storage(site_.storage, [&](auto tag) {
      for (float& x : fault.direction) x = towards_zero<decltype(tag)>(x) - x;
    });
    return fault;
  }

  Fault whole(std::string_view key, std::vector<bool> rows) const {
    return {row_of(key), "all heads", {}, std::move(rows), 0, layout_.width};
  }
  Fault of_head(std::string_view key, std::size_t head, std::vector<bool> rows) const {
    return part(key, head, std::move(rows), 0, layout_.width);
  }
  Fault part(std::string_view key, std::size_t head, std::vector<bool> rows, std::size_t first,
             std::size_t last) const {
    return {row_of(key), place(head, rows, first, last), head, std::move(rows), first, last};
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

/// One value head in fp64, by the readable recurrence: what changes nothing gives the same bits.
class IdealHead {
 public:
  IdealHead(const FaultSite& site, std::size_t head)
      : site_(site),
        head_(head),
        problem_(kda::with_heads(site.problem,
                                 std::vector<std::size_t>{head / site.problem.heads_per_group()},
                                 std::vector<std::size_t>{head})),
        right_(tensor_of(hypotheses::answer_of(problem_, hypotheses::Interpretation(problem_)))) {}

  /// A share of the log decay of the channel that remembers longest, for a small share.
  std::optional<Fault> slow_channel() const {
    constexpr double share = 0x1p-8;
    const kda::Problem plain = kda::with_log_decays(problem_);
    const std::optional<std::size_t> slowest = kda::slowest_channel(plain, 0);
    if (!slowest) return std::nullopt;
    const kda::Problem slower = kda::with_scaled_log_decays(plain, {{0, slowest}}, 1 - share);
    return fault(row_of("slow_channel"), fmt::format("channel {}, head {}", *slowest, head_),
                 hypotheses::answer_of(slower, hypotheses::Interpretation(slower)), 1 / share);
  }

  /// `row` is that of a known fault; `token`: of a batch row, for those that are at one.
  std::optional<Fault> known(const FaultRow& row, std::size_t token) const {
    const hypotheses::Fault& known = *row.known;
    if (!known.applies(problem_)) return std::nullopt;
    hypotheses::Interpretation reading(problem_);
    known.apply(reading, hypotheses::place_of(known, token, site_.layout.chunk));
    return fault(&row,
                 hypotheses::is_at_token(known) ? fmt::format("token {}, head {}", token, head_)
                                                : fmt::format("head {}", head_),
                 hypotheses::answer_of(problem_, reading), 1);
  }

 private:
  tensor::Tensor tensor_of(const kda::Answer& answer) const {
    return kda::tensor_of(answer, site_.tensor).clone();
  }

  /// factor (wrong - right), in the rows where that is not zero.
  std::optional<Fault> fault(const FaultRow* of, std::string place, const kda::Answer& answer,
                             double factor) const {
    const RowLayout& layout = site_.layout;
    Fault fault{of, std::move(place), head_, std::vector<bool>(layout.rows), 0, layout.width};
    fault.direction.assign(layout.rows * judge::padded_width(layout.width), 0.0F);
    const tensor::Tensor wrong = tensor_of(answer);
    const RowLayout of_one = judge::row_layout(site_.tensor, right_.shape(), problem_, layout.chunk);
    for (std::size_t r = 0; r < layout.rows; ++r)
      for (std::size_t v = 0; v < of_one.width; ++v) {
        const std::size_t at = of_one.element(r, 0, v);
        const double difference = factor * (wrong.value(at) - right_.value(at));
        if (!std::isfinite(difference)) return std::nullopt;
        if (difference == 0) continue;
        fault.direction[r * judge::padded_width(of_one.width) + v] = static_cast<float>(difference);
        fault.rows[r] = true;
      }
    return fault;
  }

  const FaultSite& site_;
  const std::size_t head_;
  const kda::Problem problem_;
  const tensor::Tensor right_;
};

/// Token `number` of all of them, in its batch row; with a token after it in its sequence if there is any.
std::size_t token_at(const kda::Problem& problem, std::size_t number) {
  std::size_t before = 0;
  for (const kda::Sequence& sequence : problem.sequences()) {
    if (number < before + sequence.length())
      return sequence.begin + std::min(number - before, std::max<std::size_t>(2, sequence.length()) - 2);
    before += sequence.length();
  }
  return 0;
}

bool changes_something(const Fault& fault) {
  const std::vector<float>& d = fault.direction;
  return std::ranges::find(fault.rows, true) != fault.rows.end() &&
         (d.empty() || std::ranges::any_of(d, [](float x) { return x != 0; }));
}

}  // namespace

const std::vector<FaultRow>& fault_rows() {
  static const std::vector<FaultRow> rows = [] {
    std::vector<FaultRow> all(std::begin(in_cells), std::end(in_cells));
    for (const hypotheses::Fault& fault : hypotheses::faults())
      if (!fault.is_variation) all.push_back({fault.name, fault.meaning, &fault});
    return all;
  }();
  return rows;
}

std::vector<Fault> faults_on(const FaultSite& site, int threads) {
  constexpr double most =
      1 << 25;  // elements of a state times tokens, which the readable recurrence goes over
  const RowLayout& layout = site.layout;
  const kda::Dimensions& d = site.problem.dimensions();
  const bool is_small = static_cast<double>(d.B * d.T) * static_cast<double>(d.K * d.V) <= most;
  std::vector<std::optional<IdealHead>> heads(site.places);
  std::vector<std::function<std::optional<Fault>()>> work;
  std::vector<Fault> all = Multiples(site).everywhere();
  for (std::size_t p = 0; p < site.places; ++p) {
    const std::size_t head = spread(p, site.places, layout.heads);
    std::ranges::move(
        Multiples(site).at(spread(p, site.places, layout.rows), head, spread(p, site.places, layout.width)),
        std::back_inserter(all));
    const IdealHead& ideal = heads[p].emplace(site, head);
    work.emplace_back([&ideal] { return ideal.slow_channel(); });
    if (!is_small) continue;
    const std::size_t token = token_at(site.problem, spread(p, site.places, d.B * d.T));
    for (const FaultRow& row : fault_rows())
      if (row.known != nullptr && (p == site.places / 2 || hypotheses::is_at_token(*row.known)))
        work.emplace_back([&ideal, &row, token] { return ideal.known(row, token); });
  }
  std::vector<std::optional<Fault>> found(work.size());
  parallel_for(work.size(), threads, [&](std::size_t i, int) { found[i] = work[i](); });
  for (std::optional<Fault>& fault : found)
    if (fault) all.push_back(std::move(*fault));
  std::erase_if(all, [](const Fault& fault) { return !changes_something(fault); });
  std::ranges::stable_sort(all, {}, &Fault::row);
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
