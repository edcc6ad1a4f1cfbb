#include "hypotheses/naming/naming.hpp"

#include "hypotheses/naming/faulty_output.hpp"

#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"
#include "tensor/rearranged.hpp"

namespace naming_tests {

using namespace kda_check;
using kda::Gate;
using numeric::DType;
using tensor::Tensor;

namespace {

/// A generic case, with the options that a fault is about.
struct Case {
  std::size_t T = 130, K = 48, V = 32, H = 1, HV = 1;
  Gate gate = Gate::none;
  bool l2norm = false, sigmoid = false, doubled = false, v_first = false;
  bool slow = false;        ///< a chunk leaves something of the state before it
  bool small_keys = false;  ///< of lengths about the root of epsilon, and about epsilon
  double scale = 0.2;
  std::vector<std::int64_t> cu_seqlens;
};

kda::Problem problem_of(const Case& c, std::uint64_t seed = 3) {
  test::ProblemSpec spec;
  spec.T = c.T, spec.K = c.K, spec.V = c.V, spec.H = c.H, spec.HV = c.HV;
  spec.gate = c.gate, spec.qk_l2norm = c.l2norm, spec.beta_sigmoid = c.sigmoid;
  spec.allow_neg_eigval = c.doubled, spec.state_v_first = c.v_first, spec.cu_seqlens = c.cu_seqlens;
  kda::Problem problem = test::make_problem(spec, seed);
  test::Random random(seed + 100);
  if (c.gate == Gate::none)
    for (std::size_t i = 0; i < problem.g.size(); ++i)
      problem.g.set(i, random.uniform(-1.01, -0.01) * (c.slow ? 0.02 : 1));
  for (std::size_t i = 0; i < problem.initial_state->size(); ++i)
    problem.initial_state->set(i, 0.5 * random.normal());
  // Unit keys of correlation 0.3; longer where the norm is the kernel's.
  std::vector<double> common(c.K);
  for (double& x : common) x = random.normal();
  for (std::size_t row = 0; row < c.T * c.H; ++row) {
    std::vector<double> key(c.K);
    double squares = 0;
    for (std::size_t k = 0; k < c.K; ++k) {
      key[k] = std::sqrt(0.3) * common[k] + std::sqrt(0.7) * random.normal();
      squares += key[k] * key[k];
    }
    const double lengths[] = {1.2, 1e-3, 5e-7};
    const double length = c.small_keys ? lengths[row % 3] : c.l2norm ? 1.2 : 0.95;
    for (std::size_t k = 0; k < c.K; ++k) problem.k.set(row * c.K + k, key[k] / std::sqrt(squares) * length);
  }
  problem.options.scale = c.scale;
  return problem;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// To so many bits, ties to even.
double to_bits(double x, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

/// A kernel with exactly one mistake, or two ("exp2 and beta_twice"), in plain loops over scalars: double,
/// rounded once at the end. Written from the formulas, and apart from what it tests. `place` is the token of
/// mistakes about one token.
kda::Answer mutant(const kda::Problem& p, const std::string& mistake, DType dtype = DType::fp32,
                   std::size_t place = 0) {
  const std::size_t split = mistake.find(" and ");
  const std::string one = mistake.substr(0, split),
                    other = split == std::string::npos ? "" : mistake.substr(split + 5);
  const auto is = [&](std::string_view name) { return one == name || other == name; };
  const kda::Dimensions d = p.dimensions();
  kda::Answer answer;
  answer.o = Tensor("o", dtype, {d.B, d.T, d.HV, d.V});
  const tensor::Shape state_shape =
      p.options.state_v_first ? tensor::Shape{d.N, d.HV, d.V, d.K} : tensor::Shape{d.N, d.HV, d.K, d.V};
  answer.final_state = Tensor("final_state", DType::fp32, state_shape);

  const auto gate = [&](std::size_t b, std::size_t t, std::size_t h, std::size_t k) {
    if (is("gate_of_first_head")) h = 0;
    if (is("gate_of_other_head")) h = (h + 1) % d.HV;
    if (is("channels_untouched_in_last_channels") && k >= 32) return 0.0;
    if (is("channels_untouched_in_first_channels") && k < 32) return 0.0;
    if (is("gate_of_query_head")) h = h * d.H / d.HV;
    if (is("gate_of_other_row")) t %= 64;
    if (is("gate_of_first_tile")) k %= 32;
    if (is("gate_of_next_channel")) k = (k + 1) % d.K;
    double x = p.g.value(((b * d.T + t) * d.HV + h) * d.K + k);
    if (p.options.gate == Gate::none || is("gate_raw")) return x;
    double A = p.A_log && !is("A_log_missing") ? std::exp(p.A_log->value(h)) : 1;
    if (is("parameters_of_other_head")) h = (h + 1) % d.HV, A = std::exp(p.A_log->value(h));
    if (is("dt_bias_of_other_head")) A = std::exp(p.A_log->value(h)), h = (h + 1) % d.HV;
    if (is("A_log_of_other_head")) A = std::exp(p.A_log->value((h + 1) % d.HV));
    if (is("A_log_not_raised")) A = p.A_log->value(h);
    if (is("A_log_for_A")) A = -p.A_log->value(h);
    if (is("A_log_for_dt_bias")) A = std::exp(p.dt_bias->value(h * d.K + k));
    if (is("A_log_negated")) A = std::exp(-p.A_log->value(h));
    if (is("A_log_exp2")) A = std::exp2(p.A_log->value(h));
    if (is("A_log_of_query_head")) A = std::exp(p.A_log->value(h * d.H / d.HV));
    if (is("A_log_twice")) A = std::exp(-A);
    if (is("A_log_softplus")) A = std::log(1 + std::exp(p.A_log->value(h)));
    if (is("parameters_in_bf16")) A = std::exp(to_bits(p.A_log->value(h), 8));
    if (is("dt_bias_beside")) return -std::log(1 + std::exp(A * x + p.dt_bias->value(h * d.K + k)));
    if (is("A_log_for_dt_bias"))
      x += p.A_log->value(h);
    else if (is("dt_bias_by_channel"))
      x += p.dt_bias->value(k * d.HV + h);
    else if (p.dt_bias && is("parameters_in_bf16"))
      x += to_bits(p.dt_bias->value(h * d.K + k), 8);
    else if (p.dt_bias && !is("dt_bias_missing"))
      x += (is("dt_bias_doubled")   ? 2
            : is("dt_bias_negated") ? -1
            : is("dt_bias_outside") ? 1 / A
                                    : 1) *
           p.dt_bias->value(is("dt_bias_of_flat_head") ? h
                                                       : (is("dt_bias_of_first_head") ? 0 : h) * d.K +
                                                             (is("dt_bias_of_first_tile") ? k % 32 : k));
    if (is("gate_argument_negated")) x = -x;
    const double lb = is("lower_bound_of_usual") ? -5 : p.options.lower_bound.value_or(-5.0),
                 soft = -A * (is("softplus_threshold") && x > 1 ? x : std::log(1 + std::exp(x)));
    if (is("gate_clamped_softplus")) return std::max(lb, soft);
    if (is("A_log_outside")) return A * lb * sigmoid(x);
    if (is("gate_of_other_function")) return -A * x * sigmoid(x);
    if (is("dt_bias_behind")) {
      const double bias = p.dt_bias->value(h * d.K + k);
      return -A * (std::log(1 + std::exp(x - bias)) + bias);
    }
    if (is("gate_tanh")) return lb * (1 + std::tanh(A * x)) / 2;
    if (is("gate_hard_sigmoid")) return lb * std::clamp(A * x / 6 + 0.5, 0.0, 1.0);
    if (is("A_log_inside")) return -std::log(1 + std::exp(A * x));
    const bool as_softplus = p.options.gate == Gate::softplus ? !is("gate_lower_bound") : is("gate_softplus");
    return as_softplus ? soft : lb * sigmoid(A * x);
  };
  const auto gate_of_zero = [&](std::size_t h, std::size_t k) {
    return -std::exp(p.A_log->value(h)) * std::log(1 + std::exp(p.dt_bias->value(h * d.K + k)));
  };
  const auto alpha = [&](const kda::Sequence& s, std::size_t t, std::size_t h, std::size_t k) {
    if (is("gate_late")) {
      if (t == s.begin) return 1.0;
      --t;
    }
    if (is("gate_early")) {
      if (t + 1 == s.end) return 1.0;
      ++t;
    }
    double g = gate(s.batch, t, h, k);
    if (is("gate_of_first_channel")) g = gate(s.batch, t, h, 0);
    if (is("gate_mean")) {
      g = 0;
      for (std::size_t i = 0; i < d.K; ++i) g += gate(s.batch, t, h, i) / static_cast<double>(d.K);
    }
    if (is("exp2")) return std::pow(2.0, g);
    if (is("log2e_twice")) return std::exp(g / std::log(2.0));
    if (is("gate_linear")) return g;
    if (is("decay_linear")) return 1 + g;
    if (is("decay_quadratic")) return 1 + g + 0.5 * g * g;
    if (is("gate_sign")) return std::exp(-g);
    if (is("gate_missing")) return 1.0;
    if (is("gate_factor")) return std::exp(0.7 * g);
    if (is("gate_raised")) return std::exp(std::max(g, -0.7));
    if (is("gate_doubled")) return std::exp(g) * std::exp(g);
    if (is("decay_in_bf16")) return to_bits(std::exp(g), 8);
    if (is("gate_sums_of_stream")) {
      const auto sum = [&](std::size_t last) {
        double total = 0;
        for (std::size_t i = last - last % 64; i <= last; ++i) total += gate(s.batch, i, h, k);
        return total;
      };
      return std::exp((t - s.begin) % 64 == 0 ? sum(t) : sum(t) - sum(t - 1));
    }
    if (is("gate_sums_in_bf16") || is("gate_sums_in_fp16")) {  // of chunks of 64
      const int bits = is("gate_sums_in_bf16") ? 8 : 11;
      double before = 0;
      for (std::size_t i = t - (t - s.begin) % 64; i < t; ++i)
        before = to_bits(before + gate(s.batch, i, h, k), bits);
      return std::exp(to_bits(before + g, bits) - before);
    }
    return std::exp(g);
  };
  const auto unit_row = [&](const Tensor& x, std::size_t first, std::size_t k) {
    if (is("query_not_normalised") && &x == &p.q) return x.value(first + k);
    if (is("key_not_normalised") && &x == &p.k) return x.value(first + k);
    if (!is("l2norm_applied") && (!p.options.qk_l2norm || is("l2norm_missing"))) return x.value(first + k);
    double squares = 0;
    for (std::size_t i = 0; i < d.K; ++i) squares += x.value(first + i) * x.value(first + i);
    if (is("norm_of_heads")) {
      squares = 0;
      const std::size_t row = first - first % (d.H * d.K);
      for (std::size_t i = 0; i < d.H * d.K; ++i) squares += x.value(row + i) * x.value(row + i);
    }
    double length = std::sqrt(squares + 1e-6);
    if (is("norm_of_mean")) length = std::sqrt(squares / static_cast<double>(d.K) + 1e-6);
    if (is("norm_squared")) length = squares + 1e-6;
    if (is("norm_of_first_tile")) {
      squares = 0;
      for (std::size_t i = 0; i < 32; ++i) squares += x.value(first + i) * x.value(first + i);
      length = std::sqrt(squares + 1e-6);
    }
    if (is("norm_in_bf16")) {
      squares = 0;
      for (std::size_t i = 0; i < d.K; ++i)
        squares = to_bits(squares + x.value(first + i) * x.value(first + i), 8);
      length = std::sqrt(squares + 1e-6);
    }
    if (is("epsilon_larger")) length = std::sqrt(squares + 0.01 + 1e-6);
    if (is("epsilon_missing")) length = std::sqrt(squares);
    if (is("epsilon_outside")) length = std::sqrt(squares) + 1e-6;
    if (is("epsilon_as_least")) length = std::max(std::sqrt(squares), 1e-6);
    if (is("epsilon_of_mean"))  // x / sqrt(mean + epsilon), of the length of x / sqrt(sum)
      length = std::sqrt(static_cast<double>(d.K)) * std::sqrt(squares / static_cast<double>(d.K) + 1e-6);
    return x.value(first + k) / length;
  };
  const auto beta_of = [&](const kda::Sequence& s, std::size_t t, std::size_t h) {
    if (is("beta_late") && t == s.begin) return 0.0;
    if (is("beta_early") && t + 1 == s.end) return 0.0;
    if (is("beta_late")) --t;
    if (is("beta_early")) ++t;
    if (is("beta_of_query_head")) h = h * d.H / d.HV;
    if (is("beta_of_other_row")) t %= 64;
    if (is("beta_of_other_head")) h = (h + 1) % d.HV;
    double beta = p.beta.value((s.batch * d.T + t) * d.HV + h);
    if (p.options.beta_sigmoid ? !is("beta_raw") : is("beta_sigmoid")) beta = sigmoid(beta);
    const bool doubled = p.options.allow_neg_eigval && !is("beta_not_doubled") && !is("beta_raw");
    if (doubled || is("beta_doubled")) beta *= 2;
    if (is("beta_twice")) beta *= beta;
    if (is("beta_factor")) beta *= 0.7;
    if (is("beta_sigmoid_twice")) beta = sigmoid(beta);
    if (is("beta_in_bf16")) beta = to_bits(beta, 8);
    return is("beta_missing") ? 1.0 : beta;
  };
  using Matrix = std::vector<std::vector<double>>;
  const auto apply = [&](Matrix& S, const kda::Sequence& s, std::size_t t, std::size_t h,
                         bool decays = true) {
    const std::size_t row = (s.batch * d.T + t) * d.HV + h,
                      key = ((s.batch * d.T + t) * d.H + h * d.H / d.HV) * d.K;
    for (std::size_t v = 0; v < d.V; ++v) {
      double residual = p.v.value(row * d.V + v);
      for (std::size_t i = 0; i < d.K; ++i)
        residual -= unit_row(p.k, key, i) * (S[i][v] *= decays ? alpha(s, t, h, i) : 1);
      for (std::size_t i = 0; i < d.K; ++i) S[i][v] += unit_row(p.k, key, i) * beta_of(s, t, h) * residual;
    }
  };
  double scale = *p.options.scale;
  if (is("scale_missing")) scale = 1;
  if (is("scale_from_key_width")) scale = 1 / std::sqrt(static_cast<double>(d.K));
  if (is("scale_from_value_width")) scale = 1 / std::sqrt(static_cast<double>(d.V));
  if (is("scale_twice")) scale *= scale;
  if (is("output_doubled")) scale *= 2;
  if (is("scale_factor")) scale *= 0.7;
  if (is("output_sign")) scale = -scale;
  if (is("output_unwritten") || is("nothing_written")) scale = 0;
  const bool first_swapped = is("initial_state_transposed") || is("states_transposed");
  const bool last_swapped = is("final_state_transposed") || is("states_transposed");

  for (const kda::Sequence& s : p.sequences())
    for (std::size_t h = 0; h < d.HV; ++h) {
      std::size_t qh = is("heads_interleaved") ? h % d.H : h * d.H / d.HV;
      if (is("first_query_head")) qh = 0;
      if (is("query_head_of_other")) qh = (qh + 1) % d.H;
      const auto at = [&](bool swapped, std::size_t n, std::size_t k, std::size_t v) {
        const std::size_t inside = p.options.state_v_first != swapped ? v * d.K + k : k * d.V + v;
        return (n * d.HV + h) * d.K * d.V + inside;
      };
      Matrix S(d.K, std::vector<double>(d.V)), before_chunk = S, last_write = S;
      // Of the chunk: what its tokens write, as it is and as it decays; of those before, in rows from
      // `missing`.
      Matrix written = S, kept = S, late = S, stale_rows = S;
      const std::size_t missing = s.length() % 64;
      for (std::size_t k = 0; k < d.K; ++k)
        for (std::size_t v = 0; v < d.V; ++v) {
          S[k][v] =
              is("initial_state_missing") ? 0 : p.initial_state->value(at(first_swapped, s.index, k, v));
          const auto of_head = [&](std::size_t which) {
            return p.initial_state->value(((s.index * d.HV + which) * d.K + k) * d.V + v);
          };
          if (is("initial_state_of_head_0")) S[k][v] = of_head(0);
          if (is("initial_state_of_next_head")) S[k][v] = of_head((h + 1) % d.HV);
          if (is("initial_state_of_query_head")) S[k][v] = of_head(h * d.H / d.HV);
          if (is("initial_state_interleaved")) S[k][v] = of_head(h % d.H);
          if (is("initial_state_scaled")) S[k][v] *= *p.options.scale;
          if (is("initial_state_of_before"))
            S[k][v] = p.initial_state->value(at(false, s.index > 0 ? s.index - 1 : 0, k, v));
          if (is("initial_states_reversed"))
            S[k][v] = p.initial_state->value(at(false, d.N - 1 - s.index, k, v));
          if (is("initial_state_of_next"))
            S[k][v] = p.initial_state->value(at(false, s.index + 1 < d.N ? s.index + 1 : s.index, k, v));
          if (is("initial_state_of_first")) S[k][v] = p.initial_state->value(at(false, 0, k, v));
          if (is("initial_state_by_head"))
            S[k][v] = p.initial_state->value(((h * d.N + s.index) * d.K + k) * d.V + v);
          if (is("initial_state_in_bf16")) S[k][v] = to_bits(S[k][v], 8);
          if (is("sequence_goes_on") && s.index > 0)
            S[k][v] = answer.final_state.value(at(false, s.index - 1, k, v));
        }
      before_chunk = S;
      const Matrix initial = S;
      std::vector<double> late_o(d.V);
      Matrix again = S, early = S;  // with the initial state once more from token 64 on; behind token 63
      std::vector<double> sums(d.K), sums_of_last(d.K);
      for (std::size_t t = s.begin; t < s.end; ++t) {
        const bool last = t + 1 == s.end, begins = (t - s.begin) % 64 == 0;
        const std::size_t row = ((s.batch * d.T + t) * d.HV + h) * d.V,
                          key = ((s.batch * d.T + t) * d.H + qh) * d.K;
        if (last && is("last_token_dropped")) {
          for (std::size_t v = 0; v < d.V; ++v) answer.o.set(row + v, 0);
          continue;
        }
        if (is("initial_state_again") && t == s.begin + 64)
          for (std::size_t i = 0; i < d.K; ++i)
            for (std::size_t v = 0; v < d.V; ++v) again[i][v] = S[i][v] + initial[i][v];
        if (is("initial_state_again") && t >= s.begin + 64) apply(again, s, t, h);
        if (begins && t > s.begin) {
          if (is("part_undecayed") || is("part_unerased") || is("part_alone")) {
            Matrix of_part(d.K, std::vector<double>(d.V));
            for (std::size_t token = t - 64; token < t; ++token) apply(of_part, s, token, h);
            for (std::size_t i = 0; i < d.K; ++i)
              for (std::size_t v = 0; v < d.V; ++v)
                S[i][v] = of_part[i][v] + before_chunk[i][v] * (is("part_alone")      ? 0
                                                                : is("part_unerased") ? std::exp(sums[i])
                                                                                      : 1);
          }
          if (is("part_without_initial") || (is("part_of_one") && t > s.begin + 64)) {
            S.assign(d.K, std::vector<double>(d.V));
            for (std::size_t token = is("part_of_one") ? t - 64 : s.begin; token < t; ++token)
              apply(S, s, token, h);
          }
          if (is("resumed_chunk_early")) S = before_chunk;
          if (is("resumed_token_twice")) apply(S, s, t - 1, h);
          for (std::size_t token = t - 64; is("resumed_chunk_twice") && token < t; ++token)
            apply(S, s, token, h);
          for (std::size_t i = 0; is("resumed_decay_twice") && i < d.K; ++i)
            for (std::size_t v = 0; v < d.V; ++v) S[i][v] *= std::exp(sums[i]);
        }
        if (begins) {
          stale_rows = late;
          for (std::size_t i = 0; i < d.K && t > s.begin; ++i)
            for (std::size_t v = 0; v < d.V; ++v) {
              if (is("carried_undecayed"))
                S[i][v] += before_chunk[i][v] - std::exp(sums[i]) * before_chunk[i][v];
              if (is("writes_undecayed")) S[i][v] += written[i][v] - kept[i][v];
            }
          for (Matrix* const of_chunk : {&written, &kept, &late})
            of_chunk->assign(d.K, std::vector<double>(d.V));
          sums_of_last = sums;
          sums.assign(d.K, 0);
          last_write.assign(d.K, std::vector<double>(d.V));
          if (t > s.begin)
            for (std::vector<double>& S_k : S)
              for (double& x : S_k) {
                if (is("state_lost_in_chunks")) x = 0;
                if (is("carried_state_in_bf16") || is("chunk_states_in_bf16")) x = to_bits(x, 8);
                if (is("carried_state_in_fp16") || is("chunk_states_in_fp16")) x = to_bits(x, 11);
              }
          before_chunk = S;
        }
        if (is("state_lost") && t == place) S.assign(d.K, std::vector<double>(d.V));
        std::vector<double> k(d.K), q(d.K), a(d.K);
        for (std::size_t i = 0; i < d.K; ++i) {
          k[i] = unit_row(p.k, key, i), q[i] = scale * unit_row(p.q, key, i), a[i] = alpha(s, t, h, i);
          if (is("decay_missed") && t == place) a[i] = 1;
          const std::size_t to_first = t / 64 * 64 * d.H * d.K;
          if (is("key_of_other_row")) k[i] = unit_row(p.k, key - to_first, i);
          if (is("query_of_other_row")) q[i] = scale * unit_row(p.q, key - to_first, i);
          if (is(i < 32 ? "channels_untouched_in_first_channels" : "channels_untouched_in_last_channels"))
            k[i] = q[i] = 0;
          if (is("key_interleaved")) k[i] = unit_row(p.k, key - qh * d.K + h % d.H * d.K, i);
          if (is("key_of_first_tile")) k[i] = unit_row(p.k, key, i % 32);
          if (is("query_of_first_tile")) q[i] = scale * unit_row(p.q, key, i % 32);
          if (is("query_key_swapped")) k[i] = unit_row(p.q, key, i), q[i] = scale * unit_row(p.k, key, i);
          sums[i] += std::log(a[i]);
        }
        const double beta = beta_of(s, t, h);
        const bool behind = is("gate_behind_update");
        for (std::size_t v = 0; v < d.V; ++v) {
          double undecayed = 0, prediction = 0, output = 0;
          for (std::size_t i = 0; i < d.K; ++i) {
            undecayed += k[i] * S[i][v];
            if (!behind) S[i][v] *= is("decay_along_columns") ? a[v] : a[i];
            prediction += (is("prediction_of_query")     ? q[i] / scale
                           : is("prediction_of_raw_key") ? p.k.value(key + i)
                                                         : k[i]) *
                          S[i][v];
            if (is("prediction_misses_last")) prediction -= k[i] * a[i] * last_write[i][v];
            if (is("output_misses_own")) output += q[i] * S[i][v];
          }
          double value = p.v.value(is("value_of_other_head")
                                       ? row - h * d.V + (h + 1) % d.HV * d.V + v
                                       : row + v - (is("value_of_other_row") ? t / 64 * 64 * d.V : 0));
          if (is("beta_twice_on_value")) value *= beta;
          if (is("value_normalised")) {
            double squares = 1e-6;
            for (std::size_t i = 0; i < d.V; ++i) squares += p.v.value(row + i) * p.v.value(row + i);
            value /= std::sqrt(squares);
          }
          if (is("predict_before_decay")) prediction = undecayed;
          double update = beta * (value - prediction);
          if (is("residual_in_bf16")) update = beta * to_bits(value - prediction, 8);
          if (is("beta_on_value_only")) update = beta * value - prediction;
          if (is("beta_on_prediction_only")) update = value - beta * prediction;
          if (is("erase_missing")) update = beta * value;
          if (is("prediction_has_own"))
            update /= 1 + beta * std::inner_product(k.begin(), k.end(), k.begin(), 0.0);
          const double own = std::inner_product(k.begin(), k.end(), q.begin(), 0.0);
          if (is("own_token_unweighted")) output += own * (1 - beta) * (value - prediction);
          if (is("write_lost") && t == place) update = 0;
          for (std::size_t i = 0; i < d.K; ++i) {
            last_write[i][v] = k[i] * update;
            written[i][v] += k[i] * update;
            kept[i][v] = a[i] * kept[i][v] + k[i] * update;
            late[i][v] = a[i] * late[i][v] + ((t - s.begin) % 64 >= missing ? k[i] * update : 0);
            S[i][v] += k[i] * update * (is("write_decayed") ? a[i] : is("write_by_decay") ? 1 - a[i] : 1);
            if (is("state_in_bf16")) S[i][v] = to_bits(S[i][v], 8);
            if (is("state_in_fp16")) S[i][v] = to_bits(S[i][v], 11);
            if (!is("output_misses_own")) output += (is("output_decayed_again") ? a[i] : 1) * q[i] * S[i][v];
            if (behind) S[i][v] *= a[i];
            if (is("state_stored_in_bf16")) S[i][v] = to_bits(S[i][v], 8);
            if (is("state_stored_in_fp16")) S[i][v] = to_bits(S[i][v], 11);
          }
          if (last && is("last_row_unwritten")) output = 0;
          if (is("output_late")) std::swap(output, late_o[v]);
          answer.o.set(row + v, output);
        }
        if (t == place) early = S;
        if (is("row_stale") && t == place)
          for (std::size_t v = 0; v < d.V; ++v) answer.o.set(row + v, answer.o.value(row - d.HV * d.V + v));
      }
      for (std::size_t k = 0; k < d.K; ++k)
        for (std::size_t v = 0; v < d.V; ++v) {
          const bool shorter = s.length() > 64 && missing != 0, stale = is("tail_decay_stale") && shorter;
          if (is("rows_behind") && k == 0 && v == 0) {
            for (std::size_t t = s.end; missing != 0 && t < std::min(s.end + 64 - missing, d.T); ++t)
              apply(S, s, t, h, false);
          }
          if (is("final_state_initial")) S[k][v] = initial[k][v];
          if (is("final_state_decayed_again")) S[k][v] *= alpha(s, s.end - 1, h, k);
          if (is("final_state_early")) S[k][v] = early[k][v];
          if (is("initial_state_again")) S[k][v] = again[k][v];
          if (is("padding_decays") && missing != 0)
            S[k][v] *= std::exp(static_cast<double>(64 - missing) * gate_of_zero(h, k));
          if (is("tail_lost") && shorter) S[k][v] = before_chunk[k][v];
          if (is("tail_end_lost") && shorter) S[k][v] *= std::exp(-sums[k]);
          if (is("final_state_in_bf16")) S[k][v] = to_bits(S[k][v], 8);
          if (is("final_state_in_fp16")) S[k][v] = to_bits(S[k][v], 11);
          if (is("chunk_states_in_bf16")) S[k][v] = to_bits(S[k][v], 8);
          if (is("chunk_states_in_fp16")) S[k][v] = to_bits(S[k][v], 11);
          if (is("stale_rows") && shorter) S[k][v] += stale_rows[k][v];
          if (is("carried_undecayed")) S[k][v] += before_chunk[k][v] - std::exp(sums[k]) * before_chunk[k][v];
          if (is("writes_undecayed")) S[k][v] += written[k][v] - kept[k][v];
          answer.final_state.set(at(last_swapped, s.index, k, v),
                                 is("final_state_unwritten") || is("nothing_written")
                                     ? 0
                                     : S[k][v] * (stale ? std::exp(sums_of_last[k] - sums[k]) : 1));
        }
    }
  return answer;
}

/// Each chunk of 64 of each sequence, and where it begins.
std::vector<std::pair<kda::Sequence, std::size_t>> chunks_of(const kda::Problem& p) {
  std::vector<std::pair<kda::Sequence, std::size_t>> chunks;
  for (const kda::Sequence& s : p.sequences())
    for (std::size_t at = s.begin; at < s.end; at += 64) chunks.emplace_back(s, at);
  return chunks;
}

/// A kernel in chunks of 64 with one mistake of that form, in plain loops over scalars. One head, gates none.
kda::Answer chunk_mutant(const kda::Problem& p, const std::string& mistake, DType dtype) {
  using Rows = std::vector<std::vector<double>>;
  const auto is = [&](const char* name) { return mistake == name; };
  const kda::Dimensions d = p.dimensions();
  const auto zeros = [](std::size_t rows, std::size_t columns) {
    return Rows(rows, std::vector<double>(columns));
  };
  kda::Answer answer{Tensor("o", dtype, {d.B, d.T, d.HV, d.V}),
                     Tensor("final_state", DType::fp32, {d.N, d.HV, d.K, d.V})};
  /// Whether the first 32 channels have it, and the last ones.
  const auto in_parts = [&](const std::string& name) {
    return std::array{is(name.c_str()) || is((name + "_in_first_channels").c_str()),
                      is(name.c_str()) || is((name + "_in_last_channels").c_str())};
  };
  const auto scores_undecayed = in_parts("scores_undecayed"), L_undecayed = in_parts("L_undecayed"),
             w_undecayed = in_parts("w_undecayed"), carry_undecayed = in_parts("carry_undecayed"),
             writes_undecayed = in_parts("writes_undecayed"),
             readout_undecayed = in_parts("readout_undecayed");
  const double scale = *p.options.scale;
  Rows S = zeros(d.K, d.V), last = S;
  std::vector<Rows> entered;
  std::vector<double> sum_of_last(d.K);
  /// A decay of a term whose gates have another base.
  const auto in_base = [&](const std::string& name, double decay) {
    return is((name + "_exp2").c_str())          ? std::pow(decay, std::log(2.0))
           : is((name + "_log2e_twice").c_str()) ? std::pow(decay, 1 / std::log(2.0))
                                                 : decay;
  };
  const auto of_decay = [&](const std::string& name, std::size_t x) {
    return is((name + "_decay_of_first_tile").c_str()) ? x % 32 : x;
  };
  for (const std::pair<kda::Sequence, std::size_t>& chunk : chunks_of(p)) {
    const kda::Sequence& s = chunk.first;
    const std::size_t at = chunk.second;
    for (std::size_t i = 0; i < d.K * d.V && at == s.begin; ++i)
      last[i / d.V][i % d.V] = S[i / d.V][i % d.V] = p.initial_state->value(s.index * d.K * d.V + i);
    entered.push_back(S);
    const std::size_t n = std::min<std::size_t>(64, s.end - at);
    Rows G = zeros(n, d.K), L = zeros(n, n), scores = L, A = L, u = zeros(n, d.V), v_new = u;
    const auto q = [&](std::size_t i, std::size_t x) { return p.q.value((at + i) * d.K + x); };
    const auto k = [&](std::size_t i, std::size_t x) { return p.k.value((at + i) * d.K + x); };
    const auto beta = [&](std::size_t i) { return p.beta.value(at + i); };
    if (is("initial_state_late") && at == 0) S = zeros(d.K, d.V);
    const bool goes_on = is("sums_over_chunks");
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t x = 0; x < d.K; ++x)
        G[i][x] = (i > 0 ? G[i - 1][x] : goes_on ? sum_of_last[x] : 0) + p.g.value((at + i) * d.K + x);
    const std::vector<double>& Gn = G[n - (is("end_of_row_before") && n > 1 ? 2 : 1)];
    const auto across = [&](double sum) { return is("exp2_across") ? std::exp2(sum) : std::exp(sum); };
    const auto between = [&](std::size_t i, std::size_t j, std::size_t x, double own) {
      return x % 32 == x && mistake.find("decay_of_first_tile") != std::string::npos
                 ? std::exp(G[i][x] - G[j][x])
                 : own;
    };
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t x = 0; x < d.K; ++x) {
          if (j > i && !is("scores_unmasked") && !(is("scores_of_next") && j == i + 1)) continue;
          double D = is("exp2_within") ? std::exp2(G[i][x] - G[j][x]) : std::exp(G[i][x] - G[j][x]);
          const std::size_t first = i - i % 16;
          if (is("anchors_apart") && first > j) D /= std::exp(p.g.value((at + first) * d.K + x));
          const double own = is("scores_unscaled") ? 1 : is("scores_scaled_twice") ? scale * scale : scale;
          scores[i][j] +=
              own * q(i, x) * k(j, x) *
              (scores_undecayed[x / 32] ? 1 : in_base("scores", between(i, j, of_decay("scores", x), D)));
          if (j < i)
            L[i][j] += beta(is("column_beta") ? j : i) * (is("L_scaled_twice") ? scale : 1) * k(i, x) *
                       k(j, x) * (L_undecayed[x / 32] ? 1 : in_base("L", between(i, j, of_decay("L", x), D)));
        }
    // Row by row: X_i = e_i - sum_j L_ij X_j; a series of so many terms stops where the power is too high.
    const auto solved = [&](std::size_t terms) {
      Rows sum = zeros(n, n), power = sum;
      for (std::size_t i = 0; i < n; ++i) power[i][i] = 1;
      for (std::size_t term = 0; term < terms; ++term) {
        Rows next = zeros(n, n);
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < n; ++j) {
            sum[i][j] += power[i][j];
            for (std::size_t m = 0; m < n; ++m) next[i][j] -= L[i][m] * power[m][j];
          }
        power = next;
      }
      return sum;
    };
    A = solved(is("inverse_series_2")    ? 2
               : is("inverse_series_4")  ? 4
               : is("inverse_series_8")  ? 8
               : is("inverse_series_16") ? 16
                                         : n);
    if (is("inverse_product") && n == 64) {  // block 2,0 without L(2,1) A(1,0)
      Rows product = zeros(16, 16);
      for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t j = 0; j < 16; ++j)
          for (std::size_t m = 0; m < 16; ++m) product[i][j] += L[32 + i][16 + m] * A[16 + m][j];
      const Rows whole = A;
      for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t j = 0; j < 16; ++j)
          for (std::size_t m = 0; m < 16; ++m) A[32 + i][j] += whole[32 + i][32 + m] * product[m][j];
      Rows sum = zeros(16, 16);  // block 3,0 is made of it
      for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t j = 0; j < 16; ++j) {
          for (std::size_t m = 0; m < 48; ++m) sum[i][j] += L[48 + i][m] * A[m][j];
        }
      for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t j = 0; j < 16; ++j) {
          A[48 + i][j] = 0;
          for (std::size_t m = 0; m < 16; ++m) A[48 + i][j] -= whole[48 + i][48 + m] * sum[m][j];
        }
    }
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t v = 0; v < d.V; ++v)
        for (std::size_t j = 0; j < n; ++j)
          u[i][v] += A[i][j] * beta(is("u_weighted_behind") ? i : j) * p.v.value((at + j) * d.V + v);
    Rows w = zeros(n, d.K);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t x = 0; x < d.K; ++x) {
        for (std::size_t j = 0; j < n; ++j) {
          const std::size_t of = of_decay("w", x);
          w[i][x] += A[i][j] * (is("w_without_beta") ? 1 : beta(is("w_weighted_behind") ? i : j)) * k(j, x) *
                     (w_undecayed[x / 32] || is("w_decayed_behind") ? 1 : in_base("w", across(G[j][of])));
        }
        w[i][x] *= is("w_decayed_behind") ? across(G[i][x]) : 1;
      }
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t v = 0; v < d.V; ++v) {
        v_new[i][v] = u[i][v];
        for (std::size_t x = 0; x < d.K; ++x) v_new[i][v] -= w[i][x] * S[x][v];
      }
    Rows after = zeros(d.K, d.V);
    for (std::size_t x = 0; x < d.K; ++x)
      for (std::size_t v = 0; v < d.V; ++v) {
        const std::size_t by = is("carry_by_column")             ? v
                               : is("carry_decay_of_first_tile") ? x % 32
                                                                 : x,
                          of = of_decay("writes", x);
        after[x][v] = (carry_undecayed[x / 32] ? 1 : in_base("carry", across(Gn[by]))) * S[x][v];
        for (std::size_t i = 0; i < n; ++i)
          after[x][v] += k(i, x) *
                         (writes_undecayed[x / 32] ? 1 : in_base("writes", across(Gn[of] - G[i][of]))) *
                         (is("writes_unerased") ? u : v_new)[i][v];
      }
    const Rows& h = is("state_of_before")   ? last
                    : is("state_of_after")  ? after
                    : is("state_of_first")  ? entered[(at - s.begin) / 64]
                    : is("state_of_stream") ? entered[s.begin / 64 + (at - s.begin) / 64]
                                            : S;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t v = 0; v < d.V; ++v) {
        double o = 0;
        for (std::size_t x = 0; x < d.K; ++x) {
          const double D =
              readout_undecayed[x / 32] ? 1 : in_base("readout", across(G[i][of_decay("readout", x)]));
          if (!(is("first_chunk_alone") && at == s.begin))
            o += (is("readout_unscaled")       ? 1
                  : is("readout_scaled_twice") ? scale * scale
                                               : scale) *
                 q(i, x) * D * (is("carried_state_transposed") ? h[v][x] : h[x][v]);
        }
        for (std::size_t j = 0; j < n; ++j) o += scores[i][j] * (is("output_unerased") ? u : v_new)[j][v];
        answer.o.set((at + i) * d.V + v, o);
      }
    last = S, S = after;
    sum_of_last = Gn;
    for (std::size_t i = 0; i < d.K * d.V && is("initial_state_late") && at == 0; ++i)
      S[i / d.V][i % d.V] += std::exp(Gn[i / d.V]) * p.initial_state->value(i);
    for (std::size_t i = 0; i < d.K * d.V; ++i)
      answer.final_state.set(s.index * d.K * d.V + i, S[i / d.V][i % d.V]);
  }
  return answer;
}

