#include "hypotheses/naming/reference_chunk.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "hypotheses/naming/moves.hpp"
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

/// a + factor b
void add(Matrix& a, const Matrix& b, double factor = 1) {
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) a(i, j) += factor * b(i, j);
}

/// a below the diagonal, and on it if asked.
Matrix lower(const Matrix& a, bool diagonal) {
  return weighted(a, [&](std::size_t i, std::size_t j) { return j < i || (diagonal && j == i) ? 1.0 : 0.0; });
}

/// What is no gate.
void move_inputs(Chunk& c) {
  c.q = c.moved("query", std::move(c.q)), c.k = c.moved("key", std::move(c.k));
  c.v = c.moved("value", std::move(c.v));
  Matrix beta(c.n, 1);
  for (std::size_t i = 0; i < c.n; ++i) beta(i, 0) = c.beta[i];
  c.beta = c.moved("beta", std::move(beta)).values();
}

/// `sums`: G of the row before, where it goes on.
Chunk loaded(const Head& head, std::size_t begin, std::size_t n, const Interpretation* reading = nullptr,
             const std::vector<double>& sums = {}, Moving* moving = nullptr) {
  Chunk c;
  c.begin = begin, c.n = n, c.K = head.k.columns(), c.scale = head.scale;
  c.reading = reading, c.moving = moving;
  for (std::size_t i = 0; i < n; ++i) c.beta.push_back(head.beta[begin + i]);
  c.q = rows_of(head.q, begin, n), c.k = rows_of(head.k, begin, n), c.v = rows_of(head.v, begin, n);
  c.G = c.moved("gate", rows_of(head.g, begin, n));
  for (std::size_t x = 0; x < sums.size(); ++x) c.G(0, x) += sums[x];
  c.sum_and_multiply_decays();
  move_inputs(c);
  if (head.d_o.rows() > 0) c.d_o = rows_of(head.d_o, begin, n);
  return c;
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
  // The blocks below are made of it.
  for (std::size_t row = lost.row + 1; row < 4; ++row) {
    Matrix sum(side, side);
    for (std::size_t m = lost.column; m < row; ++m)
      add(sum, product(block(c.L, row, m), block(c.A, m, lost.column)));
    const Matrix below = product(block(c.A, row, row), sum);
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t j = 0; j < side; ++j) c.A(row * side + i, lost.column * side + j) = -below(i, j);
  }
}

/// The last row of each block on the diagonal is not substituted; the blocks below are -A_ii L A of them.
Matrix inverse_without_last_rows(const Chunk& c) {
  constexpr std::size_t side = 16;
  Matrix A(c.n, c.n);
  for (std::size_t first = 0; first < c.n; first += side) {
    const std::size_t end = std::min(first + side, c.n);
    for (std::size_t i = first; i < end; ++i) {
      A(i, i) = 1;
      for (std::size_t j = first; j < i; ++j)
        for (std::size_t m = i + 1 == first + side ? j : first; m <= j; ++m)
          A(i, m) -= c.L(i, j) * (i + 1 == first + side ? 1 : A(j, m));
    }
    for (std::size_t column = 0; column < first; ++column) {
      std::vector<double> sums(end - first);
      for (std::size_t i = first; i < end; ++i)
        for (std::size_t m = column; m < first; ++m) sums[i - first] += c.L(i, m) * A(m, column);
      for (std::size_t i = first; i < end; ++i)
        for (std::size_t m = first; m <= i; ++m) A(i, column) -= A(i, m) * sums[m - first];
    }
  }
  return A;
}

Matrix faulty_inverse(Chunk& c) {
  switch (c.reading != nullptr ? c.reading->chunk_fault : ChunkFault::none) {
    case ChunkFault::inverse_series_2:
      return series(c.L, 2);
    case ChunkFault::inverse_series_4:
      return series(c.L, 4);
    case ChunkFault::inverse_series_8:
      return series(c.L, 8);
    case ChunkFault::inverse_series_16:
      return series(c.L, 16);
    case ChunkFault::inverse_last_row:
      return inverse_without_last_rows(c);
    case ChunkFault::inverse_product:
      lose_product(c, inverse_products[c.reading->block]);
      break;
    default:
      break;
  }
  return std::move(c.A);
}

/// By substitution: row i of the inverse is e_i - sum_j<i L_ij (row j).
Matrix inverse(const Chunk& c) {
  Matrix A(c.n, c.n);
  for (std::size_t i = 0; i < c.n; ++i) {
    A(i, i) = 1;
    for (std::size_t j = 0; j < i; ++j)
      for (std::size_t m = 0; m <= j; ++m) A(i, m) -= c.L(i, j) * A(j, m);
  }
  return A;
}

