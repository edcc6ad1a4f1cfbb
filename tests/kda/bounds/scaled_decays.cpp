// Answers with longer log decays, against problems that have these log decays.
#include "kda/bounds/scaled_decays.hpp"

#include <algorithm>
#include <cmath>

#include "kda/bounds/log_decays.hpp"
#include "kda/problem/heads.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace scaled_decays_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

constexpr float factor = 1 + 0x1p-6F;

/// A query head of a problem whose g are log decays in fp32, with some of them scaled.
kda::Answer expected(const kda::Problem& problem, std::size_t query_head, bool all_channels) {
  const std::vector<std::size_t> query{query_head}, values = kda::value_heads_of(problem, query);
  const kda::Problem part = kda::with_heads(problem, query, values);
  std::vector<kda::DecayOf> which;
  for (std::size_t head = 0; head < values.size(); ++head)
    if (const std::optional<std::size_t> slowest = kda::slowest_channel(part, head))
      which.emplace_back(head, all_channels ? std::nullopt : slowest);
  return test::run(kda::with_scaled_log_decays(part, which, factor), "recurrent", DType::fp32);
}

std::size_t differing(const kda::Answer& a, const kda::Answer& b) {
  return test::differing_bits(a.o, b.o) + test::differing_bits(a.final_state, b.final_state);
}

void check(const kda::Problem& problem) {
  for (std::size_t query_head = 0; query_head < problem.dimensions().H; ++query_head) {
    const kda::ScaledDecayAnswers got = kda::answers_with_scaled_decays(problem, query_head, factor);
    INFO("query head " << query_head);
    CHECK(differing(got.slowest, expected(problem, query_head, false)) == 0);
    CHECK(differing(got.all, expected(problem, query_head, true)) == 0);
  }
}

}  // namespace

TEST_CASE("answers with scaled log decays are those of a problem that has them, in every bit", "[decays]") {
  for (const bool state_v_first : {false, true}) {
    ProblemSpec spec;
    spec.B = 2, spec.T = 150, spec.H = 2, spec.HV = 4, spec.K = 20, spec.V = 37;
    spec.state_v_first = state_v_first, spec.qk_l2norm = spec.beta_sigmoid = true;
    check(test::make_problem(spec));
  }
  check(test::make_problem(test::packed_spec()));
}

TEST_CASE("of heads where nothing decays no log decay is scaled", "[decays]") {
  ProblemSpec spec;
  spec.T = 30, spec.gate_size = 0;
  const kda::Problem problem = test::make_problem(spec);
  const kda::ScaledDecayAnswers got = kda::answers_with_scaled_decays(problem, 0, factor);
  CHECK_FALSE(got.any_decays);
  const kda::Answer plain = test::run(problem, "recurrent", DType::fp32);
  CHECK(differing(got.slowest, plain) == 0);
  CHECK(differing(got.all, plain) == 0);
}

TEST_CASE("scaled log decays are those of the gate", "[decays]") {
  ProblemSpec spec;
  spec.T = 100, spec.K = 16, spec.gate = kda::Gate::softplus;
  const kda::Problem problem = test::make_problem(spec);
  const kda::ScaledDecayAnswers got = kda::answers_with_scaled_decays(problem, 0, factor);
  CHECK(got.any_decays);
  const kda::Problem plain = kda::with_log_decays(problem);
  const kda::Answer exact =
      kda::answer_in_fp64(kda::with_scaled_log_decays(plain, {{0, std::nullopt}}, factor));
  double largest = 0;
  for (std::size_t i = 0; i < exact.o.size(); ++i)
    largest = std::max(largest, std::fabs(got.all.o.value(i) - exact.o.value(i)));
  CHECK(largest < 1e-5);
  CHECK(largest > 0);
}

}  // namespace scaled_decays_tests
