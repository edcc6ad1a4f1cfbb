// `attribute` and `grow` of gradients.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "session/attribute.hpp"
#include "session/grow.hpp"
#include "session/run.hpp"
#include "support/catch.hpp"
#include "support/growth.hpp"
#include "support/loss.hpp"
#include "support/made_up_gpu.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using kda::Gradient;
using numeric::DType;

namespace {

const std::vector<std::string> of_every_problem = {"dq", "dk", "dv", "dg", "dbeta"};

kda::Problem small_problem() {
  test::ProblemSpec spec;
  spec.T = 90, spec.H = 2, spec.HV = 4, spec.K = 16, spec.V = 12, spec.chunk_size = 32;
  spec.qk_l2norm = true;
  return test::with_loss(test::make_problem(spec));
}

/// The gradients of a variant under a preset, changed by somebody, as the group `name` of a file.
struct Recorded {
  Recorded(const kda::Problem& problem, std::string name, const char* variant, const char* preset,
           const std::function<void(kda::GradientTensors&)>& change = {})
      : file(problem, nullptr, "gradients") {
    kda::RunOptions options = test::default_options(problem, variant, problem.dtype());
    kda::set_axis(options.arithmetic, preset);
    const kda::Answer answer = test::run(problem, variant, options);
    kda::GradientTensors gradients = kda::variant_named(variant).run_backward(problem, options);
    if (change) change(gradients);
    fixture::WriteRequest request;
    request.name = "gradients", request.problem = &problem;
    std::vector<const tensor::Tensor*> tensors{&answer.o, &answer.final_state};
    for (const tensor::Tensor& gradient : gradients)
      if (!gradient.empty()) tensors.push_back(&gradient);
    request.expected.push_back({std::move(name), "", "", numeric::ComputeFormat::fp32, tensors, {}});
    fixture::write_fixture(file.path, request);
  }
  test::TemporaryFixture file;
};

session::AttributeRequest attribute_request(const std::string& target) {
  session::AttributeRequest request;
  request.targets = {target};
  request.backward = true;
  request.threads = 2;
  return request;
}

const report::GrowthCase& find(const report::GrowthResult& result, std::string_view answer,
                               std::string_view tensor, std::string_view from) {
  for (const report::GrowthCase& item : result.cases)
    if (item.answer == answer && item.tensor == tensor && item.from == from) return item;
  FAIL("no " << tensor << " of " << answer << " from the " << from);
  return result.cases.front();
}

template <class Work>
std::string usage_error(Work work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("tf32 operands explain the errors of the chunk form's gradients under the preset fla",
          "[attribute][gradients]") {
  const test::TemporaryFixture file(small_problem(), nullptr, "attribute");
  session::AttributeRequest request = attribute_request(file.path);
  request.arithmetic = {"fla"};
  request.variants = {"naive", "chunk"};
  const report::AttributionResult result = session::attribute(request, {});
  CHECK(result.fixtures.at(0).notes == std::vector<std::string>{"skipped: naive fp32: no backward pass"});
  REQUIRE(result.attributions.size() == 6);  // and dinitial_state
  for (const report::Attribution& item : result.attributions) {
    INFO(item.tensor);
    CHECK(item.pass == "backward");
    CHECK(item.compute == "tf32");
    CHECK(item.stages.empty());
    double sum = item.ideal_share + item.interaction;
    for (const report::AxisShare& axis : item.axes) {
      sum += axis.share;
      if (axis.axis != "storage") continue;
      CHECK(axis.share > 0.8);
      CHECK(axis.without < item.full / 100);
    }
    CHECK(sum == Approx(1));
  }
}

TEST_CASE("the error that attribute takes apart is the one that run measures", "[attribute][gradients]") {
  const test::TemporaryFixture file(small_problem(), nullptr, "measured");
  session::RunRequest run;
  run.fixtures = {file.path}, run.variants = {"recurrent"}, run.against = {"oracle"};
  std::map<std::string, double> measured;
  for (const report::CaseResult& item : session::run(run, {}).cases)
    for (const report::TensorResult& tensor : item.tensors)
      for (const auto& [metric, value] : tensor.metrics)
        if (metric == "rms_ratio") measured[tensor.name] = value;
  session::AttributeRequest request = attribute_request(file.path);
  request.backward = false;
  request.tensors = {"dg", "o", "dinitial_state"};
  request.variants = {"recurrent"};
  const report::AttributionResult result = session::attribute(request, {});
  REQUIRE(result.attributions.size() == 3);
  const char* const order[] = {"o", "dg", "dinitial_state"};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(result.attributions[i].tensor == order[i]);
    CHECK(result.attributions[i].full == Approx(measured.at(order[i])).epsilon(1e-9));
  }
}

TEST_CASE("the ladder between the gradients of two arithmetics of ours ends with no differing bit",
          "[attribute][gradients]") {
  const test::TemporaryFixture file(small_problem(), nullptr, "ladder");
  session::AttributeRequest request = attribute_request(file.path);
  request.between = {"chunk+h100", "recurrent+ieee"};
  const report::AttributionResult result = session::attribute(request, {});
  REQUIRE(result.ladders.size() == 6);
  for (const report::Ladder& ladder : result.ladders) {
    INFO(ladder.tensor);
    CHECK(ladder.pass == "backward");
    REQUIRE(ladder.rungs.size() >= 5);
    CHECK(ladder.rungs.front().differing > ladder.elements / 4);
    CHECK(ladder.rungs.back().differing == 0);
    double sum = 0;
    for (const report::Rung& rung : ladder.rungs) sum += rung.share;
    CHECK(sum == Approx(1));
  }
  const auto document = nlohmann::json::parse(report::write_attribution_json(result));
  CHECK(document["ladders"][0]["tensor"] == "dq");
  CHECK(document["ladders"][0]["pass"] == "backward");
}

TEST_CASE("the ladder to recorded gradients leaves what somebody changed", "[attribute][gradients]") {
  const Recorded recorded(small_problem(), "fla_chunk", "chunk", "fla", [](kda::GradientTensors& gradients) {
    tensor::Tensor& dv = gradients[static_cast<std::size_t>(Gradient::dv)];
    dv.set(11, dv.value(11) + 100);
  });
  session::AttributeRequest request = attribute_request(recorded.file.path);
  request.tensors = {"dv", "dbeta"};
  request.between = {"fla_chunk", "recurrent"};
  const report::AttributionResult result = session::attribute(request, {});
  REQUIRE(result.ladders.size() == 2);
  for (const report::Ladder& ladder : result.ladders) {
    const bool changed = ladder.tensor == "dv";
    INFO(ladder.tensor);
    CHECK(ladder.rungs.front().differing > ladder.elements / 2);
    CHECK(ladder.rungs[ladder.rungs.size() - 2].differing == (changed ? 1 : 0));
    CHECK(ladder.rungs.back().change == "fla_chunk itself");
    CHECK(ladder.rungs.back().differing == 0);
    CHECK((ladder.rungs.back().share > 0.9) == changed);
  }
}

TEST_CASE("what attribute cannot do with gradients is said in one line", "[attribute][gradients]") {
  const test::TemporaryFixture file(small_problem(), nullptr, "refused");
  const std::vector<kda::Variant> registry = test::cpu_variants_and({test::made_up_gpu_chunk<false>()});
  const auto refused = [&](auto change) {
    session::AttributeRequest request = attribute_request(file.path);
    request.registry = registry;
    change(request);
    return usage_error([&] { session::attribute(request, {}); });
  };
  CHECK_THAT(refused([](auto& r) {
               r.between = {"gpu-chunk", "chunk"};
             }),
             ContainsSubstring("--between gpu-chunk: no backward pass on a GPU"));
  CHECK_THAT(refused([](auto& r) {
               r.between = {"chunk", "naive"};
             }),
             ContainsSubstring("--between naive: no backward pass"));
  CHECK_THAT(refused([](auto& r) { r.variants = {"gpu-chunk"}; }),
             ContainsSubstring("gpu-chunk fp32: no backward pass on a GPU"));
  CHECK_THAT(refused([](auto& r) { r.tensors = {"o"}; }), ContainsSubstring("contradicts --backward"));
  CHECK_THAT(refused([](auto& r) { r.tensors = {"dbta"}; }), ContainsSubstring("no tensor 'dbta'"));
  CHECK_THAT(refused([](auto& r) { r.tensors = {"dA_log"}; }),
             ContainsSubstring("the problem has no dA_log"));
  CHECK_THAT(refused([](auto& r) { r.targets = {"control:T=8,K=8,V=8"}; }),
             ContainsSubstring("without do or dht"));
}

TEST_CASE("on a slow constant decay the fp32 recurrence's dv errs the more the farther from the end",
          "[grow][gradients]") {
  test::ProblemSpec spec;
  spec.T = 2048, spec.K = 16, spec.V = 8;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, -8e-5);
  for (std::size_t i = 0; i < problem.beta.size(); ++i) problem.beta.set(i, 1e-3);
  problem = test::with_loss(std::move(problem));
  problem.state_gradient.reset();
  const test::TemporaryFixture file(problem, nullptr, "reversed");
  session::GrowRequest request = test::grow_request(file.path);
  request.variants = {"recurrent"};
  request.tensors = {"o", "dv"};
  request.oracle = kda::OraclePrecision::fp64;
  const report::GrowthResult result = session::grow(request, {});
  REQUIRE(result.cases.size() == 3);  // o from the start only
  CHECK(find(result, "recurrent", "o", "start").trend == "grows");
  const report::GrowthCase &from_end = find(result, "recurrent", "dv", "end"),
                           &from_start = find(result, "recurrent", "dv", "start");
  INFO("from the end " << from_end.fit.slope << ", from the start " << from_start.fit.slope);
  CHECK(from_end.trend == "grows");
  CHECK(from_end.fit.slope == Approx(1).margin(0.15));
  CHECK(from_end.fit.r2 > 0.95);
  CHECK(from_start.fit.slope < 0);
  CHECK(from_start.trend != "grows");
  REQUIRE(from_start.windows.size() == from_end.windows.size());
  for (std::size_t i = 0; i < from_end.windows.size();
       ++i)  // T is a multiple of the window: the same, reversed
    CHECK(from_end.windows[i].rms_ratio ==
          Approx(from_start.windows[from_start.windows.size() - 1 - i].rms_ratio));
}

