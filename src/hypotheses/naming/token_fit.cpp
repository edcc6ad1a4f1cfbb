#include "hypotheses/naming/token_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/threads/parallel.hpp"
#include "hypotheses/naming/reference_chunk.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses {

namespace {

/// What a token multiplies otherwise.
enum class TokenFactor : std::uint8_t { beta, decay, query, value, key };

struct TokenFit {
  std::string_view name, meaning;  ///< of a cause
  std::vector<TokenFactor> which;
};

constexpr std::size_t all_factors = 5;
using Factors = std::array<double, all_factors>;  ///< by TokenFactor

double of(const Factors& factors, TokenFactor which) { return factors[static_cast<std::size_t>(which)]; }

/// One token: its row of o is c_q s (c_d A + c_k c_b m (c_v v - c_k c_d B)), A and B the decayed state along
/// q and k, m = beta k q.
struct Token {
  std::vector<double> along_query, along_key, value;
  double scale, own;  ///< own: m

  double row(const Factors& c, std::size_t v) const {
    const double key = of(c, TokenFactor::key), decay = of(c, TokenFactor::decay);
    const double error = of(c, TokenFactor::value) * value[v] - key * decay * along_key[v];
    return of(c, TokenFactor::query) * scale *
           (decay * along_query[v] + key * of(c, TokenFactor::beta) * own * error);
  }
};

class RowFit {
 public:
  /// `noise`: the size of what an element errs by.
  RowFit(const Token& token, const double* got, const std::vector<TokenFactor>& which, double noise)
      : token_(token), got_(got), which_(which), noise_(noise) {}

  Factors run() const {
    constexpr double other_starts[] = {0.25, 2.5, -1, 0};
    // What is right needs no other numbers.
    constexpr double right = 2;
    const auto count = static_cast<double>(token_.value.size());
    if (cost(all_ones()) <= right * right * count) return all_ones();
    Factors best = from(1);
    for (const double start : other_starts)
      if (const Factors other = from(start); cost(other) < cost(best)) best = other;
    // Nor is a number told that is not known, or that may be none at all: what follows would have its error.
    constexpr double hardly = 16;
    for (const TokenFactor which : which_)
      for (const double simple : {1.0, 0.0}) {
        Factors other = best;
        other[static_cast<std::size_t>(which)] = simple;
        if (cost(other) <= cost(best) + hardly) {
          best = other;
          break;
        }
      }
    return best;
  }

 private:
  static Factors all_ones() {
    Factors factors;
    factors.fill(1);
    return factors;
  }
  /// In units of noise; hardly known factors stay near 1.
  double cost(const Factors& c) const {
    constexpr double spread = 4;
    double sum = 0;
    for (std::size_t v = 0; v < token_.value.size(); ++v) {
      const double error = (got_[v] - token_.row(c, v)) / noise_;
      sum += error * error;
    }
    for (const TokenFactor which : which_) sum += (of(c, which) - 1) * (of(c, which) - 1) / (spread * spread);
    return sum;
  }
  /// The last alone first, of which a row is a linear function.
  Factors from(double start) const {
    Factors c = all_ones();
    c[static_cast<std::size_t>(which_.front())] = start;
    for (std::size_t i = which_.size(); i-- > 0;)
      approach(c, {which_.begin() + static_cast<std::ptrdiff_t>(i), which_.end()});
    return c;
  }
  /// By one or two of them.
  void approach(Factors& c, std::span<const TokenFactor> which) const {
    constexpr int steps = 12;
    constexpr double difference = 1e-6;
    for (int step = 0; step < steps; ++step) {
      std::array<std::array<double, 2>, 2> normal{};
      std::array<double, 2> along{};
      for (std::size_t v = 0; v < token_.value.size(); ++v) {
        const double here = token_.row(c, v), error = (got_[v] - here) / noise_;
        std::array<double, 2> slope{};
        for (std::size_t i = 0; i < which.size(); ++i) {
          Factors beside = c;
          beside[static_cast<std::size_t>(which[i])] += difference;
          slope[i] = (token_.row(beside, v) - here) / (difference * noise_);
        }
        for (std::size_t i = 0; i < which.size(); ++i) {
          along[i] += slope[i] * error;
          for (std::size_t j = 0; j < which.size(); ++j) normal[i][j] += slope[i] * slope[j];
        }
      }
      if (which.size() == 1) normal[1][1] = 1;
      const double tiny = 1e-12 * (normal[0][0] + normal[1][1]) + std::numeric_limits<double>::min();
      normal[0][0] += tiny, normal[1][1] += tiny;
      const double determinant = normal[0][0] * normal[1][1] - normal[0][1] * normal[1][0];
      if (!(determinant > 0) || !std::isfinite(determinant)) return;
      const std::array<double, 2> move{(along[0] * normal[1][1] - along[1] * normal[0][1]) / determinant,
                                       (along[1] * normal[0][0] - along[0] * normal[1][0]) / determinant};
      for (std::size_t i = 0; i < which.size(); ++i) c[static_cast<std::size_t>(which[i])] += move[i];
    }
  }

