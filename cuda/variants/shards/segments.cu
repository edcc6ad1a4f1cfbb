#include "cuda/variants/shards/segments.cuh"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.hpp"
#include "base/peers.hpp"
#include "cuda/device/check.hpp"

namespace kda_check::cuda {

namespace {

bool is_default_stream_done() {
  const cudaError_t status = cudaStreamQuery(nullptr);
  if (status == cudaErrorNotReady) return false;
  check(status, "running the kernels");
  return true;
}

}  // namespace

std::vector<TokenRange> parts_of(const Request& r, const Segments& segments) {
  if (segments.parts.empty()) return sequences_of(r);
  std::vector<TokenRange> parts;
  for (const kda::Sequence& part : segments.parts)
    parts.push_back({static_cast<std::uint32_t>(part.batch * r.dimensions.T + part.begin),
                     static_cast<std::uint32_t>(part.length())});
  return parts;
}

template <class T>
SegmentStates<T>::SegmentStates(const Request& r, const Segments& segments, Direction direction,
                                const TeamWork<T>& work, LauncherMemory& memory,
                                std::vector<WorkArray<T>>& arrays)
    : direction_(direction),
      peers_(segments.peers),
      transition_(r.casts.transition),
      segment_state_(r.casts.segment_state),
      parts_(r.sequences.size(), PieceRange{0, 0}) {
  for (std::size_t part = 0; part < segments.parts.size(); ++part) {
    PieceRange& of = parts_[segments.parts[part].index];
    if (of.count++ == 0) of.first = static_cast<std::uint32_t>(part);
  }
  std::vector<std::uint32_t> first, last;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const PieceRange& of = parts_[s];
    first.push_back(of.first + number(of, 0)), last.push_back(of.first + number(of, of.count - 1));
    if (of.count > 1) cut_.push_back(static_cast<std::uint32_t>(s));
  }
  first_ = memory.uploaded("first parts of sequences", first);
  last_ = memory.uploaded("last parts of sequences", last);
  list_maps(r, segments, memory);
  plan_merges(segments.merge == kda::SegmentMerge::tree, memory);
  const std::size_t K = r.dimensions.K;
  arrays.push_back({&M_, "maps of parts, M", maps_ * K * static_cast<std::size_t>(work.key_stride)});
  arrays.push_back({&A_, "maps of parts, A", maps_ * K * static_cast<std::size_t>(work.value_stride)});
}

template <class T>
void SegmentStates<T>::list_maps(const Request& r, const Segments& segments, LauncherMemory& memory) {
  std::size_t most_parts = peers_ != nullptr ? peers_->count() : 1;
  for (const PieceRange& of : parts_) most_parts = std::max<std::size_t>(most_parts, of.count);
  formed_ = most_parts * cut_.size();
  const Pieces chunks(parts_of(r, segments), static_cast<std::uint32_t>(r.chunk_size));
  std::vector<PieceRange> mapped_chunks(formed_, {0, 0});
  for (std::size_t i = 0; i < formed_; ++i) {
    const PieceRange& of = parts_[cut_[i % cut_.size()]];
    const std::size_t part = i / cut_.size();
    // Nobody asks for the map of the last part; but in a backward pass both directions go side by side.
    if (part + (direction_ == Direction::forwards ? 1 : 0) >= of.count) continue;
    mapped_chunks[i] = chunks.of[of.first + part];
  }
  mapped_chunks_ = memory.uploaded("chunks of parts", mapped_chunks);
}

