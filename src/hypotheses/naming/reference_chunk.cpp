#include "hypotheses/naming/reference_chunk.hpp"

#include <algorithm>
#include <cmath>

#include "numeric/elementary.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::hypotheses::plain {

namespace {

Matrix rows_of(const Matrix& from, std::size_t begin, std::size_t count) {
  Matrix part(count, from.columns());
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < from.columns(); ++j) part(i, j) = from(begin + i, j);
  return part;
}

void put_rows(const Matrix& part, std::size_t begin, Matrix& into) {
  for (std::size_t i = 0; i < part.rows(); ++i)
    for (std::size_t j = 0; j < part.columns(); ++j) into(begin + i, j) = part(i, j);
}

Matrix transposed(const Matrix& a) {
  Matrix result(a.columns(), a.rows());
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) result(j, i) = a(i, j);
  return result;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result(a.rows(), b.columns());
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t l = 0; l < a.columns(); ++l)
      for (std::size_t j = 0; j < b.columns(); ++j) result(i, j) += a(i, l) * b(l, j);
  return result;
}

/// factor(i, j) a(i, j)
template <class Factor>
Matrix weighted(Matrix a, Factor factor) {
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) *= factor(i, j);
  return a;
}

/// a + factor b
void add(Matrix& a, const Matrix& b, double factor = 1) {
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) += factor * b(i, j);
}

/// a below the diagonal, and on it if asked.
Matrix lower(const Matrix& a, bool diagonal) {
  return weighted(a, [&](std::size_t i, std::size_t j) { return j < i || (diagonal && j == i) ? 1.0 : 0.0; });
}

/// The rows of one chunk and what the forward pass makes of them.
struct Chunk {
  std::size_t begin = 0, n = 0, K = 0;
  ChunkFault fault = ChunkFault::none;
  std::size_t at = 0;  ///< of inverse_products
  Matrix q, k, v, d_o, G;
  std::vector<double> carry;  ///< sums of log decays that the gradient of the state decays by
  std::vector<double> beta;
  Matrix L, A, Aqk;            ///< A = (I + L)^-1; scores with scale
  Matrix raised;               ///< k exp(G)
  Matrix lowered;              ///< k exp(G_n - G)
  Matrix w, v_new, h;          ///< h enters the chunk
  std::vector<double> decays;  ///< [n][n][K], of rows from rows before them

  /// exp(G_i - G_j); from row to row it is a product, as an exponential of each pair takes too long.
  double between(std::size_t i, std::size_t j, std::size_t c) const {
    return j <= i ? decays[(i * n + j) * K + c] : numeric::exp(G(i, c) - G(j, c));
  }
  void multiply_decays() {
    decays.assign(n * n * K, 1.0);
    std::vector<double> step(K);
    for (std::size_t i = 1; i < n; ++i) {
      for (std::size_t x = 0; x < K; ++x) {
        const double gate = G(i, x) - G(i - 1, x);
        step[x] = fault == ChunkFault::exp2_within ? numeric::exp2(gate) : numeric::exp(gate);
      }
      for (std::size_t j = 0; j < i; ++j)
        for (std::size_t x = 0; x < K; ++x)
          decays[(i * n + j) * K + x] = decays[((i - 1) * n + j) * K + x] * step[x];
    }
    if (fault == ChunkFault::anchors_apart) part_anchors();
  }
  double to_end(std::size_t i, std::size_t c) const { return across(G(n - 1, c) - G(i, c)); }
  double from_start(std::size_t i, std::size_t c) const { return across(G(i, c)); }

 private:
  void part_anchors() {
    constexpr std::size_t side = 16;
    for (std::size_t i = side; i < n; ++i) {
      const std::size_t first = i / side * side;
      for (std::size_t x = 0; x < K; ++x) {
        const double undone = numeric::exp(G(first - 1, x) - G(first, x));
        for (std::size_t j = 0; j < first; ++j) decays[(i * n + j) * K + x] *= undone;
      }
    }
  }
  double across(double sum) const {
    return fault == ChunkFault::exp2_across ? numeric::exp2(sum) : numeric::exp(sum);
  }
};

