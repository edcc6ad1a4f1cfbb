#include "session/bench.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;
using numeric::DType;

TEST_CASE("bench checks the arithmetic as run does", "[session][bench]") {
  const auto usage = [](std::vector<std::string> variants, std::vector<std::string> dtypes,
                        std::string axis) {
    session::BenchRequest request;
    request.T = 4, request.H = 1, request.K = 8, request.V = 8, request.repeats = 1;
    request.variants = std::move(variants), request.dtypes = std::move(dtypes);
    request.arithmetic = {std::move(axis)};
    try {
      session::bench(request, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(usage({"recurrent"}, {}, "bogus=1"), ContainsSubstring("no axis 'bogus'"));
  CHECK_THAT(usage({"recurrent"}, {}, "decay=pair"), ContainsSubstring("none of the selected variants"));
  CHECK_THAT(usage({"recurrent"}, {"fp64"}, "exponential=cuda"), ContainsSubstring("fp32 only"));
  CHECK_THAT(usage({"orcale"}, {}, "contraction=fused"), ContainsSubstring("did you mean 'oracle'?"));
  CHECK(usage({"recurrent"}, {"fp64", "fp32"}, "exponential=cuda") == "accepted");
}

TEST_CASE("bench reports every variant, the oracle and a share of the peak", "[session][bench]") {
  session::BenchRequest request;
  request.T = 32, request.H = 2, request.K = 32, request.V = 32, request.repeats = 1;
  const session::BenchResult result = session::bench(request, {});
  CHECK(result.peak.fp32 > 0);
  std::size_t here = 0;
  for (const session::BenchRow& row : result.rows) {
    CHECK(row.microseconds > 0);
    if (row.device != "cpu") continue;  // where there is a GPU
    ++here;
    CHECK((row.variant == "oracle") == (row.of_peak == 0));
    CHECK(row.milliseconds == 0);
    CHECK(row.floor_milliseconds == 0);
  }
  CHECK(here == test::cpu_variants().size() + 1);
  CHECK((here == result.rows.size()) == (result.copy_bandwidth == 0));
}

TEST_CASE("bench of a variant that cannot run here is refused with the reason", "[session][bench]") {
  const std::string reason = kda::gpu_unavailable();
  if (reason.empty()) KDA_CHECK_SKIP("there is a GPU");
  session::BenchRequest request;
  request.variants = {"recurrent", "gpu-recurrent"};
  try {
    session::bench(request, {});
    FAIL_CHECK("was timed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    CHECK(error.found() == "gpu-recurrent: " + reason);
  }
}

TEST_CASE("the least traffic counts every input and both results once", "[session][bench]") {
  session::BenchRequest request;
  request.B = 2, request.T = 3, request.H = 5, request.K = 7, request.V = 11;
  const std::size_t heads = 2 * 3 * 5, states = 2 * 5 * 7 * 11;
  // q, k, v and o in the dtype; g, beta and the state in fp32, or fp64 with it.
  const std::size_t narrow = heads * (7 + 7 + 11 + 11), wide = heads * (7 + 1) + states;
  CHECK(session::least_traffic(session::bench_problem(request, DType::bf16), DType::bf16) ==
        2 * narrow + 4 * wide);
  CHECK(session::least_traffic(session::bench_problem(request, DType::fp64), DType::fp64) ==
        8 * (narrow + wide));
  test::ProblemSpec spec;
  spec.gate = kda::Gate::softplus;
  const kda::Problem problem = test::make_problem(spec);
  kda::Problem bare = kda::clone(problem);
  bare.initial_state.reset(), bare.A_log.reset(), bare.dt_bias.reset();
  CHECK(session::least_traffic(problem, DType::fp32) - session::least_traffic(bare, DType::fp32) ==
        problem.initial_state->bytes() + problem.A_log->bytes() + problem.dt_bias->bytes());
}

namespace {

session::BenchRow cpu_row() {
  session::BenchRow row;
  row.variant = "chunk", row.dtype = "fp32", row.arithmetic = "contraction=fused", row.device = "cpu";
  row.microseconds = 1.25, row.gflops = 90, row.of_peak = 0.4, row.of_recurrent = 1.5;
  return row;
}

session::BenchRow gpu_row() {
  session::BenchRow row;
  row.variant = "gpu-recurrent", row.dtype = "bf16", row.arithmetic = "exponential=cuda",
  row.device = "Some GPU";
  row.microseconds = 0.01, row.gflops = 9000;
  row.milliseconds = 6, row.spread = 0.05, row.floor_milliseconds = 0.5;
  return row;
}

/// The words of the line that holds `word`.
std::vector<std::string> words_of_line(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string one; stream >> one;) words.push_back(one);
    if (!words.empty() && words.front() == word) return words;
  }
  return {};
}

}  // namespace

TEST_CASE("the table of bench has the columns that its rows need", "[session][bench]") {
  using Words = std::vector<std::string>;
  session::BenchResult result;
  result.shape = "B=1", result.peak = {230, 115}, result.rows = {cpu_row()};
  const std::string here = session::bench_text(result);
  CHECK_THAT(here, ContainsSubstring("FMA peak: 230.0 Gflop/s in fp32, 115.0 in fp64") &&
                       !ContainsSubstring("floor"));
  CHECK(words_of_line(here, "chunk") ==
        Words{"chunk", "fp32", "1.250", "90.0", "40.0", "1.50", "contraction=fused"});

  result.rows.push_back(gpu_row()), result.copy_bandwidth = 2.5e12;
  const std::string both = session::bench_text(result);
  CHECK_THAT(both, ContainsSubstring("Some GPU: a copy moves 2500 GB/s"));
  CHECK(words_of_line(both, "chunk") ==
        Words{"chunk", "fp32", "1.250", "90.0", "40.0", "1.50", "-", "-", "-", "-", "contraction=fused"});
  CHECK(words_of_line(both, "gpu-recurrent") == Words{"gpu-recurrent", "bf16", "0.010", "9000.0", "-", "-",
                                                      "6.000", "5.0", "0.500", "12.0", "exponential=cuda"});

  result.rows = {gpu_row()}, result.peak = {};
  const std::string there = session::bench_text(result);
  CHECK_THAT(there, !ContainsSubstring("peak") && !ContainsSubstring("x recurrent"));
  CHECK(words_of_line(there, "gpu-recurrent") == Words{"gpu-recurrent", "bf16", "0.010", "9000.0", "6.000",
                                                       "5.0", "0.500", "12.0", "exponential=cuda"});
}

TEST_CASE("the JSON of bench has the device's figures where there are some", "[session][bench]") {
  session::BenchResult result;
  result.rows = {cpu_row(), gpu_row()}, result.copy_bandwidth = 2.5e12;
  const auto document = nlohmann::json::parse(session::bench_json(result));
  CHECK(document["copy_gb_per_s"] == 2500);
  CHECK_FALSE(document["rows"][0].contains("ms"));
  CHECK(document["rows"][0]["device"] == "cpu");
  CHECK(document["rows"][1]["ms"] == 6);
  CHECK(document["rows"][1]["floor_ms"] == 0.5);
  CHECK(document["rows"][1]["spread"] == 0.05);
  CHECK(document["rows"][1]["device"] == "Some GPU");
  result.rows = {cpu_row()}, result.copy_bandwidth = 0;
  CHECK_FALSE(nlohmann::json::parse(session::bench_json(result)).contains("copy_gb_per_s"));
}
