// gpu-chunk on tensor cores, forwards and backwards, ready to be launched on a problem.
#include "cuda/device/launch.cuh"
#include "cuda/problem/launcher_memory.cuh"
#include "cuda/variants/launcher.cuh"
#include "cuda/variants/tensor_cores/split/backward.cuh"

namespace kda_check::cuda {

namespace {

using kda::Stage;

/// Into three bf16 numbers each.
bool splits_operands(const Request& r) { return r.arithmetic.reduction.kind == kda::ReductionKind::split; }

/// A problem cut into chunks; their number.
std::size_t cut_into_chunks(const Request& r, LauncherMemory& memory, TensorCoreWork& work) {
  const std::vector<TokenRange> sequences = sequences_of(r);
  const Pieces chunks(sequences, image_rows);
  work.chunks = memory.uploaded("chunks", chunks.all);
  work.sequences = memory.uploaded("sequences", sequences);
  work.chunks_of = memory.uploaded("chunks of sequences", chunks.of);
  work.chunk_count = static_cast<int>(chunks.all.size());
  work.sequence_count = static_cast<int>(sequences.size());
  work.group = static_cast<int>(r.dimensions.HV / r.dimensions.H);
  work.decay = r.arithmetic.decay;
  return chunks.all.size();
}

/// Elements of a value head in the stages that are asked for.
struct StageSizes {
  std::size_t keys, values, scores, states;

  StageSizes(const kda::Dimensions& d, std::size_t chunks)
      : keys(d.B * d.T * d.K),
        values(d.B * d.T * d.V),
        scores(d.B * d.T * image_rows),
        states(chunks * d.K * d.V) {}
};

class TensorCoreLauncher : public Launcher {
 public:
  explicit TensorCoreLauncher(const Request& r) : splits_(splits_operands(r)) {
    const int K = static_cast<int>(r.dimensions.K);
    const std::size_t chunks = cut_into_chunks(r, memory_, work_),
                      bytes = chunks * (splits_ ? split_image_bytes(K) : image_bytes(K));
    heads_together_ = memory_.place<unsigned char>(r, {{&work_.images, "images of chunks", bytes}});
    if (!wants_stages(r)) return;
    const StageSizes of(r.dimensions, chunks);
    TensorCoreStages& to = work_.stages;
    memory_.place<float>(r, {{&to.G, "g_cumsum", of.keys, false, Stage::g_cumsum},
                             {&to.Aqk, "Aqk", of.scores, false, Stage::Aqk},
                             {&to.Akk_inv, "Akk_inv", of.scores, false, Stage::Akk_inv},
                             {&to.u, "u", of.values, false, Stage::u},
                             {&to.w, "w", of.keys, false, Stage::w},
                             {&to.qg, "qg", of.keys, false, Stage::qg},
                             {&to.kg, "kg", of.keys, false, Stage::kg},
                             {&to.h, "h", of.states, false, Stage::h},
                             {&to.v_new, "v_new", of.values, false, Stage::v_new}});
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads(p, heads_together_, [&](int first, int heads) {
      TensorCoreWork work = work_;
      work.first_head = first, work.heads = heads;
      (splits_ ? launch_split_prepare : launch_tensor_core_prepare)(p, work);
      (splits_ ? launch_split_state : launch_tensor_core_state)(p, work);
    });
  }
  void download_stages(const Request& r) const override { memory_.download_stages(r); }
  void check_canaries() const override { memory_.check_canaries(); }

 private:
  bool splits_;
  LauncherMemory memory_;
  TensorCoreWork work_{};
  int heads_together_;
};

/// Elements of any type to those of a 16-bit one, in any number of blocks.
__global__ void narrow_elements(const __grid_constant__ Tensor from, const __grid_constant__ MutableTensor to,
                                std::size_t count) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    store(from.data == nullptr ? 0.0f : load<float>(from, i), to.data, to.dtype, i);
}

/// What both ways backwards have: the gradients of value heads, and what is added up over tokens.
template <class Work>
class TensorCoreBackward : public Launcher {
 public:
  void download_stages(const Request& r) const override { memory_.download_stages(r); }
  void check_canaries() const override { memory_.check_canaries(); }

 protected:
  using Arrays = std::vector<WorkArray<unsigned char>>;