void multiply_scores(Chunk& c, double scale) {
  c.L = c.Aqk = Matrix(c.n, c.n);
  c.read_key = c.moved("key_of_predictions", c.k);
  const Matrix q_of_scores = c.moved("query_of_scores", c.q), k_within = c.moved("key_within", c.k),
               k_of_scores = c.moved("key_of_scores", k_within),
               k_of_rows = c.moved("key_of_rows", c.read_key),
               k_of_columns = c.moved("key_of_columns", k_within);
  std::vector<double> of_q(c.K), of_k(c.K);
  const bool is_plain = !c.changes_decay(ChunkTerm::Aqk) && !c.changes_decay(ChunkTerm::L);
  std::vector<std::size_t> decay_of_q(c.K), decay_of_k(c.K);
  for (std::size_t x = 0; x < c.K; ++x) {
    of_q[x] = c.factor(ChunkTerm::Aqk, x, scale), of_k[x] = c.factor(ChunkTerm::L, x, scale);
    decay_of_q[x] = c.of_decay(ChunkTerm::Aqk, x), decay_of_k[x] = c.of_decay(ChunkTerm::L, x);
  }
  for (std::size_t i = 0; i < c.n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const double *const decays_of_q = c.between(ChunkTerm::Aqk, i, j), *const decays_of_k =
                                                                             c.between(ChunkTerm::L, i, j);
      double qk = 0, kk = 0;
      for (std::size_t x = 0; x < c.K; ++x) {
        const double q = of_q[x] * q_of_scores(i, x) * k_of_scores(j, x),
                     k = of_k[x] * k_of_rows(i, x) * k_of_columns(j, x),
                     of_scores = decays_of_q[decay_of_q[x]], of_L = decays_of_k[decay_of_k[x]];
        qk += q * (is_plain ? of_scores : c.decay(ChunkTerm::Aqk, x, of_scores));
        kk += k * (is_plain ? of_L : c.decay(ChunkTerm::L, x, of_L));
      }
      c.Aqk(i, j) = scale * qk;
      if (j < i) c.L(i, j) = c.weight(ChunkTerm::L, c.is(ChunkFault::column_beta) ? j : i) * kk;
    }
    const std::size_t seen = c.is(ChunkFault::scores_unmasked)  ? c.n
                             : c.is(ChunkFault::scores_of_next) ? std::min(c.n, i + 2)
                                                                : 0;
    for (std::size_t j = i + 1; j < seen; ++j)
      for (std::size_t x = 0; x < c.K; ++x)
        c.Aqk(i, j) += scale * c.q(i, x) * c.k(j, x) * numeric::exp(c.G(i, x) - c.G(j, x));
  }
}

void invert(Chunk& c) {
  c.Aqk = c.moved("scores", std::move(c.Aqk));
  c.L = c.moved("L", std::move(c.L));
  c.A = inverse(c);
  c.A = c.moved("inverse", faulty_inverse(c));
}

/// The state after the chunk.
Matrix forwards(Chunk& c, const Head& head, const Matrix& state) {
  const Site::From from = c.A.rows() > 0 ? c.reading->site->from : Site::From::gates;
  if (from <= Site::From::scores) multiply_scores(c, head.scale);
  if (from <= Site::From::inverse) invert(c);
  c.h = c.moved("h", state);
  c.raised = weighted(c.k, [&](std::size_t i, std::size_t x) { return c.from_start(i, x); });
  c.lowered = weighted(c.k, [&](std::size_t i, std::size_t x) { return c.to_end(i, x); });
  const Matrix of_v = weighted(c.v, [&](std::size_t i, std::size_t) { return c.weight(ChunkTerm::u, i); }),
               of_k = c.moved("key_of_w", weighted(c.read_key, [&](std::size_t i, std::size_t x) {
                                return c.weight(ChunkTerm::w, i) * c.factor(ChunkTerm::w, x, head.scale) *
                                       c.decay(ChunkTerm::w, x, c.from_start(ChunkTerm::w, i, x));
                              }));
  const auto solved = [&](ChunkTerm term, const Matrix& of) {
    const Matrix A = c.moved(term == ChunkTerm::u ? "inverse_of_u" : "inverse_of_w", c.A);
    return weighted(product(A, of), [&](std::size_t i, std::size_t x) {
      return c.is(term, TermFault::weighted_behind)  ? c.beta[i]
             : c.is(term, TermFault::decayed_behind) ? c.from_start(i, x)
                                                     : 1;
    });
  };
  c.w = c.moved("w", solved(ChunkTerm::w, of_k)), c.u = c.moved("u", solved(ChunkTerm::u, of_v));
  c.v_new = c.u;
  add(c.v_new, c.moved("prediction", product(c.w, c.moved("h_of_w", c.h))), -1);
  c.v_new = c.moved("v_new", std::move(c.v_new));
  Matrix carry(c.K, 1);
  for (std::size_t x = 0; x < c.K; ++x) carry(x, 0) = c.from_start(ChunkTerm::carry, c.end(), x);
  carry = c.moved("carry", std::move(carry));
  Matrix after = weighted(state, [&](std::size_t x, std::size_t y) {
    return c.factor(ChunkTerm::carry, x, head.scale) *
           c.decay(ChunkTerm::carry, x, carry(c.is(ChunkFault::carry_by_column) && y < c.K ? y : x, 0));
  });
  Matrix written = weighted(c.k, [&](std::size_t i, std::size_t x) {
    return c.factor(ChunkTerm::writes, x, head.scale) *
           c.decay(ChunkTerm::writes, x, c.to_end(ChunkTerm::writes, i, x));
  });
  written = c.moved("written", std::move(written));
  add(after, product(transposed(written),
                     c.moved("v_new_of_writes", c.is(ChunkFault::writes_unerased) ? c.u : c.v_new)));
  if (c.is(ChunkFault::output_unerased)) c.v_new = c.u;
  return c.moved("state", std::move(after));
}

