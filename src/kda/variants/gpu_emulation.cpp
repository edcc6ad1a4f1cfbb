#include "kda/variants/gpu_emulation.hpp"

#include "cuda/spread/emulation.hpp"
#include "kda/gpu/device.hpp"
#include "kda/gpu/inputs.hpp"
#include "kda/problem/gradients.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/problem/shapes.hpp"

namespace kda_check::kda {

namespace {

bool is_chunk(const Variant& variant) { return variant.axes.chunk; }

std::size_t elements_of(std::string_view name, const Problem& problem) {
  return tensor::element_count(shape_of(name, problem));
}

cuda::EmulatedForm form_of(const Emulated& wanted, bool beta_is_16_bit) {
  const RunOptions& options = *wanted.options;
  const bool chunk = is_chunk(*wanted.variant);
  cuda::EmulatedForm form;
  form.chunk = chunk, form.backward = wanted.pass == Pass::backward;
  form.arithmetic = options.arithmetic;
  form.casts = cast_points(options.arithmetic, options.dtype, chunk && beta_is_16_bit, chunk);
  form.chunk_size = options.chunk_size, form.dtype = options.dtype;
  form.scaled = wanted.scaled, form.factor = wanted.factor;
  return form;
}

}  // namespace

std::string not_emulated_on_gpu(const Emulated& wanted, const Outline& problem) {
  if (std::string reason = gpu_unavailable(); !reason.empty()) return reason;
  const bool backward = wanted.pass == Pass::backward;
  if (std::string reason = without_truth_on_gpu(problem.dimensions, backward); !reason.empty()) return reason;
  if (wanted.variant->name != "chunk" && wanted.variant->name != "recurrent")
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
  const Outline outline(problem);
  for (const Emulated& one : wanted) {
    cuda::EmulatedForm& form = forms.emplace_back(form_of(one, problem.beta_is_16_bit()));
    if (one.pass == Pass::forward) continue;
    set_output_gradients(inputs, problem);
    for (const GradientRow& row : gradients())
      if (has_gradient(outline, row.gradient))
        form.gradients[static_cast<std::size_t>(row.gradient)] = {
            gradient_dtype(outline, row.gradient, form.dtype), elements_of(row.name, problem)};
  }
  cuda::emulate(inputs, forms, sink);
}

const TensorOnGpu& tensor_of(const AnswerOnGpu& answer, std::string_view name) {
  for (const GradientRow& row : gradients())
    if (row.name == name) return answer.gradients[static_cast<std::size_t>(row.gradient)];
  return name == "o" ? answer.o : answer.final_state;
}

tensor::Tensor downloaded(const TensorOnGpu& on_gpu, std::string_view name) {
  tensor::Tensor copy(std::string(name), on_gpu.dtype, {on_gpu.elements});
  cuda::download(on_gpu, copy.data());
  return copy;
}

Tensors downloaded(const AnswerOnGpu& answer, const Problem& problem) {
  const Pass pass = answer.o.elements > 0 ? Pass::forward : Pass::backward;
  Tensors tensors;
  for (const std::string& name : tensors_of(pass, problem)) {
    const TensorOnGpu& on_gpu = tensor_of(answer, name);
    tensor::Tensor& copy =
        tensors.emplace(name, tensor::Tensor(name, on_gpu.dtype, shape_of(name, problem))).first->second;
    cuda::download(on_gpu, copy.data());
  }
  return tensors;
}

}  // namespace kda_check::kda
