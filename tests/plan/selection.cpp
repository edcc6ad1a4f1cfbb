// What a line selects, what the command line makes of it, and words that mean nothing.
#include "plan/selection.hpp"

#include "explain/invariants/invariants.hpp"
#include "support/catch.hpp"
#include "support/made_up_gpu.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace selection_tests {

using namespace kda_check;
using kda::Pass;
using numeric::DType;
using plan::Names;
using plan::Request;
using plan::Selection;

namespace {

using List = std::optional<Names>;
const List nothing_said;

/// A line of a suite under a command line; `set` gives a selection its list.
Request both(const std::function<void(Selection&, const List&)>& set, const List& line, const List& command) {
  Request of_line = test::request_for({"control"}), of_command = test::request_for({"@mine"});
  set(of_line.selection, line);
  set(of_command.selection, command);
  return plan::under(std::move(of_line), of_command);
}

Names variants(const List& line, const List& command) {
  const Request request =
      both([](Selection& selection, const List& list) { selection.variants = list; }, line, command);
  Names names;
  for (const kda::Variant* const variant : plan::variants_of(request)) names.emplace_back(variant->name);
  return names;
}

Names all_here() {
  Names names;
  for (const kda::Variant& variant : kda::variants())
    if (variant.unavailable().empty()) names.emplace_back(variant.name);
  return names;
}

Names dtypes(const List& line, const List& command, DType of_problem) {
  const Request request =
      both([](Selection& selection, const List& list) { selection.dtypes = list; }, line, command);
  test::ProblemSpec spec;
  spec.dtype = of_problem;
  Names names;
  for (const DType dtype : plan::dtypes_of(request, test::make_problem(spec)))
    names.emplace_back(numeric::name_of(dtype));
  return names;
}

Request against(const List& line, const List& command) {
  return both([](Selection& selection, const List& list) { selection.against = list; }, line, command);
}

/// Which of the references of a file with the groups a and b are wanted.
Names references(const List& line, const List& command) {
  const Request request = against(line, command);
  Names wanted;
  if (plan::wants_oracle(request)) wanted.emplace_back("oracle");
  for (const char* const group : {"a", "b"})
    if (plan::wants_reference(request, group)) wanted.emplace_back(group);
  if (plan::wants_replay(request)) wanted.emplace_back("replay");
  return wanted;
}

Names recorded(const List& line, const List& command) {
  const Request request =
      both([](Selection& selection, const List& list) { selection.recorded = list; }, line, command);
  Names wanted;
  for (const char* const group : {"a", "b", "c"})
    if (plan::wants_recorded(request, group)) wanted.emplace_back(group);
  return wanted;
}

/// "forward o final_state; backward dq": what is compared of a problem.
std::string tensors(const Request& request) {
  std::string text;
  for (const plan::PassTensors& pass : plan::tensors_of(request, plan::known_tensors(request.task))) {
    text += (text.empty() ? "" : "; ") + std::string(kda::name_of(pass.pass));
    for (const std::string& name : pass.tensors) text += " " + name;
  }
  return text;
}

Request tensors_named(const List& line, const List& command) {
  return both([](Selection& selection, const List& list) { selection.tensors = list; }, line, command);
}

}  // namespace

TEST_CASE("a selection on the command line narrows what a line names, and fills in what it does not",
          "[plan][selection]") {
  CHECK(variants(nothing_said, nothing_said) == all_here());
  CHECK(variants(Names{"chunk", "naive"}, nothing_said) == Names{"chunk", "naive"});
  CHECK(variants(nothing_said, Names{"naive", "chunk"}) == Names{"naive", "chunk"});
  CHECK(variants(Names{"chunk", "naive"}, Names{"naive", "recurrent"}) == Names{"naive"});
  CHECK(variants(Names{"chunk"}, Names{"recurrent"}).empty());
  CHECK(variants(Names{}, nothing_said).empty());
  CHECK(variants(Names{}, Names{"chunk"}).empty());
  CHECK(variants(Names{"chunk"}, Names{}).empty());
  CHECK(variants(Names{"chunk", "chunk"}, nothing_said) == Names{"chunk"});
  // One that cannot run here is selected all the same: its cases say why it does not.
  CHECK(variants(Names{"gpu-chunk"}, nothing_said) == Names{"gpu-chunk"});
}

