// The storage axis: every stage that can be named is rounded where it says, and nothing else is.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "numeric/rounding.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace storage_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

/// Two chunks and a bit, keys of length one made by the kernel, an initial state.
Problem two_chunks() {
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 24, spec.V = 10, spec.qk_l2norm = true, spec.chunk_size = 16;
  return test::make_problem(spec, 5);
}

struct Run {
  Answer answer;
  StageTensors stages;
};

Run run_with(const Problem& problem, const std::string& storage) {
  RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  for (const char* const word : {"decay=anchor-first:16", "inverse=doubling:16"})
    set_axis(options.arithmetic, word);
  set_axis(options.arithmetic, "storage=" + storage);
  Run run{{}, allocate_stages(problem, options.chunk_size, DType::fp32)};
  options.stages.computed = &run.stages;
  run.answer = test::run(problem, "chunk", options);
  return run;
}

float through(Rounding rounding, float x) {
  return rounding == Rounding::bf16   ? numeric::through_bf16(x)
         : rounding == Rounding::fp16 ? numeric::through_fp16(x)
                                      : numeric::through_tf32(x);
}

bool representable(const tensor::Tensor& tensor, Rounding rounding, std::size_t from = 0) {
  for (std::size_t i = from; i < tensor.size(); ++i) {
    const auto value = static_cast<float>(tensor.value(i));
    if (through(rounding, value) != value) return false;
  }
  return true;
}

/// Elements of the first chunk: rows of 16 tokens, or the first state.
std::size_t first_chunk_of(const StageRow& row, const tensor::Tensor& tensor) {
  return row.stage == Stage::h ? tensor.size() / 3 : tensor.size() / 40 * 16;
}

bool same(const tensor::Tensor& a, const tensor::Tensor& b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (a.value(i) != b.value(i)) return false;
  return true;
}

struct Expectation {
  const char* stage;
  const char*
      changed;  ///< stages of the first chunk that differ from those of storage=none; the others are the same
  const char* rounded;  ///< the stage whose every element is representable, or ""
};
/// v_new follows from u, w and h; h of the first chunk is the initial state.
const Expectation expectations[] = {
    {"normalised", "Aqk Akk_inv u w qg kg v_new", ""},
    {"decay", "", ""},
    {"g_cumsum", "g_cumsum Aqk Akk_inv u w qg kg v_new", "g_cumsum"},
    {"exponentials", "Aqk Akk_inv u w qg kg v_new", ""},
    {"score_operands", "Aqk Akk_inv u w v_new", ""},
    {"Aqk", "Aqk", "Aqk"},
    {"L", "Akk_inv u w v_new", ""},
    {"inverse_operands", "Akk_inv u w v_new", ""},
    {"Akk_inv", "Akk_inv u w v_new", "Akk_inv"},
    {"beta_key", "w v_new", ""},
    {"operands", "u w qg kg v_new", "qg"},
    {"kg", "kg", "kg"},
    {"w", "w v_new", "w"},
    {"u", "u v_new", "u"},
    {"prediction", "v_new", ""},
    {"v_new", "v_new", "v_new"},
    {"state", "h v_new", "h"},
    {"carry", "", ""},
};

}  // namespace

TEST_CASE("a stage named in storage is rounded, and changes only what follows from it", "[storage]") {
  const Problem problem = two_chunks();
  const Run plain = run_with(problem, "none");
  for (const Rounding rounding : {Rounding::bf16, Rounding::fp16, Rounding::tf32})
    for (const Expectation& expected : expectations) {
      const std::string format = rounding == Rounding::bf16   ? "bf16"
                                 : rounding == Rounding::fp16 ? "fp16"
                                                              : "tf32";
      const Run run = run_with(problem, fmt::format("{}@{}", format, expected.stage));
      INFO(format << '@' << expected.stage);
      const std::string changed = fmt::format(" {} ", expected.changed);
      for (const StageRow& row : stages()) {
        const auto index = static_cast<std::size_t>(row.stage);
        INFO(row.name);
        const bool is_same =
            same(run.stages[index], plain.stages[index], first_chunk_of(row, plain.stages[index]));
        CHECK(is_same == (changed.find(fmt::format(" {} ", row.name)) == std::string::npos));
        if (row.name == expected.rounded) {
          CHECK(representable(run.stages[index], rounding));
          CHECK_FALSE(representable(plain.stages[index], rounding));
        }
      }
      // All of them reach the end.
      CHECK(test::differing_bits(run.answer.o, plain.answer.o) > 0);
      CHECK(test::rms_ratio(run.answer.o, test::whole_oracle(problem).o) < 0.05);
    }
}

