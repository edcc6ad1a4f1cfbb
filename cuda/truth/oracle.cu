// The oracle: inputs go up, tokens come down while the next are computed.
#include "cuda/truth/oracle.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/threads/parallel.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/device.hpp"
#include "cuda/device/device_input.hpp"
#include "cuda/device/host_memory.hpp"
#include "cuda/device/memory.hpp"
#include "cuda/device/stream.hpp"
#include "cuda/truth/problem.cuh"
#include "cuda/truth/schedule.hpp"

namespace kda_check::cuda {

namespace {

/// Tokens times heads of a step: long enough that its start does not show, short enough that copying the
/// first and comparing the last do not either.
constexpr std::size_t step_size = 16384;
constexpr std::size_t most_states = 512;    ///< side by side, of short sequences
constexpr std::size_t states_at_once = 16;  ///< that are copied to the host
constexpr std::size_t least_steps = 8;      ///< of a long sequence
constexpr std::size_t slots = 2;
constexpr std::size_t most_pieces = 8;   ///< of sequences in a step, that are copied one by one
constexpr std::size_t most_outputs = 4;  ///< of steps, that are computed or wait to be handed out

/// Memory of the host is kept from run to run: to ask for it takes longer than a small problem.
struct OracleHostMemory {
  std::mutex in_use;
  std::array<PinnedMemory, slots> inputs, outputs;
  PinnedMemory states, worst;
};
OracleHostMemory& oracle_host_memory() {
  static OracleHostMemory memory;
  return memory;
}

/// A tensor of tokens, of which a step takes some tokens and heads.
struct TokenTensor {
  Input input;
  std::size_t heads, first, used, width;              ///< heads of the tensor, and those that are wanted
  std::size_t offset = 0;                             ///< in the memory of a step
  std::shared_ptr<const DeviceInput> on_device = {};  ///< where it is there already, whole

  std::size_t element_bytes() const { return numeric::format_of(input.dtype).bytes; }
  std::size_t row_bytes() const { return used * width * element_bytes(); }
  /// From row to row of the tensor, and where in a row those that are wanted begin.
  std::size_t stride() const { return heads * width * element_bytes(); }
  std::size_t first_byte() const { return first * width * element_bytes(); }
};

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

class OracleRun {
 public:
  OracleRun(const OracleRequest& r, const OracleSinks& sinks, OracleHostMemory& host)
      : r_(r), sinks_(sinks), host_(host), d_(r.dimensions), heads_(r.last_head - r.first_head) {
    const std::size_t group = d_.HV / d_.H, first_query = r.first_head / group;
    query_heads_ = (r.last_head - 1) / group + 1 - first_query;
    tensors_ = {{{r.q, d_.H, first_query, query_heads_, d_.K},
                 {r.k, d_.H, first_query, query_heads_, d_.K},
                 {r.v, d_.HV, r.first_head, heads_, d_.V},
                 {r.g, d_.HV, r.first_head, heads_, d_.K},
                 {r.beta, d_.HV, r.first_head, heads_, 1}}};
    std::size_t tokens = step_size / heads_;
    // What is alone has nothing beside it to hide its copies behind but its own parts.
    if (r.sequences.size() == 1) tokens = std::min(tokens, r.sequences[0].length() / least_steps);
    const std::size_t blocks = std::max<std::size_t>(1, tokens / r.block_tokens);
    steps_ =
        oracle_steps(r.sequences, blocks * r.block_tokens, std::max<std::size_t>(1, most_states / heads_));
    for (const OracleStep& step : steps_) {
      most_tokens_ = std::max(most_tokens_, step.tokens());
      most_sequences_ = std::max(most_sequences_, step.pieces.size());
    }
    find_inputs();
    try {
      allocate();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::environment || tensors_.front().on_device == nullptr) throw;
      forget_inputs();  // whose memory there is then
      allocate();
    }
  }

