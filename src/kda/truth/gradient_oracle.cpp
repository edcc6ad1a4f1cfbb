#include "kda/truth/gradient_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "base/threads/parallel.hpp"
#include "base/threads/work.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/problem/shapes.hpp"
#include "kda/truth/gpu_oracle.hpp"
#include "kda/truth/gradient_sums.hpp"
#include "kda/truth/oracle_inputs.hpp"

namespace kda_check::kda {

using numeric::DoubleDouble;

namespace {

/// Checkpoints are this far apart: at K = V = 128 what is kept of a block, 12.6 MB, still fits a processor's
/// cache.
constexpr std::size_t gradient_block_tokens = 32;

/// Memory behind an OracleMatrix.
class Matrix {
 public:
  Matrix(std::size_t rows, std::size_t stride)
      : storage_(3 * rows * stride), size_(rows * stride), stride_(stride) {
    storage_.fill(0);
  }
  OracleMatrix view() {
    double* const memory = storage_.data();
    return {memory, memory + size_, memory + 2 * size_, stride_};
  }
  void copy_to(Matrix& other) {
    std::memcpy(other.storage_.data(), storage_.data(), storage_.size() * sizeof(double));
  }

 private:
  tensor::Scratch<double> storage_;
  std::size_t size_, stride_;
};

/// Sizes of what one worker holds.
struct WorkSizes {
  explicit WorkSizes(const Problem& problem)
      : K(problem.dimensions().K),
        stride(padded(problem.dimensions().V)),
        strength(problem.dimensions().strength),
        longest(longest_of(problem.sequences())) {
    tokens = std::clamp<std::size_t>(longest, 2, gradient_block_tokens);
  }
  std::size_t blocks(std::size_t length) const {
    return (length + gradient_block_tokens - 1) / gradient_block_tokens;
  }
  double bytes() const {
    const std::size_t states = tokens + blocks(longest) + 2;
    const std::size_t of_gates = strength == Strength::gates ? tokens * (6 * K + stride) : 0,
                      of_columns = strength == Strength::value ? 7 * tokens * stride : 0;
    const std::size_t rows = tokens * (21 * K + 16 * stride) + K * stride + of_gates + of_columns;
    return static_cast<double>(sizeof(double)) * static_cast<double>(3 * states * K * stride + rows);
  }
  std::size_t K, stride;
  Strength strength;
  std::size_t longest = 0, tokens = 0;
};

/// One block of one value head: its inputs, what the kernels leave of it, and the checkpoints behind it.
struct GradientWorkspace : TokenPairs {
  explicit GradientWorkspace(const WorkSizes& s)
      : TokenPairs(s.tokens, s.K, s.stride, s.strength),
        slope(s.tokens * s.K),
        amplitude_slope(s.tokens * s.K),
        beta_slope(s.tokens * (s.strength == Strength::value ? s.stride : 1)),
        output_gradient(s.tokens * s.stride),
        residual_terms(s.tokens * s.stride),
        residual_energy(s.tokens * s.stride),
        gradient_energy(s.K * s.stride),
        decayed(s.tokens * s.K, s.stride),
        error(s.tokens, s.stride),
        write(s.tokens, s.stride),
        residual(s.tokens, s.stride),
        dv(s.tokens, s.stride),
        state(s.K, s.stride),
        gradient(s.K, s.stride),
        dq(s.tokens, s.K),
        dk(s.tokens, s.K),
        dg(s.tokens, s.K),
        dbeta(s.tokens, s.strength == Strength::value ? s.stride : 1),
        dread(s.strength == Strength::gates ? s.tokens : 0, s.K) {
    for (std::size_t block = 0; block < s.blocks(s.longest); ++block) checkpoints.emplace_back(s.K, s.stride);
  }
  Pairs slope, amplitude_slope, beta_slope;
  tensor::Scratch<double> output_gradient, residual_terms, residual_energy, gradient_energy;
  Matrix decayed, error, write, residual, dv, state, gradient, dq, dk, dg, dbeta, dread;
  std::vector<Matrix> checkpoints;  ///< the state entering each block
};

struct HeadKernels {
  void (*replay)(const OracleReplayBlock&);
  void (*backward)(const OracleBackwardBlock&);
};
HeadKernels kernels_for(OraclePrecision precision) {
  const OracleKernels& oracle = kernel_table().oracle;
  return precision == OraclePrecision::fp64 ? HeadKernels{oracle.replay_in_fp64, oracle.backward_in_fp64}
                                            : HeadKernels{oracle.replay, oracle.backward};
}

/// One value head of one sequence, backwards.
class HeadReverse {
 public:
  HeadReverse(const Problem& problem, HeadKernels kernels, const Sequence& sequence, std::size_t head,
              GradientWorkspace& work, GradientSums& sums)
      : problem_(problem),
        d_(problem.dimensions()),
        inputs_(problem),
        kernels_(kernels),
        sequence_(sequence),
        head_(head),
        stride_(padded(d_.V)),
        lanes_((d_.V + 7) / 8 * 8),
        work_(work),
        sums_(sums) {}

