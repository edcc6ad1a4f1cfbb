// States inside sequences that are asked for.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kda/bounds/gate_statistics.hpp"
#include "kda/bounds/term_energies.hpp"
#include "kda/problem/excerpt.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "tensor/rearranged.hpp"

using namespace kda_check;
using kda::Checkpoint;
using kda::Problem;
using kda::Sequence;
using numeric::DType;

namespace {

/// Some of any sequence, in no order, one of them twice.
Problem with_checkpoints(Problem problem, std::size_t count, std::uint64_t seed) {
  test::Random random(seed);
  const std::vector<Sequence> sequences = problem.sequences();
  for (std::size_t i = 0; i < count; ++i) {
    const Sequence& one = sequences[random.below(sequences.size())];
    problem.checkpoints.push_back({one.index, random.below(one.length() + 1)});
  }
  problem.checkpoints.push_back(problem.checkpoints.front());
  problem.validate();
  return problem;
}

Problem random_problem(std::uint64_t seed) {
  test::Random random(seed);
  test::ProblemSpec spec;
  spec.dtype = DType::fp64;
  spec.H = 1 + random.below(2), spec.HV = spec.H * (1 + random.below(2));
  spec.K = 1 + random.below(12), spec.V = 1 + random.below(12), spec.T = 1 + random.below(70);
  spec.initial_state = random.below(2) == 0, spec.state_v_first = random.below(2) == 0;
  spec.scalar_decay = random.below(4) == 0;
  spec.strength = random.below(4) == 0 ? kda::Strength::gates : kda::Strength::head;
  spec.chunk_size = random.below(2) == 0 ? 64 : 16;
  if (random.below(2) == 0)
    spec.B = 1 + random.below(3);
  else
    spec.cu_seqlens = {0, static_cast<std::int64_t>(random.below(spec.T + 1)),
                       static_cast<std::int64_t>(spec.T)};
  return with_checkpoints(test::make_problem(spec, seed), 1 + random.below(6), seed);
}

/// The definition (docs/file-format.md, Meaning) in long double: the state behind so many tokens, [K][V].
std::vector<long double> state_behind(const Problem& problem, const Checkpoint& at, std::size_t head) {
  const kda::Dimensions& d = problem.dimensions();
  const Sequence sequence = problem.sequences()[at.sequence];
  const std::size_t group = d.HV / d.H;
  std::vector<long double> state(d.K * d.V, 0);
  if (problem.initial_state)
    for (std::size_t k = 0; k < d.K; ++k)
      for (std::size_t v = 0; v < d.V; ++v)
        state[k * d.V + v] =
            problem.initial_state->value((at.sequence * d.HV + head) * d.K * d.V +
                                         (problem.options.state_v_first ? v * d.K + k : k * d.V + v));
  for (std::size_t t = 0; t < at.tokens; ++t) {
    const std::size_t token = sequence.batch * d.T + sequence.begin + t, row = token * d.HV + head;
    const auto key = [&](std::size_t k) -> long double {
      return problem.k.value((token * d.H + head / group) * d.K + k);
    };
    for (std::size_t k = 0; k < d.K; ++k)
      for (std::size_t v = 0; v < d.V; ++v)
        state[k * d.V + v] *=
            std::exp(static_cast<long double>(problem.g.value(d.has_scalar_decay ? row : row * d.K + k)));
    for (std::size_t v = 0; v < d.V; ++v) {
      long double error = problem.v.value(row * d.V + v);
      if (problem.write) error *= problem.write->value(row * d.V + v);
      for (std::size_t k = 0; k < d.K; ++k)
        error -= state[k * d.V + v] * key(k) * (problem.erase ? problem.erase->value(row * d.K + k) : 1);
      if (!problem.write) error *= problem.beta.value(row);
      for (std::size_t k = 0; k < d.K; ++k) state[k * d.V + v] += key(k) * error;
    }
  }
  return state;
}

/// In the order of the tensor.
std::vector<long double> states_of(const Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  std::vector<long double> all;
  for (const Checkpoint& at : problem.checkpoints)
    for (std::size_t head = 0; head < d.HV; ++head) {
      const std::vector<long double> state = state_behind(problem, at, head);
      for (std::size_t i = 0; i < state.size(); ++i)
        all.push_back(problem.options.state_v_first ? state[i % d.K * d.V + i / d.K] : state[i]);
    }
  return all;
}

template <class Value>
double rms_ratio(const Value& value, const std::vector<long double>& exact) {
  long double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (value(i) - exact[i]) * (value(i) - exact[i]);
    size += exact[i] * exact[i];
  }
  return size == 0 ? static_cast<double>(error) : static_cast<double>(std::sqrt(error / size));
}

