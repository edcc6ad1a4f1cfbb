// Plans: their cases, their order, what they share, and their digest.
#include <filesystem>
#include <set>

#include "plan/cost.hpp"
#include "plan/listing.hpp"
#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace cases_tests {

using namespace kda_check;
using plan::Names;
using plan::Question;
using plan::Reference;
using test::cases_of;
using test::planned_line;
using test::TemporarySuite;

namespace {

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

/// "chunk fp32 oracle o,final_state"
std::string text_of(const plan::Case& item, const plan::Problem& problem) {
  std::string text = item.who;
  if (item.answer) text += " " + std::string(numeric::name_of(problem.answers[*item.answer].dtype));
  if (!item.reference.name.empty()) text += " " + item.reference.name;
  for (const std::string& tensor : item.tensors) text += " " + tensor;
  if (item.question != Question::verdict) text += " (" + std::string(plan::name_of(item.question)) + ")";
  if (!item.skip.empty()) text += " skipped: " + item.skip;
  return text;
}

Names texts_of(const plan::Plan& plan) {
  Names texts;
  for (const auto& [item, problem] : cases_of(plan)) texts.push_back(text_of(*item, *problem));
  return texts;
}

}  // namespace

TEST_CASE("the plan of a file has every pair that is compared, what a user brought first", "[plan]") {
  const plan::Plan plan = planned_line(committed("fla_fp32_small") + " --variant recurrent,chunk");
  const std::string both = " o final_state";
  CHECK(texts_of(plan) == Names{"fla_chunk fp32 oracle" + both, "fla_recurrent fp32 oracle" + both,
                                "torch_fp64 fp64 oracle" + both, "recurrent fp32 oracle" + both,
                                "chunk fp32 oracle" + both, "recurrent fp32 fla_chunk" + both,
                                "chunk fp32 fla_chunk" + both, "recurrent fp32 fla_recurrent" + both,
                                "chunk fp32 fla_recurrent" + both, "recurrent fp32 torch_fp64" + both,
                                "chunk fp32 torch_fp64" + both});
  CHECK(plan.inputs == Names{committed("fla_fp32_small")});
  CHECK(plan.narrowed);
}

TEST_CASE("cases are numbered through the plan, from 1, in its order", "[plan]") {
  const plan::Plan plan = planned_line("@smoke --stages --invariants");
  std::size_t number = 0;
  for (const auto& [item, problem] : cases_of(plan)) CHECK(item->number == ++number);
  CHECK(plan.cases == number);
  CHECK(number > 500);
}

TEST_CASE("problems of one source follow one another, whatever lines asked for them", "[plan]") {
  const TemporarySuite suite("control:T=4,H=1 --dtype fp32\ncontrol:T=5,H=1\ncontrol:T=4,H=1 --dtype bf16\n");
  const plan::Plan plan = planned_line(suite.name() + " --variant recurrent");
  REQUIRE(plan.problems.size() == 3);
  CHECK(plan.problems[0].source == plan.problems[1].source);
  CHECK(plan.problems[0].remark().empty());
  CHECK(plan.problems[1].remark() == "inputs rounded to bf16");
  CHECK(plan.problems[1].outline.dtype() == numeric::DType::bf16);
  CHECK(plan.problems[2].source->target().name == "control:T=5,H=1");
  const auto cases = cases_of(plan);
  CHECK(cases.at(0).first->asked->place == suite.name() + ":1");
  CHECK(cases.at(1).first->asked->place == suite.name() + ":3");
}

TEST_CASE("two lines that share a problem share its answers, and each has its cases", "[plan]") {
  const TemporarySuite suite(
      "control:T=4,H=1 --variant recurrent\n"
      "control:T=4,H=1 --variant recurrent,naive --limit max_ulp=9\n"
      "control:T=4,H=1 --variant recurrent --arithmetic contraction=separate\n");
  const plan::Plan plan = planned_line(suite.name());
  REQUIRE(plan.problems.size() == 1);
  CHECK(plan.problems[0].cases.size() == 4);
  CHECK(plan.problems[0].answers.size() == 3);  // recurrent in two arithmetics, naive
  CHECK(plan.problems[0].cases[0].answer == plan.problems[0].cases[1].answer);
}

