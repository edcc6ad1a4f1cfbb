// `attribute` of GPU variants and of captures of them, with rows that stand for them.
#include "base/error.hpp"
#include "session/attribute.hpp"
#include "support/catch.hpp"
#include "support/made_up_gpu.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using numeric::DType;

namespace {

const std::vector<kda::Variant> right =
    test::cpu_variants_and({test::made_up_gpu_recurrent(), test::made_up_gpu_chunk<false>()});
const std::vector<kda::Variant> wrong = test::cpu_variants_and({test::made_up_gpu_chunk<true>()});

session::AttributeRequest request_for(const std::vector<kda::Variant>& registry, const std::string& target) {
  session::AttributeRequest request;
  request.targets = {target};
  request.threads = 2;
  request.registry = registry;
  return request;
}

std::vector<std::string> changes(const report::Ladder& ladder) {
  std::vector<std::string> list;
  for (const report::Rung& rung : ladder.rungs) list.push_back(rung.change);
  return list;
}

double sum_of_shares(const report::Ladder& ladder) {
  double sum = 0;
  for (const report::Rung& rung : ladder.rungs) sum += rung.share;
  return sum;
}

/// A file with what the GPU kernels would have answered, as `capture` names it.
struct Capture {
  Capture(const kda::Problem& problem, const std::string& group, const kda::Answer& answer)
      : file(problem, nullptr, "capture") {
    fixture::WriteRequest request;
    request.name = "capture", request.problem = &problem;
    request.expected.push_back(
        {group, "kda-check", "some GPU", numeric::ComputeFormat::fp32, {&answer.o, &answer.final_state}, {}});
    fixture::write_fixture(file.path, request);
  }
  test::TemporaryFixture file;
};

kda::Answer as_h100(const kda::Problem& problem, const char* variant, DType dtype) {
  kda::RunOptions options = test::default_options(problem, variant, dtype);
  kda::set_axis(options.arithmetic, "h100");
  return test::run(problem, variant, options);
}

kda::Problem problem_of(DType dtype) {
  test::ProblemSpec spec;
  spec.T = 130, spec.H = 2, spec.HV = 2, spec.K = 48, spec.V = 20, spec.dtype = dtype;
  spec.qk_l2norm = spec.beta_sigmoid = true;
  return test::make_problem(spec);
}

}  // namespace

TEST_CASE("the ladder to a capture of a GPU names every cause of the difference and leaves no bit",
          "[attribute][replay]") {
  const kda::Problem problem = problem_of(DType::fp32);
  const Capture capture(problem, "gpu-chunk@some-gpu", as_h100(problem, "chunk", DType::fp32));
  session::AttributeRequest request = request_for(right, capture.file.path);
  request.between = {"gpu-chunk@some-gpu", "chunk+ieee"};
  const report::AttributionResult result = session::attribute(request, {});
  REQUIRE(result.ladders.size() == 2);
  for (const report::Ladder& ladder : result.ladders) {
    CHECK(changes(ladder) == std::vector<std::string>{"chunk+ieee", "contraction=fused", "exponential=cuda",
                                                      "reduction=simt",
                                                      "formulation=anchor-pair:16, blocks:16, suffix tail",
                                                      "gpu-chunk@some-gpu itself"});
    CHECK(ladder.rungs[0].differing > ladder.elements / 4);
    CHECK(ladder.rungs[3].differing > 0);
    CHECK(ladder.rungs[4].differing == 0);
    CHECK(ladder.rungs[4].remaining == 0);
    CHECK(ladder.rungs[5].differing == 0);
    CHECK(ladder.rungs[5].share == 0);
    CHECK(sum_of_shares(ladder) == Approx(1));
  }
}

TEST_CASE("the ladder to a capture of the token form, and to one in 16 bits, leaves no bit",
          "[attribute][replay]") {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const kda::Problem problem = problem_of(dtype);
    const Capture token(problem, "gpu-recurrent@some-gpu", as_h100(problem, "recurrent", dtype));
    session::AttributeRequest request = request_for(right, token.file.path);
    request.between = {"gpu-recurrent@some-gpu", "recurrent"};
    for (const report::Ladder& ladder : session::attribute(request, {}).ladders) {
      CHECK(changes(ladder) == std::vector<std::string>{"recurrent", "exponential=cuda", "reduction=simt",
                                                        "gpu-recurrent@some-gpu itself"});
      CHECK(ladder.rungs[0].differing > 0);
      CHECK(ladder.rungs[2].differing == 0);
    }
  }
  const kda::Problem problem = problem_of(DType::bf16);
  const Capture chunk(problem, "gpu-chunk@some-gpu", as_h100(problem, "chunk", DType::bf16));
  session::AttributeRequest request = request_for(right, chunk.file.path);
  request.between = {"gpu-chunk@some-gpu", "chunk+ieee"};
  for (const report::Ladder& ladder : session::attribute(request, {}).ladders) {
    CHECK(ladder.rungs[4].change == "storage=upstream");
    CHECK(ladder.rungs[5].differing == 0);
    CHECK(sum_of_shares(ladder) == Approx(1));
  }
}

