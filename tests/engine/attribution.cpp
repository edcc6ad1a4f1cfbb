// `attribute`: shares of axes and stages, and steps between answers.
#include <csignal>

#include "base/interruption.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/ladders.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"
#include "support/temporary_folder.hpp"

namespace attribution_tests {

using namespace kda_check;
using numeric::DType;
using plan::Names;
using test::axis;
using test::Item;
using test::items_of;
using test::Row;

namespace {

plan::Request request_for(const std::string& target) {
  return test::request_for({target}, plan::Task::attribute);
}

report::Document ran(const plan::Request& request) { return test::ran(request, test::on_threads(2)); }

}  // namespace

TEST_CASE("tf32 operands explain the error of the chunk form under the preset fla", "[engine][attribute]") {
  plan::Request request = request_for("control:T=96,K=32,V=32");
  request.selection.variants = Names{"chunk"};
  request.arithmetic = {"fla"};
  const report::Document document = ran(request);
  const std::vector<Item> found = items_of(document, "attributions");
  REQUIRE(found.size() == 2);
  for (const Item& item : found) {
    CHECK(axis(item, "storage").figure("share") > 0.9);
    CHECK(axis(item, "storage").words("value") == "triton");
    CHECK(axis(item, "storage").figure("without") < item.figure("rms_ratio") / 100);
    CHECK_THAT(item.words("note"), ContainsSubstring("swamps the rest"));
    CHECK(test::sum_of_axes(item) == Approx(1));
  }
  // The stages are those of o, each with an error of its own; none of them makes o worse than it was by much.
  REQUIRE(found[0].rows("stages").size() == kda::forward_stage_count);
  CHECK(found[1].rows("stages").empty());
  for (const Row& stage : found[0].rows("stages")) CHECK(stage.figure("share") > -1);
}

TEST_CASE("what it costs to compute a sequence in parts is a row of its own",
          "[engine][attribute][segments]") {
  plan::Request request = request_for("gate_zero:T=512,K=32,V=32,H=1");
  request.selection.variants = Names{"chunk"};
  request.arithmetic = {"ideal", "segments=sequential:8", "storage=tf32@transition"};
  const report::Document cut = ran(request);
  const Item state = items_of(cut, "attributions").at(1);
  CHECK(axis(state, "segments").words("value") == "sequential:8");
  // M as a tf32 operand: without parts there is none.
  CHECK(axis(state, "segments").figure("without") == Approx(state.figure("ideal")));
  CHECK(state.figure("rms_ratio") > 20 * state.figure("ideal"));
  request.selection.variants = Names{"recurrent"};
  request.arithmetic = {"ideal"};
  const report::Document token_form = ran(request);
  for (const Row& row : test::axes(items_of(token_form, "attributions").at(1)))
    CHECK(row.words("axis") != "segments");
}

TEST_CASE("an axis that is ideal has no share, and one that is not has one", "[engine][attribute]") {
  plan::Request request = request_for("control:T=200,K=64,V=32");
  request.selection.variants = Names{"recurrent"};
  request.arithmetic = {"ideal", "exponential=poly"};
  const report::Document document = ran(request);
  const Item o = items_of(document, "attributions").at(0);
  for (const char* const name : {"contraction", "reduction", "storage"})
    CHECK(axis(o, name).figure("share") == Approx(0).margin(1e-12));
  CHECK(axis(o, "exponential").figure("only") == o.figure("rms_ratio"));
  CHECK(axis(o, "exponential").figure("without") == o.figure("ideal"));
  CHECK(axis(o, "exponential").figure("share") > 0.05);
  CHECK(o.figure("interaction") == Approx(0).margin(1e-9));
}

TEST_CASE("the ladder between two arithmetics of ours ends with no differing bit", "[engine][attribute]") {
  plan::Request request = request_for("control:T=70,K=32,V=32");
  request.selection.dtypes = Names{"fp32"};
  request.between = {"chunk+h100", "recurrent+ieee"};
  const report::Document document = ran(request);
  const std::vector<Item> ladders = items_of(document, "ladders");
  REQUIRE(ladders.size() == 2);
  for (const Item& ladder : ladders) {
    const std::vector<Row> rungs = ladder.rows("rungs");
    REQUIRE(rungs.size() >= 5);
    CHECK(rungs.front().count("differing") > 0);
    CHECK(rungs.back().count("differing") == 0);
    CHECK(rungs.back().figure("remaining") == 0);
    CHECK(test::sum_of_shares(ladder) == Approx(1));
  }
}

TEST_CASE("a token form's own order of operations has a share, and a step of the ladder",
          "[engine][attribute]") {
  plan::Request request = request_for("control:T=200,K=64,V=32");
  request.selection.variants = Names{"recurrent"};
  request.arithmetic = {"ideal", "delta=fused", "scale=output", "update=decay-fused"};
  const report::Document document = ran(request);
  const Item o = items_of(document, "attributions").at(0);
  const Row formulation = axis(o, "formulation");
  CHECK(formulation.words("value") == "fused delta, scaled output, decay-fused update");
  CHECK(formulation.figure("only") == o.figure("rms_ratio"));
  CHECK(formulation.figure("without") == o.figure("ideal"));
  CHECK(formulation.figure("only") != formulation.figure("without"));
  // What the chunk form alone has is no cause of anything.
  request.arithmetic = {"ideal", "h100"};
  const report::Document in_chunks = ran(request);
  const Item usual = items_of(in_chunks, "attributions").at(0);
  CHECK(axis(usual, "formulation").words("value") == "as usual");
  CHECK(axis(usual, "formulation").figure("share") == Approx(0).margin(1e-12));

  plan::Request steps = request_for("control:T=70,K=32,V=32");
  steps.selection.dtypes = Names{"fp32"};
  steps.between = {"recurrent+h100+update=decay-fused", "naive+h100"};
  const report::Document climbed = ran(steps);
  const std::vector<Item> ladders = items_of(climbed, "ladders");
  REQUIRE(ladders.size() == 2);
  for (const Item& ladder : ladders) {
    const std::vector<Row> rungs = ladder.rows("rungs");
    CHECK(rungs.back().words("change") == "formulation=decay-fused update");
    CHECK(rungs.back().count("differing") == 0);
    REQUIRE(rungs.size() >= 2);
    CHECK(rungs[rungs.size() - 2].count("differing") > 0);
  }
}

TEST_CASE("stages that do not fit are refused before any work, and cost no other answer its shares",
          "[engine][attribute][memory]") {
  plan::Request request = request_for("control:T=600,H=1,K=16,V=16");
  request.selection.variants = Names{"recurrent", "chunk"};
  request.selection.dtypes = Names{"fp32", "fp64"};
  engine::Resources resources = test::on_threads(1);
  resources.limits.memory_budget = 4 << 20;
  std::vector<std::string> worked;
  resources.progress = [&](const std::string& what) { worked.push_back(what); };
  const report::Document document = test::ran(request, resources);
  CHECK(exit_code(document) == 3);
  REQUIRE(document.failures.size() == 1);
  CHECK_THAT(document.failures[0].message,
             ContainsSubstring("stages and their truth take ") && ContainsSubstring("--memory-limit"));
  const std::vector<Item> found = items_of(document, "attributions");
  REQUIRE(found.size() == 4);
  for (const Item& item : found) CHECK(item.words("variant") == "recurrent");
  for (const std::string& what : worked) CHECK(what.find("chunk") == std::string::npos);
}

TEST_CASE("what attribute finished before a signal is kept", "[engine][attribute]") {
  plan::Request request = request_for("control:T=40,H=1,K=16,V=16");
  request.selection.variants = Names{"recurrent", "chunk"};
  request.selection.dtypes = Names{"fp32"};
  test::Child child([&](const std::function<void()>&) {
    prepare_signals();
    engine::Resources resources = test::on_threads(1);
    resources.progress = [](const std::string& what) {
      if (what.find("chunk") != std::string::npos) std::raise(SIGTERM), check_interruption();
    };
    report::Document document;
    try {
      engine::execute(test::planned(request), {resources},
                      {[&](report::Document part) { document.add(std::move(part)); }});
    } catch (const Interrupted&) {
      return static_cast<int>(items_of(document, "attributions").size());
    }
    return 91;
  });
  CHECK(child.exit_status() == 2);
}

TEST_CASE("what attribute cannot do is said in one line", "[engine][attribute]") {
  const auto usage = [](auto change) {
    plan::Request request = request_for("control:T=8,K=8,V=8");
    change(request);
    return test::refusal([&] { test::planned(request); });
  };
  CHECK_THAT(usage([](auto& r) { r.arithmetic = {"flaa"}; }), ContainsSubstring("did you mean 'fla'"));
  CHECK_THAT(usage([](auto& r) {
               r.between = {"chunk", "nobody"};
             }),
             ContainsSubstring("2 --between nobody: neither a variant nor a recorded answer"));
  CHECK_THAT(usage([](auto& r) {
               r.selection.dtypes = Names{"fp64"}, r.between = {"chunk+fla", "naive"};
             }),
             ContainsSubstring("2 ") && ContainsSubstring("fp32 only"));
  CHECK_THAT(usage([](auto& r) {
               r.selection.dtypes = Names{"fp64", "fp32"}, r.between = {"chunk", "naive"};
             }),
             ContainsSubstring("2 --between takes one --dtype"));
  CHECK_THAT(usage([](auto& r) {
               r.selection.dtypes = Names{"bf16"}, r.between = {"chunk", "naive"};
             }),
             ContainsSubstring("2 --between: bf16 does not hold the fp32 inputs"));
}

TEST_CASE("a group of which nothing is known says how to name what computes as it does",
          "[engine][attribute]") {
  const kda::Problem problem = test::make_problem({});
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  kda::set_axis(options.arithmetic, "fla");
  const kda::Answer answer = test::run(problem, "chunk", options);
  const test::TemporaryFixture file(problem, &answer, "unknown");
  plan::Request request = request_for(file.path);
  request.selection.variants = Names{}, request.selection.recorded = Names{"somebody"};
  CHECK_THAT(test::refusal([&] { test::planned(request); }),
             ContainsSubstring("nothing is known of how expected/somebody was computed") &&
                 ContainsSubstring("--as chunk+fla"));
  request.as = "chunk+fla";
  const report::Document right = ran(request);
  const Item o = items_of(right, "attributions").at(0);
  CHECK(axis(o, "storage").figure("share") > 0.8);
  CHECK_THAT(o.words("note"), ContainsSubstring("expected/somebody as chunk") &&
                                  ContainsSubstring("what is between them is 0 % of its error"));
  // A form that it does not have explains nothing, and says so.
  request.as = "recurrent";
  const report::Document wrong = ran(request);
  CHECK_THAT(items_of(wrong, "attributions").at(0).words("note"),
             ContainsSubstring("expected/somebody does not compute as recurrent"));
  request.as = "chnk";
  CHECK_THAT(test::refusal([&] { test::planned(request); }), ContainsSubstring("did you mean 'chunk'?"));
}

TEST_CASE("on the captures storage explains fla_chunk, and its emulation errs as it does",
          "[engine][attribute][captures]") {
  const std::string folder = test::large_fixtures();
  if (folder.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  plan::Request request = request_for(folder + "/fla_fp32_varlen.h5");
  request.selection.variants = Names{"chunk"};
  request.arithmetic = {"fla"};
  const report::Document document = ran(request);
  const Item item = items_of(document, "attributions").at(0);
  CHECK(axis(item, "storage").figure("share") > 0.95);
  // fla_chunk's own: 9.66e-4 (docs/measurements.md)
  CHECK(item.figure("rms_ratio") == Approx(9.66e-4).epsilon(0.05));

  request.selection.variants.reset();
  request.arithmetic.clear();
  request.between = {"fla_chunk", "recurrent"};
  const report::Document between = ran(request);
  const Item o = items_of(between, "ladders").at(0);
  CHECK(o.rows("rungs").front().count("differing") > o.count("elements") * 9 / 10);
  CHECK(test::unexplained(o) == 0);
}

TEST_CASE("attribute finds the launch of a recorded answer, and says which", "[engine][attribute]") {
  test::ProblemSpec spec;
  spec.T = 100, spec.K = 64, spec.V = 32, spec.H = 2, spec.HV = 2;
  const kda::Problem problem = test::make_problem(spec);
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  for (const char* const word : {"fla", "launch=pairs:2x32x1+scan:2"})
    kda::set_axis(options.arithmetic, word);
  const kda::Answer answer = test::run(problem, "chunk", options);
  const test::TemporaryFixture file(problem, &answer, "launched");
  const auto notes = [&](const std::string& as, const char* section, Names between) {
    plan::Request request = request_for(file.path);
    request.as = as, request.between = std::move(between);
    request.selection.tensors = Names{"o"};
    if (request.between.empty())
      request.selection.variants = Names{}, request.selection.recorded = Names{"somebody"};
    const report::Document document = ran(request);
    const Item item = items_of(document, section).at(0);
    return std::pair(item.words("launch"), std::string(section) == "ladders" ? test::unexplained(item) : 0);
  };
  const std::string found =
      "launch=pairs:2x32x1+substitution:1x8x1+scan:2: found in the bits of somebody, of which it leaves 0 of "
      "10496 "
      "elements different";
  CHECK(notes("chunk+fla", "ladders", {"somebody", "recurrent"}) == std::pair(found, std::int64_t{0}));
  CHECK(notes("chunk+fla", "attributions", {}).first == found);
  // One that is named is not looked for.
  const auto named = notes("chunk+fla+launch=scan:4", "ladders", {"somebody", "recurrent"});
  CHECK(named.first.empty());
  CHECK(named.second > 0);
}

TEST_CASE("two recorded answers that are taken for one way have each its launch", "[engine][attribute]") {
  test::ProblemSpec spec;
  spec.T = 100, spec.K = 64, spec.V = 32;
  const kda::Problem problem = test::make_problem(spec);
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  kda::set_axis(options.arithmetic, "fla");
  std::vector<kda::Answer> answers;
  for (const char* const word : {"launch=scan:2", "launch=scan:4"}) {
    kda::set_axis(options.arithmetic, word);
    answers.push_back(test::run(problem, "chunk", options));
  }
  const test::TemporaryFolder folder;
  const std::string path = folder / "two.h5";
  fixture::WriteRequest write;
  write.name = "two", write.problem = &problem;
  const char* const names[] = {"first", "second"};
  for (std::size_t i = 0; i < 2; ++i)
    write.expected.push_back(
        {names[i], "", "", numeric::ComputeFormat::tf32, {&answers[i].o, &answers[i].final_state}, {}});
  fixture::write_fixture(path, write);
  plan::Request request = request_for(path);
  request.as = "chunk+fla", request.selection.variants = Names{};
  request.selection.recorded = Names{"first", "second"};
  request.selection.tensors = Names{"o"};
  const report::Document document = ran(request);
  const std::vector<Item> items = items_of(document, "attributions");
  REQUIRE(items.size() == 2);
  CHECK_THAT(items[0].words("launch"),
             ContainsSubstring("scan:2: found in the bits of first, of which it leaves 0 of"));
  CHECK_THAT(items[1].words("launch"),
             ContainsSubstring("scan:4: found in the bits of second, of which it leaves 0 of"));
}

TEST_CASE("the fp16 capture of FLA's chunk kernel is reproduced bit for bit",
          "[engine][attribute][captures]") {
  const std::string folder = test::large_fixtures();
  if (folder.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  plan::Request request = request_for(folder + "/fla_fp16_c32.h5");
  request.between = {"fla_chunk", "recurrent"};
  const report::Document document = ran(request);
  const Item o = items_of(document, "ladders").at(0);
  REQUIRE(o.words("tensor") == "o");
  CHECK(o.count("elements") == 20480);
  CHECK(o.rows("rungs").front().count("differing") > 1000);
  CHECK(test::unexplained(o) == 0);
}

}  // namespace attribution_tests
