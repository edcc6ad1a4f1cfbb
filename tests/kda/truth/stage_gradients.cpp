// The backward stages of the chunk form: their truth against the gradients' oracle, which knows no chunks,
// and runs against that truth.
#include <algorithm>
#include <cmath>

#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/stage_oracle.hpp"
#include "kda/variants/variants.hpp"
#include "numeric/double_double_functions.hpp"
#include "support/catch.hpp"
#include "support/chunks.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace stage_gradients_tests {

using namespace kda_check;
using kda::Gradient;
using kda::Passes;
using kda::Stage;
using numeric::DoubleDouble;
using numeric::DType;

namespace {

std::size_t number(Stage stage) { return static_cast<std::size_t>(stage); }
std::size_t number(Gradient gradient) { return static_cast<std::size_t>(gradient); }

/// Without norm, gate and sigmoid: the gradients are those of what the chunk form reads.
std::vector<test::ProblemSpec> plain_specs() {
  test::ProblemSpec plain, packed, grouped, steep;
  plain.T = 40, plain.K = 12, plain.V = 20, plain.chunk_size = 16;
  packed.T = 50, packed.K = 8, packed.V = 6, packed.chunk_size = 16, packed.cu_seqlens = {0, 1, 18, 18, 50};
  packed.initial_state = false;
  grouped.T = 20, grouped.H = 2, grouped.HV = 4, grouped.K = 16, grouped.V = 8, grouped.state_v_first = true;
  grouped.B = 2, grouped.chunk_size = 16;
  steep.T = 33, steep.K = 6, steep.V = 5, steep.chunk_size = 32, steep.gate_size = 4;
  return {plain, packed, grouped, steep};
}

/// One chunk of a truth with the inputs of its tokens, all exact.
class ExactChunk {
 public:
  ExactChunk(const kda::Problem& problem, const kda::StageTruths& truths, const kda::ChunkPlace& place)
      : problem_(problem),
        truths_(truths),
        place_(place),
        d_(kda::chunked_dimensions(problem, static_cast<std::size_t>(problem.options.chunk_size))) {}

  DoubleDouble operator()(Stage stage, std::size_t row, std::size_t column) const {
    const std::size_t element =
        kda::StageLayout(stage, d_, problem_.options.state_v_first).element(place_, row, column);
    return {truths_[number(stage)].hi[element], truths_[number(stage)].lo[element]};
  }
  /// Elements of [B,T,HV,width] and, for q and k, of their head.
  std::size_t at(std::size_t row, std::size_t width, std::size_t channel) const {
    return ((place_.batch * d_.T + place_.begin + row) * d_.HV + place_.head) * width + channel;
  }
  std::size_t at_query(std::size_t row, std::size_t channel) const {
    const std::size_t head = place_.head / problem_.heads_per_group();
    return ((place_.batch * d_.T + place_.begin + row) * d_.H + head) * d_.K + channel;
  }
  double k(std::size_t row, std::size_t channel) const { return problem_.k.value(at_query(row, channel)); }
  double v(std::size_t row, std::size_t channel) const { return problem_.v.value(at(row, d_.V, channel)); }
  double beta(std::size_t row) const { return problem_.beta.value(at(row, 1, 0)); }
  double output_gradient(std::size_t row, std::size_t channel) const {
    return problem_.output_gradient->value(at(row, d_.V, channel));
  }
  /// exp(G_i - G_j) of a channel; exp(G_i).
  DoubleDouble decay(std::size_t i, std::size_t j, std::size_t channel) const {
    return numeric::exp((*this)(Stage::g_cumsum, i, channel) - (*this)(Stage::g_cumsum, j, channel));
  }
  DoubleDouble decay(std::size_t i, std::size_t channel) const {
    return numeric::exp((*this)(Stage::g_cumsum, i, channel));
  }
  /// (A^T stage)_i: what a stage is behind the inverse.
  DoubleDouble through_inverse(Stage stage, std::size_t i, std::size_t channel) const {
    DoubleDouble sum{0.0};
    for (std::size_t j = i; j < place_.rows; ++j)
      sum = sum + (*this)(Stage::Akk_inv, j, i) * (*this)(stage, j, channel);
    return sum;
  }
  const kda::ChunkPlace& place() const { return place_; }
  const kda::Dimensions& dimensions() const { return d_; }

 private:
  const kda::Problem& problem_;
  const kda::StageTruths& truths_;
  const kda::ChunkPlace place_;
  const kda::Dimensions d_;
};

struct Truths {
  kda::Problem problem;
  std::size_t chunk;
  kda::StageTruths stages;
  kda::GradientTruths gradients;

  explicit Truths(const test::ProblemSpec& spec)
      : problem(test::with_loss(test::make_problem(spec))),
        chunk(static_cast<std::size_t>(spec.chunk_size)),
        stages(kda::run_stage_oracle(problem, chunk, 2, Passes::both)),
        gradients(kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, chunk, 2)) {}

