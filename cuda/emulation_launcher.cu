// Emulations on a problem that is uploaded once.
#include "base/error.hpp"
#include "check.hpp"
#include "device.hpp"
#include "device_tensors.cuh"
#include "emulation.cuh"
#include "launcher_memory.cuh"

namespace kda_check::cuda {

namespace {

constexpr double share_of_memory = 0.4;  ///< the oracle runs meanwhile
constexpr int longest_chunk = 64;
constexpr int teams_at_once = 528;  ///< four on each multiprocessor of an H100

int padded(std::size_t width) { return static_cast<int>(kda::padded(width)); }

bool is_like(const Output& a, const Output& b) { return a.dtype == b.dtype && a.elements == b.elements; }

class Emulations {
 public:
  Emulations(const Request& r, std::span<const EmulatedForm> forms)
      : d_(r.dimensions), sequences_(sequences_of(r)) {
    bool any_chunk = false;
    for (const EmulatedForm& form : forms) any_chunk = any_chunk || form.chunk;
    const std::size_t tokens = d_.B * d_.T, keys = tokens * kda::padded(d_.K),
                      values = tokens * kda::padded(d_.V),
                      states = sequences_.size() * d_.K * kda::padded(d_.V);
    const auto if_chunk = [&](std::size_t elements) { return any_chunk ? elements : 0; };
    const std::vector<WorkArray<float>> arrays{{&work_.q, "q", keys},
                                               {&work_.k, "k", keys},
                                               {&work_.g, "gates", keys},
                                               {&work_.beta, "beta", tokens},
                                               {&work_.v, "v", values},
                                               {&work_.o, "o", values},
                                               {&work_.state, "state", states},
                                               {&work_.tail, "tail", if_chunk(keys)},
                                               {&work_.Aqk, "Aqk", if_chunk(tokens * longest_chunk)},
                                               {&work_.L, "L", if_chunk(tokens * longest_chunk)},
                                               {&work_.Akk_inv, "Akk_inv", if_chunk(tokens * longest_chunk)},
                                               {&work_.w, "w", if_chunk(keys)},
                                               {&work_.qg, "qg", if_chunk(keys)},
                                               {&work_.kg, "kg", if_chunk(keys)},
                                               {&work_.u, "u", if_chunk(values)},
                                               {&work_.v_new, "v_new", if_chunk(values)},
                                               {&work_.h, "h", if_chunk(states)}};
    work_.sequences = memory_.uploaded("sequences", sequences_);
    work_.sequence_count = static_cast<int>(sequences_.size());
    work_.token_count = static_cast<int>(tokens), work_.group = static_cast<int>(d_.HV / d_.H);
    work_.value_stride = padded(d_.V);
    work_.scratch_elements = kda::ChunkScratch(longest_chunk, kda::padded(d_.K), kda::padded(d_.V)).total();
    scratch_ = DeviceMemory(
        "scratch", any_chunk ? sizeof(float) * work_.scratch_elements * std::size_t{teams_at_once} : 0);
    work_.scratch = scratch_.as<float>(), work_.teams = teams_at_once;
    heads_together_ = memory_.place(r, arrays, share_of_memory);
  }

  void run(const EmulatedForm& form, const DeviceProblem& p) {
    const kda::Arithmetic& arithmetic = form.arithmetic;
    const Pieces chunks(sequences_, static_cast<std::uint32_t>(form.chunk_size));
    const DeviceMemory of_chunks = uploaded("chunks", chunks.all);
    EmulationWork work = work_;
    work.chunks = of_chunks.as<const TokenRange>(), work.chunk_count = static_cast<int>(chunks.all.size());
    work.C = static_cast<int>(form.chunk_size), work.chunk_form = work.norm_by_reciprocal = form.chunk;
    work.key_stride = form.chunk ? padded(d_.K) : static_cast<int>(d_.K);
    work.operations = kda::operations_of(arithmetic);
    work.decay = arithmetic.decay, work.inverse = arithmetic.inverse, work.tail_form = arithmetic.tail;
    work.anchor_rows = std::min(arithmetic.anchor_rows, work.C);
    work.inverse_rows = std::min(arithmetic.inverse_rows, (work.C + 15) / 16 * 16);
    work.clamp = static_cast<float>(arithmetic.clamp * 0.693147180559945309417232121458);
    over_heads(p, heads_together_, [&](int first, int heads) {
      work.first_head = first, work.heads = heads;
      launch_emulation_prepare(p, work);
      form.chunk ? launch_emulation_chunk(work.operations.is_fused, p, work)
                 : launch_emulation_tokens(p, work);
      launch_emulation_store(p, work);
    });
    check(cudaDeviceSynchronize(), "emulating");
    of_chunks.check_canaries();
  }
  void check_canaries() const {
    memory_.check_canaries();
    scratch_.check_canaries();
  }

 private:
  static DeviceMemory uploaded(const char* name, const std::vector<TokenRange>& ranges) {
    DeviceMemory memory(name, ranges.size() * sizeof(TokenRange));
    memory.upload(ranges.data());
    return memory;
  }

  const kda::Dimensions d_;
  const std::vector<TokenRange> sequences_;
  LauncherMemory memory_;
  DeviceMemory scratch_;
  EmulationWork work_{};
  int heads_together_ = 0;
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

void emulate(const ProblemInputs& problem, std::span<const EmulatedForm> forms) {
  if (forms.empty()) return;
  Request request;
  static_cast<ProblemInputs&>(request) = problem;
  request.o = forms.front().o, request.final_state = forms.front().final_state;
  const DeviceTensors tensors(request);
  Emulations emulations(request, forms);
  for (const EmulatedForm& form : forms) {
    if (!is_like(form.o, forms.front().o) || !is_like(form.final_state, forms.front().final_state))
      throw Error(ErrorKind::internal, "GPU: emulations of one problem have answers of one size and dtype",
                  {}, "please report it with the command line");
    request.o = form.o, request.final_state = form.final_state;
    tensors.poison_outputs();
    request.exponential = form.arithmetic.exponential, request.casts = form.casts;
    emulations.run(form, tensors.problem(request));
    emulations.check_canaries();
    tensors.check_canaries();
    tensors.download(request);
  }
}

}  // namespace kda_check::cuda