TEST_CASE("a dtype that holds the inputs answers them as they are, another one rounded", "[plan]") {
  const plan::Plan plan =
      planned_line(committed("fla_bf16_prefill") + " --dtype fp64,fp32,fixture,fp16 --variant recurrent");
  REQUIRE(plan.problems.size() == 2);
  std::set<std::string> as_stored, rounded;
  for (const plan::Problem& problem : plan.problems)
    for (const plan::Case& item : problem.cases)
      if (problem.answers[*item.answer].is_computed())
        (problem.rounded_to ? rounded : as_stored)
            .insert(std::string(numeric::name_of(problem.answers[*item.answer].dtype)));
  CHECK(as_stored == std::set<std::string>{"fp64", "fp32", "bf16"});
  CHECK(rounded == std::set<std::string>{"fp16"});
  // Recorded answers answer the stored inputs: each is judged once, and held against nothing that is rounded.
  std::size_t judged = 0;
  for (const auto& [item, problem] : cases_of(plan)) {
    const bool recorded = problem->answers[*item->answer].origin == plan::Answer::Origin::recorded;
    judged += recorded && item->reference.name == "oracle";
    if (problem->rounded_to && item->reference.name != "oracle")
      CHECK_THAT(item->skip, ContainsSubstring("answers the stored inputs"));
  }
  CHECK(judged == plan.problems[0].source->expected().size());
}

TEST_CASE("bits of an answer that is stored less precisely are no question", "[plan]") {
  const std::string captured = "gpu-recurrent@nvidia-h100-80gb-hbm3";
  const std::string words = test::case_fixtures() + "/../captures/corr_keys_bf16.h5 --variant recurrent" +
                            " --oracle none --against " + captured;
  const auto texts = [&](const std::string& more) { return texts_of(planned_line(words + more)); };
  const std::string asked = "recurrent fp32 " + captured + " o final_state";
  for (const char* const bits : {"differing_bits=exact", "max_ulp=0"})
    CHECK(texts(std::string(" --dtype fp32 --limit ") + bits) ==
          Names{asked + " skipped: " + captured + " is in bf16: an answer in fp32 has no such bits"});
  CHECK(texts(" --dtype fp32") == Names{asked});
  CHECK(texts(" --dtype fp32 --limit nonfinite=exact") == Names{asked});
  CHECK(texts(" --limit differing_bits=exact") == Names{"recurrent bf16 " + captured + " o final_state"});
}

TEST_CASE("what cannot be answered is one skipped case with the reason", "[plan]") {
  const plan::Plan plan =
      planned_line("control:T=4,H=1 --variant naive --dtype fp64,fp32 --arithmetic exponential=cuda");
  const Names texts = texts_of(plan);
  REQUIRE(texts.size() == 2);
  CHECK_THAT(texts[0], ContainsSubstring("naive fp64 skipped: ") && ContainsSubstring("fp32 only"));
  CHECK(texts[1] == "naive fp32 oracle o final_state");
}

TEST_CASE("a file without a group that is asked for has a case that says so", "[plan]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", numeric::DType::fp32);
  const test::TemporaryFixture with(problem, &answer, "with"), without(problem, nullptr, "without");
  for (const char* const option : {"--against somebody", "--recorded somebody --against oracle"}) {
    const plan::Plan plan =
        planned_line(with.path + " " + without.path + " --variant none " + std::string(option));
    bool said = false;
    for (const auto& [item, of] : cases_of(plan))
      if (of->source->target().path == without.path)
        said = said || item->skip == "the file has no group expected/somebody";
    CHECK(said);
  }
  CHECK_THAT(test::refusal([&] { planned_line(without.path + " --against somebody"); }),
             ContainsSubstring("2 no fixture has a group expected/somebody"));
  // A file that cannot be read may have had it.
  const std::string bad = std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_bad/missing_q.h5";
  CHECK(planned_line(without.path + " " + bad + " --against somebody").failures.size() == 1);
}