/// q as a kernel has it that takes [B][T][H][K] for [B][H][T][K].
kda::Problem with_query_by_heads(const kda::Problem& problem) {
  kda::Problem other = kda::clone(problem);
  const kda::Dimensions& d = problem.dimensions();
  for (std::size_t t = 0; t < d.T; ++t)
    for (std::size_t h = 0; h < d.H; ++h)
      for (std::size_t k = 0; k < d.K; ++k)
        other.q.set((t * d.H + h) * d.K + k, problem.q.value((h * d.T + t) * d.K + k));
  return other;
}

/// The right answer where the second sequence begins elsewhere.
kda::Answer with_boundary(const kda::Problem& problem, std::int64_t at) {
  kda::Problem other = kda::clone(problem);
  other.cu_seqlens[1] = at;
  return mutant(other, "none");
}

/// Of rows that are about the chunk form.
bool is_of_chunk_form(const hypotheses::Fault& fault, const kda::Problem& problem) {
  hypotheses::Interpretation reading(problem);
  fault.apply(reading, 0);
  return reading.chunk_fault != hypotheses::ChunkFault::none;
}

hypotheses::Naming probed(const kda::Problem& problem, const kda::Answer& answer,
                          const hypotheses::FailurePlace& place = {}) {
  const bool bf16 = answer.o.dtype() == DType::bf16;
  return hypotheses::name_fault(problem, {&answer.o, &answer.final_state, bf16 ? 0.0117 : 2e-6, 2e-6}, place,
                                2);
}