  const Token& token_;
  const double* const got_;
  const std::vector<TokenFactor>& which_;
  const double noise_;
};

const std::vector<TokenFit>& token_fits() {
  static const std::vector<TokenFit> list{
      {"beta_of_tokens", "beta has other values", {TokenFactor::beta}},
      {"decay_of_tokens",
       "the gates of tokens have other values, which multiply the state by",
       {TokenFactor::decay}},
      {"query_of_tokens", "rows of q, or of o, have other factors", {TokenFactor::query}},
      {"value_of_tokens", "rows of v have other factors", {TokenFactor::value}},
      {"key_of_tokens", "rows of k have other lengths", {TokenFactor::key}},
      {"beta_and_decay_of_tokens",
       "beta and the decay have other values",
       {TokenFactor::beta, TokenFactor::decay}},
  };
  return list;
}

struct FittedTokens {
  std::vector<std::vector<double>> factors;  ///< [which][tokens], 1 where nothing is wrong
  ExcerptAnswer answer;
};
/// `got`: [tokens][columns]; `noise`: of a row, of its size.
FittedTokens fitted_tokens(const plain::Head& head, const std::vector<double>& got, const TokenFit& fit,
                           double noise) {
  const std::size_t tokens = head.q.rows(), K = head.q.columns(), V = head.v.columns();
  FittedTokens fitted{std::vector(fit.which.size(), std::vector<double>(tokens, 1.0)), {}};
  plain::Matrix state = head.state;
  double largest = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    Token token{std::vector<double>(V, 0.0), std::vector<double>(V, 0.0), std::vector<double>(V), head.scale,
                0};
    for (std::size_t k = 0; k < K; ++k) {
      const double decay = numeric::exp(head.g(t, k));
      for (std::size_t v = 0; v < V; ++v) {
        state(k, v) *= decay;
        token.along_query[v] += head.q(t, k) * state(k, v), token.along_key[v] += head.k(t, k) * state(k, v);
      }
      token.own += head.beta[t] * head.q(t, k) * head.k(t, k);
    }
    double squares = 0;
    for (std::size_t v = 0; v < V; ++v) {
      token.value[v] = head.v(t, v);
      squares += got[t * V + v] * got[t * V + v];
    }
    largest = std::max(largest, std::sqrt(squares / static_cast<double>(V)));
    const double size = std::max(std::sqrt(squares / static_cast<double>(V)), noise * largest);
    const Factors c =
        RowFit(token, &got[t * V], fit.which, noise * size + std::numeric_limits<double>::min()).run();
    for (std::size_t i = 0; i < fit.which.size(); ++i) fitted.factors[i][t] = of(c, fit.which[i]);
    const double key = of(c, TokenFactor::key), decay = of(c, TokenFactor::decay);
    for (std::size_t v = 0; v < V; ++v) {
      fitted.answer.o.push_back(token.row(c, v));
      const double error = of(c, TokenFactor::value) * token.value[v] - key * decay * token.along_key[v];
      for (std::size_t k = 0; k < K; ++k)
        state(k, v) =
            decay * state(k, v) + key * head.k(t, k) * of(c, TokenFactor::beta) * head.beta[t] * error;
    }
  }
  fitted.answer.state = state.values();
  return fitted;
}