/// o = scale q exp(G) h + Aqk v_new
Matrix output(const Chunk& c, const Matrix& h, double scale) {
  Matrix raised = weighted(c.q, [&](std::size_t i, std::size_t x) {
    return c.factor(ChunkTerm::readout, x, scale) *
           c.decay(ChunkTerm::readout, x, c.from_start(ChunkTerm::readout, i, x));
  });
  raised = c.moved("raised_query", std::move(raised));
  Matrix o = product(c.Aqk, c.moved("v_new_of_o", c.v_new));
  if (c.is(ChunkFault::tail_without_scores) && c.n < c.reading->chunk) o = Matrix(o.rows(), o.columns());
  if (!(c.is(ChunkFault::first_chunk_alone) && c.begin == 0))
    add(o, product(raised, c.moved("h_of_o", h)), scale);
  return c.moved("o", std::move(o));
}

/// Backwards through one chunk, from the gradient of the state that leaves it.
class ChunkGradient {
 public:
  /// `behind`: the state that leaves it.
  ChunkGradient(const Chunk& chunk, const ChunkedHead& of, const GradientReading& reading,
                const Matrix& leaving, const Matrix& behind, Moving* moving)
      : c_(chunk),
        moving_(moving),
        scale_(of.head.scale),
        chunk_size_(of.chunk_size),
        reading_(reading),
        fault_(reading.fault),
        leaving_(leaving),
        dh_(moved("dh", leaving)),
        dh_of_keys_(moved("dh_of_keys", dh_)),
        h_(moved("h_backwards", chunk.h)),
        d_o_(moved("do", chunk.d_o)),
        v_new_(moved("v_new_backwards", chunk.v_new)),
        value_(moved("value_backwards", chunk.v)),
        value_of_beta_(moved("value_of_dbeta", value_)),
        A_(moved("inverse_backwards", chunk.A)),
        behind_(behind) {}

  /// Returns the gradient of the state that enters it. `carry`: of the state, by channel.
  Matrix run(const std::vector<double>& carry, HeadGradient& into) {
    // B1
    dAqk_ = moved(
        "dAqk",
        scaled(Term::dAqk, lower(product(summed(Term::dAqk, d_o_),
                                         transposed(fault_ == BackwardFault::scores_of_u ? c_.u : v_new_)),
                                 true)));
    const Matrix local = moved(
        "dv_scores", scaled(Term::dv_scores,
                            product(fault_ == BackwardFault::local_not_transposed
                                        ? c_.Aqk
                                        : transposed(lower(c_.Aqk, fault_ != BackwardFault::local_masked)),
                                    d_o_),
                            1));
    // B2
    Matrix dv = local;
    add(dv, product(summed(Term::dv_state, decays(Term::dv_state) ? c_.lowered : c_.k), dh_),
        factor(Term::dv_state));
    dv = moved("dv_new", std::move(dv));
    Matrix entering = weighted(leaving_, [&](std::size_t x, std::size_t y) {
      if (fault_ == BackwardFault::carry_by_column && y < c_.K) x = y;
      return factor(Term::dh_carry) * (decays(Term::dh_carry) ? carry[x] : 1);
    });
    const Matrix raised_q = weighted(
        c_.q, [&](std::size_t i, std::size_t x) { return decays(Term::dh_query) ? c_.from_start(i, x) : 1; });
    add(entering, product(transposed(raised_q), d_o_), scale_ * factor(Term::dh_query));
    add(entering,
        product(transposed(fault_ == BackwardFault::prediction_by_writes ? c_.lowered : c_.w),
                fault_ == BackwardFault::prediction_of_scores ? local : dv),
        -factor(Term::dh_prediction));
    through_state(dv, local, entering);
    within();
    G_ = moved("dG", std::move(G_));
    cumulate();
    if (fault_ == BackwardFault::value_unsolved) v_ = dv;
    q_ = moved("dq", std::move(q_)), k_ = moved("dk", std::move(k_)), v_ = moved("dv", std::move(v_));
    G_ = moved("dg", std::move(G_));
    Matrix beta(c_.n, 1);
    for (std::size_t i = 0; i < c_.n; ++i) beta(i, 0) = beta_[i];
    beta_ = moved("dbeta", std::move(beta)).values();
    put_rows(q_, c_.begin, into.q), put_rows(k_, c_.begin, into.k), put_rows(v_, c_.begin, into.v);
    put_rows(G_, c_.begin, into.g);
    std::copy(beta_.begin(), beta_.end(), into.beta.begin() + static_cast<std::ptrdiff_t>(c_.begin));
    return moved("dstate", std::move(entering));
  }