TEST_CASE("stages, laws, sections of explain, powers and captures are cases too", "[plan]") {
  const auto questions = [](const plan::Plan& plan) {
    std::multiset<std::string> names;
    for (const auto& [item, problem] : cases_of(plan)) names.emplace(plan::name_of(item->question));
    return names;
  };
  const std::string target = "control:T=20,H=1,K=8,V=8";
  const plan::Plan run = planned_line(target + " --variant chunk,naive --stages --invariants=repeat,split");
  CHECK(questions(run) == std::multiset<std::string>{"verdict", "verdict", "verdict", "verdict", "verdict",
                                                     "verdict", "stages"});
  const auto of_task = [&](plan::Task task, auto change) {
    plan::Request request = test::request_for({target}, task);
    request.selection.variants = Names{"chunk", "recurrent"};
    change(request);
    return questions(test::planned(request));
  };
  CHECK(of_task(plan::Task::explain, [](plan::Request& request) { request.only = {"growth"}; }) ==
        std::multiset<std::string>{"growth", "growth"});
  CHECK(of_task(plan::Task::explain, [](plan::Request& request) {
          request.only = {"overflow"};
          request.selection.dtypes = Names{"fp32", "bf16"};
        }) == std::multiset<std::string>{"overflow", "overflow"});
  plan::Request explain = test::request_for({committed("fla_fp32_small")}, plan::Task::explain);
  explain.selection.recorded = Names{"fla_chunk", "fla_recurrent"};
  CHECK(questions(test::planned(explain)) == std::multiset<std::string>{"identity", "identity"});
  explain.only = {"shares", "overflow", "faults"};
  CHECK(questions(test::planned(explain)) ==
        std::multiset<std::string>{"faults", "faults", "identity", "identity", "overflow"});
  CHECK(of_task(plan::Task::power, [](plan::Request& request) {
          request.selection.variants.reset();
          request.selection.tensors = Names{"o", "final_state"};
        }) == std::multiset<std::string>{"power", "power"});
  CHECK(of_task(plan::Task::capture, [](plan::Request& request) { request.output = "x.h5"; }) ==
        std::multiset<std::string>{"capture", "capture"});
}

TEST_CASE("the digest of a plan is the same again, and another for other cases", "[plan]") {
  const std::string base = committed("fla_fp32_small") + " --variant recurrent,chunk";
  const auto digest = [](const std::string& words) { return planned_line(words).digest; };
  const std::string digest_of_base = digest(base);
  CHECK(digest_of_base.size() == 16);
  CHECK(digest(base) == digest_of_base);
  CHECK(digest(committed("fla_fp32_small") + " --variant chunk,recurrent") != digest_of_base);
  std::set<std::string> digests{digest_of_base};
  for (const char* const option :
       {"--dtype fp64", "--dtype bf16", "--tensor o", "--against oracle", "--against fla_chunk",
        "--arithmetic contraction=separate", "--chunk-size 16", "--recorded none", "--invariants=repeat",
        "--stages", "--oracle fp64", "--limit max_ulp=9", "--limit max_ulp=8", "--atol 1", "--atol 2",
        "--atol 1 --rtol 1", "--external 'x {in} {out}'", "--external 'x {in} {out}' --external-name mine"}) {
    INFO(option);
    CHECK(digests.insert(digest(base + " " + option)).second);
  }
  CHECK(digests.insert(digest(committed("fla_fp32_k32_v64") + " --variant recurrent,chunk")).second);
  // Where the file is does not matter, what it is called and what is in it does.
  CHECK(digests.insert(digest("control:T=4,H=1 --variant recurrent")).second);
  CHECK(digests.insert(digest("control:T=4,H=1,seed=2 --variant recurrent")).second);
  CHECK(digests.insert(digest(base + " --external 'y {in} {out}'")).second);
}

TEST_CASE("shards of files that hold something else are of another plan", "[plan]") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  std::set<std::string> digests;
  for (const char* const seed : {"1", "2"}) {
    fixture::WriteRequest file;
    const kda::Problem problem = kda::parse_regime(std::string("control:T=8,H=1,seed=") + seed).build();
    file.name = "same", file.problem = &problem, file.compression = 0;
    fixture::write_fixture(path, file);
    const std::string digest = planned_line(path + " --variant recurrent").digest;
    CHECK(planned_line(path + " --variant recurrent").digest == digest);
    CHECK(digests.insert(digest).second);
  }
}