TEST_CASE("dtypes are narrowed as what they are on the problem, 'fixture' too", "[plan][selection]") {
  CHECK(dtypes(nothing_said, nothing_said, DType::bf16) == Names{"bf16"});
  CHECK(dtypes(Names{"fp64", "fixture"}, nothing_said, DType::fp32) == Names{"fp64", "fp32"});
  CHECK(dtypes(Names{"fp32", "fixture"}, nothing_said, DType::fp32) == Names{"fp32"});
  CHECK(dtypes(nothing_said, Names{"fp64", "bf16"}, DType::fp32) == Names{"fp64", "bf16"});
  CHECK(dtypes(Names{"fp64", "fixture"}, Names{"fp32"}, DType::fp32) == Names{"fp32"});
  CHECK(dtypes(Names{"fp64", "fixture"}, Names{"fp32"}, DType::bf16).empty());
  CHECK(dtypes(Names{"fp64", "bf16"}, Names{"fixture"}, DType::bf16) == Names{"bf16"});
  CHECK(dtypes(Names{"fp64", "fp32"}, Names{"fixture"}, DType::bf16).empty());
  CHECK(dtypes(Names{"fp64", "fp32"}, Names{"bf16", "fp64"}, DType::fp32) == Names{"fp64"});
}

TEST_CASE("references are narrowed too; all are the oracle and every group, and never a replay",
          "[plan][selection]") {
  CHECK(references(nothing_said, nothing_said) == Names{"oracle", "a", "b"});
  CHECK(references(Names{"all"}, nothing_said) == Names{"oracle", "a", "b"});
  CHECK(references(nothing_said, Names{"all"}) == Names{"oracle", "a", "b"});
  CHECK(references(Names{"a", "oracle"}, nothing_said) == Names{"oracle", "a"});
  CHECK(references(nothing_said, Names{"a"}) == Names{"a"});
  CHECK(references(Names{"a"}, Names{"b"}).empty());
  CHECK(references(Names{"a"}, Names{"all"}) == Names{"a"});
  CHECK(references(Names{"all"}, Names{"b"}) == Names{"b"});
  CHECK(references(Names{"oracle", "a"}, Names{"oracle"}) == Names{"oracle"});
  CHECK(references(nothing_said, Names{"replay"}) == Names{"replay"});
  CHECK(references(Names{"all", "replay"}, nothing_said) == Names{"oracle", "a", "b", "replay"});
  CHECK(references(Names{"all", "replay"}, Names{"all"}) == Names{"oracle", "a", "b"});
  CHECK(references(Names{"oracle"}, Names{"oracle", "replay"}) == Names{"oracle"});
  CHECK(references(Names{}, nothing_said).empty());
  CHECK(references(nothing_said, Names{}).empty());
  Request none = against(nothing_said, nothing_said);
  none.oracle = plan::OracleChoice::none;
  CHECK_FALSE(plan::wants_oracle(none));
}

TEST_CASE("recorded answers that are judged are narrowed as variants are", "[plan][selection]") {
  CHECK(recorded(nothing_said, nothing_said) == Names{"a", "b", "c"});
  CHECK(recorded(Names{"a", "b"}, nothing_said) == Names{"a", "b"});
  CHECK(recorded(nothing_said, Names{"c"}) == Names{"c"});
  CHECK(recorded(Names{"a", "b"}, Names{"b", "c"}) == Names{"b"});
  CHECK(recorded(Names{}, nothing_said).empty());
  CHECK(recorded(nothing_said, Names{}).empty());
  CHECK(recorded(Names{"a"}, Names{}).empty());
}

