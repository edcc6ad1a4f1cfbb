// Who must have answered for a result to count.
#include "plan/requirements.hpp"

#include "support/catch.hpp"
#include "support/made_up_gpu.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace requirements_tests {

using namespace kda_check;
using plan::Names;
using plan::Turnout;

namespace {

const std::vector<kda::Variant> right =
    test::cpu_variants_and({test::made_up_gpu_recurrent(), test::made_up_gpu_chunk()});
const std::vector<kda::Variant> absent = test::cpu_variants_and({test::absent_gpu_chunk()});

/// They answered what the command line asked of them.
std::vector<Turnout> answered(const Names& names) {
  std::vector<Turnout> list;
  for (const std::string& name : names) list.push_back({name, std::string(plan::command_line)});
  return list;
}

std::vector<Turnout> and_skipped(std::vector<Turnout> list, const std::string& name,
                                 const std::string& reason) {
  list.push_back({name, std::string(plan::command_line), Turnout::Outcome::skipped, reason});
  return list;
}

/// "exit code message" of each.
Names missing(const plan::Request& request, const std::vector<Turnout>& turnouts) {
  const plan::Plan plan = test::planned_line(request);
  Names texts;
  for (const std::vector<report::Failure>& failures :
       {plan.failures, report::unmet(plan::demands(plan, request, turnouts))})
    for (const report::Failure& failure : failures)
      texts.push_back(std::to_string(failure.exit_code) + " " + failure.message);
  return texts;
}

plan::Request request_for(const std::string& target,
                          std::span<const kda::Variant> registry = kda::variants()) {
  plan::Request request = test::request_for({target});
  request.registry = registry;
  return request;
}

const std::string committed = test::case_fixtures() + "/fla_fp32_small.h5";

}  // namespace

TEST_CASE("a device or a variant that is required must be here before anything runs", "[plan][require]") {
  const auto refusal = [](const std::vector<plan::Requirement>& required,
                          const std::vector<kda::Variant>& registry) {
    return test::refusal([&] { plan::check_devices(required, registry); });
  };
  CHECK(refusal({{"gpu"}}, right) == "accepted");
  CHECK(refusal({}, absent) == "accepted");
  CHECK(refusal({{"chunk"}, {"somebody"}}, absent) == "accepted");
  CHECK_THAT(refusal({{"gpu"}}, absent), ContainsSubstring("4 --require gpu: gpu-chunk: no device: none"));
  CHECK_THAT(refusal({{"gpu-chunk"}}, absent), ContainsSubstring("4 --require gpu-chunk: no device: none"));
  plan::Request request = request_for("control:T=4,H=1", absent);
  request.required = {"gpu"};
  CHECK_THAT(test::refusal([&] { test::planned(request); }), ContainsSubstring("4 --require gpu"));
}

TEST_CASE("a device that is required must have answered something", "[plan][require]") {
  plan::Request request = request_for("control:T=4,H=1", right);
  request.required = {"gpu"};
  CHECK(missing(request, answered({"gpu-chunk", "chunk"})).empty());
  CHECK(missing(request, answered({"chunk"})) ==
        Names{"4 --require gpu: no variant of the gpu answered anything"});
}

TEST_CASE("a recorded answer that is required and is not there fails, and says what is there",
          "[plan][require]") {
  plan::Request request = request_for(committed);
  request.required = {"mine"};
  CHECK(missing(request, answered({"chunk", "fla_chunk"})) ==
        Names{"1 --require mine: nobody of that name is to answer; recorded there: fla_chunk, fla_recurrent, "
              "torch_fp64"});
  request.required = {"fla_chunk"};
  CHECK(missing(request, answered({"fla_chunk"})).empty());
  CHECK(missing(request, and_skipped(answered({}), "fla_chunk", "exit status 77")) ==
        Names{"1 --require fla_chunk: it answered nothing; skipped everywhere: exit status 77"});
  request.targets = {"control:T=4,H=1"};
  request.required = {"mine"};
  CHECK_THAT(missing(request, answered({"chunk"})).at(0),
             ContainsSubstring("the files have no recorded answers"));
}

