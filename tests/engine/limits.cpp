// Derived limits, on problems whose healthy answers they once failed, and on wrong answers they must fail.
#include <algorithm>
#include <cmath>

#include "engine/judged.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace limits_tests {

using namespace kda_check;
using judge::Verdict;
using plan::Names;
using test::ran;
using test::request_for;
using test::TemporaryFixture;

namespace {

/// Gates of -3e-4 and little writing: what is remembered is nearly everything.
kda::Problem slow_problem(std::size_t T, double g = -3e-4) {
  test::ProblemSpec spec;
  spec.T = T, spec.K = spec.V = 32, spec.initial_state = false;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, g);
  for (std::size_t i = 0; i < problem.beta.size(); ++i) problem.beta.set(i, 0.02);
  return problem;
}

report::Document judged(const kda::Problem& problem, Names variants) {
  const TemporaryFixture file(problem);
  plan::Request request = request_for({file.path});
  request.selection.variants = std::move(variants);
  request.selection.against = Names{"oracle"};
  request.test = false;
  return ran(request);
}

void reset(kda::Problem& problem, std::size_t t, double g = -1000) {
  const std::size_t width = problem.dimensions().HV * problem.dimensions().K;
  for (std::size_t i = 0; i < width; ++i) problem.g.set(t * width + i, g);
}

}  // namespace

TEST_CASE("one hard reset does not make the limits of a slow decay those of a fast one", "[engine][limits]") {
  for (const std::size_t at : {std::size_t{0}, std::size_t{1000}}) {
    kda::Problem problem = slow_problem(4096);
    reset(problem, at);
    const report::Document document = judged(problem, {"recurrent", "naive"});
    REQUIRE(document.cases.size() == 2);
    for (const report::CaseResult& item : document.cases) {
      INFO(item.variant << ": " << (item.tensors.empty() ? item.reason : item.tensors[0].reason));
      CHECK(item.verdict == Verdict::pass);
    }
  }
}

TEST_CASE("a head that forgets does not get the limits of one that remembers", "[engine][limits]") {
  test::ProblemSpec spec;
  spec.T = 2048, spec.H = spec.HV = 2, spec.K = spec.V = 16, spec.initial_state = false;
  kda::Problem problem = test::make_problem(spec);
  const auto limit_of = [&](double of_first, double of_second, double v_of_second) {
    for (std::size_t i = 0; i < problem.g.size(); ++i)
      problem.g.set(i, i / spec.K % 2 == 0 ? of_first : of_second);
    for (std::size_t i = 0; i < problem.v.size(); ++i)
      if (i / spec.V % 2 == 1) problem.v.set(i, problem.v.value(i) * v_of_second);
    const report::Document document = judged(problem, {"recurrent"});
    for (const judge::Limit& limit : test::tensor_of(document.cases.at(0), "o").limits)
      if (limit.metric == "rms_ratio") return limit.value;
    return 0.0;
  };
  const double fast = limit_of(-1, -1, 1), slow = limit_of(-1e-3, -1e-3, 1);
  CHECK(slow > 10 * fast);
  CHECK(limit_of(-1, -1e-3, 1e-4) < 1.1 * fast);  // the head that remembers has next to nothing of the rms
}

namespace {

report::Document judged_regimes(std::vector<std::string> regimes, Names variants, Names dtypes) {
  plan::Request request = request_for(std::move(regimes));
  request.selection.variants = std::move(variants);
  request.selection.against = Names{"oracle"};
  request.selection.dtypes = std::move(dtypes);
  return ran(request);
}

void all_pass(const report::Document& document) {
  REQUIRE_FALSE(document.cases.empty());
  for (const report::CaseResult& item : document.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      INFO(item.fixture << ' ' << item.variant << ' ' << item.dtype << ' ' << tensor.name << ": "
                        << tensor.reason);
      CHECK(tensor.verdict == Verdict::pass);
    }
}

double rms_limit(const report::TensorResult& tensor) {
  const auto found = std::ranges::find(tensor.limits, "rms_ratio", &judge::Limit::metric);
  return found == tensor.limits.end() ? HUGE_VAL : found->value;
}

}  // namespace

TEST_CASE("one dot product that happens to cancel is not called wrong", "[engine][limits]") {
  std::vector<std::string> regimes;
  for (const int seed : {54, 60, 1525}) regimes.push_back("control:T=1,H=1,seed=" + std::to_string(seed));
  regimes.push_back("control:T=1,H=1,K=4,V=3,seed=34");
  regimes.push_back("control:T=4,H=1,K=1,V=1,seed=24");
  all_pass(judged_regimes(regimes, {"naive", "recurrent", "chunk"}, {"fp32", "fp64"}));
  all_pass(judged_regimes(regimes, {"chunk"}, {"bf16"}));
}