TEST_CASE("what the replay does not tell stays with the capture", "[attribute][replay]") {
  const kda::Problem problem = problem_of(DType::fp32);
  kda::Answer answer = as_h100(problem, "chunk", DType::fp32);
  answer.o.set(7, answer.o.value(7) + 1e-3);
  const Capture capture(problem, "gpu-chunk@some-gpu", answer);
  session::AttributeRequest request = request_for(right, capture.file.path);
  request.between = {"gpu-chunk@some-gpu", "chunk"};
  const report::Ladder o = session::attribute(request, {}).ladders.at(0);
  CHECK(o.rungs[o.rungs.size() - 2].differing == 1);
  CHECK(o.rungs.back().differing == 0);
  CHECK(o.rungs.back().share > 0.9);
  CHECK(sum_of_shares(o) == Approx(1));
}

TEST_CASE("a GPU variant is an end of a ladder, run once in its own arithmetic", "[attribute][replay]") {
  session::AttributeRequest request = request_for(right, "control:T=70,H=2,K=32,V=16");
  request.between = {"gpu-chunk", "chunk"};
  const report::Ladder o = session::attribute(request, {}).ladders.at(0);
  CHECK(o.to == "gpu-chunk");
  CHECK(o.rungs.front().differing > 0);
  CHECK(o.rungs[o.rungs.size() - 2].differing == 0);
  CHECK(o.rungs.back().change == "gpu-chunk itself");
  CHECK(sum_of_shares(o) == Approx(1));

  request.between = {"chunk", "gpu-chunk"};  // the other way: from the GPU
  const report::Ladder back = session::attribute(request, {}).ladders.at(0);
  CHECK(back.rungs.at(1).change == "as chunk computes it");
  CHECK(back.rungs.at(1).share == 0);
  CHECK(back.rungs.back().differing == 0);

  request.between = {"gpu-chunk", "chunk+h100"};  // nothing to tell
  const report::Ladder none = session::attribute(request, {}).ladders.at(0);
  CHECK(none.rungs.size() == 2);
  for (const report::Rung& rung : none.rungs) {
    CHECK(rung.differing == 0);
    CHECK(rung.share == 0);
  }

  request.registry = wrong;
  const report::Ladder off = session::attribute(request, {}).ladders.at(0);
  CHECK(off.rungs.at(0).differing == 1);
  CHECK(off.rungs.at(1).share == 1);
}

TEST_CASE("ends of a ladder that no replay reaches are usage errors", "[attribute][replay]") {
  const auto usage = [](std::vector<std::string> between, std::vector<std::string> dtypes) {
    session::AttributeRequest request = request_for(right, "control:T=8,K=8,V=8");
    request.between = std::move(between), request.dtypes = std::move(dtypes);
    try {
      session::attribute(request, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(usage({"gpu-chunk", "chunk"}, {"fp64"}), ContainsSubstring("no replay in fp64"));
  CHECK_THAT(usage({"gpu-chunk+ieee", "chunk"}, {}), ContainsSubstring("exponential=cuda"));
}

TEST_CASE("a GPU variant is taken apart through its replay, and its full error is its own",
          "[attribute][replay]") {
  session::AttributeRequest request = request_for(right, "control:T=70,H=2,K=32,V=16");
  request.variants = {"gpu-chunk", "gpu-recurrent"};
  const std::vector<report::Attribution> gpu = session::attribute(request, {}).attributions;
  request.variants = {"chunk", "recurrent"};
  request.arithmetic = {"h100"};
  const std::vector<report::Attribution> cpu = session::attribute(request, {}).attributions;
  REQUIRE(gpu.size() == 4);
  REQUIRE(cpu.size() == 4);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CHECK(gpu[i].variant == "gpu-" + cpu[i].variant);
    CHECK(gpu[i].arithmetic == cpu[i].arithmetic);
    CHECK(gpu[i].full == cpu[i].full);
    CHECK(gpu[i].ideal == cpu[i].ideal);
    REQUIRE(gpu[i].axes.size() == cpu[i].axes.size());
    for (std::size_t a = 0; a < gpu[i].axes.size(); ++a) {
      CHECK(gpu[i].axes[a].only == cpu[i].axes[a].only);
      CHECK(gpu[i].axes[a].without == cpu[i].axes[a].without);
    }
    CHECK(gpu[i].stages.size() == cpu[i].stages.size());
  }
  // The GPU's own error: a bit off in its answer is in `full` and in nothing that its replay computes.
  request.registry = wrong;
  request.variants = {"gpu-chunk"};
  request.arithmetic = {};
  const report::Attribution off = session::attribute(request, {}).attributions.at(0);
  CHECK(off.full != gpu[0].full);
  CHECK(off.ideal == gpu[0].ideal);
  CHECK(off.axes.at(1).without == gpu[0].axes.at(1).without);
}

TEST_CASE("in fp64 a GPU variant is not taken apart, and the reason is given", "[attribute][replay]") {
  session::AttributeRequest request = request_for(right, "control:T=8,K=8,V=8,dtype=fp64");
  request.variants = {"chunk", "gpu-chunk"};
  const report::AttributionResult result = session::attribute(request, {});
  CHECK(result.attributions.size() == 2);
  REQUIRE(result.fixtures.at(0).notes.size() == 1);
  CHECK_THAT(result.fixtures[0].notes[0], ContainsSubstring("skipped: gpu-chunk fp64: no replay in fp64"));
}
