#include "kda/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.hpp"
#include "kda/oracle_inputs.hpp"

namespace kda_check::kda {

namespace {

constexpr std::size_t block_tokens = 32;
/// What one worker needs for one block of one head.
struct Workspace : TokenPairs {
  Workspace(std::size_t K, std::size_t v_stride)
      : TokenPairs(block_tokens, K, v_stride),
        o(block_tokens * v_stride),
        o_magnitude(block_tokens * v_stride) {}
  Pairs o;
  tensor::Scratch<double> o_magnitude;
};

/// The carried state of one head: tiles of [K][lanes].
struct HeadState {
  HeadState(std::size_t K, std::size_t v_stride) : value(K * v_stride), magnitude(K * v_stride) {}
  Pairs value;
  tensor::Scratch<double> magnitude;
};

class Recurrence {
 public:
  Recurrence(const Problem& problem, OraclePrecision precision)
      : problem_(problem),
        d_(problem.dimensions()),
        inputs_(problem),
        v_stride_(padded(d_.V)),
        lanes_(kernel_table().oracle.tile_lanes),
        tiles_((d_.V + lanes_ - 1) / lanes_),
        step_(precision == OraclePrecision::fp64 ? kernel_table().oracle.recurrence_in_fp64
                                                 : kernel_table().oracle.recurrence) {
    for (std::size_t head = 0; head < d_.HV; ++head) states_.emplace_back(d_.K, v_stride_);
  }

  void run(int threads, const OracleSink& sink) {
    // With few heads each is shared by several workers, by tiles of V lanes.
    const std::size_t wanted = (static_cast<std::size_t>(std::max(1, threads)) + d_.HV - 1) / d_.HV;
    const std::size_t parts = std::min(tiles_, wanted);
    const std::size_t block_size = block_tokens * d_.HV * d_.V;
    Pairs block(block_size);
    tensor::Scratch<double> block_magnitude(block_size);
    std::vector<Workspace> workspaces;
    for (int worker = 0; worker < std::max(1, threads); ++worker) workspaces.emplace_back(d_.K, v_stride_);
    // Below a tenth of a millisecond of work, starting threads costs more than they bring.
    const bool small = block_tokens * d_.HV * d_.K * d_.V < (std::size_t{1} << 17);
    if (small) threads = 1;
    for (const Sequence& sequence : problem_.sequences()) {
      parallel_for(d_.HV, threads, [&](std::size_t head, int) { load_state(sequence, head); });
      for (std::size_t begin = sequence.begin; begin < sequence.end; begin += block_tokens) {
        const Sequence tokens = sequence.block(begin - sequence.begin, block_tokens);
        parallel_for(d_.HV * parts, threads, [&](std::size_t item, int worker) {
          const std::size_t head = item / parts, part = item % parts;
          advance(tokens, head, tiles_ * part / parts, tiles_ * (part + 1) / parts,
                  workspaces[static_cast<std::size_t>(worker)], block, block_magnitude.data());
        });
        if (sink.output)
          sink.output({sequence.batch, begin, tokens.length(), block.hi.data(), block.lo.data(),
                       block_magnitude.data()});
      }
      if (sink.state) hand_out_states(sequence, sink);
    }
  }

 private:
  std::size_t tile_index(std::size_t k, std::size_t v) const {
    return v / lanes_ * lanes_ * d_.K + k * lanes_ + v % lanes_;
  }

  void load_state(const Sequence& s, std::size_t head) {
    HeadState& state = states_[head];
    state.value.hi.fill(0);
    state.value.lo.fill(0);
    state.magnitude.fill(0);
    if (!problem_.initial_state) return;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) {
        const double value = problem_.initial_state->value(inputs_.state_index(s, head, k, v));
        state.value.hi[tile_index(k, v)] = value;
        state.magnitude[tile_index(k, v)] = std::fabs(value);
      }
  }

  void hand_out_states(const Sequence& s, const OracleSink& sink) {
    Pairs value(d_.K * d_.V);
    tensor::Scratch<double> magnitude(d_.K * d_.V);
    for (std::size_t head = 0; head < d_.HV; ++head) {
      for (std::size_t k = 0; k < d_.K; ++k)
        for (std::size_t v = 0; v < d_.V; ++v) {
          const std::size_t to = problem_.options.state_v_first ? v * d_.K + k : k * d_.V + v;
          value.set(to, states_[head].value.get(tile_index(k, v)));
          magnitude[to] = states_[head].magnitude[tile_index(k, v)];
        }
      sink.state({s.index, head, value.hi.data(), value.lo.data(), magnitude.data()});
    }
  }

  void advance(const Sequence& tokens, std::size_t head, std::size_t first_tile, std::size_t last_tile,
               Workspace& work, Pairs& block, double* block_magnitude) {
    inputs_.tokens(tokens, head, work, v_stride_);
    HeadState& state = states_[head];
    for (std::size_t tile = first_tile; tile < last_tile; ++tile) {
      const std::size_t lane = tile * lanes_;
      step_({tokens.length(), d_.K, v_stride_, work.q.rows(), work.k.rows(), work.decay.rows(),
             work.beta.rows(), work.retained.data(), work.written.data(), work.v.data() + lane,
             work.o.lanes(lane), work.o_magnitude.data() + lane, state.value.lanes(lane * d_.K),
             state.magnitude.data() + lane * d_.K});
    }
    const std::size_t first = first_tile * lanes_, count = std::min(d_.V, last_tile * lanes_) - first;
    for (std::size_t t = 0; t < tokens.length(); ++t) {
      const std::size_t from = t * v_stride_ + first, to = (t * d_.HV + head) * d_.V + first;
      std::memcpy(block.hi.data() + to, work.o.hi.data() + from, count * sizeof(double));
      std::memcpy(block.lo.data() + to, work.o.lo.data() + from, count * sizeof(double));
      std::memcpy(block_magnitude + to, work.o_magnitude.data() + from, count * sizeof(double));
    }
  }

  const Problem& problem_;
  const Dimensions d_;
  const OracleInputs inputs_;
  const std::size_t v_stride_, lanes_, tiles_;
  void (*const step_)(const OracleBlock&);
  std::vector<HeadState> states_;
};

}  // namespace

void run_oracle(const Problem& problem, OraclePrecision precision, int threads, const OracleSink& sink) {
  Recurrence(problem, precision).run(threads, sink);
}

}  // namespace kda_check::kda