  /// `arrays`: what is left between the kernels, of images and blocks.
  void place(const Request& r, std::size_t chunks, Arrays arrays) {
    const kda::Dimensions& d = r.dimensions;
    const std::size_t tokens = d.B * d.T, keys = sizeof(float) * tokens * d.K;
    const numeric::DType of_gates = r.gradients[static_cast<std::size_t>(kda::Gradient::dg)].dtype;
    const bool stores_gates = r.options.gate == kda::Gate::none && !d.has_scalar_decay &&
                              (of_gates == numeric::DType::fp32 || of_gates == r.v.dtype);
    enum Place { dq, dk, dg, dbeta, q_norm, k_norm, terms, sums, biases, places };
    unsigned char* at[places];
    arrays.insert(arrays.end(), {{&at[dq], "dq of value heads", keys},
                                 {&at[dk], "dk of value heads", keys},
                                 {&at[dg], "dg", stores_gates ? 0 : keys},
                                 {&at[dbeta], "dbeta", sizeof(float) * tokens},
                                 {&at[q_norm], "norms of q", sizeof(float) * tokens},
                                 {&at[k_norm], "norms of k", sizeof(float) * tokens},
                                 {&at[terms], "terms of dA_log", sizeof(float) * tokens},
                                 {&at[sums], "sums of dA_log", sizeof(float) * chunks},
                                 {&at[biases], "sums of ddt_bias", sizeof(float) * chunks * d.K}});
    heads_together_ = memory_.place<unsigned char>(r, arrays);
    const auto floats = [&](Place place) { return reinterpret_cast<float*>(at[place]); };
    work_.dq = floats(dq), work_.dk = floats(dk), work_.dg = floats(dg), work_.dbeta = floats(dbeta);
    work_.left.q_norm = floats(q_norm), work_.left.k_norm = floats(k_norm);

    TokenGradients<float>& to = gradients_;
    to.group = work_.group, to.blocks_of = work_.chunks_of, to.blocks = work_.chunks;
    to.sequence_count = work_.sequence_count, to.block_count = work_.chunk_count;
    to.token_count = static_cast<int>(tokens), to.dq_factor = 1;
    to.key_stride = static_cast<int>(d.K), to.value_stride = static_cast<int>(d.V);
    to.dq = work_.dq, to.dk = work_.dk, to.dbeta = work_.dbeta;
    to.dg = work_.dg;
    to.amplitude_terms = floats(terms), to.amplitude_sums = floats(sums), to.bias_sums = floats(biases);
    if (wants_stages(r)) place_stages(r, chunks);
  }
  /// Calls body(work, gradients) for those heads that find room after the other.
  template <class Body>
  void over_heads_together(const DeviceProblem& p, Body body) const {
    over_heads(p, heads_together_, [&](int first, int heads) {
      Work work = work_;
      TokenGradients<float> gradients = gradients_;
      work.first_head = gradients.first_head = first, work.heads = gradients.heads = heads;
      body(work, gradients);
      launch_backward_parameters<float>(p, gradients);
    });
  }

  LauncherMemory memory_;
  Work work_{};

 private:
  void place_stages(const Request& r, std::size_t chunks) {
    const StageSizes of(r.dimensions, chunks);
    TensorCoreGradientStages& to = work_.gradient_stages;
    memory_.place<float>(r, {{&to.dAqk, "dAqk", of.scores, false, Stage::dAqk},
                             {&to.dv_local, "dv_local", of.values, false, Stage::dv_local},
                             {&to.dh, "dh", of.states, false, Stage::dh},
                             {&to.dv, "dv", of.values, false, Stage::dv},
                             {&to.dw, "dw", of.keys, false, Stage::dw},
                             {&to.dAkk, "dAkk", of.scores, false, Stage::dAkk}});
  }

  TokenGradients<float> gradients_{};
  int heads_together_;
};

/// K as kernels have it: 64 or 128.
std::size_t width_of(const Request& r) { return r.dimensions.K <= 64 ? 64 : 128; }

class TensorCoreBackwardLauncher : public TensorCoreBackward<TensorCoreBackwardWork> {
 public:
  explicit TensorCoreBackwardLauncher(const Request& r) {
    const kda::Dimensions& d = r.dimensions;
    const int K = static_cast<int>(d.K), V = static_cast<int>(d.V);
    const std::size_t chunks = cut_into_chunks(r, memory_, work_), width = width_of(r),
                      states = sizeof(std::uint16_t) * chunks * state_image(V, static_cast<int>(width)),
                      values = sizeof(std::uint16_t) * chunks * value_image(V);
    enum Place { images, G, h, v_new, dh, dv, dp, places };
    unsigned char* at[places];
    if (r.output_gradient.data == nullptr || r.output_gradient.dtype != r.v.dtype) {
      values_ = d.B * d.T * d.HV * d.V;  // of all heads, so before what is left is shared out
      loss_.emplace("do as an operand", sizeof(std::uint16_t) * values_);
    }
    place(r, chunks,
          {{&at[images], "images of chunks", chunks * image_bytes(K)},
           {&at[G], "g_cumsum", sizeof(float) * chunks * image_rows * width},
           {&at[h], "h", states},
           {&at[v_new], "v_new", values},
           {&at[dh], "dh", states},
           {&at[dv], "dv", values},
           {&at[dp], "dp", values}});
    const auto operands = [&](Place place) { return reinterpret_cast<std::uint16_t*>(at[place]); };
    work_.images = at[images], work_.left.G = reinterpret_cast<float*>(at[G]);
    work_.left.h = operands(h), work_.left.v_new = operands(v_new);
    work_.dh = operands(dh), work_.dv = operands(dv), work_.dp = operands(dp);
  }

