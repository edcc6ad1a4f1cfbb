// The gradient oracle: some heads at a time, as many as the device has memory for. Their tokens go up, two
// passes run over all of them, then the gradients come down part by part from the last tokens on, each while
// the next is computed.
#include "cuda/truth/gradient_oracle.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/threads/parallel.hpp"
#include "cuda/device/device.hpp"
#include "cuda/device/host_memory.hpp"
#include "cuda/device/stream.hpp"
#include "cuda/truth/gradient_memory.cuh"
#include "cuda/truth/gradient_upload.hpp"

namespace kda_check::cuda {

namespace {

using kda::Gradient;

struct GradientHostMemory {
  std::mutex in_use;
  std::array<PinnedMemory, gradient_slots> outputs;
  GradientUpload uploads;
};
GradientHostMemory& gradient_host_memory() {
  static GradientHostMemory memory;
  return memory;
}

/// The gradients of the query heads [first, first + count) and their value heads.
class GradientRun {
 public:
  GradientRun(const GradientOracleRequest& r, const GradientSchedule& schedule, GradientHostMemory& host,
              std::size_t first, std::size_t count)
      : r_(r), schedule_(schedule), host_(host), d_(r.dimensions) {
    const std::size_t group = d_.HV / d_.H;
    heads_ = {first, count, first * group, count * group};
    memory_.allocate(r, schedule, heads_);
    for (std::size_t slot = 0; slot < gradient_slots; ++slot) {
      portion_[slot] = memory_.portion(r, schedule, heads_, slot);
      host_.outputs[slot].reserve(copies_bytes(portion_[slot], schedule.most));
    }
    check(cudaStreamSynchronize(nullptr), "uploading");  // which those below would not wait for
  }

  void run() {
    upload();
    const GradientPortion& all = portion_[0];
    launch_oracle_inputs(all, compute_.get());
    launch_oracle_values(all, all.output_gradient, all.incoming, compute_.get());
    launch_gradient_parameters_begin(all, compute_.get());
    prepared_.set(compute_);
    prepared_.hold_back(states_);
    prepared_.hold_back(chain_);
    pass(GradientPass::errors, all, states_);
    pass(GradientPass::residuals, all, compute_);
    errors_.set(states_);
    errors_.hold_back(compute_);
    const std::size_t parts = schedule_.parts.size();
    for (std::size_t i = 0; i < parts; ++i) {
      check_interruption();
      start(i);
      if (i + 1 >= gradient_slots) hand_out(i + 1 - gradient_slots);
    }
    for (std::size_t i = parts - std::min(parts, gradient_slots - 1); i < parts; ++i) hand_out(i);
    launch_gradient_parameters_end(all, chain_.get());
    check(cudaStreamSynchronize(chain_.get()), "running the gradient oracle");
    hand_out_parameters();
    memory_.check_canaries();
  }

 private:
  /// From the last tokens on.
  const GradientPart& part(std::size_t i) const { return schedule_.parts[schedule_.parts.size() - 1 - i]; }

  void pass(GradientPass pass, const GradientPortion& p, const Stream& stream) const {
    (r_.in_fp64 ? launch_gradient_pass<kda::DoubleStep<double>>
                : launch_gradient_pass<kda::DoubleDoubleStep<double>>)(pass, p, stream.get());
  }

  void upload() {
    GradientUpload& uploads = host_.uploads;
    const auto tokens = [&](const Tensor& to, const Input& from, std::size_t heads, std::size_t first,
                            std::size_t used, std::size_t width) {
      if (from.data == nullptr) return;
      const std::size_t bytes = numeric::format_of(from.dtype).bytes * width;
      uploads.rows(static_cast<const char*>(from.data) + first * bytes, heads * bytes, used * bytes,
                   schedule_.tokens, r_.threads, const_cast<void*>(to.data), compute_);
    };
    const GradientPortion& p = portion_[0];
    tokens(p.q, r_.q, d_.H, heads_.first_query, heads_.queries, d_.K);
    tokens(p.k, r_.k, d_.H, heads_.first_query, heads_.queries, d_.K);
    tokens(p.v, r_.v, d_.HV, heads_.first, heads_.values, d_.V);
    tokens(p.g, r_.g, d_.HV, heads_.first, heads_.values, d_.K);
    tokens(p.beta, r_.beta, d_.HV, heads_.first, heads_.values, 1);
    tokens(p.output_gradient, r_.output_gradient, d_.HV, heads_.first, heads_.values, d_.V);
  }

