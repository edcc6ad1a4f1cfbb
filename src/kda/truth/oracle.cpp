#include "kda/truth/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "base/threads/parallel.hpp"
#include "base/threads/work.hpp"
#include "kda/truth/gpu_oracle.hpp"
#include "kda/truth/oracle_inputs.hpp"

namespace kda_check::kda {

namespace {

constexpr std::size_t block_tokens = oracle_block_tokens;
/// A worker's outputs of one block of one head.
struct Workspace {
  explicit Workspace(std::size_t v_stride)
      : o(block_tokens * v_stride), o_magnitude(block_tokens * v_stride) {}
  Pairs o;
  tensor::Scratch<double> o_magnitude;
};

/// The carried state of one head: tiles of [K][lanes].
struct HeadState {
  HeadState(std::size_t K, std::size_t v_stride, std::size_t tiles)
      : value(K * v_stride), magnitude(K * v_stride), error(v_stride), of_tiles(tiles) {}
  Pairs value;
  tensor::Scratch<double> magnitude;
  tensor::Scratch<double> error;  ///< of columns, in fp64

  struct Errors {
    double output = 0, state = 0;  ///< the largest, over magnitudes: of o; of the state as it is
  };
  std::vector<Errors> of_tiles;
};

class Recurrence {
 public:
  Recurrence(const Problem& problem, const OracleOptions& options, const HeadRange& heads)
      : problem_(problem),
        d_(problem.dimensions()),
        first_head_(std::min(heads.first, d_.HV)),
        heads_(std::min(heads.last, d_.HV) - first_head_),
        inputs_(problem),
        v_stride_(padded(d_.V)),
        lanes_(kernel_table().oracle.tile_lanes),
        tiles_((d_.V + lanes_ - 1) / lanes_),
        in_fp64_(options.precision == OraclePrecision::fp64),
        most_error_(options.most_error),
        step_(in_fp64_ ? kernel_table().oracle.recurrence_in_fp64 : kernel_table().oracle.recurrence) {
    for (std::size_t head = 0; head < heads_; ++head) states_.emplace_back(d_.K, v_stride_, tiles_);
  }

  void run(int threads, const OracleSink& sink) {
    if (heads_ == 0) return;
    const std::size_t tokens_at_once = oracle_tokens_at_once(d_, heads_);
    // Below a tenth of a millisecond of work, starting threads costs more than they bring.
    const bool small = tokens_at_once * heads_ * d_.K * d_.V < (std::size_t{1} << 17);
    Shared work = shared_by(small ? 1 : std::max(1, threads), tokens_at_once);
    const std::size_t size = tokens_at_once * heads_ * d_.V;
    Output output{Pairs(size), tensor::Scratch<double>(size)};
    const std::vector<Round> rounds = rounds_of(tokens_at_once, work.blocks * block_tokens);
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      const Round& round = rounds[i];
      if (round.begins)
        parallel_for(heads_, work.threads, [&](std::size_t head, int) { load_state(round.tokens, head); });
      if (i == 0 && work.are_inputs_shared()) read_inputs(round.tokens, work);
      advance(round, i + 1 < rounds.size() ? &rounds[i + 1].tokens : nullptr, work, output);
      if (in_fp64_) take_errors(round);
      if (round.hands_out > 0 && sink.output)
        sink.output({round.tokens.batch,
                     round.tokens.end - round.hands_out,
                     round.hands_out,
                     output.o.hi.data(),
                     output.o.lo.data(),
                     output.magnitude.data(),
                     {first_head_, first_head_ + heads_}});
      if (round.has_states && sink.state) hand_out_states(round, sink);
    }
    if (in_fp64_ && sink.error) sink.error(error_);
  }

 private:
  /// [tokens][heads][V]
  struct Output {
    Pairs o;
    tensor::Scratch<double> magnitude;
  };

  /// Tokens of a sequence behind which workers meet.
  struct Round {
    Sequence tokens;
    std::size_t row = 0;        ///< of the output, where its first token goes
    std::size_t hands_out = 0;  ///< so many tokens are complete behind it, the last of them its own
    std::size_t done = 0;       ///< tokens of the sequence behind it
    bool begins = false, ends = false, has_states = false;
  };
  std::vector<Round> rounds_of(std::size_t tokens_at_once, std::size_t most) const {
    std::vector<Round> rounds;
    for (const Sequence& sequence : problem_.sequences()) {
      const std::size_t first = rounds.size();
      if (problem_.has_state(sequence, 0)) rounds.push_back({sequence.part(0, 0)});
      for (std::size_t begin = 0; begin < sequence.length(); begin += tokens_at_once) {
        const Sequence tokens = sequence.block(begin, tokens_at_once);
        const std::size_t blocks = blocks_of(tokens), parts = (blocks * block_tokens + most - 1) / most,
                          even = (blocks + parts - 1) / parts * block_tokens;
        for (std::size_t at = 0, done = begin; at < tokens.length(); at = done - begin) {
          const std::size_t next = problem_.next_state(sequence, done) - begin;
          rounds.push_back({tokens.block(at, std::min(even, next - at)), at});
          rounds.back().done = done += rounds.back().tokens.length();
        }
        rounds.back().hands_out = tokens.length();
      }
      rounds[first].begins = rounds.back().ends = true;
      for (std::size_t i = first; i < rounds.size(); ++i)
        rounds[i].has_states = problem_.has_state(sequence, rounds[i].done);
    }
    return rounds;
  }