TEST_CASE("tensors and passes are narrowed by each other", "[plan][selection]") {
  const std::string forward = "forward o final_state checkpoints",
                    backward = "backward dq dk dv dg dbeta dinitial_state dA_log ddt_bias derase dwrite";
  CHECK(tensors(tensors_named(nothing_said, nothing_said)) == forward + "; " + backward);
  CHECK(tensors(tensors_named(Names{"o", "dq"}, nothing_said)) == "forward o; backward dq");
  CHECK(tensors(tensors_named(nothing_said, Names{"final_state"})) == "forward final_state");
  CHECK(tensors(tensors_named(Names{"o", "dq"}, Names{"dq", "dk"})) == "backward dq");
  CHECK(tensors(tensors_named(Names{"o"}, Names{"dq"})).empty());
  const auto passes = [](std::optional<Pass> line, std::optional<Pass> command) {
    Request of_line = test::request_for({"control"}), of_command = test::request_for({"@mine"});
    of_line.selection.pass = line, of_command.selection.pass = command;
    return tensors(plan::under(std::move(of_line), of_command));
  };
  CHECK(passes(Pass::forward, {}) == forward);
  CHECK(passes({}, Pass::backward) == backward);
  CHECK(passes(Pass::forward, Pass::forward) == forward);
  CHECK(passes(Pass::forward, Pass::backward).empty());
  Request both_said = tensors_named(Names{"o", "dq"}, nothing_said);
  both_said.narrowing.pass = Pass::backward;
  CHECK(tensors(both_said) == "backward dq");
  // Growth is of the forward pass unless something of the other is named.
  CHECK(tensors(test::explaining({"x"}, "growth")) == "forward o");
  Request growth = test::explaining({"x"}, "growth");
  growth.selection.pass = Pass::backward;
  CHECK(tensors(growth) == "backward dq dk dv dg dbeta derase dwrite");
}

TEST_CASE("single values and flags of the command line replace those of a line, limits lie over them",
          "[plan][selection]") {
  Request line = test::request_for({"control"}), command = test::request_for({"@mine"});
  line.place = "@mine:3";
  line.arithmetic = {"decay=pair"}, line.chunk_size = 16, line.oracle = plan::OracleChoice::fp64;
  line.judging.limits = test::limits({"max_ulp=1"}, "@mine:3"), line.judging.atol = 1;
  line.judging.allclose_source = "@mine:3", line.judging.worst = 2;
  line.invariants = Names{"repeat"}, line.tolerance = "line.toml";
  const Request as_it_is = plan::under(line, command);
  CHECK(as_it_is.place == "@mine:3");
  CHECK(as_it_is.arithmetic == Names{"decay=pair"});
  CHECK(as_it_is.chunk_size == 16u);
  CHECK(as_it_is.oracle == plan::OracleChoice::fp64);
  CHECK(as_it_is.judging.limits.size() == 1);
  CHECK(as_it_is.judging.allclose_source == "@mine:3");
  CHECK(as_it_is.tolerance == "line.toml");
  CHECK_FALSE(as_it_is.stages);

  command.arithmetic = {"fla"}, command.chunk_size = 32, command.oracle = plan::OracleChoice::double_double;
  command.judging.limits = test::limits({"max_ulp=2"}), command.judging.rtol = 0.5, command.judging.worst = 9;
  command.invariants.emplace(), command.tolerance = "command.toml", command.stages = true;
  const Request replaced = plan::under(line, command);
  CHECK(replaced.arithmetic == Names{"fla"});
  CHECK(replaced.chunk_size == 32u);
  CHECK(replaced.oracle == plan::OracleChoice::double_double);
  REQUIRE(replaced.judging.limits.size() == 2);
  CHECK(replaced.judging.limits[0].source == "@mine:3");
  CHECK(replaced.judging.limits[1].source == "command line");
  CHECK(replaced.judging.atol == 1.0);
  CHECK(replaced.judging.rtol == 0.5);
  CHECK(replaced.judging.allclose_source == "command line");
  CHECK(replaced.judging.worst == 9u);
  CHECK(replaced.invariants->empty());
  CHECK(replaced.tolerance == "command.toml");
  CHECK(replaced.stages);
}

