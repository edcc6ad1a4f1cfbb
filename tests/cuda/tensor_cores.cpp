// gpu-chunk on tensor cores against its CPU replay: the same bits, whatever the problem.
#include "fixture/fixture.hpp"
#include "support/gpu.hpp"

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

constexpr DType narrow_dtypes[] = {DType::bf16, DType::fp16};

kda::RunOptions on_tensor_cores(const kda::Problem& problem, DType dtype) {
  kda::RunOptions options = test::default_options(problem, "gpu-chunk", dtype);
  kda::set_axis(options.arithmetic, "h100-mma");
  return options;
}

std::string why_not(const kda::Problem& problem, const kda::RunOptions& options) {
  return kda::variant_named("gpu-chunk").unsupported(problem, options);
}

void check_replay(const kda::Problem& problem, DType dtype, const std::vector<std::string>& words = {}) {
  kda::RunOptions options = on_tensor_cores(problem, dtype);
  for (const std::string& word : words) kda::set_axis(options.arithmetic, word);
  REQUIRE(why_not(problem, options).empty());
  CHECK(test::differing_from_replay(problem, "gpu-chunk", options) == 0);
}

}  // namespace

TEST_CASE("tensor cores and their replay give the same bits on fixtures of 16 bits", "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  std::size_t checked = 0;
  for (const std::string& path : test::large_fixture_files()) {
    INFO(path);
    const kda::Problem problem = fixture::Fixture::open(path).read_problem();
    kda::RunOptions options = on_tensor_cores(problem, problem.dtype());
    options.chunk_size = 64;
    if (!why_not(problem, options).empty()) continue;
    ++checked;
    CHECK(test::differing_from_replay(problem, "gpu-chunk", options) == 0);
  }
  if (checked == 0) KDA_CHECK_SKIP("no fixtures of 16 bits: KDA_CHECK_FIXTURES");
}

TEST_CASE("tensor cores and their replay give the same bits in every shape", "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {1, 5, 16, 20, 32, 33, 60, 64, 66, 96, 100, 128})
    for (const std::size_t V : {1, 3, 8, 33, 64, 70, 128}) {
      ProblemSpec spec;
      spec.K = K, spec.V = V, spec.T = 17 + (K * 7 + V) % 180, spec.H = 1 + K % 2,
      spec.HV = spec.H * (1 + V % 3);
      spec.B = 1 + V % 2, spec.state_v_first = V % 3 == 0, spec.safe_gate = K % 2 == 0;
      spec.qk_l2norm = K % 3 == 0, spec.initial_state = V % 4 != 0;
      spec.dtype = narrow_dtypes[(K + V) % 2];
      INFO("K " << K << " V " << V << " T " << spec.T << " " << numeric::name_of(spec.dtype));
      check_replay(test::make_problem(spec, K * 1000 + V), spec.dtype);
    }
}

TEST_CASE("tensor cores and their replay give the same bits with every option", "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus, kda::Gate::lower_bound})
    for (int options = 0; options < 64; ++options) {
      ProblemSpec spec = test::spec_with_options(gate, options);
      spec.T = 150, spec.safe_gate = options & 8;
      spec.dtype = narrow_dtypes[options % 2];
      INFO("gate " << kda::name_of(gate) << " options " << options);
      check_replay(test::make_problem(spec, static_cast<std::uint64_t>(options)), spec.dtype);
    }
}

TEST_CASE(
    "tensor cores and their replay give the same bits in every form of the decay and on packed sequences",
    "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  for (const DType dtype : narrow_dtypes) {
    spec.dtype = dtype;
    for (const char* const decay : {"anchor-pair", "anchor-first", "anchor-mid"})
      check_replay(test::make_problem(spec), dtype, {std::string("decay=") + decay});
  }
}

TEST_CASE("tensor cores and their replay give the same bits at K = V = 128 over many chunks",
          "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 1000, spec.H = 3, spec.HV = 6, spec.K = spec.V = 128, spec.qk_l2norm = spec.beta_sigmoid = true;
  spec.gate = kda::Gate::softplus;
  for (const DType dtype : narrow_dtypes) {
    spec.dtype = dtype;
    check_replay(test::make_problem(spec), dtype);
  }
}

TEST_CASE("tensor cores and their replay give the same bits however many heads share the device",
          "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t heads : {8, 48, 80, 160})
    for (const std::size_t V : {64, 100, 128}) {
      ProblemSpec spec;
      spec.T = 130, spec.H = 4, spec.HV = heads, spec.K = 32, spec.V = V, spec.dtype = DType::bf16;
      INFO("heads " << heads << " V " << V);
      check_replay(test::make_problem(spec), spec.dtype);
    }
}

TEST_CASE("every stage on tensor cores has the bits of its replay", "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {40, 128})
    for (const DType dtype : narrow_dtypes) {
      ProblemSpec spec;
      spec.T = 150, spec.K = K, spec.V = 72, spec.B = 2, spec.H = 2, spec.HV = 4, spec.dtype = dtype;
      spec.state_v_first = spec.safe_gate = K == 40, spec.qk_l2norm = spec.beta_sigmoid = true;
      const kda::Problem problem = test::make_problem(spec);
      INFO("K " << K << " " << numeric::name_of(dtype));
      test::check_stages_of_replay(problem, on_tensor_cores(problem, dtype));
    }
}

TEST_CASE("what gpu-chunk lacks on tensor cores it says") {
  ProblemSpec spec;
  spec.dtype = DType::bf16;
  const kda::Problem problem = test::make_problem(spec);
  const auto reason = [&](const kda::RunOptions& options) { return why_not(problem, options); };
  kda::RunOptions options = on_tensor_cores(problem, DType::bf16);
  kda::set_axis(options.arithmetic, "tail=suffix");
  CHECK(reason(options).find("preset h100-mma") != std::string::npos);
  options = on_tensor_cores(problem, DType::bf16);
  kda::set_axis(options.arithmetic, "decay=pair");
  CHECK(reason(options).find("anchor-pair:16") != std::string::npos);
  CHECK(reason(on_tensor_cores(problem, DType::fp32)).find("bf16 or fp16") != std::string::npos);
  CHECK(reason(on_tensor_cores(problem, DType::fp16)).find("in that dtype") != std::string::npos);
}