 private:
  Matrix moved(std::string_view site, Matrix matrix) const {
    return moving_ == nullptr ? matrix : (*moving_)(site, std::move(matrix), c_);
  }
  bool is(Term term, TermFault change) const { return reading_.term == term && reading_.change == change; }
  /// What a term is multiplied by.
  double factor(Term term) const {
    return reading_.term == term || reading_.also == term ? factor_of(reading_.change, scale_) : 1;
  }
  /// Not what is summed over it.
  bool tail_is_lost() const { return fault_ == BackwardFault::tail_decay_lost && c_.n < chunk_size_; }
  bool decays(Term term) const { return !is(term, TermFault::undecayed); }
  /// beta, where a term has it.
  double weight(Term term, std::size_t row) const {
    return is(term, TermFault::unweighted) ? 1 : c_.beta[row];
  }
  Matrix scaled(Term term, Matrix a, double by) const {
    return weighted(std::move(a), [&](std::size_t, std::size_t) { return by * factor(term); });
  }
  Matrix scaled(Term term, Matrix a) const { return scaled(term, std::move(a), scale_); }
  /// What is summed over the columns of a.
  Matrix summed(Term term, Matrix a) const {
    if (!is(term, TermFault::first_tile) && !is(term, TermFault::last_tile)) return a;
    const Channels some = is(term, TermFault::first_tile) ? Channels::first : Channels::last;
    const std::size_t width = a.columns();
    return weighted(std::move(a),
                    [&](std::size_t, std::size_t x) { return is_among(some, x, width) ? 1.0 : 0.0; });
  }

  /// What one product adds to another's opposite: a - b.
  double difference(double a, double b) const {
    return fault_ == BackwardFault::early_rounding ? to_bf16(a) - to_bf16(b) : a - b;
  }

  /// B3
  void through_state(const Matrix& dv, const Matrix& local, const Matrix& entering) {
    q_ = weighted(product(summed(Term::dq_state, d_o_),
                          transposed(fault_ == BackwardFault::state_behind ? behind_ : h_)),
                  [&](std::size_t i, std::size_t x) {
                    return scale_ * factor(Term::dq_state) *
                           (decays(Term::dq_state) ? c_.from_start(i, x) : 1);
                  });
    k_ = weighted(product(summed(Term::dk_state, fault_ == BackwardFault::writes_unerased ? c_.u : v_new_),
                          transposed(fault_ == BackwardFault::gradient_before ? entering : dh_of_keys_)),
                  [&](std::size_t i, std::size_t x) {
                    const double decay = fault_ == BackwardFault::key_raised ? c_.from_start(i, x)
                                         : tail_is_lost()                    ? numeric::exp(-c_.G(i, x))
                                                                             : c_.to_end(i, x);
                    return factor(Term::dk_state) * (decays(Term::dk_state) ? decay : 1);
                  });
    const Matrix dw = moved("dw", scaled(Term::dw, product(summed(Term::dw, dv), transposed(h_)), -1));
    Matrix dA = scaled(Term::dA_v, product(summed(Term::dA_v, dv), transposed(value_)), 1);
    add(dA, product(summed(Term::dA_w, dw), transposed(decays(Term::dA_w) ? c_.raised : c_.k)),
        factor(Term::dA_w));
    const bool by_row = fault_ == BackwardFault::row_beta;
    dA = lower(weighted(dA, [&](std::size_t i, std::size_t j) { return weight(Term::dA, by_row ? i : j); }),
               fault_ == BackwardFault::masks_inclusive);
    dA = moved("dA", std::move(dA));
    const Matrix At = fault_ == BackwardFault::never_transposed ? A_ : transposed(A_),
                 dvb = moved("dvb", product(fault_ == BackwardFault::value_not_transposed ? A_ : At, dv));
    const Matrix dkb = moved("dkb", product(fault_ == BackwardFault::key_not_transposed ? A_ : At, dw));
    v_ = weighted(dvb, [&](std::size_t i, std::size_t) { return c_.beta[i]; });
    if (fault_ == BackwardFault::value_masked) {
      const auto own = [&](std::size_t i, std::size_t) { return c_.Aqk(i, i); };
      add(v_,
          weighted(product(At, weighted(d_o_, own)), [&](std::size_t i, std::size_t) { return c_.beta[i]; }),
          -1);
    }
    if (fault_ == BackwardFault::value_without_state)
      v_ = weighted(product(At, local), [&](std::size_t i, std::size_t) { return c_.beta[i]; });
    keep_and_sum(dvb, dkb, fault_ == BackwardFault::last_row_of_entering ? entering : dh_of_keys_);
    find_key_products(At, dA);
  }

