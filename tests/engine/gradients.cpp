// Gradients in `run` and `explain --only growth`.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "report/writers.hpp"
#include "support/growth.hpp"
#include "support/loss.hpp"
#include "support/made_up_gpu.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "support/temporary_fixture.hpp"

namespace gradients_tests {

using namespace kda_check;
using kda::Gradient;
using numeric::DType;
using plan::Names;
using report::exit_code;
using test::followed;
using test::growth_of;
using test::Item;
using test::items_of;
using test::Row;

namespace {

const Names of_every_problem = {"dq", "dk", "dv", "dg", "dbeta"};

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
    kda::RunOptions options = test::default_options(problem, variant, problem.dtype(), {preset});
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

report::Document ran(const plan::Request& request) { return test::ran(request, test::on_threads(2)); }

const std::vector<kda::Variant>& variants_and_forwards() {
  static const std::vector<kda::Variant> list = test::cpu_variants_and({test::forward_only()});
  return list;
}

}  // namespace

TEST_CASE("on a slow constant decay the fp32 recurrence's dv errs the more the farther from the end",
          "[engine][growth][gradients]") {
  test::ProblemSpec spec;
  spec.T = 2048, spec.K = 16, spec.V = 8;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, -8e-5);
  for (std::size_t i = 0; i < problem.beta.size(); ++i) problem.beta.set(i, 1e-3);
  problem = test::with_loss(std::move(problem));
  problem.state_gradient.reset();
  const test::TemporaryFixture file(problem, nullptr, "reversed");
  plan::Request request = growth_of(file.path);
  request.selection.variants = Names{"recurrent"};
  request.selection.tensors = Names{"o", "dv"};
  request.oracle = plan::OracleChoice::fp64;
  const report::Document document = ran(request);
  REQUIRE(items_of(document, "growth").size() == 3);  // o from the start only
  CHECK(followed(document, "recurrent", "o", "start").words("trend") == "grows");
  const Item from_end = followed(document, "recurrent", "dv", "end"),
             from_start = followed(document, "recurrent", "dv", "start");
  INFO("from the end " << from_end.figure("slope") << ", from the start " << from_start.figure("slope"));
  CHECK(from_end.words("trend") == "grows");
  CHECK(from_end.figure("slope") == Approx(1).margin(0.15));
  CHECK(from_end.figure("r2") > 0.95);
  CHECK(from_start.figure("slope") < 0);
  CHECK(from_start.words("trend") != "grows");
  const std::vector<double>&forwards = from_start.along("rms_ratio"), &back = from_end.along("rms_ratio");
  REQUIRE(forwards.size() == back.size());
  for (std::size_t i = 0; i < back.size(); ++i)  // T is a multiple of the window: the same, reversed
    CHECK(back[i] == Approx(forwards[forwards.size() - 1 - i]));
}

TEST_CASE("a perturbed gradient is first crossed at its token, counted from either end",
          "[engine][growth][gradients]") {
  const Recorded recorded(small_problem(), "somebody", "recurrent", "ideal",
                          [](kda::GradientTensors& gradients) {
                            tensor::Tensor& dk = gradients[static_cast<std::size_t>(Gradient::dk)];
                            for (const std::size_t t : {37, 61}) dk.set((t * 2 + 1) * 16 + 3, 1e3);
                            gradients[static_cast<std::size_t>(Gradient::dbeta)].set(50 * 4 + 2, 1e3);
                          });
  plan::Request request = growth_of(recorded.file.path);
  request.registry = variants_and_forwards();
  request.selection.variants = Names{"recurrent", "forwards"};
  request.selection.pass = kda::Pass::backward;
  request.window = 10;
  const report::Document document = ran(request);
  CHECK(exit_code(document) == 0);
  CHECK(items_of(document, "growth").size() == 2 * 2 * of_every_problem.size());
  CHECK(document.problems.at(0).notes == Names{"skipped: forwards fp32: no backward pass"});
  const auto first = [&](std::string_view tensor, std::string_view from) {
    return test::crossing(followed(document, "somebody", tensor, from), "scaled_ulp");
  };
  CHECK(first("dk", "start").count("position") == 37);
  CHECK(first("dk", "start").words("place") == "dk[b=0 t=37 h=1 k=3]");
  CHECK(first("dk", "end").count("position") == 90 - 1 - 61);
  CHECK(first("dk", "end").words("place") == "dk[b=0 t=61 h=1 k=3]");
  CHECK(first("dbeta", "end").words("place") == "dbeta[b=0 t=50 h=2]");
  CHECK(!first("dq", "end").flag("crossed"));
  for (const std::string& tensor : of_every_problem)
    for (const char* const from : {"start", "end"})
      for (const Row& untouched : followed(document, "recurrent", tensor, from).rows("crossings"))
        CHECK(!untouched.flag("crossed"));

  const std::string text = report::write_text(document, {});
  CHECK_THAT(text,
             ContainsSubstring("dk against the oracle (double-double recurrence), 9 windows of 10 tokens\n"));
  CHECK_THAT(text, ContainsSubstring("9 windows of 10 tokens counted back from the last, t=-1\n"));
  CHECK_THAT(text, ContainsSubstring("first at token 37 of a sequence, dk[b=0 t=37 h=1 k=3]"));
  CHECK_THAT(text, ContainsSubstring("first at token 29 of a sequence from its end, dk[b=0 t=61 h=1 k=3]"));
  CHECK(followed(document, "somebody", "dk", "end").words("crossing").starts_with("t=-21 rms_ratio"));
  const auto json = nlohmann::json::parse(report::write_json(document, {}));
  CHECK(json["growth"][0]["tensor"] == "dq");
  CHECK(json["growth"][0]["from"] == "start");
}

