#include "cuda/variants/shards/segments.cuh"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.hpp"
#include "base/peers.hpp"
#include "cuda/device/check.hpp"

namespace kda_check::cuda {

namespace {

template <class T>
numeric::DType dtype_of_states() {
  return sizeof(T) == sizeof(double) ? numeric::DType::fp64 : numeric::DType::fp32;
}

/// The problem that a pass sees whose sequences are parts and whose heads are those at work: what it carries
/// comes from, and goes to, arrays between kernels.
template <class T>
DeviceProblem problem_of_parts(const DeviceProblem& p, int heads, const T* entering, T* leaving) {
  DeviceProblem parts = p;
  parts.HV = heads, parts.state_v_first = false;
  parts.initial_state = {entering, dtype_of_states<T>()};
  parts.final_state = {leaving, dtype_of_states<T>()};
  return parts;
}
template <class T>
DeviceProblem problem_of_parts(const DeviceProblem& p, int heads, const T* entering, T* leaving,
                               const T* entering_gradients, T* leaving_gradients) {
  DeviceProblem parts = problem_of_parts(p, heads, entering, leaving);
  parts.state_gradient = {entering_gradients, dtype_of_states<T>()};
  parts.gradients[static_cast<int>(kda::Gradient::dinitial_state)] = {leaving_gradients,
                                                                      dtype_of_states<T>()};
  return parts;
}

/// Whose heads are counted from the first at work, as problem_of_parts has them.
template <class T>
ChunkWork<T> of_parts(const ChunkWork<T>& work) {
  ChunkWork<T> parts = work;
  parts.first_head = 0;
  return parts;
}
template <class T>
ChunkBackwardWork<T> of_parts(const ChunkBackwardWork<T>& work, const ChunkWork<T>& forward) {
  ChunkBackwardWork<T> parts = work;
  parts.first_head = 0, parts.forward = forward, parts.sequence_count = forward.sequence_count;
  return parts;
}

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
                                LauncherMemory& memory, std::vector<WorkArray<T>>& arrays)
    : direction_(direction),
      peers_(segments.peers),
      transition_(r.casts.transition),
      segment_state_(r.casts.segment_state),
      parts_(r.sequences.size(), PieceRange{0, 0}) {
  for (std::size_t part = 0; part < segments.parts.size(); ++part) {
    PieceRange& of = parts_[segments.parts[part].index];
    if (of.count++ == 0) of.first = static_cast<std::uint32_t>(part);
  }
  std::vector<PassedParts> passed;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const PieceRange& of = parts_[s];
    passed.push_back({of.first + number(of, 0), of.first + number(of, of.count - 1)});
    if (of.count > 1) cut_.push_back(static_cast<std::uint32_t>(s));
  }
  passed_ = memory.uploaded("parts of sequences", passed);
  list_maps(r, segments, memory);
  plan_merges(segments.merge == kda::SegmentMerge::tree, memory);
  const std::size_t K = r.dimensions.K, V = r.dimensions.V;
  arrays.push_back({&M_, "maps of parts, M", maps_ * K * K});
  arrays.push_back({&A_, "maps of parts, A", maps_ * K * V});
  arrays.push_back({&transitions_, "transitions of chunks", cut_.empty() ? 0 : chunks_ * K * K});
  arrays.push_back({&states_, "states of parts", segments.parts.size() * K * V});
}

