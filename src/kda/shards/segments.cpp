#include "kda/shards/segments.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/threads/parallel.hpp"
#include "kda/head/chunk_workspace.hpp"
#include "kda/head/stage_exchange.hpp"

namespace kda_check::kda {

namespace {

std::size_t chunks_of(const Sequence& sequence, const RunOptions& options) {
  return (sequence.length() + options.chunk_size - 1) / options.chunk_size;
}

}  // namespace

std::size_t parts_of(const Sequence& sequence, const RunOptions& options) {
  const auto wanted = static_cast<std::size_t>(options.arithmetic.segments.parts);
  return std::max<std::size_t>(1, std::min(wanted, chunks_of(sequence, options)));
}

TokenRange part_of(const Sequence& sequence, const RunOptions& options, std::size_t part) {
  const std::size_t chunks = chunks_of(sequence, options), parts = parts_of(sequence, options);
  const auto begin = [&](std::size_t p) {
    return std::min(sequence.begin + chunks * p / parts * options.chunk_size, sequence.end);
  };
  return {begin(part), begin(part + 1)};
}

template <class T>
double PartStates<T>::elements(const Problem& problem, const RunOptions& options) {
  const Dimensions& d = problem.dimensions();
  std::size_t maps = 0, most = 0;
  for (const Sequence& s : problem.sequences()) {
    const std::size_t parts = parts_of(s, options);
    maps += (parts - 1) * d.HV, most = std::max(most, parts - 1);
  }
  const std::size_t of_map = d.K * (padded(d.K) + padded(d.V));
  const std::size_t merging = most * static_cast<std::size_t>(options.threads) * of_map;
  return static_cast<double>(maps * (of_map + d.K * padded(d.V)) + merging);
}

template <class T>
PartStates<T>::PartStates(const Problem& problem, const RunOptions& options, Ranks* ranks)
    : problem_(problem),
      options_(options),
      K_(problem.dimensions().K),
      k_stride_(padded(K_)),
      v_stride_(padded(problem.dimensions().V)),
      ranks_(ranks),
      casts_(cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true)),
      operations_(chunk_operations(problem, options)) {
  std::size_t maps = 0;
  first_.resize(problem.sequences().size());
  for (const Sequence& s : problem.sequences()) {
    first_[s.index] = maps;
    maps += (parts_of(s, options) - 1) * problem.dimensions().HV;
  }
  memory_ = tensor::Scratch<T>(maps * K_ * (k_stride_ + 2 * v_stride_));
}

template <class T>
typename PartStates<T>::Map PartStates<T>::map(const Sequence& s, std::size_t head, std::size_t passed) {
  const std::size_t number = first_[s.index] + head * (parts_of(s, options_) - 1) + passed;
  T* const M = memory_.data() + number * K_ * (k_stride_ + 2 * v_stride_);
  return {M, M + K_ * k_stride_};
}

template <class T>
T* PartStates<T>::state(const Sequence& s, std::size_t head, std::size_t passed) {
  return map(s, head, passed - 1).A + K_ * v_stride_;
}

template <class T>
const T* PartStates<T>::entering(const Sequence& s, std::size_t head, std::size_t passed) const {
  return const_cast<PartStates*>(this)->state(s, head, passed);
}

template <class T>
void PartStates<T>::multiply(const T* M, const T* x, std::size_t stride, std::size_t columns, bool adds,
                             T* y) {
  kernels<T>().map_product[static_cast<int>(options_.arithmetic.contraction)](
      {operations_, casts_, K_, (columns + 15) / 16 * 16, k_stride_, stride, M, x, y, adds});
}

template <class T>
typename PartStates<T>::Map PartStates<T>::composed(const Map& first, const Map& then, T* memory) {
  const Map both{memory, memory + K_ * k_stride_};
  std::fill_n(both.M, K_ * k_stride_, T(0));
  multiply(then.M, first.M, k_stride_, K_, false, both.M);
  kernels<T>().round(casts_.transition, both.M, K_ * k_stride_);
  apply(then, first.A, both.A);
  return both;
}

template <class T>
void PartStates<T>::apply(const Map& map, const T* state, T* result) {
  tensor::Scratch<T> operand(K_ * v_stride_);
  std::copy_n(state, K_ * v_stride_, operand.data());
  kernels<T>().round(casts_.transition, operand.data(), K_ * v_stride_);
  std::copy_n(map.A, K_ * v_stride_, result);
  multiply(map.M, operand.data(), v_stride_, problem_.dimensions().V, true, result);
  kernels<T>().round(casts_.segment_state, result, K_ * v_stride_);
}