std::string names(const hypotheses::Naming& finding) {
  std::string text;
  for (const hypotheses::Cause& match : finding.causes) text += (text.empty() ? "" : " ") + match.fault;
  return text;
}

/// The generic case, with what a fault needs in order to apply.
Case case_for(const std::string& name) {
  Case c;
  const auto one_of = [&](std::initializer_list<const char*> list) {
    return std::any_of(list.begin(), list.end(), [&](const char* item) { return name == item; });
  };
  if (one_of({"dt_bias_of_flat_head",
              "gate_raw",
              "gate_clamped_softplus",
              "gate_softplus",
              "A_log_missing",
              "dt_bias_missing",
              "A_log_not_raised",
              "dt_bias_by_channel",
              "A_log_twice",
              "parameters_in_bf16",
              "dt_bias_of_first_head",
              "A_log_negated",
              "A_log_exp2",
              "A_log_of_query_head",
              "dt_bias_doubled",
              "dt_bias_negated",
              "dt_bias_of_first_tile",
              "dt_bias_outside",
              "lower_bound_of_usual",
              "A_log_outside",
              "gate_argument_negated",
              "gate_tanh",
              "gate_hard_sigmoid",
              "A_log_for_A",
              "A_log_for_dt_bias",
              "parameters_of_other_head",
              "dt_bias_of_other_head",
              "A_log_of_other_head",
              "A_log_softplus"}))
    c.gate = Gate::lower_bound;
  if (one_of({"gate_lower_bound", "softplus_threshold", "A_log_inside", "dt_bias_beside",
              "gate_of_other_function", "dt_bias_behind", "padding_decays"}))
    c.gate = Gate::softplus;
  c.sigmoid = one_of({"beta_raw", "beta_not_doubled", "beta_sigmoid_twice"});
  c.doubled = name == "beta_not_doubled";
  const bool of_norm =
      one_of({"l2norm_missing", "query_not_normalised", "key_not_normalised", "norm_of_mean", "norm_of_heads",
              "norm_squared", "norm_in_bf16", "norm_of_first_tile", "prediction_of_raw_key"});
  c.l2norm = of_norm;
  if (one_of({"heads_interleaved", "key_interleaved", "gate_of_query_head", "beta_of_query_head",
              "A_log_of_query_head", "initial_state_of_query_head", "initial_state_interleaved",
              "initial_state_of_next_head"}))
    c.H = 2, c.HV = 4;
  if (one_of({"first_query_head", "gate_of_first_head", "dt_bias_by_channel", "dt_bias_of_first_head",
              "norm_of_heads", "initial_state_by_head", "initial_state_of_head_0", "input_in_other_layout"}))
    c.H = c.HV = 2;
  if (name.find("_of_other_head") != std::string::npos || name == "query_head_of_other") c.H = c.HV = 3;
  c.small_keys = c.l2norm = c.l2norm || name.starts_with("epsilon_");
  if (of_norm) c.small_keys = false;
  c.slow = one_of({"state_lost_in_chunks", "sums_over_chunks", "tail_decay_stale", "tail_end_lost",
                   "stale_rows", "final_state_unwritten", "tail_lost", "padding_decays", "rows_behind"}) ||
           name.starts_with("h_in_") || name.find("_state") != std::string::npos || name.starts_with("w_") ||
           name.starts_with("chunk_") || name.starts_with("carry_of_") || name.starts_with("inverse_") ||
           name.starts_with("part_") || name.starts_with("resumed_");
  if (name == "carried_state_transposed" || name == "decay_along_columns") c.K = c.V = 32;
  if (one_of({"sequence_goes_on", "sequence_late", "sequence_early", "gate_sums_of_stream",
              "initial_state_by_head", "rows_behind"}))
    c.cu_seqlens = {0, 60, 130};
  if (name == "state_of_first" || name == "state_of_stream") c.cu_seqlens = {0, 65, 130};
  if (one_of({"initial_state_of_first", "initial_state_of_before", "initial_state_of_next",
              "initial_states_reversed"}))
    c.cu_seqlens = {0, 20, 40, 60, 80, 130};
  return c;
}

}  // namespace

