#include "kda/gpu_emulation.hpp"

#include "cuda/emulation.hpp"
#include "kda/gpu_inputs.hpp"
#include "kda/jobs.hpp"

namespace kda_check::kda {

namespace {

bool is_chunk(const Variant& variant) { return variant.axes.chunk; }

cuda::EmulatedForm form_of(const Emulated& wanted, bool beta_is_16_bit) {
  const RunOptions& options = *wanted.options;
  const bool chunk = is_chunk(*wanted.variant);
  cuda::EmulatedForm form;
  form.chunk = chunk;
  form.arithmetic = options.arithmetic;
  form.casts = cast_points(options.arithmetic, options.dtype, chunk && beta_is_16_bit, chunk);
  form.chunk_size = options.chunk_size;
  return form;
}

cuda::Output output(tensor::Tensor& tensor) { return {tensor.dtype(), tensor.data(), tensor.size()}; }

}  // namespace

std::string not_emulated_on_gpu(const Emulated& wanted, const Outline& problem) {
  if (std::string reason = gpu_unavailable(); !reason.empty()) return reason;
  if (std::string reason = not_on_gpu(problem.dimensions, false); !reason.empty()) return reason;
  if (wanted.variant->run != run_chunk && wanted.variant->run != run_recurrent)
    return std::string(wanted.variant->name) + " computes on the CPU alone";
  if (wanted.options->stages.asked()) return "stages are computed on the CPU";
  const Dimensions& d = problem.dimensions;
  return cuda::unsupported_emulation(
      form_of(wanted, false),
      {wanted.options->dtype == numeric::DType::fp64, d.B * d.T, d.HV, d.K, d.V, wanted.options->chunk_size});
}

void emulate_on_gpu(const Problem& problem, const std::vector<Emulated>& wanted, const EmulatedSink& sink) {
  cuda::ProblemInputs inputs;
  const WidenedDecays widened = set_inputs(inputs, problem);
  std::vector<Answer> answers;
  std::vector<cuda::EmulatedForm> forms;
  for (const Emulated& one : wanted) {
    answers.push_back(allocate_answer(problem, one.options->dtype));
    forms.push_back(form_of(one, problem.beta_is_16_bit()));
    forms.back().o = output(answers.back().o), forms.back().final_state = output(answers.back().final_state);
  }
  cuda::emulate(inputs, forms, [&](std::size_t i) { sink(i, std::move(answers[i])); });
}

}  // namespace kda_check::kda