TEST_CASE("the decay of the carried state and the carried state itself are rounded between chunks",
          "[storage]") {
  const Problem problem = two_chunks();
  const auto h = static_cast<std::size_t>(Stage::h);
  const Run plain = run_with(problem, "none"), carry = run_with(problem, "bf16@carry"),
            decay = run_with(problem, "bf16@decay");
  const std::size_t state = plain.stages[h].size() / 3;
  CHECK(representable(carry.stages[h], Rounding::bf16, state));
  CHECK_FALSE(representable(carry.stages[h], Rounding::bf16));  // the initial state enters as it is
  CHECK(representable(carry.answer.final_state, Rounding::bf16));
  CHECK_FALSE(same(decay.stages[h], plain.stages[h], 2 * state));
  CHECK(same(decay.stages[h], plain.stages[h], state));
}

TEST_CASE("tf32@products rounds what a product reads and nothing else", "[storage]") {
  const Problem problem = two_chunks();
  const Run plain = run_with(problem, "none"), products = run_with(problem, "tf32@products");
  for (const StageRow& row : stages()) {
    const auto index = static_cast<std::size_t>(row.stage);
    INFO(row.name);
    const bool is_operand = row.stage != Stage::g_cumsum && row.stage != Stage::u;
    CHECK(representable(products.stages[index], Rounding::tf32) == is_operand);
    CHECK_FALSE(representable(plain.stages[index], Rounding::tf32));
  }
}

TEST_CASE("a format above fp32's own does not exist, and fp64 has no cast points", "[storage]") {
  Arithmetic arithmetic;
  set_axis(arithmetic, "storage=bf16@state+tf32@products");
  CHECK(cast_points(arithmetic, DType::fp64, true, true) == CastPoints{});
  CHECK(cast_points(arithmetic, DType::fp32, true, true).state == Rounding::tf32);  // the later word counts
  CHECK_THROWS_WITH(set_axis(arithmetic, "storage=fp32@state"), ContainsSubstring("no such storage"));
  CHECK_THROWS_WITH(set_axis(arithmetic, "storage=bf16@sate"), ContainsSubstring("did you mean 'state'?"));
}

TEST_CASE("a recurrence rounds decay, prediction and carried state where it says", "[storage]") {
  test::ProblemSpec spec;
  spec.T = 20, spec.K = 12, spec.V = 5;
  const Problem problem = test::make_problem(spec, 8);
  RunOptions options = test::default_options(problem, "recurrent", DType::fp32);
  set_axis(options.arithmetic, "contraction=separate");
  set_axis(options.arithmetic, "storage=bf16@decay+fp16@prediction+bf16@carry");
  const Answer answer = test::run(problem, "recurrent", options);
  const auto value = [](const tensor::Tensor& tensor, std::size_t i) {
    return static_cast<float>(tensor.value(i));
  };
  const auto scale = static_cast<float>(problem.scale());
  for (std::size_t v = 0; v < spec.V; ++v) {
    std::vector<float> S(spec.K);
    for (std::size_t k = 0; k < spec.K; ++k) S[k] = value(*problem.initial_state, k * spec.V + v);
    for (std::size_t t = 0; t < spec.T; ++t) {
      float prediction = 0, o = 0;
      for (std::size_t k = 0; k < spec.K; ++k) {
        const std::size_t at = t * spec.K + k;
        const double decay = std::exp(problem.g.value(at));
        S[k] = S[k] * numeric::through_bf16(static_cast<float>(decay));
        const float term = value(problem.k, at) * S[k];
        prediction = prediction + term;
      }
      const float error = value(problem.v, t * spec.V + v) - numeric::through_fp16(prediction);
      const float write = error * value(problem.beta, t);
      for (std::size_t k = 0; k < spec.K; ++k) {
        const std::size_t at = t * spec.K + k;
        const float term = value(problem.k, at) * write;
        S[k] = numeric::through_bf16(term + S[k]);
        const float weight = value(problem.q, at) * scale;
        const float read = weight * S[k];
        o = o + read;
      }
      REQUIRE(value(answer.o, t * spec.V + v) == o);
    }
    for (std::size_t k = 0; k < spec.K; ++k) REQUIRE(value(answer.final_state, k * spec.V + v) == S[k]);
  }
}

}  // namespace storage_tests