  /// What B3 gives beta and the decays; dk gets what w gives it. `dh`: as the decay of the state reads it.
  void keep_and_sum(const Matrix& dvb, const Matrix& dkb, const Matrix& dh) {
    const Matrix of_v = summed(Term::dbeta_v, dvb), of_k = summed(Term::dbeta_w, dkb),
                 entered = summed(Term::dGn_state, h_);
    G_ = Matrix(c_.n, c_.K);
    beta_.assign(c_.n, 0.0);
    std::size_t last = c_.n - 1;
    if (fault_ == BackwardFault::last_row_of_tile) last = chunk_size_ - 1;  // lost beyond n
    if (fault_ == BackwardFault::last_row_first) last = 0;
    const bool is_lost = fault_ == BackwardFault::erase_lost || fault_ == BackwardFault::key_w_lost;
    const double of_w = is_lost ? 0 : factor(Term::dbeta_w);
    for (std::size_t i = 0; i < c_.n; ++i) {
      for (std::size_t y = 0; y < dvb.columns(); ++y)
        beta_[i] += factor(Term::dbeta_v) * of_v(i, y) * value_of_beta_(i, y);
      for (std::size_t x = 0; x < c_.K; ++x) {
        const double raised = c_.raised(i, x);
        beta_[i] += of_w * of_k(i, x) * (decays(Term::dbeta_w) ? raised : c_.k(i, x));
        if (last < c_.n)
          G_(last, x) +=
              factor(Term::dGn_keys) * c_.k(i, x) * k_(i, x) * (tail_is_lost() ? c_.to_end_from_start(x) : 1);
        G_(i, x) += difference(factor(Term::dG_query) * c_.q(i, x) * q_(i, x),
                               factor(Term::dG_key) * c_.k(i, x) * k_(i, x)) +
                    factor(Term::dG_w) * c_.beta[i] * raised * dkb(i, x);
      }
    }
    for (std::size_t x = 0; x < c_.K && last < c_.n; ++x) {
      double sum = 0;
      for (std::size_t y = 0; y < h_.columns(); ++y) sum += entered(x, y) * dh(x, y);
      G_(last, x) +=
          factor(Term::dGn_state) * (decays(Term::dGn_state) ? c_.from_start(c_.n - 1, x) : 1) * sum;
    }
    if (is(Term::dq_state, TermFault::lost_alone)) q_ = Matrix(c_.n, c_.K);
    if (is(Term::dk_state, TermFault::lost_alone)) k_ = Matrix(c_.n, c_.K);
    if (fault_ == BackwardFault::key_prediction_lost || fault_ == BackwardFault::key_w_lost) return;
    for (std::size_t i = 0; i < c_.n; ++i)
      for (std::size_t x = 0; x < c_.K; ++x)
        k_(i, x) += factor(Term::dk_w) * weight(Term::dk_w, i) *
                    (decays(Term::dk_w) ? c_.from_start(i, x) : 1) * dkb(i, x);
  }

  void find_key_products(const Matrix& At, const Matrix& dA) {
    const bool first_is_not =
        fault_ == BackwardFault::not_transposed || fault_ == BackwardFault::second_transposed;
    Matrix product_of = fault_ == BackwardFault::unsolved ? dA : product(first_is_not ? A_ : At, dA);
    if (fault_ != BackwardFault::one_sided && fault_ != BackwardFault::unsolved)
      product_of = product(product_of, fault_ == BackwardFault::not_transposed ? A_ : At);
    dL_ = scaled(Term::dAkk,
                 lower(product_of,
                       fault_ == BackwardFault::inclusive_mask || fault_ == BackwardFault::masks_inclusive),
                 -1);
  }

  /// B4
  void within() {
    dL_ = moved("dAkk", std::move(dL_));
    Matrix of_query(c_.n, c_.K), rows(c_.n, c_.K), columns(c_.n, c_.K);
    const std::vector<double> one(c_.K, 1.0);
    const auto decay = [&](Term term, std::size_t i, std::size_t j) {
      return decays(term) ? c_.between(i, j) : one.data();
    };
    for (std::size_t i = 0; i < c_.n; ++i)
      for (std::size_t j = 0; j <= i; ++j) {
        const double of_scores = dAqk_(i, j), of_keys = dL_(i, j);
        const double scores = factor(Term::dk_scores) * of_scores,
                     keys = factor(Term::dk_columns) * weight(Term::dk_columns, i) * of_keys;
        const double *const D_query = decay(Term::dq_scores, i, j),
                            *const D_rows = decay(Term::dk_rows, i, j),
                            *const D_scores = decay(Term::dk_scores, i, j),
                            *const D_keys = decay(Term::dk_columns, i, j);
        for (std::size_t x = 0; x < c_.K; ++x) {
          of_query(i, x) += of_scores * c_.k(j, x) * D_query[x];
          rows(i, x) += of_keys * c_.k(j, x) * D_rows[x];
          columns(j, x) += scores * c_.q(i, x) * D_scores[x] + keys * c_.k(i, x) * D_keys[x];
        }
      }
    of_query = moved("dq_scores", std::move(of_query)), rows = moved("dk_rows", std::move(rows));
    columns = moved("dk_columns", std::move(columns));
    const double of_rows = fault_ == BackwardFault::key_prediction_lost ? 0 : factor(Term::dk_rows);
    for (std::size_t i = 0; i < c_.n; ++i)
      for (std::size_t x = 0; x < c_.K; ++x) {
        const double dqi = factor(Term::dq_scores) * of_query(i, x), row = rows(i, x), k = c_.k(i, x);
        if (fault_ != BackwardFault::erase_lost)
          beta_[i] += factor(Term::dbeta_rows) *
                      (is(Term::dbeta_rows, TermFault::weighted) ? c_.beta[i] : 1) * row * k;
        if (!is(Term::dq_scores, TermFault::lost_alone)) q_(i, x) += dqi;
        k_(i, x) += columns(i, x) + of_rows * weight(Term::dk_rows, i) * row;
        if (fault_ == BackwardFault::within_lost) continue;
        G_(i, x) += difference(
            factor(Term::dG_scores) * c_.q(i, x) * dqi + factor(Term::dG_rows) * c_.beta[i] * k * row,
            factor(Term::dG_columns) * k * columns(i, x));
      }
  }

