// GPU variants in plans and runs, with rows that stand for them: no GPU is needed here, nor used where there
// is one.
#include "kda/problem/stages.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/made_up_gpu.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace replay_tests {

using namespace kda_check;
using judge::Verdict;
using plan::Names;
using report::exit_code;
using test::case_of;
using test::has_case;

namespace {

const std::vector<kda::Variant> right =
    test::cpu_variants_and({test::made_up_gpu_recurrent(), test::made_up_gpu_chunk()});
const std::vector<kda::Variant> wrong = test::cpu_variants_and({test::made_up_gpu_chunk<test::Wrong::o>()});
const std::vector<kda::Variant> absent = test::cpu_variants_and({test::absent_gpu_chunk()});

plan::Request request_for(const std::vector<kda::Variant>& registry, const std::string& target) {
  plan::Request request = test::request_for({target});
  request.registry = registry;
  return request;
}

report::Document ran(const plan::Request& request) { return test::ran(request, test::on_threads(2)); }

constexpr char small[] = "control:T=70,H=2,K=32,V=16";

}  // namespace

TEST_CASE("a GPU answer with the bits of its replay passes, in every dtype that has one",
          "[engine][replay]") {
  for (const char* const dtype : {"fp32", "bf16", "fp16"}) {
    plan::Request request = request_for(right, small);
    request.selection.dtypes = Names{dtype};
    request.selection.against = Names{"oracle", "replay"};
    const report::Document document = ran(request);
    CHECK(exit_code(document) == 0);
    CHECK(document.cases.size() == 5 + 2);
    for (const char* const variant : {"gpu-recurrent", "gpu-chunk"}) {
      const report::CaseResult& item = case_of(document, variant, "replay");
      CHECK(item.verdict == Verdict::pass);
      REQUIRE(item.tensors.size() == 2);
      for (const report::TensorResult& tensor : item.tensors)
        for (const judge::Limit& limit : tensor.limits) {
          CHECK(limit.value == 0);
          CHECK(limit.source == "replay");
        }
      CHECK(item.device == kda::device_of(kda::variant_named("gpu-chunk")));
    }
    CHECK_FALSE(has_case(document, "chunk", "replay"));
    const std::string text = report::write_text(document, {});
    CHECK_THAT(text, ContainsSubstring("against the replay on the CPU"));
    CHECK_THAT(text, ContainsSubstring("differing_bits 0"));
    CHECK_THAT(text, !ContainsSubstring("command line"));
  }
}

TEST_CASE("a GPU answer that is off by the last bit of one element fails against its replay only",
          "[engine][replay]") {
  plan::Request request = request_for(wrong, small);
  request.selection.against = Names{"oracle", "replay"};
  const report::Document document = ran(request);
  CHECK(exit_code(document) == 1);
  CHECK(case_of(document, "gpu-chunk", "oracle").verdict == Verdict::pass);
  const report::CaseResult& item = case_of(document, "gpu-chunk", "replay");
  CHECK(item.verdict == Verdict::fail);
  REQUIRE(item.tensors.size() == 2);
  CHECK_THAT(item.tensors[0].reason, ContainsSubstring("differing_bits 1 > 0"));
  REQUIRE(item.tensors[0].worst.has_value());
  CHECK(item.tensors[0].worst->index == std::vector<std::size_t>{0, 0, 0, test::wrong_element});
  CHECK(item.tensors[1].verdict == Verdict::pass);
}

TEST_CASE("GPU gradients are held against those of their replay, bit for bit", "[engine][replay]") {
  const test::TemporaryFixture file(test::with_loss(test::make_problem({.T = 40, .K = 16, .V = 12})), nullptr,
                                    "gradients");
  const std::vector<kda::Variant> of_wrong = test::cpu_variants_and(
      {test::made_up_gpu_recurrent<test::Wrong::dv>(), test::made_up_gpu_chunk<test::Wrong::dv>()});
  for (const char* const variant : {"gpu-recurrent", "gpu-chunk"})
    for (const bool is_right : {true, false}) {
      plan::Request request = request_for(is_right ? right : of_wrong, file.path);
      request.selection.against = Names{"replay"};
      request.selection.variants = Names{variant};
      const report::Document document = ran(request);
      CHECK(exit_code(document) == (is_right ? 0 : 1));
      REQUIRE(document.cases.size() == 2);
      CHECK(document.cases[0].verdict == Verdict::pass);
      const report::CaseResult& backward = document.cases[1];
      CHECK(backward.pass == "backward");
      CHECK(backward.verdict == (is_right ? Verdict::pass : Verdict::fail));
      REQUIRE(backward.tensors.size() == 6);
      for (const report::TensorResult& tensor : backward.tensors)
        CHECK(tensor.verdict == (is_right || tensor.name != "dv" ? Verdict::pass : Verdict::fail));
    }
}

