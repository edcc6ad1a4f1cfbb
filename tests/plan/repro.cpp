// Repro lines: one line for each case, which the command line reads as that case alone.
#include "plan/repro.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace repro_tests {

namespace fs = std::filesystem;
using namespace kda_check;
using nlohmann::json;
using plan::Names;
using plan::Question;
using test::cases_of;
using test::planned_line;

namespace {

/// In the source tree, where a suite's paths are what its fixtures are called.
class InSourceTree {
 public:
  InSourceTree() : before_(fs::current_path()) { fs::current_path(KDA_CHECK_SOURCE_DIR); }
  InSourceTree(const InSourceTree&) = delete;
  InSourceTree& operator=(const InSourceTree&) = delete;
  ~InSourceTree() { fs::current_path(before_); }

 private:
  fs::path before_;
};

/// The plan of a repro line of run, its words cut by us and read by the parser of the command line.
plan::Plan replanned(const std::string& repro) {
  plan::Words words = plan::words_of(repro);
  REQUIRE(words.size() > 2);
  REQUIRE(words[0] == "kda-check");
  REQUIRE(words[1] == "run");
  words.erase(words.begin(), words.begin() + 2);
  return planned_line(cli::parse_run_line(words));
}

/// Everything that a case is, but for its number, its place, and who set its limits.
std::string essence(const plan::Case& item, const plan::Problem& problem) {
  std::string text =
      fmt::format("{} | {} | {} | {} of {} | {} | {} | {} | skip: {} | chunk {} | oracle {} {}",
                  problem.source->target().path, problem.remark(), item.who, plan::name_of(item.question),
                  kda::name_of(item.pass), item.reference.name, static_cast<int>(item.reference.kind),
                  fmt::join(item.tensors, " "), item.skip, item.chunk_size(problem.outline),
                  plan::name_of(item.asked->oracle_or_usual()),
                  plan::name_of(item.asked->oracle_device.value_or(plan::OracleDeviceChoice::automatic)));
  if (item.answer) {
    const plan::Answer& answer = problem.answers[*item.answer];
    text += fmt::format(" | {}", numeric::name_of(answer.dtype));
    if (answer.is_computed())
      text += fmt::format(" in {} by {}", kda::describe(answer.options.arithmetic, answer.variant->axes),
                          answer.options.chunk_size);
  }
  for (std::size_t i = 0; i < item.limits.size(); ++i) {
    std::map<std::string, std::string> limits;  // the last of a metric wins
    for (const judge::LimitLayer& layer : item.limits[i])
      for (const judge::LimitRequest& limit : layer.requests)
        limits[limit.metric] = fmt::format("{:a}{}{}", limit.value, limit.none, limit.exact);
    text += " | " + item.tensors[i] + ":";
    for (const auto& [metric, value] : limits) text += fmt::format(" {}={}", metric, value);
  }
  const plan::Judging& judging = item.asked->judging;
  text += fmt::format(" | {:a} {:a}", judging.atol.value_or(-1), judging.rtol.value_or(-1));
  text += fmt::format(" | test {} floor {:a} undecided {}", item.has_twins(), judging.floor.value_or(-1),
                      judging.undecided ? judge::name_of(*judging.undecided) : "");
  return text;
}

/// What kind of case that is, for samples.
std::string kind(const plan::Case& item, const plan::Problem& problem) {
  std::string text = fmt::format("{} {} {}", plan::name_of(item.question),
                                 static_cast<int>(item.reference.kind), kda::name_of(item.pass));
  if (item.reference.kind == plan::Reference::Kind::law) text += " " + item.reference.name;
  if (item.answer)
    text += fmt::format(" {} {}", static_cast<int>(problem.answers[*item.answer].origin),
                        numeric::name_of(problem.answers[*item.answer].dtype));
  return text + (item.skip.empty() ? "" : " skipped") + (problem.rounded_to ? " rounded" : "");
}

/// Lines of run that bring every kind of case.
Names lines_of_run() {
  const std::string fixtures = "cases/fixtures/";
  return {"@smoke",
          fixtures + "fla_fp32_small.h5 --dtype fp64,fp32,bf16 --stages --invariants",
          fixtures +
              "fla_fp16_c32.h5 bwd_tail:T=40,K=16,V=8,H=1 --dtype fixture,bf16 --stages "
              "--invariants=repeat,split",
          fixtures + "fla_fp32_small_backward.h5 --no-backward --stages --against all --recorded fla_chunk",
          fixtures + "fla_fp32_small_backward.h5 --backward --tensor dq,dg --dtype fp64,bf16",
          fixtures +
              "fla_bf16_prefill.h5 --arithmetic fla,contraction=separate --chunk-size 32 --oracle fp64 "
              "--limit max_ulp=none --limit scaled_ulp=123.456 --atol 0.1 --rtol 1e-3",
          fixtures + "fla_fp32_varlen.h5 --tensor final_state --oracle none",
          fixtures + "fla_fp32_varlen.h5 --variant chunk --oracle-device cpu",
          "identical_keys:T=16 --dtype fp32 --tolerance cases/tolerances.toml --limit rms_ratio=0.5",
          "control:T=8,H=1 --variant naive --dtype fp64 --arithmetic exponential=cuda",
          "control:T=8,H=1 --variant gpu-chunk,chunk --dtype fp64,bf16",
          "control:T=8,H=1 --variant chunk --stages --test off",
          "control:T=8,H=1 --variant chunk --floor 0.01 --undecided fail",
          "control:T=8,H=1 --dtype bf16,fp32 --tensor o --external './x {in} {out}' --external-name mine "
          "--external-timeout 7 --invariants=batch"};
}

}  // namespace