TEST_CASE("an output among the least numbers of its element type is as good as those are",
          "[engine][limits]") {
  all_pass(judged_regimes({"control:T=1,H=1,seed=368"}, {"recurrent", "chunk"}, {"fp16"}));
}

TEST_CASE("gradients of alike keys are judged by what cancels in them", "[engine][limits]") {
  for (const report::CaseResult& item :
       judged_regimes({"corr_keys:loss=1", "corr_keys:loss=1,rho=0.99", "corr_keys:loss=1,rho=0.99,g=-0.03"},
                      {"recurrent", "chunk"}, {"bf16", "fp32"})
           .cases)
    for (const report::TensorResult& tensor : item.tensors) {
      INFO(item.fixture << ' ' << item.variant << ' ' << tensor.name << ": " << tensor.reason);
      // Of some dbeta next to nothing is left.
      CHECK((tensor.verdict == Verdict::pass || (tensor.name == "dbeta" && tensor.verdict != Verdict::fail)));
    }
}

TEST_CASE("gradients through the norm of a single channel, which cancel, pass", "[engine][limits]") {
  all_pass(judged_regimes({"bwd_chain:K=1", "bwd_chain:K=1,seed=72", "bwd_chain:K=1,seed=9"}, {"recurrent"},
                          {"fp32", "fp64", "bf16"}));
  // Some of dq is the difference of two in which bf16 has hardly a digit left.
  for (const char* const regime : {"bwd_chain:K=1", "bwd_chain:K=1,seed=5", "bwd_chain:K=1,seed=6"})
    for (const report::CaseResult& item :
         judged_regimes({regime}, {"chunk"}, {"fp32", "bf16", "fp16"}).cases) {
      INFO(regime << ' ' << item.dtype << ' ' << item.reason);
      CHECK(item.verdict != Verdict::fail);
    }
}

TEST_CASE("what cancels little widens limits little, so that 5 % too much is still a failure",
          "[engine][limits]") {
  const report::Document document =
      judged_regimes({"control:loss=1,T=128,K=64,V=64", "bwd_tail", "bwd_chain", "lb_real:loss=1,K=64,V=64"},
                     {"chunk"}, {"bf16"});
  for (const report::CaseResult& item : document.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      INFO(item.fixture << ' ' << tensor.name);
      if (tensor.name != "dA_log" && tensor.name != "ddt_bias" && tensor.name != "dbeta")
        CHECK(rms_limit(tensor) < 0.022);
      CHECK(rms_limit(tensor) < 0.05);
    }
}

TEST_CASE("where keys are alike limits know what is rounded in the state and in the solve",
          "[engine][limits]") {
  all_pass(
      judged_regimes({"neg_eigval:beta=1.99", "neg_eigval:beta=1.99,seed=2", "neg_eigval:beta=1.99,T=100"},
                     {"recurrent", "chunk"}, {"fp32"}));
  all_pass(judged_regimes(
      {"identical_keys:T=16", "identical_keys", "identical_keys:T=256", "identical_keys:seed=3"},
      {"naive", "recurrent", "chunk"}, {"fp32", "bf16", "fp16"}));
  all_pass(judged_regimes({"corr_keys:rho=0.9999", "corr_keys:rho=0.9999,beta=0.5"}, {"chunk"}, {"fp32"}));
}

TEST_CASE("sums of gates that are rounded at every row, all the same way, are within their limits",
          "[engine][limits]") {
  all_pass(judged_regimes({"spike_then_slow:T=128,s=-16", "spike_then_slow:T=128,s=-316", "mask_m1000:T=128"},
                          {"chunk"}, {"fp32"}));
}

TEST_CASE("a state's gradient below the range of fp16 is not held against what fp16 cannot hold",
          "[engine][limits]") {
  for (const char* const regime :
       {"bwd_tail:T=5,K=128,V=128,seed=549550248,H=1", "bwd_tail:T=130,K=32,V=16,seed=941580945,H=1"}) {
    const report::Document document = judged_regimes({regime}, {"chunk"}, {"fp16"});
    for (const report::CaseResult& item : document.cases)
      for (const report::TensorResult& tensor : item.tensors)
        if (tensor.name == "dinitial_state") {
          INFO(regime << ": " << tensor.reason);
          CHECK(tensor.verdict == Verdict::inconclusive);
        }
  }
}