  /// B5
  void cumulate() {
    if (fault_ == BackwardFault::not_cumulated) return;
    const std::size_t side = fault_ == BackwardFault::cumulated_in_halves ? 32 : 16;
    const bool is_forwards = fault_ == BackwardFault::cumulated_forwards,
               in_blocks = fault_ == BackwardFault::cumulated_in_blocks || side == 32,
               is_rounded = fault_ == BackwardFault::cumulated_in_bf16;
    for (std::size_t x = 0; x < c_.K; ++x) {
      double sum = 0;
      for (std::size_t step = 0; step < c_.n; ++step) {
        const std::size_t i = is_forwards ? step : c_.n - 1 - step;
        if (in_blocks && (i + 1) % side == 0) sum = 0;
        const double before = sum;
        sum = is_rounded ? to_bf16(sum + G_(i, x)) : sum + G_(i, x);
        G_(i, x) = fault_ == BackwardFault::cumulated_late ? before : sum;
      }
    }
  }

  const Chunk& c_;
  Moving* const moving_;
  const double scale_;
  const std::size_t chunk_size_;
  const GradientReading& reading_;
  const BackwardFault fault_;
  const Matrix& leaving_;
  const Matrix dh_, dh_of_keys_, h_, d_o_, v_new_, value_, value_of_beta_, A_;  ///< as products read them
  const Matrix& behind_;
  Matrix dAqk_, dL_, q_, k_, v_, G_;
  std::vector<double> beta_;
};

/// exp(G_n) of a chunk, as the gradient of the state is carried by it.
std::vector<double> carry_of(const ChunkedHead& of, std::size_t chunk, BackwardFault fault,
                             const Matrix* carried_by) {
  const bool is_of_next = fault == BackwardFault::carry_of_next && chunk + 1 < of.chunks.size();
  const Chunk& c = of.chunks[is_of_next ? chunk + 1 : chunk];
  std::vector<double> sums(c.K);
  for (std::size_t x = 0; x < c.K; ++x) {
    const std::size_t last = c.n - 1;
    sums[x] = c.G(fault == BackwardFault::carry_of_first_row    ? 0
                  : fault == BackwardFault::carry_of_row_before ? last - std::min<std::size_t>(1, last)
                                                                : last,
                  x);
    if (carried_by == nullptr) continue;
    sums[x] = 0;
    for (std::size_t i = c.begin; i < c.begin + c.n; ++i) sums[x] += (*carried_by)(i, x);
  }
  if (fault == BackwardFault::carry_by_mean) {
    double mean = 0;
    for (const double sum : sums) mean += sum / static_cast<double>(c.K);
    sums.assign(c.K, mean);
  }
  if (fault == BackwardFault::tail_carry_lost && c.n < of.chunk_size) sums.assign(c.K, 0.0);
  for (double& x : sums) x = numeric::exp(x);
  return sums;
}

/// dg as if each chunk went on with the sum of the one behind it.
void cumulate_over(const std::vector<Chunk>& chunks, Matrix& g) {
  for (std::size_t i = chunks.size(); i-- > 1;) {
    const Chunk& c = chunks[i - 1];
    for (std::size_t t = c.begin; t < c.begin + c.n; ++t)
      for (std::size_t x = 0; x < c.K; ++x) g(t, x) += g(chunks[i].begin, x);
  }
}

}  // namespace