/// Where rows of a chunk lack what earlier ones wrote, of those with no decay between: exp(G_i - G_j) taken
/// for 0 where a rounding puts it above 1. `first_row`: of the first token in its chunk.
struct LostPairs {
  std::size_t lost = 0, tried = 0;
  ExcerptAnswer answer;
};
LostPairs lost_undecayed_pairs(const plain::Head& head, const std::vector<double>& got,
                               std::size_t chunk_size, std::size_t first_row) {
  const std::size_t tokens = head.q.rows(), K = head.q.columns(), V = head.v.columns();
  LostPairs found;
  plain::Matrix state = head.state, writes(tokens, V);
  std::size_t since = 0;  // the first token with no decay between
  for (std::size_t t = 0; t < tokens; ++t) {
    if ((first_row + t) % chunk_size == 0 ||
        std::any_of(head.g.row(t), head.g.row(t) + K, [](double g) { return g != 0; }))
      since = t;
    const auto along = [&](const plain::Matrix& rows, std::size_t j) {
      double sum = 0;
      for (std::size_t k = 0; k < K; ++k) sum += rows(t, k) * head.k(j, k);
      return sum;
    };
    std::vector<double> query(V, 0.0), error(V), left(V);
    for (std::size_t v = 0; v < V; ++v) error[v] = head.v(t, v);
    for (std::size_t k = 0; k < K; ++k) {
      const double decay = numeric::exp(head.g(t, k));
      for (std::size_t v = 0; v < V; ++v) {
        state(k, v) *= decay;
        query[v] += head.q(t, k) * state(k, v), error[v] -= head.k(t, k) * state(k, v);
      }
    }
    const double own = along(head.q, t) * head.beta[t];
    for (std::size_t v = 0; v < V; ++v) left[v] = got[t * V + v] - head.scale * (query[v] + own * error[v]);
    std::vector<std::size_t> others(t - since);
    std::iota(others.begin(), others.end(), since);
    found.tried += others.size();
    while (!others.empty()) {  // the one without which least is left, as long as that is less
      std::vector<double> gains;
      for (const std::size_t j : others) {
        const double change = head.scale * (own * along(head.k, j) - along(head.q, j));
        double gain = 0;
        for (std::size_t v = 0; v < V; ++v)
          gain += change * writes(j, v) * (2 * left[v] - change * writes(j, v));
        gains.push_back(gain);
      }
      const auto best = std::ranges::max_element(gains);
      if (!(*best > 0)) break;
      const auto which = others.begin() + (best - gains.begin());
      const double of_query = along(head.q, *which), of_key = along(head.k, *which);
      for (std::size_t v = 0; v < V; ++v) {
        const double write = writes(*which, v);
        query[v] -= of_query * write, error[v] += of_key * write;
        left[v] -= head.scale * (own * of_key - of_query) * write;
      }
      others.erase(which), ++found.lost;
    }
    for (std::size_t v = 0; v < V; ++v) {
      found.answer.o.push_back(head.scale * (query[v] + own * error[v]));
      writes(t, v) = head.beta[t] * error[v];
      for (std::size_t k = 0; k < K; ++k) state(k, v) += head.k(t, k) * writes(t, v);
    }
  }
  found.answer.state = state.values();
  return found;
}

/// The state [K][columns] before the first token that leaves least of `error`, [tokens][columns], of o: what
/// has to be added to that of `head`.
std::vector<double> fitted_start(const plain::Head& head, const std::vector<double>& error) {
  const std::size_t tokens = head.q.rows(), K = head.q.columns(),
                    V = error.size() / std::max<std::size_t>(tokens, 1);
  plain::Matrix reach(K, K), normal(K, K), along(K, V);  // reach: what is left of each row of the state
  for (std::size_t k = 0; k < K; ++k) reach(k, k) = 1;
  for (std::size_t t = 0; t < tokens; ++t) {
    std::vector<double> row(K, 0.0), read(K, 0.0);
    for (std::size_t k = 0; k < K; ++k) {
      const double decay = numeric::exp(head.g(t, k));
      for (std::size_t x = 0; x < K; ++x) reach(k, x) *= decay, read[x] += head.k(t, k) * reach(k, x);
    }
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t x = 0; x < K; ++x) {
        reach(k, x) -= head.k(t, k) * head.beta[t] * read[x];
        row[x] += head.scale * head.q(t, k) * reach(k, x);
      }
    for (std::size_t k = 0; k < K; ++k) {
      for (std::size_t x = 0; x < K; ++x) normal(k, x) += row[k] * row[x];
      for (std::size_t v = 0; v < V; ++v) along(k, v) += row[k] * error[t * V + v];
    }
  }
  double trace = 0;
  for (std::size_t k = 0; k < K; ++k) trace += normal(k, k);
  for (std::size_t k = 0; k < K; ++k) normal(k, k) += 1e-13 * trace + std::numeric_limits<double>::min();
  // It is positive definite: no pivots.
  for (std::size_t pivot = 0; pivot < K; ++pivot)
    for (std::size_t k = 0; k < K; ++k) {
      if (k == pivot) continue;
      const double factor = normal(k, pivot) / normal(pivot, pivot);
      for (std::size_t x = pivot; x < K; ++x) normal(k, x) -= factor * normal(pivot, x);
      for (std::size_t v = 0; v < V; ++v) along(k, v) -= factor * along(pivot, v);
    }
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t v = 0; v < V; ++v) along(k, v) /= normal(k, k);
  return along.values();
}

