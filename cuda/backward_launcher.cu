#include "backward_launcher.cuh"

#include <algorithm>
#include <vector>

#include "check.hpp"
#include "kda/kernels/gradient_rules.hpp"
#include "memory.hpp"
#include "recurrent_backward.cuh"

namespace kda_check::cuda {

namespace {

/// Sequences with their segments and blocks.
template <class T>
struct Schedule {
  std::vector<BackwardRange> sequences;
  std::vector<TokenRange> blocks;
  std::uint32_t segments = 0;

  explicit Schedule(const Request& r) {
    for (const kda::Sequence& s : r.sequences) {
      const auto first = static_cast<std::uint32_t>(s.batch * r.dimensions.T + s.begin),
                 count = static_cast<std::uint32_t>(s.length());
      sequences.push_back({first, count, segments, static_cast<std::uint32_t>(blocks.size())});
      constexpr std::uint32_t segment = segment_tokens<T>, block = kda::parameter_block_tokens;
      segments += (count + segment - 1) / segment;
      for (std::uint32_t t = 0; t < count; t += block)
        blocks.push_back({first + t, std::min(block, count - t)});
    }
  }
};

/// Of what is free, the part that arrays may have; the rest is for what else is on its way.
constexpr double usable_memory = 0.8;

template <class T>
class BackwardLauncher : public Launcher {
 public:
  explicit BackwardLauncher(const Request& r)
      : is_fused_(r.is_fused), value_heads_(static_cast<int>(r.dimensions.HV)) {
    const Schedule<T> schedule(r);
    const kda::Dimensions& d = r.dimensions;
    work_.sequences = uploaded("sequences", schedule.sequences);
    work_.blocks = uploaded("blocks of tokens", schedule.blocks);
    work_.sequence_count = static_cast<int>(schedule.sequences.size());
    work_.block_count = static_cast<int>(schedule.blocks.size());
    work_.token_count = static_cast<int>(d.B * d.T);
    work_.group = value_heads_ / static_cast<int>(d.H);

    const std::size_t keys = d.B * d.T * d.K, values = d.B * d.T * d.V, tokens = d.B * d.T, state = d.K * d.V,
                      group = static_cast<std::size_t>(work_.group);
    const bool has_initial = r.gradients[static_cast<int>(kda::Gradient::dinitial_state)].data != nullptr;
    struct Array {
      T** at;
      const char* name;
      std::size_t of_head;  ///< elements; of q and k those of a query head
      bool of_query = false;
    };
    const Array arrays[] = {
        {&work_.q, "normalised q", keys, true},
        {&work_.k, "normalised k", keys, true},
        {&work_.decay, "decay", keys},
        {&work_.beta, "beta", tokens},
        {&work_.v, "v", values},
        {&work_.d_o, "do", values},
        {&work_.initial, "initial states", d.N * state},
        {&work_.final_gradient, "dht", d.N * state},
        {&work_.initial_gradient, "dinitial_state", has_initial ? d.N * state : 0},
        {&work_.checkpoints, "checkpoints", schedule.segments * state},
        {&work_.e, "errors", values},
        {&work_.write, "writes", values},
        {&work_.r, "gradients of predictions", values},
        {&work_.y, "gradients of values", values},
        {&work_.dq, "dq of value heads", keys},
        {&work_.dk, "dk of value heads", keys},
        {&work_.dg, "dg", keys},
        {&work_.carried_sums, "carried sums", d.V > widest_strip ? keys * carried_elements : 0},
        {&work_.amplitude_terms, "terms of dA_log", tokens},
        {&work_.amplitude_sums, "sums of dA_log", schedule.blocks.size()},
        {&work_.bias_sums, "sums of ddt_bias", schedule.blocks.size() * d.K},
    };
    std::size_t bytes_of_group = 0;
    for (const Array& array : arrays)
      bytes_of_group += sizeof(T) * array.of_head * (array.of_query ? 1 : group);
    std::size_t available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "asking for free memory");
    // Heads do not meet: those that find no room follow when the others are done.
    const std::size_t most = static_cast<std::size_t>(usable_memory * static_cast<double>(available)) /
                             std::max<std::size_t>(bytes_of_group, 1),
                      groups = std::clamp<std::size_t>(most, 1, d.H);
    heads_together_ = static_cast<int>(groups * group);
    for (const Array& array : arrays)
      *array.at = array.of_head == 0
                      ? nullptr
                      : hold(DeviceMemory(array.name,
                                          sizeof(T) * array.of_head * (array.of_query ? 1 : group) * groups))
                            .template as<T>();
  }

  void launch_on(const DeviceProblem& p) const override {
    BackwardWork<T> work = work_;
    for (work.first_head = 0; work.first_head < value_heads_; work.first_head += heads_together_) {
      work.heads = std::min(heads_together_, value_heads_ - work.first_head);
      launch_backward_prepare(is_fused_, p, work);
      launch_backward_columns(is_fused_, p, work);
      launch_backward_rows(is_fused_, p, work);
      launch_backward_chain(is_fused_, p, work);
      launch_backward_parameters(p, work);
    }
  }
  void check_canaries() const override {
    for (const DeviceMemory& memory : memory_) memory.check_canaries();
  }

 private:
  DeviceMemory& hold(DeviceMemory memory) {
    memory_.push_back(std::move(memory));
    return memory_.back();
  }
  template <class Element>
  const Element* uploaded(const char* name, const std::vector<Element>& values) {
    DeviceMemory& memory = hold(DeviceMemory(name, values.size() * sizeof(Element)));
    memory.upload(values.data());
    return memory.as<const Element>();
  }

  bool is_fused_;
  int value_heads_, heads_together_ = 0;
  std::vector<DeviceMemory> memory_;
  BackwardWork<T> work_{};
};

}  // namespace

std::unique_ptr<Launcher> backward_launcher_for(const Request& request) {
  if (request.is_fp64) return std::make_unique<BackwardLauncher<double>>(request);
  return std::make_unique<BackwardLauncher<float>>(request);
}

}  // namespace kda_check::cuda
