// Who must have answered for a result to count.
#include "plan/requirements.hpp"

#include "support/catch.hpp"
#include "support/made_up_gpu.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using plan::Answerers;
using plan::Names;

namespace {

const std::vector<kda::Variant> right =
    test::cpu_variants_and({test::made_up_gpu_recurrent(), test::made_up_gpu_chunk<false>()});
const std::vector<kda::Variant> absent = test::cpu_variants_and({test::absent_gpu_chunk()});

/// "exit code message" of each.
Names missing(const plan::Request& request, const Answerers& answerers) {
  const plan::Plan plan = test::planned(request);
  Names texts;
  for (const std::vector<report::Failure>& failures :
       {plan.failures, plan::missing_answers(plan, request, answerers)})
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
  const auto refusal = [](const Names& names, const std::vector<kda::Variant>& registry) {
    return test::refusal([&] { plan::check_devices(names, registry); });
  };
  CHECK(refusal({"gpu"}, right) == "accepted");
  CHECK(refusal({}, absent) == "accepted");
  CHECK(refusal({"chunk", "somebody"}, absent) == "accepted");
  CHECK_THAT(refusal({"gpu"}, absent), ContainsSubstring("4 --require gpu: gpu-chunk: no device: none"));
  CHECK_THAT(refusal({"gpu-chunk"}, absent), ContainsSubstring("4 --require gpu-chunk: no device: none"));
  plan::Request request = request_for("control:T=4,H=1", absent);
  request.required = {"gpu"};
  CHECK_THAT(test::refusal([&] { test::planned(request); }), ContainsSubstring("4 --require gpu"));
}

TEST_CASE("a device that is required must have answered something", "[plan][require]") {
  plan::Request request = request_for("control:T=4,H=1", right);
  request.required = {"gpu"};
  CHECK(missing(request, {{"gpu-chunk", "chunk"}, {}}).empty());
  CHECK(missing(request, {{"chunk"}, {}}) ==
        Names{"4 --require gpu: no variant of the gpu answered anything"});
}

TEST_CASE("a recorded answer that is required and is not there fails, and says what is there",
          "[plan][require]") {
  plan::Request request = request_for(committed);
  request.required = {"mine"};
  CHECK(missing(request, {{"chunk", "fla_chunk"}, {}}) ==
        Names{"1 --require mine: nobody of that name is to answer; recorded there: fla_chunk, fla_recurrent, "
              "torch_fp64"});
  request.required = {"fla_chunk"};
  CHECK(missing(request, {{"fla_chunk"}, {}}).empty());
  CHECK(missing(request, {{}, {}, {{"fla_chunk", "exit status 77"}}}) ==
        Names{"1 --require fla_chunk: it answered nothing; skipped everywhere: exit status 77"});
  request.targets = {"control:T=4,H=1"};
  request.required = {"mine"};
  CHECK_THAT(missing(request, {{"chunk"}, {}}).at(0),
             ContainsSubstring("the files have no recorded answers"));
}

TEST_CASE("what is named on the command line and was skipped everywhere fails", "[plan][require]") {
  plan::Request request = request_for("control:T=4,H=1");
  request.selection.variants = Names{"naive", "chunk"};
  CHECK(missing(request, {{"naive", "chunk"}, {}}).empty());
  CHECK(missing(request, {{"naive"}, {}, {{"chunk", "no such arithmetic"}}}) ==
        Names{"1 chunk answered nothing: skipped everywhere: no such arithmetic"});
  // Unnamed, a variant may be skipped.
  request.selection.variants.reset();
  CHECK(missing(request, {{"naive"}, {}, {{"chunk", "no such arithmetic"}}}).empty());
  // A program of the user's is always asked for.
  request.external = plan::ExternalProgram{"x {in} {out}", "mine", 600};
  CHECK(missing(request, {{"naive"}, {}, {{"mine", "the program does not do this (exit status 77)"}}}) ==
        Names{"1 mine answered nothing: skipped everywhere: the program does not do this (exit status 77)"});
}

TEST_CASE("what is not planned in a shard is another shard's business", "[plan][require]") {
  plan::Request request = test::request_of(committed + " control:T=4,H=1");
  request.required = {"fla_chunk"};
  std::size_t here = 0, silent = 0;
  for (const std::size_t index : {1, 2}) {
    const plan::Plan part = test::planned_line(request, {index, 2, {}});
    const bool has_file = part.problems.at(0).source->target().path == committed;
    const auto failures = plan::missing_answers(part, request, {{"chunk"}, {}});
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
  CHECK(test::planned_line(request).required == Names{"chunk", "naive"});
}