/// "at t=64 0.31, not 0.52 (that of t=50); ..." of tokens from `begin` on. `right`: what the factors
/// multiply; empty: the factors are said.
std::string text_of(const std::vector<double>& factors, const std::vector<double>& right, std::size_t begin,
                    double tolerance) {
  constexpr std::size_t most_said = 3;
  std::vector<std::size_t> wrong;
  for (std::size_t t = 0; t < factors.size(); ++t)
    if (std::fabs(factors[t] - 1) > tolerance) wrong.push_back(t);
  if (wrong.empty()) return "nowhere else";
  const auto value = [&](std::size_t t) { return right.empty() ? factors[t] : factors[t] * right[t]; };
  const auto is_near = [&](double a, double b) {
    constexpr double of_many = 16;  // not each is known as well as the others
    return std::fabs(a - b) <= of_many * tolerance * std::fabs(b);
  };
  const auto is_of = [&](std::ptrdiff_t back) {
    const auto found = std::ranges::count_if(wrong, [&](std::size_t t) {
      const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(t) - back;
      return from >= 0 && from < std::ssize(right) &&
             is_near(value(t), right[static_cast<std::size_t>(from)]);
    });
    return 10 * found >= 9 * std::ssize(wrong);
  };
  const std::string where = fmt::format("at {} of {} tokens", wrong.size(), factors.size());
  for (std::ptrdiff_t back = 1; back < std::ssize(right); ++back)
    for (const std::ptrdiff_t from : {back, -back})
      if (wrong.size() > most_said && is_of(from))
        return fmt::format("{} that of {} token{} {}", where, back, back == 1 ? "" : "s",
                           from > 0 ? "before" : "behind");
  if (wrong.size() > most_said &&
      std::ranges::all_of(wrong, [&](std::size_t t) { return is_near(factors[t], factors[wrong[0]]); }))
    return fmt::format("{}, from t={} on, {:.4g} of what it should be", where, begin + wrong[0],
                       factors[wrong[0]]);
  std::string text = where + ":";
  for (std::size_t i = 0; i < std::min(wrong.size(), most_said); ++i) {
    const std::size_t t = wrong[i];
    text += fmt::format("{} t={} {:.4g}", i == 0 ? "" : ",", begin + t, value(t));
    if (right.empty()) {
      text += " times";
      continue;
    }
    text += fmt::format(", not {:.4g}", right[t]);
    const auto own = std::ranges::find_if(right, [&](double x) { return is_near(value(t), x); });
    if (own != right.end()) text += fmt::format(" (that of t={})", begin + (own - right.begin()));
  }
  return text + (wrong.size() > most_said ? " ..." : "");
}

plain::Head inputs_of(const OutputWindow& window, std::size_t head) {
  return plain::head_of(window.problem, Interpretation(window.problem), window.excerpt(head, window.columns));
}
std::vector<double> rows_of(const OutputWindow& window, std::size_t head) {
  std::vector<double> got;
  for (std::size_t t = window.begin; t < window.end; ++t)
    for (const std::size_t v : window.columns) got.push_back(window.got_o(t, window.heads[head], v));
  return got;
}

Candidate candidate(std::string name, std::string meaning, const OutputWindow& window,
                    std::vector<ExcerptAnswer> heads) {
  return {std::move(name), std::move(meaning), [values = window.stored(std::move(heads))] { return values; }};
}