  void take_errors(const Round& round) {
    for (const HeadState& head : states_)
      for (const HeadState::Errors& of : head.of_tiles)
        error_ = std::max({error_, of.output, round.has_states ? of.state : 0.0});
    if (error_ > most_error_) throw WideTruth{};
  }

  /// How the work is cut, and what workers need.
  struct Shared {
    int threads;
    std::size_t parts;   ///< of a head, each some tiles of V lanes
    std::size_t blocks;  ///< of tokens, in a round
    std::vector<Workspace> of_worker = {};
    /// Of a round, for each head and block; with parts 1 of a block for each worker, who reads it when it is
    /// its turn.
    std::vector<TokenPairs> inputs = {};
    std::vector<TokenPairs> next = {};  ///< of the round behind it, where inputs are shared
    bool are_inputs_shared() const { return parts > 1; }
  };

  /// What is made of a block's inputs is a fifth of the work and more: workers that share a head share it,
  /// and make what the next round takes as soon as they have nothing else to do. There are several parts for
  /// each worker, for one that comes late or is slow; each takes some tenths of a millisecond.
  Shared shared_by(int threads, std::size_t most_tokens) const {
    // The bytes are those of one round's inputs.
    constexpr std::size_t parts_of_worker = 8, bytes_of_worker = std::size_t{3} << 20,
                          steps_of_part = std::size_t{1} << 19;
    const auto workers = static_cast<std::size_t>(threads);
    const std::size_t wanted = workers == 1 ? 1 : (parts_of_worker * workers + heads_ - 1) / heads_;
    Shared work{threads, std::min(tiles_, wanted), most_tokens / block_tokens};
    if (work.are_inputs_shared()) {
      const std::size_t of_blocks = heads_ * block_tokens * (8 * d_.K + v_stride_) * sizeof(double),
                        steps_of_blocks = block_tokens * d_.K * v_stride_ / work.parts;
      work.blocks = std::clamp<std::size_t>(std::min(bytes_of_worker * workers / of_blocks,
                                                     (steps_of_part + steps_of_blocks - 1) / steps_of_blocks),
                                            1, work.blocks);
    }
    for (int worker = 0; worker < threads; ++worker) work.of_worker.emplace_back(v_stride_);
    const auto add = [&](std::size_t count, std::vector<TokenPairs>& inputs) {
      for (; count > 0; --count) inputs.emplace_back(block_tokens, d_.K, v_stride_, d_.strength);
    };
    add(work.are_inputs_shared() ? heads_ * work.blocks : workers, work.inputs);
    if (work.are_inputs_shared()) add(heads_ * work.blocks, work.next);
    return work;
  }

  std::size_t tile_index(std::size_t k, std::size_t v) const {
    return v / lanes_ * lanes_ * d_.K + k * lanes_ + v % lanes_;
  }

  void load_state(const Sequence& s, std::size_t head) {
    HeadState& state = states_[head];
    state.value.hi.fill(0);
    state.value.lo.fill(0);
    state.magnitude.fill(0);
    state.error.fill(0);
    std::ranges::fill(state.of_tiles, HeadState::Errors{});
    if (!problem_.initial_state) return;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) {
        const double value = problem_.initial_state->value(inputs_.state_index(s, first_head_ + head, k, v));
        state.value.hi[tile_index(k, v)] = value;
        state.magnitude[tile_index(k, v)] = std::fabs(value);
      }
  }

  void hand_out_states(const Round& round, const OracleSink& sink) {
    const std::size_t sequence = round.tokens.index;
    Pairs value(d_.K * d_.V);
    tensor::Scratch<double> magnitude(d_.K * d_.V);
    for (std::size_t head = 0; head < heads_; ++head) {
      for (std::size_t k = 0; k < d_.K; ++k)
        for (std::size_t v = 0; v < d_.V; ++v) {
          const std::size_t to = problem_.options.state_v_first ? v * d_.K + k : k * d_.V + v;
          value.set(to, states_[head].value.get(tile_index(k, v)));
          magnitude[to] = states_[head].magnitude[tile_index(k, v)];
        }
      const auto hand_out = [&](std::string_view tensor, std::size_t row) {
        sink.state({tensor, row, first_head_ + head, value.hi.data(), value.lo.data(), magnitude.data()});
      };
      problem_.for_checkpoints(sequence, round.done, [&](std::size_t row) { hand_out("checkpoints", row); });
      if (round.ends) hand_out("final_state", sequence);
    }
  }