Problem before(const Problem& problem, const Checkpoint& at) {
  return kda::excerpt(problem, {problem.sequences()[at.sequence].part(0, at.tokens)}, kda::Layout::rows);
}

}  // namespace

TEST_CASE("checkpoints are the states of the definition, in every form and in the oracle", "[kda]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    const Problem problem = random_problem(seed);
    const std::vector<long double> exact = states_of(problem);
    for (const kda::Variant& variant : test::cpu_variants()) {
      const kda::Answer answer =
          test::run(problem, variant.name, DType::fp64, 1 + static_cast<int>(seed % 2));
      CAPTURE(variant.name);
      REQUIRE(answer.checkpoints.size() == exact.size());
      CHECK(rms_ratio([&](std::size_t i) { return answer.checkpoints.value(i); }, exact) <= 1e-12);
    }
    std::vector<double> truth(exact.size(), HUGE_VAL);
    kda::OracleSink sink;
    sink.state = [&](const kda::OracleState& state) {
      const kda::Dimensions& d = problem.dimensions();
      if (state.tensor == "checkpoints")
        std::copy_n(state.hi, d.K * d.V, &truth[(state.row * d.HV + state.head) * d.K * d.V]);
    };
    kda::run_oracle(problem, kda::OraclePrecision::double_double, 1 + static_cast<int>(seed % 3), sink);
    CHECK(rms_ratio([&](std::size_t i) { return truth[i]; }, exact) <= 1e-15);
  }
}

TEST_CASE("a checkpoint has the bits of a shorter problem's final state, and changes none of others",
          "[kda]") {
  test::ProblemSpec spec = test::packed_spec();
  spec.dtype = DType::bf16, spec.HV = 4, spec.state_v_first = true;
  const Problem plain = test::make_problem(spec), problem = with_checkpoints(test::make_problem(spec), 12, 3);
  for (const DType dtype : {DType::fp32, DType::bf16})
    for (const kda::Variant& variant : test::cpu_variants()) {
      CAPTURE(variant.name, static_cast<int>(dtype));
      const kda::Answer answer = test::run(problem, variant.name, dtype, 2),
                        without = test::run(plain, variant.name, dtype, 2);
      CHECK(without.checkpoints.empty());
      CHECK(test::differing_bits(answer.o, without.o) == 0);
      CHECK(test::differing_bits(answer.final_state, without.final_state) == 0);
      for (std::size_t row = 0; row < problem.checkpoints.size(); ++row) {
        const Checkpoint& at = problem.checkpoints[row];
        if (at.tokens == 0) continue;
        const tensor::Tensor got = tensor::picked(answer.checkpoints, 0, std::vector{row});
        CHECK(test::differing_bits(got, test::run(before(problem, at), variant.name, dtype).final_state) ==
              0);
      }
    }
}

TEST_CASE("limits of a checkpoint are those of a shorter problem's final state", "[kda]") {
  test::ProblemSpec spec;
  spec.T = 150, spec.K = 16, spec.V = 8, spec.HV = 2, spec.B = 2;
  Problem problem = test::make_problem(spec);
  for (const std::size_t tokens : {1, 64, 70, 128, 150}) {
    CAPTURE(tokens);
    problem.checkpoints = {{1, tokens}};
    problem.validate();
    const Problem shorter = before(problem, problem.checkpoints.front());
    const kda::GateStatistics gates = kda::gate_statistics(problem, 64, 1),
                              of_shorter = kda::gate_statistics(shorter, 64, 1);
    REQUIRE(gates.checkpoints.size() == of_shorter.channels.size());
    for (std::size_t i = 0; i < gates.checkpoints.size(); ++i) {
      const auto &a = gates.checkpoints[i], &b = of_shorter.channels[i];
      CHECK((a.behind == b.behind && a.rounding == b.rounding && a.left == b.left));
    }
    const kda::TermEnergies energies = kda::term_energies(problem, kda::Pass::forward, 64, 1),
                            expected = kda::term_energies(shorter, kda::Pass::forward, 64, 1);
    CHECK(std::fabs(energies.checkpoints.terms.root() / expected.final_state.terms.root() - 1) < 1e-12);
    CHECK(std::fabs(energies.checkpoints.rounding.root() / expected.final_state.rounding.root() - 1) < 1e-12);
    CHECK(energies.checkpoint_error.recurrence.root() > 0.3 * expected.state_error.recurrence.root());
  }
}
