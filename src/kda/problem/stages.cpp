#include "kda/problem/stages.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace kda_check::kda {

namespace {

using enum StageShape;

constexpr StageRow stages_in_order[] = {
    {Stage::g_cumsum, "g_cumsum", "G_i = sum of g over the rows up to i of the chunk", by_key,
     &CastPoints::g_cumsum},
    {Stage::Aqk, "Aqk", "scale sum_k q_ik k_jk exp(G_ik - G_jk), j <= i", scores, &CastPoints::Aqk},
    {Stage::Akk_inv, "Akk_inv", "(I + L)^-1, L_ij = beta_i sum_k k_ik k_jk exp(G_ik - G_jk), j < i", scores,
     &CastPoints::Akk_inv},
    {Stage::u, "u", "Akk_inv (beta v)", by_value, &CastPoints::u},
    {Stage::w, "w", "Akk_inv (beta k exp(G))", by_key, &CastPoints::w},
    {Stage::qg, "qg", "q exp(G)", by_key, &CastPoints::operands},
    {Stage::kg, "kg", "k exp(G_last - G)", by_key, &CastPoints::operands},
    {Stage::h, "h", "the state entering the chunk", state, &CastPoints::state},
    {Stage::v_new, "v_new", "u - w h", by_value, &CastPoints::v_new},
    {Stage::dAqk, "dAqk", "scale do v_new^T, j <= i", scores, nullptr, true},
    {Stage::dv_local, "dv_local", "Aqk^T do", by_value, &CastPoints::dv_local, true},
    {Stage::dh, "dh", "the gradient of the state leaving the chunk", state, &CastPoints::dh, true},
    {Stage::dv, "dv", "dv_local + kg dh, the gradient of v_new", by_value, &CastPoints::dv, true},
    {Stage::dw, "dw", "-dv h^T", by_key, &CastPoints::dw, true},
    {Stage::dAkk, "dAkk", "-Akk_inv^T ((dv v^T + dw (k exp(G))^T) beta_j, j < i) Akk_inv^T, j < i", scores,
     nullptr, true},
};
static_assert(std::size(stages_in_order) == stage_count);

std::size_t chunks_of(std::size_t tokens, std::size_t chunk_size) {
  return (tokens + chunk_size - 1) / chunk_size;
}

}  // namespace

std::span<const StageRow> stages(Passes passes) {
  const std::span<const StageRow> rows(stages_in_order);
  return passes == Passes::both ? rows : rows.first(forward_stage_count);
}

const StageRow& row_of(Stage stage) { return stages_in_order[static_cast<std::size_t>(stage)]; }

Dimensions chunked_dimensions(const Problem& problem, std::size_t chunk_size) {
  Dimensions d = problem.dimensions();
  d.C = chunk_size;
  d.NT = 0;
  for (const Sequence& s : problem.sequences())
    if (s.batch == 0) d.NT += chunks_of(s.length(), chunk_size);
  return d;
}

StageTensors allocate_stages(const Problem& problem, std::size_t chunk_size, numeric::DType dtype,
                             Passes passes) {
  const Dimensions d = chunked_dimensions(problem, chunk_size);
  StageTensors tensors;
  for (const StageRow& row : stages(passes)) {
    tensor::Tensor& tensor = tensors[static_cast<std::size_t>(row.stage)];
    tensor = tensor::Tensor(std::string(row.name), dtype,
                            expected_shape(*find_spec(row.name), d, problem.options.state_v_first));
    std::memset(tensor.data(), 0, tensor.bytes());
  }
  return tensors;
}

std::size_t first_chunk(const Problem& problem, const Sequence& sequence, std::size_t chunk_size) {
  std::size_t first = 0;
  for (const Sequence& other : problem.sequences())
    if (other.batch == sequence.batch && other.index < sequence.index)
      first += chunks_of(other.length(), chunk_size);
  return first;
}

StageLayout::StageLayout(Stage stage, const Dimensions& dimensions, bool state_v_first)
    : stage_(stage), d_(dimensions), v_first_(state_v_first) {}

std::size_t StageLayout::rows(const ChunkPlace& place) const {
  return row_of(stage_).shape == state ? d_.K : place.rows;
}

std::size_t StageLayout::columns(const ChunkPlace& place) const {
  switch (row_of(stage_).shape) {
    case scores:
      return place.rows;
    case by_value:
    case state:
      return d_.V;
    case by_key:
      return d_.K;
  }
  return 0;
}

std::size_t StageLayout::element(const ChunkPlace& place, std::size_t row, std::size_t column) const {
  const StageShape shape = row_of(stage_).shape;
  if (shape == state) {
    const std::size_t first = ((place.batch * d_.NT + place.index) * d_.HV + place.head) * d_.K * d_.V;
    return first + (v_first_ ? column * d_.K + row : row * d_.V + column);
  }
  const std::size_t width = shape == scores ? d_.C : columns(place);
  return ((place.batch * d_.T + place.begin + row) * d_.HV + place.head) * width + column;
}

}  // namespace kda_check::kda
