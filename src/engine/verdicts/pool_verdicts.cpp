#include "engine/verdicts/pool_verdicts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/explain/faults.hpp"
#include "engine/judged.hpp"
#include "plan/selection.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::engine {

namespace {

using report::TensorResult;
using tensor::Tensor;

class PoolVerdicts {
 public:
  PoolVerdicts(const kda::PoolCall& call, const Answered& got, int threads, report::CaseResult& result)
      : call_(call), got_(got), threads_(threads), result_(result) {}

  bool judge(const plan::Names& tensors) {
    const Tensor *const pool = got_.tensor("state_pool"), *const padding = got_.tensor("padding_output");
    const bool has_states = pool != nullptr && plan::has(tensors, "final_state");
    if (has_states) judge_slots_left_alone(*pool);
    if (has_states && got_.tensor("state_scale") != nullptr) judge_scales();
    for (const auto& [name, ring] : call_.ring)
      if (const Tensor* const after = got_.tensor(name)) judge_ring(*after);
    if (padding != nullptr && plan::has(tensors, "o")) judge_padding(*padding);
    return has_states;
  }

 private:
  /// Of padding whose o must be zero.
  void judge_padding(const Tensor& padding) {
    Tensor zero(padding.name(), padding.dtype(), padding.shape());
    std::memset(zero.data(), 0, zero.bytes());
    TensorResult& judgement = judged(padding, zero, "options/padding_output", Sameness::answers);
    const auto name_row = [&](report::PointResult& point) {
      std::size_t token = point.index[1];
      auto row = call_.padding.begin();
      while (token >= row->length()) token -= (row++)->length();
      point.index[0] = row->batch, point.index[1] = row->begin + token;
      point.place = kda::place("o", point.index, false);
      return row->index;
    };
    std::ranges::for_each(judgement.points, name_row);
    if (judgement.worst && judgement.verdict == judge::Verdict::fail)
      judgement.reason = fmt::format("row {} is padding, and its o is not zero; {}",
                                     name_row(*judgement.worst), judgement.reason);
  }

  /// `source`: of the limit.
  TensorResult& judged(const Tensor& after, const Tensor& expected, const char* source,
                       Sameness sameness = Sameness::data) {
    return result_.tensors.emplace_back(
        judged_by_bits({after.name(), after.shape(), after.dtype(), call_.problem.options.state_v_first},
                       after, expected, comparison_options({}, threads_, false), sameness, true, source));
  }

  std::string place(const std::string& tensor, std::size_t element, const tensor::Shape& shape) const {
    return kda::place(tensor, tensor::index_of(shape, element), call_.problem.options.state_v_first);
  }

  /// What nobody stored to must be what it was.
  void judge_slots_left_alone(const Tensor& after) {
    const Tensor& before = call_.stored();
    const std::vector<std::size_t> alone = kda::slots_left_alone(call_);
    if (alone.empty()) return;
    const std::size_t bytes = after.bytes() / call_.slots();
    std::vector<std::size_t> changed;
    for (const std::size_t slot : alone)
      if (std::memcmp(after.data() + slot * bytes, before.data() + slot * bytes, bytes) != 0)
        changed.push_back(slot);
    if (changed.empty()) changed.push_back(alone.front());
    TensorResult& judgement =
        judged(tensor::picked(after, 0, changed), tensor::picked(before, 0, changed), "slots left alone");
    if (judgement.verdict == judge::Verdict::fail)
      judgement.reason = fmt::format("slot {}, which {}no row stores to, was written; {}", changed.front(),
                                     reader_of(changed.front()), judgement.reason);
    judgement.shape = call_.states.shape();
    const auto name_slot = [&](report::PointResult& point) {
      point.index[0] = changed[point.index[0]];
      point.place = kda::place(after.name(), point.index, call_.problem.options.state_v_first);
    };
    std::ranges::for_each(judgement.points, name_slot);
    if (judgement.worst) name_slot(*judgement.worst);
  }

  /// "sequence 2 reads and " of a slot, where others than those that are read are stored to.
  std::string reader_of(std::size_t slot) const {
    const auto reader = std::ranges::find(call_.pieces, slot, &kda::PoolPiece::from);
    if (call_.table.outputs.empty() || call_.source || reader == call_.pieces.end()) return {};
    return fmt::format("sequence {} reads and ", reader->tokens.index);
  }