TEST_CASE("a fault of every table is found by its name", "[hypotheses][faults]") {
  for (const hypotheses::Fault& row : hypotheses::faults())
    CHECK(hypotheses::fault_named(std::string(row.name)).of_output->name == row.name);
  for (const hypotheses::GradientFault& row : hypotheses::gradient_faults())
    CHECK(hypotheses::fault_named(row.name).of_gradients == &row);
  for (const hypotheses::PoolFault& row : hypotheses::pool_faults())
    CHECK(hypotheses::fault_named(row.name).of_pool == &row);
  CHECK(hypotheses::fault_named("inverse_doubling_32_in_bf16").of_matrix);
  CHECK(hypotheses::fault_named("write_lost:7").at == 7);
  CHECK(hypotheses::fault_named("gate_factor:0.5").at == 500'000'000);
}

TEST_CASE("the scalar kernel of these tests without a mistake is right", "[hypotheses][naming]") {
  for (const char* const name :
       {"exp2", "gate_raw", "gate_lower_bound", "beta_not_doubled", "l2norm_missing"}) {
    const kda::Problem problem = problem_of(case_for(name));
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    const kda::Answer answer = mutant(problem, "none");
    CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-7);
    CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-7);
    CHECK(names(probed(problem, answer)).empty());
  }
  const kda::Problem problem = problem_of({});
  const test::WholeOracle oracle = test::whole_oracle(problem, 2);
  const kda::Answer answer = chunk_mutant(problem, "none", DType::fp32);
  CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-7);
  CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-7);
}