  void run() {
    std::size_t started = 0, downloading = 0;
    if (steps_.empty() && sinks_.begun) sinks_.begun();
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      check_interruption();
      // Ahead as far as there is room, but not into what needs the states that a step ends with; and not
      // where something waits to be handed out.
      while (started < steps_.size() && started < i + outputs_.size() &&
             (started <= i || !steps_[started - 1].ends) &&
             (started < i + slots || !downloaded_[i % slots].is_reached())) {
        start(started++);
        for (; downloading < std::min(started, i + slots); ++downloading) download(downloading);
        if (started == 1 && sinks_.begun) sinks_.begun();
      }
      for (; downloading < std::min(started, i + slots); ++downloading) download(downloading);
      hand_out(i);
    }
    check(cudaStreamSynchronize(compute_.get()), "running the oracle");
    for (const DeviceMemory* const memory :
         {&A_log_, &dt_bias_, &initial_state_, &states_, &errors_, &worst_})
      if (memory->data() != nullptr) memory->check_canaries();
    for (const auto* const memories : {&inputs_, &norms_, &channels_, &values_, &strengths_, &token_norms_})
      for (const DeviceMemory& memory : *memories)
        if (memory.data() != nullptr) memory.check_canaries();
    for (const DeviceMemory& memory : outputs_) memory.check_canaries();
  }

 private:
  std::size_t states_size() const { return most_sequences_ * heads_ * d_.K * d_.V; }
  std::size_t outputs_size() const { return most_tokens_ * heads_ * d_.V; }

  /// Where they are on the device already, if all of them are and that is of use.
  void find_inputs() {
    if (std::ranges::none_of(steps_, has_few_pieces)) return;
    for (TokenTensor& tensor : tensors_) tensor.on_device = already_on_device(tensor.input);
    const auto is_missing = [](const TokenTensor& tensor) { return tensor.on_device == nullptr; };
    if (std::ranges::any_of(tensors_, is_missing)) forget_inputs();
  }
  void forget_inputs() {
    for (TokenTensor& tensor : tensors_) tensor.on_device = nullptr;
  }
  static bool has_few_pieces(const OracleStep& step) { return step.pieces.size() <= most_pieces; }

