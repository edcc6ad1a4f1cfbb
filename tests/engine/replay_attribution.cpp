// `attribute` of GPU variants and of captures of them, with rows that stand for them.
#include "support/catch.hpp"
#include "support/ladders.hpp"
#include "support/made_up_gpu.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace replay_attribution_tests {

using namespace kda_check;
using numeric::DType;
using plan::Names;
using test::axes;
using test::changes;
using test::Item;
using test::items_of;
using test::Row;
using test::sum_of_shares;
using test::unexplained;

namespace {

const std::vector<kda::Variant> right =
    test::cpu_variants_and({test::made_up_gpu_recurrent(), test::made_up_gpu_chunk()});
const std::vector<kda::Variant> wrong = test::cpu_variants_and({test::made_up_gpu_chunk<test::Wrong::o>()});

plan::Request request_for(const std::vector<kda::Variant>& registry, const std::string& target) {
  plan::Request request = test::request_for({target}, plan::Task::attribute);
  request.registry = registry;
  return request;
}

report::Document ran(const plan::Request& request) { return test::ran(request, test::on_threads(2)); }

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
          "[engine][attribute][replay]") {
  const kda::Problem problem = problem_of(DType::fp32);
  const Capture capture(problem, "gpu-chunk@some-gpu", as_h100(problem, "chunk", DType::fp32));
  plan::Request request = request_for(right, capture.file.path);
  request.between = {"gpu-chunk@some-gpu", "chunk+ieee"};
  const report::Document document = ran(request);
  const std::vector<Item> ladders = items_of(document, "ladders");
  REQUIRE(ladders.size() == 2);
  for (const Item& ladder : ladders) {
    CHECK(changes(ladder) == Names{"chunk+ieee", "contraction=fused", "exponential=cuda", "reduction=simt",
                                   "formulation=anchor-pair:16, blocks:16, suffix tail",
                                   "gpu-chunk@some-gpu itself"});
    const std::vector<Row> rungs = ladder.rows("rungs");
    CHECK(rungs[0].count("differing") > ladder.count("elements") / 4);
    CHECK(rungs[3].count("differing") > 0);
    CHECK(rungs[4].count("differing") == 0);
    CHECK(rungs[4].figure("remaining") == 0);
    CHECK(rungs[5].count("differing") == 0);
    CHECK(rungs[5].figure("share") == 0);
    CHECK(sum_of_shares(ladder) == Approx(1));
    CHECK(ladder.words("doubt").empty());
  }
}

TEST_CASE("the ladder to a capture of the token form, and to one in 16 bits, leaves no bit",
          "[engine][attribute][replay]") {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const kda::Problem problem = problem_of(dtype);
    const Capture token(problem, "gpu-recurrent@some-gpu", as_h100(problem, "recurrent", dtype));
    plan::Request request = request_for(right, token.file.path);
    request.between = {"gpu-recurrent@some-gpu", "recurrent"};
    const report::Document document = ran(request);
    CHECK(items_of(document, "ladders").size() == 2);
    for (const Item& ladder : items_of(document, "ladders")) {
      CHECK(changes(ladder) ==
            Names{"recurrent", "exponential=cuda", "reduction=simt", "gpu-recurrent@some-gpu itself"});
      CHECK(ladder.rows("rungs")[0].count("differing") > 0);
      CHECK(ladder.rows("rungs")[2].count("differing") == 0);
    }
  }
  const kda::Problem problem = problem_of(DType::bf16);
  const Capture chunk(problem, "gpu-chunk@some-gpu", as_h100(problem, "chunk", DType::bf16));
  plan::Request request = request_for(right, chunk.file.path);
  request.between = {"gpu-chunk@some-gpu", "chunk+ieee"};
  const report::Document document = ran(request);
  CHECK(items_of(document, "ladders").size() == 2);
  for (const Item& ladder : items_of(document, "ladders")) {
    CHECK(ladder.rows("rungs")[4].words("change") == "storage=upstream");
    CHECK(ladder.rows("rungs")[5].count("differing") == 0);
    CHECK(sum_of_shares(ladder) == Approx(1));
  }
}

TEST_CASE("what the replay does not tell stays with the capture", "[engine][attribute][replay]") {
  const kda::Problem problem = problem_of(DType::fp32);
  kda::Answer answer = as_h100(problem, "chunk", DType::fp32);
  answer.o.set(7, answer.o.value(7) + 1e-3);
  const Capture capture(problem, "gpu-chunk@some-gpu", answer);
  plan::Request request = request_for(right, capture.file.path);
  request.between = {"gpu-chunk@some-gpu", "chunk"};
  const report::Document document = ran(request);
  const Item o = items_of(document, "ladders").at(0);
  CHECK(unexplained(o) == 1);
  CHECK(o.rows("rungs").back().count("differing") == 0);
  CHECK(o.rows("rungs").back().figure("share") > 0.9);
  CHECK(sum_of_shares(o) == Approx(1));
  CHECK_THAT(o.words("doubt"), ContainsSubstring("gpu-chunk@some-gpu is not what chunk computes"));
}