  struct Copy {
    const double* from;
    std::size_t count;
  };
  /// What comes down of a part, in its order: dq, dk, dv, dg, dbeta, the gradients of initial states.
  std::vector<Copy> copies(const GradientPortion& p, std::size_t rows, std::size_t first,
                           std::size_t states) const {
    const std::size_t keys = rows * heads_.values * d_.K, query_keys = rows * heads_.queries * d_.K,
                      values = rows * heads_.values * p.value_stride,
                      from = first * heads_.values * p.value_stride, strengths = rows * heads_.values,
                      state = states * heads_.values * d_.K * d_.V;
    return {{p.dq.hi, query_keys},
            {p.dq.lo, query_keys},
            {p.dq.magnitude, query_keys},
            {p.dk.hi, query_keys},
            {p.dk.lo, query_keys},
            {p.dk.magnitude, query_keys},
            {p.dv.hi + from, values},
            {p.dv.lo + from, values},
            {p.dv.magnitude + from, values},
            {p.dg.hi, keys},
            {p.dg.lo, keys},
            {p.dg.magnitude, keys},
            {p.dg_chunk, keys},
            {p.dbeta.hi, strengths},
            {p.dbeta.lo, strengths},
            {p.dbeta.magnitude, strengths},
            {p.dbeta_spread, strengths},
            {p.d_state.hi, state},
            {p.d_state.lo, state},
            {p.d_state.magnitude, state}};
  }
  bool wants_states() const { return r_.gradients[std::size_t(Gradient::dinitial_state)].hi != nullptr; }
  std::size_t copies_bytes(const GradientPortion& p, const GradientSizes& most) const {
    std::size_t count = 0;
    for (const Copy& copy : copies(p, most.rows, 0, wants_states() ? most.pieces : 0)) count += copy.count;
    return count * sizeof(double);
  }
  std::vector<Copy> copies_of(std::size_t i) const {
    const GradientPart& part = this->part(i);
    const bool states = wants_states() && part.begins();
    return copies(portion_[i % gradient_slots], part.sizes.rows, part.pieces.front().first,
                  states ? part.pieces.size() : 0);
  }

  /// Sends a part on its way, while those before it are. What was in its slot has been handed out.
  void start(std::size_t i) {
    const std::size_t slot = i % gradient_slots;
    const GradientPart& part = this->part(i);
    GradientPortion p = portion_[slot];
    p.pieces += part.first_piece, p.piece_count = static_cast<int>(part.pieces.size());
    p.rows = static_cast<int>(part.sizes.rows);
    const bool is_reused = i >= gradient_slots;
    if (is_reused) rows_[slot].hold_back(states_), computed_[slot].hold_back(states_);
    pass(GradientPass::states, p, states_);
    stated_[slot].set(states_);
    stated_[slot].hold_back(compute_);
    if (is_reused) computed_[slot].hold_back(compute_), downloaded_[slot].hold_back(compute_);
    pass(GradientPass::rows, p, compute_);
    if (wants_states() && part.begins()) launch_gradient_initial_states(p, compute_.get());
    rows_[slot].set(compute_);
    rows_[slot].hold_back(chain_);
    if (is_reused) downloaded_[slot].hold_back(chain_);
    launch_gradient_chain(r_.in_fp64, p, chain_.get());
    computed_[slot].set(chain_);
    computed_[slot].hold_back(down_);
    double* to = host_.outputs[slot].as<double>();
    for (const Copy& copy : copies_of(i)) {
      if (copy.count > 0)
        check(
            cudaMemcpyAsync(to, copy.from, copy.count * sizeof(double), cudaMemcpyDeviceToHost, down_.get()),
            "downloading gradients");
      to += copy.count;
    }
    downloaded_[slot].set(down_);
  }

  /// Rows of `width` elements each `stride` from the next, as many a token as heads are used; to their place
  /// among the `heads` of the tensor.
  struct Rows {
    std::size_t heads, first, used, width, stride;
  };

