// gpu-recurrent backwards, ready to be launched on a problem.
#include "cuda/problem/launcher_memory.cuh"
#include "cuda/variants/launcher.cuh"
#include "cuda/variants/recurrent/recurrent_backward.cuh"
#include "kda/kernels/elements/gradient_rules.hpp"

namespace kda_check::cuda {

namespace {

/// Sequences with their segments.
std::vector<BackwardRange> ranges_of(const std::vector<TokenRange>& sequences, const Pieces& segments) {
  std::vector<BackwardRange> ranges;
  for (std::size_t n = 0; n < sequences.size(); ++n)
    ranges.push_back({sequences[n].first, sequences[n].count, segments.of[n].first});
  return ranges;
}

template <class T>
class BackwardLauncher : public Launcher {
 public:
  explicit BackwardLauncher(const Request& r) : is_fused_(r.is_fused) {
    const std::vector<TokenRange> sequences = sequences_of(r);
    const Pieces segments(sequences, segment_tokens<T>), blocks(sequences, kda::parameter_block_tokens);
    const kda::Dimensions& d = r.dimensions;
    work_.ranges = memory_.uploaded("sequences", ranges_of(sequences, segments));
    work_.blocks_of = memory_.uploaded("blocks of sequences", blocks.of);
    work_.blocks = memory_.uploaded("blocks of tokens", blocks.all);
    work_.sequence_count = static_cast<int>(sequences.size());
    work_.block_count = static_cast<int>(blocks.all.size());
    work_.token_count = static_cast<int>(d.B * d.T);
    work_.group = static_cast<int>(d.HV / d.H);
    work_.dq_factor = static_cast<T>(r.scale);
    work_.key_stride = static_cast<int>(d.K), work_.value_stride = static_cast<int>(d.V);

    const std::size_t keys = d.B * d.T * d.K, values = d.B * d.T * d.V, tokens = d.B * d.T, state = d.K * d.V;
    const bool has_gates = d.strength == kda::Strength::gates;
    const bool has_initial = r.gradients[static_cast<int>(kda::Gradient::dinitial_state)].data != nullptr;
    heads_together_ = memory_.place<T>(
        r, {
               {&work_.q, "normalised q", keys, true},
               {&work_.k, "normalised k", keys, true},
               {&work_.decay, "decay", keys},
               {&work_.read, "erased k", has_gates ? keys : 0},
               {&work_.beta, "beta", d.strength == kda::Strength::value ? values : tokens},
               {&work_.v, "v", values},
               {&work_.d_o, "do", values},
               {&work_.initial, "initial states", d.N * state},
               {&work_.final_gradient, "dht", d.N * state},
               {&work_.initial_gradient, "dinitial_state", has_initial ? d.N * state : 0},
               {&work_.checkpoints, "checkpoints", segments.all.size() * state},
               {&work_.e, "errors", values},
               {&work_.write, "writes", values},
               {&work_.r, "gradients of predictions", values},
               {&work_.y, "gradients of values", values},
               {&work_.dq, "dq of value heads", keys},
               {&work_.dk, "dk of value heads", keys},
               {&work_.dg, "dg", keys},
               {&work_.dread, "gradients of erased k", has_gates ? keys : 0},
               {&work_.carried_sums, "carried sums", d.V > widest_strip ? keys * carried_elements : 0},
               {&work_.amplitude_terms, "terms of dA_log", tokens},
               {&work_.amplitude_sums, "sums of dA_log", blocks.all.size()},
               {&work_.bias_sums, "sums of ddt_bias", blocks.all.size() * d.K},
           });
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads(p, heads_together_, [&](int first, int heads) {
      BackwardWork<T> work = work_;
      work.first_head = first, work.heads = heads;
      launch_backward_prepare(is_fused_, p, work);
      launch_backward_columns(is_fused_, p, work);
      launch_backward_rows(is_fused_, p, work);
      launch_backward_chain<T>(is_fused_, p, work);
      launch_backward_parameters<T>(p, work);
    });
  }
  void check_canaries() const override { memory_.check_canaries(); }

 private:
  bool is_fused_;
  int heads_together_;
  LauncherMemory memory_;
  BackwardWork<T> work_{};
};

}  // namespace

std::unique_ptr<Launcher> recurrent_backward_launcher(const Request& request) {
  if (request.is_fp64) return std::make_unique<BackwardLauncher<double>>(request);
  return std::make_unique<BackwardLauncher<float>>(request);
}

}  // namespace kda_check::cuda
