#include "launcher.cuh"

#include <algorithm>
#include <vector>

#include "backward_launcher.cuh"
#include "chunk.cuh"
#include "memory.hpp"

namespace kda_check::cuda {

namespace {

/// The sequences, over tokens numbered through all batch rows.
std::vector<TokenRange> sequences_of(const Request& r) {
  std::vector<TokenRange> sequences;
  for (const kda::Sequence& s : r.sequences)
    sequences.push_back({static_cast<std::uint32_t>(s.batch * r.dimensions.T + s.begin),
                         static_cast<std::uint32_t>(s.length())});
  return sequences;
}

/// Their chunks, in their order.
struct Schedule {
  std::vector<TokenRange> chunks;
  std::vector<ChunkRange> chunks_of;

  Schedule(const std::vector<TokenRange>& sequences, std::uint32_t rows) {
    for (const TokenRange& s : sequences) {
      const auto first_chunk = static_cast<std::uint32_t>(chunks.size());
      for (std::uint32_t t = 0; t < s.count; t += rows)
        chunks.push_back({s.first + t, std::min(rows, s.count - t)});
      chunks_of.push_back({first_chunk, static_cast<std::uint32_t>(chunks.size()) - first_chunk});
    }
  }
};

template <class Element>
DeviceMemory uploaded(const char* name, const std::vector<Element>& values) {
  DeviceMemory memory(name, values.size() * sizeof(Element));
  memory.upload(values.data());
  return memory;
}

class RecurrentLauncher : public Launcher {
 public:
  explicit RecurrentLauncher(const Request& r)
      : is_fp64_(r.is_fp64),
        is_fused_(r.is_fused),
        count_(static_cast<int>(r.sequences.size())),
        sequences_(uploaded("sequences", sequences_of(r))) {}
  void launch_on(const DeviceProblem& p) const override {
    const auto launch = is_fp64_ ? launch_recurrent<double> : launch_recurrent<float>;
    launch(is_fused_, p, sequences_.as<const TokenRange>(), count_);
  }
  void check_canaries() const override { sequences_.check_canaries(); }

 private:
  bool is_fp64_, is_fused_;
  int count_;
  DeviceMemory sequences_;
};

template <class T>
class ChunkLauncher : public Launcher {
 public:
  explicit ChunkLauncher(const Request& r) : is_fused_(r.is_fused), decay_(r.decay) {
    const std::vector<TokenRange> sequences = sequences_of(r);
    const Schedule schedule(sequences, static_cast<std::uint32_t>(r.chunk_size));
    const kda::Dimensions& d = r.dimensions;
    const std::size_t tokens = d.B * d.T, C = r.chunk_size, keys = tokens * d.HV * d.K,
                      values = tokens * d.HV * d.V;
    work_.chunks = hold(uploaded("chunks", schedule.chunks)).template as<const TokenRange>();
    work_.sequences = hold(uploaded("sequences", sequences)).template as<const TokenRange>();
    work_.chunks_of =
        hold(uploaded("chunks of sequences", schedule.chunks_of)).template as<const ChunkRange>();
    work_.chunk_count = static_cast<int>(schedule.chunks.size());
    work_.sequence_count = static_cast<int>(sequences.size());
    work_.token_count = static_cast<int>(tokens), work_.C = static_cast<int>(C);
    work_.q = array("normalised q", tokens * d.H * d.K), work_.k = array("normalised k", tokens * d.H * d.K);
    work_.beta = array("beta", tokens * d.HV), work_.L = array("L", tokens * d.HV * C);
    if (r.tail == kda::TailForm::suffix) work_.tail = array("tail", keys);
    using kda::Stage;
    work_.G = stage(Stage::g_cumsum, "g_cumsum", keys),
    work_.Aqk = stage(Stage::Aqk, "Aqk", tokens * d.HV * C);
    work_.Akk_inv = stage(Stage::Akk_inv, "Akk_inv", tokens * d.HV * C);
    work_.u = stage(Stage::u, "u", values), work_.w = stage(Stage::w, "w", keys);
    work_.qg = stage(Stage::qg, "qg", keys), work_.kg = stage(Stage::kg, "kg", keys);
    work_.h = stage(Stage::h, "h", schedule.chunks.size() * d.HV * d.K * d.V);
    work_.v_new = stage(Stage::v_new, "v_new", values);
  }

  void launch_on(const DeviceProblem& p) const override {
    launch_chunk_prepare(is_fused_, p, work_);
    launch_chunk_scores(is_fused_, decay_, p, work_);
    launch_chunk_inverse(is_fused_, p, work_);
    launch_chunk_operands(is_fused_, p, work_);
    launch_chunk_state(is_fused_, p, work_);
    launch_chunk_output(is_fused_, p, work_);
  }
  void download_stages(const Request& r) const override {
    for (std::size_t s = 0; s < r.stages.size(); ++s)
      if (r.stages[s].data != nullptr)
        memory_[stages_[s]].download(r.stages[s].data,
                                     r.stages[s].elements * numeric::format_of(r.stages[s].dtype).bytes);
  }
  void check_canaries() const override {
    for (const DeviceMemory& memory : memory_) memory.check_canaries();
  }

 private:
  DeviceMemory& hold(DeviceMemory memory) {
    memory_.push_back(std::move(memory));
    return memory_.back();
  }
  T* array(const char* name, std::size_t elements) {
    return hold(DeviceMemory(name, elements * sizeof(T))).template as<T>();
  }
  T* stage(kda::Stage stage, const char* name, std::size_t elements) {
    stages_[static_cast<std::size_t>(stage)] = memory_.size();
    return array(name, elements);
  }

  bool is_fused_;
  kda::DecayForm decay_;
  std::vector<DeviceMemory> memory_;
  std::array<std::size_t, kda::forward_stage_count> stages_{};  ///< where in memory_
  ChunkWork<T> work_{};
};

}  // namespace

std::unique_ptr<Launcher> launcher_for(Kernel kernel, const Request& request) {
  if (kernel == Kernel::recurrent) return std::make_unique<RecurrentLauncher>(request);
  if (kernel == Kernel::recurrent_backward) return backward_launcher_for(request);
  if (request.is_fp64) return std::make_unique<ChunkLauncher<double>>(request);
  return std::make_unique<ChunkLauncher<float>>(request);
}

}  // namespace kda_check::cuda
