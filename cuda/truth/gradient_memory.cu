#include "cuda/truth/gradient_memory.cuh"

#include <algorithm>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "cuda/device/check.hpp"

namespace kda_check::cuda {

namespace {

/// Gives every array its memory, or only counts.
class Layout {
 public:
  explicit Layout(std::vector<DeviceMemory>* memory) : memory_(memory) {}

  template <class T>
  void array(const char* name, T*& pointer, std::size_t count) {
    bytes_ += count * sizeof(T) + (std::size_t{3} << 12);  // canaries and what aligns them
    if (memory_ == nullptr) return;
    memory_->emplace_back(name, count * sizeof(T));
    pointer = static_cast<T*>(memory_->back().data());
  }
  void array(const char* name, WithMagnitude& x, std::size_t count) {
    double* all = nullptr;
    array(name, all, 3 * count);
    if (all != nullptr) x = {all, all + count, all + 2 * count};
  }
  /// As it is stored.
  void tensor(const char* name, Tensor& tensor, const Input& input, std::size_t elements) {
    tensor = {nullptr, input.dtype};
    if (input.data == nullptr) return;
    char* bytes = nullptr;
    array(name, bytes, elements * numeric::format_of(input.dtype).bytes);
    tensor.data = bytes;
  }
  /// A tensor that is whole on the device.
  void whole(const char* name, Tensor& tensor, const Input& input) {
    this->tensor(name, tensor, input, input.elements);
    if (tensor.data != nullptr) memory_->back().upload(input.data);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<DeviceMemory>* memory_;
  std::size_t bytes_ = 0;
};

void lay_out(Layout& layout, const GradientOracleRequest& r, const GradientSchedule& s,
             const GradientHeads& heads, GradientPortion& p,
             std::array<GradientPortion, gradient_slots>& slots) {
  const kda::Dimensions& d = r.dimensions;
  const std::size_t tokens = s.tokens.size(), token_heads = tokens * heads.values,
                    query_rows = tokens * heads.queries, stride = padded_values(d.V);
  layout.tensor("q", p.q, r.q, query_rows * d.K), layout.tensor("k", p.k, r.k, query_rows * d.K);
  layout.tensor("v", p.v, r.v, token_heads * d.V), layout.tensor("g", p.g, r.g, token_heads * d.K);
  layout.tensor("beta", p.beta, r.beta, token_heads);
  layout.tensor("do", p.output_gradient, r.output_gradient, token_heads * d.V);
  layout.whole("A_log", p.A_log, r.A_log), layout.whole("dt_bias", p.dt_bias, r.dt_bias);
  layout.whole("initial_state", p.initial_state, r.initial_state);
  layout.whole("dht", p.state_gradient, r.state_gradient);

  layout.array("norms", p.norms, query_rows * 2);
  layout.array("channels", p.channels, token_heads * d.K);
  layout.array("strengths", p.strengths, token_heads * 2);
  const std::size_t columns = token_heads * stride, state = heads.values * d.K * stride;
  layout.array("values", p.values, columns), layout.array("output gradients", p.incoming, columns);
  layout.array("errors", p.error, columns), layout.array("writes", p.write, columns);
  layout.array("residuals", p.residual, columns), layout.array("dv", p.dv, columns);
  layout.array("residual terms", p.residual_terms, columns);
  layout.array("checkpoints", p.checkpoints, s.checkpoints * state);

  const std::size_t rows = s.most.rows * heads.values, channels = rows * d.K;
  layout.array("state gradients", p.gradients, s.most.pieces * state);
  layout.array("slopes", p.slopes, channels);
  layout.array("chunk terms", p.chunk_terms, s.most.pieces * heads.values * d.K);
  layout.array("end terms", p.end_terms, s.most.pieces * heads.values * d.K);
  layout.array("amplitudes", p.amplitudes, rows);
  layout.array("parameters", p.parameters, s.sequences.size() * heads.values * (d.K + 1));
  layout.array("dA_log", p.d_A, heads.values), layout.array("dA_log", p.d_A_chunk, heads.values);
  layout.array("dA_log", p.d_A_spread, heads.values);
  layout.array("ddt_bias", p.d_b, heads.values * d.K);
  layout.array("ddt_bias", p.d_b_chunk, heads.values * d.K);
  layout.array("ddt_bias", p.d_b_spread, heads.values * d.K);
  for (GradientPortion& out : slots) {
    const std::size_t query_channels = s.most.rows * heads.queries * d.K;
    layout.array("group states", out.groups, s.most.groups * state);
    layout.array("final states", out.final_states, s.most.pieces * state);
    for (WithMagnitude& sums : out.sums) layout.array("sums", sums, channels);
    layout.array("dq", out.dq, query_channels), layout.array("dk", out.dk, query_channels);
    layout.array("dg", out.dg, channels), layout.array("dg", out.dg_chunk, channels);
    layout.array("dbeta", out.dbeta, rows), layout.array("dbeta", out.dbeta_spread, rows);
    const bool wanted = r.gradients[std::size_t(kda::Gradient::dinitial_state)].hi != nullptr;
    layout.array("dinitial_state", out.d_state, wanted ? s.most.pieces * heads.values * d.K * d.V : 0);
  }
}

}  // namespace

std::size_t gradient_heads_at_once(const GradientOracleRequest& r, std::size_t query_heads) {
  const std::size_t group = r.dimensions.HV / r.dimensions.H;
  std::size_t available = free_memory();
  available -= available / 16;
  for (std::size_t parts = 1;; ++parts) {
    const std::size_t count = (query_heads + parts - 1) / parts;
    const GradientSchedule schedule(r.sequences, r.dimensions, count * group);
    Layout layout(nullptr);
    GradientPortion p{};
    std::array<GradientPortion, gradient_slots> slots{};
    lay_out(layout, r, schedule, {0, count, 0, count * group}, p, slots);
    if (layout.bytes() <= available) return count;
    if (count == 1)
      throw Error(ErrorKind::environment,
                  "GPU: no memory for the oracle of gradients: one head takes " +
                      std::to_string(layout.bytes() >> 20) + " MB, and " + std::to_string(available >> 20) +
                      " are free",
                  {}, "a smaller shape, or a GPU that nobody else uses");
  }
}

void GradientMemory::allocate(const GradientOracleRequest& r, const GradientSchedule& schedule,
                              const GradientHeads& heads) {
  Layout layout(&memory_);
  lay_out(layout, r, schedule, heads, whole_, slots_);
  std::vector<GradientPiece> pieces = schedule.sequences;
  for (const GradientPart& part : schedule.parts)
    pieces.insert(pieces.end(), part.pieces.begin(), part.pieces.end());
  GradientPiece* all = nullptr;
  layout.array("pieces", all, pieces.size());
  memory_.back().upload(pieces.data());
  whole_.sequences = all, whole_.pieces = all + schedule.sequences.size();
}

GradientPortion GradientMemory::portion(const GradientOracleRequest& r, const GradientSchedule& schedule,
                                        const GradientHeads& heads, std::size_t slot) const {
  const kda::Dimensions& d = r.dimensions;
  const kda::Options& options = r.options;
  GradientPortion p = whole_;
  p.tokens = static_cast<int>(schedule.tokens.size()), p.heads = static_cast<int>(heads.values);
  p.query_heads = static_cast<int>(heads.queries);
  p.K = static_cast<int>(d.K), p.V = static_cast<int>(d.V),
  p.value_stride = static_cast<int>(padded_values(d.V));
  p.first_head = static_cast<int>(heads.first), p.all_heads = static_cast<int>(d.HV);
  p.heads_per_query = static_cast<int>(d.HV / d.H);
  p.scale = r.scale, p.lower_bound = options.lower_bound.value_or(0.0), p.gate = options.gate;
  p.qk_l2norm = options.qk_l2norm, p.beta_sigmoid = options.beta_sigmoid;
  p.allow_neg_eigval = options.allow_neg_eigval, p.state_v_first = options.state_v_first;
  p.sequence_count = static_cast<int>(schedule.sequences.size());
  p.checkpoint_tokens = static_cast<int>(schedule.checkpoint_tokens);
  p.chunk_size = static_cast<int>(r.chunk_size);
  const GradientPortion& out = slots_[slot];
  p.groups = out.groups, p.final_states = out.final_states;
  std::copy(std::begin(out.sums), std::end(out.sums), p.sums);
  p.dq = out.dq, p.dk = out.dk, p.dg = out.dg, p.dbeta = out.dbeta, p.d_state = out.d_state;
  p.dg_chunk = out.dg_chunk, p.dbeta_spread = out.dbeta_spread;
  return p;
}

void GradientMemory::check_canaries() const {
  for (const DeviceMemory& memory : memory_)
    if (memory.data() != nullptr) memory.check_canaries();
}

}  // namespace kda_check::cuda
