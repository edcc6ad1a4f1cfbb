#include "bench/bench.hpp"
#include "bench/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kda/gpu/device.hpp"
#include "kda/pool/pool.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"

namespace bench_tests {

using namespace kda_check;
using bench::BenchRequest;
using numeric::DType;
using plan::Names;
using test::Item;
using test::items_of;

namespace {

BenchRequest request_for(std::optional<Names> variants, std::optional<Names> dtypes = {}) {
  BenchRequest request;
  request.T = 32, request.H = 2, request.K = 32, request.V = 32, request.repeats = 1;
  request.memory_budget = std::size_t{1} << 30;
  request.words.command = "bench";
  request.words.selection.variants = std::move(variants);
  request.words.selection.dtypes = std::move(dtypes);
  return request;
}

}  // namespace

TEST_CASE("bench checks the arithmetic as run does", "[bench]") {
  const auto usage = [](const char* variant, std::optional<Names> dtypes, const char* axis) {
    BenchRequest request = request_for(Names{variant}, std::move(dtypes));
    request.T = 4, request.H = 1, request.K = 8, request.V = 8, request.with_oracle = false;
    request.words.arithmetic = {axis};
    return test::refusal([&] { bench::bench(request); });
  };
  CHECK_THAT(usage("recurrent", {}, "bogus=1"), ContainsSubstring("2 --arithmetic bogus=1: no axis 'bogus'"));
  CHECK_THAT(usage("recurrent", {}, "decay=pair"),
             ContainsSubstring("2 ") && ContainsSubstring("none of the selected variants"));
  CHECK_THAT(usage("recurrent", Names{"fp64"}, "exponential=cuda"),
             ContainsSubstring("2 ") && ContainsSubstring("fp32 only"));
  CHECK_THAT(usage("recurent", {}, "contraction=fused"), ContainsSubstring("did you mean 'recurrent'?"));
  CHECK(usage("recurrent", Names{"fp64", "fp32"}, "exponential=cuda") == "accepted");
}

TEST_CASE("bench refuses rivals nobody knows and sequences that cannot be packed", "[bench]") {
  BenchRequest request = request_for(Names{"recurrent"});
  request.against = {"fal"};
  CHECK_THAT(test::refusal([&] { bench::bench(request); }),
             ContainsSubstring("2 --against fal: no such kernel"));
  request.against = {}, request.B = 2, request.sequences = 4;
  CHECK_THAT(test::refusal([&] { bench::bench(request); }), ContainsSubstring("2 --sequences"));
}

TEST_CASE("the problem of a layer is packed and leaves norms, sigmoid and gate to the kernel", "[bench]") {
  BenchRequest request = request_for({});
  request.layer = true, request.sequences = 3;
  const kda::Problem problem = bench::bench_problem(request, DType::bf16, true);
  CHECK(problem.cu_seqlens == std::vector<std::int64_t>{0, 10, 21, 32});
  CHECK(problem.options.gate == kda::Gate::lower_bound);
  CHECK((problem.options.qk_l2norm && problem.options.beta_sigmoid && problem.options.state_v_first));
  CHECK(problem.state_gradient->shape() == tensor::Shape{3, 2, 32, 32});
  CHECK(kda::run_recurrent(problem, {}).final_state.shape()[0] == 3);
}

TEST_CASE("a step of decoding is a token for each of many sequences, whose states stay in their slots",
          "[bench]") {
  BenchRequest request = request_for(Names{"recurrent"});
  request.decode = request.sequences = request.T = 10, request.layer = true;
  const kda::Problem problem = bench::bench_problem(request, DType::bf16, false);
  REQUIRE(problem.pool);
  CHECK(problem.pool->states.shape() == tensor::Shape{12, 2, 32, 32});
  CHECK(problem.pool->states.dtype() == DType::fp32);
  REQUIRE(problem.pool->pieces.size() == 10);
  std::size_t in_order = 0;
  for (std::size_t n = 0; n < 10; ++n) {
    const kda::PoolPiece& piece = problem.pool->pieces[n];
    CHECK(piece.from == piece.to);
    CHECK(piece.tokens.length() == 1);
    in_order += piece.from == n;
  }
  CHECK(in_order < 5);
}

TEST_CASE("bench times a step of decoding where nobody asks for another problem", "[bench]") {
  BenchRequest request = request_for(Names{"recurrent"});
  request.decode = 6, request.with_oracle = false;
  const report::Document document = bench::bench(request);
  const std::vector<Item> rows = items_of(document, "rows");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].figure("us_per_token_and_head") > 0);
  CHECK(rows[0].is_nothing("launched_ms"));  // a CPU has no launches
  request.sequences = 3;
  CHECK_THAT(test::refusal([&] { bench::bench(request); }), ContainsSubstring("2 --decode"));
  request.sequences = 1, request.words.selection.pass = kda::Pass::backward;
  CHECK_THAT(test::refusal([&] { bench::bench(request); }), ContainsSubstring("2 --decode"));
}

