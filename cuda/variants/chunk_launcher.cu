// gpu-chunk on plain cores, forwards and backwards, ready to be launched on a problem.
#include <optional>

#include "base/peers.hpp"
#include "cuda/variants/launcher.cuh"
#include "cuda/variants/shards/segments.cuh"

namespace kda_check::cuda {

namespace {

template <class T>
class ChunkLauncher : public Launcher {
 public:
  ChunkLauncher(const Request& r, const Segments& segments, bool backward) : backward_(backward) {
    const kda::Dimensions& d = r.dimensions;
    const std::vector<TokenRange> parts = parts_of(r, segments);
    const Pieces chunks(parts, static_cast<std::uint32_t>(r.chunk_size));
    work_.chunks = memory_.uploaded("chunks", chunks.all);
    work_.chunks_of = memory_.uploaded("chunks of sequences", chunks.of);
    work_.chunk_count = static_cast<int>(chunks.all.size());
    work_.sequence_count = static_cast<int>(parts.size());
    work_.token_count = static_cast<int>(d.B * d.T), work_.group = static_cast<int>(d.HV / d.H);
    work_.key_stride = static_cast<int>(kda::padded(d.K)),
    work_.value_stride = static_cast<int>(kda::padded(d.V));
    work_.chunk_form = work_.norm_by_reciprocal = true;
    work_.set(r.arithmetic, r.chunk_size);

    const TeamSizes of(d, work_, r.chunk_size, parts.size(), chunks.all.size());
    const bool has_gates = d.strength == kda::Strength::gates;
    std::vector<WorkArray<T>> arrays = input_arrays<T>(work_, of, has_gates);
    append(arrays, chunk_arrays<T>(work_, of));
    if (backward) {
      append(arrays, gradient_arrays(work_, of, has_gates));
      append<T>(arrays, {{&work_.leaving, "gradients of states between chunks", of.matrices}});
    } else {
      append<T>(arrays, {{&work_.o, "o", of.values}, {&work_.h, "h", of.states}});
    }
    for (std::size_t s = 0; s < kda::stage_count; ++s)
      if (r.stages[s].data != nullptr)
        arrays.push_back({&work_.stages[s], "stage", r.stages[s].elements / d.HV, false, kda::Stage(s)});
    if (!segments.parts.empty()) {
      using Direction = typename SegmentStates<T>::Direction;
      segments_.emplace(r, segments, backward ? Direction::forwards_of_backward_pass : Direction::forwards,
                        work_, memory_, arrays);
      if (backward) gradient_segments_.emplace(r, segments, Direction::from_the_end, work_, memory_, arrays);
    }
    place_scratch(d, chunks.all.size() * d.HV, !segments.parts.empty());
    heads_together_ = memory_.place(r, arrays);
    if (segments.peers != nullptr)
      heads_together_ = static_cast<int>(segments.peers->least(static_cast<std::size_t>(heads_together_)));
    // Gradients are added up over tokens as if sequences were not cut.
    if (backward)
      set_sums(work_, chunks.all, Pieces(sequences_of(r), static_cast<std::uint32_t>(r.chunk_size)).of,
               memory_, r.casts.dv_local != kda::Rounding::none);
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads(p, heads_together_, [&](int first, int heads) {
      TeamGradientWork<T> work = work_;
      work.set_heads(first, heads);
      launch_team_inputs<T>(nullptr, p, work);
      launch_team_operands<T>(nullptr, p, work);
      enter(p, work, segments_, p.initial_state, work.state);
      backward_ ? launch_backward(p, work) : launch_forward(p, work);
    });
  }
  void download_stages(const Request& r) const override { memory_.download_stages(r); }
  void check_canaries() const override {
    memory_.check_canaries();
    scratch_.check_canaries();
  }

 private:
  using States = std::optional<SegmentStates<T>>;

  void place_scratch(const kda::Dimensions& d, std::size_t items, bool has_maps) {
    const auto K_stride = static_cast<std::size_t>(work_.key_stride),
               V_stride = static_cast<std::size_t>(work_.value_stride);
    std::size_t elements =
        scratch_of_chunks(backward_, static_cast<std::size_t>(work_.C), d, K_stride, V_stride);
    if (has_maps) elements = std::max(elements, (2 * d.K + 1) * K_stride + d.K * V_stride);
    work_.scratch_elements = elements;
    work_.teams = static_cast<int>(std::min<std::size_t>(items + 1, teams_at_once(backward_)));
    scratch_ = DeviceMemory("scratch", sizeof(T) * elements * static_cast<std::size_t>(work_.teams));
    work_.scratch = scratch_.as<T>();
  }

  static void enter(const DeviceProblem& p, const TeamWork<T>& work, const States& segments,
                    const Tensor& from, T* states) {
    segments ? segments->enter(p, work, from, states)
             : launch_load_states(nullptr, p, work, from, states, work.sequence_count);
  }
  static void leave(const DeviceProblem& p, const TeamWork<T>& work, const States& segments, const T* states,
                    const MutableTensor& to) {
    segments ? segments->leave(p, work, states, to)
             : launch_store_states(nullptr, p, work, states, to, work.sequence_count);
  }

  void launch_forward(const DeviceProblem& p, const TeamWork<T>& work) const {
    if (segments_ && segments_->has_maps()) {
      const TeamWork<T> mapped = segments_->mapped(p, work);
      launch_team_states(nullptr, p, mapped);
      segments_->merge(p, mapped, work.state);
    }
    launch_team_states(nullptr, p, work);
    launch_team_output(nullptr, p, work);
    leave(p, work, segments_, work.state, p.final_state);
  }

  void launch_backward(const DeviceProblem& p, const TeamGradientWork<T>& work) const {
    launch_output_gradient(nullptr, p, work);
    enter(p, work, gradient_segments_, p.state_gradient, work.gradient);
    launch_team_local_gradients(nullptr, p, work);
    if (segments_ && segments_->has_maps()) {
      TeamGradientWork<T> mapped = work;
      static_cast<TeamWork<T>&>(mapped) = segments_->mapped(p, work);
      mapped.gradient = gradient_segments_->mapped(p, work).state;
      launch_team_state_gradients(nullptr, p, mapped);
      segments_->merge(p, mapped, work.state);
      gradient_segments_->merge(p, mapped, work.gradient);
    }
    launch_team_state_gradients(nullptr, p, work);
    launch_team_chunk_gradients(nullptr, p, work);
    launch_backward_chain<T>(work.operations.is_fused, p, work.sums);
    launch_backward_parameters<T>(p, work.sums);
    leave(p, work, gradient_segments_, work.gradient,
          p.gradients[static_cast<int>(kda::Gradient::dinitial_state)]);
  }

  const bool backward_;
  LauncherMemory memory_;
  DeviceMemory scratch_;
  TeamGradientWork<T> work_{};
  States segments_, gradient_segments_;
  int heads_together_ = 0;
};

}  // namespace

std::unique_ptr<Launcher> chunk_launcher(const Request& request, const Segments& segments, bool backward) {
  if (request.is_fp64) return std::make_unique<ChunkLauncher<double>>(request, segments, backward);
  return std::make_unique<ChunkLauncher<float>>(request, segments, backward);
}

}  // namespace kda_check::cuda