TEST_CASE("replays run only where they are named", "[engine][replay]") {
  plan::Request request = request_for(right, small);
  for (const std::optional<Names>& names : {std::optional<Names>(), {{"all"}}, {{"oracle"}}}) {
    request.selection.against = names;
    for (const report::CaseResult& item : ran(request).cases) CHECK(item.against == "oracle");
  }
  request.selection.against = Names{"replay"};
  const report::Document alone = ran(request);
  CHECK(alone.cases.size() == 2);
  for (const report::CaseResult& item : alone.cases) CHECK(item.against == "replay");
  request.oracle = plan::OracleChoice::none;
  CHECK(exit_code(ran(request)) == 0);
}

TEST_CASE("what has no replay never passes against it", "[engine][replay]") {
  plan::Request request = request_for(right, small);
  request.selection.against = Names{"replay"};
  request.selection.dtypes = Names{"fp64"};
  const report::Document fp64 = ran(request);
  CHECK(exit_code(fp64) == 1);
  CHECK(fp64.cases.size() == 2);
  for (const report::CaseResult& item : fp64.cases) {
    CHECK(item.verdict == Verdict::skipped);
    CHECK(item.against == "replay");
    CHECK_THAT(item.reason, ContainsSubstring("exponential of CUDA is not that of the CPU"));
  }

  request.selection.dtypes.reset();
  request.selection.variants = Names{"recurrent", "chunk"};
  CHECK_THAT(test::refusal([&] { ran(request); }),
             ContainsSubstring("2 --against replay: no GPU variant is selected"));
  request.selection.variants.reset();
  request.registry = absent;
  CHECK_THAT(test::refusal([&] { ran(request); }), ContainsSubstring("gpu-chunk cannot run here: no device"));
  request.selection.variants = Names{"gpu-chunk"};
  const report::Document not_here = ran(request);
  CHECK(exit_code(not_here) == 1);
  REQUIRE(not_here.cases.size() == 1);
  CHECK(not_here.cases[0].verdict == Verdict::skipped);
  CHECK_THAT(not_here.cases[0].reason, ContainsSubstring("no device: none was made up"));
}

TEST_CASE("the stages of a GPU variant are its own, and what they make of exact inputs is its replay's",
          "[engine][replay][stages]") {
  plan::Request request = request_for(right, small);
  request.selection.variants = Names{"gpu-recurrent", "gpu-chunk", "chunk"};
  request.arithmetic = {"h100"};
  request.selection.dtypes = Names{"fp32"};
  request.stages = true;
  const report::Document document = ran(request);
  const std::vector<test::Item> both = test::items_of(document, "stages");
  REQUIRE(both.size() == 2);
  const std::vector<test::Row> gpu = both[0].rows("stages"), cpu = both[1].rows("stages");
  REQUIRE(gpu.size() == kda::forward_stage_count);
  for (std::size_t stage = 0; stage < kda::forward_stage_count; ++stage) {
    CHECK(gpu[stage].figure("own_rms_ratio") == cpu[stage].figure("own_rms_ratio"));
    CHECK(gpu[stage].figure("rms_ratio") == cpu[stage].figure("rms_ratio"));
  }
  request.selection.variants = Names{"gpu-chunk"};
  request.arithmetic = {};
  request.selection.dtypes = Names{"fp64"};
  const report::Document fp64 = ran(request);
  const std::vector<test::Item> alone = test::items_of(fp64, "stages");
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].rows("stages").at(0).is_nothing("own_rms_ratio"));
  // Stages of a variant that cannot run so are left out, as its answer is.
  request.selection.dtypes = Names{"fp32"};
  request.arithmetic = {"decay=pair"};
  const report::Document none = ran(request);
  CHECK(test::items_of(none, "stages").empty());
}

}  // namespace replay_tests
