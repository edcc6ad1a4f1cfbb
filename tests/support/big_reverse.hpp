// The gradients at 200 bits: the reverse of the recurrence, one number at a time (docs/kda.md, "Backward").
#pragma once

#include <array>

#include "kda/problem/gradients.hpp"
#include "support/big_recurrence.hpp"

namespace kda_check::test {

class BigReverse {
 public:
  explicit BigReverse(const kda::Problem& problem)
      : p_(problem), d_(problem.dimensions()), forward_(problem) {
    for (const kda::GradientRow& row : kda::gradients())
      if (kda::has_gradient(problem, row.gradient))
        of(row.gradient)
            .resize(tensor::element_count(
                kda::expected_shape(*kda::find_spec(row.name), d_, problem.options.state_v_first)));
    for (const kda::Sequence& s : problem.sequences())
      for (std::size_t head = 0; head < d_.HV; ++head) run(s, head);
    if (problem.options.qk_l2norm) {
      through_norm(problem.q, of(kda::Gradient::dq));
      through_norm(problem.k, of(kda::Gradient::dk));
    }
  }
  std::vector<Big>& of(kda::Gradient gradient) { return gradients_[static_cast<std::size_t>(gradient)]; }

 private:
  using Matrix = std::vector<std::vector<Big>>;
  struct Token {
    Matrix P, S;
    std::vector<Big> q, k, decay, e;
    Big beta;
  };

  Matrix state_of(const std::optional<tensor::Tensor>& tensor, const kda::Sequence& s,
                  std::size_t head) const {
    Matrix m(d_.K, std::vector<Big>(d_.V));
    for (std::size_t k = 0; tensor && k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) m[k][v] = Big(tensor->value(forward_.state_at(s, head, k, v)));
    return m;
  }

