// Emulations on a problem that is uploaded once, side by side: most have kernels that leave half of a device
// idle, as they go from chunk to chunk or from token to token.
#include <algorithm>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/device.hpp"
#include "cuda/device/stream.hpp"
#include "cuda/problem/device_tensors.cuh"
#include "cuda/spread/emulation.hpp"
#include "cuda/teams/arrays.cuh"
#include "kda/arithmetic/gpu_words.hpp"
#include "kda/kernels/elements/gradient_rules.hpp"

namespace kda_check::cuda {

namespace {

constexpr double share_of_memory = 0.4;           ///< the oracle runs meanwhile
constexpr double gradient_share_of_memory = 0.6;  ///< whose oracle is done before
constexpr std::uint32_t shortest_piece = 16;      ///< a chunk, or what is between checkpoints
static_assert(checkpoint_tokens >= shortest_piece);
constexpr numeric::DType state_dtype = numeric::DType::fp32;

/// Who has work memory for what.
struct LaneKind {
  bool backward, has_chunks;

  explicit LaneKind(const EmulatedForm& form) : backward(form.backward), has_chunks(form.chunk) {}
  /// Forwards the chunk form has all that the recurrence asks for.
  bool can_run(const EmulatedForm& form) const {
    return has_chunks == form.chunk || (has_chunks && !backward);
  }
  bool has_tiles() const { return backward && !has_chunks; }
  /// Elements of a row.
  std::size_t stride(std::size_t width) const {
    return has_tiles() ? (width + tile_columns - 1) / tile_columns * tile_columns : kda::padded(width);
  }
  double share() const { return backward ? gradient_share_of_memory : share_of_memory; }
  /// Backwards the recurrence leaves most of a device idle; beside chunk forms both would take longer, so it
  /// follows them. Otherwise two fill it but for what each does from chunk to chunk or from token to token,
  /// and others would have to ask for memory first.
  std::size_t most_lanes() const { return !backward ? 3 : has_chunks ? 2 : SIZE_MAX; }
};

/// What forms that follow each other need between their kernels.
class Lane {
 public:
  /// Of a form's work arrays the elements of all heads are in at most `share` of the free memory, or fewer
  /// heads are at work. `place`: of its stream.
  Lane(const Request& r, const LaneKind& kind, double share, int place)
      : d_(r.dimensions), sequences_(sequences_of(r)), kind_(kind), stream_(place) {
    work_.sequences = memory_.uploaded("sequences", sequences_);
    work_.sequence_count = static_cast<int>(sequences_.size());
    work_.token_count = static_cast<int>(d_.B * d_.T), work_.group = static_cast<int>(d_.HV / d_.H);
    work_.scratch_elements = scratch_elements(kind, d_);
    scratch_ = DeviceMemory("scratch", scratch_bytes(kind, d_));
    work_.scratch = scratch_.as<float>(), work_.teams = teams_at_once(kind.backward);
    heads_together_ = memory_.place(r, arrays(r, kind, work_), share);
  }

  static std::size_t bytes(const Request& r, const LaneKind& kind) {
    TeamGradientWork<float> work{};
    std::size_t elements = 0;
    for (const WorkArray<float>& array : arrays(r, kind, work)) elements += array.of_head;
    return sizeof(float) * elements * r.dimensions.HV + scratch_bytes(kind, r.dimensions);
  }

  const LaneKind& kind() const { return kind_; }
  int forms() const { return forms_; }