TEST_CASE("a GPU variant is an end of a ladder, run once in its own arithmetic",
          "[engine][attribute][replay]") {
  plan::Request request = request_for(right, "control:T=70,H=2,K=32,V=16");
  const auto ladder_of = [&](Names ends) {
    request.between = std::move(ends);
    return ran(request);
  };
  const report::Document there = ladder_of({"gpu-chunk", "chunk"});
  const Item o = items_of(there, "ladders").at(0);
  CHECK(o.words("to") == "gpu-chunk");
  CHECK(o.rows("rungs").front().count("differing") > 0);
  CHECK(unexplained(o) == 0);
  CHECK(changes(o).back() == "gpu-chunk itself");
  CHECK(sum_of_shares(o) == Approx(1));

  const report::Document other_way = ladder_of({"chunk", "gpu-chunk"});
  const Item back = items_of(other_way, "ladders").at(0);
  CHECK(changes(back).at(1) == "as chunk computes it");
  CHECK(back.rows("rungs").at(1).figure("share") == 0);
  CHECK(back.rows("rungs").back().count("differing") == 0);

  const report::Document nothing_to_tell = ladder_of({"gpu-chunk", "chunk+h100"});
  const Item none = items_of(nothing_to_tell, "ladders").at(0);
  CHECK(none.rows("rungs").size() == 2);
  for (const Row& rung : none.rows("rungs")) {
    CHECK(rung.count("differing") == 0);
    CHECK(rung.figure("share") == 0);
  }

  request.registry = wrong;
  const report::Document one_bit = ladder_of({"gpu-chunk", "chunk+h100"});
  const Item off = items_of(one_bit, "ladders").at(0);
  CHECK(off.rows("rungs").at(0).count("differing") == 1);
  CHECK(off.rows("rungs").at(1).figure("share") == 1);
}

TEST_CASE("ends of a ladder that no replay reaches are usage errors", "[engine][attribute][replay]") {
  const auto usage = [](Names between, std::optional<Names> dtypes) {
    plan::Request request = request_for(right, "control:T=8,K=8,V=8");
    request.between = std::move(between), request.selection.dtypes = std::move(dtypes);
    return test::refusal([&] { test::planned(request); });
  };
  CHECK_THAT(usage({"gpu-chunk", "chunk"}, Names{"fp64"}),
             ContainsSubstring("2 ") && ContainsSubstring("no replay in fp64"));
  CHECK_THAT(usage({"gpu-chunk+ieee", "chunk"}, {}),
             ContainsSubstring("2 ") && ContainsSubstring("exponential=cuda"));
}

TEST_CASE("a GPU variant is taken apart through its replay, and its full error is its own",
          "[engine][attribute][replay]") {
  plan::Request request = request_for(right, "control:T=70,H=2,K=32,V=16");
  request.selection.variants = Names{"gpu-chunk", "gpu-recurrent"};
  const report::Document on_gpu = ran(request);
  request.selection.variants = Names{"chunk", "recurrent"};
  request.arithmetic = {"h100"};
  const report::Document on_cpu = ran(request);
  const std::vector<Item> gpu = items_of(on_gpu, "attributions"), cpu = items_of(on_cpu, "attributions");
  REQUIRE(gpu.size() == 4);
  REQUIRE(cpu.size() == 4);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CHECK(gpu[i].words("variant") == "gpu-" + cpu[i].words("variant"));
    CHECK(gpu[i].words("arithmetic") == cpu[i].words("arithmetic"));
    for (const char* const figure : {"rms_ratio", "ideal", "ideal_share", "interaction"})
      CHECK(gpu[i].figure(figure) == cpu[i].figure(figure));
    const std::vector<Row> of_gpu = axes(gpu[i]), of_cpu = axes(cpu[i]);
    REQUIRE(of_gpu.size() == of_cpu.size());
    for (std::size_t a = 0; a < of_gpu.size(); ++a) {
      CHECK(of_gpu[a].figure("only") == of_cpu[a].figure("only"));
      CHECK(of_gpu[a].figure("without") == of_cpu[a].figure("without"));
    }
    CHECK(gpu[i].rows("stages").size() == cpu[i].rows("stages").size());
  }
  // The GPU's own error: a bit off in its answer is in the whole and in nothing that its replay computes.
  request.registry = wrong;
  request.selection.variants = Names{"gpu-chunk"};
  request.arithmetic = {};
  const report::Document one_bit = ran(request);
  const Item off = items_of(one_bit, "attributions").at(0);
  CHECK(off.figure("rms_ratio") != gpu[0].figure("rms_ratio"));
  CHECK(off.figure("ideal") == gpu[0].figure("ideal"));
  CHECK(axes(off).at(1).figure("without") == axes(gpu[0]).at(1).figure("without"));
}

TEST_CASE("in fp64 a GPU variant is not taken apart, and the reason is given",
          "[engine][attribute][replay]") {
  plan::Request request = request_for(right, "control:T=8,K=8,V=8,dtype=fp64");
  request.selection.variants = Names{"chunk", "gpu-chunk"};
  const report::Document document = ran(request);
  CHECK(items_of(document, "attributions").size() == 2);
  REQUIRE(document.problems.at(0).notes.size() == 1);
  CHECK_THAT(document.problems[0].notes[0], ContainsSubstring("skipped: gpu-chunk fp64: no replay in fp64"));
}

}  // namespace replay_attribution_tests
