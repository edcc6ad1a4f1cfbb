#include "hypotheses/naming/moves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "numeric/elementary.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::hypotheses::plain {

namespace {

using From = Site::From;
using Source = Move::Source;

constexpr Site sites[] = {
    {"query", "q", Shape::keys, From::inputs},
    {"key", "k", Shape::keys, From::inputs},
    {"value", "v", Shape::values, From::inputs},
    {"gate", "g", Shape::gates, From::gates},
    {"beta", "beta", Shape::column, From::inputs},
    {"sums", "the sum of the gates", Shape::gates, From::gates},
    {"sums_within", "the sum of the gates, as L and Aqk read it,", Shape::gates, From::gates},
    {"L", "L", Shape::scores, From::inverse},
    {"scores", "Aqk", Shape::scores, From::inverse},
    {"query_of_scores", "q in Aqk", Shape::keys, From::scores},
    {"key_of_scores", "k in Aqk", Shape::keys, From::scores},
    {"key_of_rows", "k of L's rows", Shape::keys, From::scores},
    {"key_of_predictions", "k of predictions, in L's rows and w,", Shape::keys, From::scores},
    {"key_of_columns", "k of L's columns", Shape::keys, From::scores},
    {"key_within", "k of the columns of L and Aqk", Shape::keys, From::scores},
    {"inverse", "A, the inverse,", Shape::scores, From::inverse},
    {"u", "u", Shape::values, From::behind},
    {"w", "w", Shape::keys, From::behind},
    {"inverse_of_u", "A in u", Shape::scores, From::behind},
    {"inverse_of_w", "A in w", Shape::scores, From::behind},
    {"key_of_w", "beta k exp(G) of w", Shape::keys, From::behind},
    {"prediction", "w h", Shape::values, From::behind},
    {"v_new", "v_new", Shape::values, From::behind},
    {"v_new_of_o", "v_new, as o reads it,", Shape::values, From::behind},
    {"v_new_of_writes", "v_new, as the state gets it,", Shape::values, From::behind, true},
    {"h", "the state before its chunk", Shape::states, From::behind},
    {"h_of_o", "the state before its chunk, as o reads it,", Shape::states, From::behind},
    {"h_of_w", "the state before its chunk, as v_new reads it,", Shape::states, From::behind},
    {"raised_query", "q exp(G)", Shape::keys, From::behind},
    {"written", "k exp(G_n - G)", Shape::keys, From::behind, true},
    {"carry", "exp(G_n), by which the state decays,", Shape::states, From::behind, true},
    {"state", "the state that leaves a chunk", Shape::states, From::behind, true},
    {"final_state", "the final state", Shape::states, From::behind},
    {"o", "o", Shape::values, From::behind},
    {"do", "do", Shape::values, From::backwards},
    {"v_new_backwards", "v_new, as gradients read it,", Shape::values, From::backwards},
    {"value_backwards", "v, as gradients read it,", Shape::values, From::backwards},
    {"value_of_dbeta", "v, as dbeta reads it,", Shape::values, From::backwards},
    {"h_backwards", "the state before its chunk, as gradients read it,", Shape::states, From::backwards},
    {"inverse_backwards", "A, as gradients read it,", Shape::scores, From::backwards},
    {"dht", "dht", Shape::states, From::backwards},
    {"dh_carried", "the gradient of the state that comes from the chunk behind", Shape::states,
     From::backwards},
    {"dh", "the gradient of the state, as products read it,", Shape::states, From::backwards},
    {"dh_of_keys", "the gradient of the state, as dk and dg read it,", Shape::states, From::backwards},
    {"dAqk", "dAqk", Shape::scores, From::backwards},
    {"dv_scores", "Aqk^T do", Shape::values, From::backwards},
    {"dv_new", "the gradient of v_new", Shape::values, From::backwards},
    {"dw", "dw", Shape::keys, From::backwards},
    {"dA", "dA", Shape::scores, From::backwards},
    {"dAkk", "dAkk", Shape::scores, From::backwards},
    {"dvb", "A^T dv", Shape::values, From::backwards},
    {"dkb", "A^T dw", Shape::keys, From::backwards},
    {"dq_scores", "what dAqk gives dq", Shape::keys, From::backwards},
    {"dk_rows", "what dAkk gives dk by rows", Shape::keys, From::backwards},
    {"dk_columns", "what dAqk and dAkk give dk by columns", Shape::keys, From::backwards},
    {"dq", "dq", Shape::keys, From::backwards},
    {"dk", "dk", Shape::keys, From::backwards},
    {"dv", "dv", Shape::values, From::backwards},
    {"dG", "dG, before its sum,", Shape::gates, From::backwards},
    {"dg", "dg", Shape::gates, From::backwards},
    {"dbeta", "dbeta", Shape::column, From::backwards},
    {"dstate", "the gradient of the state that enters a chunk", Shape::states, From::backwards},
};

constexpr unsigned bit(Shape shape) { return 1U << static_cast<int>(shape); }
constexpr unsigned of_keys = bit(Shape::keys) | bit(Shape::gates), of_values = bit(Shape::values),
                   of_scores = bit(Shape::scores), of_states = bit(Shape::states),
                   of_column = bit(Shape::column), of_tokens = of_keys | of_values,
                   of_rows = of_tokens | of_scores, of_all = of_rows | of_states | of_column;

double to_tf32(double x) { return static_cast<double>(numeric::through_tf32(static_cast<float>(x))); }
std::size_t index(std::ptrdiff_t i) { return static_cast<std::size_t>(i); }
std::ptrdiff_t signed_of(std::size_t i) { return static_cast<std::ptrdiff_t>(i); }

template <class Of>
Matrix matrix_of(std::size_t rows, std::size_t columns, Of of) {
  Matrix result(rows, columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) result(i, j) = of(i, j);
  return result;
}
/// (I - P) (I + P^2) (I + P^4) ..., P = L, of blocks of so many rows on the diagonal, each product and sum
/// rounded; what is between them exactly, A = B - B L A.
template <double (*round)(double), std::size_t side>
Matrix doubled(const Chunk& c) {
  const auto rounded = [&](const Matrix& m) {
    return matrix_of(c.n, c.n, [&](std::size_t i, std::size_t j) { return round(m(i, j)); });
  };
  const auto part = [&](bool inside) {
    return matrix_of(c.n, c.n, [&](std::size_t i, std::size_t j) {
      return (i / side == j / side) == inside ? c.L(i, j) : 0;
    });
  };
  const auto plus = [&](const Matrix& x, double factor, const Matrix& y) {
    return matrix_of(c.n, c.n, [&](std::size_t i, std::size_t j) { return x(i, j) + factor * y(i, j); });
  };
  Matrix power = rounded(part(true)), blocks = rounded(plus(series(c.L, 1), -1, power));
  for (std::size_t reach = 2; reach < side; reach *= 2) {
    power = rounded(product(power, power));
    blocks = rounded(plus(blocks, 1, rounded(product(blocks, power))));
  }
  Matrix A = blocks;
  const Matrix between = part(false);
  for (std::size_t i = side; i < c.n; i += side) A = plus(blocks, -1, product(blocks, product(between, A)));
  return A;
}
Element at(Element e, std::ptrdiff_t row, std::ptrdiff_t column) {
  e.row = row, e.column = column;
  return e;
}
template <int mask>
Element rows_swapped(Element e) {
  const std::ptrdiff_t other = e.row ^ mask;
  return at(e, other < e.rows ? other : e.row, e.column);
}
template <int mask>
Element columns_swapped(Element e) {
  const std::ptrdiff_t other = e.column ^ mask;
  return at(e, e.row, other < e.columns ? other : e.column);
}
template <int by>
Element rows_shifted(Element e) {
  return at(e, e.row + by, e.column);
}
template <int by>
Element columns_shifted(Element e) {
  return at(e, e.row, e.column + by);
}
std::ptrdiff_t turned(std::ptrdiff_t i, std::ptrdiff_t count) { return (i + count / 2) % count; }
bool is_in_last_tile(std::ptrdiff_t i, std::ptrdiff_t count) {
  return !is_among(Channels::first, index(i), index(count));
}
/// Whether it lies so many blocks beside the diagonal.
template <int blocks, int side = 16>
bool is_beside_diagonal(const Element& e) {
  return e.row / side == e.column / side + blocks;
}
template <int side>
bool is_off_diagonal(const Element& e) {
  return e.row / side != e.column / side;
}
template <int least>
bool is_back(const Element& e) {
  return e.row - e.column >= least;
}
Element turned_over(Element e) { return at(e, e.column, e.row); }
using Change = double (*)(double, const Element&, const Chunk&);
double from_start(double x, const Element& e, const Chunk& c) {
  return x * c.from_start(index(e.row), index(e.column));
}
double to_end(double x, const Element& e, const Chunk& c) {
  return x * c.to_end(index(e.row), index(e.column));
}
template <double (*round)(double)>
double rounded(double x, const Element&, const Chunk&) {
  return round(x);
}
template <int half_units>
double times(double x, const Element&, const Chunk&) {
  return x * half_units / 2;
}

/// exp(G) of so many rows before the chunk's last.
template <int back>
Matrix carry_of(const Chunk& c) {
  Matrix carry(c.K, 1);
  for (std::size_t x = 0; x < c.K; ++x)
    carry(x, 0) = c.from_start(back < 0 ? 0 : c.n - std::min<std::size_t>(c.n, 1 + back), x);
  return carry;
}
/// Of the gates, anew after so many rows.
template <std::size_t rows>
Matrix sums(const Chunk& c) {
  Matrix G = c.G;
  for (std::size_t i = rows; i < c.n; ++i)
    for (std::size_t x = 0; x < c.K; ++x) G(i, x) -= c.G(i / rows * rows - 1, x);
  return G;
}

struct Region {
  std::string_view name, meaning;
  unsigned shapes;
  bool (*hits)(const Element&);
};
constexpr Region regions[] = {
    {"", "", of_all, nullptr},
    {"_in_last_channels", " in the last channels (from the largest power of two below K on)", of_keys,
     [](const Element& e) { return is_in_last_tile(e.column, e.columns); }},
    {"_in_last_quarter", " in the last quarter of its channels", of_keys,
     [](const Element& e) { return 4 * e.column >= 3 * e.columns; }},
    {"_in_first_channels", " in the first channels (up to the largest power of two below K)", of_keys,
     [](const Element& e) { return !is_in_last_tile(e.column, e.columns); }},
    {"_in_first_channels", " in the first channels (up to the largest power of two below K)", of_states,
     [](const Element& e) { return !is_in_last_tile(e.row, e.rows); }},
    {"_in_last_channels", " in the last channels (from the largest power of two below K on)", of_states,
     [](const Element& e) { return is_in_last_tile(e.row, e.rows); }},
    {"_in_last_quarter", " in the last quarter of its channels", of_states,
     [](const Element& e) { return 4 * e.row >= 3 * e.rows; }},
    {"_in_first_row", " in the first row of a chunk", of_rows | of_column,
     [](const Element& e) { return e.row == 0; }},
    {"_in_last_row", " in the last row of a chunk", of_rows | of_column,
     [](const Element& e) { return e.row + 1 == e.rows; }},
    {"_in_second_rows", " in rows 16..31 of a chunk", of_rows,
     [](const Element& e) { return e.row / 16 == 1; }},
    {"_in_last_rows", " in the last 16 rows of a whole chunk", of_rows | of_column,
     [](const Element& e) { return e.row + 16 >= e.tile; }},
    {"_from_half", " in the second half of the rows of a chunk", of_rows,
     [](const Element& e) { return 2 * e.row >= e.tile; }},
};
struct {
  Source source;
  std::string_view name, meaning;
} constexpr sources[] = {
    {Source::nothing, "lost", "is zero"},
    {Source::last_chunk, "of_last_chunk", "is that of the chunk computed before"},
    {Source::next_head, "of_next_head", "is that of the next head"},
    {Source::head_before, "of_head_before", "is that of the head before"},
};

using Hits = bool (*)(const Element&);
Move reordered(std::string name, std::string meaning, unsigned shapes, Element (*from)(Element),
               Hits hits = nullptr) {
  return {std::move(name), std::move(meaning), shapes, Source::own, hits, from};
}
/// Of columns of values, which nothing else has in common.
Move across(std::string name, std::string meaning, unsigned shapes, Element (*from)(Element),
            Hits hits = nullptr) {
  Move move = reordered(std::move(name), std::move(meaning), shapes, from, hits);
  move.mixes_columns = true;
  return move;
}
Move masked(std::string name, std::string meaning, Hits hits) {
  return {std::move(name), std::move(meaning), of_scores, Source::nothing, hits};
}
Move changed(std::string name, std::string meaning, unsigned shapes, Change change, Hits hits = nullptr) {
  return {std::move(name), std::move(meaning), shapes, Source::own, hits, nullptr, change};
}
Move of_site(std::string_view site, Move move) {
  move.only = site;
  return move;
}
Move made(std::string_view site, std::string name, std::string meaning, Matrix (*matrix)(const Chunk&)) {
  return {std::move(name), std::move(meaning), ~0U, Source::own, nullptr, nullptr, nullptr, matrix, site};
}

const Move others[] = {
    reordered("rows_swapped_1", "has its rows exchanged in pairs", of_rows, rows_swapped<1>),
    reordered("rows_swapped_8", "has rows r and r + 8 of each 16 exchanged", of_rows, rows_swapped<8>),
    reordered("rows_swapped_16", "has rows r and r + 16 of each 32 exchanged", of_rows, rows_swapped<16>),
    reordered("rows_swapped_32", "has rows r and r + 32 of each 64 exchanged", of_rows, rows_swapped<32>),
    reordered(
        "rows_swapped_inside", "has rows 8..15 and 16..23 of each 32 exchanged", of_rows,
        [](Element e) { return at(e, e.row + (e.row / 8 % 4 == 1 ? 8 : -8), e.column); },
        [](const Element& e) { return e.row / 8 % 4 == 1 || e.row / 8 % 4 == 2; }),
    reordered(
        "inner_rows_swapped", "has rows 8..15 and 16..23 of a chunk exchanged", of_rows,
        [](Element e) { return at(e, e.row + (e.row / 8 == 1 ? 8 : -8), e.column); },
        [](const Element& e) { return e.row / 8 == 1 || e.row / 8 == 2; }),
    reordered("first_rows_swapped", "has rows 0..15 and 16..31 of a chunk exchanged", of_rows,
              rows_swapped<16>, [](const Element& e) { return e.row < 32; }),
    reordered("of_row_before", "is that of the row before, in its chunk", of_rows | of_column,
              rows_shifted<-1>),
    reordered("of_row_behind", "is that of the row behind, in its chunk", of_rows | of_column,
              rows_shifted<1>),
    reordered("rows_reversed", "has the rows of a chunk from the last to the first", of_rows | of_column,
              [](Element e) { return at(e, e.rows - 1 - e.row, e.column); }),
    reordered("of_first_row", "has the chunk's first row for all", of_tokens | of_column,
              [](Element e) { return at(e, 0, e.column); }),
    reordered("of_last_row", "has the chunk's last row for all", of_tokens | of_column,
              [](Element e) { return at(e, e.rows - 1, e.column); }),
    reordered("halves_swapped", "has both halves of its channels exchanged", of_keys,
              [](Element e) { return at(e, e.row, turned(e.column, e.columns)); }),
    reordered("halves_swapped", "has both halves of its channels exchanged", of_states,
              [](Element e) { return at(e, turned(e.row, e.rows), e.column); }),
    reordered("channels_swapped_1", "has its channels exchanged in pairs", of_keys, columns_swapped<1>),
    reordered("channels_swapped_8", "has channels c and c + 8 of each 16 exchanged", of_keys,
              columns_swapped<8>),
    reordered("channels_swapped_1", "has its channels exchanged in pairs", of_states, rows_swapped<1>),
    reordered("channels_swapped_8", "has channels c and c + 8 of each 16 exchanged", of_states,
              rows_swapped<8>),
    reordered("of_next_channel", "is that of the next channel", of_keys, columns_shifted<1>),
    reordered("of_channel_before", "is that of the channel before", of_keys, columns_shifted<-1>),
    reordered("of_first_tile", "has its first tile of channels for the second", of_keys,
              [](Element e) { return at(e, e.row, in_first_tile(e.column, e.columns)); }),
    reordered("of_first_tile", "has its first tile of channels for the second", of_states,
              [](Element e) { return at(e, in_first_tile(e.row, e.rows), e.column); }),
    across("of_first_tile", "has its first tile of columns for the second", of_values,
           [](Element e) { return at(e, e.row, in_first_tile(e.column, e.columns)); }),
    across("of_next_column", "is that of the next column", of_values, columns_shifted<1>),
    across("columns_swapped_1", "has its columns exchanged in pairs", of_values, columns_swapped<1>),
    across("transposed", "is transposed", of_states, turned_over,
           [](const Element& e) { return e.rows == e.columns; }),
    reordered("transposed", "is transposed", of_scores, turned_over),
    reordered("diagonal_transposed", "has its blocks of 16 on the diagonal transposed", of_scores,
              turned_over, is_beside_diagonal<0>),
    reordered(
        "blocks_transposed", "has its blocks of 16 off the diagonal transposed in themselves", of_scores,
        [](Element e) { return at(e, e.row / 16 * 16 + e.column % 16, e.column / 16 * 16 + e.row % 16); },
        is_off_diagonal<16>),
    reordered(
        "blocks_swapped", "has blocks (2,0) and (3,1) of 16 exchanged", of_scores,
        [](Element e) {
          const std::ptrdiff_t by = e.row / 16 == 2 ? 16 : -16;
          return at(e, e.row + by, e.column + by);
        },
        is_beside_diagonal<2>),
    reordered("columns_swapped_8", "has columns c and c + 8 of each 16 exchanged", of_scores,
              columns_swapped<8>),
    reordered("columns_swapped_16", "has columns c and c + 16 of each 32 exchanged", of_scores,
              columns_swapped<16>),
    masked("blocks_of_16", "is zero outside the blocks of 16 on the diagonal", is_off_diagonal<16>),
    masked("blocks_of_32", "is zero outside the blocks of 32 on the diagonal", is_off_diagonal<32>),
    masked("diagonal_blocks_lost", "is zero in the blocks of 16 on the diagonal", is_beside_diagonal<0>),
    masked("neighbours_lost", "is zero in the blocks of 16 beside those of the diagonal",
           is_beside_diagonal<1>),
    masked("window_16", "is zero from 16 tokens back on", is_back<16>),
    masked("window_32", "is zero from 32 tokens back on", is_back<32>),
    masked("diagonal_lost", "lacks its diagonal", is_beside_diagonal<0, 1>),
    masked("diagonal_alone", "is zero beside its diagonal",
           [](const Element& e) { return e.row != e.column; }),
    masked("subdiagonal_lost", "lacks what is one token back", is_beside_diagonal<1, 1>),
    changed("diagonal_doubled", "has its diagonal twice", of_scores, times<4>, is_beside_diagonal<0, 1>),
    changed("blocks_negated", "has the other sign outside the blocks of 16 on the diagonal", of_scores,
            times<-2>, is_off_diagonal<16>),
    changed("neighbours_negated", "has the other sign in the blocks of 16 beside those of the diagonal",
            of_scores, times<-2>, is_beside_diagonal<1>),
    changed("negated", "has the other sign", of_all, times<-2>),
    changed("doubled", "counts twice", of_all, times<4>),
    changed("halved", "is half of what it should be", of_all, times<1>),
    changed("not_negative", "is zero where it is negative", of_values,
            [](double x, const Element&, const Chunk&) { return std::max(x, 0.0); }),
    {"accumulated", "has those of the chunks computed before added to it", of_all, Source::added},
    changed("scaled", "has the scale once more", of_all,
            [](double x, const Element&, const Chunk& c) { return x * c.scale; }),
    changed("unscaled", "is divided by the scale", of_all,
            [](double x, const Element&, const Chunk& c) { return x / c.scale; }),
    changed("with_beta", "has beta once more", of_rows,
            [](double x, const Element& e, const Chunk& c) { return x * c.beta[index(e.row)]; }),
    changed("without_beta", "lacks beta", of_rows,
            [](double x, const Element& e, const Chunk& c) {
              const double beta = c.beta[index(e.row)];
              return beta != 0 ? x / beta : 0;
            }),
    changed("with_column_beta", "has the beta of its column once more", of_scores,
            [](double x, const Element& e, const Chunk& c) { return x * c.beta[index(e.column)]; }),
    changed("decayed", "has exp(G) once more", bit(Shape::keys), from_start),
    changed("decayed_to_end", "has exp(G_n - G) once more", bit(Shape::keys), to_end),
    changed("undecayed", "lacks exp(G)", bit(Shape::keys),
            [](double x, const Element& e, const Chunk& c) {
              return x * numeric::exp(-c.G(index(e.row), index(e.column)));
            }),
    changed("decayed", "has exp(G) of channel 0 once more", of_values,
            [](double x, const Element& e, const Chunk& c) { return from_start(x, at(e, e.row, 0), c); }),
    changed("decayed_to_end", "has exp(G_n - G) of channel 0 once more", of_values,
            [](double x, const Element& e, const Chunk& c) { return to_end(x, at(e, e.row, 0), c); }),
    changed("decayed", "has exp(G_n) once more", of_states,
            [](double x, const Element& e, const Chunk& c) { return x * c.to_end_from_start(index(e.row)); }),
    changed("floored", "is held above -126 ln(2)", bit(Shape::gates),
            [](double x, const Element&, const Chunk&) { return std::max(x, -126 / std::numbers::log2e); }),
    changed("in_bf16", "is rounded to bf16", of_all, rounded<to_bf16>),
    changed("in_fp16", "is rounded to fp16", of_all, rounded<to_fp16>),
    changed("in_tf32", "is rounded to tf32", of_all, rounded<to_tf32>),
    made("inverse", "series_3", "is I - L + L^2 alone", [](const Chunk& c) { return series(c.L, 3); }),
    made("inverse", "series_6", "is the series up to L^5 alone",
         [](const Chunk& c) { return series(c.L, 6); }),
    made("inverse", "doubling_16_in_bf16", "is made by doubling in bf16, in blocks of 16",
         doubled<to_bf16, 16>),
    made("inverse", "doubling_16_in_fp16", "is made by doubling in fp16, in blocks of 16",
         doubled<to_fp16, 16>),
    made("inverse", "doubling_32_in_bf16", "is made by doubling in bf16, in blocks of 32",
         doubled<to_bf16, 32>),
    made("inverse", "doubling_32_in_fp16", "is made by doubling in fp16, in blocks of 32",
         doubled<to_fp16, 32>),
    made("inverse", "doubling_64_in_bf16", "is made by doubling in bf16", doubled<to_bf16, 64>),
    made("inverse", "doubling_64_in_fp16", "is made by doubling in fp16", doubled<to_fp16, 64>),
    made("inverse", "last_rows_unsolved", "of a block of 16 rows ends before its last row",
         [](const Chunk& c) {
           const Matrix A = series(c.L, c.n);
           return matrix_of(c.n, c.n, [&](std::size_t i, std::size_t j) {
             return i % 16 == 15 && i / 16 == j / 16 && j < i ? -c.L(i, j) : A(i, j);
           });
         }),
    of_site("scores", changed("unmasked_in_blocks", "is masked by blocks of 16 alone, not by rows", of_scores,
                              [](double x, const Element& e, const Chunk& c) {
                                if (e.column <= e.row || e.column / 16 != e.row / 16) return x;
                                const std::size_t i = index(e.row), j = index(e.column);
                                double sum = 0;
                                for (std::size_t k = 0; k < c.K; ++k)
                                  sum += c.q(i, k) * c.k(j, k) * numeric::exp(c.G(i, k) - c.G(j, k));
                                return c.scale * sum;
                              })),
    made("key_of_rows", "of_query", "is q", [](const Chunk& c) { return c.q; }),
    made("key_of_columns", "of_query", "is q", [](const Chunk& c) { return c.q; }),
    made("query_of_scores", "of_key", "is k", [](const Chunk& c) { return c.k; }),
    made("key_of_scores", "of_query", "is q", [](const Chunk& c) { return c.q; }),
    made("sums", "missing", "is g", sums<1>),
    made("sums", "reversed", "is that from the end of the chunk",
         [](const Chunk& c) {
           return matrix_of(c.n, c.K, [&](std::size_t i, std::size_t x) {
             return c.G(c.n - 1, x) - (i > 0 ? c.G(i - 1, x) : 0);
           });
         }),
    made("sums", "in_blocks", "starts anew in each 16 rows of a chunk", sums<16>),
    made("sums", "in_halves", "starts anew in each 32 rows of a chunk", sums<32>),
    made("sums_within", "of_mean", "is the mean over channels",
         [](const Chunk& c) {
           return matrix_of(c.n, c.K, [&](std::size_t i, std::size_t) {
             double sum = 0;
             for (std::size_t x = 0; x < c.K; ++x) sum += c.G(i, x);
             return sum / static_cast<double>(c.K);
           });
         }),
    made("written", "exclusive", "has G of the row before",
         [](const Chunk& c) {
           return weighted(c.k, [&](std::size_t i, std::size_t x) {
             return i > 0 ? numeric::exp(c.G(c.n - 1, x) - c.G(i - 1, x)) : c.to_end_from_start(x);
           });
         }),
    made("key_of_w", "decayed_to_end", "has exp(G_n - G) for exp(G)",
         [](const Chunk& c) {
           return weighted(c.lowered, [&](std::size_t i, std::size_t) { return c.beta[i]; });
         }),
    made("key_of_w", "exclusive", "has G of the row before",
         [](const Chunk& c) {
           return weighted(c.read_key, [&](std::size_t i, std::size_t x) {
             return c.beta[i] * (i > 0 ? c.from_start(i - 1, x) : 1);
           });
         }),
    made("carry", "of_first_row", "is that of the chunk's first row alone", carry_of<-1>),
    made("carry", "of_end_before", "is exp(G) of the last row but one", carry_of<1>),
    made("carry", "of_last_gate", "is that of the chunk's last row alone",
         [](const Chunk& c) {
           const Matrix before = carry_of<1>(c);
           return weighted(carry_of<0>(c), [&](std::size_t x, std::size_t) { return 1 / before(x, 0); });
         }),
    made("v_new_of_o", "raw", "is beta v",
         [](const Chunk& c) { return weighted(c.v, [&](std::size_t i, std::size_t) { return c.beta[i]; }); }),
    made("raised_query", "exclusive", "is q exp(G) with G of the row before",
         [](const Chunk& c) {
           return weighted(c.q,
                           [&](std::size_t i, std::size_t x) { return i > 0 ? c.from_start(i - 1, x) : 1; });
         }),
    made("raised_query", "decayed_by_chunk", "has exp(G_n) once more",
         [](const Chunk& c) {
           return weighted(c.q, [&](std::size_t i, std::size_t x) {
             return c.from_start(i, x) * c.to_end_from_start(x);
           });
         }),
    made("v_new_backwards", "raw", "is v", [](const Chunk& c) { return c.v; }),
    made("value_of_dbeta", "of_v_new", "is v_new", [](const Chunk& c) { return c.v_new; }),
};

const std::vector<Move>& moves() {
  static const std::vector<Move> all = [] {
    std::vector<Move> list(std::begin(others), std::end(others));
    for (const ScoreBlock& block : score_blocks)
      for (Move move : {masked("block_lost", "is zero", nullptr),
                        changed("block_negated", "has the other sign", of_scores, times<-2>),
                        reordered("block_transposed", "is transposed", of_scores, turned_over),
                        reordered("block_of_next", "is what is to its right", of_scores,
                                  block.side == 16 ? columns_shifted<16> : columns_shifted<32>)}) {
        move.meaning +=
            fmt::format(" in rows {}.., columns {}.., {} each", block.row, block.column, block.side);
        move.block = &block;
        list.push_back(std::move(move));
      }
    for (const Region& region : regions)
      for (const auto& [source, name, meaning] : sources)
        list.push_back({fmt::format("{}{}", name, region.name), fmt::format("{}{}", meaning, region.meaning),
                        region.shapes, source, region.hits});
    return list;
  }();
  return all;
}

/// Whether a backward pass, which computes the chunks again, is looked at for it.
bool is_computed_again(const Site& site, const Move& move) {
  const bool is_of_o = site.name.ends_with("_of_o") || site.name == "o" || site.name == "final_state" ||
                       site.name == "raised_query";
  const bool is_whole = move.name == "transposed" || (move.hits == nullptr && move.from == nullptr);
  return !is_of_o && is_whole && move.source != Source::added && move.block == nullptr && move.only.empty();
}

}  // namespace

