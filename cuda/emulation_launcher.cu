// Emulations on a problem that is uploaded once, side by side: most have kernels that leave half of a device
// idle, as they go from chunk to chunk or from token to token.
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "device.hpp"
#include "device_tensors.cuh"
#include "emulation.cuh"
#include "launcher_memory.cuh"
#include "stream.hpp"

namespace kda_check::cuda {

namespace {

constexpr double share_of_memory = 0.4;  ///< the oracle runs meanwhile
constexpr int longest_chunk = 64;
constexpr numeric::DType state_dtype = numeric::DType::fp32;
constexpr int teams_at_once = 528;  ///< four on each multiprocessor of an H100

int padded(std::size_t width) { return static_cast<int>(kda::padded(width)); }

/// What forms that follow each other need between their kernels.
class Lane {
 public:
  /// Of a form's work arrays the elements of all heads are in at most `share` of the free memory, or fewer
  /// heads are at work. `place`: of its stream.
  Lane(const Request& r, bool has_chunks, double share, int place)
      : d_(r.dimensions), sequences_(sequences_of(r)), has_chunks_(has_chunks), stream_(place) {
    work_.sequences = memory_.uploaded("sequences", sequences_);
    work_.sequence_count = static_cast<int>(sequences_.size());
    work_.token_count = static_cast<int>(d_.B * d_.T), work_.group = static_cast<int>(d_.HV / d_.H);
    work_.value_stride = padded(d_.V);
    work_.scratch_elements = scratch_elements(d_);
    scratch_ = DeviceMemory("scratch", has_chunks ? scratch_bytes(d_) : 0);
    work_.scratch = scratch_.as<float>(), work_.teams = teams_at_once;
    heads_together_ = memory_.place(r, arrays(r, has_chunks, work_), share);
  }

  static std::size_t bytes(const Request& r, bool has_chunks) {
    EmulationWork work{};
    std::size_t elements = 0;
    for (const WorkArray<float>& array : arrays(r, has_chunks, work)) elements += array.of_head;
    return sizeof(float) * elements * r.dimensions.HV + (has_chunks ? scratch_bytes(r.dimensions) : 0);
  }

  bool can_run(const EmulatedForm& form) const { return has_chunks_ || !form.chunk; }
  int forms() const { return forms_; }

  /// Behind those before it. Nothing waits for it. `slowest`: where decays are scaled.
  void start(const EmulatedForm& form, const DeviceProblem& p, int* slowest) {
    const kda::Arithmetic& arithmetic = form.arithmetic;
    const Pieces chunks(sequences_, static_cast<std::uint32_t>(form.chunk_size));
    EmulationWork work = work_;
    work.chunks = memory_.uploaded("chunks", chunks.all),
    work.chunk_count = static_cast<int>(chunks.all.size());
    work.C = static_cast<int>(form.chunk_size), work.chunk_form = work.norm_by_reciprocal = form.chunk;
    work.key_stride = form.chunk ? padded(d_.K) : static_cast<int>(d_.K);
    work.operations = kda::operations_of(arithmetic);
    work.decay = arithmetic.decay, work.inverse = arithmetic.inverse, work.tail_form = arithmetic.tail;
    work.anchor_rows = std::min(arithmetic.anchor_rows, work.C);
    work.inverse_rows = std::min(arithmetic.inverse_rows, (work.C + 15) / 16 * 16);
    work.clamp = static_cast<float>(arithmetic.clamp * 0.693147180559945309417232121458);
    work.scaled = form.scaled, work.factor = form.factor, work.slowest = slowest;
    work.key_of_decay = static_cast<int>(d_.K / d_.decays());
    check(cudaStreamSynchronize(nullptr), "filling memory");  // which another stream would not wait for
    over_heads(p, heads_together_, [&](int first, int heads) {
      work.first_head = first, work.heads = heads;
      launch_emulation_prepare(stream_.get(), p, work);
      form.chunk ? launch_emulation_chunk(stream_.get(), work.operations.is_fused, p, work)
                 : launch_emulation_tokens(stream_.get(), p, work);
      launch_emulation_store(stream_.get(), p, work);
    });
    ++forms_;
  }
  void mark_end(const Mark& mark) const { mark.set(stream_); }
  void check_canaries() const {
    memory_.check_canaries();
    scratch_.check_canaries();
  }

 private:
  static std::size_t scratch_elements(const kda::Dimensions& d) {
    return kda::ChunkScratch(longest_chunk, kda::padded(d.K), kda::padded(d.V)).total();
  }
  static std::size_t scratch_bytes(const kda::Dimensions& d) {
    return sizeof(float) * scratch_elements(d) * std::size_t{teams_at_once};
  }
  static std::vector<WorkArray<float>> arrays(const Request& r, bool has_chunks, EmulationWork& work) {
    const kda::Dimensions& d = r.dimensions;
    const std::size_t tokens = d.B * d.T, keys = tokens * kda::padded(d.K),
                      values = tokens * kda::padded(d.V),
                      states = r.sequences.size() * d.K * kda::padded(d.V);
    const auto if_chunk = [&](std::size_t elements) { return has_chunks ? elements : 0; };
    return {{&work.q, "q", keys},
            {&work.k, "k", keys},
            {&work.g, "gates", keys},
            {&work.beta, "beta", tokens},
            {&work.v, "v", values},
            {&work.o, "o", values},
            {&work.state, "state", states},
            {&work.tail, "tail", if_chunk(keys)},
            {&work.Aqk, "Aqk", if_chunk(tokens * longest_chunk)},
            {&work.L, "L", if_chunk(tokens * longest_chunk)},
            {&work.Akk_inv, "Akk_inv", if_chunk(tokens * longest_chunk)},
            {&work.w, "w", if_chunk(keys)},
            {&work.qg, "qg", if_chunk(keys)},
            {&work.kg, "kg", if_chunk(keys)},
            {&work.u, "u", if_chunk(values)},
            {&work.v_new, "v_new", if_chunk(values)},
            {&work.h, "h", if_chunk(states)}};
  }