  void launch_on(const DeviceProblem& problem) const override {
    DeviceProblem p = problem;
    if (loss_) {
      const MutableTensor narrow{loss_->data(), p.v.dtype};
      constexpr unsigned blocks = 1024, threads = 256;
      launch("do as an operand", narrow_elements, dim3(blocks), threads, 0, p.output_gradient, narrow,
             values_);
      p.output_gradient = {loss_->data(), p.v.dtype};
    }
    over_heads_together(p, [&](const TensorCoreBackwardWork& work, const TokenGradients<float>& gradients) {
      launch_tensor_core_prepare(p, work);
      launch_tensor_core_state(p, work);
      launch_tensor_core_state_gradient(p, work);
      launch_tensor_core_gradients(p, work);
      if (work.gradient_stages.dw != nullptr) launch_tensor_core_dw(p, work);
      launch_tensor_core_chain(p, gradients, work.left);
    });
  }
  void check_canaries() const override {
    TensorCoreBackward::check_canaries();
    if (loss_) loss_->check_canaries();
  }

 private:
  std::optional<DeviceMemory> loss_;  ///< do, where it is not stored as v is
  std::size_t values_ = 0;
};

class SplitBackwardLauncher : public TensorCoreBackward<SplitBackwardWork> {
 public:
  explicit SplitBackwardLauncher(const Request& r) {
    const int K = static_cast<int>(r.dimensions.K), V = static_cast<int>(r.dimensions.V);
    const std::size_t chunks = cut_into_chunks(r, memory_, work_), width = width_of(r),
                      keys = sizeof(float) * chunks * image_rows * width,
                      states = sizeof(float) * chunks * state_numbers(V, static_cast<int>(width)),
                      values = sizeof(float) * chunks * value_numbers(V);
    enum Place { images, inputs, ends, h, e, v_new, d_o, dh, dv, r_of_v, places };
    unsigned char* at[places];
    place(r, chunks,
          {{&at[images], "images of chunks", chunks * split_image_bytes(K)},
           {&at[inputs], "q, k and g_cumsum", 3 * keys},
           {&at[ends], "decays to the end", keys},
           {&at[h], "h", states},
           {&at[e], "v less its prediction", values},
           {&at[v_new], "v_new", values},
           {&at[d_o], "do", values},
           {&at[dh], "dh", states},
           {&at[dv], "dv", values},
           {&at[r_of_v], "dv through the inverse", values}});
    const auto floats = [&](Place place) { return reinterpret_cast<float*>(at[place]); };
    work_.images = at[images];
    work_.split = {floats(inputs), floats(ends), floats(h), floats(e), floats(v_new)};
    work_.d_o = floats(d_o), work_.dh = floats(dh), work_.dv = floats(dv), work_.r = floats(r_of_v);
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads_together(p, [&](const SplitBackwardWork& work, const TokenGradients<float>& gradients) {
      launch_split_prepare(p, work);
      launch_split_state(p, work);
      launch_split_state_gradient(p, work);
      launch_split_gradients(p, work);
      if (work.gradient_stages.dw != nullptr) launch_split_dw(p, work);
      launch_split_chain(p, gradients, work.left);
    });
  }
};

}  // namespace

std::unique_ptr<Launcher> tensor_core_launcher(const Request& request) {
  return std::make_unique<TensorCoreLauncher>(request);
}
std::unique_ptr<Launcher> tensor_core_backward_launcher(const Request& request) {
  if (splits_operands(request)) return std::make_unique<SplitBackwardLauncher>(request);
  return std::make_unique<TensorCoreBackwardLauncher>(request);
}

}  // namespace kda_check::cuda