  /// What its kernels will be told. `slowest`: where decays are scaled.
  TeamGradientWork<float> prepared(const EmulatedForm& form, const DeviceProblem& p, int* slowest) {
    const Pieces chunks(
        sequences_,
        static_cast<std::uint32_t>(kind_.has_tiles() ? std::size_t{checkpoint_tokens} : form.chunk_size));
    TeamGradientWork<float> work = work_;
    work.chunks = memory_.uploaded("chunks", chunks.all),
    work.chunk_count = static_cast<int>(chunks.all.size());
    work.chunks_of = memory_.uploaded("chunks of sequences", chunks.of);
    work.set(form.arithmetic, form.chunk_size);
    work.chunk_form = work.norm_by_reciprocal = form.chunk;
    if (!form.chunk && !form.backward) work.key_stride = static_cast<int>(d_.K);
    work.scaled = form.scaled, work.factor = form.factor, work.slowest = slowest;
    work.key_of_decay = static_cast<int>(d_.K / d_.decays());
    if (form.backward) add_up_as_the_cpu(work, form, p);
    ++forms_;
    return work;
  }
  /// Behind those before it. Nothing waits for it; what fills memory must be done.
  void start(const EmulatedForm& form, const DeviceProblem& p, TeamGradientWork<float> work) const {
    over_heads(p, heads_together_, [&](int first, int heads) {
      work.set_heads(first, heads);
      launch_team_inputs<float>(stream_.get(), p, work);
      launch_load_states(stream_.get(), p, work, p.initial_state, work.state, work.sequence_count);
      form.backward ? launch_backward(form, p, work) : launch_forward(form, p, work);
    });
  }
  void mark_end(const Mark& mark) const { mark.set(stream_); }
  void wait_for(const Mark& mark) const { mark.hold_back(stream_); }
  void check_canaries() const {
    memory_.check_canaries();
    scratch_.check_canaries();
  }

 private:
  void launch_forward(const EmulatedForm& form, const DeviceProblem& p, const TeamWork<float>& work) const {
    if (form.chunk) {
      launch_team_operands(stream_.get(), p, work);
      launch_team_states(stream_.get(), p, work);
    } else {
      launch_team_tokens(stream_.get(), p, work);
    }
    launch_team_output(stream_.get(), p, work);
    launch_store_states(stream_.get(), p, work, work.state, p.final_state, work.sequence_count);
  }
  void launch_backward(const EmulatedForm& form, const DeviceProblem& p,
                       const TeamGradientWork<float>& work) const {
    launch_output_gradient(stream_.get(), p, work);
    launch_load_states<float>(stream_.get(), p, work, p.state_gradient, work.gradient, work.sequence_count);
    if (form.chunk) {
      launch_team_operands<float>(stream_.get(), p, work);
      launch_team_local_gradients(stream_.get(), p, work);
      launch_team_state_gradients(stream_.get(), p, work);
      launch_team_chunk_gradients(stream_.get(), p, work);
    } else {
      launch_team_tokens_backward(stream_.get(), p, work);
    }
    launch_gradient_chain(stream_.get(), p, work);
    launch_store_states<float>(stream_.get(), p, work, work.gradient,
                               p.gradients[static_cast<int>(kda::Gradient::dinitial_state)],
                               work.sequence_count);
  }
  /// Chunk by chunk, or as many tokens at a time.
  void add_up_as_the_cpu(TeamGradientWork<float>& work, const EmulatedForm& form, const DeviceProblem& p) {
    const Pieces blocks(sequences_, form.chunk ? static_cast<std::uint32_t>(form.chunk_size)
                                               : std::uint32_t{kda::parameter_block_tokens});
    set_sums(work, blocks.all, blocks.of, memory_, p.casts.dv_local != kda::Rounding::none);
    if (!form.chunk) work.sums.dq_factor = static_cast<float>(p.scale);
  }

