#include "kda/shards/shared_run.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "base/error.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/problem/schema.hpp"
#include "kda/shards/segments.hpp"

namespace kda_check::kda {

namespace {

using Clock = std::chrono::steady_clock;

Ranks* sharing_ranks = nullptr;
std::mutex one_run;      // rank 0 may run sources side by side
bool is_broken = false;  // a run ended halfway: the others wait for what will not come
RankCost own_cost;

/// Values of this program, written and read by the same program.
class Message {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  template <class T>
  T take() {
    T value;
    if (at_ + sizeof(T) > bytes_.size()) throw Error(ErrorKind::internal, "a message between ranks is short");
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  void send(Ranks& ranks, std::size_t to) const {
    const std::size_t size = bytes_.size();
    ranks.send(to, &size, sizeof(size));
    ranks.send(to, bytes_.data(), size);
  }
  static Message received(Ranks& ranks, std::size_t from) {
    std::size_t size = 0;
    ranks.receive(from, &size, sizeof(size));
    Message message;
    message.bytes_.resize(size);
    ranks.receive(from, message.bytes_.data(), size);
    return message;
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

bool has_tokens(const InputSlot& slot) { return find_spec(slot.name)->axes[1] == Axis::token; }
bool is_read(const InputSlot& slot) { return slot.name != "do" && slot.name != "dht"; }

/// use(memory, bytes) of the rows of a tensor [B, T, ...] that a rank has of each sequence.
template <class Tensor, class Use>
void each_part(Tensor& tensor, const std::vector<Sequence>& sequences, const RunOptions& options,
               std::size_t rank, Use use) {
  const tensor::Shape& shape = tensor.shape();
  const std::size_t row = tensor.bytes() / (shape[0] * shape[1]);
  for (const Sequence& s : sequences) {
    if (rank >= parts_of(s, options)) continue;
    const TokenRange tokens = part_of(s, options, rank);
    if (tokens.begin < tokens.end)
      use(tensor.data() + (s.batch * shape[1] + tokens.begin) * row, (tokens.end - tokens.begin) * row);
  }
}

/// The same of final_state: of the sequences whose last part it has.
template <class Use>
void each_state(tensor::Tensor& states, const std::vector<Sequence>& sequences, const RunOptions& options,
                std::size_t rank, Use use) {
  const std::size_t bytes = states.bytes() / states.shape()[0];
  for (const Sequence& s : sequences)
    if (rank + 1 == parts_of(s, options)) use(states.data() + s.index * bytes, bytes);
}

void hand_out(const Problem& problem, const RunOptions& options, Ranks& ranks, std::size_t to) {
  Message message;
  message.put(true);
  message.put(problem.options);
  message.put(problem.cu_seqlens.size());
  for (const std::int64_t position : problem.cu_seqlens) message.put(position);
  message.put(options.dtype), message.put(options.arithmetic), message.put(options.chunk_size);
  for (const InputSlot& slot : input_slots) {
    const tensor::Tensor* const tensor = is_read(slot) ? slot.of(problem) : nullptr;
    message.put(tensor != nullptr);
    if (tensor == nullptr) continue;
    message.put(tensor->dtype());
    message.put(tensor->shape().size());
    for (const std::size_t extent : tensor->shape()) message.put(extent);
  }
  message.send(ranks, to);
  const auto send = [&](const std::byte* data, std::size_t bytes) { ranks.send(to, data, bytes); };
  for (const InputSlot& slot : input_slots) {
    const tensor::Tensor* const tensor = is_read(slot) ? slot.of(problem) : nullptr;
    if (tensor == nullptr) continue;
    if (has_tokens(slot))
      each_part(*tensor, problem.sequences(), options, to, send);
    else
      send(tensor->data(), tensor->bytes());
  }
}

void collect(Answer& answer, const Problem& problem, const RunOptions& options, Ranks& ranks) {
  const std::vector<Sequence> sequences = problem.sequences();
  for (std::size_t from = 1; from < ranks.count(); ++from) {
    const auto receive = [&](std::byte* data, std::size_t bytes) { ranks.receive(from, data, bytes); };
    each_part(answer.o, sequences, options, from, receive);
    each_state(answer.final_state, sequences, options, from, receive);
  }
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// Adds what a run costs this rank to own_cost.
class Metered {
 public:
  Metered() : begin_(Clock::now()), busy_(busy(usage())) {}
  void add(const Problem& problem, const RunOptions& options, std::size_t rank) const {
    for (const Sequence& s : problem.sequences()) {
      if (rank >= parts_of(s, options)) continue;
      const TokenRange tokens = part_of(s, options, rank);
      own_cost.tokens += tokens.end - tokens.begin;
    }
    const struct rusage now = usage();
    own_cost.seconds += std::chrono::duration<double>(Clock::now() - begin_).count();
    own_cost.busy += busy(now) - busy_;
    own_cost.megabytes = static_cast<double>(now.ru_maxrss) / 1024;
  }

 private:
  static struct rusage usage() {
    struct rusage now {};
    ::getrusage(RUSAGE_SELF, &now);
    return now;
  }
  static double busy(const struct rusage& usage) {
    return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  }
  const Clock::time_point begin_;
  const double busy_;
};

/// What a rank holds of a run beside scratch memory: its parts of the inputs and of o, its final states.
double bytes_held(const Problem& problem, const RunOptions& options, std::size_t rank) {
  const std::vector<Sequence> sequences = problem.sequences();
  double bytes = 0;
  const auto add = [&](const std::byte*, std::size_t count) { bytes += static_cast<double>(count); };
  for (const InputSlot& slot : input_slots) {
    const tensor::Tensor* const tensor = slot.of(problem);
    if (tensor == nullptr) continue;
    if (has_tokens(slot))
      each_part(*tensor, sequences, options, rank, add);
    else
      bytes += static_cast<double>(tensor->bytes());
  }
  Answer answer = allocate_answer(problem, options.dtype);
  each_part(answer.o, sequences, options, rank, add);
  each_state(answer.final_state, sequences, options, rank, add);
  return bytes;
}

/// The run of a rank that has this much memory; an error says whose.
Answer run_part(ChunkRun* run, const Problem& problem, RunOptions options, std::size_t rank, double held,
                std::size_t memory_limit) {
  options.memory_limit = memory_limit - static_cast<std::size_t>(held);
  try {
    return run(problem, options);
  } catch (const Error& error) {
    throw Error(
        error.kind(),
        fmt::format("rank {}, which holds {:.3g} GB of its tokens: {}", rank, held * 1e-9, error.found()), {},
        error.hint());
  }
}

void run_one(Message message, Ranks& ranks, int threads, std::size_t memory_limit, ChunkRun* run) {
  Problem problem;
  problem.options = message.take<Options>();
  problem.cu_seqlens.resize(message.take<std::size_t>());
  for (std::int64_t& position : problem.cu_seqlens) position = message.take<std::int64_t>();
  RunOptions options;
  options.dtype = message.take<numeric::DType>(), options.arithmetic = message.take<Arithmetic>();
  options.chunk_size = message.take<std::size_t>();
  options.threads = threads;
  for (const InputSlot& slot : input_slots) {
    if (!message.take<bool>()) continue;
    const auto dtype = message.take<numeric::DType>();
    tensor::Shape shape(message.take<std::size_t>());
    for (std::size_t& extent : shape) extent = message.take<std::size_t>();
    slot.set(problem, tensor::Tensor(std::string(slot.name), dtype, std::move(shape)));
  }
  problem.validate();
  const std::vector<Sequence> sequences = problem.sequences();
  const double held = bytes_held(problem, options, ranks.rank());
  if (held > static_cast<double>(memory_limit))
    throw Error(ErrorKind::environment,
                fmt::format("rank {}: its tokens take {:.3g} GB; the memory limit is {:.3g} GB", ranks.rank(),
                            held * 1e-9, static_cast<double>(memory_limit) * 1e-9),
                {}, "more ranks, or a larger --memory-limit");
  const auto receive = [&](std::byte* data, std::size_t bytes) { ranks.receive(0, data, bytes); };
  for (const InputSlot& slot : input_slots) {
    if (slot.of(problem) == nullptr) continue;
    tensor::Tensor& tensor = slot.required != nullptr ? problem.*slot.required : *(problem.*slot.optional);
    if (has_tokens(slot))
      each_part(tensor, sequences, options, ranks.rank(), receive);
    else
      receive(tensor.data(), tensor.bytes());
  }
  Answer answer = run_part(run, problem, options, ranks.rank(), held, memory_limit);
  const auto send = [&](const std::byte* data, std::size_t bytes) { ranks.send(0, data, bytes); };
  each_part(answer.o, sequences, options, ranks.rank(), send);
  each_state(answer.final_state, sequences, options, ranks.rank(), send);
}

}  // namespace

void share_runs(Ranks* ranks) { sharing_ranks = ranks; }

Ranks* ranks_of(const RunOptions& options) {
  const Segments& segments = options.arithmetic.segments;
  const bool is_theirs = sharing_ranks != nullptr && segments.merge == SegmentMerge::tree &&
                         static_cast<std::size_t>(segments.parts) == sharing_ranks->count();
  return is_theirs && !options.stages.asked() ? sharing_ranks : nullptr;
}

Answer shared_run(const Problem& problem, const RunOptions& options, Ranks& ranks,
                  const std::function<Answer()>& run) {
  if (ranks.rank() != 0) {
    const Metered metered;
    Answer answer = run();
    metered.add(problem, options, ranks.rank());
    return answer;
  }
  const std::lock_guard one(one_run);
  if (is_broken) throw Error(ErrorKind::environment, "the run of another answer left the ranks halfway");
  is_broken = true;
  for (std::size_t to = 1; to < ranks.count(); ++to) hand_out(problem, options, ranks, to);
  const Metered metered;
  Answer answer = run();
  metered.add(problem, options, ranks.rank());
  collect(answer, problem, options, ranks);
  is_broken = false;
  return answer;
}

void serve(Ranks& ranks, int threads, std::size_t memory_limit, ChunkRun* run) {
  share_runs(&ranks);
  for (;;) {
    Message message = Message::received(ranks, 0);
    if (!message.take<bool>()) break;
    run_one(std::move(message), ranks, threads, memory_limit, run);
  }
  ranks.send(0, &own_cost, sizeof(own_cost));
}

std::vector<RankCost> let_go(Ranks& ranks) {
  if (is_broken) throw Error(ErrorKind::environment, "a run that the ranks share ended halfway");
  std::vector<RankCost> costs{own_cost};
  Message message;
  message.put(false);
  for (std::size_t to = 1; to < ranks.count(); ++to) message.send(ranks, to);
  for (std::size_t from = 1; from < ranks.count(); ++from)
    ranks.receive(from, &costs.emplace_back(), sizeof(RankCost));
  return costs;
}

}  // namespace kda_check::kda