TEST_CASE("a perturbed gradient is first crossed at its token, counted from either end",
          "[grow][gradients]") {
  const Recorded recorded(small_problem(), "somebody", "recurrent", "ideal",
                          [](kda::GradientTensors& gradients) {
                            tensor::Tensor& dk = gradients[static_cast<std::size_t>(Gradient::dk)];
                            for (const std::size_t t : {37, 61}) dk.set((t * 2 + 1) * 16 + 3, 1e3);
                            gradients[static_cast<std::size_t>(Gradient::dbeta)].set(50 * 4 + 2, 1e3);
                          });
  session::GrowRequest request = test::grow_request(recorded.file.path);
  request.variants = {"recurrent", "naive"};
  request.backward = true;
  request.window = 10;
  request.limits = {compare::parse_limit("max_abs=500")};
  const report::GrowthResult result = session::grow(request, {});
  CHECK(result.exit_code() == 1);
  CHECK(result.cases.size() == 2 * 2 * of_every_problem.size());
  CHECK(result.fixtures.at(0).notes == std::vector<std::string>{"skipped: naive fp32: no backward pass"});
  const auto first = [&](std::string_view tensor, std::string_view from) {
    return test::crossing(find(result, "somebody", tensor, from), "max_abs");
  };
  CHECK(first("dk", "start").position == 37);
  CHECK(first("dk", "start").place == "dk[b=0 t=37 h=1 k=3]");
  CHECK(first("dk", "end").position == 90 - 1 - 61);
  CHECK(first("dk", "end").place == "dk[b=0 t=61 h=1 k=3]");
  CHECK(first("dbeta", "end").place == "dbeta[b=0 t=50 h=2]");
  CHECK(!first("dq", "end").crossed);
  for (const std::string& tensor : of_every_problem)
    for (const char* const from : {"start", "end"})
      for (const report::GrowthCrossing& untouched : find(result, "recurrent", tensor, from).crossings)
        CHECK(!untouched.crossed);

  const std::string text = report::write_growth_text(result, {});
  CHECK_THAT(text,
             ContainsSubstring("dk against the oracle (double-double recurrence), 9 windows of 10 tokens\n"));
  CHECK_THAT(text, ContainsSubstring("9 windows of 10 tokens counted back from the last, t=-1\n"));
  CHECK_THAT(text, ContainsSubstring("first at token 37 of a sequence, dk[b=0 t=37 h=1 k=3]"));
  CHECK_THAT(text, ContainsSubstring("t=-21 rms_ratio"));
  CHECK_THAT(text, ContainsSubstring("first at token 29 of a sequence from its end, dk[b=0 t=61 h=1 k=3]"));
  CHECK_THAT(text, ContainsSubstring("1 fixture, 2 answers"));
  const auto document = nlohmann::json::parse(report::write_growth_json(result));
  CHECK(document["request"]["tensors"] == of_every_problem);
  CHECK(document["growth"][1]["tensor"] == "dq");
  CHECK(document["growth"][1]["from"] == "end");
}