  void run(ParameterSums& parameters) {
    load_state(work_.state, problem_.initial_state);
    const std::size_t blocks = (sequence_.length() + gradient_block_tokens - 1) / gradient_block_tokens;
    for (std::size_t block = 0; block < blocks; ++block) {
      work_.state.copy_to(work_.checkpoints[block]);
      if (block + 1 == blocks) break;
      inputs_.tokens(tokens_of(block), head_, work_, stride_);
      replay(tokens_of(block), 2);
    }
    load_state(work_.gradient, problem_.state_gradient);
    const OracleMatrix gradient = work_.gradient.view();
    for (std::size_t i = 0; i < d_.K * stride_; ++i)
      work_.gradient_energy[i] = gradient.magnitude[i] * gradient.magnitude[i];
    sums_.begin_head(head_, parameters);
    for (std::size_t block = blocks; block-- > 0;) {
      const Sequence tokens = tokens_of(block);
      work_.checkpoints[block].copy_to(work_.state);
      inputs_.tokens(tokens, head_, work_, stride_);
      replay(tokens, std::max<std::size_t>(2, tokens.length()));
      if (block + 1 == blocks) sums_.set_final_terms(final_terms());
      backward(tokens);
      collect(tokens);
      Work::count(tokens.length() * d_.V);
    }
    if (problem_.initial_state) sums_.put_state(work_.gradient.view());
  }

 private:
  Sequence tokens_of(std::size_t block) const {
    return sequence_.block(block * gradient_block_tokens, gradient_block_tokens);
  }

  void load_state(Matrix& matrix, const std::optional<tensor::Tensor>& from) {
    const OracleMatrix m = matrix.view();
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) {
        const std::size_t at = k * stride_ + v;
        m.hi[at] = from ? from->value(inputs_.state_index(sequence_, head_, k, v)) : 0.0;
        m.lo[at] = 0;
        m.magnitude[at] = std::fabs(m.hi[at]);
      }
  }

  void replay(const Sequence& tokens, std::size_t slots) {
    kernels_.replay({tokens.length(), d_.K, lanes_, work_.k.rows(), work_.read(), work_.decay.rows(),
                     work_.strength(), work_.v.data(), work_.low_of_v(), work_.state.view(),
                     work_.decayed.view(), slots, work_.error.view(), work_.write.view()});
  }

  void backward(const Sequence& tokens) {
    inputs_.output_gradient(tokens, head_, work_.output_gradient.data(), stride_);
    kernels_.backward({tokens.length(),
                       d_.K,
                       lanes_,
                       work_.q.rows(),
                       work_.k.rows(),
                       work_.read(),
                       work_.decay.rows(),
                       work_.strength(),
                       work_.output_gradient.data(),
                       work_.decayed.view(),
                       work_.error.view(),
                       work_.write.view(),
                       work_.gradient.view(),
                       work_.gradient_energy.data(),
                       work_.residual.view(),
                       work_.residual_terms.data(),
                       work_.residual_energy.data(),
                       work_.dv.view(),
                       work_.dq.view(),
                       work_.dk.view(),
                       work_.dg.view(),
                       work_.dbeta.view(),
                       d_.strength == Strength::gates ? work_.dread.view() : OracleMatrix{}});
  }