TEST_CASE("the shipped suites narrowed to one variant keep what an H100 answered for it alone",
          "[plan][selection]") {
  const plan::Plan plan = test::planned_line("@ci --variant gpu-chunk");
  bool any = false;
  for (const auto& [item, problem] : test::cases_of(plan)) {
    if (!item->answer || !problem->answers[*item->answer].is_computed()) continue;
    any = true;
    CHECK(item->who == "gpu-chunk");
    // Lines that replay captures name CPU variants: nothing of them is left.
    CHECK(problem->source->target().name.find("captures") == std::string::npos);
  }
  CHECK(any);
}

TEST_CASE("names that do not exist are usage errors with a suggestion", "[plan][selection]") {
  const auto usage = [](auto change) {
    Request request = test::request_for({test::case_fixtures() + "/fla_fp32_small.h5"});
    change(request);
    const std::string text = test::refusal([&] { test::planned(request); });
    CHECK(text.starts_with("2 "));
    return text;
  };
  CHECK_THAT(usage([](auto& r) { r.selection.variants = Names{"chnk"}; }),
             ContainsSubstring("did you mean 'chunk'?"));
  CHECK_THAT(usage([](auto& r) { r.selection.dtypes = Names{"f23"}; }), ContainsSubstring("no dtype 'f23'"));
  CHECK_THAT(usage([](auto& r) { r.selection.against = Names{"fla_chnk"}; }),
             ContainsSubstring("no fixture has a group expected/fla_chnk"));
  CHECK_THAT(usage([](auto& r) { r.selection.recorded = Names{"fla_chnk"}; }),
             ContainsSubstring("no fixture has a group expected/fla_chnk"));
  CHECK_THAT(usage([](auto& r) { r.selection.tensors = Names{"dqq"}; }),
             ContainsSubstring("run has no tensor 'dqq'") && ContainsSubstring("did you mean 'dq'?"));
  CHECK_THAT(usage([](auto& r) { r.selection.tensors = Names{"o"}, r.selection.pass = Pass::backward; }),
             ContainsSubstring("--tensor o contradicts --backward"));
  CHECK_THAT(usage([](auto& r) { r.selection.tensors = Names{"dq"}, r.selection.pass = Pass::forward; }),
             ContainsSubstring("--tensor dq contradicts --no-backward"));
  CHECK_THAT(usage([](auto& r) { r.arithmetic = {"decay=par"}; }), ContainsSubstring("did you mean 'pair'?"));
  CHECK_THAT(usage([](auto& r) { r.selection.variants = Names{"recurrent"}, r.arithmetic = {"decay=pair"}; }),
             ContainsSubstring("none of the selected variants"));
  CHECK_THAT(
      usage([](auto& r) { r.selection.variants = Names{"recurrent"}, r.arithmetic = {"launch=intra:4"}; }),
      ContainsSubstring("none of the selected variants has a part 'intra' of a launch"));
  CHECK_THAT(
      usage([](auto& r) { r.selection.variants = Names{"chunk"}, r.arithmetic = {"launch=block:8x1"}; }),
      ContainsSubstring("none of the selected variants has a part 'block' of a launch"));
  for (const char* const word :
       {"delta=residual", "delta=chained", "scale=q-late", "update=added", "update=transposed"})
    CHECK_THAT(usage([&](auto& r) { r.selection.variants = Names{"recurrent"}, r.arithmetic = {word}; }),
               ContainsSubstring("no selected variant has anything that this changes"));
  for (const char* const word : {"delta=fused", "scale=norm"})
    CHECK_THAT(usage([&](auto& r) { r.selection.variants = Names{"chunk"}, r.arithmetic = {word}; }),
               ContainsSubstring("no selected variant has anything that this changes"));
  // A part that one of several variants has is none of another's business.
  Request both = test::request_for({"control:T=4"});
  both.selection.variants = Names{"recurrent", "chunk"},
  both.arithmetic = {"fla", "launch=block:8x1+intra:4"};
  CHECK(test::refusal([&] { test::planned(both); }) == "accepted");
  // Nor does one decide anything that the order of sums does not read.
  CHECK_THAT(usage([](auto& r) { r.selection.variants = Names{"chunk"}, r.arithmetic = {"launch=scan:2"}; }),
             ContainsSubstring("no sum reads 'scan' in this order"));
  CHECK_THAT(usage([](auto& r) {
               r.arithmetic = {"fla", "launch=scan:2", "reduction=tree:32"};
             }),
             ContainsSubstring("no sum reads 'scan'"));
  CHECK_THAT(usage([](auto& r) {
               r.arithmetic = {"reduction=lanes", "launch=norm:4x32x1+scan:2"};
             }),
             ContainsSubstring("no sum reads 'scan'"));
  Request norm = test::request_for({"control:T=4"});
  norm.selection.variants = Names{"chunk"}, norm.arithmetic = {"reduction=lanes", "launch=norm:4x32x1"};
  CHECK(test::refusal([&] { test::planned(norm); }) == "accepted");
  CHECK_THAT(usage([](auto& r) { r.arithmetic = {"merge=split:32"}; }), ContainsSubstring("8 or 16 rows"));
  CHECK_THAT(usage([](auto& r) { r.invariants = Names{"repeats"}; }),
             ContainsSubstring("no invariant 'repeats'") && ContainsSubstring("did you mean 'repeat'?"));
  CHECK_THAT(
      usage([](auto& r) { r.selection.against = Names{"oracle"}, r.oracle = plan::OracleChoice::none; }),
      ContainsSubstring("--against oracle contradicts --oracle none"));
}