TEST_CASE("every fault is named when a kernel has exactly this one", "[hypotheses][naming]") {
  test::Sampled sample(40);
  INFO(sample.text());
  std::vector<std::pair<std::string, const hypotheses::Fault*>> list;
  for (const hypotheses::Fault& fault : hypotheses::faults())
    for (const char* const part : {"", "_in_first_channels", "_in_last_channels"})
      if (fault.in_part != std::string(part).empty())
        list.emplace_back(std::string(fault.name) + part, &fault);
  for (const auto& [name, row] : list) {
    if (!sample.next()) continue;
    const hypotheses::Fault& fault = *row;
    kda::Problem problem = problem_of(case_for(name));
    if (name == "lower_bound_of_usual") problem.options.lower_bound = -3;
    INFO(name);
    REQUIRE(fault.applies(problem));
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (fault.at == hypotheses::Fault::At::chunk && dtype == DType::bf16) continue;  // as in fp32
      const kda::Answer answer = is_of_chunk_form(fault, problem) ? chunk_mutant(problem, name, dtype)
                                 : name == "sequence_late" || name == "sequence_early"
                                     ? with_boundary(problem, name == "sequence_late" ? 61 : 59)
                                 : name == "input_in_other_layout"
                                     ? mutant(with_query_by_heads(problem), "none", dtype)
                                     : mutant(problem, name, dtype, 64);
      // Nothing else of the problem is wrong.
      const bool is_second =
          (!problem.cu_seqlens.empty() && name != "rows_behind") ||
          (problem.dimensions().HV > 1 && name != "heads_interleaved" && name != "key_interleaved");
      const std::size_t behind = problem.sequences().size() > 4 ? 2 : 1;  // where all readings differ
      const hypotheses::FailurePlace place{problem.sequences().size() - behind, problem.dimensions().HV - 1};
      const hypotheses::Naming finding =
          probed(problem, answer, is_second ? place : hypotheses::FailurePlace{});
      INFO(name << ' ' << numeric::name_of(dtype)
                << (finding.nearest ? ", nearest " + finding.nearest->fault : std::string()));
      // Two heads of two need not tell whose state it is.
      if (fault.is_variation && name.starts_with("initial_state_"))
        CHECK_THAT(names(finding), ContainsSubstring(name));
      else if (dtype == DType::bf16 && name.starts_with("state_") && name.find("_in_") != std::string::npos)
        CHECK_THAT(names(finding), ContainsSubstring(name));  // o rounded hides who reads the state first
      else
        CHECK(names(finding) == name);
      if (finding.causes.empty()) continue;
      CHECK(finding.causes[0].explained > 0.99);
      if (fault.at == hypotheses::Fault::At::token || fault.at == hypotheses::Fault::At::start)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(t=64)"));
      if (fault.at == hypotheses::Fault::At::part)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(parts of 64)"));
      if (fault.at == hypotheses::Fault::At::block)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(block 2,0: L(2,1) A(1,0))"));
      if (fault.at == hypotheses::Fault::At::row)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(": the same one of the first chunk"));
      if (fault.at == hypotheses::Fault::At::factor)
        CHECK_THAT(finding.causes[0].meaning,
                   ContainsSubstring(name == "gate_raised"      ? "a bound: -0.7"
                                     : name == "epsilon_larger" ? "larger by 0.01"
                                                                : ": 0.7 of what it should be"));
      if (fault.at == hypotheses::Fault::At::function)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(": x sigmoid(x)"));
      if (fault.at == hypotheses::Fault::At::layout)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(": q as [B,heads,T,width]"));
      if (fault.at == hypotheses::Fault::At::chunk)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(chunks of 64)"));
    }
  }
}