  static std::size_t blocks_of(const Sequence& tokens) {
    return (tokens.length() + block_tokens - 1) / block_tokens;
  }
  void read(const Sequence& tokens, std::size_t head, std::size_t block, TokenPairs& in) const {
    inputs_.tokens(tokens.block(block * block_tokens, block_tokens), first_head_ + head, in, v_stride_,
                   in_fp64_);
  }
  /// Those of the first round.
  void read_inputs(const Sequence& tokens, Shared& work) const {
    const std::size_t blocks = blocks_of(tokens);
    parallel_for(heads_ * blocks, work.threads, [&](std::size_t item, int) {
      const std::size_t head = item / blocks, block = item % blocks;
      read(tokens, head, block, work.inputs[head * work.blocks + block]);
    });
  }

  /// All heads through a round. `next`: the tokens of the round behind it, whose inputs are made, too; null:
  /// there is none.
  void advance(const Round& round, const Sequence* next, Shared& work, Output& output) {
    const std::size_t parts = heads_ * work.parts, blocks = blocks_of(round.tokens),
                      next_blocks = next != nullptr && work.are_inputs_shared() ? blocks_of(*next) : 0;
    parallel_for(parts + heads_ * next_blocks, work.threads, [&](std::size_t item, int worker) {
      if (item >= parts) {
        const std::size_t head = (item - parts) / next_blocks, block = (item - parts) % next_blocks;
        return read(*next, head, block, work.next[head * work.blocks + block]);
      }
      const std::size_t head = item / work.parts, part = item % work.parts;
      const auto own = static_cast<std::size_t>(worker);
      for (std::size_t block = 0; block < blocks; ++block) {
        TokenPairs& in = work.inputs[work.are_inputs_shared() ? head * work.blocks + block : own];
        if (!work.are_inputs_shared()) read(round.tokens, head, block, in);
        const std::size_t at = block * block_tokens;
        advance(round.tokens.block(at, block_tokens), round.row + at, head, tiles_ * part / work.parts,
                tiles_ * (part + 1) / work.parts, in, work.of_worker[own], output);
      }
    });
    if (next_blocks > 0) work.inputs.swap(work.next);
  }

  /// Some tiles of one head, which counts among those asked for, through one block.
  void advance(const Sequence& tokens, std::size_t row, std::size_t head, std::size_t first_tile,
               std::size_t last_tile, TokenPairs& in, Workspace& work, Output& output) {
    HeadState& state = states_[head];
    for (std::size_t tile = first_tile; tile < last_tile; ++tile) {
      const std::size_t lane = tile * lanes_;
      const double* const low = in.low_of_v();
      HeadState::Errors& errors = state.of_tiles[tile];
      OracleError error;
      if (in_fp64_) error = {in.norms.data(), state.error.data() + lane, &errors.output, &errors.state};
      step_({tokens.length(), d_.K, v_stride_, in.q.rows(), in.k.rows(), in.read(), in.decay.rows(),
             in.strength(lane), in.v.data() + lane, low == nullptr ? nullptr : low + lane, work.o.lanes(lane),
             work.o_magnitude.data() + lane, state.value.lanes(lane * d_.K),
             state.magnitude.data() + lane * d_.K, error});
    }
    const std::size_t first = first_tile * lanes_, count = std::min(d_.V, last_tile * lanes_) - first;
    for (std::size_t t = 0; t < tokens.length(); ++t) {
      const std::size_t from = t * v_stride_ + first, to = ((row + t) * heads_ + head) * d_.V + first;
      std::memcpy(output.o.hi.data() + to, work.o.hi.data() + from, count * sizeof(double));
      std::memcpy(output.o.lo.data() + to, work.o.lo.data() + from, count * sizeof(double));
      std::memcpy(output.magnitude.data() + to, work.o_magnitude.data() + from, count * sizeof(double));
    }
    Work::count(tokens.length() * count);
  }

  const Problem& problem_;
  const Dimensions d_;
  const std::size_t first_head_, heads_;
  const OracleInputs inputs_;
  const std::size_t v_stride_, lanes_, tiles_;
  const bool in_fp64_;
  const double most_error_;
  void (*const step_)(const OracleBlock&);
  std::vector<HeadState> states_;
  double error_ = 0;  ///< over magnitudes, of all that was handed out
};

}  // namespace

void run_oracle(const Problem& problem, const OracleOptions& options, int threads, const OracleSink& sink,
                const HeadRange& heads) {
  if (options.device == OracleDevice::gpu) {
    bool handed_out = false;
    OracleSink counted = sink;
    if (sink.output) counted.output = [&](const OracleOutput& part) { handed_out = true, sink.output(part); };
    if (sink.state) counted.state = [&](const OracleState& state) { handed_out = true, sink.state(state); };
    try {
      return run_gpu_oracle(problem, options, threads, counted, heads);
    } catch (const Error& error) {
      if (handed_out || !options.instead || error.kind() != ErrorKind::environment) throw;
      options.instead(error.what());
    }
  }
  if (sink.begun) sink.begun();
  Recurrence(problem, options, heads).run(threads, sink);
}

}  // namespace kda_check::kda