TEST_CASE("a program of the user's must be told where its files are, and have a name of its own",
          "[plan][selection]") {
  const auto usage = [](const std::string& command, const std::string& name) {
    Request request = test::request_for({"control:T=4"});
    request.external = plan::ExternalProgram{command, name, 600};
    return test::refusal([&] { test::planned(request); });
  };
  CHECK_THAT(usage("mine {in}", "mine"), ContainsSubstring("2 --external 'mine {in}' lacks {out}"));
  CHECK_THAT(usage("mine {out}", "mine"), ContainsSubstring("lacks {in}"));
  for (const char* const name :
       {"", "chunk", "oracle", "all", "replay", "fixture", "a/b", "a,b", "a:b", "a b", ".a"})
    CHECK_THAT(usage("mine {in} {out}", name), ContainsSubstring("cannot be the name of an answer"));
  CHECK(usage("mine {in} {out}", "mine-2_b") == "accepted");
}

TEST_CASE("a usage error about a line's own words is not one of another line", "[plan][selection]") {
  // --oracle none of one line contradicts the oracle of another one in nothing.
  const test::TemporarySuite suite("control:T=4,H=1 --variant naive\n" + test::case_fixtures() +
                                   "/fla_fp32_small.h5 --oracle none --variant chunk --against fla_chunk\n");
  const plan::Plan plan = test::planned_line(suite.name() + " --against oracle,fla_chunk");
  std::vector<std::string> pairs;
  for (const auto& [item, problem] : test::cases_of(plan))
    pairs.push_back(item->who + " " + item->reference.name + (item->skip.empty() ? "" : " skipped"));
  CHECK(pairs == std::vector<std::string>{"fla_chunk  skipped", "naive oracle", "chunk fla_chunk"});
}

}  // namespace selection_tests
