#include "selftest/mutants.hpp"

#include <cmath>

#include "explain/interpretation.hpp"
#include "explain/rearrangement.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::selftest {

namespace {

using explain::Interpretation;
using explain::LastToken;
using kda::Answer;
using kda::Problem;
using kda::RunOptions;
using numeric::DType;
using tensor::Tensor;

Answer of(const char* variant, const Problem& problem, const RunOptions& options) {
  return kda::variant_named(variant).run(problem, options);
}
Answer recurrent(const Problem& problem, const RunOptions& options) {
  return of("recurrent", problem, options);
}

/// The recurrence of analysis/reading in fp64 with something changed, its answer rounded to the formats of
/// the run.
template <auto change>
Answer misread(const Problem& problem, const RunOptions& options) {
  const kda::Dimensions& d = problem.dimensions();
  Interpretation reading(problem);
  change(reading, problem);
  const bool v_first = problem.options.state_v_first;
  const auto shape = [&](const char* name) { return kda::expected_shape(*kda::find_spec(name), d, v_first); };
  Answer answer{Tensor("o", options.dtype, shape("o")),
                Tensor("final_state", kda::state_dtype(options.dtype), shape("final_state"))};
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head) {
      const explain::ExcerptAnswer part =
          explain::answer_of(problem, reading, {sequence, sequence.begin, sequence.end, head, 0, d.V, {}});
      for (std::size_t i = 0; i < part.o.size(); ++i)
        answer.o.set(((sequence.batch * d.T + sequence.begin + i / d.V) * d.HV + head) * d.V + i % d.V,
                     part.o[i]);
      for (std::size_t i = 0; i < part.state.size(); ++i)
        answer.final_state.set(explain::state_element(d, v_first, sequence.index, head, i / d.V, i % d.V),
                               part.state[i]);
    }
  return answer;
}

/// Multiplies rows [begin, end) of every batch row of o.
void multiply_rows(const Problem& problem, Tensor& o, std::size_t begin, std::size_t end, double factor) {
  const kda::Dimensions& d = problem.dimensions();
  const std::size_t row = d.HV * d.V;
  for (std::size_t b = 0; b < d.B; ++b)
    for (std::size_t i = (b * d.T + std::min(begin, d.T)) * row; i < (b * d.T + std::min(end, d.T)) * row;
         ++i)
      o.set(i, o.value(i) * factor);
}

Answer wrong_window(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  multiply_rows(problem, answer.o, 64, 72, 1.001);
  return answer;
}

Answer ragged_chunk(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  const std::size_t T = problem.dimensions().T;
  multiply_rows(problem, answer.o, T / options.chunk_size * options.chunk_size, T, 1 - 0x1p-10);
  return answer;
}

Answer wrong_head(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  const kda::Dimensions& d = problem.dimensions();
  for (std::size_t row = 0; row < d.B * d.T; ++row)
    for (std::size_t v = 0; v < d.V; ++v)
      answer.o.set((row * d.HV + d.HV - 1) * d.V + v, answer.o.value(row * d.HV * d.V + v));
  return answer;
}

Answer head_without_beta(const Problem& problem, const RunOptions& options) {
  Problem changed = kda::clone(problem);
  const std::size_t HV = problem.dimensions().HV;
  for (std::size_t i = HV - 1; i < changed.beta.size(); i += HV) changed.beta.set(i, 1);
  return recurrent(changed, options);
}

/// Every chunk begins with a state of zeros.
Answer state_not_carried(const Problem& problem, const RunOptions& options) {
  std::vector<kda::Sequence> pieces;
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t begin = 0; begin < sequence.length(); begin += options.chunk_size)
      pieces.push_back(sequence.part(begin, std::min(begin + options.chunk_size, sequence.length())));
  Answer answer = recurrent(problem, options);
  Problem chunks = explain::excerpt(problem, pieces, explain::Layout::packed);
  chunks.initial_state.reset();
  explain::put_back(recurrent(chunks, options), pieces, problem, answer);
  return answer;
}