  void hand_out(std::size_t i) {
    const std::size_t slot = i % gradient_slots;
    const GradientPart& part = this->part(i);
    downloaded_[slot].wait();
    const std::vector<Copy> copies = copies_of(i);
    const Rows keys{d_.HV, heads_.first, heads_.values, d_.K, d_.K},
        query_keys{d_.H, heads_.first_query, heads_.queries, d_.K, d_.K},
        values{d_.HV, heads_.first, heads_.values, d_.V, std::size_t(portion_[0].value_stride)},
        strengths{d_.HV, heads_.first, heads_.values, 1, 1};
    const GradientOutput &dq = output(Gradient::dq), &dk = output(Gradient::dk), &dv = output(Gradient::dv),
                         &dg = output(Gradient::dg), &dbeta = output(Gradient::dbeta);
    const struct {
      double* to;
      const Rows& rows;
    } targets[] = {{dq.hi, query_keys},
                   {dq.lo, query_keys},
                   {dq.magnitude, query_keys},
                   {dk.hi, query_keys},
                   {dk.lo, query_keys},
                   {dk.magnitude, query_keys},
                   {dv.hi, values},
                   {dv.lo, values},
                   {dv.magnitude, values},
                   {dg.hi, keys},
                   {dg.lo, keys},
                   {dg.magnitude, keys},
                   {dg.chunk_magnitude, keys},
                   {dbeta.hi, strengths},
                   {dbeta.lo, strengths},
                   {dbeta.magnitude, strengths},
                   {dbeta.spread, strengths}};
    constexpr std::size_t most = 16;  // tokens
    const std::size_t blocks = (part.sizes.rows + most - 1) / most;
    const std::size_t* const tokens = schedule_.tokens.data() + part.pieces.front().first;
    std::vector<const double*> from;
    const double* next = host_.outputs[slot].as<double>();
    for (const Copy& copy : copies) from.push_back(next), next += copy.count;
    const bool is_small = part.sizes.rows * heads_.values < 1024;
    parallel_for(blocks * std::size(targets), is_small ? 1 : r_.threads, [&](std::size_t item, int) {
      const std::size_t n = item / blocks, begin = item % blocks * most,
                        end = std::min(begin + most, part.sizes.rows);
      const Rows& rows = targets[n].rows;
      const std::size_t row = rows.used * rows.width;
      for (std::size_t t = begin; t < end; ++t) {
        double* const to = targets[n].to + (tokens[t] * rows.heads + rows.first) * rows.width;
        const double* const at = from[n] + t * rows.used * rows.stride;
        if (rows.stride == rows.width) {
          std::memcpy(to, at, row * sizeof(double));
        } else {
          for (std::size_t head = 0; head < rows.used; ++head)
            std::memcpy(to + head * rows.width, at + head * rows.stride, rows.width * sizeof(double));
        }
      }
    });
    if (!wants_states() || !part.begins()) return;
    const std::size_t size = heads_.values * d_.K * d_.V;
    const GradientOutput& states = output(Gradient::dinitial_state);
    for (std::size_t n = 0; n < part.pieces.size(); ++n) {
      const std::size_t to = (part.pieces[n].sequence * d_.HV + heads_.first) * d_.K * d_.V;
      double* const parts[] = {states.hi, states.lo, states.magnitude};
      for (std::size_t j = 0; j < 3; ++j)
        std::memcpy(parts[j] + to, from[std::size(targets) + j] + n * size, size * sizeof(double));
    }
  }

  const GradientOutput& output(Gradient gradient) const { return r_.gradients[std::size_t(gradient)]; }

  void hand_out_parameters() const {
    const GradientPortion& p = portion_[0];
    const auto get = [&](double* to, const double* from, std::size_t width) {
      if (to != nullptr)
        check(cudaMemcpy(to + heads_.first * width, from, heads_.values * width * sizeof(double),
                         cudaMemcpyDeviceToHost),
              "downloading gradients");
    };
    const auto all = [&](Gradient gradient, const WithMagnitude& from, const double* chunk,
                         const double* spread, std::size_t width) {
      const GradientOutput& to = output(gradient);
      get(to.hi, from.hi, width), get(to.lo, from.lo, width), get(to.magnitude, from.magnitude, width);
      get(to.chunk_magnitude, chunk, width), get(to.spread, spread, width);
    };
    all(Gradient::dA_log, p.d_A, p.d_A_chunk, p.d_A_spread, 1);
    all(Gradient::ddt_bias, p.d_b, p.d_b_chunk, p.d_b_spread, d_.K);
  }

  const GradientOracleRequest& r_;
  const GradientSchedule& schedule_;
  GradientHostMemory& host_;
  const kda::Dimensions d_;
  GradientHeads heads_;
  GradientMemory memory_;
  std::array<GradientPortion, gradient_slots> portion_;
  Mark prepared_, errors_;
  std::array<Mark, gradient_slots> stated_, rows_, computed_, downloaded_;
  // The last: they are done before anything above goes away.
  Stream states_, compute_, chain_, down_;
};

}  // namespace

std::string unsupported_gradient_oracle(const kda::Dimensions& d) {
  if (std::string reason = unavailable(); !reason.empty()) return reason;
  if (d.K > std::size_t{widest_key} || d.V > std::size_t{widest_value})
    return "on a GPU the oracle of gradients has K up to " + std::to_string(widest_key) + " and V up to " +
           std::to_string(widest_value);
  if (d.HV > 65535 || d.N > 65535 || d.B * d.T >= std::size_t{1} << 30)
    return "on a GPU the oracle of gradients has up to 65535 heads, 65535 sequences and 2^30 tokens";
  const std::size_t wanted = gradient_shared_bytes(static_cast<int>(d.K), static_cast<int>(d.V));
  if (wanted > shared_memory())
    return "the oracle of gradients with K = " + std::to_string(d.K) + ", V = " + std::to_string(d.V) +
           " takes " + std::to_string(wanted / 1024) + " KB of shared memory, and this device has " +
           std::to_string(shared_memory() / 1024);
  return {};
}

void run_gradient_oracle(const GradientOracleRequest& request) {
  const kda::Dimensions& d = request.dimensions;
  GradientHostMemory& host = gradient_host_memory();
  const std::lock_guard lock(host.in_use);
  for (std::size_t first = 0, count = 0; first < d.H; first += count) {
    count = gradient_heads_at_once(request, d.H - first);
    const GradientSchedule schedule(request.sequences, d, count * (d.HV / d.H));
    GradientRun(request, schedule, host, first, count).run();
  }
}

}  // namespace kda_check::cuda