Chunk loaded(const Head& head, std::size_t begin, std::size_t n, ChunkFault fault = ChunkFault::none,
             std::size_t at = 0) {
  Chunk c;
  c.begin = begin, c.n = n, c.K = head.k.columns(), c.fault = fault, c.at = at;
  c.q = rows_of(head.q, begin, n), c.k = rows_of(head.k, begin, n), c.v = rows_of(head.v, begin, n);
  if (head.d_o.rows() > 0) c.d_o = rows_of(head.d_o, begin, n);
  c.G = rows_of(head.g, begin, n);
  for (std::size_t i = 1; i < n; ++i)
    for (std::size_t x = 0; x < c.K; ++x) c.G(i, x) += c.G(i - 1, x);
  c.multiply_decays();
  c.carry.assign(c.K, 0.0);
  const Matrix& carried_by = head.carried_by.rows() > 0 ? head.carried_by : head.g;
  for (std::size_t i = begin; i < begin + n; ++i)
    for (std::size_t x = 0; x < c.K; ++x) c.carry[x] += carried_by(i, x);
  c.beta.assign(head.beta.begin() + static_cast<std::ptrdiff_t>(begin),
                head.beta.begin() + static_cast<std::ptrdiff_t>(begin + n));
  return c;
}

/// I - L + L^2 - ... of so many terms.
Matrix series(const Matrix& L, std::size_t terms) {
  Matrix sum(L.rows(), L.rows());
  for (std::size_t term = 0; term < terms; ++term) {
    sum = weighted(product(L, sum), [](std::size_t, std::size_t) { return -1.0; });
    for (std::size_t i = 0; i < L.rows(); ++i) sum(i, i) += 1;
  }
  return sum;
}

/// A(row, column) = -A(row, row) sum_m L(row, m) A(m, column), without one of the products.
void lose_product(Chunk& c, const InverseProduct& lost) {
  constexpr std::size_t side = 16;
  if (c.n < 4 * side) return;
  const auto block = [&](const Matrix& of, std::size_t row, std::size_t column) {
    Matrix part(side, side);
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t j = 0; j < side; ++j) part(i, j) = of(row * side + i, column * side + j);
    return part;
  };
  const Matrix missing = product(block(c.A, lost.row, lost.row),
                                 product(block(c.L, lost.row, lost.m), block(c.A, lost.m, lost.column)));
  for (std::size_t i = 0; i < side; ++i)
    for (std::size_t j = 0; j < side; ++j) c.A(lost.row * side + i, lost.column * side + j) += missing(i, j);
}

Matrix faulty_inverse(Chunk& c) {
  switch (c.fault) {
    case ChunkFault::inverse_missing:
      return series(c.L, 1);
    case ChunkFault::inverse_series_2:
      return series(c.L, 2);
    case ChunkFault::inverse_series_4:
      return series(c.L, 4);
    case ChunkFault::inverse_series_8:
      return series(c.L, 8);
    case ChunkFault::inverse_series_16:
      return series(c.L, 16);
    case ChunkFault::inverse_transposed:
      return transposed(c.A);
    case ChunkFault::inverse_product:
      lose_product(c, inverse_products[c.at]);
      break;
    default:
      break;
  }
  return std::move(c.A);
}

