#include <array>
#include <cmath>
#include <numeric>

#include "hypotheses/naming/kernels.hpp"
#include "support/random.hpp"

namespace naming_tests {

kda::Problem problem_of(const Case& c, std::uint64_t seed) {
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
              "dt_bias_of_query_head",
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
              "A_log_of_query_head", "dt_bias_of_query_head", "initial_state_of_query_head",
              "initial_state_interleaved", "initial_state_of_next_head"}))
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

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// To so many bits, ties to even.
double to_bits(double x, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

}  // namespace

kda::Answer mutant(const kda::Problem& p, const std::string& mistake, DType dtype, std::size_t place) {
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
                                                       : (is("dt_bias_of_first_head")   ? 0
                                                          : is("dt_bias_of_query_head") ? h * d.H / d.HV
                                                                                        : h) *
                                                                 d.K +
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
            prediction += (is("prediction_of_query")       ? q[i] / scale
                           : is("prediction_of_other_row") ? unit_row(p.k, key - t / 64 * 64 * d.H * d.K, i)
                           : is("prediction_of_raw_key")   ? p.k.value(key + i)
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
            S[i][v] += (is("write_of_query") ? q[i] / scale : k[i]) * update *
                       (is("write_decayed")    ? a[i]
                        : is("write_by_decay") ? 1 - a[i]
                                               : 1);
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

hypotheses::Naming probed(const kda::Problem& problem, const kda::Answer& answer,
                          const hypotheses::FailurePlace& place) {
  const bool bf16 = answer.o.dtype() == DType::bf16;
  return hypotheses::name_fault(problem, {&answer.o, &answer.final_state, bf16 ? 0.0117 : 2e-6, 2e-6}, place,
                                2);
}

std::string names(const hypotheses::Naming& finding) {
  std::string text;
  for (const hypotheses::Cause& match : finding.causes) text += (text.empty() ? "" : " ") + match.fault;
  return text;
}

double relative_error(const Tensor& got, const Tensor& right) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got.value(i) - right.value(i)) * (got.value(i) - right.value(i));
    size += right.value(i) * right.value(i);
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}

}  // namespace naming_tests
