// Stages as rows: which elements count, and what places are called.
#include "judge/measures/stage_values.hpp"

#include <limits>

#include "support/catch.hpp"
#include "support/problems.hpp"

namespace stage_values_tests {

using namespace kda_check;
using judge::Region;
using judge::RowLayout;
using kda::Stage;

namespace {

/// Sequences of 19 and 21 tokens in chunks of 16: two chunks each.
kda::Problem packed(bool state_v_first = false) {
  test::ProblemSpec spec;
  spec.T = 40, spec.HV = spec.H = 2, spec.K = 8, spec.V = 6, spec.chunk_size = 16;
  spec.cu_seqlens = {0, 19, 40}, spec.state_v_first = state_v_first;
  return test::make_problem(spec);
}

}  // namespace

TEST_CASE("every element of a stage that counts is in one row of one head, where the kernels store it",
          "[judge][stages]") {
  const bool v_first = GENERATE(false, true);
  const kda::Problem problem = packed(v_first);
  const kda::Dimensions d = kda::chunked_dimensions(problem, 16);
  for (const kda::StageRow& row : kda::stages(kda::Passes::both)) {
    INFO(row.name);
    const RowLayout layout = judge::stage_row_layout(row.stage, problem, 16);
    const kda::StageLayout stored(row.stage, d, v_first);
    std::size_t r = 0;
    for (const kda::Sequence& s : problem.sequences())
      for (std::size_t begin = s.begin; begin < s.end; begin += 16) {
        kda::ChunkPlace place{0, begin, std::min<std::size_t>(16, s.end - begin),
                              kda::first_chunk(problem, s, 16) + (begin - s.begin) / 16, 1};
        for (std::size_t i = 0; i < stored.rows(place); ++i, ++r) {
          REQUIRE(layout.columns(r) == (row.lower_triangular() ? i + 1 : stored.columns(place)));
          for (std::size_t c = 0; c < layout.columns(r); ++c)
            REQUIRE(layout.element(r, 1, c) == stored.element(place, i, c));
        }
      }
    CHECK(r == layout.rows);
  }
}

TEST_CASE("places in states of chunks are named by chunk and key", "[judge][stages]") {
  const RowLayout layout = judge::stage_row_layout(Stage::h, packed(), 16);
  CHECK(judge::place_of(Region::chunk_of_head, 1, 2, layout) == "chunk 2 of head 1");
  CHECK(judge::place_of(Region::row, 1, 8 + 3, layout) == "key 3 of chunk 1 of head 1");
  CHECK(judge::place_of(Region::position, 0, 3, layout) == "key 3 of every chunk, all heads");
  CHECK(judge::place_of(Region::element, 0, (8 + 3) * 6 + 5, layout) ==
        "key 3 of chunk 1, column 5 of head 0");
}

TEST_CASE("what does not count is zero in the truth and in every field", "[judge][stages]") {
  const RowLayout layout = judge::stage_row_layout(Stage::Aqk, packed(), 16);
  const std::size_t size = layout.rows * judge::padded_width(layout.width);
  std::vector<double> exact(size, 1.0);
  std::vector<std::vector<float>> fields{std::vector<float>(size, 2.0F)};
  exact[judge::padded_width(layout.width)] = -std::numeric_limits<double>::infinity();
  judge::clear_what_does_not_count(exact, fields, layout);
  double truth = 0, field = 0;
  for (std::size_t i = 0; i < size; ++i) truth += exact[i], field += static_cast<double>(fields[0][i]);
  // Triangles of 16, 3, 16 and 5 rows, but for the element whose truth is infinite.
  constexpr double counted = 136 + 6 + 136 + 15 - 1;
  CHECK(truth == counted);
  CHECK(field == 2 * counted);
}

}  // namespace stage_values_tests
