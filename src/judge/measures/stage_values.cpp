#include "judge/measures/stage_values.hpp"

#include <algorithm>
#include <cmath>

namespace kda_check::judge {

namespace {

constexpr double reciprocal_of_ln2 = 0x1.71547652b82fep+0;

}  // namespace

RowLayout stage_row_layout(kda::Stage stage, const kda::Problem& problem, std::size_t chunk_size) {
  const kda::Dimensions d = kda::chunked_dimensions(problem, chunk_size);
  const kda::StageRow& row = kda::row_of(stage);
  RowLayout layout;
  layout.heads = d.HV;
  if (row.shape == kda::StageShape::state) {
    const bool v_first = problem.options.state_v_first;
    layout.rows = d.B * d.NT * d.K, layout.width = d.V, layout.chunk = d.K;
    layout.of_tokens = false, layout.of_chunks = true;
    layout.block_rows = d.K, layout.block_stride = d.HV * d.K * d.V, layout.head_stride = d.K * d.V;
    layout.row_stride = v_first ? 1 : d.V, layout.column_stride = v_first ? d.K : 1;
  } else {
    layout.width = row.shape == kda::StageShape::by_key ? d.K : row.lower_triangular() ? d.C : d.V;
    layout.rows = d.B * d.T, layout.chunk = chunk_size;
    layout.block_rows = std::max<std::size_t>(1, layout.rows);
    layout.row_stride = d.HV * layout.width, layout.head_stride = layout.width;
  }
  for (const kda::Sequence& s : problem.sequences())
    layout.starts.push_back(layout.of_chunks
                                ? (s.batch * d.NT + kda::first_chunk(problem, s, chunk_size)) * d.K
                                : s.batch * d.T + s.begin);
  layout.starts.push_back(layout.rows);
  std::ranges::sort(layout.starts);
  layout.starts.erase(std::unique(layout.starts.begin(), layout.starts.end()), layout.starts.end());
  if (row.lower_triangular())
    for (std::size_t n = 0; n + 1 < layout.starts.size(); ++n)
      for (std::size_t r = layout.starts[n]; r < layout.starts[n + 1]; ++r)
        layout.counted.push_back(static_cast<std::uint32_t>((r - layout.starts[n]) % chunk_size + 1));
  return layout;
}

void clear_what_does_not_count(std::vector<double>& truth, std::vector<std::vector<float>>& fields,
                               const RowLayout& layout) {
  const std::size_t stride = padded_width(layout.width);
  const auto clear = [&](std::size_t i) {
    truth[i] = 0;
    for (std::vector<float>& field : fields) field[i] = 0;
  };
  for (std::size_t r = 0; r < layout.rows; ++r) {
    for (std::size_t v = layout.columns(r); v < layout.width; ++v) clear(r * stride + v);
    for (std::size_t i = r * stride; i < r * stride + layout.columns(r); ++i)
      if (!std::isfinite(truth[i])) clear(i);
  }
}

void to_powers_of_two(std::vector<double>& truth) {
  for (double& x : truth) x *= reciprocal_of_ln2;
}

void to_powers_of_two(std::vector<float>& field) {
  constexpr auto factor = static_cast<float>(reciprocal_of_ln2);
  for (float& x : field) x *= factor;
}

}  // namespace kda_check::judge