  std::vector<Token> replay(const kda::Sequence& s, std::size_t head) const {
    std::vector<Token> tokens;
    Matrix S = state_of(p_.initial_state, s, head);
    for (std::size_t t = s.begin; t < s.end; ++t) {
      Token token{S,  S,  forward_.row(p_.q, s, t, head), forward_.row(p_.k, s, t, head),
                  {}, {}, forward_.beta(s, t, head, 0)};
      for (std::size_t k = 0; k < d_.K; ++k) {
        token.decay.push_back(exp(forward_.log_decay(s, t, head, k)));
        for (Big& p : token.P[k]) p = token.decay[k] * p;
      }
      for (std::size_t v = 0; v < d_.V; ++v) {
        Big e(p_.v.value(((s.batch * d_.T + t) * d_.HV + head) * d_.V + v));
        for (std::size_t k = 0; k < d_.K; ++k) e = e - token.k[k] * token.P[k][v];
        for (std::size_t k = 0; k < d_.K; ++k) token.S[k][v] = token.P[k][v] + token.k[k] * (token.beta * e);
        token.e.push_back(e);
      }
      S = token.S;
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  void run(const kda::Sequence& s, std::size_t head) {
    const std::vector<Token> tokens = replay(s, head);
    Matrix D = state_of(p_.state_gradient, s, head);
    for (std::size_t t = s.end; t-- > s.begin;) reverse(tokens[t - s.begin], s, t, head, D);
    if (!p_.initial_state) return;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v)
        of(kda::Gradient::dinitial_state)[forward_.state_at(s, head, k, v)] = D[k][v];
  }

  void reverse(const Token& token, const kda::Sequence& s, std::size_t t, std::size_t head, Matrix& D) {
    using kda::Gradient;
    const std::size_t at = (s.batch * d_.T + t) * d_.HV + head;
    const std::size_t row = (s.batch * d_.T + t) * d_.H + head / (d_.HV / d_.H);
    const Big scale(p_.scale());
    std::vector<Big> y(d_.V);
    Big dbeta(0.0);
    for (std::size_t v = 0; v < d_.V; ++v) {
      const Big incoming(p_.output_gradient ? p_.output_gradient->value(at * d_.V + v) : 0.0);
      Big r(0.0);
      for (std::size_t k = 0; k < d_.K; ++k) {
        Big& dq = of(Gradient::dq)[row * d_.K + k];
        dq = dq + scale * token.S[k][v] * incoming;
        D[k][v] = D[k][v] + scale * token.q[k] * incoming;
        r = r + D[k][v] * token.k[k];
      }
      dbeta = dbeta + r * token.e[v];
      y[v] = token.beta * r;
      of(Gradient::dv)[at * d_.V + v] = y[v];
    }
    of(Gradient::dbeta)[at] = through_sigmoid(dbeta, p_.beta.value(at));
    for (std::size_t k = 0; k < d_.K; ++k) {
      Big& dk = of(Gradient::dk)[row * d_.K + k];
      Big dg(0.0);
      for (std::size_t v = 0; v < d_.V; ++v) {
        dk = dk + D[k][v] * (token.beta * token.e[v]) - token.P[k][v] * y[v];
        const Big before = D[k][v] - token.k[k] * y[v];
        dg = dg + before * token.P[k][v];
        D[k][v] = token.decay[k] * before;
      }
      put_gate(dg, at * d_.K + k, head, k);
    }
  }

  Big through_sigmoid(const Big& dbeta, double stored) const {
    if (!p_.options.beta_sigmoid) return dbeta;
    const Big s = sigmoid(Big(stored));
    return dbeta * Big(p_.options.allow_neg_eigval ? 2.0 : 1.0) * s * (Big(1.0) - s);
  }

  void put_gate(const Big& dg, std::size_t at, std::size_t head, std::size_t k) {
    using kda::Gradient;
    of(Gradient::dg)[at] = dg;
    if (p_.options.gate == kda::Gate::none) return;
    const Big raw(p_.g.value(at));
    const Big y = p_.dt_bias ? raw + Big(p_.dt_bias->value(head * d_.K + k)) : raw;
    const Big a = p_.A_log ? exp(Big(p_.A_log->value(head))) : Big(1.0);
    Big dx, dA;
    if (p_.options.gate == kda::Gate::softplus) {
      dx = -(a * dg * sigmoid(y));
      dA = -(a * softplus(y)) * dg;
    } else {
      const Big s = sigmoid(a * y);
      dx = dg * Big(*p_.options.lower_bound) * s * (Big(1.0) - s) * a;
      dA = dx * y;
    }
    of(Gradient::dg)[at] = dx;
    const auto add = [](Big& sum, const Big& term) { sum = sum + term; };
    if (p_.A_log) add(of(Gradient::dA_log)[head], dA);
    if (p_.dt_bias) add(of(Gradient::ddt_bias)[head * d_.K + k], dx);
  }

  /// d(x_i / n) / dx_j = delta_ij / n - x_i x_j / n^3, with the whole Jacobian.
  void through_norm(const tensor::Tensor& stored, std::vector<Big>& gradient) const {
    for (std::size_t first = 0; first < gradient.size(); first += d_.K) {
      Big sum = Big(1.0) / Big(1e6);
      for (std::size_t k = 0; k < d_.K; ++k)
        sum = sum + Big(stored.value(first + k)) * Big(stored.value(first + k));
      const Big norm = sqrt(sum);
      std::vector<Big> dx(d_.K);
      for (std::size_t j = 0; j < d_.K; ++j)
        for (std::size_t i = 0; i < d_.K; ++i) {
          Big jacobian = -(Big(stored.value(first + i)) * Big(stored.value(first + j)) / (norm * sum));
          if (i == j) jacobian = jacobian + Big(1.0) / norm;
          dx[j] = dx[j] + gradient[first + i] * jacobian;
        }
      std::copy(dx.begin(), dx.end(), gradient.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }

  const kda::Problem& p_;
  const kda::Dimensions d_;
  const BigRecurrence forward_;
  std::array<std::vector<Big>, kda::gradient_count> gradients_;
};

}  // namespace kda_check::test