  void allocate() {
    std::size_t bytes = aligned(most_sequences_ * sizeof(TokenRange));
    for (TokenTensor& tensor : tensors_) {
      tensor.offset = bytes;
      bytes += aligned(most_tokens_ * tensor.row_bytes());
    }
    input_bytes_ = bytes;
    const auto whole = [](const char* name, const Input& input, DeviceMemory& memory) {
      if (input.data == nullptr) return;
      memory = DeviceMemory(name, numeric::format_of(input.dtype).bytes * input.elements);
      memory.upload(input.data);
    };
    whole("A_log", r_.A_log, A_log_);
    whole("dt_bias", r_.dt_bias, dt_bias_);
    whole("initial_state", r_.initial_state, initial_state_);
    states_ = DeviceMemory("states", 3 * states_size() * sizeof(double));
    const std::size_t output_bytes = 3 * outputs_size() * sizeof(double);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      inputs_[slot] = DeviceMemory("inputs", input_bytes_);
      norms_[slot] = DeviceMemory("norms", most_tokens_ * query_heads_ * 2 * sizeof(kda::RowNorm));
      channels_[slot] = DeviceMemory("channels", most_tokens_ * heads_ * d_.K * sizeof(ChannelPairs));
      values_[slot] = DeviceMemory("values", most_tokens_ * heads_ * d_.V * sizeof(double));
      strengths_[slot] = DeviceMemory("beta", most_tokens_ * heads_ * 2 * sizeof(double));
      if (r_.in_fp64)
        token_norms_[slot] = DeviceMemory("norms of tokens", most_tokens_ * heads_ * sizeof(kda::TokenNorms));
      host_.inputs[slot].reserve(input_bytes_);
      host_.outputs[slot].reserve(output_bytes);
    }
    outputs_.clear();
    for (std::size_t i = 0; i < std::min(most_outputs, steps_.size()); ++i)
      outputs_.emplace_back("outputs", output_bytes);
    if (r_.in_fp64) {
      errors_ = DeviceMemory("errors", most_sequences_ * heads_ * d_.V * sizeof(double));
      worst_ = DeviceMemory("largest errors", 2 * outputs_.size() * sizeof(double));
      host_.worst.reserve(2 * slots * sizeof(double));
    }
    computed_ = std::vector<Mark>(outputs_.size());
    host_.states.reserve(3 * std::min(states_at_once, heads_) * d_.K * d_.V * sizeof(double));
    check(cudaStreamSynchronize(nullptr), "uploading");  // which those below would not wait for
  }

  /// Numbers the tokens of a step from 0.
  static void number_tokens(const OracleStep& step, TokenRange* ranges) {
    std::uint32_t first = 0;
    for (std::size_t i = 0; i < step.pieces.size(); ++i) {
      const auto count = static_cast<std::uint32_t>(step.pieces[i].length());
      ranges[i] = {first, count};
      first += count;
    }
  }
  void gather(const OracleStep& step, const PinnedMemory& memory) const {
    std::vector<std::size_t> tokens;  // of all batch rows
    for (const kda::Sequence& piece : step.pieces)
      for (std::size_t t = piece.begin; t < piece.end; ++t) tokens.push_back(piece.batch * d_.T + t);
    constexpr std::size_t most = 64;
    const std::size_t blocks = (tokens.size() + most - 1) / most;
    const bool is_small = tokens.size() * heads_ < 1024;
    parallel_for(blocks * tensors_.size(), is_small ? 1 : r_.threads, [&](std::size_t item, int) {
      const TokenTensor& tensor = tensors_[item / blocks];
      const std::size_t begin = item % blocks * most, end = std::min(begin + most, tokens.size());
      const char* const from = static_cast<const char*>(tensor.input.data) + tensor.first_byte();
      for (std::size_t t = begin; t < end; ++t)
        std::memcpy(memory.as<char>(tensor.offset) + t * tensor.row_bytes(),
                    from + tokens[t] * tensor.stride(), tensor.row_bytes());
    });
  }
  /// What gather() does, within the device.
  void gather_there(const OracleStep& step, const DeviceMemory& memory) const {
    for (const TokenTensor& tensor : tensors_) {
      char* to = memory.as<char>() + tensor.offset;
      for (const kda::Sequence& piece : step.pieces) {
        if (piece.length() == 0) continue;
        const std::size_t token = piece.batch * d_.T + piece.begin;
        const char* const from =
            tensor.on_device->memory.as<const char>() + token * tensor.stride() + tensor.first_byte();
        check(cudaMemcpy2DAsync(to, tensor.row_bytes(), from, tensor.stride(), tensor.row_bytes(),
                                piece.length(), cudaMemcpyDeviceToDevice, up_.get()),
              "gathering tokens");
        to += piece.length() * tensor.row_bytes();
      }
    }
  }
  /// The inputs of a step to its slot. `was_used`: by a step before.
  void bring(const OracleStep& step, std::size_t slot, bool was_used) {
    const PinnedMemory& host = host_.inputs[slot];
    number_tokens(step, host.as<TokenRange>());
    const bool is_there = tensors_.front().on_device != nullptr && has_few_pieces(step);
    if (!is_there) gather(step, host);
    if (was_used) taken_[slot].hold_back(up_);
    const std::size_t bytes = is_there ? step.pieces.size() * sizeof(TokenRange) : input_bytes_;
    check(cudaMemcpyAsync(inputs_[slot].data(), host.as<char>(), bytes, cudaMemcpyHostToDevice, up_.get()),
          "uploading tokens");
    uploaded_[slot].set(up_);
    if (is_there) gather_there(step, inputs_[slot]);
  }

  WithMagnitude three(const DeviceMemory& memory, std::size_t size) const {
    double* const first = memory.as<double>();
    return {first, first + size, first + 2 * size};
  }

  /// `output`: where it goes.
  OraclePortion portion(const OracleStep& step, std::size_t slot, std::size_t output) const {
    const auto stored = [&](std::size_t i) {
      return Tensor{inputs_[slot].as<char>() + tensors_[i].offset, tensors_[i].input.dtype};
    };
    const auto parameter = [](const DeviceMemory& memory, const Input& input) {
      return Tensor{input.data == nullptr ? nullptr : memory.data(), input.dtype};
    };
    const kda::Options& options = r_.options;
    OraclePortion p{};
    p.tokens = static_cast<int>(step.tokens()), p.heads = static_cast<int>(heads_);
    p.query_heads = static_cast<int>(query_heads_);
    p.K = static_cast<int>(d_.K), p.V = p.value_stride = static_cast<int>(d_.V);
    p.first_head = static_cast<int>(r_.first_head), p.all_heads = static_cast<int>(d_.HV);
    p.heads_per_query = static_cast<int>(d_.HV / d_.H);
    p.q = stored(0), p.k = stored(1), p.v = stored(2), p.g = stored(3), p.beta = stored(4);
    p.A_log = parameter(A_log_, r_.A_log), p.dt_bias = parameter(dt_bias_, r_.dt_bias);
    p.initial_state = parameter(initial_state_, r_.initial_state);
    p.scale = r_.scale, p.lower_bound = options.lower_bound.value_or(0.0), p.gate = options.gate;
    p.qk_l2norm = options.qk_l2norm, p.beta_sigmoid = options.beta_sigmoid;
    p.allow_neg_eigval = options.allow_neg_eigval, p.state_v_first = options.state_v_first;
    p.norms = norms_[slot].as<kda::RowNorm>(), p.channels = channels_[slot].as<ChannelPairs>();
    p.values = values_[slot].as<double>(), p.strengths = strengths_[slot].as<double>();
    p.state = three(states_, states_size()), p.o = three(outputs_[output], outputs_size());
    p.ranges = inputs_[slot].as<TokenRange>();
    if (r_.in_fp64) {
      p.token_norms = token_norms_[slot].as<kda::TokenNorms>();
      p.errors = errors_.as<double>(), p.worst = worst_.as<double>() + 2 * output;
    }
    return p;
  }

  /// Sends a step on its way. What was in its place among the outputs has been handed out.
  void start(std::size_t i) {
    const OracleStep& step = steps_[i];
    const std::size_t slot = i % slots, output = i % outputs_.size();
    if (i >= slots) uploaded_[slot].wait();
    bring(step, slot, i >= slots);
    const OraclePortion p = portion(step, slot, output);
    const int sequences = static_cast<int>(step.pieces.size());
    // Beside the recurrence of the step before, where that leaves processors idle.
    if (p.tokens > 0) launch_oracle_inputs(p, up_.get());
    prepared_[slot].set(up_);
    prepared_[slot].hold_back(compute_);
    if (r_.in_fp64)
      check(cudaMemsetAsync(p.worst, 0, 2 * sizeof(double), compute_.get()), "clearing the largest errors");
    if (step.begins) launch_oracle_states(p, sequences, step.pieces.front().index, compute_.get());
    if (p.tokens > 0)
      (r_.in_fp64 ? launch_oracle_recurrence_in_fp64 : launch_oracle_recurrence)(p, sequences,
                                                                                 compute_.get());
    taken_[slot].set(compute_);
    computed_[output].set(compute_);
  }

  /// What a step computes. What was in its slot has been handed out.
  void download(std::size_t i) {
    const std::size_t slot = i % slots, output = i % outputs_.size();
    computed_[output].hold_back(down_);
    const std::size_t size = steps_[i].tokens() * heads_ * d_.V * sizeof(double);
    for (std::size_t part = 0; sinks_.tokens && part < 3; ++part)
      check(cudaMemcpyAsync(host_.outputs[slot].as<double>() + part * outputs_size(),
                            outputs_[output].as<double>() + part * outputs_size(), size,
                            cudaMemcpyDeviceToHost, down_.get()),
            "downloading tokens");
    if (r_.in_fp64)
      check(cudaMemcpyAsync(host_.worst.as<double>() + 2 * slot, worst_.as<double>() + 2 * output,
                            2 * sizeof(double), cudaMemcpyDeviceToHost, down_.get()),
            "downloading the largest errors");
    downloaded_[slot].set(down_);
  }

  void hand_out(std::size_t i) {
    const OracleStep& step = steps_[i];
    const std::size_t slot = i % slots;
    downloaded_[slot].wait();
    if (const double* const worst = host_.worst.as<double>() + 2 * slot; r_.in_fp64 && sinks_.error)
      sinks_.error(step.ends ? std::max(worst[0], worst[1]) : worst[0]);
    std::size_t first = 0;
    for (std::size_t n = 0; n < step.pieces.size(); ++n) {
      const kda::Sequence& piece = step.pieces[n];
      const double* const o = host_.outputs[slot].as<double>() + first * heads_ * d_.V;
      if (sinks_.tokens && piece.length() > 0)
        sinks_.tokens(
            {piece.batch, piece.begin, piece.length(), o, o + outputs_size(), o + 2 * outputs_size()});
      first += piece.length();
      if (step.ends && sinks_.state) hand_out_states(n, piece.index);
    }
  }

  void hand_out_states(std::size_t n, std::size_t sequence) {
    const std::size_t state = d_.K * d_.V, room = std::min(states_at_once, heads_) * state;
    double* const to = host_.states.as<double>();
    for (std::size_t head = 0; head < heads_; head += states_at_once) {
      const std::size_t count = std::min(states_at_once, heads_ - head);
      for (std::size_t part = 0; part < 3; ++part)
        check(cudaMemcpyAsync(to + part * room,
                              states_.as<double>() + part * states_size() + (n * heads_ + head) * state,
                              count * state * sizeof(double), cudaMemcpyDeviceToHost, down_.get()),
              "downloading states");
      check(cudaStreamSynchronize(down_.get()), "downloading states");
      for (std::size_t h = 0; h < count; ++h)
        sinks_.state({sequence, r_.first_head + head + h, to + h * state, to + room + h * state,
                      to + 2 * room + h * state});
    }
  }

  const OracleRequest& r_;
  const OracleSinks& sinks_;
  OracleHostMemory& host_;
  const kda::Dimensions d_;
  const std::size_t heads_;
  std::size_t query_heads_ = 0, most_tokens_ = 0, most_sequences_ = 0, input_bytes_ = 0;
  std::array<TokenTensor, 5> tensors_;
  std::vector<OracleStep> steps_;
  DeviceMemory A_log_, dt_bias_, initial_state_, states_, errors_, worst_;
  std::array<DeviceMemory, slots> inputs_, norms_, channels_, values_, strengths_,
      token_norms_;                    ///< of a step
  std::vector<DeviceMemory> outputs_;  ///< of the steps under way
  std::array<Mark, slots> uploaded_, prepared_, taken_, downloaded_;
  std::vector<Mark> computed_;
  // The last: they are done before anything above goes away. Emulations that run meanwhile can wait.
  Stream up_, compute_, down_;
};

}  // namespace

std::string unsupported_oracle(const kda::Dimensions& d) {
  if (std::string reason = unavailable(); !reason.empty()) return reason;
  if (d.K > static_cast<std::size_t>(widest_key))
    return "on a GPU the oracle has K up to " + std::to_string(widest_key);
  if (d.HV > 65535 || d.V > std::size_t{1} << 20 || d.B * d.T >= std::size_t{1} << 30)
    return "on a GPU the oracle has up to 65535 heads and 2^30 tokens";
  if (const std::size_t wanted = oracle_shared_bytes(static_cast<int>(d.K)); wanted > shared_memory())
    return "the oracle with K = " + std::to_string(d.K) + " takes " + std::to_string(wanted / 1024) +
           " KB of shared memory, and this device has " + std::to_string(shared_memory() / 1024);
  return {};
}

void run_oracle(const OracleRequest& request, const OracleSinks& sinks) {
  if (request.first_head >= request.last_head) return;
  OracleHostMemory& host = oracle_host_memory();
  const std::lock_guard lock(host.in_use);
  OracleRun(request, sinks, host).run();
}

}  // namespace kda_check::cuda
