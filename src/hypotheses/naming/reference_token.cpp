// The backward pass token by token, in fp64 loops, with bugs to switch on (docs/kda.md, "Backward").
#include <algorithm>
#include <vector>

#include "hypotheses/naming/reference_chunk.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses::plain {

namespace {

/// Of one token: the state before its decay, before its update and behind it, and what is written.
struct Kept {
  Matrix before, decayed, behind;
  std::vector<double> error;

  const Matrix& at(StateAt which) const {
    return which == StateAt::behind ? behind : which == StateAt::decayed ? decayed : before;
  }
};

/// a^T x
std::vector<double> along_rows(const Matrix& a, const double* x) {
  std::vector<double> sums(a.columns(), 0.0);
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) sums[j] += x[i] * a(i, j);
  return sums;
}
/// a x, times a factor, added to `to`.
void add_along_columns(const Matrix& a, const double* x, double factor, double* to) {
  for (std::size_t i = 0; i < a.rows(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < a.columns(); ++j) sum += a(i, j) * x[j];
    to[i] += factor * sum;
  }
}
/// factor x y^T is added.
void add_outer(Matrix& a, double factor, const double* x, const double* y) {
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) += factor * x[i] * y[j];
}
void decay(Matrix& a, const Matrix& g, std::size_t token) {
  for (std::size_t i = 0; i < a.rows(); ++i) {
    const double by = numeric::exp(g(token, i));
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) *= by;
  }
}

std::vector<Kept> kept_states(const Head& head, const TokenReading& reading) {
  std::vector<Kept> all;
  Matrix state = head.state;
  for (std::size_t t = 0; t < head.k.rows(); ++t) {
    Kept& one = all.emplace_back();
    one.before = state;
    decay(state, head.g, t);
    one.decayed = state;
    one.error = along_rows(state, head.k.row(t));
    for (std::size_t j = 0; j < one.error.size(); ++j) one.error[j] = head.v(t, j) - one.error[j];
    add_outer(state, head.beta[t], head.k.row(t), one.error.data());
    one.behind = state = applied(std::move(state), reading.round_states);
  }
  return all;
}

}  // namespace

HeadGradient token_gradient(const Head& head, const TokenReading& reading, const Matrix& d_state) {
  const std::size_t tokens = head.k.rows(), K = head.k.columns(), V = head.v.columns();
  const std::vector<Kept> kept = kept_states(head, reading);
  HeadGradient gradient{Matrix(tokens, K), Matrix(tokens, K), Matrix(tokens, V),
                        Matrix(tokens, K), d_state,           std::vector<double>(tokens)};
  for (std::size_t t = tokens; t-- > 0;) {
    const Kept& now = kept[t];
    const double* const d_o = head.d_o.row(t);
    const double beta = head.beta[t];
    add_along_columns(now.at(reading.query), d_o, head.scale, gradient.q.row(t));
    const Matrix behind = gradient.state;
    Matrix& D = gradient.state;
    add_outer(D, head.scale, head.q.row(t), d_o);
    const Matrix own = D;
    const std::vector<double> along = along_rows(D, head.k.row(t));
    for (std::size_t j = 0; j < V; ++j)
      gradient.beta[t] += along[j] * now.error[j], gradient.v(t, j) = beta * along[j];
    Matrix erased = D;
    if (!reading.never_erased) add_outer(erased, -1, head.k.row(t), gradient.v.row(t));
    const auto at = [&](GradientAt which) -> const Matrix& {
      return which == GradientAt::own ? own : which == GradientAt::behind ? behind : erased;
    };
    if (!reading.write_lost)
      add_along_columns(at(reading.write), now.error.data(), reading.write_unweighted ? 1 : beta,
                        gradient.k.row(t));
    add_along_columns(now.at(reading.key), gradient.v.row(t), -1, gradient.k.row(t));
    for (std::size_t i = 0; i < K; ++i)
      for (std::size_t j = 0; j < V; ++j)
        gradient.g(t, i) += at(reading.of_gate)(i, j) * now.at(reading.gate)(i, j);
    D = std::move(erased);
    const std::ptrdiff_t by = static_cast<std::ptrdiff_t>(t) + reading.decay_of;
    decay(D, head.g, static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(by, 0, std::ssize(kept) - 1)));
    D = applied(std::move(D), reading.round);
  }
  return gradient;
}

}  // namespace kda_check::hypotheses::plain
