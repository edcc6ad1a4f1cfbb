// gpu-chunk, forwards and backwards, ready to be launched on a problem.
#include <optional>

#include "base/peers.hpp"
#include "cuda/problem/launcher_memory.cuh"
#include "cuda/variants/chunk/backward.cuh"
#include "cuda/variants/launcher.cuh"
#include "cuda/variants/shards/segments.cuh"

namespace kda_check::cuda {

namespace {

using kda::Stage;

/// A problem cut into chunks, and what the forward pass leaves of them.
template <class T>
class ChunkArrays {
 public:
  ChunkArrays(const Request& r, const Segments& segments, LauncherMemory& memory, ChunkWork<T>& work)
      : d_(r.dimensions),
        sequences_(parts_of(r, segments)),
        chunks_(sequences_, static_cast<std::uint32_t>(r.chunk_size)),
        C_(r.chunk_size),
        has_tail_(r.tail == kda::TailForm::suffix),
        work_(work) {
    work.chunks = memory.uploaded("chunks", chunks_.all);
    work.sequences = memory.uploaded("sequences", sequences_);
    work.chunks_of = memory.uploaded("chunks of sequences", chunks_.of);
    work.chunk_count = static_cast<int>(chunks_.all.size());
    work.sequence_count = static_cast<int>(sequences_.size());
    work.token_count = static_cast<int>(tokens()), work.C = static_cast<int>(C_);
    work.group = static_cast<int>(d_.HV / d_.H);
  }

  std::size_t tokens() const { return d_.B * d_.T; }
  std::size_t keys() const { return tokens() * d_.K; }
  std::size_t values() const { return tokens() * d_.V; }
  std::size_t scores() const { return tokens() * C_; }
  std::size_t states() const { return chunks() * d_.K * d_.V; }
  std::size_t chunks() const { return chunks_.all.size(); }
  bool has_gates() const { return d_.strength == kda::Strength::gates; }

  std::vector<WorkArray<T>> forward() const {
    return {{&work_.q, "normalised q", keys(), true},
            {&work_.k, "normalised k", keys(), true},
            {&work_.read, "erased k", has_gates() ? keys() : 0},
            {&work_.beta, "beta", tokens()},
            {&work_.G, "g_cumsum", keys(), false, Stage::g_cumsum},
            {&work_.tail, "tail", has_tail_ ? keys() : 0},
            {&work_.Aqk, "Aqk", scores(), false, Stage::Aqk},
            {&work_.L, "L", scores()},
            {&work_.Akk_inv, "Akk_inv", scores(), false, Stage::Akk_inv},
            {&work_.u, "u", values(), false, Stage::u},
            {&work_.w, "w", keys(), false, Stage::w},
            {&work_.qg, "qg", keys(), false, Stage::qg},
            {&work_.kg, "kg", keys(), false, Stage::kg},
            {&work_.h, "h", states(), false, Stage::h},
            {&work_.v_new, "v_new", values(), false, Stage::v_new}};
  }

 private:
  const kda::Dimensions d_;
  const std::vector<TokenRange> sequences_;  ///< or their parts
  const Pieces chunks_;
  const std::size_t C_;
  const bool has_tail_;
  ChunkWork<T>& work_;
};

/// F1 to F7, what chunks have for themselves.
template <class T>
void launch_operands(bool is_fused, kda::DecayForm decay, const DeviceProblem& p, const ChunkWork<T>& work) {
  launch_chunk_prepare(is_fused, p, work);
  launch_chunk_scores(is_fused, decay, p, work);
  launch_chunk_inverse(is_fused, p, work);
  launch_chunk_operands(is_fused, p, work);
}

template <class T>
class ChunkLauncher : public Launcher {
 public:
  ChunkLauncher(const Request& r, const Segments& segments) : is_fused_(r.is_fused), decay_(r.decay) {
    std::vector<WorkArray<T>> arrays = ChunkArrays<T>(r, segments, memory_, work_).forward();
    if (!segments.parts.empty())
      segments_.emplace(r, segments, SegmentStates<T>::Direction::forwards, memory_, arrays);
    heads_together_ = memory_.place(r, arrays);
    if (segments.peers != nullptr)
      heads_together_ = static_cast<int>(segments.peers->least(static_cast<std::size_t>(heads_together_)));
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads(p, heads_together_, [&](int first, int heads) {
      ChunkWork<T> work = work_;
      work.first_head = first, work.heads = heads;
      launch_operands(is_fused_, decay_, p, work);
      if (segments_)
        launch_chunk_state(is_fused_, p, work, *segments_);
      else
        launch_chunk_state(is_fused_, p, work);
      launch_chunk_output(is_fused_, p, work);
    });
  }
  void download_stages(const Request& r) const override { memory_.download_stages(r); }
  void check_canaries() const override { memory_.check_canaries(); }