TEST_CASE("a fault of some columns is named with them", "[hypotheses][naming]") {
  Case c;
  c.slow = true;
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = mutant(problem, "none");
  test::Sampled sample(2);
  INFO(sample.text());
  for (const std::size_t first : {0, 24})
    for (const char* const name : {"beta_twice", "readout_undecayed"}) {
      if (!sample.next()) continue;
      INFO(name << ' ' << first);
      kda::Answer answer = std::string(name) == "readout_undecayed" ? chunk_mutant(problem, name, DType::fp32)
                                                                    : mutant(problem, name);
      for (const auto& [tensor, of] :
           {std::pair(&answer.o, &right.o), {&answer.final_state, &right.final_state}})
        for (std::size_t i = 0; i < tensor->size(); ++i)
          if (i % c.V < first || i % c.V >= first + 8) tensor->set(i, of->value(i));
      const hypotheses::Naming finding = probed(problem, answer);
      CHECK(names(finding) == name);
      if (finding.causes.empty()) continue;
      CHECK_THAT(finding.causes[0].meaning,
                 Catch::Matchers::EndsWith(", in columns " + std::to_string(first) + ".." +
                                           std::to_string(first + 7) + " alone"));
    }
}

TEST_CASE("a fault of one chunk, or from one on, is named with it", "[hypotheses][naming]") {
  Case c;
  c.T = 150, c.slow = true;
  const kda::Problem problem = problem_of(c);
  struct Part {
    std::size_t begin, end;
    const char* where;
  };
  test::Sampled sample(3);
  INFO(sample.text());
  for (const Part& part :
       {Part{0, 64, ", in chunk 0 alone (t=0..63)"}, Part{64, 128, ", in chunk 1 alone (t=64..127)"},
        Part{128, 150, ", in the last chunk alone (t=128..149)"}, Part{64, 150, ", from chunk 1 on (t=64)"}})
    for (const char* const name : {"beta_missing", "gate_mean"}) {
      if (!sample.next()) continue;
      kda::Problem misread = problem_of(c);
      for (std::size_t t = part.begin; t < part.end; ++t) {
        double mean = 0;
        for (std::size_t i = t * c.K; i < (t + 1) * c.K; ++i)
          mean += problem.g.value(i) / static_cast<double>(c.K);
        if (name == std::string("beta_missing")) misread.beta.set(t, 1);
        for (std::size_t i = t * c.K; i < (t + 1) * c.K && name == std::string("gate_mean"); ++i)
          misread.g.set(i, mean);
      }
      const hypotheses::Naming finding = probed(problem, mutant(misread, "none"));
      INFO(name << part.where);
      CHECK(names(finding) == name);
      if (finding.causes.empty()) continue;
      CHECK_THAT(finding.causes[0].meaning, Catch::Matchers::EndsWith(part.where));
    }
}

TEST_CASE("a state transposed is named in both layouts, square or not", "[hypotheses][naming]") {
  for (const bool v_first : {false, true})
    for (const std::size_t V : {48, 32})
      for (const char* const name :
           {"initial_state_transposed", "final_state_transposed", "states_transposed"}) {
        Case c;
        c.T = 12, c.V = V, c.v_first = v_first;
        const kda::Problem problem = problem_of(c);
        INFO(name << ' ' << V << ' ' << v_first);
        CHECK(names(probed(problem, mutant(problem, name))) == name);
      }
}

TEST_CASE("numbers of tokens that nobody foresaw are told from the rows that they give",
          "[hypotheses][naming]") {
  Case c;
  c.K = 16, c.slow = true;
  const kda::Problem problem = problem_of(c);
  const auto told = [&](const std::string& fault, const std::string& sentence, auto change) {
    kda::Problem other = kda::clone(problem);
    test::Random random(7);
    change(other, random);
    const hypotheses::Naming finding = probed(problem, mutant(other, "none"));
    INFO(fault << ": " << (finding.nearest ? finding.nearest->fault : ""));
    CHECK(names(finding) == fault);
    if (!finding.causes.empty()) CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(sentence));
  };
  const auto scaled = [&](Tensor& rows, std::size_t width, test::Random& random) {
    for (std::size_t t = 30; t < c.T; t += 3) {
      const double factor = random.uniform(0.5, 0.9);
      for (std::size_t i = t * width; i < (t + 1) * width; ++i) rows.set(i, factor * rows.value(i));
    }
  };
  told("beta_of_tokens", "beta has other values: at 110 of 130 tokens that of 20 tokens before",
       [&](kda::Problem& p, test::Random&) {
         for (std::size_t t = c.T; t-- > 20;) p.beta.set(t, p.beta.value(t - 20));
       });
  told("beta_of_tokens key_of_tokens", "from t=30 on, 0 of what it should be",
       [&](kda::Problem& p, test::Random&) {
         for (std::size_t t = 30; t < c.T; t += 3) p.beta.set(t, 0);
       });
  told("query_of_tokens", "at 34 of 130 tokens: t=30 0.",
       [&](kda::Problem& p, test::Random& random) { scaled(p.q, c.K, random); });
  told("value_of_tokens", "at 34 of 130 tokens: t=30 0.",
       [&](kda::Problem& p, test::Random& random) { scaled(p.v, c.V, random); });
  told("key_of_tokens", "at 34 of 130 tokens: t=30 0.",
       [&](kda::Problem& p, test::Random& random) { scaled(p.k, c.K, random); });
  told("other_state", "the state before t=0 is another one", [&](kda::Problem& p, test::Random& random) {
    for (std::size_t i = 0; i < p.initial_state->size(); ++i) p.initial_state->set(i, random.normal());
  });
}

TEST_CASE("what the answer cannot tell apart is named together", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  const kda::Answer answer = mutant(problem, "last_token_dropped");
  const hypotheses::Naming finding = hypotheses::name_fault(problem, {&answer.o, nullptr, 2e-6, 0}, {}, 2);
  CHECK(names(finding) == "last_token_dropped last_row_unwritten");
}

TEST_CASE("noise is explained by no fault", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  for (const double size : {1e-5, 1e-2, 1.0}) {
    kda::Answer answer = mutant(problem, "none");
    test::Random random(9);
    for (Tensor* const tensor : {&answer.o, &answer.final_state})
      for (std::size_t i = 0; i < tensor->size(); ++i)
        tensor->set(i, tensor->value(i) * (1 + size * random.normal()));
    const hypotheses::Naming finding = probed(problem, answer);
    INFO(size);
    CHECK(names(finding).empty());
    CHECK(finding.tried > 25);
  }
}

TEST_CASE("two mistakes at once are named together", "[hypotheses][naming]") {
  Case c;
  c.slow = true;
  const kda::Problem problem = problem_of(c);
  test::Sampled sample(3);
  INFO(sample.text());
  for (const char* const both :
       {"exp2 and beta_twice", "gate_missing and final_state_transposed",
        "output_doubled and initial_state_missing", "log2e_twice and initial_state_missing"})
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (!sample.next()) continue;
      INFO(both << numeric::name_of(dtype));
      CHECK(names(probed(problem, mutant(problem, both, dtype))) == both);
    }
}

TEST_CASE("what a fault explains but for a little is said to be near, with its share",
          "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  kda::Problem rescaled = problem_of({});
  for (std::size_t i = 0; i < problem.g.size(); ++i) rescaled.g.set(i, -0.001 * problem.g.value(i));
  const hypotheses::Naming finding = probed(problem, mutant(rescaled, "none"));
  CHECK(names(finding).empty());
  REQUIRE(finding.nearest);
  // g is zero, for all tokens or, of the matrices of a chunk, for those of one.
  CHECK((finding.nearest->fault == "gate_missing" || finding.nearest->fault == "gate_lost"));
  CHECK(finding.nearest->explained > 0.99);
  CHECK(finding.nearest->explained < 1);
}

TEST_CASE("what is wrong besides a fault is left unexplained", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  kda::Answer answer = mutant(problem, "exp2");
  test::Random random(5);
  for (Tensor* const tensor : {&answer.o, &answer.final_state})
    for (std::size_t i = 0; i < tensor->size(); ++i)
      tensor->set(i, tensor->value(i) * (1 + 0.03 * random.normal()));
  const hypotheses::Naming finding = probed(problem, answer);
  CHECK(names(finding).empty());
  REQUIRE(finding.nearest);
  CHECK(finding.nearest->fault == "exp2");
  CHECK(finding.nearest->explained < 0.99);
}