template <class T>
void SegmentStates<T>::plan_merges(bool is_tree, LauncherMemory& memory) {
  std::vector<std::vector<MapJob>> composed, applied;  // by what each waits for
  const auto add = [](std::vector<std::vector<MapJob>>& steps, std::size_t step, const MapJob& job) {
    if (steps.size() <= step) steps.resize(step + 1);
    steps[step].push_back(job);
  };
  maps_ = formed_;
  for (std::size_t c = 0; c < cut_.size(); ++c) {
    const PieceRange& parts = parts_[cut_[c]];
    const auto state_of = [&](std::uint32_t passed) { return parts.first + number(parts, passed); };
    std::vector<std::vector<std::uint32_t>> blocks(
        1);  // [k][i]: of parts i 2^k to (i + 1) 2^k - 1, as passed
    for (std::uint32_t passed = 0; passed + 1 < parts.count; ++passed)
      blocks[0].push_back(static_cast<std::uint32_t>(number(parts, passed) * cut_.size() + c));
    while (is_tree && blocks.back().size() > 1) {
      const std::vector<std::uint32_t>& halves = blocks.back();
      std::vector<std::uint32_t> whole;
      for (std::size_t i = 0; i + 1 < halves.size(); i += 2) {
        const auto both = static_cast<std::uint32_t>(maps_++);
        add(composed, blocks.size() - 1, {halves[i + 1], halves[i], halves[i + 1], both});
        whole.push_back(both);
      }
      blocks.push_back(std::move(whole));
    }
    for (std::uint32_t passed = 1; passed < parts.count; ++passed) {
      const int level = is_tree ? std::countr_zero(passed) : 0;
      const std::uint32_t from = passed - (1u << level), map = blocks[level][from >> level];
      const std::size_t step = is_tree ? std::popcount(passed) - 1 : passed - 1;
      add(applied, step, {map, state_of(from), map, state_of(passed)});
    }
  }
  std::vector<MapJob> jobs;
  for (const auto* const kind : {&composed, &applied})
    for (const std::vector<MapJob>& step : *kind) {
      steps_.push_back({kind == &composed, jobs.size(), step.size()});
      jobs.insert(jobs.end(), step.begin(), step.end());
    }
  jobs_ = memory.uploaded("products of maps", jobs);
}

template <class T>
TeamWork<T> SegmentStates<T>::mapped(const DeviceProblem& p, TeamWork<T> work) const {
  launch_load_states(nullptr, p, work, {}, A_, static_cast<int>(formed_));
  work.chunks_of = mapped_chunks_, work.sequence_count = static_cast<int>(formed_);
  work.state = A_;
  return work;
}

template <class T>
void SegmentStates<T>::exchange(const DeviceProblem& p, const TeamWork<T>& work) const {
  const std::size_t rows = sizeof(T) * cut_.size() * work.heads * p.K;
  peers_->gather_all(M_, rows * work.key_stride, is_default_stream_done);
  peers_->gather_all(A_, rows * work.value_stride, is_default_stream_done);
}

template <class T>
void SegmentStates<T>::merge(const DeviceProblem& p, const TeamWork<T>& mapped, T* states) const {
  launch_round(segment_state_, A_, formed_ * mapped.heads * p.K * mapped.value_stride);
  launch_transitions(direction_ == Direction::from_the_end, p, mapped, M_);
  if (peers_ != nullptr) exchange(p, mapped);
  for (const Step& step : steps_) {
    const auto multiply = [&](const MapProduct<T>& product) {
      launch_map_products(p, mapped, product, jobs_ + step.first, static_cast<int>(step.count));
    };
    if (step.composes) multiply({M_, M_, nullptr, M_, p.K, mapped.key_stride, transition_, transition_});
    T* const columns = step.composes ? A_ : states;
    multiply({M_, columns, A_, columns, p.V, mapped.value_stride, transition_, segment_state_});
  }
}

template <class T>
void SegmentStates<T>::enter(const DeviceProblem& p, const TeamWork<T>& work, const Tensor& from,
                             T* states) const {
  launch_load_states(nullptr, p, work, from, states, static_cast<int>(parts_.size()), first_);
}
template <class T>
void SegmentStates<T>::leave(const DeviceProblem& p, const TeamWork<T>& work, const T* states,
                             const MutableTensor& to) const {
  launch_store_states(nullptr, p, work, states, to, static_cast<int>(parts_.size()), last_);
}

void check_exchange(Peers& peers) {
  const DeviceMemory blocks("numbers of ranks", sizeof(std::uint64_t) * peers.count());
  std::vector<std::uint64_t> numbers(peers.count(), ~std::uint64_t{0});
  numbers[peers.rank()] = peers.rank();
  blocks.upload(numbers.data());
  peers.gather_all(blocks.data(), sizeof(std::uint64_t), is_default_stream_done);
  blocks.download(numbers.data(), blocks.size());
  for (std::size_t rank = 0; rank < numbers.size(); ++rank)
    if (numbers[rank] != rank)
      throw Error(ErrorKind::environment, "the devices do not get what others hand out", {},
                  "NCCL_DEBUG=INFO says how they are connected");
}

template class SegmentStates<float>;
template class SegmentStates<double>;

}  // namespace kda_check::cuda