  /// Of the scales of a quantised pool: those of slots that are stored to are that of the largest magnitude
  /// of their block, as far as a state may err; others, and fixed ones, are what they were.
  void judge_scales() {
    const Tensor &after = *got_.tensor("state_scale"), &states = *got_.tensor("state_in_fp64"),
                 right = kda::right_scale(call_, call_.pieces, states);
    Tensor expected = right.clone();
    const auto state_result = [&]() -> TensorResult& {
      return *std::ranges::find(result_.tensors, "final_state", &TensorResult::name);
    };
    double squares = 0;
    for (std::size_t i = 0; i < states.size(); ++i) squares += states.value(i) * states.value(i);
    constexpr double of_one_element = 32, also = 0x1p-20;  // of what all may err by; of rounding the scale
    const double largest = call_.table.quantisation->largest,
                 error = of_one_element * rms_limit(state_result()) *
                         std::sqrt(squares / static_cast<double>(states.size()));
    const auto is_near = [&](std::size_t i, std::size_t other) {
      return std::fabs(after.value(i) - right.value(other)) <= error / largest + also * right.value(other);
    };
    const std::vector<std::size_t> alone = kda::slots_left_alone(call_);
    const std::size_t per_slot = after.size() / call_.slots();
    const auto is_alone = [&](std::size_t i) { return std::ranges::binary_search(alone, i / per_slot); };
    for (std::size_t i = 0; i < after.size() && largest > 0; ++i)  // of a block of zeros any will do
      if (!is_alone(i) && (is_near(i, i) || right.value(i) == 0)) expected.set(i, after.value(i));
    TensorResult& judgement = judged(after, expected, "scales after a call");
    std::size_t wrong = 0;
    while (wrong < after.size() && std::memcmp(after.at(wrong), expected.at(wrong), sizeof(float)) == 0)
      ++wrong;
    if (judgement.verdict == judge::Verdict::fail && wrong < after.size()) {
      const auto at = [&](std::size_t i) { return place(after.name(), i, after.shape()); };
      std::string why;
      std::size_t other = wrong - wrong % per_slot;
      while (other / per_slot == wrong / per_slot && !is_near(wrong, other)) ++other;
      if (is_alone(wrong))
        why = fmt::format("was written, and no row stores to slot {}", wrong / per_slot);
      else if (largest == 0)
        why = "was written, and scales are fixed";
      else
        why = fmt::format("is {:.4g} times the largest magnitude of its block / {:g}{}",
                          after.value(wrong) / right.value(wrong), largest,
                          after.value(wrong) == call_.scale.value(wrong) ? ", as it was before the call"
                          : other / per_slot == wrong / per_slot ? fmt::format(", as {} is to be", at(other))
                                                                 : "");
      judgement.reason = fmt::format("{} {}; {}", at(wrong), why, judgement.reason);
    }
    if (state_result().verdict == judge::Verdict::fail)
      state_result().reason += saturated(*got_.tensor("state_pool"), states, right);
  }

  /// "; 3 codes are ...": at the end of their format, where their states are not by the right scales.
  std::string saturated(const Tensor& codes, const Tensor& states, const Tensor& scale) const {
    const kda::CodeFormat format = call_.table.quantisation->format;
    const std::vector<std::size_t> blocks = kda::blocks_of(codes.shape(), scale.shape());
    const double most = kda::largest_code(format), step = 2 * kda::half_step(format, most);
    std::vector<std::size_t> found;
    for (std::size_t p = 0, size = blocks.size(); p < call_.pieces.size(); ++p)
      for (std::size_t i = 0, to = call_.pieces[p].to; i < size && call_.pieces[p].is_stored(); ++i)
        if (std::fabs(codes.value(to * size + i)) >= most &&
            std::fabs(states.value(p * size + i)) <
                (most - step) * scale.value(to * (scale.size() / call_.slots()) + blocks[i]))
          found.push_back(to * size + i);
    if (found.empty()) return {};
    return fmt::format("; {} code{} at the end of {} where the state is not, the first at {}", found.size(),
                       found.size() == 1 ? " is" : "s are", kda::name_of(format),
                       place("state_pool", found.front(), codes.shape()));
  }

  /// What is written there is a copy of the call's input, and what the next call may read, or is nobody's, is
  /// what it was.
  void judge_ring(const Tensor& after) {
    const Tensor &before = call_.ring.at(after.name()), expected = kda::ring_after(call_, after);
    TensorResult& judgement = judged(after, expected, "rings after a call");
    const std::size_t rows = call_.table.ring.rows, bytes = after.bytes() / (rows * call_.slots());
    const auto is_as = [&](const Tensor& other, const kda::RingRow& row) {
      return std::memcmp(after.data() + row.number * bytes, other.data() + row.number * bytes, bytes) == 0;
    };
    const std::vector<kda::RingRow> all = kda::ring_rows_after(call_);
    const auto wrong = std::ranges::find_if(all, [&](const auto& row) { return !is_as(expected, row); });
    if (judgement.verdict == judge::Verdict::fail && wrong != all.end())
      judgement.reason = fmt::format(
          "slot {}'s ring row {}, {}{}; {}", wrong->number / rows, wrong->number % rows,
          wrong->of == nullptr ? std::string("which is nobody's")
          : wrong->token ? fmt::format("for token {} of sequence {}", *wrong->token, wrong->of->tokens.index)
                         : fmt::format("which holds a token of sequence {}", wrong->of->tokens.index),
          !wrong->token           ? ", was written"
          : is_as(before, *wrong) ? ", was not written"
                                  : ", is not a copy of the call's",
          judgement.reason);
  }

  const kda::PoolCall& call_;
  const Answered& got_;
  const int threads_;
  report::CaseResult& result_;
};

}  // namespace

bool judge_pool(const kda::PoolCall& call, const Answered& got, const plan::Names& tensors, int threads,
                report::CaseResult& result) {
  return PoolVerdicts(call, got, threads, result).judge(tensors);
}

}  // namespace kda_check::engine