TEST_CASE("grow against a group without gradients, or of a problem without a loss, says so",
          "[grow][gradients]") {
  const kda::Problem problem = small_problem();
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const test::TemporaryFixture file(problem, &answer, "somebody");
  session::GrowRequest request = test::grow_request(file.path);
  request.variants = {"recurrent"};
  request.backward = true;
  request.against = "somebody";
  const report::GrowthResult result = session::grow(request, {});
  CHECK(result.cases.empty());
  CHECK(result.fixtures.at(0).notes ==
        std::vector<std::string>{"skipped: expected/somebody has no gradients"});
  request.against = "oracle";
  request.targets = {"control:T=8,K=8,V=8"};
  const report::GrowthResult without = session::grow(request, {});
  CHECK(without.exit_code() == 1);
  CHECK_THAT(without.fixtures.at(0).notes.at(0), ContainsSubstring("without do or dht"));
}

TEST_CASE("run says which gradients of a file it cannot compare", "[session][gradients]") {
  test::ProblemSpec spec;
  spec.initial_state = false;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const kda::GradientTensors found =
      kda::run_recurrent_backward(problem, test::default_options(problem, "recurrent", DType::fp32));
  tensor::Tensor of_nothing("dA_log", DType::fp32, {problem.dimensions().HV});
  of_nothing.set(0, 1);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("kda-check-gradients-" + std::to_string(::getpid()) + ".h5"))
          .string();
  fixture::WriteRequest file;
  file.name = "t", file.problem = &problem;
  file.expected.push_back({"somebody", "", "", numeric::ComputeFormat::fp32, {&found[0], &of_nothing}, {}});
  fixture::write_fixture(path, file);
  session::RunRequest request;
  request.fixtures = {path}, request.variants = {"recurrent", "naive"};
  std::vector<std::string> warnings;
  const report::Result result =
      session::run(request, {[&](const std::string& text) { warnings.push_back(text); }, {}});
  std::filesystem::remove(path);
  CHECK(result.errors.empty());
  bool compared = false;
  for (const report::CaseResult& item : result.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      compared = compared || (item.recorded && tensor.name == "dq");
      CHECK(tensor.name != "dA_log");
      CHECK(tensor.verdict == compare::Verdict::pass);
    }
  CHECK(compared);
  REQUIRE(!warnings.empty());
  CHECK_THAT(warnings.back(), ContainsSubstring("expected/somebody/dA_log is not compared"));
  CHECK_THAT(result.fixtures.at(0).notes.at(0), ContainsSubstring("no backward pass in naive"));
}

