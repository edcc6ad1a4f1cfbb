#include "engine/answered.hpp"

#include <cstring>
#include <utility>

#include "kda/bounds/log_decays.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::engine {

namespace {

report::Role role_of(plan::Answer::Origin origin) {
  if (origin == plan::Answer::Origin::recorded) return report::Role::recorded;
  return origin == plan::Answer::Origin::external ? report::Role::external : report::Role::variant;
}

}  // namespace

const tensor::Tensor* Answered::tensor(std::string_view tensor_name) const {
  const auto found = tensors.find(tensor_name);
  return found == tensors.end() ? nullptr : &found->second;
}

const numeric::Format& Described::range() const {
  const numeric::Format &computed = numeric::format_of(numeric::range_of(compute)),
                        &stored = numeric::format_of(dtype);
  const bool stores_operands = form != judge::Form::recurrence;
  return stores_operands && stored.smallest_normal() > computed.smallest_normal() ? stored : computed;
}

Answered described(const plan::Answer& answer, kda::Pass pass, const plan::Problem& problem) {
  Answered result;
  result.name = answer.name;
  result.role = role_of(answer.origin);
  result.pass = pass;
  result.dtype = answer.dtype;
  result.chunk_size = problem.outline.chunk_size();
  if (answer.is_computed()) {
    const kda::Variant& variant = *answer.variant;
    result.device = kda::device_of(variant);
    result.arithmetic = kda::describe(answer.options.arithmetic, variant.axes);
    result.compute =
        kda::compute_format(variant, answer.dtype, answer.options.arithmetic, pass == kda::Pass::backward);
    result.form = variant.axes.chunk ? judge::Form::chunk : judge::Form::recurrence;
    result.said.arithmetic = answer.options.arithmetic;
    result.segments = answer.options.arithmetic.segments;
    result.chunk_size = answer.options.chunk_size;
  } else if (const fixture::ExpectedGroup* const group = problem.source->expected_named(answer.name)) {
    describe_as_said(result, *group, problem.outline.operand_dtype());
  }
  return result;
}

void describe_as_said(Described& answer, const fixture::ExpectedGroup& group, numeric::DType operands) {
  answer.device = group.device;
  answer.arithmetic = group.implementation;
  answer.said = plan::declaration_of(group);
  const fixture::ComputeClaim claim = group.compute_claim(operands);
  answer.compute = claim.format, answer.compute_assumed_from = claim.assumed_from;
  answer.unknown = group.unknown;
}

void allow_for_codes(const kda::Problem& problem, kda::Tensors& ordinary) {
  const bool is_drawn = problem.pool && problem.pool->table.is_drawn() && ordinary.contains("state_pool");
  if (!(ordinary.contains("state_scale") || is_drawn) || !ordinary.contains("final_state")) return;
  tensor::Tensor right = kda::answer_in_fp64(problem).final_state.named("state_in_fp64"),
                 states = ordinary.at("final_state").converted_to(numeric::DType::fp64);
  kda::allow_rounding(*problem.pool, states, right);
  ordinary.insert_or_assign("final_state", states.converted_to(kda::state_dtype(problem.dtype())));
  ordinary.emplace("state_in_fp64", std::move(right));
}

kda::Tensors of_ordinary_form(const kda::Problem& problem, kda::Tensors answer) {
  kda::Tensors ordinary = kda::of_ordinary_form(*problem.pool, std::move(answer));
  allow_for_codes(problem, ordinary);
  const auto found = ordinary.find("final_state");
  if (found == ordinary.end()) return ordinary;
  std::vector<kda::Sequence> unstored;
  for (const kda::Sequence& sequence : problem.sequences())
    if (!problem.pool->pieces[sequence.index].is_stored()) unstored.push_back(sequence);
  if (unstored.empty()) return ordinary;
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64;
  const kda::Problem alone = kda::excerpt(problem, unstored, kda::Layout::packed);
  const tensor::Tensor right =
      kda::run_recurrent(alone, options).final_state.converted_to(found->second.dtype());
  const std::size_t bytes = right.bytes() / unstored.size();
  for (std::size_t i = 0; i < unstored.size(); ++i)
    std::memcpy(found->second.data() + unstored[i].index * bytes, right.data() + i * bytes, bytes);
  return ordinary;
}

report::CaseResult case_about(const Answered& got, std::string against) {
  report::CaseResult result;
  result.variant = got.name;
  result.role = got.role;
  result.dtype = numeric::name_of(got.dtype);
  result.device = got.device;
  result.pass = kda::name_of(got.pass);
  result.arithmetic = got.arithmetic;
  result.compute = numeric::row_of(got.compute).name;
  result.compute_assumed = !got.compute_assumed_from.empty();
  result.against = std::move(against);
  return result;
}

}  // namespace kda_check::engine