template <class T>
void PartStates<T>::merge(const Sequence& s, std::size_t head, const FirstState& first) {
  const std::size_t maps = parts_of(s, options_) - 1, of_map = K_ * (k_stride_ + v_stride_);
  std::vector<std::vector<Map>> blocks(1);  // [k][i]: of parts i 2^k to (i + 1) 2^k - 1
  for (std::size_t part = 0; part < maps; ++part) blocks[0].push_back(map(s, head, part));
  const bool is_tree = options_.arithmetic.segments.merge == SegmentMerge::tree;
  tensor::Scratch<T> memory(is_tree ? maps * of_map : 0);  // 2^k - 1 of 2^k maps are composed
  T* next = memory.data();
  while (is_tree && blocks.back().size() > 1) {
    const std::vector<Map>& halves = blocks.back();
    std::vector<Map> whole;
    for (std::size_t i = 0; i + 1 < halves.size(); i += 2, next += of_map)
      whole.push_back(composed(halves[i], halves[i + 1], next));
    blocks.push_back(std::move(whole));
  }
  tensor::Scratch<T> initial(K_ * v_stride_);
  initial.fill(T(0));
  first(s, head, initial.data());
  for (std::size_t part = 1; part <= maps; ++part) {
    const auto level = static_cast<std::size_t>(is_tree ? std::countr_zero(part) : 0);
    const std::size_t from = part - (std::size_t{1} << level);
    apply(blocks[level][from >> level], from == 0 ? initial.data() : state(s, head, from),
          state(s, head, part));
  }
}

template <class T>
void PartStates<T>::exchange(const std::vector<Job>& cut) {
  const std::size_t of_map = K_ * (k_stride_ + v_stride_), ranks = ranks_->count();
  constexpr std::size_t most_bytes = std::size_t{1} << 26;  // of a rank
  const std::size_t at_once =
      std::clamp<std::size_t>(most_bytes / (of_map * sizeof(T)), 1, 64);  // sequences and heads
  for (std::size_t begin = 0; begin < cut.size(); begin += at_once) {
    const std::size_t count = std::min(at_once, cut.size() - begin);
    tensor::Scratch<T> own(count * of_map), all(ranks * count * of_map);
    own.fill(T(0));
    const auto each = [&](std::size_t rank, auto use) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto& [s, head, first] = cut[begin + i];
        if (rank + 1 < parts_of(s, options_)) use(i, map(s, head, rank).M);
      }
    };
    each(ranks_->rank(), [&](std::size_t i, const T* M) { std::copy_n(M, of_map, own.data() + i * of_map); });
    ranks_->gather_all(own.data(), count * of_map * sizeof(T), all.data());
    for (std::size_t rank = 0; rank < ranks; ++rank)
      each(rank,
           [&](std::size_t i, T* M) { std::copy_n(all.data() + (rank * count + i) * of_map, of_map, M); });
  }
}

template <class T>
void PartStates<T>::form(const FormMap& form_map, const FirstState& first) {
  std::vector<Job> maps, merges;
  for (const Sequence& s : problem_.sequences())
    for (std::size_t head = 0; head < problem_.dimensions().HV; ++head) {
      const std::size_t parts = parts_of(s, options_);
      if (parts > 1) merges.push_back({s, head, 0});
      for (std::size_t part = 0; part + 1 < parts; ++part)
        if (ranks_ == nullptr || ranks_->rank() == part) maps.push_back({s, head, part});
    }
  parallel_for(maps.size(), options_.threads, [&](std::size_t item, int) {
    const auto& [s, head, passed] = maps[item];
    const Map own = map(s, head, passed);
    std::fill_n(own.M, K_ * (k_stride_ + v_stride_), T(0));
    for (std::size_t k = 0; k < K_; ++k) own.M[k * k_stride_ + k] = 1;
    form_map(s, head, passed, own.M, own.A);
    kernels<T>().round(casts_.segment_state, own.A, K_ * v_stride_);
  });
  if (ranks_ != nullptr) exchange(merges);
  parallel_for(merges.size(), options_.threads,
               [&](std::size_t item, int) { merge(merges[item].sequence, merges[item].head, first); });
}

template <class T>
void form_states(const Problem& problem, const RunOptions& options, std::size_t most_rows,
                 PartStates<T>& states) {
  const HeadReader<T> reader(problem, chunk_operations(problem, options));
  const auto kernel = kernels<T>().chunk_map[static_cast<int>(options.arithmetic.contraction)];
  const std::size_t K = problem.dimensions().K;
  const CastPoints casts = cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true);
  states.form(
      [&](const Sequence& s, std::size_t head, std::size_t part, T* M, T* A) {
        ChunkWorkspace<T> work(problem, options, most_rows);
        work.block.forms_w = true;
        std::optional<StageExchange<T>> exchange;
        if (options.stages.given != nullptr) exchange.emplace(problem, options.stages, s, options.chunk_size);
        tensor::Scratch<T> scratch(2 * K * work.k_stride());
        const TokenRange tokens = part_of(s, options, part);
        for (std::size_t begin = tokens.begin; begin < tokens.end; begin += options.chunk_size) {
          work.load(reader, {s, head, begin, std::min(options.chunk_size, tokens.end - begin)});
          if (exchange) exchange->give(head, begin, work.block, work.G);
          // A starts from nothing: what the run has there is another state's.
          work.block.given.h = work.block.given.v_new = nullptr;
          kernel(work.block, {M, scratch.data()});
        }
        std::copy_n(work.block.state, K * work.v_stride(), A);
      },
      [&](const Sequence& s, std::size_t head, T* state) {
        load_initial_state(reader, casts, K, s, head, state, padded(problem.dimensions().V));
      });
}
template void form_states(const Problem&, const RunOptions&, std::size_t, PartStates<float>&);
template void form_states(const Problem&, const RunOptions&, std::size_t, PartStates<double>&);
template class PartStates<float>;
template class PartStates<double>;

}  // namespace kda_check::kda
