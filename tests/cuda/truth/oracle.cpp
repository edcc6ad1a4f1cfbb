// The oracle on the GPU against the CPU's: the same bits of values and magnitudes, handed out in the same
// pieces.
#include "kda/truth/oracle.hpp"

#include "kda/gpu/kept_inputs.hpp"
#include "kda/truth/gpu_oracle.hpp"
#include "support/gpu.hpp"
#include "support/gpu_problems.hpp"

namespace oracle_tests {

using namespace kda_check;
using kda::OracleDevice;
using kda::OraclePrecision;
using numeric::DType;
using test::ProblemSpec;

namespace {

/// What the sinks were given, call by call.
struct Recorded {
  std::vector<std::vector<std::size_t>> calls;
  std::vector<double> values;

  kda::OracleSink sink(const kda::Problem& problem) {
    const kda::Dimensions d = problem.dimensions();
    const auto keep = [this](const double* hi, const double* lo, const double* magnitude, std::size_t count) {
      for (const double* const part : {hi, lo, magnitude}) values.insert(values.end(), part, part + count);
    };
    return {.begun = [this] { calls.push_back({2}); },
            .output =
                [this, d, keep](const kda::OracleOutput& part) {
                  calls.push_back({0, part.batch, part.begin, part.count, part.heads.first, part.heads.last});
                  keep(part.hi, part.lo, part.magnitude,
                       part.count * (part.heads.last - part.heads.first) * d.V);
                },
            .state =
                [this, d, keep](const kda::OracleState& state) {
                  calls.push_back({1, state.row, state.head});
                  keep(state.hi, state.lo, state.magnitude, d.K * d.V);
                },
            .error = [this](double error) { values.push_back(error); }};
  }
};

Recorded recorded(const kda::Problem& problem, const kda::OracleOptions& options,
                  const kda::HeadRange& heads) {
  Recorded result;
  kda::run_oracle(problem, options, 16, result.sink(problem), heads);
  return result;
}

void check_oracle(const kda::Problem& problem, const kda::HeadRange& heads = {}) {
  for (const OraclePrecision precision : {OraclePrecision::double_double, OraclePrecision::fp64}) {
    INFO((precision == OraclePrecision::fp64 ? "fp64" : "double-double"));
    const Recorded cpu = recorded(problem, precision, heads),
                   gpu = recorded(problem, {precision, OracleDevice::gpu}, heads);
    CHECK(cpu.calls == gpu.calls);
    CHECK(test::differing(cpu.values, gpu.values) == 0);
  }
}

}  // namespace

TEST_CASE("the oracle has the CPU's bits on every fixture", "[oracle]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures([](const kda::Problem& problem) { check_oracle(problem); });
}

TEST_CASE("the oracle has the CPU's bits on every regime", "[oracle]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_regimes(test::every_dtype, [](const kda::Problem& problem, DType) {
    if (kda::gpu_oracle_unavailable(problem.dimensions()).empty()) check_oracle(problem);
  });
}

TEST_CASE("the oracle has the CPU's bits in every shape", "[oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::in_shapes(
      {1, 5, 16, 20, 31, 33, 60, 64, 100, 128, 130, 200, 256}, {1, 3, 33, 64, 70, 128}, 17, 60,
      [](const ProblemSpec& spec, std::uint64_t seed) { check_oracle(test::make_problem(spec, seed)); });
}

TEST_CASE("the oracle has the CPU's bits with many heads, each way of cutting columns", "[oracle]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t heads : {1, 8, 12, 16, 24, 64}) {
    ProblemSpec spec;
    spec.T = 100, spec.H = heads, spec.HV = heads, spec.K = 128, spec.V = 128;
    spec.gate = kda::Gate::softplus, spec.qk_l2norm = true;
    INFO(heads << " heads");
    check_oracle(test::make_problem(spec, heads));
  }
}

TEST_CASE("the oracle has the CPU's bits over many steps of a sequence", "[oracle]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 1500, spec.B = 2, spec.H = 16, spec.HV = 32, spec.K = 32, spec.V = 40;
  spec.state_v_first = true;
  const kda::Problem problem = test::make_problem(spec);
  check_oracle(problem);
  for (const kda::HeadRange& heads : {kda::HeadRange{3, 4}, {5, 12}, {31, 32}, {0, 1}, {7, 7}}) {
    INFO("heads " << heads.first << " to " << heads.last);
    check_oracle(problem, heads);
  }
}

TEST_CASE("the oracle has the CPU's bits with every option", "[oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::with_every_option(70, [](ProblemSpec spec, std::size_t options) {
    spec.initial_state = options & 8, spec.dtype = test::every_dtype[(options + options / 4) % 4];
    check_oracle(test::make_problem(spec, options));
  });
}

TEST_CASE("the oracle has the CPU's bits on packed sequences, empty ones included", "[oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  check_oracle(test::make_problem(spec));
  spec.H = spec.HV = 160;
  spec.K = 16, spec.V = 16;
  check_oracle(test::make_problem(spec));
}

TEST_CASE("the oracle has the CPU's bits where the inputs are on the device already", "[oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 1500, spec.B = 2, spec.H = 4, spec.HV = 8, spec.K = 32, spec.V = 40, spec.qk_l2norm = true;
  ProblemSpec long_sequences = spec;
  long_sequences.B = 1, long_sequences.cu_seqlens = {0, 0, 700, 1500};
  for (const ProblemSpec& of : {spec, long_sequences, test::packed_spec()}) {
    const kda::Problem problem = test::make_problem(of);
    const auto kept = kda::kept_on_gpu(problem);
    test::run(problem, "gpu-recurrent", DType::fp32);
    check_oracle(problem);
    check_oracle(problem, {1, 2});
  }
}

TEST_CASE("what the oracle says of infinite inputs is the CPU's", "[oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus, kda::Gate::lower_bound}) {
    ProblemSpec spec;
    spec.gate = gate, spec.T = 40, spec.K = 20, spec.V = 10;
    test::with_huge_inputs(spec, false, [](const kda::Problem& problem) { check_oracle(problem); });
  }
}

TEST_CASE("the oracle goes through every kernel there is", "[oracle][race]") {
  KDA_CHECK_NEEDS_GPU();
  // Short, for tools that watch each access.
  for (const std::size_t heads : {1, 8, 16, 48}) {
    ProblemSpec spec;
    spec.T = 5, spec.H = heads, spec.HV = heads, spec.K = 50, spec.V = 100;
    spec.gate = kda::Gate::lower_bound, spec.qk_l2norm = spec.beta_sigmoid = true;
    check_oracle(test::make_problem(spec));
  }
}

}  // namespace oracle_tests
