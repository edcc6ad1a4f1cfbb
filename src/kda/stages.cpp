#include "kda/stages.hpp"

#include <algorithm>
#include <cstring>

namespace kda_check::kda {

namespace {

constexpr StageRow rows_in_order[] = {
    {Stage::g_cumsum, "g_cumsum", "G_i = sum of g over the rows up to i of the chunk", false},
    {Stage::Aqk, "Aqk", "scale sum_k q_ik k_jk exp(G_ik - G_jk), j <= i", true},
    {Stage::Akk_inv, "Akk_inv", "(I + L)^-1, L_ij = beta_i sum_k k_ik k_jk exp(G_ik - G_jk), j < i", true},
    {Stage::u, "u", "Akk_inv (beta v)", false},
    {Stage::w, "w", "Akk_inv (beta k exp(G))", false},
    {Stage::qg, "qg", "q exp(G)", false},
    {Stage::kg, "kg", "k exp(G_last - G)", false},
    {Stage::h, "h", "the state entering the chunk", false},
    {Stage::v_new, "v_new", "u - w h", false},
};

std::size_t chunks_of(std::size_t tokens, std::size_t chunk_size) {
  return (tokens + chunk_size - 1) / chunk_size;
}

}  // namespace

std::span<const StageRow> stages() { return rows_in_order; }

Dimensions chunked_dimensions(const Problem& problem, std::size_t chunk_size) {
  Dimensions d = problem.dimensions();
  d.C = chunk_size;
  d.NT = 0;
  for (const Sequence& s : problem.sequences())
    if (s.batch == 0) d.NT += chunks_of(s.length(), chunk_size);
  return d;
}

StageTensors allocate_stages(const Problem& problem, std::size_t chunk_size, numeric::DType dtype) {
  const Dimensions d = chunked_dimensions(problem, chunk_size);
  StageTensors tensors;
  for (const StageRow& row : rows_in_order) {
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
  return stage_ == Stage::h ? d_.K : place.rows;
}

std::size_t StageLayout::columns(const ChunkPlace& place) const {
  switch (stage_) {
    case Stage::Aqk:
    case Stage::Akk_inv:
      return place.rows;
    case Stage::u:
    case Stage::v_new:
    case Stage::h:
      return d_.V;
    default:
      return d_.K;
  }
}

std::size_t StageLayout::element(const ChunkPlace& place, std::size_t row, std::size_t column) const {
  if (stage_ == Stage::h) {
    const std::size_t first = ((place.batch * d_.NT + place.index) * d_.HV + place.head) * d_.K * d_.V;
    return first + (v_first_ ? column * d_.K + row : row * d_.V + column);
  }
  const bool scores = stage_ == Stage::Aqk || stage_ == Stage::Akk_inv;
  const std::size_t width = scores ? d_.C : columns(place);
  return ((place.batch * d_.T + place.begin + row) * d_.HV + place.head) * width + column;
}

}  // namespace kda_check::kda