TEST_CASE("the listing of a plan has a row for every case, and what it takes", "[plan]") {
  const plan::Plan plan = planned_line("@smoke");
  const report::Section section = plan::listing(plan);
  CHECK(section.key == "cases_planned");
  REQUIRE(section.entries.size() == plan.cases);
  std::size_t number = 0;
  for (const report::Entry& entry : section.entries) {
    const test::Item row(section, entry);
    CHECK(row.count("number") == static_cast<std::int64_t>(++number));
    CHECK(row.words("place").starts_with("@smoke:"));
    CHECK(row.words("repro").starts_with("kda-check run "));
    CHECK((row.figure("seconds") > 0) == row.words("skip").empty());
  }
  CHECK_THAT(section.notes.at(0), ContainsSubstring(std::to_string(plan.cases) + " cases of "));
  const report::PlanSummary summary = plan::summary_of(plan);
  CHECK(summary.digest == plan.digest);
  CHECK(summary.cases == plan.cases);
  CHECK(summary.shards == 1);
}

TEST_CASE("a plan says of gradients why they are not compared where that may surprise", "[plan][gradients]") {
  std::vector<kda::Variant> registry = test::cpu_variants();
  registry.push_back(test::forward_only());
  const auto notes = [&](const std::string& words) {
    plan::Request request = test::request_of(words);
    request.registry = registry;
    Names all;
    for (const plan::Problem& problem : planned_line(request).problems)
      all.insert(all.end(), problem.notes.begin(), problem.notes.end());
    return all;
  };
  const std::string with = "bwd_tail:K=8,V=8", without = "control:T=8,K=8,V=8";
  CHECK(notes(without + " --variant recurrent").empty());
  for (const std::string words : {" --tensor o,dq", " --backward"})
    CHECK(notes(without + " --variant recurrent" + words) ==
          Names{"gradients: not compared: without do or dht there is no loss"});
  CHECK(notes(with + " --variant recurrent,forwards") == Names{"gradients: no backward pass in forwards"});
  CHECK(notes(with + " --variant recurrent --tensor dq,dA_log") ==
        Names{"gradients: this problem has no dA_log"});
  CHECK(notes(with + " --variant forwards --no-backward").empty());
}

TEST_CASE("a file with gradients alone has no case of the forward pass, unless nothing else is asked for",
          "[plan][gradients]") {
  test::ProblemSpec spec;
  spec.T = 8, spec.K = spec.V = 8;
  kda::Problem problem = test::make_problem(spec);
  problem.output_gradient = problem.v.clone().named("do");
  const tensor::Tensor dq("dq", numeric::DType::fp32, problem.q.shape());
  const test::TemporaryFixture file(problem, {&dq}, numeric::ComputeFormat::fp32, "gradient");
  CHECK(texts_of(planned_line(file.path + " --variant none")) == Names{"somebody fp32 oracle dq"});
  CHECK(texts_of(planned_line(file.path + " --variant none --tensor o")) ==
        Names{"somebody fp32 oracle skipped: holds none of the tensors compared"});
  problem.output_gradient.reset();  // without a loss gradients are no question
  const test::TemporaryFixture without(problem, {&dq}, numeric::ComputeFormat::fp32, "gradient_without_loss");
  CHECK(texts_of(planned_line(without.path + " --variant none")) ==
        Names{"somebody fp32 oracle skipped: holds none of the tensors compared"});
}

TEST_CASE("a plan says what of a recorded answer is left out", "[plan]") {
  const auto notes = [](const std::string& path, const std::string& options) {
    std::string all;
    for (const plan::Problem& problem : planned_line(path + " --variant chunk " + options).problems)
      for (const std::string& note : problem.notes) all += note + "\n";
    return all;
  };
  CHECK_THAT(notes(committed("fla_fp32_small"), "--tensor o"),
             ContainsSubstring("expected/fla_chunk: not compared: final_state"));

  const test::TemporaryFolder folder;
  plan::Request request = test::request_for({"control:T=70,H=1,K=8,V=8"}, plan::Task::capture);
  request.output = folder / "captured.h5", request.selection.variants = Names{"chunk"};
  test::ran(request);
  CHECK(notes(request.output, "--stages").empty());
  CHECK_THAT(notes(request.output, "--stages --chunk-size 16"),
             ContainsSubstring("expected/chunk@cpu: not compared: stages (chunks of 64, not 16)"));
}

}  // namespace cases_tests