  /// Whether `value` is that element of a gradient, to 1e-26 of its magnitude.
  bool is_gradient(Gradient gradient, std::size_t element, DoubleDouble value) const {
    const kda::GradientTruth& truth = gradients[number(gradient)];
    const DoubleDouble off = value - DoubleDouble{truth.hi[element], truth.lo[element]};
    return std::fabs(off.hi) <= 1e-26 * (1e-2 + truth.magnitude[element]);
  }
};

}  // namespace

TEST_CASE("exact backward stages, put together, give the gradients of the recurrence", "[stages][backward]") {
  for (const test::ProblemSpec& spec : plain_specs()) {
    const Truths exact(spec);
    const std::size_t K = spec.K, V = spec.V;
    std::vector<DoubleDouble> dq(exact.problem.q.size());
    test::over_chunks(exact.problem, [&](const kda::ChunkPlace& place, const kda::Sequence&) {
      const ExactChunk chunk(exact.problem, exact.stages, place);
      for (std::size_t i = 0; i < place.rows; ++i) {
        DoubleDouble dbeta{0.0};
        for (std::size_t v = 0; v < V; ++v) {
          const DoubleDouble dvb = chunk.through_inverse(Stage::dv, i, v);
          REQUIRE(exact.is_gradient(Gradient::dv, chunk.at(i, V, v), dvb * chunk.beta(i)));
          dbeta = dbeta + dvb * chunk.v(i, v);
        }
        for (std::size_t k = 0; k < K; ++k) {
          dbeta = dbeta + chunk.through_inverse(Stage::dw, i, k) * chunk.decay(i, k) * chunk.k(i, k);
          DoubleDouble of_state{0.0}, within{0.0};
          for (std::size_t v = 0; v < V; ++v)
            of_state = of_state + chunk(Stage::h, k, v) * chunk.output_gradient(i, v);
          for (std::size_t j = 0; j <= i; ++j) {
            const DoubleDouble key = chunk.decay(i, j, k) * chunk.k(j, k);
            within = within + chunk(Stage::dAqk, i, j) * key;
            dbeta = dbeta + chunk(Stage::dAkk, i, j) * key * chunk.k(i, k);
          }
          DoubleDouble& sum = dq[chunk.at_query(i, k)];
          sum = sum + within + chunk.decay(i, k) * of_state * exact.problem.scale();
        }
        REQUIRE(exact.is_gradient(Gradient::dbeta, chunk.at(i, 1, 0), dbeta));
      }
    });
    for (std::size_t e = 0; e < dq.size(); ++e) REQUIRE(exact.is_gradient(Gradient::dq, e, dq[e]));
  }
}

TEST_CASE("the exact gradient of a state is dht at the end, and goes back by the backward stages",
          "[stages][backward]") {
  for (const test::ProblemSpec& spec : plain_specs()) {
    const Truths exact(spec);
    test::over_chunks(exact.problem, [&](const kda::ChunkPlace& place, const kda::Sequence& s) {
      const ExactChunk chunk(exact.problem, exact.stages, place);
      const kda::Dimensions& d = chunk.dimensions();
      for (std::size_t k = 0; k < spec.K; ++k)
        for (std::size_t v = 0; v < spec.V; ++v) {
          const std::size_t of_state =
              (s.index * d.HV + place.head) * d.K * d.V + (spec.state_v_first ? v * d.K + k : k * d.V + v);
          const DoubleDouble dh = chunk(Stage::dh, k, v);
          if (place.begin + place.rows == s.end)
            REQUIRE((dh.hi == exact.problem.state_gradient->value(of_state) && dh.lo == 0));
          DoubleDouble entering = chunk.decay(place.rows - 1, k) * dh;
          for (std::size_t i = 0; i < place.rows; ++i)
            entering = entering +
                       chunk(Stage::qg, i, k) * chunk.output_gradient(i, v) * exact.problem.scale() -
                       chunk(Stage::w, i, k) * chunk(Stage::dv, i, v);
          if (place.begin > s.begin) {
            kda::ChunkPlace before = place;
            before.begin -= exact.chunk, before.rows = exact.chunk, --before.index;
            const DoubleDouble off =
                ExactChunk(exact.problem, exact.stages, before)(Stage::dh, k, v) - entering;
            REQUIRE(std::fabs(off.hi) <= 1e-26);
          } else if (exact.problem.initial_state) {
            REQUIRE(exact.is_gradient(Gradient::dinitial_state, of_state, entering));
          }
        }
      for (std::size_t i = 0; i < place.rows; ++i)
        for (std::size_t v = 0; v < spec.V; ++v) {
          DoubleDouble dv = chunk(Stage::dv_local, i, v);
          for (std::size_t k = 0; k < spec.K; ++k) dv = dv + chunk(Stage::kg, i, k) * chunk(Stage::dh, k, v);
          REQUIRE(std::fabs((dv - chunk(Stage::dv, i, v)).hi) <= 1e-26);
        }
    });
  }
}