TEST_CASE("gradients that are zero because there is no do decide, and cancelled ones are judged by magnitude",
          "[session][gradients]") {
  const auto verdicts = [](const kda::Problem& problem) {
    const test::TemporaryFixture file(problem);
    session::RunRequest request;
    request.fixtures = {file.path}, request.variants = {"recurrent", "chunk"}, request.against = {"oracle"};
    std::map<std::string, compare::Verdict> found;
    for (const report::CaseResult& item : session::run(request, {}).cases)
      for (const report::TensorResult& tensor : item.tensors)
        found[item.variant + " " + tensor.name] = tensor.verdict;
    return found;
  };
  kda::Problem by_state = test::with_loss(test::make_problem({}));
  by_state.output_gradient.reset();
  by_state.validate();
  for (const auto& [name, verdict] : verdicts(by_state)) {
    INFO(name);
    CHECK(verdict == compare::Verdict::pass);
  }
  test::ProblemSpec spec;
  spec.T = 1, spec.initial_state = false;
  CHECK(verdicts(test::with_loss(test::make_problem(spec))).at("chunk dg") == compare::Verdict::pass);
}

TEST_CASE("healthy gradients meet the derived limits where much of them cancels", "[session][gradients]") {
  session::RunRequest request;
  for (const char* const regime : {"bwd_masked_exp", "bwd_dgate_cancel", "bwd_gate_zero", "bwd_lb_saturated"})
    for (int seed = 1; seed <= 4; ++seed)
      request.fixtures.push_back(fmt::format("{}:H=1,seed={}", regime, seed));
  request.dtypes = {"fp64", "fp32", "bf16"};
  request.judging.tensors = {"dg", "dbeta", "dA_log"};
  const report::Result result = session::run(request, {});
  std::size_t limits = 0;
  for (const report::CaseResult& item : result.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      INFO(item.fixture << " " << item.variant << " " << item.dtype << " " << tensor.name << ": "
                        << tensor.reason);
      CHECK(tensor.verdict == compare::Verdict::pass);
      for (const compare::Limit& limit : tensor.limits) limits += limit.metric == "rms_ratio";
    }
  // Of two variants in three dtypes, and of bf16 dtypes rounded only; dA_log is in the last regime.
  CHECK(limits == 2 * 3 * (16 * 2 + 4));
}