TEST_CASE("a failure late in a long sequence is looked at where it is", "[hypotheses][naming]") {
  Case c;
  c.T = 2100, c.K = 16, c.V = 8;
  const kda::Problem problem = problem_of(c);
  for (const char* const name :
       {"exp2", "row_stale", "last_token_dropped", "final_state_transposed", "write_lost", "gate_late"}) {
    const hypotheses::Naming finding = probed(problem, mutant(problem, name, DType::fp32, 1900));
    INFO(name << " t=" << finding.begin << ".." << finding.end);
    // Their outputs are the same, but for the final state.
    const bool is_late = std::string(name) == "gate_late";
    CHECK(names(finding) == (is_late ? "gate_late gate_behind_update" : name));
    CHECK(finding.end - finding.begin <= 256 + 64);
  }
}

TEST_CASE("a mistake is named from the tokens before the answer overflows", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  kda::Answer answer = mutant(problem, "exp2");
  for (std::size_t i = 90 * 32; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  for (std::size_t i = 0; i < answer.final_state.size(); ++i) answer.final_state.set(i, HUGE_VAL);
  const hypotheses::Naming finding = probed(problem, answer);
  CHECK(names(finding) == "exp2");
  CHECK(finding.end == 90);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  CHECK(names(probed(problem, answer)).empty());
}

TEST_CASE("an answer that is right up to its first NaN is explained by no fault", "[hypotheses][naming]") {
  const kda::Problem problem = test::exact_problem(64, 16, 8, DType::fp32);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  for (std::size_t i = 30 * 8; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  const hypotheses::Naming finding = probed(problem, answer);
  CHECK(names(finding).empty());
  CHECK(!finding.nearest);
  CHECK(finding.end == 30);
}

TEST_CASE("values whose squares overflow do not confuse the order of the faults", "[hypotheses][naming]") {
  Case c;
  c.T = 700, c.K = 8, c.V = 8;
  const kda::Problem problem = problem_of(c);
  CHECK(names(probed(problem, mutant(problem, "exp2", DType::fp64))) == "exp2");
}

TEST_CASE("the sequence of a packed batch that failed is the one looked at", "[hypotheses][naming]") {
  Case c;
  c.T = 60, c.cu_seqlens = {0, 25, 25, 60};
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = mutant(problem, "none"), wrong = mutant(problem, "initial_state_missing");
  kda::Answer answer = mutant(problem, "none");
  for (std::size_t i = 25 * 32; i < answer.o.size(); ++i) answer.o.set(i, wrong.o.value(i));
  for (std::size_t i = 2 * 48 * 32; i < answer.final_state.size(); ++i)
    answer.final_state.set(i, wrong.final_state.value(i));
  // Sums of gates of the whole row leave as little of it: o cannot tell them apart.
  CHECK(names(probed(problem, answer, {2, 0})) == "initial_state_missing gate_sums_of_stream");
  CHECK(names(probed(problem, answer, {0, 0})).empty());
}

namespace {

/// Problems with a loss, so that each fault of gradients applies to one of them.
std::vector<kda::Problem> problems_with_loss() {
  std::vector<kda::Problem> list;
  for (const bool is_packed : {false, true})
    for (const Gate gate : {Gate::softplus, Gate::lower_bound}) {
      test::ProblemSpec spec;
      spec.T = 120, spec.K = 12, spec.V = 10, spec.H = 2, spec.HV = 4;
      if (is_packed && gate == Gate::softplus) spec.K = spec.V = 20, spec.H = 3, spec.HV = 6;
      spec.gate = gate, spec.qk_l2norm = true;
      spec.beta_sigmoid = spec.allow_neg_eigval = gate == Gate::lower_bound;
      if (is_packed && gate == Gate::softplus) spec.cu_seqlens = {0, 20, 50, 120};
      if (is_packed && gate == Gate::lower_bound) spec.B = 3;
      kda::Problem& problem = list.emplace_back(test::make_problem(spec, 7));
      test::Random random(8);
      if (!spec.beta_sigmoid) problem.beta.set(3, 0);
      problem.output_gradient = problem.v.clone();
      problem.state_gradient = problem.initial_state->clone();
      for (Tensor* const tensor : {&*problem.output_gradient, &*problem.state_gradient})
        for (std::size_t i = 0; i < tensor->size(); ++i) tensor->set(i, random.normal());
    }
  return list;
}

/// Those of a kernel, with what a fault changes.
kda::GradientTensors wrong_gradients(const kda::Problem& problem, const hypotheses::GradientReading& fault,
                                     std::size_t chunk_size) {
  const hypotheses::BackwardReference reference(problem, chunk_size);
  const kda::GradientTensors right = reference.gradients({}, DType::fp64),
                             wrong = reference.gradients(fault, DType::fp64);
  kda::RunOptions options;
  options.dtype = DType::fp32, options.chunk_size = chunk_size;
  kda::GradientTensors got = kda::run_chunk_backward(problem, options);
  for (std::size_t t = 0; t < got.size(); ++t)
    for (std::size_t i = 0; i < got[t].size(); ++i)
      got[t].set(i, got[t].value(i) + wrong[t].value(i) - right[t].value(i));
  return got;
}
/// Of the root of the squares, what differs.
double relative_error(const Tensor& got, const Tensor& right) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got.value(i) - right.value(i)) * (got.value(i) - right.value(i));
    size += right.value(i) * right.value(i);
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}
/// By hundreds of their limits, so that what a rounding changes is left out.
bool is_clearly_wrong(const kda::GradientTensors& got, const kda::GradientTensors& right) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!got[i].empty() && relative_error(got[i], right[i]) > 0.05) return true;
  return false;
}

std::vector<hypotheses::FailedGradient> failed(const kda::GradientTensors& got) {
  std::vector<hypotheses::FailedGradient> output;
  for (const Tensor& one : got) {
    const bool cancels = one.name() == "dA_log" || one.name() == "ddt_bias";
    if (!one.empty()) output.push_back({std::string(one.name()), &one, cancels ? 1e-3 : 1e-4});
  }
  return output;
}

}  // namespace

TEST_CASE("a matrix of the chunk form that is another one is named", "[hypotheses][naming]") {
  Case c;
  c.T = 96, c.K = 20, c.V = 16, c.H = c.HV = 3, c.slow = true;
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = hypotheses::answer_of(problem, hypotheses::Interpretation(problem));
  test::Sampled sample(250);
  INFO(sample.text());
  for (const hypotheses::plain::MovedMatrix& moved : hypotheses::plain::moved_matrices(false, true)) {
    if (!sample.next()) continue;
    hypotheses::Interpretation reading(problem);
    reading.chunk_fault = hypotheses::ChunkFault::moved;
    reading.site = moved.site, reading.move = moved.move;
    const kda::Answer wrong = hypotheses::answer_of(problem, reading);
    kda::Answer got{Tensor("o", DType::fp32, wrong.o.shape()),
                    Tensor("final_state", DType::fp32, wrong.final_state.shape())};
    for (std::size_t i = 0; i < got.o.size(); ++i) got.o.set(i, wrong.o.value(i));
    for (std::size_t i = 0; i < got.final_state.size(); ++i)
      got.final_state.set(i, wrong.final_state.value(i));
    const double error =
        std::max(relative_error(got.o, right.o), relative_error(got.final_state, right.final_state));
    INFO(moved.name() << " errs by " << error);
    if (moved.move->name == "halved") CHECK(error > 0.001);  // it is read
    if (!(error > 0.001)) continue;
    const hypotheses::Naming finding = probed(problem, got, {0, 1});
    INFO(names(finding) << (finding.nearest ? ", nearest " + finding.nearest->fault : std::string()));
    CHECK_FALSE(finding.causes.empty());
    if (finding.causes.empty()) continue;  // others may be the same: L and the keys of its rows
    CHECK(finding.causes[0].explained > 0.98);
  }
}

TEST_CASE("inputs of another head or in another order of rows are named", "[hypotheses][naming]") {
  Case c;
  c.T = 96, c.K = 20, c.V = 16, c.H = c.HV = 3;
  const kda::Problem problem = problem_of(c);
  const auto named = [&](Tensor kda::Problem::*input, auto from) {
    kda::Problem other = kda::clone(problem);
    const Tensor& own = problem.*input;
    const std::size_t width = own.shape()[3];
    for (std::size_t t = 0; t < c.T; ++t)
      for (std::size_t h = 0; h < c.H; ++h) {
        const auto [row, head] = from(t, h);
        for (std::size_t i = 0; i < width; ++i)
          (other.*input).set((t * c.H + h) * width + i, own.value((row * c.H + head) * width + i));
      }
    return names(probed(problem, mutant(other, "none"), {0, 1}));
  };
  const auto of_next_head = [](std::size_t t, std::size_t h) { return std::pair{t, (h + 1) % 3}; };
  const auto swapped = [](std::size_t t, std::size_t h) { return std::pair{t ^ 8, h}; };
  CHECK_THAT(named(&kda::Problem::k, of_next_head), ContainsSubstring("key_of_next_head"));
  CHECK_THAT(named(&kda::Problem::q, of_next_head), ContainsSubstring("query_of_next_head"));
  CHECK_THAT(named(&kda::Problem::v, swapped), ContainsSubstring("value_rows_swapped_8"));
  CHECK_THAT(named(&kda::Problem::k, swapped), ContainsSubstring("key_rows_swapped_8"));
  CHECK_THAT(named(&kda::Problem::g, swapped), ContainsSubstring("gate_rows_swapped_8"));
}