/// Aqk, and A by substitution: row i of the inverse is e_i - sum_j<i L_ij (row j).
void score(Chunk& c, double scale) {
  c.L = c.A = c.Aqk = Matrix(c.n, c.n);
  for (std::size_t i = 0; i < c.n; ++i) {
    c.A(i, i) = 1;
    for (std::size_t j = 0; j <= i; ++j) {
      double qk = 0, kk = 0;
      for (std::size_t x = 0; x < c.K; ++x) {
        const double k = c.k(j, x) * c.between(i, j, x);
        qk += c.q(i, x) * (c.fault == ChunkFault::scores_undecayed ? c.k(j, x) : k);
        kk += c.k(i, x) * (c.fault == ChunkFault::L_undecayed ? c.k(j, x) : k);
      }
      c.Aqk(i, j) = (c.fault == ChunkFault::scores_unscaled ? 1 : scale) * qk;
      if (j == i) continue;
      c.L(i, j) = c.beta[c.fault == ChunkFault::column_beta ? j : i] * kk;
      for (std::size_t m = 0; m <= j; ++m) c.A(i, m) -= c.L(i, j) * c.A(j, m);
    }
    for (std::size_t j = i + 1; c.fault == ChunkFault::scores_unmasked && j < c.n; ++j)
      for (std::size_t x = 0; x < c.K; ++x) c.Aqk(i, j) += scale * c.q(i, x) * c.k(j, x) * c.between(i, j, x);
  }
  c.A = faulty_inverse(c);
}

/// The state after the chunk.
Matrix forwards(Chunk& c, const Head& head, const Matrix& state) {
  const auto beta = [&](std::size_t i, std::size_t) { return c.beta[i]; };
  const auto beta_of_w = [&](std::size_t i, std::size_t) {
    return c.fault == ChunkFault::w_without_beta ? 1 : c.beta[i];
  };
  score(c, head.scale);
  c.h = state;
  c.raised = weighted(c.k, [&](std::size_t i, std::size_t x) { return c.from_start(i, x); });
  c.lowered = weighted(c.k, [&](std::size_t i, std::size_t x) { return c.to_end(i, x); });
  c.w = product(c.A, weighted(c.fault == ChunkFault::w_undecayed ? c.k : c.raised, beta_of_w));
  const Matrix u = product(c.A, weighted(c.v, beta));
  c.v_new = u;
  add(c.v_new, product(c.w, state), -1);
  Matrix after = weighted(state, [&](std::size_t x, std::size_t) { return c.from_start(c.n - 1, x); });
  add(after, product(transposed(c.lowered), c.fault == ChunkFault::writes_unerased ? u : c.v_new));
  if (c.fault == ChunkFault::output_unerased) c.v_new = u;
  return after;
}

/// o = scale q exp(G) h + Aqk v_new
Matrix output(const Chunk& c, const Matrix& h, double scale) {
  const Matrix raised = weighted(c.q, [&](std::size_t i, std::size_t x) {
    return c.fault == ChunkFault::query_undecayed ? 1 : c.from_start(i, x);
  });
  Matrix o = product(c.Aqk, c.v_new);
  add(o, product(raised, h), c.fault == ChunkFault::state_unscaled ? 1 : scale);
  return o;
}

/// Backwards through one chunk, from the gradient of the state that leaves it.
class ChunkGradient {
 public:
  ChunkGradient(const Chunk& chunk, double scale, std::size_t chunk_size, BackwardFault fault,
                const Matrix& leaving)
      : c_(chunk), scale_(scale), chunk_size_(chunk_size), fault_(fault), dh_(leaving), G_(c_.n, c_.K) {}

  /// Returns the gradient of the state that enters it.
  Matrix run(HeadGradient& into) {
    // B1
    const double scale = fault_ == BackwardFault::unscaled_scores ? 1 : scale_;
    dAqk_ = weighted(lower(product(c_.d_o, transposed(c_.v_new)), true),
                     [&](std::size_t, std::size_t) { return scale; });
    Matrix dv = product(transposed(lower(c_.Aqk, fault_ != BackwardFault::local_masked)), c_.d_o);
    // B2
    add(dv, product(c_.lowered, dh_));
    Matrix entering = weighted(dh_, [&](std::size_t x, std::size_t) { return numeric::exp(c_.carry[x]); });
    const Matrix raised_q = weighted(c_.q, [&](std::size_t i, std::size_t x) { return c_.from_start(i, x); });
    add(entering, product(transposed(raised_q), c_.d_o), scale_);
    add(entering, product(transposed(c_.w), dv), -1);

    through_state(dv);
    within();
    for (std::size_t i = c_.n - 1; i-- > 0 && fault_ != BackwardFault::not_cumulated;)  // B5
      for (std::size_t x = 0; x < c_.K; ++x) G_(i, x) += G_(i + 1, x);
    if (fault_ == BackwardFault::query_state_lost) add(q_, of_state_, -1);
    put_rows(q_, c_.begin, into.q), put_rows(k_, c_.begin, into.k), put_rows(v_, c_.begin, into.v);
    put_rows(G_, c_.begin, into.g);
    std::copy(beta_.begin(), beta_.end(), into.beta.begin() + static_cast<std::ptrdiff_t>(c_.begin));
    return entering;
  }