 private:
  bool is_fused_;
  kda::DecayForm decay_;
  LauncherMemory memory_;
  ChunkWork<T> work_{};
  std::optional<SegmentStates<T>> segments_;
  int heads_together_ = 0;
};

template <class T>
class ChunkBackwardLauncher : public Launcher {
 public:
  ChunkBackwardLauncher(const Request& r, const Segments& segments) : is_fused_(r.is_fused), decay_(r.decay) {
    const ChunkArrays<T> of(r, segments, memory_, work_.forward);
    const ChunkWork<T>& forward = work_.forward;
    const std::vector<PieceRange> blocks_of =
        Pieces(sequences_of(r), static_cast<std::uint32_t>(forward.C)).of;
    work_.blocks_of = memory_.uploaded("blocks of sequences", blocks_of), work_.blocks = forward.chunks;
    work_.sequence_count = static_cast<int>(blocks_of.size()), work_.block_count = forward.chunk_count;
    work_.token_count = forward.token_count, work_.group = forward.group;
    work_.dq_factor = T(1), work_.norm_by_reciprocal = true;
    work_.bias_from_stored_gate = r.casts.dv_local != kda::Rounding::none;

    std::vector<WorkArray<T>> arrays = of.forward();
    const std::size_t keys = of.keys(), values = of.values(), scores = of.scores(), states = of.states();
    // Products of states are no matter of tensor cores: those take what these have cut to tf32 whole.
    const auto if_cut = [&](kda::Rounding rounding) { return rounding == kda::Rounding::tf32 ? states : 0; };
    const WorkArray<T> backward[] = {
        {&work_.forward.exact_h, "states", if_cut(r.casts.state)},
        {&work_.d_o, "do", values},
        {&work_.dAqk, "dAqk", scores, false, Stage::dAqk},
        {&work_.dv_local, "dv_local", values, false, Stage::dv_local},
        {&work_.by_output, "qg^T do", states},
        {&work_.dh, "dh", states, false, Stage::dh},
        {&work_.exact_dh, "gradients of states", if_cut(r.casts.dh)},
        {&work_.dv, "dv", values, false, Stage::dv},
        {&work_.dw, "dw", keys, false, Stage::dw},
        {&work_.dAkk, "dAkk", scores, false, Stage::dAkk},
        {&work_.dkb, "dkb", keys},
        {&work_.write_gradient, "dbeta", of.tokens()},
        {&work_.y, "gradients of values", values},
        {&work_.dq, "dq of value heads", keys},
        {&work_.dk, "dk of value heads", keys},
        {&work_.dg, "dg", keys},
        {&work_.dread, "gradients of erased k", of.has_gates() ? keys : 0},
        {&work_.amplitude_terms, "terms of dA_log", of.tokens()},
        {&work_.amplitude_sums, "sums of dA_log", of.chunks()},
        {&work_.bias_sums, "sums of ddt_bias", of.chunks() * r.dimensions.K},
    };
    arrays.insert(arrays.end(), std::begin(backward), std::end(backward));
    if (!segments.parts.empty()) {
      using Direction = typename SegmentStates<T>::Direction;
      segments_.emplace(r, segments, Direction::forwards_of_backward_pass, memory_, arrays);
      gradient_segments_.emplace(r, segments, Direction::from_the_end, memory_, arrays);
    }
    heads_together_ = memory_.place(r, arrays);
    work_.dbeta = work_.write_gradient;
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads(p, heads_together_, [&](int first, int heads) {
      ChunkBackwardWork<T> work = work_;
      work.first_head = work.forward.first_head = first, work.heads = work.forward.heads = heads;
      launch_operands(is_fused_, decay_, p, work.forward);
      launch_chunk_backward_local(is_fused_, p, work);
      if (segments_)
        launch_chunk_backward_states(is_fused_, p, work, *segments_, *gradient_segments_);
      else
        launch_chunk_backward_states(is_fused_, p, work);
      launch_chunk_backward_inter(is_fused_, p, work);
      launch_chunk_backward_inverse(is_fused_, p, work);
      launch_chunk_backward_intra(is_fused_, decay_, p, work);
      launch_backward_chain<T>(is_fused_, p, work);
      launch_backward_parameters<T>(p, work);
    });
  }
  void download_stages(const Request& r) const override { memory_.download_stages(r); }
  void check_canaries() const override { memory_.check_canaries(); }

 private:
  bool is_fused_;
  kda::DecayForm decay_;
  int heads_together_ = 0;
  LauncherMemory memory_;
  ChunkBackwardWork<T> work_{};
  std::optional<SegmentStates<T>> segments_, gradient_segments_;
};

}  // namespace

std::unique_ptr<Launcher> chunk_launcher(const Request& request, const Segments& segments) {
  if (request.is_fp64) return std::make_unique<ChunkLauncher<double>>(request, segments);
  return std::make_unique<ChunkLauncher<float>>(request, segments);
}
std::unique_ptr<Launcher> chunk_backward_launcher(const Request& request, const Segments& segments) {
  if (request.is_fp64) return std::make_unique<ChunkBackwardLauncher<double>>(request, segments);
  return std::make_unique<ChunkBackwardLauncher<float>>(request, segments);
}

}  // namespace kda_check::cuda
