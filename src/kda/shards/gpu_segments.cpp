#include "kda/shards/gpu_segments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.hpp"
#include "cuda/device/device.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/shards/segments.hpp"

namespace kda_check::kda {

namespace {

using Clock = std::chrono::steady_clock;

PeerGroup* sharing_devices = nullptr;
std::vector<DeviceCost> costs;  // each thread adds to its own

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Adds what exchanges cost.
class MeteredPeers : public Peers {
 public:
  MeteredPeers(Peers& peers, DeviceCost& cost) : peers_(peers), cost_(cost) {}
  std::size_t rank() const override { return peers_.rank(); }
  std::size_t count() const override { return peers_.count(); }
  std::size_t least(std::size_t own) override { return peers_.least(own); }
  void gather_all(void* blocks, std::size_t bytes, const std::function<bool()>& is_done) override {
    while (!is_done()) {
    }
    const Clock::time_point begin = Clock::now();
    peers_.gather_all(blocks, bytes, is_done);
    cost_.exchanging += seconds_since(begin);
    cost_.megabytes += 1e-6 * static_cast<double>(bytes);
  }

 private:
  Peers& peers_;
  DeviceCost& cost_;
};

std::vector<Sequence> pieces_of(const Problem& whole, const RunOptions& options, std::size_t rank) {
  std::vector<Sequence> pieces;
  std::size_t tokens = 0;
  for (const Sequence& s : whole.sequences()) {
    TokenRange own{s.begin, s.begin};
    if (rank < parts_of(s, options)) own = part_of(s, options, rank);
    pieces.push_back({s.index, s.batch, own.begin, own.end});
    tokens += pieces.back().length();
  }
  if (tokens > 0) return pieces;
  for (const Sequence& s : whole.sequences())
    if (s.length() > 0) {
      pieces[s.index].end = s.begin + 1;  // there is no problem without a token
      break;
    }
  return pieces;
}

}  // namespace

cuda::Segments segments_on_device(const Problem& problem, const RunOptions& options) {
  cuda::Segments segments;
  segments.merge = options.arithmetic.segments.merge;
  if (segments.merge == SegmentMerge::none) return segments;
  for (const Sequence& s : problem.sequences())
    for (std::size_t part = 0; part < parts_of(s, options); ++part) {
      const TokenRange tokens = part_of(s, options, part);
      segments.parts.push_back({s.index, s.batch, tokens.begin, tokens.end});
    }
  return segments;
}

DeviceShare::DeviceShare(const Problem& whole, const RunOptions& options, Peers& peers)
    : pieces_(pieces_of(whole, options, peers.rank())),
      tokens_of_whole_(whole.dimensions().T),
      problem_(excerpt(whole, pieces_, Layout::packed)) {
  segments_.merge = options.arithmetic.segments.merge, segments_.peers = &peers;
  const std::size_t rank = peers.rank();
  const std::vector<Sequence> own = problem_.sequences();
  for (const Sequence& s : whole.sequences()) {
    const std::size_t parts = parts_of(s, options);
    has_last_.push_back(rank + 1 == parts);
    for (std::size_t part = 0; part < parts; ++part) {
      Sequence tokens = own[s.index];
      if (part != rank) tokens.end = tokens.begin;
      segments_.parts.push_back(tokens);
    }
    if (rank >= parts) pieces_[s.index].end = pieces_[s.index].begin;
  }
}

std::size_t DeviceShare::tokens() const {
  std::size_t sum = 0;
  for (const Sequence& piece : pieces_) sum += piece.length();
  return sum;
}

void DeviceShare::store(const Answer& own, Answer& whole) const {
  const std::vector<Sequence> places = problem_.sequences();
  const std::size_t row = own.o.bytes() / own.o.shape()[1],
                    state = own.final_state.bytes() / own.final_state.shape()[0];
  for (const Sequence& piece : pieces_) {
    std::memcpy(whole.o.data() + (piece.batch * tokens_of_whole_ + piece.begin) * row,
                own.o.data() + places[piece.index].begin * row, piece.length() * row);
    if (has_last_[piece.index])
      std::memcpy(whole.final_state.data() + piece.index * state,
                  own.final_state.data() + piece.index * state, state);
  }
}

void share_devices(PeerGroup* devices) {
  sharing_devices = devices;
  if (devices == nullptr) return;
  const std::string first = cuda::device_text_of(devices->device(0));
  for (std::size_t rank = 1; rank < devices->count(); ++rank)
    if (const std::string other = cuda::device_text_of(devices->device(rank)); other != first)
      throw Error(ErrorKind::environment,
                  fmt::format("--segments nccl: the devices differ: {} and {}", first, other), {},
                  "CUDA_VISIBLE_DEVICES chooses those of a kind");
  costs.assign(devices->count(), {});
  devices->run([&](Peers& peers) {
    cuda::use_device(devices->device(peers.rank()));
    cuda::check_exchange(peers);
  });
}

PeerGroup* devices_of(const RunOptions& options) {
  const Segments& segments = options.arithmetic.segments;
  const bool is_theirs = sharing_devices != nullptr && segments.merge == SegmentMerge::tree &&
                         static_cast<std::size_t>(segments.parts) == sharing_devices->count();
  return is_theirs && !options.stages.asked() ? sharing_devices : nullptr;
}

std::vector<DeviceCost> device_costs() { return costs; }

void on_devices(PeerGroup& devices, const Problem& problem, const RunOptions& options,
                const std::function<void(const DeviceShare& share, std::size_t rank)>& body) {
  devices.run([&](Peers& peers) {
    const Clock::time_point begin = Clock::now();
    DeviceCost& cost = costs[peers.rank()];
    cuda::use_device(devices.device(peers.rank()));
    MeteredPeers metered(peers, cost);
    const DeviceShare share(problem, options, metered);
    body(share, peers.rank());
    cost.tokens += share.tokens();
    cost.seconds += seconds_since(begin);
  });
}

}  // namespace kda_check::kda