/// At the first token of a chunk, the gate of the second.
Answer gate_at_chunk_starts(const Problem& problem, const RunOptions& options) {
  Problem changed = kda::clone(problem);
  const std::size_t row = problem.dimensions().HV * problem.dimensions().K;
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t t = 0; t + 1 < sequence.length(); t += options.chunk_size)
      for (std::size_t i = 0; i < row; ++i) {
        const std::size_t first = (sequence.batch * problem.dimensions().T + sequence.begin + t) * row;
        changed.g.set(first + i, problem.g.value(first + row + i));
      }
  return recurrent(changed, options);
}

Answer nan_as_zero(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  answer.o.set(answer.o.size() / 2, 0);
  return answer;
}

Answer state_in_fp16(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.storage = kda::Storage::named;
  coarse.arithmetic.casts = {};
  coarse.arithmetic.casts.carry = kda::Rounding::fp16;
  return recurrent(problem, coarse);
}

Answer silent_tf32(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.storage = kda::Storage::fla;
  return of("chunk", problem, coarse);
}

Answer scale_off_by_an_ulp(const Problem& problem, const RunOptions& options) {
  Problem changed = kda::clone(problem);
  changed.options.scale = problem.scale() * (1 + 0x1p-23);
  return recurrent(changed, options);
}

Answer looks_ahead(const Problem& problem, const RunOptions& options) {
  RunOptions ahead = options;
  ahead.arithmetic.decay = kda::DecayForm::anchor_mid;
  return of("chunk", problem, ahead);
}

void flip_last_bit(Tensor& tensor, std::size_t element) { tensor.at(element)[0] ^= std::byte{1}; }

Answer second_sequence(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  const std::size_t N = problem.dimensions().N;
  if (N > 1) flip_last_bit(answer.final_state, answer.final_state.size() / N);
  return answer;
}

Answer odd_head(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  flip_last_bit(answer.o, 0);
  return answer;
}

Answer state_handed_over_in_bf16(const Problem& problem, const RunOptions& options) {
  Problem changed = kda::clone(problem);
  if (changed.initial_state)
    changed.initial_state = changed.initial_state->converted_to(DType::bf16).converted_to(DType::fp32);
  return recurrent(changed, options);
}

Answer mask_by_zero(const Problem& problem, const RunOptions& options) {
  Answer answer = recurrent(problem, options);
  const double masked = 0 * problem.v.value(problem.v.size() - 1);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) + masked);
  return answer;
}

/// The chunk form, o times a factor where `is_there` says so: what is small beside the noise of 16 bits.
template <class IsThere>
Answer scaled_chunk(const Problem& problem, const RunOptions& options, double factor, IsThere is_there) {
  Answer answer = of("chunk", problem, options);
  const kda::Dimensions& d = problem.dimensions();
  for (std::size_t row = 0; row < d.B * d.T; ++row)
    for (std::size_t head = 0; head < d.HV; ++head) {
      if (!is_there(row % d.T, head)) continue;
      for (std::size_t v = 0; v < d.V; ++v) {
        const std::size_t at = (row * d.HV + head) * d.V + v;
        answer.o.set(at, answer.o.value(at) * factor);
      }
    }
  return answer;
}

Answer percent_too_large(const Problem& problem, const RunOptions& options) {
  return scaled_chunk(problem, options, 1.01, [](std::size_t, std::size_t) { return true; });
}
Answer one_head_too_large(const Problem& problem, const RunOptions& options) {
  const std::size_t last = problem.dimensions().HV - 1;
  return scaled_chunk(problem, options, 1.03, [=](std::size_t, std::size_t head) { return head == last; });
}
Answer last_rows_too_large(const Problem& problem, const RunOptions& options) {
  const std::size_t rows = options.chunk_size;
  return scaled_chunk(problem, options, 1.05,
                      [=](std::size_t token, std::size_t) { return token % rows + 1 == rows; });
}
Answer one_chunk_too_large(const Problem& problem, const RunOptions& options) {
  const std::size_t rows = options.chunk_size;
  return scaled_chunk(problem, options, 1.06,
                      [=](std::size_t token, std::size_t head) { return token / rows == 1 && head == 0; });
}
Answer one_row_too_large(const Problem& problem, const RunOptions& options) {
  return scaled_chunk(problem, options, 1.15,
                      [](std::size_t token, std::size_t head) { return token == 70 && head == 0; });
}