TEST_CASE("gradients that fade into the least numbers of fp16 are not called wrong", "[engine][limits]") {
  // Through the final state, or o, alone: what is left of it some tokens away is lost in operands in fp16.
  for (const char* const regime :
       {"control:T=150,K=64,V=64,loss=3,dtype=fp16", "control:T=150,K=64,V=64,seed=2,loss=3,dtype=fp16"}) {
    plan::Request request = request_for({regime}, plan::Names{"chunk"});
    request.selection.dtypes = Names{"fp16"};
    request.selection.against = Names{"oracle"};
    request.arithmetic = Names{"fla"};
    all_pass(ran(request));
  }
}

TEST_CASE("a healthy kernel whose sums take another order is not called wrong for a channel that forgets",
          "[engine][limits]") {
  // Sums of gates in a tree are rounded by themselves at every row; small keys leave such a channel little
  // else.
  plan::Request request = request_for({"lb_real:T=65,K=128,V=64,seed=1003835365,H=1"}, plan::Names{"chunk"});
  request.selection.dtypes = Names{"fp32"};
  request.selection.against = Names{"oracle"};
  request.arithmetic =
      Names{"exponential=exact", "reduction=tree:64", "decay=anchor-first:16", "inverse=blocks:16"};
  request.chunk_size = 32;
  all_pass(ran(request));
}

TEST_CASE("an element that is off by more than is derived is no fault where a twin's is",
          "[engine][limits]") {
  for (const auto& [regime, chunk_size, words] :
       {std::tuple{"corr_keys:T=64,K=16,V=32,seed=393437197,H=3", 64,
                   Names{"exponential=cuda", "contraction=separate", "reduction=tree:64",
                         "decay=anchor-mid:16", "inverse=blocks:32", "tail=suffix"}},
        {"tails:T=130,K=16,V=128,seed=1055120081,H=1", 32,
         Names{"exponential=exp2-scaled", "reduction=tree:64", "inverse=blocks:16"}}}) {
    plan::Request request = request_for({regime}, plan::Names{"chunk"});
    request.selection.dtypes = Names{"fp32"};
    request.selection.against = Names{"oracle"};
    request.arithmetic = words;
    request.chunk_size = static_cast<std::size_t>(chunk_size);
    all_pass(ran(request));
    request.test = false;
    const report::Document document = ran(request);
    const report::TensorResult& alone = test::tensor_of(document.cases.at(0), "final_state");
    CHECK(alone.verdict == Verdict::fail);
    CHECK(alone.reason.find("scaled_ulp") == 0);
  }
}

TEST_CASE("what is lost of a column that is small is seen, of one head and of all", "[engine][limits]") {
  // rms, and the errors of rows, see nothing of it.
  kda::Problem problem = kda::parse_regime("control:T=256,H=2,K=64,V=64,dtype=bf16").build();
  for (std::size_t i = 5; i < problem.v.size(); i += 64) problem.v.set(i, problem.v.value(i) * 0x1p-8);
  const std::size_t step = GENERATE(64, 128);
  const double left = GENERATE(0.0, 0.9, 1.0);
  CAPTURE(step, left);
  kda::Answer answer = test::run(problem, "chunk", numeric::DType::bf16);
  for (std::size_t i = 5; i < answer.o.size(); i += step) answer.o.set(i, left * answer.o.value(i));
  const TemporaryFixture file(problem, nullptr, "lost-column");
  fixture::WriteRequest written;
  written.name = "lost column", written.problem = &problem;
  written.expected.push_back({"mine", "", "", numeric::ComputeFormat::bf16, {&answer.o}, {}});
  fixture::write_fixture(file.path, written);
  plan::Request request = request_for({file.path}, plan::Names{});
  const report::Document document = ran(request);
  CHECK(document.cases.at(0).verdict == (left < 1 ? Verdict::fail : Verdict::pass));
}

TEST_CASE("on keys that are not alike the limits are what they were without", "[engine][limits]") {
  const auto limit_of = [](const report::TensorResult& tensor, std::string_view metric) {
    return std::ranges::find(tensor.limits, metric, &judge::Limit::metric)->value;
  };
  plan::Request request = request_for({"control"}, plan::Names{"recurrent", "chunk"});
  request.selection.against = Names{"oracle"};
  request.selection.dtypes = Names{"fp32", "bf16"};
  request.test = false;
  for (const report::CaseResult& item : ran(request).cases) {
    const report::TensorResult& o = test::tensor_of(item, "o");
    INFO(item.variant << ' ' << item.dtype);
    if (item.dtype != "bf16") continue;
    CHECK(limit_of(o, "rms_ratio") < (item.variant == "chunk" ? 0.0119 : 0.00392));
    CHECK(limit_of(o, "scaled_ulp") < (item.variant == "chunk" ? 19 : 1.01));
  }
}

}  // namespace limits_tests
