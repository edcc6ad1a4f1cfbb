// Units lost by the elements of a tensor, and by the whole.
#include "judge/measures/units_lost.hpp"

#include <cmath>
#include <csignal>

#include "base/interruption.hpp"
#include "judge/measures/head_energies.hpp"
#include "judge/measures/head_values.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace units_lost_tests {

using namespace kda_check;
using namespace kda_check::judge;
using numeric::ComputeFormat;

namespace {

/// Two heads, the first of which forgets everything at token 8.
kda::Problem two_heads() {
  test::ProblemSpec spec;
  spec.T = 16, spec.H = spec.HV = 2, spec.K = 2, spec.V = 3, spec.initial_state = false;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, i / 2 == 16 ? -1000 : 0);
  return problem;
}

UnitsLost lost(const kda::Problem& problem, std::string_view tensor, const std::vector<double>& values,
               ComputeFormat compute = ComputeFormat::fp32, Form form = Form::recurrence) {
  const kda::GateStatistics gates = kda::gate_statistics(problem, 64, 1);
  const kda::TensorSpec& spec = *kda::find_spec(tensor);
  UnitsSum sum(tensor, kda::expected_shape(spec, problem.dimensions(), problem.options.state_v_first),
               problem, gates, compute, form);
  sum.add(0, values.size(), values.data());
  return sum.result();
}

}  // namespace

TEST_CASE("every token and head has units of its own, weighted by what it adds to the rms", "[limits]") {
  const kda::Problem problem = two_heads();
  std::vector<double> o(16 * 2 * 3, 0.0);
  const auto set = [&](std::size_t t, std::size_t head, double value) { o[(t * 2 + head) * 3 + 1] = value; };
  set(15, 1, 1);
  CHECK(lost(problem, "o", o).rms == 16 + 0.5 * 16);
  set(15, 1, 0), set(15, 0, 1);
  CHECK(lost(problem, "o", o).rms == 16 + 0.5 * 8);
  set(15, 1, 1);
  CHECK(lost(problem, "o", o).rms == Approx(std::sqrt((24. * 24 + 20 * 20) / 2)));
  set(15, 1, 1e-3);
  CHECK(lost(problem, "o", o).rms == Approx(20).epsilon(1e-5));
  CHECK(lost(problem, "o", o).largest == 24);  // an element counts, however small
}

TEST_CASE("the units of a tensor are the same at any scale, and those of zeros the most there are",
          "[limits]") {
  const kda::Problem problem = two_heads();
  std::vector<double> o(16 * 2 * 3, 0.0);
  CHECK(lost(problem, "o", o).rms == 24);
  for (const double scale : {1.0, 1e-200, 1e200}) {
    for (std::size_t i = 0; i < o.size(); ++i) o[i] = scale * static_cast<double>(i % 7);
    CHECK(lost(problem, "o", o).rms ==
          Approx(lost(problem, "o", std::vector<double>(96, 1.0)).rms).epsilon(0.05));
  }
  o[5] = NAN, o[6] = HUGE_VAL;
  CHECK(std::isfinite(lost(problem, "o", o).rms));
}

TEST_CASE("narrow operands lose the same everywhere", "[limits]") {
  const kda::Problem problem = two_heads();
  const std::vector<double> o(16 * 2 * 3, 1.0);
  for (const ComputeFormat compute : {ComputeFormat::tf32, ComputeFormat::bf16, ComputeFormat::fp16}) {
    CHECK(lost(problem, "o", o, compute).rms == 16);
    CHECK(lost(problem, "o", o, compute).largest == 16);
  }
}

TEST_CASE("rows of a state remember what their channel does", "[limits]") {
  for (const bool v_first : {false, true}) {
    kda::Problem problem = two_heads();
    problem.options.state_v_first = v_first;
    problem.g.set(8 * 4 + 1, 0);  // the other channel of the first head remembers
    std::vector<double> state(2 * 2 * 3, 0.0);
    const auto element = [&](std::size_t k, std::size_t v) { return v_first ? v * 2 + k : k * 3 + v; };
    state[element(0, 2)] = 1;
    CHECK(lost(problem, "final_state", state).rms == 16 + 0.5 * 8);
    state[element(0, 2)] = 0, state[element(1, 2)] = 1;
    CHECK(lost(problem, "final_state", state).rms == 16 + 0.5 * 16);
  }
}

TEST_CASE("units and energies do not depend on the order of the heads", "[limits]") {
  test::ProblemSpec spec;
  spec.T = 40, spec.H = spec.HV = 3, spec.K = 4, spec.V = 5;
  const kda::Problem problem = test::make_problem(spec);
  const kda::GateStatistics gates = kda::gate_statistics(problem, 64, 1);
  const tensor::Shape shape = kda::expected_shape(*kda::find_spec("o"), problem.dimensions(), false);
  std::vector<double> o(tensor::element_count(shape));
  test::Random random(3);
  for (double& x : o) x = random.normal();
  o[7] = HUGE_VAL;  // counts nowhere
  UnitsSum together("o", shape, problem, gates, ComputeFormat::fp32, Form::unknown), apart = together;
  HeadEnergies energy("o", shape, false), energy_apart = energy;
  together.add(0, o.size(), o.data()), energy.add(0, o.size(), o.data());
  for (std::size_t head = 3; head-- > 0;)
    for (std::size_t t = 0; t < spec.T; ++t) {
      const std::size_t begin = (t * 3 + head) * spec.V;
      apart.add(begin, spec.V, &o[begin]), energy_apart.add(begin, spec.V, &o[begin]);
    }
  CHECK(together.result().rms == apart.result().rms);
  CHECK(together.result().largest == apart.result().largest);
  CHECK(energy.total().root() == energy_apart.total().root());
  double squares = 0;
  for (const double x : o) squares += std::isfinite(x) ? x * x : 0;
  CHECK(energy.total().root() == Approx(std::sqrt(squares)));
}

TEST_CASE("a signal that asks for the end stops what is added up within a head", "[interruption]") {
  const TensorAxes axes("o", {1, 1000, 1, 2}, false);
  int added = 0;
  const auto add = [&](std::size_t, std::size_t) {
    if (++added == 3) interrupt(SIGTERM);
  };
  CHECK_THROWS_AS(axes.over_heads(0, 2000, 1, add), Interrupted);
  forget_interruption();
  CHECK(added == 3);
}

TEST_CASE("a signal that asks for the end stops whoever reads the rows of a head", "[interruption]") {
  const HeadRows rows(std::vector<double>(2 * padded_width(3), 1.0), 3);
  std::vector<double> row(padded_width(3));
  CHECK_NOTHROW(rows.read(0, row.data()));
  interrupt(SIGTERM);
  CHECK_THROWS_AS(rows.read(1, row.data()), Interrupted);
  forget_interruption();
}

}  // namespace units_lost_tests