TEST_CASE("errors are those of the answers, each against the truth", "[bench]") {
  BenchRequest request = request_for({});
  request.layer = true, request.sequences = 2;
  const kda::Problem problem = bench::bench_problem(request, DType::fp32, false);
  const auto contestant = [&](double factor) {
    bench::Contestant result;
    result.problem = &problem;
    result.answer = [&problem, factor] {
      kda::RunOptions options;
      options.dtype = DType::fp64;
      kda::Answer answer = kda::run_recurrent(problem, options);
      for (std::size_t i = 0; i < answer.final_state.size(); ++i)
        answer.final_state.set(i, answer.final_state.value(i) * factor);
      const auto tensors = std::make_shared<kda::Tensors>();
      tensors->emplace("o", std::move(answer.o)),
          tensors->emplace("final_state", std::move(answer.final_state));
      return tensors;
    };
    return result;
  };
  bench::Contestant nowhere = contestant(1);
  nowhere.answer = [whole = nowhere.answer] {
    const auto tensors = std::make_shared<kda::Tensors>(kda::clone(*whole()));
    tensor::Tensor& o = tensors->at("o");
    for (std::size_t i = 1; i < o.size(); ++i) o.set(i, NAN);
    return tensors;
  };
  bench::Contestant list[] = {contestant(1), contestant(1.25), {}, nowhere};
  bench::measure_errors(list, problem, {kda::OraclePrecision::double_double}, 2);
  CHECK(list[0].row.output_error < 1e-13);
  CHECK(list[0].row.state_error < 1e-13);
  CHECK(list[1].row.output_error == list[0].row.output_error);
  CHECK(std::abs(list[1].row.state_error - 0.25) < 1e-12);
  CHECK(list[2].row.output_error < 0);
  CHECK(list[3].row.output_error == HUGE_VAL);
  CHECK(list[3].row.state_error == list[0].row.state_error);
}

TEST_CASE("bench says why a dtype of several was not timed", "[bench]") {
  BenchRequest request = request_for(Names{"recurrent"}, Names{"fp64", "fp32"});
  request.words.arithmetic = {"exponential=cuda"};
  std::vector<std::string> warnings;
  request.warning = [&](const std::string& text) { warnings.push_back(text); };
  const report::Document document = bench::bench(request);
  CHECK(items_of(document, "rows").size() == 3);  // the oracle too, in double-double and in fp64
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], ContainsSubstring("recurrent fp64: ") && ContainsSubstring("fp32 only"));
}

TEST_CASE("bench reports every variant, the oracle and a share of the peak", "[bench]") {
  const report::Document document = bench::bench(request_for({}));
  CHECK(report::exit_code(document) == 0);
  const Item machine = items_of(document, "machine").at(0);
  CHECK(machine.figure("fma_peak_gflops_fp32") > 0);
  CHECK(machine.words("shape") == "B=1 T=32 H=2 K=32 V=32");
  std::size_t here = 0;
  const std::vector<Item> rows = items_of(document, "rows");
  for (const Item& row : rows) {
    CHECK(row.figure("us_per_token_and_head") > 0);
    CHECK(row.words("pass") == "forward");
    if (row.words("device") != "cpu") continue;  // where there is a GPU
    ++here;
    CHECK((row.words("variant") == "oracle") == row.is_nothing("of_peak"));
    if (row.words("variant") == "recurrent") CHECK(row.figure("of_recurrent") == 1);
    for (const char* const of_device : {"ms", "spread", "floor_ms", "over_floor"})
      CHECK(row.is_nothing(of_device));
  }
  CHECK(here == test::cpu_variants().size() + 2);
  CHECK((here == rows.size()) == machine.is_nothing("copy_gb_per_s"));
}

