#include "kda/truth/gpu_oracle.hpp"

#include "cuda/truth/gradient_oracle.hpp"
#include "cuda/truth/oracle.hpp"
#include "kda/gpu/inputs.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::kda {

namespace {

/// [K][V] to [V][K].
void transpose(const double* from, std::size_t K, std::size_t V, double* to) {
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t v = 0; v < V; ++v) to[v * K + k] = from[k * V + v];
}

}  // namespace

std::string gpu_oracle_unavailable(const Dimensions& dimensions) {
  if (std::string reason = without_truth_on_gpu(dimensions, false); !reason.empty()) return reason;
  return cuda::unsupported_oracle(dimensions);
}

std::string gpu_gradient_oracle_unavailable(const Dimensions& dimensions) {
  if (std::string reason = without_truth_on_gpu(dimensions, true); !reason.empty()) return reason;
  return cuda::unsupported_gradient_oracle(dimensions);
}

void run_gpu_gradient_oracle(const Problem& problem, OraclePrecision precision, std::size_t chunk_size,
                             int threads, GradientTruths& truths) {
  cuda::GradientOracleRequest request;
  const WidenedDecays widened = set_inputs(request, problem);
  set_output_gradients(request, problem);
  request.in_fp64 = precision == OraclePrecision::fp64;
  request.chunk_size = chunk_size;
  request.threads = threads;
  const auto memory = [](tensor::Unfilled& x) { return x.empty() ? nullptr : x.data(); };
  for (std::size_t i = 0; i < truths.size(); ++i) {
    GradientTruth& x = truths[i];
    request.gradients[i] = {memory(x.hi), memory(x.lo), memory(x.magnitude), memory(x.chunk_magnitude),
                            memory(x.spread)};
  }
  cuda::run_gradient_oracle(request);
}

void run_gpu_oracle(const Problem& problem, const OracleOptions& options, int threads, const OracleSink& sink,
                    const HeadRange& wanted) {
  const Dimensions& d = problem.dimensions();
  const HeadRange heads{std::min(wanted.first, d.HV), std::min(wanted.last, d.HV)};
  if (heads.first >= heads.last) {
    if (sink.begun) sink.begun();
    return;
  }
  cuda::OracleRequest request;
  const WidenedDecays widened = set_inputs(request, problem);
  request.first_head = heads.first, request.last_head = heads.last;
  request.in_fp64 = options.precision == OraclePrecision::fp64;
  request.threads = threads;

  const std::size_t row = (heads.last - heads.first) * d.V;
  const std::size_t at_once = oracle_tokens_at_once(d, heads.last - heads.first);
  request.block_tokens = at_once;
  cuda::OracleSinks sinks;
  sinks.begun = sink.begun;
  if (sink.output)
    sinks.tokens = [&](const cuda::OracleTokens& part) {
      for (std::size_t t = 0; t < part.count; t += at_once)
        sink.output({part.batch, part.begin + t, std::min(at_once, part.count - t), part.hi + t * row,
                     part.lo + t * row, part.magnitude + t * row, heads});
    };
  const std::size_t size = d.K * d.V;
  tensor::Scratch<double> turned(problem.options.state_v_first ? 3 * size : 0);
  if (sink.state)
    sinks.state = [&](const cuda::OracleFinalState& state) {
      if (!problem.options.state_v_first)
        return sink.state({"final_state", state.sequence, state.head, state.hi, state.lo, state.magnitude});
      transpose(state.hi, d.K, d.V, turned.data());
      transpose(state.lo, d.K, d.V, turned.data() + size);
      transpose(state.magnitude, d.K, d.V, turned.data() + 2 * size);
      sink.state({"final_state", state.sequence, state.head, turned.data(), turned.data() + size,
                  turned.data() + 2 * size});
    };
  double worst = 0;
  sinks.error = [&](double error) {
    worst = std::max(worst, error);
    if (worst > options.most_error) throw WideTruth{};
  };
  cuda::run_oracle(request, sinks);
  if (request.in_fp64 && sink.error) sink.error(worst);
}

}  // namespace kda_check::kda
