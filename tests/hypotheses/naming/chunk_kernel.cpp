#include <array>
#include <cmath>

#include "hypotheses/naming/kernels.hpp"

namespace naming_tests {

namespace {

/// Each chunk of 64 of each sequence, and where it begins.
std::vector<std::pair<kda::Sequence, std::size_t>> chunks_of(const kda::Problem& p) {
  std::vector<std::pair<kda::Sequence, std::size_t>> chunks;
  for (const kda::Sequence& s : p.sequences())
    for (std::size_t at = s.begin; at < s.end; at += 64) chunks.emplace_back(s, at);
  return chunks;
}

}  // namespace

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
    return is((name + "_decay_of_first_tile").c_str())      ? x % 32
           : is((name + "_decay_of_first_channel").c_str()) ? 0
                                                            : x;
  };
  const auto has_less = [&](const std::string& name) { return is((name + "_gate_less").c_str()); };
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
      return x % 32 == x && mistake.find("decay_of_first_") != std::string::npos ? std::exp(G[i][x] - G[j][x])
                                                                                 : own;
    };
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t x = 0; x < d.K; ++x) {
          if (j > i && !is("scores_unmasked") && !(is("scores_of_next") && j == i + 1)) continue;
          double D = is("exp2_within") ? std::exp2(G[i][x] - G[j][x]) : std::exp(G[i][x] - G[j][x]);
          const std::size_t first = i - i % 16;
          if (is("undecayed_pairs_lost") && j < i && j % 2 < i % 2 && G[i] == G[j]) D = 0;
          if (is("anchors_apart") && first > j) D /= std::exp(p.g.value((at + first) * d.K + x));
          const auto less = [&](const char* name) {  // of one gate
            return has_less(name) && i > j ? std::exp(-p.g.value((at + i) * d.K + x)) : 1;
          };
          const double own = is("scores_unscaled") ? 1 : is("scores_scaled_twice") ? scale * scale : scale;
          scores[i][j] += own * q(i, x) * k(j, x) *
                          (scores_undecayed[x / 32]
                               ? 1
                               : in_base("scores", between(i, j, of_decay("scores", x), D) * less("scores")));
          if (j < i)
            L[i][j] +=
                (is("L_without_beta") ? 1 : beta(is("column_beta") ? j : i)) *
                (is("L_scaled_twice") ? scale : 1) * k(i, x) * k(j, x) *
                (L_undecayed[x / 32] ? 1 : in_base("L", between(i, j, of_decay("L", x), D) * less("L")));
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
    if (is("inverse_last_row")) {  // X = D (I - N X): D the blocks on the diagonal, N what L has beside them
      Rows D = zeros(n, n);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = i - i % 16; j <= i; ++j) D[i][j] = i % 16 == 15 && j < i ? -L[i][j] : A[i][j];
      for (std::size_t pass = 0; pass < 4; ++pass) {
        Rows rest = zeros(n, n), next = rest;
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < n; ++j) {
            rest[i][j] = i == j ? 1 : 0;
            for (std::size_t m = 0; m < i - i % 16; ++m) rest[i][j] -= pass > 0 ? L[i][m] * A[m][j] : 0;
          }
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < n; ++j)
            for (std::size_t m = 0; m < n; ++m) next[i][j] += D[i][m] * rest[m][j];
        A = next;
      }
    }
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
                     (w_undecayed[x / 32] || is("w_decayed_behind")
                          ? 1
                          : in_base("w", j == 0 && has_less("w") ? 1 : across(G[j - has_less("w")][of])));
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
        const std::size_t by = is("carry_by_column") ? v : of_decay("carry", x), of = of_decay("writes", x);
        after[x][v] = (carry_undecayed[x / 32]
                           ? 1
                           : in_base("carry", across((has_less("carry") && n > 1 ? G[n - 2] : Gn)[by]))) *
                      S[x][v];
        for (std::size_t i = 0; i < n; ++i)
          after[x][v] +=
              k(i, x) *
              (writes_undecayed[x / 32]
                   ? 1
                   : in_base("writes", across(Gn[of] - G[std::min(i + has_less("writes"), n - 1)][of]))) *
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
              readout_undecayed[x / 32]
                  ? 1
                  : in_base("readout", i == 0 && has_less("readout")
                                           ? 1
                                           : across(G[i - has_less("readout")][of_decay("readout", x)]));
          if (!(is("first_chunk_alone") && at == s.begin))
            o += (is("readout_unscaled")       ? 1
                  : is("readout_scaled_twice") ? scale * scale
                                               : scale) *
                 q(i, x) * D * (is("carried_state_transposed") ? h[v][x] : h[x][v]);
        }
        for (std::size_t j = 0; j < n && !(is("tail_without_scores") && n < 64); ++j)
          o += scores[i][j] * (is("output_unerased") ? u : v_new)[j][v];
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

}  // namespace naming_tests