TEST_CASE("bench times the backward passes beside the recurrence forwards", "[bench]") {
  std::vector<kda::Variant> registry = test::cpu_variants();
  registry.push_back(test::forward_only());
  BenchRequest request = request_for(Names{"recurrent", "chunk", "naive", "forwards"});
  request.words.registry = registry;
  request.words.selection.pass = kda::Pass::backward;
  std::vector<std::string> warnings;
  request.warning = [&](const std::string& text) { warnings.push_back(text); };
  const report::Document document = bench::bench(request);
  const std::vector<Item> rows = items_of(document, "rows");
  REQUIRE(rows.size() == 4);
  for (const Item& row : rows) CHECK(row.words("pass") == "backward");
  for (const Item& row : rows)
    if (row.words("variant") != "oracle") CHECK_FALSE(row.is_nothing("of_recurrent"));
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], ContainsSubstring("forwards fp32: no backward pass"));
}

TEST_CASE("bench of a variant that cannot run here is refused with the reason", "[bench]") {
  const std::string reason = kda::gpu_unavailable();
  if (reason.empty()) KDA_CHECK_SKIP("there is a GPU");
  CHECK_THAT(test::refusal([] {
               bench::bench(request_for(Names{"recurrent", "gpu-recurrent"}));
             }),
             ContainsSubstring("4 gpu-recurrent: " + reason));
}

TEST_CASE("what has a clock of its own is timed where this build knows no GPU, without a floor", "[bench]") {
  if (kda::gpu_unavailable().empty()) KDA_CHECK_SKIP("there is a GPU");
  kda::Variant elsewhere = kda::variant_named("recurrent");
  elsewhere.time = [](const kda::Problem&, const kda::RunOptions&, int) { return std::vector<double>{0.5}; };
  BenchRequest request = request_for(std::nullopt);
  request.words.registry = {&elsewhere, 1}, request.with_oracle = false;
  const report::Document document = bench::bench(request);
  const Item row = items_of(document, "rows").at(0);
  CHECK(row.figure("ms") == 500);
  CHECK((row.is_nothing("floor_ms") && row.is_nothing("over_floor")));
}

TEST_CASE("bench refuses problems beyond the memory budget before it makes them", "[bench]") {
  BenchRequest request = request_for({});
  request.T = 1048576, request.H = 64, request.K = request.V = 128;
  CHECK_THAT(test::refusal([&] { bench::bench(request); }),
             ContainsSubstring("3 ") && ContainsSubstring("memory budget is 1.0 GiB") &&
                 ContainsSubstring("--memory-limit"));
  request.T = request.sequences = 1000;  // hardly a token, but a state for each
  CHECK_THAT(test::refusal([&] { bench::bench(request); }), ContainsSubstring("take about 16"));
}

TEST_CASE("the least traffic counts every input and both results once", "[bench]") {
  BenchRequest request;
  request.B = 2, request.T = 3, request.H = 5, request.K = 7, request.V = 11;
  const std::size_t heads = 2 * 3 * 5, states = 2 * 5 * 7 * 11;
  // q, k, v and o in the dtype; g, beta and the state in fp32, or fp64 with it.
  const std::size_t narrow = heads * (7 + 7 + 11 + 11), wide = heads * (7 + 1) + states;
  CHECK(bench::least_traffic(bench::bench_problem(request, DType::bf16, false), DType::bf16) ==
        2 * narrow + 4 * wide);
  CHECK(bench::least_traffic(bench::bench_problem(request, DType::fp64, false), DType::fp64) ==
        8 * (narrow + wide));
  test::ProblemSpec spec;
  spec.gate = kda::Gate::softplus;
  const kda::Problem problem = test::make_problem(spec);
  kda::Problem bare = kda::clone(problem);
  bare.initial_state.reset(), bare.A_log.reset(), bare.dt_bias.reset();
  CHECK(bench::least_traffic(problem, DType::fp32) - bench::least_traffic(bare, DType::fp32) ==
        problem.initial_state->bytes() + problem.A_log->bytes() + problem.dt_bias->bytes());
}

TEST_CASE("the table of bench has the columns that its rows need, its JSON all of them", "[bench]") {
  if (kda::gpu_unavailable().empty()) KDA_CHECK_SKIP("there is a GPU");
  const report::Document document = bench::bench(request_for({}));
  const std::string text = report::write_text(document, {});
  CHECK_THAT(text, ContainsSubstring("FMA peak: ") && ContainsSubstring("x recurrent") &&
                       !ContainsSubstring("floor") && !ContainsSubstring("a copy moves"));
  const auto json = nlohmann::json::parse(report::write_json(document, {}));
  for (const auto& row : json["rows"]) {
    CHECK(row.at("ms").is_null());
    CHECK(row.at("device") == "cpu");
    CHECK(row.at("arithmetic").is_string());
  }
  CHECK(json["machine"][0].at("copy_gb_per_s").is_null());
}

}  // namespace bench_tests
