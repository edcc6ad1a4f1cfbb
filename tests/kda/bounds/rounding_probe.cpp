// What rounding predictions leaves, against recurrences whose predictions are off.
#include "kda/bounds/rounding_probe.hpp"

#include <cmath>
#include <vector>

#include "numeric/random.hpp"
#include "support/catch.hpp"

namespace rounding_probe_tests {

using namespace kda_check;

namespace {

constexpr std::size_t K = 8, V = 24;

/// One head whose keys are `common` of one direction and the rest of their own.
struct Head {
  Head(std::size_t tokens, double common, double strength) : count(tokens), beta(strength) {
    const numeric::Random random(7, 0);
    std::uint64_t drawn = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
      double length = 0;
      for (std::size_t k = 0; k < K; ++k) {
        key.push_back(common * (k == 0 ? 1.0 : 0.0) + (1 - common) * random.normal(drawn++));
        query.push_back(random.normal(drawn++));
        decay.push_back(0.99f);
        length += key.back() * key.back();
      }
      for (std::size_t k = 0; k < K; ++k) key[t * K + k] /= std::sqrt(length);
      for (std::size_t v = 0; v < V; ++v) value.push_back(random.normal(drawn++));
    }
  }

  /// Energies of the error of all o, and of the state, where each prediction is off by errors of its own
  /// size.
  std::pair<double, double> errors(std::uint64_t seed) const {
    const numeric::Random random(seed, 1);
    std::uint64_t drawn = 0;
    std::vector<double> state(K * V), wrong(K * V);
    double of_o = 0;
    for (std::size_t t = 0; t < count; ++t) {
      for (std::size_t v = 0; v < V; ++v) {
        double prediction = 0, wrong_prediction = 0, terms = 0;
        for (std::size_t k = 0; k < K; ++k) {
          const double kept = static_cast<double>(decay[t * K + k]);
          state[k * V + v] *= kept, wrong[k * V + v] *= kept;
          prediction += key[t * K + k] * state[k * V + v];
          wrong_prediction += key[t * K + k] * wrong[k * V + v];
          terms += key[t * K + k] * key[t * K + k] * state[k * V + v] * state[k * V + v];
        }
        wrong_prediction +=
            small * std::sqrt(prediction * prediction + terms) * (random.below(drawn++, 2) == 0 ? 1 : -1);
        double o = 0;
        for (std::size_t k = 0; k < K; ++k) {
          state[k * V + v] += beta * key[t * K + k] * (value[t * V + v] - prediction);
          wrong[k * V + v] += beta * key[t * K + k] * (value[t * V + v] - wrong_prediction);
          o += query[t * K + k] * (wrong[k * V + v] - state[k * V + v]);
        }
        of_o += o * o;
      }
    }
    double of_state = 0;
    for (std::size_t i = 0; i < state.size(); ++i) of_state += (wrong[i] - state[i]) * (wrong[i] - state[i]);
    return {of_o / (small * small), of_state / (small * small)};
  }

  static constexpr double small = 1e-6;
  std::size_t count;
  double beta;
  std::vector<double> key, query, value;
  std::vector<float> decay;
};

}  // namespace

TEST_CASE("the probe finds what errors of predictions leave in o and in the state", "[limits]") {
  for (const double common : {0.0, 0.9, 1.0})
    for (const double beta : {0.3, 0.999, 1.99}) {
      INFO(common << ' ' << beta);
      const Head head(120, common, beta);
      double of_o = 0, of_state = 0, found_o = 0, found_state = 0;
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const auto [o, state] = head.errors(seed);
        of_o += o, of_state += state;
        kda::RoundingProbe probe(K, V, 16, seed);
        for (std::size_t t = 0; t < head.count; ++t)
          found_o += probe
                         .token(&head.decay[t * K], &head.query[t * K], &head.key[t * K], beta,
                                &head.value[t * V], 1)
                         .recurrence;
        found_state += probe.of_state().recurrence;
      }
      CHECK(found_o == Approx(of_o).epsilon(0.4));
      CHECK(found_state == Approx(of_state).epsilon(0.6));
    }
}

TEST_CASE("the chunk form corrects no error of its own tokens before its chunk ends", "[limits]") {
  const Head head(64, 1.0, 0.999);
  const auto of_writing = [&](std::size_t chunk_size) {
    kda::RoundingProbe probe(K, V, chunk_size, 1);
    double sum = 0;
    for (std::size_t t = 0; t < head.count; ++t)
      sum += probe.token(&head.decay[t * K], &head.key[t * K], &head.key[t * K], 0.999, &head.value[t * V], 1)
                 .writing;
    return sum;
  };
  CHECK(of_writing(16) > 4 * of_writing(1));
  CHECK(of_writing(64) > 2 * of_writing(16));
}

TEST_CASE("a single token predicts nothing, and so loses nothing", "[limits]") {
  const Head head(1, 0.5, 0.9);
  kda::RoundingProbe probe(K, V, 64, 1);
  const kda::ProbedErrors errors =
      probe.token(head.decay.data(), head.query.data(), head.key.data(), 0.9, head.value.data(), 1);
  CHECK(errors.recurrence == 0);
  CHECK(errors.solving == 0);
  CHECK(errors.writing == 0);
}

}  // namespace rounding_probe_tests