 private:
  /// What one product adds to another's opposite: a - b.
  double difference(double a, double b) const {
    if (fault_ != BackwardFault::early_rounding) return a - b;
    const auto rounded = [](double x) {
      return static_cast<double>(numeric::through_bf16(static_cast<float>(x)));
    };
    return rounded(a) - rounded(b);
  }

  /// B3
  void through_state(const Matrix& dv) {
    q_ = weighted(product(c_.d_o, transposed(c_.h)),
                  [&](std::size_t i, std::size_t x) { return scale_ * c_.from_start(i, x); });
    of_state_ = q_;
    const Matrix written = product(c_.v_new, transposed(dh_));
    const bool is_lost = fault_ == BackwardFault::tail_decay_lost && c_.n < chunk_size_;
    k_ = weighted(written, [&](std::size_t i, std::size_t x) {
      return is_lost ? numeric::exp(-c_.G(i, x)) : c_.to_end(i, x);
    });
    const Matrix dw = weighted(product(dv, transposed(c_.h)), [](std::size_t, std::size_t) { return -1.0; });
    Matrix dA = product(dv, transposed(c_.v));
    add(dA, product(dw, transposed(c_.raised)));
    dA = lower(weighted(dA, [&](std::size_t, std::size_t j) { return c_.beta[j]; }), false);
    const Matrix At = transposed(c_.A), dvb = product(At, dv), dkb = product(At, dw);
    const auto beta = [&](std::size_t i, std::size_t) { return c_.beta[i]; };
    v_ = weighted(dvb, beta);
    if (fault_ == BackwardFault::value_masked) {
      const auto own = [&](std::size_t i, std::size_t) { return c_.Aqk(i, i); };
      add(v_, weighted(product(At, weighted(c_.d_o, own)), beta), -1);
    }
    beta_.assign(c_.n, 0.0);
    const std::size_t last =
        fault_ == BackwardFault::last_row_of_tile ? chunk_size_ - 1 : c_.n - 1;  // dgn is lost beyond n
    for (std::size_t i = 0; i < c_.n; ++i) {
      for (std::size_t y = 0; y < dvb.columns(); ++y) beta_[i] += dvb(i, y) * c_.v(i, y);
      for (std::size_t x = 0; x < c_.K; ++x) {
        if (fault_ != BackwardFault::erase_lost) beta_[i] += dkb(i, x) * c_.raised(i, x);
        const double of_key = c_.beta[i] * c_.from_start(i, x) * dkb(i, x);
        G_(i, x) += difference(c_.q(i, x) * q_(i, x), c_.k(i, x) * k_(i, x)) + c_.k(i, x) * of_key;
        if (last < c_.n) G_(last, x) += c_.k(i, x) * c_.to_end(i, x) * written(i, x);
        if (fault_ != BackwardFault::key_prediction_lost) k_(i, x) += of_key;
      }
    }
    for (std::size_t x = 0; x < c_.K; ++x)
      for (std::size_t y = 0; y < c_.h.columns(); ++y)
        if (last < c_.n) G_(last, x) += c_.from_start(c_.n - 1, x) * c_.h(x, y) * dh_(x, y);
    const Matrix& side = fault_ == BackwardFault::not_transposed ? c_.A : At;
    dL_ = weighted(lower(product(product(side, dA), side), fault_ == BackwardFault::inclusive_mask),
                   [](std::size_t, std::size_t) { return -1.0; });
  }