TEST_CASE("growth against a group without gradients, or of a problem without a loss, says so",
          "[engine][growth][gradients]") {
  const kda::Problem problem = small_problem();
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const test::TemporaryFixture file(problem, &answer, "somebody");
  plan::Request request = growth_of(file.path);
  request.selection.variants = Names{"recurrent"};
  request.selection.pass = kda::Pass::backward;
  request.selection.against = Names{"somebody"};
  const report::Document document = ran(request);
  CHECK(items_of(document, "growth").empty());
  CHECK(document.problems.at(0).notes == Names{"skipped: expected/somebody has no gradients"});
  CHECK(exit_code(document) == 1);
  request.selection.against = Names{"oracle"};
  request.targets = {"control:T=8,K=8,V=8"};
  const report::Document without = ran(request);
  CHECK(exit_code(without) == 1);
  CHECK_THAT(without.problems.at(0).notes.at(0), ContainsSubstring("without do or dht"));
}

TEST_CASE("run says which gradients of a file it cannot compare", "[engine][gradients]") {
  test::ProblemSpec spec;
  spec.initial_state = false;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const kda::GradientTensors found =
      kda::run_recurrent_backward(problem, test::default_options(problem, "recurrent", DType::fp32));
  tensor::Tensor of_nothing("dA_log", DType::fp32, {problem.dimensions().HV});
  of_nothing.set(0, 1);
  const test::TemporaryFixture room(problem, {&found[0], &of_nothing}, numeric::ComputeFormat::fp32,
                                    "not-compared");
  plan::Request request = test::request_for({room.path});
  request.registry = variants_and_forwards();
  request.selection.variants = Names{"recurrent", "forwards"};
  const plan::Plan plan = test::planned(request);
  const report::Document document = test::ran(plan);
  CHECK(document.failures.empty());
  bool compared = false;
  for (const report::CaseResult& item : document.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      compared = compared || (item.recorded() && tensor.name == "dq");
      CHECK(tensor.name != "dA_log");
      CHECK(tensor.verdict == judge::Verdict::pass);
    }
  CHECK(compared);
  REQUIRE(!plan.warnings.empty());
  CHECK_THAT(plan.warnings.back(), ContainsSubstring("expected/somebody/dA_log is not compared"));
  CHECK_THAT(document.problems.at(0).notes.at(0), ContainsSubstring("no backward pass in forwards"));
}

TEST_CASE("gradients that are zero because there is no do decide, and cancelled ones are judged by magnitude",
          "[engine][gradients]") {
  const auto verdicts = [](const kda::Problem& problem) {
    const test::TemporaryFixture file(problem);
    plan::Request request = test::request_for({file.path}, plan::Names{"recurrent", "chunk"});
    request.selection.against = Names{"oracle"};
    std::map<std::string, judge::Verdict> found;
    for (const report::CaseResult& item : test::ran(request).cases)
      for (const report::TensorResult& tensor : item.tensors)
        found[item.variant + " " + tensor.name] = tensor.verdict;
    return found;
  };
  kda::Problem by_state = test::with_loss(test::make_problem({}));
  by_state.output_gradient.reset();
  by_state.validate();
  for (const auto& [name, verdict] : verdicts(by_state)) {
    INFO(name);
    CHECK(verdict == judge::Verdict::pass);
  }
  test::ProblemSpec spec;
  spec.T = 1, spec.initial_state = false;
  CHECK(verdicts(test::with_loss(test::make_problem(spec))).at("chunk dg") == judge::Verdict::pass);
}

TEST_CASE("healthy gradients meet the derived limits where much of them cancels", "[engine][gradients]") {
  plan::Request request = test::request_for({});
  for (const char* const regime : {"bwd_masked_exp", "bwd_dgate_cancel", "bwd_gate_zero", "bwd_lb_saturated"})
    for (int seed = 1; seed <= 4; ++seed)
      request.targets.push_back(fmt::format("{}:H=1,seed={}", regime, seed));
  request.selection.variants = Names{"naive", "recurrent", "chunk"};
  request.selection.dtypes = Names{"fp64", "fp32", "bf16"};
  request.selection.tensors = Names{"dg", "dbeta", "dA_log"};
  const report::Document document = test::ran(request);
  std::size_t limits = 0;
  for (const report::CaseResult& item : document.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      INFO(item.fixture << " " << item.variant << " " << item.dtype << " " << tensor.name << ": "
                        << tensor.reason);
      CHECK(tensor.verdict == judge::Verdict::pass);
      for (const judge::Limit& limit : tensor.limits) limits += limit.metric == "rms_ratio";
    }
  // Of three variants in three dtypes, and of bf16 dtypes rounded only; dA_log is in the last regime.
  CHECK(limits == 3 * 3 * (16 * 2 + 4));
}

}  // namespace gradients_tests