template <class T>
void SegmentStates<T>::list_maps(const Request& r, const Segments& segments, LauncherMemory& memory) {
  std::size_t most_parts = peers_ != nullptr ? peers_->count() : 1;
  for (const PieceRange& of : parts_) most_parts = std::max<std::size_t>(most_parts, of.count);
  formed_ = most_parts * cut_.size();
  const std::vector<TokenRange> tokens = parts_of(r, segments);
  const Pieces chunks(tokens, static_cast<std::uint32_t>(r.chunk_size));
  chunks_ = chunks.all.size();
  std::vector<TokenRange> mapped(formed_, {0, 0});
  std::vector<PieceRange> mapped_chunks(formed_, {0, 0});
  for (std::size_t i = 0; i < formed_; ++i) {
    const PieceRange& of = parts_[cut_[i % cut_.size()]];
    const std::size_t part = i / cut_.size();
    // Nobody asks for the map of the last part; but in a backward pass both directions go side by side.
    if (part + (direction_ == Direction::forwards ? 1 : 0) >= of.count) continue;
    mapped[i] = tokens[of.first + part], mapped_chunks[i] = chunks.of[of.first + part];
  }
  mapped_ = memory.uploaded("parts with maps", mapped);
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
ChunkWork<T> SegmentStates<T>::mapped(const ChunkWork<T>& work) const {
  ChunkWork<T> parts = of_parts(work);
  parts.sequences = mapped_, parts.chunks_of = mapped_chunks_;
  parts.sequence_count = static_cast<int>(formed_);
  return parts;
}

template <class T>
void SegmentStates<T>::exchange(const DeviceProblem& p, const ChunkWork<T>& work) const {
  const std::size_t rows = sizeof(T) * cut_.size() * work.heads * p.K;
  peers_->gather_all(M_, rows * p.K, is_default_stream_done);
  peers_->gather_all(A_, rows * p.V, is_default_stream_done);
}

template <class T>
void SegmentStates<T>::merge(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) const {
  launch_round(segment_state_, A_, formed_ * work.heads * p.K * p.V);
  launch_transitions(is_fused, direction_ == Direction::from_the_end, p, mapped(work), transitions_, M_);
  if (peers_ != nullptr) exchange(p, work);
  for (const Step& step : steps_) {
    const MapJob* const jobs = jobs_ + step.first;
    if (step.composes)
      launch_map_products<T>(is_fused, p, work.heads, {M_, M_, nullptr, M_, p.K, transition_, transition_},
                             jobs, step.count);
    T* const columns = step.composes ? A_ : states_;
    launch_map_products<T>(is_fused, p, work.heads,
                           {M_, columns, A_, columns, p.V, transition_, segment_state_}, jobs, step.count);
  }
}

template <class T>
void SegmentStates<T>::enter(const DeviceProblem& p, const ChunkWork<T>& work, const Tensor& from) const {
  launch_enter(p, work, passed_, static_cast<int>(parts_.size()), from, states_);
}
template <class T>
void SegmentStates<T>::leave(const DeviceProblem& p, const ChunkWork<T>& work,
                             const MutableTensor& to) const {
  if (to.data != nullptr)
    launch_leave(p, work, passed_, static_cast<int>(parts_.size()), static_cast<const T*>(states_), to);
}

template <class T>
void launch_chunk_state(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work,
                        const SegmentStates<T>& states) {
  states.enter(p, work, p.initial_state);
  if (states.has_maps()) {
    launch_chunk_state(is_fused, problem_of_parts<T>(p, work.heads, nullptr, states.A()),
                       states.mapped(work));
    states.merge(is_fused, p, work);
  }
  launch_chunk_state(is_fused, problem_of_parts<T>(p, work.heads, states.states(), states.states()),
                     of_parts(work));
  states.leave(p, work, p.final_state);
}

template <class T>
void launch_chunk_backward_states(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work,
                                  const SegmentStates<T>& states, const SegmentStates<T>& gradients) {
  const ChunkWork<T>& forward = work.forward;
  states.enter(p, forward, p.initial_state);
  gradients.enter(p, forward, p.state_gradient);
  if (states.has_maps()) {
    launch_chunk_backward_states(
        is_fused, problem_of_parts<T>(p, work.heads, nullptr, states.A(), nullptr, gradients.A()),
        of_parts(work, states.mapped(forward)));
    states.merge(is_fused, p, forward);
    gradients.merge(is_fused, p, forward);
  }
  launch_chunk_backward_states(is_fused,
                               problem_of_parts<T>(p, work.heads, states.states(), states.states(),
                                                   gradients.states(), gradients.states()),
                               of_parts(work, of_parts(forward)));
  gradients.leave(p, forward, p.gradients[static_cast<int>(kda::Gradient::dinitial_state)]);
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

#define KDA_CHECK_INSTANTIATE(T)                                                                      \
  template class SegmentStates<T>;                                                                    \
  template void launch_chunk_state(bool, const DeviceProblem&, const ChunkWork<T>&,                   \
                                   const SegmentStates<T>&);                                          \
  template void launch_chunk_backward_states(bool, const DeviceProblem&, const ChunkBackwardWork<T>&, \
                                             const SegmentStates<T>&, const SegmentStates<T>&);
KDA_CHECK_INSTANTIATE(float)
KDA_CHECK_INSTANTIATE(double)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::cuda