TEST_CASE("chunk backwards in fp64 computes every stage to its last digits", "[stages][backward]") {
  std::vector<test::ProblemSpec> specs = plain_specs();
  test::ProblemSpec& gated = specs.emplace_back();
  gated.T = 30, gated.gate = kda::Gate::lower_bound, gated.qk_l2norm = gated.beta_sigmoid = true;
  gated.chunk_size = 32;
  for (const test::ProblemSpec& spec : specs) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    const auto C = static_cast<std::size_t>(spec.chunk_size);
    const kda::StageTruths truths = kda::run_stage_oracle(problem, C, 1, Passes::both);
    kda::StageTensors computed = kda::allocate_stages(problem, C, DType::fp64, Passes::both);
    kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64);
    options.stages.computed = &computed;
    kda::run_chunk_backward(problem, options);
    for (const kda::StageRow& row : kda::stages(Passes::both)) {
      if (!row.backward) continue;
      const kda::StageTruth& truth = truths[number(row.stage)];
      REQUIRE(computed[number(row.stage)].size() == truth.hi.size());
      double largest = 0;
      for (std::size_t e = 0; e < truth.hi.size(); ++e) {
        INFO(row.name << " " << e);
        REQUIRE(std::fabs(computed[number(row.stage)].value(e) - truth.hi[e]) <=
                1e-14 * (1e-2 + truth.magnitude[e]));
        REQUIRE(std::fabs(truth.hi[e]) <= (1 + 1e-12) * truth.magnitude[e]);
        largest = std::max(largest, std::fabs(truth.hi[e]));
      }
      CHECK(largest > 1e-3);  // something was there to compare
    }
  }
}

TEST_CASE("a backward run given its own stages gives the same bits, given exact ones better gradients",
          "[stages][backward]") {
  test::ProblemSpec spec;
  spec.T = 50, spec.H = 1, spec.HV = 2, spec.K = 20, spec.V = 33, spec.chunk_size = 16;
  spec.cu_seqlens = {0, 20, 50};
  const Truths exact(spec);
  kda::StageTensors own = kda::allocate_stages(exact.problem, 16, DType::fp32, Passes::both);
  kda::RunOptions options = test::default_options(exact.problem, "chunk", DType::fp32);
  options.stages.computed = &own;
  test::run(exact.problem, "chunk", options);
  const kda::GradientTensors plain = kda::run_chunk_backward(exact.problem, options);
  options.stages = {};
  options.stages.given = &own;
  options.stages.use_given.fill(true);
  const kda::GradientTensors again = kda::run_chunk_backward(exact.problem, options);
  const kda::StageTensors rounded = kda::rounded_stages(exact.stages, exact.problem, 16, DType::fp32);
  options.stages.given = &rounded;
  const kda::GradientTensors best = kda::run_chunk_backward(exact.problem, options);
  for (const kda::GradientRow& row : kda::gradients()) {
    const tensor::Tensor& gradient = plain[number(row.gradient)];
    if (gradient.empty()) continue;
    INFO(row.name);
    CHECK(test::differing_bits(gradient, again[number(row.gradient)]) == 0);
    const kda::GradientTruth& truth = exact.gradients[number(row.gradient)];
    std::vector<DoubleDouble> values(truth.hi.size());
    for (std::size_t e = 0; e < values.size(); ++e) values[e] = {truth.hi[e], truth.lo[e]};
    const double error = test::rms_ratio(best[number(row.gradient)], values);
    // dinitial_state loses most in the first chunk's last sum, which is not a stage.
    const double part = row.gradient == Gradient::dinitial_state ? 1 : 0.9;
    CHECK(error < part * test::rms_ratio(gradient, values));
    CHECK(error < 1e-6);
  }
}

TEST_CASE("a given backward stage changes what follows from it, and nothing before it",
          "[stages][backward]") {
  test::ProblemSpec spec;
  spec.T = 16, spec.K = 12, spec.V = 10, spec.chunk_size = 16;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  kda::StageTensors plain = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
  options.stages.computed = &plain;
  kda::run_chunk_backward(problem, options);
  struct Row {
    Stage given;
    std::vector<Stage> changed;
  };
  const Row rows[] = {{Stage::dAqk, {}},
                      {Stage::dv_local, {Stage::dv, Stage::dw, Stage::dAkk}},
                      {Stage::dh, {Stage::dv, Stage::dw, Stage::dAkk}},
                      {Stage::dv, {Stage::dw, Stage::dAkk}},
                      {Stage::dw, {Stage::dAkk}},
                      {Stage::dAkk, {}}};
  for (const Row& row : rows) {
    kda::StageTensors other = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
    kda::StageTensors given = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
    tensor::Tensor& altered = given[number(row.given)];
    for (std::size_t e = 0; e < altered.size(); ++e) altered.set(e, 1.5 * plain[number(row.given)].value(e));
    options.stages = {&other, &given, {}};
    options.stages.use_given[number(row.given)] = true;
    kda::run_chunk_backward(problem, options);
    for (const kda::StageRow& stage : kda::stages(Passes::both)) {
      if (!stage.backward) continue;
      INFO(kda::row_of(row.given).name << " given, " << stage.name);
      const bool changes =
          std::find(row.changed.begin(), row.changed.end(), stage.stage) != row.changed.end();
      CHECK((test::differing_bits(plain[number(stage.stage)], other[number(stage.stage)]) > 0) == changes);
    }
  }
}

}  // namespace stage_gradients_tests