  const kda::Dimensions d_;
  const std::vector<TokenRange> sequences_;
  const bool has_chunks_;
  LauncherMemory memory_;
  DeviceMemory scratch_;
  EmulationWork work_{};
  int heads_together_ = 0, forms_ = 0;
  Stream stream_;  // the last: it is done before what its kernels write goes away
};

/// Lanes, as many as there is memory for.
class Lanes {
 public:
  explicit Lanes(const Request& r)
      : request_(r), left_(static_cast<std::size_t>(share_of_memory * static_cast<double>(free_memory()))) {}

  Lane& lane_for(const EmulatedForm& form) {
    const std::size_t bytes = Lane::bytes(request_, form.chunk);
    Lane* idlest = nullptr;
    for (Lane& lane : lanes_)
      if (lane.can_run(form) && (idlest == nullptr || lane.forms() < idlest->forms())) idlest = &lane;
    if (idlest != nullptr && bytes > left_) return *idlest;
    left_ -= std::min(left_, bytes);
    // After the oracle, and one after the other: what is done comes down while the others go on.
    return lanes_.emplace_back(request_, form.chunk, share_of_memory, 1 + static_cast<int>(lanes_.size()));
  }

 private:
  const Request& request_;
  std::size_t left_;
  std::list<Lane> lanes_;
};

/// A form under way, and where its answer comes to be.
struct Started {
  Lane* lane;
  std::shared_ptr<const DeviceMemory> o, final_state;
  DeviceMemory slowest;
  Mark end;

  Started(Lane& of, const EmulatedForm& form, const kda::Dimensions& d)
      : lane(&of),
        o(room_for("o", form.dtype, d.B * d.T * d.HV * d.V)),
        final_state(room_for("final_state", state_dtype, d.N * d.HV * d.K * d.V)),
        slowest("slowest", form.scaled == kda::ScaledDecays::none ? 0 : d.HV * sizeof(int)) {}
  kda::AnswerOnGpu finish(const EmulatedForm& form) const {
    end.wait();
    lane->check_canaries();
    o->check_canaries(), final_state->check_canaries();
    std::vector<int> of_heads(slowest.size() / sizeof(int));
    if (!of_heads.empty()) slowest.check_canaries(), slowest.download(of_heads.data(), slowest.size());
    return {answered(o, form.dtype), answered(final_state, state_dtype), std::move(of_heads)};
  }

 private:
  static std::shared_ptr<const DeviceMemory> room_for(const char* name, numeric::DType dtype,
                                                      std::size_t elements) {
    return std::make_shared<const DeviceMemory>(name, elements * numeric::format_of(dtype).bytes);
  }
  static kda::TensorOnGpu answered(const std::shared_ptr<const DeviceMemory>& memory, numeric::DType dtype) {
    return {memory, dtype, memory->size() / numeric::format_of(dtype).bytes};
  }
};

}  // namespace

std::string unsupported_emulation(const EmulatedForm& form, const Shape& shape) {
  if (form.arithmetic.exponential == kda::Exponential::libm ||
      form.arithmetic.exponential == kda::Exponential::poly)
    return "exponential=libm and poly are the CPU's";
  if (const std::string_view key = kda::cpu_only_key(form.arithmetic); !key.empty())
    return "this value of " + std::string(key) + " is computed on the CPU alone";
  if (form.casts.tensor_core != kda::Rounding::none)
    return "what a tensor core rounds is rounded on the CPU alone";
  if (shape.is_fp64) return "emulations on a GPU are in fp32";
  if (form.chunk && form.chunk_size != 16 && form.chunk_size != 32 && form.chunk_size != 64)
    return "emulations on a GPU have chunks of 16, 32 and 64 rows";
  return unsupported_shape(Kernel::recurrent, shape);
}

void emulate(const ProblemInputs& problem, std::span<const EmulatedForm> forms, const EmulationDone& done) {
  if (forms.empty()) return;
  Request request;
  static_cast<ProblemInputs&>(request) = problem;
  const DeviceTensors inputs(request);
  std::list<Started> started;
  Lanes lanes(request);  // goes first: kernels end before what they write goes away
  for (const EmulatedForm& form : forms) {
    Started& one = started.emplace_back(lanes.lane_for(form), form, request.dimensions);
    request.exponential = form.arithmetic.exponential, request.casts = form.casts;
    DeviceProblem p = inputs.problem(request);
    p.o = {one.o->data(), form.dtype}, p.final_state = {one.final_state->data(), state_dtype};
    one.lane->start(form, p, one.slowest.as<int>());
    one.lane->mark_end(one.end);
  }
  std::size_t i = 0;
  for (const Started& one : started) {
    kda::AnswerOnGpu answer = one.finish(forms[i]);
    inputs.check_canaries();
    done(i++, std::move(answer));
  }
}

void download(const kda::TensorOnGpu& tensor, void* to) {
  const auto& memory = *static_cast<const DeviceMemory*>(tensor.memory.get());
  memory.download(to, memory.size());
}

}  // namespace kda_check::cuda