constexpr Mutant rows[] = {
    {"written_again", "the recurrence in other code", "recurrent", DType::fp64, true,
     misread<[](Interpretation&, const Problem&) {}>},
    {"gate_late", "the gate of the token before", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.gate_delay = 1; }>},
    {"gate_mean", "the gate averaged over the channels", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.gate_mean = true; }>},
    {"predict_before_decay", "the prediction from the state before it decays", "recurrent", DType::fp32,
     false, misread<[](Interpretation& r, const Problem&) { r.predict_before_decay = true; }>},
    {"beta_twice", "beta in the prediction and in the update", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.beta_squared = true; }>},
    {"scale_of_values", "1/sqrt(V) for 1/sqrt(K)", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) {
       r.options.scale = 1 / std::sqrt(static_cast<double>(r.value_width));
     }>},
    {"doubled", "o twice as large", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.output_factor = 2; }>},
    {"initial_state_dropped", "starts from zeros", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.initial_state = false; }>},
    {"write_lost", "the update of token 64 is lost", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.lost_write = 64; }>},
    {"last_row_stale", "the last row of o is the one before", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.last_token = LastToken::stale; }>},
    {"last_token_dropped", "the last token is not read", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) { r.last_token = LastToken::dropped; }>},
    {"exp2_for_exp", "the decay is a power of two", "recurrent", DType::fp32, false,
     misread<[](Interpretation& r, const Problem&) {
       r.decay = +[](double x) { return numeric::exp2(x); };
     }>},
    {"biased_bf16", "o times 1 + 2^-8, in bf16", "recurrent", DType::bf16, false,
     misread<[](Interpretation& r, const Problem&) { r.output_factor = 1 + 0x1p-8; }>},
    {"wrong_window", "tokens 64 to 71 a thousandth too large", "recurrent", DType::fp32, false, wrong_window},
    {"ragged_chunk", "the last, ragged chunk 2^-10 too small", "recurrent", DType::fp32, false, ragged_chunk},
    {"wrong_head", "the last head gets the output of the first", "recurrent", DType::fp32, false, wrong_head},
    {"head_without_beta", "one head has no beta", "recurrent", DType::fp32, false, head_without_beta},
    {"state_not_carried", "every chunk starts from zeros", "recurrent", DType::fp32, false,
     state_not_carried},
    {"gate_at_chunk_starts", "the first token of a chunk has the gate of the second", "recurrent",
     DType::fp32, false, gate_at_chunk_starts},
    {"nan_as_zero", "one element is zero", "recurrent", DType::fp32, false, nan_as_zero},
    {"state_in_fp16", "the state is kept in fp16", "recurrent", DType::fp32, false, state_in_fp16},
    {"silent_tf32", "products in tf32 that say fp32", "chunk", DType::fp32, false, silent_tf32},
    {"scale_off_by_an_ulp", "a scale wrong by one step of fp32, in fp64", "recurrent", DType::fp64, false,
     scale_off_by_an_ulp},
    {"looks_ahead", "anchors in later rows, undeclared", "chunk", DType::fp32, false, looks_ahead},
    {"state_read_in_bf16", "the state handed over is read in bf16", "recurrent", DType::fp32, false,
     state_handed_over_in_bf16},
    {"second_sequence", "one bit of the second sequence of a batch", "recurrent", DType::fp32, false,
     second_sequence},
    {"odd_head", "one bit of the first head", "recurrent", DType::fp32, false, odd_head},
    {"percent_in_bf16", "o a hundredth too large", "chunk", DType::bf16, false, percent_too_large},
    {"head_in_bf16", "the last head 3 % too large", "chunk", DType::bf16, false, one_head_too_large},
    {"last_rows_in_bf16", "the last row of every chunk 5 % too large", "chunk", DType::bf16, false,
     last_rows_too_large},
    {"chunk_in_bf16", "the second chunk of the first head 6 % too large", "chunk", DType::bf16, false,
     one_chunk_too_large},
    {"row_in_bf16", "token 70 of the first head 15 % too large", "chunk", DType::bf16, false,
     one_row_too_large},
    {"mask_by_zero", "what lies outside is multiplied by zero", "recurrent", DType::fp32, false,
     mask_by_zero},
};

}  // namespace

std::span<const Mutant> mutants() { return rows; }

}  // namespace kda_check::selftest
