// The query heads of a problem, as the twins of a family solve them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/answered.hpp"
#include "hypotheses/spread.hpp"
#include "judge/spread/twin_test.hpp"
#include "kda/variants/gpu_emulation.hpp"

namespace kda_check::engine {

using hypotheses::Twin;

/// That query head and its value heads as a problem of their own.
kda::Problem one_query_head(const kda::Problem& problem, std::size_t query_head);

/// Of so many query heads one is measured beside all twins, where the first of them gives the answers: they
/// have to say what computations like it do, once they have tokens enough for that.
std::size_t one_in_full(const kda::Dimensions& dimensions);

kda::Tensors answer_of(const Twin& twin, kda::Pass pass, const kda::Problem& problem);

/// ... on the GPU, where it stays, to query heads [first, first + count) of a problem together.
struct AnswersOnGpu {
  std::vector<kda::AnswerOnGpu> answers;
  std::size_t first = 0, count = 1;
};
/// What computes together; what it points to must stay.
using Emulations = std::vector<kda::Emulated>;
Emulations emulations_of(const std::vector<Twin>& family, kda::Pass pass);
/// Takes what one of several answers.
using EmulationsSink = std::function<void(std::size_t which, AnswersOnGpu answers)>;
/// Of several, side by side; each is handed out in its turn, as soon as it is there. Throws
/// Error{environment} where the GPU fails or lacks memory.
void gpu_answers_of(const std::vector<Emulations>& wanted, const kda::Problem& problem, std::size_t first,
                    std::size_t count, const EmulationsSink& sink);
/// Whether the GPU has all these ways of computing.
bool can_answer_on_gpu(const Emulations& wanted, const kda::Problem& problem);

/// How many query heads twins take at once: of each they hold the truth and the answers of a family, and the
/// gradients' truth is held whole. A thread has one; a GPU as many as there is room for in the bytes that are
/// `left` of the budget beside inputs and answers. Throws Error{input} where one is more than `budget` bytes.
std::size_t heads_for_twins(const plan::Problem& problem, kda::Pass pass, int threads, bool on_gpu,
                            std::size_t budget, std::size_t left);
/// In fp32 a biased exponential is systematic and legitimate, and so is a slope; where it is stored in fewer
/// bits it is next to nothing.
constexpr bool slopes_judge(numeric::ComputeFormat compute, numeric::DType dtype) {
  return compute != numeric::ComputeFormat::fp32 || numeric::format_of(dtype).precision < 24;
}

enum class TwinsOf : unsigned char { outputs, gradients, stages };
constexpr TwinsOf twins_of(kda::Pass pass) {
  return pass == kda::Pass::forward ? TwinsOf::outputs : TwinsOf::gradients;
}

/// How many times farther than its twins an answer may be (docs/verdicts.md, "Error rates"). Errors of a few
/// roundings, as of fp32, have long tails, and so have gradients, which end in sums that cancel.
double most_times_twins(TwinsOf what, numeric::ComputeFormat compute);

/// For answers of that precision with tensors of that element type.
judge::TwinSetting twin_setting(TwinsOf what, const judge::RowLayout& layout, numeric::ComputeFormat compute,
                                numeric::DType dtype, std::size_t twins, std::size_t answers);

}  // namespace kda_check::engine
