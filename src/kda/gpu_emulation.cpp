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
  form.chunk_size = options.chunk_size, form.dtype = options.dtype;
  form.scaled = wanted.scaled, form.factor = wanted.factor;
  return form;
}

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
  std::vector<cuda::EmulatedForm> forms;
  for (const Emulated& one : wanted) forms.push_back(form_of(one, problem.beta_is_16_bit()));
  cuda::emulate(inputs, forms, sink);
}

Answer downloaded(const AnswerOnGpu& answer, const Problem& problem) {
  Answer copy = allocate_answer(problem, answer.o.dtype);
  cuda::download(answer.o, copy.o.data()), cuda::download(answer.final_state, copy.final_state.data());
  return copy;
}

}  // namespace kda_check::kda