TEST_CASE("every repro line of run plans its case, and no other", "[plan][repro]") {
  const InSourceTree inside;
  std::set<std::string> kinds;
  std::size_t count = 0;
  for (const std::string& line : lines_of_run()) {
    const plan::Plan plan = planned_line(line);
    for (const auto& asked : cases_of(plan)) {
      const auto* const item = asked.first;  // no structured binding: a lambda of clang 14 cannot have those
      const auto* const problem = asked.second;
      INFO(line << "\n" << item->repro);
      std::string refusal;
      plan::Plan alone;
      refusal = test::refusal([&] { alone = replanned(item->repro); });
      REQUIRE(refusal == "accepted");
      CHECK(alone.failures.empty());
      REQUIRE(cases_of(alone).size() == 1);
      const auto [again, of] = cases_of(alone).front();
      CHECK(essence(*again, *of) == essence(*item, *problem));
      CHECK(again->repro == item->repro);
      kinds.insert(kind(*item, *problem));
      ++count;
    }
  }
  CHECK(count > 500);
  CHECK(kinds.size() > 40);
}

TEST_CASE("names that need quotes come through a repro line", "[plan][repro]") {
  const test::TemporaryFolder folder;
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", numeric::DType::fp32);
  const std::string path = folder / "it's a file,really.h5";
  fixture::WriteRequest file;
  file.name = "t", file.problem = &problem;
  for (const char* const group : {"a,b", "x:y", "back\\slash", "two words", "quote'd"})
    file.expected.push_back(
        {group, "", "", numeric::ComputeFormat::fp32, {&answer.o, &answer.final_state}, {}});
  fixture::write_fixture(path, file);
  plan::Request request = test::request_for({path}, plan::Names{"recurrent"});
  const plan::Plan plan = planned_line(request);
  CHECK(plan.cases == 5 + 1 + 5);
  for (const auto& [item, of] : cases_of(plan)) {
    INFO(item->repro);
    const plan::Plan alone = replanned(item->repro);
    REQUIRE(cases_of(alone).size() == 1);
    CHECK(essence(*cases_of(alone).front().first, *cases_of(alone).front().second) == essence(*item, *of));
  }
}

namespace {

/// A document with its cases and stages by number or repro line, ready to be compared.
struct Results {
  std::map<std::string, json> by_repro;