TEST_CASE("a matrix of the backward pass that is another one is named", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  test::ProblemSpec spec;
  spec.T = 96, spec.H = spec.HV = 2, spec.K = spec.V = 20;
  kda::Problem problem = test::make_problem(spec, 7);
  problem.output_gradient = problem.v.clone();
  test::Random random(8);
  for (std::size_t i = 0; i < problem.output_gradient->size(); ++i)
    problem.output_gradient->set(i, random.normal());
  const kda::GradientTensors right = wrong_gradients(problem, {}, chunk_size);
  test::Sampled sample(250);
  INFO(sample.text());
  for (const hypotheses::plain::MovedMatrix& moved : hypotheses::plain::moved_matrices(true, true)) {
    const bool is_tried = !moved.move->is_beside() || moved.move->hits == nullptr;
    if (!is_tried || !sample.next()) continue;
    hypotheses::GradientReading reading;
    reading.site = moved.site, reading.move = moved.move;
    const kda::GradientTensors got = wrong_gradients(problem, reading, chunk_size);
    INFO(moved.name());
    if (moved.move->name == "negated") CHECK(is_clearly_wrong(got, right));  // it is read
    if (!is_clearly_wrong(got, right)) continue;
    const hypotheses::Naming finding =
        hypotheses::name_gradient_fault(problem, failed(got), {}, chunk_size, 2);
    INFO(names(finding) << (finding.nearest ? ", nearest " + finding.nearest->fault : std::string()));
    CHECK_FALSE(finding.causes.empty());
    if (finding.causes.empty()) continue;
    CHECK(finding.causes[0].explained > 0.98);
  }
}

TEST_CASE("every fault of gradients is named beside the errors of a kernel", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  std::vector<kda::Problem> problems = problems_with_loss();
  test::Sampled sample(20);
  INFO(sample.text());
  for (const hypotheses::GradientFault& fault : hypotheses::gradient_faults()) {
    if (!sample.next()) continue;
    INFO(fault.name);
    const auto found = std::ranges::find_if(problems, fault.applies);
    REQUIRE(found != problems.end());
    kda::Problem problem = kda::clone(*found);
    if (fault.name == "sigmoid_lost") {
      for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, 14);
      for (std::size_t h = 0; h < problem.A_log->size(); ++h) problem.A_log->set(h, 0);
    }
    if (fault.name == "slope_overflows") {
      for (std::size_t i = 0; i < problem.g.size(); i += 3) problem.g.set(i, 100);
      for (std::size_t h = 0; h < problem.A_log->size(); ++h) problem.A_log->set(h, -8);
    }
    const kda::GradientTensors got = wrong_gradients(problem, fault.reading(), chunk_size);
    const std::vector<hypotheses::FailedGradient> output = failed(got);
    const hypotheses::Naming naming = hypotheses::name_gradient_fault(problem, output, {}, chunk_size, 2);
    INFO((naming.nearest ? "nearest " + naming.nearest->fault : std::string("nothing near")));
    REQUIRE_FALSE(naming.causes.empty());
    // Of strong gates a carry that is lost is as one that is not.
    CHECK(std::ranges::find(naming.causes, fault.name, &hypotheses::Cause::fault) != naming.causes.end());
    CHECK(naming.causes.front().explained > 0.98);
    CHECK(naming.causes.size() <= 3);  // tiles that end in the same rows; a mean over few channels
  }
}

TEST_CASE("a backward pass that reads an input otherwise, or is wrong by a factor, is named",
          "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  const kda::Problem problem = std::move(problems_with_loss().front());
  const auto named = [&](const kda::GradientTensors& got) {
    return hypotheses::name_gradient_fault(problem, failed(got), {}, chunk_size, 2);
  };
  test::Sampled sample(2);
  INFO(sample.text());
  for (const char* const name :
       {"exp2", "key_not_normalised", "beta_of_other_head", "dt_bias_missing", "value_of_other_row"}) {
    if (!sample.next()) continue;
    const auto fault = std::ranges::find(hypotheses::faults(), name, &hypotheses::Fault::name);
    hypotheses::Interpretation reading(problem);
    fault->apply(reading, 1);
    hypotheses::GradientReading misread;
    misread.misread = &reading;
    const hypotheses::Naming naming = named(wrong_gradients(problem, misread, chunk_size));
    INFO(name << (naming.nearest ? ", nearest " + naming.nearest->fault : std::string()));
    CHECK_THAT(names(naming), ContainsSubstring(name));
    if (!naming.causes.empty()) CHECK_THAT(naming.causes[0].meaning, ContainsSubstring("the backward pass"));
  }
  kda::GradientTensors got = wrong_gradients(problem, {}, chunk_size);
  Tensor& dk = *std::ranges::find(got, "dk", &Tensor::name);
  for (std::size_t i = 0; i < dk.size(); ++i) dk.set(i, 0.7 * dk.value(i));
  const hypotheses::Naming naming = named(got);
  CHECK(names(naming) == "factor");
  if (!naming.causes.empty()) CHECK(naming.causes[0].meaning == "dk is 0.7 of what it should be");
}

TEST_CASE("a backward pass of inputs in another order, or with other bounds, is named",
          "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  const std::vector<kda::Problem> problems = problems_with_loss();
  const kda::Problem &packed = problems[2], &batch = problems[3];
  const auto picked = [](Tensor& tensor, std::size_t axis, std::vector<std::size_t> indices) {
    tensor = tensor::picked(tensor, axis, indices);
  };
  const struct {
    const char* name;
    const kda::Problem& problem;
    std::function<void(kda::Problem&)> change;
  } cases[] = {
      {"do_of_mirrored_head", packed,
       [&](kda::Problem& p) {
         picked(*p.output_gradient, 2, {5, 4, 3, 2, 1, 0});
       }},
      {"do_of_first_batch_row", batch,
       [&](kda::Problem& p) {
         picked(*p.output_gradient, 0, {0, 0, 0});
       }},
      {"do_of_last_batch_row", batch,
       [&](kda::Problem& p) {
         picked(*p.output_gradient, 0, {2, 0, 1});
       }},
      {"state_gradient_of_mirrored_sequence", packed,
       [&](kda::Problem& p) {
         picked(*p.state_gradient, 0, {2, 1, 0});
       }},
      {"initial_of_next_head", packed,
       [&](kda::Problem& p) {
         picked(*p.initial_state, 1, {1, 2, 3, 4, 5, 0});
       }},
      {"sequence_late", packed, [](kda::Problem& p) { ++p.cu_seqlens[1], ++p.cu_seqlens[2]; }},
      {"sequence_early", packed, [](kda::Problem& p) { --p.cu_seqlens[1], --p.cu_seqlens[2]; }},
  };
  for (const auto& [name, problem, change] : cases) {
    kda::Problem other = kda::clone(problem);
    change(other);
    kda::RunOptions options;
    options.dtype = DType::fp32, options.chunk_size = chunk_size;
    const hypotheses::Naming naming = hypotheses::name_gradient_fault(
        problem, failed(kda::run_chunk_backward(other, options)), {}, chunk_size, 2);
    CHECK_THAT(names(naming), ContainsSubstring(name));
  }
}

TEST_CASE("a rounding that does all that a missing factor does is named first", "[hypotheses][naming]") {
  kda::Problem problem = problem_of({});
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, -1e-3);
  CHECK(names(probed(problem, mutant(problem, "decay_in_bf16"))) == "decay_in_bf16 gate_missing");
}

TEST_CASE("a fault of the gradients of a large problem is named from a part of it", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  test::Sampled sample(128);
  INFO(sample.text());
  for (const hypotheses::GradientFault& fault : hypotheses::gradient_faults()) {
    if (!sample.next()) continue;
    for (const bool is_long : {false, true}) {
      test::ProblemSpec spec;
      spec.T = is_long ? 1590 : 800, spec.H = spec.HV = is_long ? 1 : 2, spec.K = spec.V = 64;
      spec.gate = Gate::softplus, spec.qk_l2norm = true, spec.beta_sigmoid = true;
      kda::Problem problem = test::make_problem(spec, 7);
      const hypotheses::GradientReading reading = fault.reading();
      const bool is_of_sums = reading.amplitude != nullptr || reading.bias != nullptr ||
                              reading.counts_for_amplitude != nullptr || reading.counts_for_bias != nullptr ||
                              reading.amplitude_of_group || reading.bias_of_heads || reading.bias_by_channel;
      const bool begins_before =  // the part
          (is_long && reading.states_from_zero) || reading.states != hypotheses::StateOf::own;
      if (!fault.applies(problem) || reading.is_of_others() || is_of_sums || begins_before) continue;
      for (std::size_t h = 0; h < spec.H; ++h) problem.A_log->set(h, -3);  // states reach far
      test::Random random(8);
      problem.output_gradient = problem.v.clone();
      problem.state_gradient = problem.initial_state->clone();
      for (Tensor* const tensor : {&*problem.output_gradient, &*problem.state_gradient})
        for (std::size_t i = 0; i < tensor->size(); ++i) tensor->set(i, random.normal());
      const kda::GradientTensors got = wrong_gradients(problem, fault.reading(), chunk_size);
      const hypotheses::Naming naming =
          hypotheses::name_gradient_fault(problem, failed(got), {0, spec.H - 1}, chunk_size, 2);
      INFO(fault.name << ' ' << is_long
                      << (naming.nearest ? "nearest " + naming.nearest->fault : " nothing near"));
      if (reading.late)  // the first token of the part has what is before it
        CHECK((naming.nearest && naming.nearest->fault == fault.name));
      else
        CHECK(std::ranges::find(naming.causes, fault.name, &hypotheses::Cause::fault) != naming.causes.end());
    }
  }
}

}  // namespace naming_tests