std::string MovedMatrix::name() const { return fmt::format("{}_{}", site->name, move->name); }
std::string MovedMatrix::meaning() const { return fmt::format("{} {}", site->what, move->meaning); }

std::vector<MovedMatrix> moved_matrices(bool backwards, bool has_heads) {
  std::vector<MovedMatrix> list;
  for (const Site& site : sites)
    for (const Move& move : moves())
      if (((site.from == From::backwards) == backwards || (backwards && is_computed_again(site, move))) &&
          (move.shapes & bit(site.shape)) != 0 && (move.only.empty() || move.only == site.name) &&
          (has_heads || !move.is_beside()))
        list.push_back({&site, &move});
  return list;
}

Matrix Moving::operator()(std::string_view site, Matrix own, const Chunk& chunk) {
  if (site != site_->name) return own;
  kept.push_back(own);
  if (move_ == nullptr) return own;
  if (move_->made != nullptr) return move_->made(chunk);
  const std::size_t number = kept.size() - 1;
  const Matrix* other = nullptr;
  if (move_->source == Source::own) other = &own;
  if (move_->source == Source::last_chunk && number > 0) other = &kept[number - 1];
  Matrix sum;
  if (move_->source == Source::added) {
    sum = own, other = &sum;
    for (std::size_t i = 0; i < own.rows(); ++i)
      for (std::size_t j = 0; j < own.columns(); ++j)
        for (std::size_t before = 0; before < number; ++before)
          if (i < kept[before].rows() && j < kept[before].columns()) sum(i, j) += kept[before](i, j);
  }
  if (move_->is_beside() && beside_ != nullptr && number < beside_->size()) other = &(*beside_)[number];
  Matrix moved = own;
  for (std::size_t i = 0; i < own.rows(); ++i)
    for (std::size_t j = 0; j < own.columns(); ++j) {
      const Element e{static_cast<std::ptrdiff_t>(i), static_cast<std::ptrdiff_t>(j),
                      static_cast<std::ptrdiff_t>(own.rows()), static_cast<std::ptrdiff_t>(own.columns()),
                      tile_};
      if (move_->hits != nullptr && !move_->hits(e)) continue;
      Element from = e;
      if (const ScoreBlock* const block = move_->block; block != nullptr) {
        if (i - block->row >= block->side || j - block->column >= block->side) continue;  // or wrapped
        from.row -= signed_of(block->row), from.column -= signed_of(block->column);
      }
      if (move_->from != nullptr) from = move_->from(from);
      if (move_->block != nullptr)
        from.row += signed_of(move_->block->row), from.column += signed_of(move_->block->column);
      const bool is_there = other != nullptr && from.row >= 0 && from.column >= 0 &&
                            index(from.row) < other->rows() && index(from.column) < other->columns();
      const double x = is_there ? (*other)(index(from.row), index(from.column)) : 0;
      moved(i, j) = move_->change != nullptr ? move_->change(x, e, chunk) : x;
    }
  return moved;
}

bool Moving::changes(const std::vector<Matrix>& right, const std::vector<Chunk>& chunks, std::size_t row) {
  const bool has_rows = site_->shape != Shape::states;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const bool is_last = i + 1 == right.size();
    if (is_last && site_->leaves) return false;
    const std::vector<double>& own = right[i].values();
    const std::size_t seen = is_last && has_rows ? (row + 1) * right[i].columns() : own.size();
    const Matrix moved = (*this)(site_->name, right[i], chunks[i]);
    if (!std::equal(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(seen), moved.values().begin()))
      return true;
  }
  return false;
}

}  // namespace kda_check::hypotheses::plain