  explicit Results(const report::Document& document) {
    const json root = json::parse(report::write_json(document, {}));
    for (json item : root.at("cases")) add(std::move(item));
    if (root.contains("stages"))
      for (json item : root.at("stages")) add(std::move(item));
  }
  void add(json item) {
    const std::string repro = item.at("repro");
    item.erase("number"), item.erase("place"), item.erase("disagreements");
    if (item.contains("tensors"))
      for (json& tensor : item.at("tensors"))
        for (json& limit : tensor.at("limits")) limit.erase("source");
    by_repro[repro] = std::move(item);
  }
};

}  // namespace

TEST_CASE("a case that is run by its repro line alone gives the same bits", "[plan][repro]") {
  const InSourceTree inside;
  std::size_t compared = 0;
  for (const std::string& line :
       {std::string("@smoke --recorded none"),
        std::string("cases/fixtures/fla_fp32_small_backward.h5 --dtype fp64,bf16 --stages --invariants"),
        std::string(
            "cases/fixtures/fla_fp32_varlen.h5 --chunk-size 32 --arithmetic fla --oracle fp64 --atol 1"),
        std::string("bwd_tail:T=40,K=16,V=8,H=1 --dtype fixture,bf16 --stages")}) {
    const plan::Plan plan = planned_line(line);
    // One of each kind, and some of those there are many of.
    std::map<std::string, std::size_t> seen;
    std::vector<std::string> sample;
    for (const auto& [item, problem] : cases_of(plan))
      if (++seen[kind(*item, *problem)] <= 2 && item->seconds < 0.5) sample.push_back(item->repro);
    const Results whole(test::ran(plan, test::on_threads(2)));
    for (const std::string& repro : sample) {
      INFO(line << "\n" << repro);
      const Results alone(test::ran(replanned(repro)));
      REQUIRE(alone.by_repro.size() == 1);
      REQUIRE(whole.by_repro.contains(repro));
      CHECK(alone.by_repro.begin()->second == whole.by_repro.at(repro));
      ++compared;
    }
  }
  INFO(compared << " cases");
  CHECK(compared >= 60);
}

namespace {

/// What `kda-check WORDS --dry-run --json` lists.
json listed(const std::string& words) {
  const std::string line = std::string(KDA_CHECK_PROGRAM) + " " + words + " --dry-run --json 2>&1";
  FILE* const pipe = ::popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  const int status = ::pclose(pipe);
  INFO(line << "\n" << text.substr(0, 500));
  REQUIRE(status == 0);
  return json::parse(text).at("cases_planned");
}

}  // namespace

TEST_CASE("repro lines of explain and power plan their case, and no other", "[plan][repro]") {
  const InSourceTree inside;
  const std::string small = "cases/fixtures/fla_fp32_small_backward.h5";
  for (const std::string& words : std::initializer_list<std::string>{
           "explain " + small + " --only growth --dtype fp64,bf16 --window 8",
           "explain " + small + " --only growth --against fla_chunk --tensor dq,dv --chunk-size 32",
           "explain " + small + " --only bits,faults,growth --recorded fla_chunk,fla_recurrent --window 16",
           "explain " + small + " --recorded fla_chunk,fla_recurrent --advise",
           "explain " + small + " --between fla_chunk,chunk+fla",
           "power " + small + " --class bf16,fp16,tf32,fp32 --tensor o,final_state",
           "explain " + small +
               " corr_keys:T=64 --only overflow --variant chunk,gpu-chunk --dtype fp32,bf16 --arithmetic "
               "decay=pair --chunk-size 32"}) {
    for (const json& item : listed(words)) {
      const std::string repro = item.at("repro");
      INFO(words << "\n" << repro);
      REQUIRE(repro.starts_with("kda-check "));
      const json alone = listed(repro.substr(std::string("kda-check ").size()));
      REQUIRE(alone.size() == 1);
      json expected = item, got = alone[0];
      for (json* const one : {&expected, &got}) one->erase("number"), one->erase("place");
      CHECK(got == expected);
    }
  }
}

}  // namespace repro_tests
