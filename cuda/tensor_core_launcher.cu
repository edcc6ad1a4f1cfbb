// gpu-chunk on tensor cores, ready to be launched on a problem.
#include "launcher.cuh"
#include "launcher_memory.cuh"
#include "tensor_core_chunk.cuh"

namespace kda_check::cuda {

namespace {

using kda::Stage;

class TensorCoreLauncher : public Launcher {
 public:
  explicit TensorCoreLauncher(const Request& r) {
    const std::vector<TokenRange> sequences = sequences_of(r);
    const Pieces chunks(sequences, image_rows);
    work_.chunks = memory_.uploaded("chunks", chunks.all);
    work_.sequences = memory_.uploaded("sequences", sequences);
    work_.chunks_of = memory_.uploaded("chunks of sequences", chunks.of);
    work_.chunk_count = static_cast<int>(chunks.all.size());
    work_.sequence_count = static_cast<int>(sequences.size());
    work_.group = static_cast<int>(r.dimensions.HV / r.dimensions.H);
    work_.decay = r.decay;
    const std::size_t bytes = chunks.all.size() * image_bytes(static_cast<int>(r.dimensions.K));
    heads_together_ = memory_.place<unsigned char>(r, {{&work_.images, "images of chunks", bytes}});
    if (!wants_stages(r)) return;
    const kda::Dimensions& d = r.dimensions;
    const std::size_t tokens = d.B * d.T, keys = tokens * d.K, values = tokens * d.V,
                      scores = tokens * image_rows, states = chunks.all.size() * d.K * d.V;
    TensorCoreStages& to = work_.stages;
    memory_.place<float>(r, {{&to.G, "g_cumsum", keys, false, Stage::g_cumsum},
                             {&to.Aqk, "Aqk", scores, false, Stage::Aqk},
                             {&to.Akk_inv, "Akk_inv", scores, false, Stage::Akk_inv},
                             {&to.u, "u", values, false, Stage::u},
                             {&to.w, "w", keys, false, Stage::w},
                             {&to.qg, "qg", keys, false, Stage::qg},
                             {&to.kg, "kg", keys, false, Stage::kg},
                             {&to.h, "h", states, false, Stage::h},
                             {&to.v_new, "v_new", values, false, Stage::v_new}});
  }

  void launch_on(const DeviceProblem& p) const override {
    over_heads(p, heads_together_, [&](int first, int heads) {
      TensorCoreWork work = work_;
      work.first_head = first, work.heads = heads;
      launch_tensor_core_prepare(p, work);
      launch_tensor_core_state(p, work);
    });
  }
  void download_stages(const Request& r) const override { memory_.download_stages(r); }
  void check_canaries() const override { memory_.check_canaries(); }

 private:
  LauncherMemory memory_;
  TensorCoreWork work_{};
  int heads_together_;
};

}  // namespace

std::unique_ptr<Launcher> tensor_core_launcher(const Request& request) {
  return std::make_unique<TensorCoreLauncher>(request);
}

}  // namespace kda_check::cuda