  static std::size_t scratch_elements(const LaneKind& kind, const kda::Dimensions& d) {
    return kind.has_chunks
               ? scratch_of_chunks(kind.backward, longest_chunk, d, kind.stride(d.K), kind.stride(d.V))
               : 0;
  }
  static std::size_t scratch_bytes(const LaneKind& kind, const kda::Dimensions& d) {
    return sizeof(float) * scratch_elements(kind, d) * static_cast<std::size_t>(teams_at_once(kind.backward));
  }
  static std::vector<WorkArray<float>> arrays(const Request& r, const LaneKind& kind,
                                              TeamGradientWork<float>& work) {
    const kda::Dimensions& d = r.dimensions;
    work.key_stride = static_cast<int>(kind.stride(d.K)),
    work.value_stride = static_cast<int>(kind.stride(d.V));
    const std::size_t pieces = Pieces(sequences_of(r), shortest_piece).all.size();
    const TeamSizes of(d, work, longest_chunk, r.sequences.size(), pieces);
    std::vector<WorkArray<float>> arrays = input_arrays<float>(work, of, false);
    if (kind.has_chunks) append(arrays, chunk_arrays<float>(work, of));
    if (!kind.backward) {
      append<float>(arrays, {{&work.o, "o", of.values}, {&work.h, "h", kind.has_chunks ? of.states : 0}});
      return arrays;
    }
    append(arrays, gradient_arrays(work, of, false));
    if (kind.has_chunks)
      append<float>(arrays, {{&work.leaving, "gradients of states between chunks", of.matrices}});
    else
      append<float>(arrays, {{&work.error, "errors", of.values},
                             {&work.write, "writes", of.values},
                             {&work.history, "states of a piece",
                              r.sequences.size() * checkpoint_tokens * d.V * kind.stride(d.K)}});
    return arrays;
  }

  const kda::Dimensions d_;
  const std::vector<TokenRange> sequences_;
  const LaneKind kind_;
  LauncherMemory memory_;
  DeviceMemory scratch_;
  TeamGradientWork<float> work_{};
  int heads_together_ = 0, forms_ = 0;
  Stream stream_;  // the last: it is done before what its kernels write goes away
};

/// Lanes, as many as there is memory for.
class Lanes {
 public:
  Lanes(const Request& r, const LaneKind& kind)
      : request_(r), left_(static_cast<std::size_t>(kind.share() * static_cast<double>(free_memory()))) {}

  Lane& lane_for(const EmulatedForm& form) {
    const LaneKind kind(form);
    const std::size_t bytes = Lane::bytes(request_, kind);
    Lane* idlest = nullptr;
    std::size_t able = 0;
    for (Lane& lane : lanes_) {
      if (!lane.kind().can_run(form)) continue;
      ++able;
      if (idlest == nullptr || lane.forms() < idlest->forms()) idlest = &lane;
    }
    if (idlest != nullptr && (bytes > left_ || able >= kind.most_lanes())) return *idlest;
    left_ -= std::min(left_, bytes);
    // After the oracle, and one after the other: what is done comes down while the others go on.
    return lanes_.emplace_back(request_, kind, kind.share(), 1 + static_cast<int>(lanes_.size()));
  }

 private:
  const Request& request_;
  std::size_t left_;
  std::list<Lane> lanes_;
};

/// A tensor of an answer to come.
class Room {
 public:
  Room(const char* name, numeric::DType dtype, std::size_t elements)
      : memory_(std::make_shared<const DeviceMemory>(name, elements * numeric::format_of(dtype).bytes)),
        tensor_{elements == 0 ? nullptr : memory_, dtype, elements} {}

  MutableTensor on_device() const {
    return {memory_->size() == 0 ? nullptr : memory_->data(), tensor_.dtype};
  }
  const kda::TensorOnGpu& filled() const {
    memory_->check_canaries();
    return tensor_;
  }

 private:
  std::shared_ptr<const DeviceMemory> memory_;
  kda::TensorOnGpu tensor_;
};

/// A form, and where its answer comes to be.
struct Started {
  Lane* lane;
  const EmulatedForm* form;
  DeviceProblem problem{};
  TeamGradientWork<float> work{};
  Room o, final_state;
  std::vector<Room> gradients;
  DeviceMemory slowest;
  Mark end;

