#include "plan/made_output.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "plan/reproduction.hpp"
#include "plan/selection.hpp"

namespace kda_check::plan {

std::optional<MadeOutput> MadeOutput::of(const kda::RegimeRequest& regime, const kda::Outline& problem) {
  if (regime.output.empty()) return std::nullopt;
  const auto word = [&](const char* key) {
    const auto found = regime.output.find(key);
    return found == regime.output.end() ? std::string() : found->second;
  };
  MadeOutput made;
  if (!word("fault").empty()) made.fault_ = hypotheses::fault_named(word("fault"));
  const numeric::DType dtype =
      problem.dtype() == numeric::DType::fp64 ? numeric::DType::fp32 : problem.dtype();
  // In 16 bits the form whose products are of 16 bits; gradients are those of the chunk form.
  const bool in_chunks = !problem.has_pool && (problem.has_loss() || numeric::format_of(dtype).bytes == 2);
  const Reproduction by = reproduction_named(!word("by").empty() ? word("by")
                                             : in_chunks         ? "chunk"
                                                                 : "recurrent",
                                             kda::variants());
  made.variant_ = by.variant;
  made.options_ = run_options(*by.variant, problem, dtype, by.arithmetic, problem.chunk_size());
  if (const std::string reason = why_not(*by.variant, problem, made.options_); !reason.empty())
    throw Error(ErrorKind::usage, fmt::format("{}: {}", regime.text, reason));
  fixture::ExpectedGroup& group = made.group_;
  group.name = "unknown";
  group.compute = word("compute").empty()
                      ? kda::compute_format(*by.variant, dtype, made.options_.arithmetic, problem.has_loss())
                      : numeric::compute_named(word("compute"));
  if (!group.compute)
    throw Error(ErrorKind::usage, fmt::format("{}: no such precision", regime.text), {},
                "compute=fp32, tf32, bf16 or fp16");
  for (const kda::Pass pass : kda::every_pass)
    for (const std::string& tensor : kda::tensors_of(pass, problem)) {
      if (made.fault_.is_of_outputs() && tensor != "o" && tensor != "final_state") continue;
      const bool is_in_pool = problem.has_pool && tensor == "final_state";
      fixture::DatasetInfo& info = group.tensors.emplace_back();
      info.path = fmt::format("/expected/{}/{}", group.name, is_in_pool ? "state_pool" : tensor);
      if (is_in_pool && regime.settings.count("codes") > 0) {
        info.dtype = numeric::DType::fp32;
        group.tensors.push_back(info);
        group.tensors.back().path = fmt::format("/expected/{}/state_scale", group.name);
        continue;
      }
      info.dtype = is_in_pool ? problem.dtype_of("initial_state") : kda::dtype_of(tensor, problem, dtype);
    }
  return made;
}

kda::Tensors MadeOutput::computed(const kda::Problem& problem, int threads) const {
  kda::RunOptions options = options_;
  options.threads = threads;
  return hypotheses::faulty_output(fault_, problem, *variant_, options);
}

}  // namespace kda_check::plan