Matrix product(const Matrix& a, const Matrix& b) {
  constexpr std::size_t width = 8;  // columns whose sums stay in registers
  Matrix result(a.rows(), b.columns());
  const std::size_t columns = b.columns();
  for (std::size_t i = 0; i < a.rows(); ++i) {
    const double* const row = a.row(i);
    for (std::size_t first = 0; first < columns; first += width) {
      const std::size_t count = std::min(width, columns - first);
      std::array<double, width> sums{};
      const auto add = [&](std::size_t n) {
        for (std::size_t l = 0; l < a.columns(); ++l) {
          const double factor = row[l];
          if (factor == 0) continue;  // triangles are half of zeros
          const double* const of_b = b.row(l) + first;
          for (std::size_t j = 0; j < n; ++j) sums[j] += factor * of_b[j];
        }
      };
      count == width ? add(width) : add(count);
      std::copy_n(sums.begin(), count, result.row(i) + first);
    }
  }
  return result;
}

Matrix transposed(const Matrix& a) {
  Matrix result(a.columns(), a.rows());
  for (std::size_t i = 0; i < a.rows(); ++i)
    for (std::size_t j = 0; j < a.columns(); ++j) result(j, i) = a(i, j);
  return result;
}

Matrix series(const Matrix& L, std::size_t terms) {
  Matrix sum(L.rows(), L.rows());
  for (std::size_t term = 0; term < terms; ++term) {
    sum = weighted(product(L, sum), [](std::size_t, std::size_t) { return -1.0; });
    for (std::size_t i = 0; i < L.rows(); ++i) sum(i, i) += 1;
  }
  return sum;
}

bool is_among(Channels some, std::size_t channel, std::size_t K) {
  if (some == Channels::all || K < 2) return true;
  return (in_first_tile(channel, K) == channel) == (some == Channels::first);
}
std::size_t in_first_tile(std::size_t channel, std::size_t K) {
  return K > 1 ? channel % std::bit_floor(K - 1) : channel;
}

HeadAnswer chunk_answer(const Head& head, std::size_t chunk_size, std::size_t first_row,
                        const Interpretation& reading, std::deque<Matrix> earlier) {
  const std::size_t tokens = head.k.rows();
  HeadAnswer answer{Matrix(tokens, head.v.columns()), head.state};
  if (reading.chunk_fault == ChunkFault::state_of_before) earlier.push_back(head.state);
  std::vector<double> sums;
  Moving moving(reading.site, reading.move, chunk_size, reading.beside);
  Moving* const moves = reading.site != nullptr ? &moving : nullptr;
  for (std::size_t begin = 0, end, number = 0; begin < tokens; begin = end, ++number) {
    end = std::min(tokens, begin + chunk_size - (begin == 0 ? first_row % chunk_size : 0));
    const bool is_known = takes_loaded(reading);
    Chunk chunk =
        is_known ? (*reading.loaded)[number] : loaded(head, begin, end - begin, &reading, sums, moves);
    chunk.reading = &reading, chunk.moving = moves;
    if (is_known && reading.site->from == Site::From::inputs) move_inputs(chunk);
    const bool is_late = reading.chunk_fault == ChunkFault::initial_state_late && begin == 0;
    const Matrix entering = is_late ? Matrix(chunk.K, head.v.columns()) : answer.state;
    answer.state = forwards(chunk, head, entering);
    if (is_late)
      add(answer.state,
          weighted(head.state, [&](std::size_t x, std::size_t) { return chunk.to_end_from_start(x); }));
    for (std::size_t x = 0; x < chunk.K && reading.chunk_fault == ChunkFault::sums_over_chunks; ++x)
      sums.resize(chunk.K), sums[x] = chunk.G(chunk.n - 1, x);
    earlier.push_back(reading.chunk_fault == ChunkFault::state_of_after ? answer.state : chunk.h);
    put_rows(output(chunk, earlier.front(), head.scale), begin, answer.o);
    earlier.pop_front();
    if (end == tokens) answer.state = chunk.moved("final_state", std::move(answer.state));
  }
  answer.kept = std::move(moving.kept);
  return answer;
}

bool takes_loaded(const Interpretation& reading) {
  return reading.loaded != nullptr && reading.site->from != Site::From::gates;
}

std::vector<Chunk> right_chunks(const Head& head, std::size_t chunk_size, std::size_t first_row) {
  std::vector<Chunk> chunks;
  Matrix state = head.state;
  for (std::size_t begin = 0, end; begin < head.k.rows(); begin = end) {
    end = std::min(head.k.rows(), begin + chunk_size - (begin == 0 ? first_row % chunk_size : 0));
    chunks.push_back(loaded(head, begin, end - begin));
    state = forwards(chunks.back(), head, state);
  }
  return chunks;
}

Matrix Chunk::moved(std::string_view site, Matrix matrix) const {
  return moving == nullptr ? matrix : (*moving)(site, std::move(matrix), *this);
}

