// GPU variants in sessions, with rows that stand for them: no GPU is needed here, nor used where there is
// one.
#include "session/replay.hpp"

#include "base/error.hpp"
#include "report/writers.hpp"
#include "session/attribute.hpp"
#include "session/requirements.hpp"
#include "session/run.hpp"
#include "support/catch.hpp"
#include "support/made_up_gpu.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using compare::Verdict;
using numeric::DType;

namespace {

const std::vector<kda::Variant> right =
    test::cpu_variants_and({test::made_up_gpu_recurrent(), test::made_up_gpu_chunk<false>()});
const std::vector<kda::Variant> wrong = test::cpu_variants_and({test::made_up_gpu_chunk<true>()});
const std::vector<kda::Variant> absent = test::cpu_variants_and({test::absent_gpu_chunk()});

session::RunRequest request_for(const std::vector<kda::Variant>& registry, const std::string& target) {
  session::RunRequest request;
  request.fixtures = {target};
  request.threads = 2;
  request.registry = registry;
  return request;
}

const report::CaseResult* find(const report::Result& result, std::string_view variant,
                               std::string_view against) {
  for (const report::CaseResult& item : result.cases)
    if (item.variant == variant && item.against == against) return &item;
  return nullptr;
}

std::string usage_error(const session::RunRequest& request) {
  try {
    session::run(request, {});
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

constexpr char small[] = "control:T=70,H=2,K=32,V=16";

}  // namespace

TEST_CASE("a GPU answer with the bits of its replay passes, in every dtype that has one",
          "[session][replay]") {
  for (const char* const dtype : {"fp32", "bf16", "fp16"}) {
    session::RunRequest request = request_for(right, small);
    request.dtypes = {dtype};
    request.against = {"oracle", "replay"};
    const report::Result result = session::run(request, {});
    CHECK(result.exit_code() == 0);
    CHECK(result.cases.size() == 5 + 2);
    for (const char* const variant : {"gpu-recurrent", "gpu-chunk"}) {
      const report::CaseResult* const item = find(result, variant, "replay");
      REQUIRE(item != nullptr);
      CHECK(item->verdict == Verdict::pass);
      REQUIRE(item->tensors.size() == 2);
      for (const report::TensorResult& tensor : item->tensors)
        for (const compare::Limit& limit : tensor.limits) {
          CHECK(limit.value == 0);
          CHECK(limit.source == "replay");
        }
      CHECK(item->device == kda::device_of(kda::variant_named("gpu-chunk")));
    }
    CHECK(find(result, "chunk", "replay") == nullptr);
    const std::string text = report::write_text(result, {});
    CHECK_THAT(text, ContainsSubstring("against the replay on the CPU"));
    CHECK_THAT(text, ContainsSubstring("differing_bits<=0"));
    CHECK_THAT(text, !ContainsSubstring("command line"));
  }
}

TEST_CASE("a GPU answer that is off by the last bit of one element fails against its replay only",
          "[session][replay]") {
  session::RunRequest request = request_for(wrong, small);
  request.against = {"oracle", "replay"};
  const report::Result result = session::run(request, {});
  CHECK(result.exit_code() == 1);
  CHECK(find(result, "gpu-chunk", "oracle")->verdict == Verdict::pass);
  const report::CaseResult& item = *find(result, "gpu-chunk", "replay");
  CHECK(item.verdict == Verdict::fail);
  REQUIRE(item.tensors.size() == 2);
  CHECK_THAT(item.tensors[0].reason, ContainsSubstring("differing_bits 1 > 0"));
  REQUIRE(item.tensors[0].worst.has_value());
  CHECK(item.tensors[0].worst->index == std::vector<std::size_t>{0, 0, 0, test::wrong_element});
  CHECK(item.tensors[1].verdict == Verdict::pass);
}

TEST_CASE("replays run only where they are named", "[session][replay]") {
  session::RunRequest request = request_for(right, small);
  for (const auto& names : {std::vector<std::string>{}, {"all"}, {"oracle"}}) {
    request.against = names;
    for (const report::CaseResult& item : session::run(request, {}).cases) CHECK(item.against == "oracle");
  }
  request.against = {"replay"};
  const report::Result alone = session::run(request, {});
  CHECK(alone.cases.size() == 2);
  for (const report::CaseResult& item : alone.cases) CHECK(item.against == "replay");
  request.oracle.reset();
  CHECK(session::run(request, {}).exit_code() == 0);
}

TEST_CASE("what has no replay never passes against it", "[session][replay]") {
  session::RunRequest request = request_for(right, small);
  request.against = {"replay"};
  request.dtypes = {"fp64"};
  const report::Result fp64 = session::run(request, {});
  CHECK(fp64.exit_code() == 1);
  CHECK(fp64.cases.size() == 2);
  for (const report::CaseResult& item : fp64.cases) {
    CHECK(item.verdict == Verdict::skipped);
    CHECK(item.against == "replay");
    CHECK_THAT(item.reason, ContainsSubstring("exponential of CUDA is not that of the C library"));
  }

  request.dtypes = {};
  request.variants = {"recurrent", "chunk"};
  CHECK_THAT(usage_error(request), ContainsSubstring("no GPU variant is selected"));
  request.variants = {};
  request.registry = absent;
  CHECK_THAT(usage_error(request), ContainsSubstring("gpu-chunk cannot run here: no device"));
  request.variants = {"gpu-chunk"};
  const report::Result not_here = session::run(request, {});
  CHECK(not_here.exit_code() == 1);
  REQUIRE(not_here.cases.size() == 1);
  CHECK(not_here.cases[0].verdict == Verdict::skipped);
  CHECK_THAT(not_here.cases[0].reason, ContainsSubstring("no device: none was made up"));
}

TEST_CASE("a GPU that is required must be there, and answer", "[session][replay]") {
  const auto error_of = [](const std::vector<std::string>& names, const std::vector<kda::Variant>& registry) {
    try {
      session::check_requirements(names, registry);
    } catch (const Error& error) {
      return std::to_string(exit_code(error.kind())) + " " + error.what();
    }
    return std::string();
  };
  CHECK(error_of({"gpu"}, right).empty());
  CHECK(error_of({}, absent).empty());
  CHECK_THAT(error_of({"gpu"}, absent), ContainsSubstring("4 --require gpu: gpu-chunk: no device: none"));
  CHECK_THAT(error_of({"gpus"}, right), ContainsSubstring("2 --require gpus") && ContainsSubstring("'gpu'"));

  // A run that left the GPU out, by its variants or because it lacks the arithmetic, does not count.
  session::RunRequest request = request_for(right, small);
  const auto missed = [&] {
    return session::missed_requirements({"gpu"}, session::variants_that_answered(session::run(request, {})),
                                        right);
  };
  CHECK(missed().empty());
  request.variants = {"chunk"};
  REQUIRE(missed().size() == 1);
  CHECK(missed()[0].exit_code == 4);
  request.variants = {"gpu-chunk"};
  request.arithmetic = {"decay=pair"};
  CHECK(missed().size() == 1);
}

TEST_CASE("the stages of a GPU variant are its own, and what they make of exact inputs is its replay's",
          "[session][replay][stages]") {
  session::RunRequest request = request_for(right, small);
  request.variants = {"gpu-recurrent", "gpu-chunk", "chunk"};
  request.arithmetic = {"h100"};
  request.dtypes = {"fp32"};
  request.stages = true;
  const report::Result result = session::run(request, {});
  REQUIRE(result.stages.size() == 2);
  REQUIRE(result.stages[0].rows.size() == kda::forward_stage_count);
  for (std::size_t stage = 0; stage < kda::forward_stage_count; ++stage) {
    const report::StageRowResult &gpu = result.stages[0].rows[stage], &cpu = result.stages[1].rows[stage];
    REQUIRE(gpu.own_rms_ratio.has_value());
    CHECK(*gpu.own_rms_ratio == *cpu.own_rms_ratio);
    CHECK(gpu.rms_ratio == cpu.rms_ratio);
  }
  request.variants = {"gpu-chunk"};
  request.arithmetic = {};
  request.dtypes = {"fp64"};
  const report::Result fp64 = session::run(request, {});
  REQUIRE(fp64.stages.size() == 1);
  CHECK(!fp64.stages[0].rows.at(0).own_rms_ratio.has_value());
  // Stages of a variant that cannot run so are left out, as its answer is.
  request.dtypes = {"fp32"};
  request.arithmetic = {"decay=pair"};
  CHECK(session::run(request, {}).stages.empty());
}
