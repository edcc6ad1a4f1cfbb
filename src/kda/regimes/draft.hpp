// A problem in the making: what recipes are written with (docs/scenarios.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kda/regimes/regimes.hpp"
#include "numeric/random.hpp"

namespace kda_check::kda::regimes {

/// Whose random numbers: tensors and ingredients draw from streams of their own.
enum class Stream : std::uint16_t {
  q,
  k,
  v,
  g,
  beta,
  state,
  direction,  ///< what the keys of a head have in common
  spike,      ///< where a gate is not like the others
  bias,
  outlier,
  perturbation,
  output_gradient,
  state_gradient,
  erase,
  write,
  column,  ///< what elements of a column of v have in common
};

/// Of gates with a lower bound, unless a regime has its own.
constexpr double usual_lower_bound = -5;

/// Where an element is: batch row, token, head, channel (or value lane; 0 for beta).
struct At {
  std::size_t b, t, h, i;
};

/// The random numbers of one element: the same for every T and B, so that a short problem is the beginning
/// of a long one.
class Draw {
 public:
  Draw(numeric::Random random, std::uint64_t counter) : random_(random), counter_(counter) {}
  double uniform(double from = 0, double to = 1) const { return random_.uniform(counter_, from, to); }
  double normal() const { return random_.normal(counter_); }
  std::size_t below(std::size_t count) const {
    return static_cast<std::size_t>(random_.below(counter_, count));
  }

 private:
  numeric::Random random_;
  std::uint64_t counter_;
};

using Element = std::function<double(const At& at, const Draw& draw)>;

/// Tensors in fp64. What a recipe leaves empty finish() fills with the defaults of docs/scenarios.md: q and k
/// normal of unit length, v normal, g = logsigmoid(normal), beta, erase and write = sigmoid(normal), no
/// initial state; with the parameter `loss`, do and dht normal.
class Draft {
 public:
  explicit Draft(const Settings& given);

  const Settings& settings;
  std::size_t B, T, H, HV, K, V, N;
  Options options;
  bool has_scalar_decay = false;  ///< before gates() is asked
  Strength strength = Strength::head;
  std::vector<double> q, k, v, g, beta, erase, write, initial_state, output_gradient, state_gradient;
  std::optional<std::vector<double>> A_log, dt_bias;  ///< [HV], [HV decays]; stored in fp32
  std::vector<std::int64_t> cu_seqlens;
  bool keep_state = false;  ///< the initial state is stored in fp32 whatever the dtype

  Draw draw(Stream stream, const At& at, std::size_t heads, std::size_t width) const;

  /// Log decays that a value head has at a token.
  std::size_t decays() const { return has_scalar_decay ? 1 : K; }

  /// [B,T,H,K], [B,T,HV,V], [B,T,HV,K], [B,T,HV]; fewer gates, or more of beta, as those two say
  std::vector<double> keys(Stream stream, const Element& element) const;
  std::vector<double> values(const Element& element) const;
  std::vector<double> gates(Stream stream, const Element& element) const;
  std::vector<double> betas(const Element& element) const;
  std::vector<double> erase_gates(const Element& element) const;
  /// [N,HV,K,V], as [N,HV,V,K] with state_v_first; `at.t` is the key row, `at.i` the value lane.
  std::vector<double> states(const Element& element, Stream stream = Stream::state) const;

  /// An initial state of normals.
  void draw_normal_state();

  /// Rows of normals, each made of unit length.
  std::vector<double> unit_rows(Stream stream) const;
  /// Rows of expected pairwise cosine rho within a head: unit(sqrt(rho) c + sqrt(1 - rho) unit(N)).
  std::vector<double> correlated_rows(double rho) const;

  /// Fills what is empty with the defaults.
  void fill_defaults();
  /// The tokens from `count` on; the defaults are filled in first.
  void drop_tokens(std::size_t count);
  /// The validated problem.
  Problem finish();

 private:
  std::vector<double> filled(Stream stream, std::size_t heads, std::size_t width,
                             const Element& element) const;
};

// Functions of one number, in fp64.
double sigmoid(double x);
double softplus(double x);
double log_sigmoid(double x);

/// A shared parameter with another default.
Parameter shared(std::string_view name, double value);
/// ... that must have this value.
Parameter fixed(std::string_view name, double value);
/// A parameter that is 0 or 1, 0 unless given.
Parameter flag(std::string_view name, std::string_view summary);

/// Every element the same.
Element constant(double value);

// The rows, by idea.
std::vector<Recipe> decay_recipes();
std::vector<Recipe> gate_recipes();
std::vector<Recipe> solve_recipes();
std::vector<Recipe> carry_recipes();
std::vector<Recipe> structure_recipes();
std::vector<Recipe> exact_recipes();
std::vector<Recipe> backward_recipes();
std::vector<Recipe> family_recipes();
std::vector<Recipe> serving_recipes();

}  // namespace kda_check::kda::regimes