  /// sum_v of what the final state and its gradient have in common, of first order.
  std::vector<double> final_terms() {
    const OracleMatrix state = work_.state.view(), gradient = work_.gradient.view();
    std::vector<double> terms(d_.K, 0.0);
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) {
        const std::size_t at = k * stride_ + v;
        terms[k] += state.magnitude[at] * std::fabs(gradient.hi[at]) +
                    std::fabs(state.hi[at]) * gradient.magnitude[at];
      }
    return terms;
  }

  void collect(const Sequence& tokens) {
    if (d_.strength != Strength::gates) inputs_.beta_slopes(tokens, head_, work_.beta_slope);
    const bool has_gate = problem_.options.gate != Gate::none;
    if (has_gate) inputs_.gate_slopes(tokens, head_, work_.slope);
    if (has_gate && problem_.A_log)
      inputs_.amplitude_slopes(tokens, head_, work_.slope, work_.amplitude_slope);
    const BlockGradients block{work_.q.hi.data(),
                               work_.k.hi.data(),
                               work_.dq.view(),
                               work_.dk.view(),
                               work_.dg.view(),
                               work_.dv.view(),
                               work_.dbeta.view(),
                               work_.error.view(),
                               work_.residual.view(),
                               work_.write.view().magnitude,
                               work_.residual_terms.data(),
                               work_.slope.rows(),
                               work_.amplitude_slope.rows(),
                               work_.beta_slope.rows(),
                               work_.k.rows(),
                               work_.dread.view()};
    sums_.begin_block(tokens);
    for (std::size_t t = tokens.length(); t-- > 0;) sums_.add_token(block, t, tokens.begin + t);
  }

  const Problem& problem_;
  const Dimensions d_;
  const OracleInputs inputs_;
  const HeadKernels kernels_;
  const Sequence& sequence_;
  const std::size_t head_, stride_, lanes_;
  GradientWorkspace& work_;
  GradientSums& sums_;
};

/// Holds a chunk_magnitude: dg and what is made of it.
bool of_gate(Gradient gradient) {
  return gradient == Gradient::dg || gradient == Gradient::dA_log || gradient == Gradient::ddt_bias;
}

bool has_spread(const Problem& problem, Gradient gradient) {
  return gradient == Gradient::dA_log || gradient == Gradient::ddt_bias ||
         (gradient == Gradient::dbeta && problem.dimensions().strength == Strength::head);
}

std::size_t element_count(const Problem& problem, Gradient gradient, std::string_view name) {
  if (!has_gradient(problem, gradient)) return 0;
  return tensor::element_count(shape_of(name, problem));
}

/// Memory for the gradients a problem has.
GradientTruths unfilled(const Problem& problem) {
  GradientTruths truths;
  for (const GradientRow& row : gradients()) {
    const std::size_t size = element_count(problem, row.gradient, row.name);
    GradientTruth& truth = truths[static_cast<std::size_t>(row.gradient)];
    truth.hi.resize(size), truth.lo.resize(size), truth.magnitude.resize(size);
    if (of_gate(row.gradient)) truth.chunk_magnitude.resize(size);
    if (has_spread(problem, row.gradient)) truth.spread.resize(size);
  }
  return truths;
}

void fill_with_zeros(GradientTruths& truths, int threads) {
  constexpr std::size_t most = std::size_t{1} << 20;
  for (GradientTruth& truth : truths)
    for (tensor::Unfilled* const part :
         {&truth.hi, &truth.lo, &truth.magnitude, &truth.chunk_magnitude, &truth.spread})
      parallel_for((part->size() + most - 1) / most, threads, [&](std::size_t piece, int) {
        double* const first = part->data() + piece * most;
        std::fill_n(first, std::min(most, part->size() - piece * most), 0.0);
      });
}

/// Whether every token belongs to a sequence: gradients of others are zero.
bool has_all_tokens(const Problem& problem) {
  std::size_t tokens = 0;
  for (const Sequence& sequence : problem.sequences()) tokens += sequence.length();
  return tokens == problem.dimensions().B * problem.dimensions().T;
}