TEST_CASE("what is named on the command line and was skipped everywhere fails", "[plan][require]") {
  plan::Request request = request_for("control:T=4,H=1");
  request.selection.variants = Names{"naive", "chunk"};
  CHECK(missing(request, answered({"naive", "chunk"})).empty());
  CHECK(missing(request, and_skipped(answered({"naive"}), "chunk", "no such arithmetic")) ==
        Names{"1 chunk answered nothing: skipped everywhere: no such arithmetic"});
  // Unnamed, a variant may be skipped.
  request.selection.variants.reset();
  CHECK(missing(request, and_skipped(answered({"naive"}), "chunk", "no such arithmetic")).empty());
  // A program of the user's is always asked for.
  request.external = plan::ExternalProgram{"x {in} {out}", "mine", 600};
  CHECK(missing(request,
                and_skipped(answered({"naive"}), "mine", "the program does not do this (exit status 77)")) ==
        Names{"1 mine answered nothing: skipped everywhere: the program does not do this (exit status 77)"});
}

TEST_CASE("what is named on the command line and left out by its other words fails", "[plan][require]") {
  std::vector<kda::Variant> registry = test::cpu_variants_and({});
  std::ranges::find(registry, std::string_view("chunk"), &kda::Variant::name)->run_backward = nullptr;
  const std::string with_gradients = test::case_fixtures() + "/fla_fp32_small_backward.h5";
  plan::Request request = request_for(with_gradients, registry);
  request.selection.pass = kda::Pass::backward;
  CHECK(missing(request, answered({})).empty());  // nobody is asked for by name
  request.selection.variants = Names{"chunk", "recurrent"};
  CHECK(missing(request, answered({"recurrent"})) ==
        Names{"1 nothing of chunk is judged: --backward leaves out all it has"});
  request.selection.variants.reset();
  request.selection.recorded = Names{"fla_recurrent"};  // has no gradients
  REQUIRE(missing(request, answered({})).size() == 1);
  CHECK_THAT(missing(request, answered({}))[0],
             ContainsSubstring("1 nothing of expected/fla_recurrent is judged: --backward leaves out"));
}

TEST_CASE("what a line of a suite leaves out is left out on purpose", "[plan][require]") {
  const test::TemporarySuite suite(committed + " --dtype bf16 --variant chunk\n");
  CHECK(missing(test::request_of(suite.name()), answered({"chunk"})).empty());
  CHECK(missing(test::request_of(committed + " --dtype bf16 --variant chunk"), answered({"chunk"})).size() ==
        1);
}

TEST_CASE("what is not planned in a shard is another shard's business", "[plan][require]") {
  plan::Request request = test::request_of(committed + " control:T=4,H=1");
  request.required = {"fla_chunk"};
  std::size_t here = 0, silent = 0;
  for (const std::size_t index : {1, 2}) {
    const plan::Plan part = test::planned_line(request, {index, 2, {}});
    const bool has_file = part.problems.at(0).source->target().path == committed;
    const auto failures = report::unmet(plan::demands(part, request, answered({"chunk"})));
    CHECK(failures.empty() == !has_file);
    (has_file ? here : silent) += 1;
  }
  CHECK(here == 1);
  CHECK(silent == 1);
}

TEST_CASE("requirements of lines and of the command line are asked for once each", "[plan][require]") {
  const test::TemporarySuite suite(
      "control:T=4,H=1 --require naive\ncontrol:T=5,H=1 --require naive,chunk\n");
  plan::Request request = test::request_of(suite.name() + " --require chunk");
  CHECK(test::planned_line(request).required ==
        std::vector<plan::Requirement>{
            {"chunk"}, {"naive", suite.place(1)}, {"naive", suite.place(2)}, {"chunk", suite.place(2)}});
}

TEST_CASE("what a line of a suite requires another line does not answer", "[plan][require]") {
  const test::TemporarySuite suite(committed + " --require fla_chunk\n" + committed + " control:T=4,H=1\n" +
                                   "control:T=5,H=1 --require fla_chunk\n");
  const plan::Request request = test::request_of(suite.name());
  const std::vector<Turnout> both = {{"fla_chunk", suite.place(1)}, {"fla_chunk", suite.place(2)}};
  CHECK(missing(request, both) ==
        Names{"1 --require fla_chunk (" + suite.place(3) +
              "): nobody of that name is to answer; the files have no recorded answers"});
  const std::vector<Turnout> other = {{"fla_chunk", suite.place(1), Turnout::Outcome::skipped, "no o"},
                                      {"fla_chunk", suite.place(2)}};
  CHECK(missing(request, other).back() ==
        "1 --require fla_chunk (" + suite.place(1) + "): it answered nothing; skipped everywhere: no o");
}

}  // namespace requirements_tests