void Chunk::sum_and_multiply_decays() {
  for (std::size_t i = 1; i < n; ++i)
    for (std::size_t x = 0; x < K; ++x) G(i, x) += G(i - 1, x);
  G = moved("sums", G);
  starts = ends = Matrix(n, K);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t x = 0; x < K; ++x)
      starts(i, x) = across(G(i, x)), ends(i, x) = across(G(end(), x) - G(i, x));
  const Matrix within = moved("sums_within", G);
  std::vector<double> all(n * n * K, 1.0);
  std::vector<double> step(K);
  for (std::size_t i = 1; i < n; ++i) {
    // From row to row it is a product, as an exponential of each pair takes too long.
    for (std::size_t x = 0; x < K; ++x) {
      const double gate = within(i, x) - within(i - 1, x);
      step[x] = is(ChunkFault::exp2_within) ? numeric::exp2(gate) : numeric::exp(gate);
    }
    for (std::size_t j = 0; j < i; ++j)
      for (std::size_t x = 0; x < K; ++x) all[(i * n + j) * K + x] = all[((i - 1) * n + j) * K + x] * step[x];
  }
  if (is(ChunkFault::anchors_apart)) part_anchors(all);
  decays = std::make_shared<const std::vector<double>>(std::move(all));
}

void Chunk::part_anchors(std::vector<double>& all) const {
  constexpr std::size_t side = 16;
  for (std::size_t i = side; i < n; ++i) {
    const std::size_t first = i / side * side;
    for (std::size_t x = 0; x < K; ++x) {
      const double undone = numeric::exp(G(first - 1, x) - G(first, x));
      for (std::size_t j = 0; j < first; ++j) all[(i * n + j) * K + x] *= undone;
    }
  }
}

double Chunk::decay(ChunkTerm term, std::size_t channel, double right) const {
  if (!changes_decay(term) || !is_among(reading->channels, channel, K)) return right;
  if (is(term, TermFault::exp2)) return numeric::exp(numeric::log(right) / std::numbers::log2e);
  return is(term, TermFault::log2e_twice) ? numeric::exp(numeric::log(right) * std::numbers::log2e) : 1;
}

double Chunk::across(double sum) const {
  return is(ChunkFault::exp2_across) ? numeric::exp2(sum) : numeric::exp(sum);
}

ChunkedHead::ChunkedHead(Head of, std::size_t size, const Interpretation* reading)
    : head(std::move(of)), chunk_size(size), state(head.state) {
  std::optional<Moving> moving;
  if (reading != nullptr) moving.emplace(reading->site, reading->move, size, reading->beside);
  for (std::size_t begin = 0; begin < head.k.rows(); begin += size) {
    Chunk& chunk = chunks.emplace_back(
        loaded(head, begin, std::min(size, head.k.rows() - begin), reading, {}, moving ? &*moving : nullptr));
    state = forwards(chunk, head, state);
    chunk.reading = nullptr, chunk.moving = nullptr;
  }
  if (moving) kept = std::move(moving->kept);
}

HeadGradient chunk_gradient(const ChunkedHead& of, const GradientReading& reading, const Matrix& d_state,
                            const Matrix* carried_by) {
  const std::size_t tokens = of.head.k.rows(), K = of.head.k.columns(), V = of.head.v.columns();
  const std::vector<Chunk>& chunks = of.chunks;
  HeadGradient gradient{Matrix(tokens, K), Matrix(tokens, K), Matrix(tokens, V),
                        Matrix(tokens, K), d_state,           std::vector<double>(tokens)};
  const GradientReading right;
  Moving moving(reading.site, reading.move, of.chunk_size, reading.beside);
  for (std::size_t i = chunks.size(); i-- > 0;) {
    const GradientReading& here = reading.only_chunk.value_or(i) == i ? reading : right;
    if (here.fault == BackwardFault::carry_in_bf16)
      gradient.state = applied(std::move(gradient.state), to_bf16);
    const bool is_last = i + 1 == chunks.size();
    if (here.fault == BackwardFault::chunks_apart && !is_last) gradient.state = Matrix(K, V);
    Moving* const moves = here.site != nullptr ? &moving : nullptr;
    if (moves != nullptr)
      gradient.state = moving(is_last ? "dht" : "dh_carried", std::move(gradient.state), chunks[i]);
    const Matrix leaving = gradient.state;
    gradient.state = ChunkGradient(chunks[i], of, here, leaving, is_last ? of.state : chunks[i + 1].h, moves)
                         .run(carry_of(of, i, here.fault, carried_by), gradient);
    if (here.fault == BackwardFault::every_chunk && i > 0) add(gradient.state, d_state);
    if (here.fault == BackwardFault::early_initial && i == 0) gradient.state = leaving;
  }
  if (reading.fault == BackwardFault::cumulated_over_chunks) cumulate_over(chunks, gradient.g);
  for (std::size_t x = 0; x < K && reading.fault == BackwardFault::final_product_lost; ++x) {
    double lost = 0;
    for (std::size_t y = 0; y < V; ++y) lost += of.state(x, y) * d_state(x, y);
    for (std::size_t t = 0; t < tokens; ++t) gradient.g(t, x) -= lost;
  }
  if (reading.fault == BackwardFault::first_token)
    for (std::size_t x = 0; tokens > 0 && x < K; ++x) gradient.g(0, x) = 0;
  gradient.kept = std::move(moving.kept);
  return gradient;
}

}  // namespace kda_check::hypotheses::plain