  /// B4
  void within() {
    for (std::size_t i = 0; i < c_.n; ++i)
      for (std::size_t x = 0; x < c_.K; ++x) {
        double of_query = 0, row = 0, column = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          const double key = c_.k(j, x) * c_.between(i, j, x);
          of_query += dAqk_(i, j) * key;
          row += dL_(i, j) * key;
        }
        for (std::size_t j = i; j < c_.n; ++j)
          column += (dAqk_(j, i) * c_.q(j, x) + dL_(j, i) * c_.beta[j] * c_.k(j, x)) * c_.between(j, i, x);
        if (fault_ != BackwardFault::erase_lost) beta_[i] += row * c_.k(i, x);
        row *= c_.beta[i];
        q_(i, x) += of_query;
        k_(i, x) += column;
        if (fault_ != BackwardFault::key_prediction_lost) k_(i, x) += row;
        G_(i, x) += difference(c_.q(i, x) * of_query + c_.k(i, x) * row, c_.k(i, x) * column);
      }
  }

  const Chunk& c_;
  const double scale_;
  const std::size_t chunk_size_;
  const BackwardFault fault_;
  const Matrix& dh_;
  Matrix dAqk_, dL_, q_, k_, v_, G_;
  Matrix of_state_;  ///< of q_, what the state before the chunk adds
  std::vector<double> beta_;
};

}  // namespace

HeadAnswer chunk_answer(const Head& head, std::size_t chunk_size, std::size_t first_row, ChunkFault fault,
                        std::size_t at) {
  const std::size_t tokens = head.k.rows();
  HeadAnswer answer{Matrix(tokens, head.v.columns()), head.state};
  Matrix before = head.state;  // what entered the chunk before
  for (std::size_t begin = 0, end; begin < tokens; begin = end) {
    end = std::min(tokens, begin + chunk_size - (begin == 0 ? first_row % chunk_size : 0));
    Chunk chunk = loaded(head, begin, end - begin, fault, at);
    const Matrix entering = answer.state;
    answer.state = forwards(chunk, head, entering);
    const Matrix& h = fault == ChunkFault::state_of_before  ? before
                      : fault == ChunkFault::state_of_after ? answer.state
                                                            : entering;
    put_rows(output(chunk, h, head.scale), begin, answer.o);
    before = entering;
  }
  return answer;
}

HeadGradient chunk_gradient(const Head& head, std::size_t chunk_size, BackwardFault fault) {
  const std::size_t tokens = head.k.rows(), K = head.k.columns(), V = head.v.columns();
  std::vector<Chunk> chunks;
  Matrix state = head.state;
  for (std::size_t begin = 0; begin < tokens; begin += chunk_size) {
    chunks.push_back(loaded(head, begin, std::min(chunk_size, tokens - begin)));
    state = forwards(chunks.back(), head, state);
  }
  HeadGradient gradient{Matrix(tokens, K), Matrix(tokens, K), Matrix(tokens, V),
                        Matrix(tokens, K), head.d_state,      std::vector<double>(tokens)};
  for (std::size_t i = chunks.size(); i-- > 0;) {
    const Matrix leaving = gradient.state;
    gradient.state = ChunkGradient(chunks[i], head.scale, chunk_size, fault, leaving).run(gradient);
    if (fault == BackwardFault::chunks_apart && i > 0) gradient.state = Matrix(K, V);
    if (fault == BackwardFault::early_initial && i == 0) gradient.state = leaving;
  }
  if (fault == BackwardFault::first_token)
    for (std::size_t x = 0; tokens > 0 && x < K; ++x) gradient.g(0, x) = 0;
  return gradient;
}

}  // namespace kda_check::hypotheses::plain
