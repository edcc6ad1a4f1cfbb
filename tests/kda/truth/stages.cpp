#include "kda/problem/stages.hpp"

#include <cmath>

#include "kda/truth/stage_oracle.hpp"
#include "numeric/double_double_functions.hpp"
#include "support/catch.hpp"
#include "support/chunks.hpp"
#include "support/problems.hpp"

namespace stages_tests {

using namespace kda_check;
using kda::Stage;
using numeric::DoubleDouble;
using numeric::DType;

namespace {

std::size_t number(Stage stage) { return static_cast<std::size_t>(stage); }

std::vector<test::ProblemSpec> specs() {
  test::ProblemSpec plain, packed, grouped, gated;
  plain.T = 40, plain.K = 12, plain.V = 20, plain.chunk_size = 16;
  packed.T = 50, packed.K = 8, packed.V = 6, packed.chunk_size = 16, packed.cu_seqlens = {0, 1, 18, 18, 50};
  grouped.T = 20, grouped.H = 2, grouped.HV = 4, grouped.K = 16, grouped.V = 8, grouped.state_v_first = true;
  grouped.B = 2, grouped.chunk_size = 16;
  gated.T = 30, gated.gate = kda::Gate::lower_bound, gated.qk_l2norm = gated.beta_sigmoid = true;
  gated.chunk_size = 32;
  return {plain, packed, grouped, gated};
}

std::size_t chunk_of(const kda::Problem& problem) {
  return static_cast<std::size_t>(problem.options.chunk_size);
}

/// One stage of a truth, by row and column of a chunk.
class Reader {
 public:
  Reader(const kda::Problem& problem, const kda::StageTruths& truths, const kda::ChunkPlace& place)
      : problem_(problem),
        truths_(truths),
        place_(place),
        d_(kda::chunked_dimensions(problem, chunk_of(problem))) {}
  DoubleDouble operator()(Stage stage, std::size_t row, std::size_t column) const {
    const std::size_t element =
        kda::StageLayout(stage, d_, problem_.options.state_v_first).element(place_, row, column);
    return {truths_[number(stage)].hi[element], truths_[number(stage)].lo[element]};
  }

 private:
  const kda::Problem& problem_;
  const kda::StageTruths& truths_;
  const kda::ChunkPlace place_;
  const kda::Dimensions d_;
};

double distance(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble difference = a - b;
  return std::fabs(difference.hi + difference.lo);
}

}  // namespace

TEST_CASE("exact stages, put together, give the oracle's output", "[stages]") {
  for (const test::ProblemSpec& spec : specs()) {
    const kda::Problem problem = test::make_problem(spec);
    const kda::Dimensions& d = problem.dimensions();
    const kda::StageTruths truths = kda::run_stage_oracle(problem, chunk_of(problem), 2);
    const test::WholeOracle oracle = test::whole_oracle(problem);
    test::over_chunks(problem, [&](const kda::ChunkPlace& place, const kda::Sequence&) {
      const Reader read(problem, truths, place);
      for (std::size_t i = 0; i < place.rows; ++i)
        for (std::size_t v = 0; v < d.V; ++v) {
          DoubleDouble o{0.0};
          for (std::size_t k = 0; k < d.K; ++k)
            o = o + read(Stage::qg, i, k) * read(Stage::h, k, v) * problem.scale();
          for (std::size_t j = 0; j <= i; ++j) o = o + read(Stage::Aqk, i, j) * read(Stage::v_new, j, v);
          const std::size_t element = ((place.batch * d.T + place.begin + i) * d.HV + place.head) * d.V + v;
          REQUIRE(distance(o, oracle.o[element]) <= 1e-27 * (1e-3 + oracle.o_magnitude[element]));
        }
    });
  }
}

TEST_CASE("chunk in fp64 computes every stage to its last digits", "[stages]") {
  for (const test::ProblemSpec& spec : specs()) {
    const kda::Problem problem = test::make_problem(spec);
    const std::size_t C = chunk_of(problem);
    const kda::StageTruths truths = kda::run_stage_oracle(problem, C, 1);
    for (const char* const scale : {"scale=scores", "scale=q", "scale=q-late", "scale=output"}) {
      kda::StageTensors computed = kda::allocate_stages(problem, C, DType::fp64);
      kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64, {scale});
      options.stages.computed = &computed;
      test::run(problem, "chunk", options);
      for (const kda::StageRow& row : kda::stages())
        test::over_chunks(problem, [&](const kda::ChunkPlace& place, const kda::Sequence&) {
          const kda::StageLayout layout(row.stage, kda::chunked_dimensions(problem, C),
                                        problem.options.state_v_first);
          for (std::size_t r = 0; r < layout.rows(place); ++r)
            for (std::size_t c = 0; c < (row.lower_triangular() ? r + 1 : layout.columns(place)); ++c) {
              const std::size_t e = layout.element(place, r, c);
              INFO(scale << " " << row.name << " " << r << " " << c);
              REQUIRE(std::fabs(computed[number(row.stage)].value(e) - truths[number(row.stage)].hi[e]) <=
                      1e-14 * (1e-2 + truths[number(row.stage)].magnitude[e]));
            }
        });
    }
  }
}

TEST_CASE("given exact stages the output is exact, whatever scale multiplies", "[stages]") {
  for (const test::ProblemSpec& spec : specs()) {
    const kda::Problem problem = test::make_problem(spec);
    const std::size_t C = chunk_of(problem);
    const kda::StageTensors exact =
        kda::rounded_stages(kda::run_stage_oracle(problem, C, 1), problem, C, DType::fp64);
    const test::WholeOracle oracle = test::whole_oracle(problem);
    for (const char* const scale : {"scale=scores", "scale=q", "scale=q-late", "scale=output"}) {
      kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64, {scale});
      options.stages.given = &exact;
      options.stages.use_given.fill(true);
      CAPTURE(scale, spec.T);
      CHECK(test::rms_ratio(test::run(problem, "chunk", options).o, oracle.o) < 1e-14);
    }
  }
}

TEST_CASE("a run given its own stages gives the same bits, given exact ones the exact output", "[stages]") {
  test::ProblemSpec spec;
  spec.T = 50, spec.K = 20, spec.V = 33, spec.chunk_size = 16, spec.cu_seqlens = {0, 20, 50};
  const kda::Problem problem = test::make_problem(spec);
  kda::StageTensors own = kda::allocate_stages(problem, 16, DType::fp32);
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  options.stages.computed = &own;
  const kda::Answer plain = test::run(problem, "chunk", options);
  options.stages = {};
  options.stages.given = &own;
  options.stages.use_given.fill(true);
  options.stages.use_given[number(Stage::h)] =
      false;  // the carried state is not rounded to h, but is the same here
  const kda::Answer again = test::run(problem, "chunk", options);
  CHECK(test::differing_bits(plain.o, again.o) == 0);
  CHECK(test::differing_bits(plain.final_state, again.final_state) == 0);

  const kda::StageTruths truths = kda::run_stage_oracle(problem, 16, 1);
  const kda::StageTensors exact = kda::rounded_stages(truths, problem, 16, DType::fp32);
  options.stages.given = &exact;
  options.stages.use_given.fill(true);
  const test::WholeOracle oracle = test::whole_oracle(problem);
  const kda::Answer best = test::run(problem, "chunk", options);
  CHECK(test::rms_ratio(best.o, oracle.o) < 0.9 * test::rms_ratio(plain.o, oracle.o));
}

}  // namespace stages_tests