/// The gradients of A_log and dt_bias, from their sums by [sequence][value head].
void add_parameters(const Problem& problem, const std::vector<ParameterSums>& parameters,
                    GradientTruths& truths) {
  const Dimensions& d = problem.dimensions();
  const auto put = [&](Gradient gradient, std::size_t at, const GradientSum& sum) {
    GradientTruth& truth = truths[static_cast<std::size_t>(gradient)];
    truth.hi[at] = sum.value.hi, truth.lo[at] = sum.value.lo;
    truth.magnitude[at] = sum.magnitude, truth.chunk_magnitude[at] = sum.chunk;
    truth.spread[at] = sum.squares.root();
  };
  for (std::size_t head = 0; head < d.HV; ++head) {
    ParameterSums total{{}, std::vector<GradientSum>(d.decays())};
    for (std::size_t n = 0; n < d.N; ++n) {
      const ParameterSums& part = parameters[n * d.HV + head];
      total.A_log.add(part.A_log);
      for (std::size_t k = 0; k < part.dt_bias.size(); ++k) total.dt_bias[k].add(part.dt_bias[k]);
    }
    if (has_gradient(problem, Gradient::dA_log)) put(Gradient::dA_log, head, total.A_log);
    if (has_gradient(problem, Gradient::ddt_bias))
      for (std::size_t k = 0; k < d.decays(); ++k)
        put(Gradient::ddt_bias, head * d.decays() + k, total.dt_bias[k]);
  }
}

std::size_t workers(std::size_t jobs, int threads) {
  return std::min(jobs, static_cast<std::size_t>(std::max(1, threads)));
}

}  // namespace

double gradient_oracle_bytes(const Problem& problem, int threads) {
  const Dimensions& d = problem.dimensions();
  double elements = 0;
  for (const GradientRow& row : gradients())
    elements += static_cast<double>(element_count(problem, row.gradient, row.name)) *
                (3 + of_gate(row.gradient) + has_spread(problem, row.gradient));
  if (has_gradient(problem, Gradient::ddt_bias)) elements += static_cast<double>(4 * d.N * d.HV * d.decays());
  return static_cast<double>(sizeof(double)) * elements +
         static_cast<double>(workers(d.N * d.H, threads)) * WorkSizes(problem).bytes();
}

namespace {

GradientTruths run_on_cpu(const Problem& problem, OraclePrecision precision, std::size_t chunk_size,
                          int threads) {
  const Dimensions& d = problem.dimensions();
  const std::size_t group = problem.heads_per_group();
  const HeadKernels kernels = kernels_for(precision);
  GradientTruths truths = unfilled(problem);
  fill_with_zeros(truths, threads);
  const bool has_bias = has_gradient(problem, Gradient::ddt_bias);
  std::vector<ParameterSums> parameters(d.N * d.HV,
                                        {{}, std::vector<GradientSum>(has_bias ? d.decays() : 0)});
  const std::vector<GroupJob> jobs = group_jobs(problem);
  const WorkSizes sizes(problem);
  std::vector<GradientWorkspace> workspaces;
  for (std::size_t worker = 0; worker < workers(jobs.size(), threads); ++worker)
    workspaces.emplace_back(sizes);
  parallel_for(jobs.size(), threads, [&](std::size_t item, int worker) {
    const GroupJob& job = jobs[item];
    GradientSums sums(problem, job.sequence, chunk_size, truths);
    for (std::size_t head = job.query_head * group; head < (job.query_head + 1) * group; ++head)
      HeadReverse(problem, kernels, job.sequence, head, workspaces[static_cast<std::size_t>(worker)], sums)
          .run(parameters[job.sequence.index * d.HV + head]);
    for (std::size_t t = 0; t < job.sequence.length(); t += gradient_block_tokens)
      sums.finish(job.sequence.block(t, gradient_block_tokens));
  });
  if (problem.options.gate != Gate::none) add_parameters(problem, parameters, truths);
  return truths;
}

}  // namespace

GradientTruths run_gradient_oracle(const Problem& problem, const OracleOptions& options,
                                   std::size_t chunk_size, int threads) {
  if (options.device == OracleDevice::gpu) {
    try {
      GradientTruths truths = unfilled(problem);
      if (!has_all_tokens(problem)) fill_with_zeros(truths, threads);
      run_gpu_gradient_oracle(problem, options.precision, chunk_size, threads, truths);
      return truths;
    } catch (const Error& error) {
      if (!options.instead || error.kind() != ErrorKind::environment) throw;
      options.instead(error.what());
    }
  }
  return run_on_cpu(problem, options.precision, chunk_size, threads);
}

}  // namespace kda_check::kda