/// What follows from another state before the first row of the chunk that deviates, where there are rows
/// enough to tell: K numbers for each column.
std::optional<Candidate> with_other_start(const OutputWindow& window) {
  const std::size_t from = window.chunk_of(window.deviation), tokens = window.end - from;
  if (from < window.begin || tokens < 2 * window.d.K) return std::nullopt;
  const Interpretation right(window.problem);
  std::vector<ExcerptAnswer> heads;
  double size = 0, other_size = 0;
  for (std::size_t i = 0; i < window.heads.size(); ++i) {
    Excerpt excerpt = window.excerpt(i, window.columns);
    excerpt.end = from;
    ExcerptAnswer whole = answer_of(window.problem, right, excerpt);
    excerpt.begin = from, excerpt.end = window.end, excerpt.start = whole.state;
    std::vector<double> error = answer_of(window.problem, right, excerpt).o;
    std::size_t wrong = 0;  // rows
    for (std::size_t row = 0; row < tokens; ++row) {
      Distance distance;
      for (std::size_t v = 0; v < window.d.V; ++v) {
        double& x = error[row * window.d.V + v];
        const double got = window.got_o(from + row, window.heads[i], v);
        distance.add(got, x), x = got - x;
      }
      constexpr double clearly = 4;
      wrong += distance.ratio() > clearly * window.output.o_limit;
    }
    if (2 * wrong < 3 * window.d.K) return std::nullopt;
    const std::vector<double> change = fitted_start(plain::head_of(window.problem, right, excerpt), error);
    for (const double x : excerpt.start) size += x * x;
    for (std::size_t k = 0; k < change.size(); ++k)
      excerpt.start[k] += change[k], other_size += excerpt.start[k] * excerpt.start[k];
    ExcerptAnswer rest = answer_of(window.problem, right, excerpt);
    whole.o.insert(whole.o.end(), rest.o.begin(), rest.o.end());
    whole.state = std::move(rest.state);
    heads.push_back(std::move(whole));
  }
  const std::string of_size =
      size > 0 ? fmt::format(", {:.3g} times as large", std::sqrt(other_size / size)) : ", for zeros";
  return candidate("other_state",
                   fmt::format("the state before t={} is another one{}; what follows is right",
                               from - window.sequence.begin, of_size),
                   window, std::move(heads));
}

std::optional<Candidate> with_lost_pairs(const OutputWindow& window) {
  std::vector<ExcerptAnswer> heads;
  std::size_t lost = 0, tried = 0;
  for (std::size_t i = 0; i < window.heads.size(); ++i) {
    LostPairs pairs = lost_undecayed_pairs(inputs_of(window, i), rows_of(window, i), window.chunk_size(),
                                           window.begin - window.sequence.begin);
    lost += pairs.lost, tried += pairs.tried;
    heads.push_back(std::move(pairs.answer));
  }
  if (lost == 0) return std::nullopt;
  return candidate("undecayed_pairs_lost",
                   fmt::format("exp(G_i - G_j) is 0 for {} of {} pairs of rows with no decay between, as "
                               "where G_i - G_j is above 0 by a rounding and exp(x) is 0 for x > 0",
                               lost, tried),
                   window, std::move(heads));
}

Candidate with_other_factors(const OutputWindow& window, const TokenFit& fit, int threads) {
  const double noise = window.output.o_limit;
  std::vector<FittedTokens> fits(window.heads.size());
  parallel_for(fits.size(), threads, [&](std::size_t i, int) {
    fits[i] = fitted_tokens(inputs_of(window, i), rows_of(window, i), fit, noise);
  });
  std::string text;
  for (std::size_t i = 0; i < fit.which.size(); ++i) {
    std::vector<double> right;
    if (fit.which[i] == TokenFactor::beta) right = inputs_of(window, 0).beta;
    text +=
        (text.empty() ? "" : "; ") +
        text_of(fits[0].factors[i], right, window.begin - window.sequence.begin, std::max(1e-4, 4 * noise));
  }
  if (fits.size() > 1) text += fmt::format(" (head {})", window.heads[0]);
  std::vector<ExcerptAnswer> heads;
  for (FittedTokens& one : fits) heads.push_back(std::move(one.answer));
  return candidate(std::string(fit.name), fmt::format("{}: {}", fit.meaning, text), window, std::move(heads));
}

}  // namespace

void rank_token_numbers(const OutputWindow& window, const Thresholds& thresholds, int threads,
                        Naming& naming) {
  constexpr std::size_t least_columns = 8;  // that tell one or two numbers
  if (window.output.o == nullptr || window.d.V < least_columns || window.d.strength != kda::Strength::head)
    return;
  const std::vector<Unit> units = window.compared();
  const auto try_all = [&](const std::vector<Candidate>& list) {
    if (naming.causes.empty()) rank(units, list, thresholds, threads, naming);
  };
  if (const auto pairs = with_lost_pairs(window)) try_all({*pairs});
  if (const auto start = naming.causes.empty() ? with_other_start(window) : std::nullopt) try_all({*start});
  for (const std::size_t numbers : {1, 2}) {
    if (!naming.causes.empty()) break;
    std::vector<Candidate> list;
    for (const TokenFit& fit : token_fits()) {
      // One factor for all channels is that of a gate that they share.
      const bool is_gate = std::ranges::find(fit.which, TokenFactor::decay) != fit.which.end();
      if (fit.which.size() == numbers && !(is_gate && window.d.decays() > 1))
        list.push_back(with_other_factors(window, fit, threads));
    }
    try_all(list);
  }
}

}  // namespace kda_check::hypotheses
