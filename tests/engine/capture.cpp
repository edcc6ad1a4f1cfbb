// `capture`: what is written, what stays, and what is refused before anything is.
#include <filesystem>

#include "engine/diff.hpp"
#include "engine/regime_file.hpp"
#include "fixture/h5.hpp"
#include "kda/gpu/device.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/temporary_folder.hpp"

namespace capture_tests {

namespace fs = std::filesystem;
using namespace kda_check;
using numeric::DType;
using plan::Names;
using test::Item;
using test::items_of;

namespace {

/// A folder with a copy of one fixture.
class Copied {
 public:
  explicit Copied(const std::string& fixture) { fs::copy_file(fixture, path); }

  std::string beside(const char* name) const { return folder_ / name; }
  std::size_t entries() const { return folder_.entries(); }

 private:
  test::TemporaryFolder folder_;

 public:
  const std::string path = folder_ / "copy.h5";
};

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

plan::Request request_for(std::string target, Names variants) {
  plan::Request request = test::request_for({std::move(target)}, plan::Task::capture);
  request.selection.variants = std::move(variants);
  return request;
}

/// What goes wrong, while it is planned or when it is run, behind its exit code; "captured" where nothing
/// does.
std::string refusal(const plan::Request& request, const fixture::ReadLimits& limits = {}) {
  engine::Resources resources;
  resources.limits = limits;
  report::Document document;
  if (std::string text = test::refusal([&] { document = test::ran(request, resources); }); text != "accepted")
    return text;
  if (document.failures.empty()) return "captured";
  return std::to_string(document.failures[0].exit_code) + " " + document.failures[0].message;
}

report::Document captured(const plan::Request& request) {
  report::Document document = test::ran(request);
  CHECK(document.failures.empty());
  CHECK(report::exit_code(document) == 0);
  return document;
}

report::Document diff(const std::string& got, const std::string& reference) {
  engine::DiffRequest request;
  request.got = got, request.reference = reference;
  report::Document document;
  engine::diff(request, document, {}, {});
  return document;
}

}  // namespace

TEST_CASE("what is captured is what the variant answers, stages included, and the rest of the file stays",
          "[engine][capture]") {
  for (const char* const name : {"fla_fp32_varlen", "fla_bf16_prefill", "fla_fp16_c32"}) {
    const Copied copy(committed(name));
    const report::Document document = captured(request_for(copy.path, {"chunk", "recurrent"}));
    const std::vector<Item> items = items_of(document, "captured");
    REQUIRE(items.size() == 2);
    CHECK(items[0].words("group") == "expected/chunk@cpu");
    CHECK(items[0].words("file") == copy.path);
    CHECK(items[0].list("tensors") == Names{"o", "final_state"});
    CHECK(items[0].count("stages") == std::int64_t{kda::forward_stage_count});
    CHECK(items[1].count("stages") == 0);
    CHECK(copy.entries() == 1);

    const fixture::Fixture file = fixture::Fixture::open(copy.path),
                           before = fixture::Fixture::open(committed(name));
    CHECK(file.warnings() == before.warnings());
    CHECK(file.expected().size() == before.expected().size() + 2);
    const kda::Problem problem = file.read_problem();
    for (const char* const variant : {"chunk", "recurrent"}) {
      kda::RunOptions options = test::default_options(problem, variant, problem.dtype());
      options.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
      kda::StageTensors stages = kda::allocate_stages(problem, options.chunk_size, DType::fp32);
      if (variant == std::string("chunk")) options.stages.computed = &stages;
      const kda::Answer answer = test::run(problem, variant, options);
      const fixture::ExpectedGroup& group = *file.expected_named(std::string(variant) + "@cpu");
      CHECK(group.device == "cpu");
      CHECK_THAT(group.implementation,
                 ContainsSubstring("kda-check ") && ContainsSubstring(": contraction=fused"));
      CHECK(group.compute ==
            kda::compute_format(kda::variant_named(variant), problem.dtype(), options.arithmetic));
      CHECK(test::differing_bits(file.read(*group.tensor("o")), answer.o) == 0);
      CHECK(test::differing_bits(file.read(*group.tensor("final_state")), answer.final_state) == 0);
      for (const fixture::DatasetInfo& info : group.stages) {
        const kda::StageRow& row =
            *std::find_if(kda::stages().begin(), kda::stages().end(),
                          [&](const auto& stage) { return stage.name == fixture::leaf(info.path); });
        // Narrower in the file where the values are: widened they are the same bits.
        const tensor::Tensor wide = file.read(info).converted_to(DType::fp32);
        CHECK(test::differing_bits(wide, stages[static_cast<std::size_t>(row.stage)]) == 0);
      }
    }
    const report::Document same = diff(committed(name), copy.path);
    for (const report::CaseResult& item : same.cases)
      for (const report::TensorResult& tensor : item.tensors)
        CHECK((tensor.verdict == judge::Verdict::pass || tensor.name.find("@cpu") != std::string::npos));
  }
}

TEST_CASE("of a problem with a loss the gradients are captured too, of variants that have them",
          "[engine][capture]") {
  const Copied copy(committed("fla_fp32_small_backward"));
  std::vector<kda::Variant> registry = test::cpu_variants();
  registry.push_back(test::forward_only());
  plan::Request request = request_for(copy.path, {"recurrent", "forwards"});
  request.registry = registry;
  const report::Document document = captured(request);
  const std::vector<Item> items = items_of(document, "captured");
  REQUIRE(items.size() == 2);
  const fixture::Fixture file = fixture::Fixture::open(copy.path);
  const kda::Problem problem = file.read_problem();
  const kda::GradientTensors gradients =
      kda::variant_named("recurrent")
          .run_backward(problem, test::default_options(problem, "recurrent", problem.dtype()));
  for (const kda::GradientRow& row : kda::gradients()) {
    const tensor::Tensor& gradient = gradients[static_cast<std::size_t>(row.gradient)];
    const fixture::DatasetInfo* const stored = file.expected_named("recurrent@cpu")->tensor(row.name);
    INFO(row.name);
    REQUIRE((stored != nullptr) == !gradient.empty());
    if (stored != nullptr) CHECK(test::differing_bits(file.read(*stored), gradient) == 0);
    CHECK(file.expected_named("forwards@cpu")->tensor(row.name) == nullptr);
  }
}

TEST_CASE("run judges by a captured group, and run --stages agrees with its stages", "[engine][capture]") {
  const Copied copy(committed("fla_bf16_prefill"));
  plan::Request request = request_for(copy.path, {"chunk"});
  request.arithmetic = {"h100"};
  captured(request);
  plan::Request run = test::request_for({copy.path});
  run.selection.variants = Names{"chunk"}, run.arithmetic = {"h100"};
  run.selection.against = Names{"chunk@cpu"};
  run.judging.limits = test::limits({"max_ulp=exact"});
  run.stages = true;
  const report::Document same = test::ran(run);
  CHECK(report::exit_code(same) == 0);
  REQUIRE(same.cases.size() == 1);
  bool compared = false;
  for (const Item& item : items_of(same, "stages"))
    for (const std::string& line : item.list("disagreements"))
      if (line.starts_with("with expected/chunk@cpu:")) {
        compared = true;
        CHECK_THAT(line, ContainsSubstring("every stage agrees"));
      }
  CHECK(compared);
  run.arithmetic = {"h100", "storage=none"};
  CHECK(report::exit_code(test::ran(run)) == 1);
}

TEST_CASE("what the program does not know of a file survives a capture", "[engine][capture]") {
  const Copied copy(std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_good/strangers.h5");
  captured(request_for(copy.path, {"naive"}));
  const fixture::H5File file = fixture::H5File::open(copy.path);
  for (const char* const dataset :
       {"/inputs/mask", "/expected/somebody/logits", "/expected/readme", "/notes", "/provenance/anything"})
    CHECK(file.kind(dataset) == fixture::LinkKind::dataset);
  CHECK(file.attribute("/options", "colour") == fixture::AttributeValue("blue"));
  CHECK(file.kind("/expected/naive@cpu/o") == fixture::LinkKind::dataset);
}

TEST_CASE("a captured group is written once, and again only when asked", "[engine][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  plan::Request request = request_for(copy.path, {"chunk"});
  captured(request);
  const auto size = fs::file_size(copy.path);
  CHECK_THAT(refusal(request), ContainsSubstring("2 expected/chunk@cpu exists"));
  CHECK(fs::file_size(copy.path) == size);
  request.replace = true, request.capture_stages = false, request.selection.dtypes = Names{"fp64"};
  request.chunk_size = 16;
  captured(request);
  const fixture::Fixture file = fixture::Fixture::open(copy.path);
  const fixture::ExpectedGroup& group = *file.expected_named("chunk@cpu");
  CHECK(group.stages.empty());
  CHECK(group.tensor("o")->dtype == DType::fp64);
  CHECK(group.compute == numeric::ComputeFormat::fp64);
  CHECK_THAT(group.implementation, ContainsSubstring("chunk-size=16"));
}

TEST_CASE("with an output the fixture stays as it is and a copy is extended", "[engine][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  plan::Request request = request_for(copy.path, {"recurrent"});
  request.output = copy.beside("extended.h5");
  const report::Document document = captured(request);
  CHECK(items_of(document, "captured").at(0).words("file") == request.output);
  CHECK(fixture::Fixture::open(copy.path).expected_named("recurrent@cpu") == nullptr);
  CHECK(fixture::Fixture::open(request.output).expected_named("recurrent@cpu") != nullptr);
  CHECK(copy.entries() == 2);
}

TEST_CASE("a regime is captured into the file that make would write", "[engine][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  plan::Request request = request_for("control:T=40,C=16,dtype=bf16", {"chunk"});
  request.output = copy.beside("regime.h5");
  captured(request);
  const kda::RegimeRequest regime = kda::parse_regime(request.targets[0]);
  const kda::Problem problem = regime.build();
  fixture::write_fixture(copy.beside("made.h5"), engine::regime_file(regime, problem, 1).request);
  const report::Document same = diff(copy.beside("made.h5"), request.output);
  CHECK_FALSE(same.cases.empty());
  for (const report::CaseResult& item : same.cases)
    for (const report::TensorResult& tensor : item.tensors)
      CHECK((tensor.verdict == judge::Verdict::pass) == tensor.name.starts_with("inputs/"));
}

TEST_CASE("what cannot be captured is refused before anything is written", "[engine][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  const auto with = [&](auto change) {
    plan::Request request = request_for(copy.path, {"chunk"});
    change(request);
    return refusal(request);
  };
  CHECK_THAT(with([](auto& r) { r.selection.variants = Names{"chnuk"}; }),
             ContainsSubstring("2 ") && ContainsSubstring("did you mean 'chunk'?"));
  CHECK_THAT(with([](auto& r) { r.selection.dtypes = Names{"bf16"}; }),
             ContainsSubstring("2 --dtype bf16 does not hold the fp32 inputs"));
  CHECK_THAT(with([](auto& r) { r.chunk_size = 32; }),
             ContainsSubstring("2 --chunk-size 32") && ContainsSubstring("--no-stages"));
  CHECK_THAT(with([](auto& r) { r.selection.dtypes = Names{"fp64"}, r.arithmetic = {"h100"}; }),
             ContainsSubstring("2 ") && ContainsSubstring("fp32 only"));
  CHECK_THAT(with([](auto& r) { r.targets = {"/no/such.h5"}; }),
             ContainsSubstring("3 ") && ContainsSubstring("cannot open"));
  CHECK_THAT(with([](auto& r) { r.output = "/no/such/folder/x.h5"; }),
             ContainsSubstring("4 ") && ContainsSubstring("cannot write"));
  plan::Request large = request_for("control:T=4096,H=1,K=4,V=4", {"chunk"});
  large.output = copy.beside("x.h5");
  fixture::ReadLimits limits;
  limits.memory_budget = 2 << 20;
  CHECK_THAT(refusal(large, limits),
             ContainsSubstring("3 ") && ContainsSubstring("--no-stages, or --memory-limit"));
  if (const std::string reason = kda::gpu_unavailable(); !reason.empty())
    CHECK_THAT(with([](auto& r) { r.selection.variants = Names{"gpu-chunk"}; }),
               ContainsSubstring("4 gpu-chunk: " + reason));
  CHECK(copy.entries() == 1);
  CHECK(fixture::Fixture::open(copy.path).expected().size() ==
        fixture::Fixture::open(committed("fla_fp32_small")).expected().size());
}

}  // namespace capture_tests
