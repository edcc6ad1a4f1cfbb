#include "engine/head_truths.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/threads/parallel.hpp"
#include "kda/problem/passes.hpp"
#include "kda/problem/shapes.hpp"
#include "kda/truth/places.hpp"

namespace kda_check::engine {

namespace {

/// None where there is no memory.
kda::TensorOnGpu room_on_gpu(std::size_t elements) {
  try {
    return kda::room_on_gpu(elements);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::environment) throw;
    return {};
  }
}

}  // namespace

judge::HeadRows truth_of(const HeadTruths& truths, std::string_view tensor, const judge::RowLayout& layout,
                         std::size_t head) {
  const std::span<const double> values = truths.tensors.find(tensor)->second;
  const std::size_t heads = values.size() / (layout.rows * layout.width);
  return {values, layout.with_heads(heads), head - truths.first * (heads / truths.count)};
}

void for_heads(TruthSource& source, std::size_t query_heads,
               const std::function<bool(std::size_t query_head)>& is_wanted,
               const std::function<void(const HeadTruths&, std::size_t first, std::size_t count)>& body) {
  for (std::size_t first = 0; first < query_heads; ++first) {
    std::size_t count = 0;
    while (count < source.at_once() && first + count < query_heads && is_wanted(first + count)) ++count;
    if (count == 0) continue;
    body(source.of(first, count), first, count);
    first += count - 1;
  }
}

kda::OracleSink ForwardTruths::kept(std::size_t first, std::size_t count, Held& held, bool on_gpu) const {
  const kda::Dimensions& d = problem_.dimensions();
  const std::size_t group = problem_.heads_per_group(), heads = count * group, row = heads * d.V;
  held.o_on_gpu = on_gpu ? room_on_gpu(d.B * d.T * row) : kda::TensorOnGpu();
  const bool is_on_gpu = held.o_on_gpu.memory != nullptr;
  for (const std::string& name : kda::tensors_of(kda::Pass::forward, problem_))
    if (const std::size_t size = tensor::element_count(kda::shape_of(name, problem_));
        name != "o" || !is_on_gpu)
      held.tensors[name].resize(size / d.HV * heads);
  if (is_on_gpu) held.tensors.erase("o");
  const auto keep_o = [=, threads = threads_, &held](const kda::OraclePart& part) {
    if (is_on_gpu) return kda::upload_part(held.o_on_gpu, part.first, part.count, part.hi);
    tensor::Unfilled& o = held.tensors.find("o")->second;
    // Who fills memory first pays for it.
    parallel_for(part.count / row, threads, [&](std::size_t token, int) {
      std::copy_n(part.hi + token * row, row, &o[part.first + token * row]);
    });
  };
  const auto keep_state = [&held](const kda::OraclePart& part) {
    std::copy_n(part.hi, part.count, &held.tensors.find(part.tensor)->second[part.first]);
  };
  return kda::by_places(d, keep_o, keep_state, {first * group, (first + count) * group});
}

HeadTruths ForwardTruths::of(std::size_t first, std::size_t count, const kda::OracleSink& also, bool on_gpu) {
  const kda::OracleSink values = kept(first, count, values_, on_gpu);
  kda::OracleSink sink;
  sink.begun = also.begun;
  sink.output = [&](const kda::OracleOutput& block) {
    if (also.output) also.output(block);
    values.output(block);
  };
  sink.state = [&](const kda::OracleState& state) {
    if (also.state) also.state(state);
    values.state(state);
  };
  sink.error = also.error;
  const std::size_t group = problem_.heads_per_group();
  kda::run_oracle(problem_, options_, threads_, sink, {first * group, (first + count) * group});
  HeadTruths truths{first, count};
  for (const auto& [name, held] : values_.tensors) truths.tensors.emplace(name, held);
  if (values_.o_on_gpu.memory != nullptr) truths.on_gpu.emplace("o", std::exchange(values_.o_on_gpu, {}));
  return truths;
}

HeadTruths::OnGpu copied_to_gpu(const kda::GradientTruths& truths) {
  HeadTruths::OnGpu copies;
  try {
    for (const kda::GradientRow& row : kda::gradients())
      if (const tensor::Unfilled& hi = truths[static_cast<std::size_t>(row.gradient)].hi; !hi.empty())
        copies.emplace(row.name, kda::uploaded(numeric::DType::fp64, hi.data(), hi.size()));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::environment) throw;
  }
  return copies;
}

GradientHeads::GradientHeads(std::size_t query_heads, kda::GradientTruths truths, HeadTruths::OnGpu on_gpu,
                             int threads)
    : query_heads_(query_heads), truths_(std::move(truths)), on_gpu_(std::move(on_gpu)) {
  // Gigabytes, which to give back takes its time.
  std::vector<tensor::Unfilled*> others;
  for (kda::GradientTruth& truth : truths_)
    others.insert(others.end(), {&truth.lo, &truth.magnitude, &truth.chunk_magnitude, &truth.spread});
  parallel_for(others.size(), threads, [&](std::size_t i, int) { *others[i] = {}; });
}

HeadTruths GradientHeads::of(std::size_t, std::size_t) {
  HeadTruths all{0, query_heads_};
  for (const kda::GradientRow& row : kda::gradients())
    if (const tensor::Unfilled& hi = truths_[static_cast<std::size_t>(row.gradient)].hi; !hi.empty())
      all.tensors.emplace(row.name, hi);
  all.on_gpu = on_gpu_;
  return all;
}

}  // namespace kda_check::engine