  Started(Lane& of, const EmulatedForm& what, const kda::Dimensions& d)
      : lane(&of),
        form(&what),
        o("o", what.dtype, what.backward ? 0 : d.B * d.T * d.HV * d.V),
        final_state("final_state", state_dtype, what.backward ? 0 : d.N * d.HV * d.K * d.V),
        slowest("slowest", what.scaled == kda::ScaledDecays::none ? 0 : d.HV * sizeof(int)) {
    for (const EmulatedGradient& wanted : what.gradients)
      gradients.emplace_back("gradients", wanted.dtype, wanted.elements);
  }
  void place(DeviceProblem& p) const {
    p.o = o.on_device(), p.final_state = final_state.on_device();
    for (std::size_t i = 0; i < gradients.size(); ++i) p.gradients[i] = gradients[i].on_device();
  }
  void start() const { lane->start(*form, problem, work); }
  kda::AnswerOnGpu finish() const {
    end.wait();
    lane->check_canaries();
    kda::AnswerOnGpu answer{o.filled(), final_state.filled()};
    for (std::size_t i = 0; i < gradients.size(); ++i) answer.gradients[i] = gradients[i].filled();
    answer.slowest.resize(slowest.size() / sizeof(int));
    if (!answer.slowest.empty())
      slowest.check_canaries(), slowest.download(answer.slowest.data(), slowest.size());
    return answer;
  }
};

}  // namespace

std::string unsupported_emulation(const EmulatedForm& form, const Shape& shape) {
  if (const std::string_view key = kda::cpu_only_key(form.arithmetic, form.casts); !key.empty())
    return "this value of " + std::string(key) + " is computed on the CPU alone";
  if (shape.is_fp64) return "emulations on a GPU are in fp32";
  if (form.chunk && form.chunk_size != 16 && form.chunk_size != 32 && form.chunk_size != 64)
    return "emulations on a GPU have chunks of 16, 32 and 64 rows";
  if (form.backward && !form.chunk && shape.V > widest_emulated_value)
    return "gradients of emulations on a GPU have V up to " + std::to_string(widest_emulated_value);
  return unsupported_shape(shape);
}

void emulate(const ProblemInputs& problem, std::span<const EmulatedForm> forms, const EmulationDone& done) {
  if (forms.empty()) return;
  Request request;
  static_cast<ProblemInputs&>(request) = problem;
  const DeviceTensors inputs(request);
  std::list<Started> started;
  Lanes lanes(request, LaneKind(forms.front()));  // goes first: kernels end before what they write goes away
  for (const EmulatedForm& form : forms) {
    Started& one = started.emplace_back(lanes.lane_for(form), form, request.dimensions);
    request.exponential = form.arithmetic.exponential, request.casts = form.casts;
    one.problem = inputs.problem(request);
    one.place(one.problem);
    one.work = one.lane->prepared(form, one.problem, one.slowest.as<int>());
  }
  check(cudaStreamSynchronize(nullptr), "uploading");  // which other streams would not wait for
  {
    const LoadingOnly before_any_runs;
    for (const Started& one : started) one.start();
  }
  for (const Started& one : started) {
    if (one.form->backward)
      for (const Started& before : started) {
        if (&before == &one) break;
        if (before.lane->kind().has_chunks != one.lane->kind().has_chunks) one.lane->wait_for(before.end);
      }
    one.start();
    one.lane->mark_end(one.end);
  }
  std::size_t i = 0;
  for (const Started& one : started) {
    kda::AnswerOnGpu answer = one.finish();
    inputs.check_canaries();
    if (i + 1 == started.size()) inputs.check_inputs();  // which others have, too
    done(i++, std::move(answer));
  }
}

void download(const kda::TensorOnGpu& tensor, void* to) {
  const auto& memory = *static_cast<const DeviceMemory*>(tensor.memory.get());
  memory.download(to, memory.size());
}

}  // namespace kda_check::cuda
