#include "session/capture.hpp"

#include <unistd.h>

#include <filesystem>

#include "base/error.hpp"
#include "fixture/h5.hpp"
#include "session/attribute.hpp"
#include "session/diff.hpp"
#include "session/make.hpp"
#include "session/run.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace fs = std::filesystem;
using namespace kda_check;
using numeric::DType;
using session::CaptureRequest;

namespace {

/// A folder with a copy of one fixture.
class Copied {
 public:
  explicit Copied(const std::string& fixture) {
    fs::create_directory(folder_);
    fs::copy_file(fixture, path);
  }
  ~Copied() { fs::remove_all(folder_); }
  Copied(const Copied&) = delete;
  Copied& operator=(const Copied&) = delete;

  std::string beside(const char* name) const { return (folder_ / name).string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

 private:
  fs::path folder_ = fs::temp_directory_path() / ("kda-check-capture-" + std::to_string(::getpid()));

 public:
  std::string path = (folder_ / "copy.h5").string();
};

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

CaptureRequest request_for(std::string target, std::vector<std::string> variants) {
  CaptureRequest request;
  request.target = std::move(target), request.variants = std::move(variants);
  return request;
}

ErrorKind refused(const CaptureRequest& request, const char* words) {
  try {
    session::capture(request, {});
  } catch (const Error& error) {
    INFO(words);
    CHECK_THAT(error.what(), ContainsSubstring(words));
    return error.kind();
  }
  FAIL_CHECK("was captured, and not refused: " << words);
  return ErrorKind::internal;
}

}  // namespace

TEST_CASE("a captured group is called after its variant and its device", "[session][capture]") {
  CHECK(session::captured_name("gpu-chunk", "NVIDIA H100 80GB HBM3") == "gpu-chunk@nvidia-h100-80gb-hbm3");
  CHECK(session::captured_name("chunk", "cpu") == "chunk@cpu");
  CHECK(session::captured_name("x", " (R) A/B_c ") == "x@r-a-b-c");
}

TEST_CASE("what is captured is what the variant answers, stages included, and the rest of the file stays",
          "[session][capture]") {
  for (const char* const name : {"fla_fp32_varlen", "fla_bf16_prefill", "fla_fp16_c32"}) {
    const Copied copy(committed(name));
    const std::vector<session::Captured> captured =
        session::capture(request_for(copy.path, {"chunk", "recurrent"}), {});
    REQUIRE(captured.size() == 2);
    CHECK(captured[0].group == "expected/chunk@cpu");
    CHECK(captured[0].stages == kda::forward_stage_count);
    CHECK(captured[1].stages == 0);
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
    session::DiffRequest diff;
    diff.got = committed(name), diff.expected = copy.path;
    for (const report::CaseResult& item : session::diff(diff, {}).cases)
      for (const report::TensorResult& tensor : item.tensors)
        CHECK((tensor.verdict == compare::Verdict::pass || tensor.name.find("@cpu") != std::string::npos));
  }
}

TEST_CASE("run judges by a captured group, and run --stages agrees with its stages", "[session][capture]") {
  const Copied copy(committed("fla_bf16_prefill"));
  CaptureRequest request = request_for(copy.path, {"chunk"});
  request.arithmetic = {"h100"};
  session::capture(request, {});
  session::RunRequest run;
  run.fixtures = {copy.path}, run.variants = {"chunk"}, run.arithmetic = {"h100"},
  run.against = {"chunk@cpu"};
  run.judging.limits = {{"max_ulp", 0, false, true}};
  run.stages = true;
  const report::Result same = session::run(run, {});
  CHECK(same.exit_code() == 0);
  REQUIRE(same.cases.size() == 1);
  bool compared = false;
  for (const report::StageCase& item : same.stages)
    for (const std::string& line : item.disagreements)
      if (line.starts_with("expected/chunk@cpu:")) {
        compared = true;
        CHECK_THAT(line, ContainsSubstring("every stage agrees"));
      }
  CHECK(compared);
  run.arithmetic = {"h100", "storage=none"};
  CHECK(session::run(run, {}).exit_code() == 1);
}

TEST_CASE("what the program does not know of a file survives a capture", "[session][capture]") {
  const Copied copy(std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_good/strangers.h5");
  session::capture(request_for(copy.path, {"naive"}), {});
  const fixture::H5File file = fixture::H5File::open(copy.path);
  for (const char* const dataset :
       {"/inputs/mask", "/expected/somebody/logits", "/expected/readme", "/notes", "/provenance/anything"})
    CHECK(file.kind(dataset) == fixture::LinkKind::dataset);
  CHECK(file.attribute("/options", "colour") == fixture::AttributeValue("blue"));
  CHECK(file.kind("/expected/naive@cpu/o") == fixture::LinkKind::dataset);
}

TEST_CASE("a captured group is written once, and again only when asked", "[session][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  CaptureRequest request = request_for(copy.path, {"chunk"});
  session::capture(request, {});
  const auto size = fs::file_size(copy.path);
  CHECK(refused(request, "expected/chunk@cpu exists") == ErrorKind::usage);
  CHECK(fs::file_size(copy.path) == size);
  request.replace = true, request.stages = false, request.dtype = "fp64", request.chunk_size = 16;
  session::capture(request, {});
  const fixture::Fixture file = fixture::Fixture::open(copy.path);
  const fixture::ExpectedGroup& group = *file.expected_named("chunk@cpu");
  CHECK(group.stages.empty());
  CHECK(group.tensor("o")->dtype == DType::fp64);
  CHECK(group.compute == numeric::ComputeFormat::fp64);
  CHECK_THAT(group.implementation, ContainsSubstring("chunk-size=16"));
}

TEST_CASE("with an output the fixture stays as it is and a copy is extended", "[session][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  CaptureRequest request = request_for(copy.path, {"recurrent"});
  request.output = copy.beside("extended.h5");
  CHECK(session::capture(request, {}).front().path == request.output);
  CHECK(fixture::Fixture::open(copy.path).expected_named("recurrent@cpu") == nullptr);
  CHECK(fixture::Fixture::open(request.output).expected_named("recurrent@cpu") != nullptr);
  CHECK(copy.entries() == 2);
}

TEST_CASE("a regime is captured into the file that make would write", "[session][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  CaptureRequest request = request_for("control:T=40,C=16,dtype=bf16", {"chunk"});
  CHECK(refused(request, "is a regime") == ErrorKind::usage);
  request.output = copy.beside("regime.h5");
  session::capture(request, {});
  session::make({request.target, copy.beside("made.h5"), {}});
  session::DiffRequest diff;
  diff.got = copy.beside("made.h5"), diff.expected = request.output;
  for (const report::CaseResult& item : session::diff(diff, {}).cases)
    for (const report::TensorResult& tensor : item.tensors)
      CHECK((tensor.verdict == compare::Verdict::pass) == tensor.name.starts_with("inputs/"));
}

TEST_CASE("what cannot be captured is refused before anything is written", "[session][capture]") {
  const Copied copy(committed("fla_fp32_small"));
  const auto with = [&](auto change) {
    CaptureRequest request = request_for(copy.path, {"chunk"});
    change(request);
    return request;
  };
  CHECK(refused(with([](auto& r) { r.variants = {"chnuk"}; }), "did you mean 'chunk'?") == ErrorKind::usage);
  CHECK(refused(with([](auto& r) { r.variants = {}; }), "no variant") == ErrorKind::usage);
  CHECK(refused(with([](auto& r) { r.dtype = "bf16"; }), "does not hold the fp32 inputs") ==
        ErrorKind::usage);
  CHECK(refused(with([](auto& r) { r.chunk_size = 32; }), "--no-stages") == ErrorKind::usage);
  CHECK(refused(with([](auto& r) { r.dtype = "fp64", r.arithmetic = {"h100"}; }), "fp32 only") ==
        ErrorKind::usage);
  CHECK(refused(with([](auto& r) { r.target = "/no/such.h5"; }), "cannot open") == ErrorKind::input);
  CHECK(refused(with([](auto& r) { r.output = "/no/such/folder/x.h5"; }), "cannot write") ==
        ErrorKind::environment);
  CHECK(refused(with([&](auto& r) {
                  r.target = "control:T=4096,H=1,K=4,V=4", r.output = copy.beside("x.h5");
                  r.limits.memory_budget = 2 << 20;
                }),
                "--no-stages, or --memory-limit") == ErrorKind::input);
  if (const std::string reason = kda::gpu_unavailable(); !reason.empty())
    CHECK(refused(with([](auto& r) { r.variants = {"gpu-chunk"}; }), ("gpu-chunk: " + reason).c_str()) ==
          ErrorKind::environment);
  CHECK(copy.entries() == 1);
  CHECK(fixture::Fixture::open(copy.path).expected().size() ==
        fixture::Fixture::open(committed("fla_fp32_small")).expected().size());
}

TEST_CASE("attribute --between knows how a captured group was computed", "[session][capture]") {
  const Copied copy(committed("fla_bf16_prefill"));
  CaptureRequest request = request_for(copy.path, {"chunk"});
  request.arithmetic = {"h100"}, request.stages = false, request.chunk_size = 32;
  session::capture(request, {});
  session::AttributeRequest attribute;
  attribute.targets = {copy.path}, attribute.between = {"chunk@cpu", "chunk"};
  const auto result = session::attribute(attribute, {});
  REQUIRE(result.ladders.size() == 2);
  for (const report::Ladder& ladder : result.ladders) {
    REQUIRE(ladder.rungs.size() > 2);
    CHECK(ladder.rungs.front().differing > 0);
    CHECK(ladder.rungs[ladder.rungs.size() - 2].differing == 0);
  }
  // A GPU's group is reproduced by the CPU variant with the same bits.
  fixture::ExpectedGroup gpu;
  gpu.name = "gpu-chunk@some-device", gpu.implementation = "kda-check 9: contraction=fused reduction=simt";
  const auto known = session::reproduction_of(gpu);
  REQUIRE(known);
  CHECK(known->variant->name == "chunk");
  CHECK(known->arithmetic == std::vector<std::string>{"contraction=fused", "reduction=simt"});
  gpu.implementation = "somebody else: contraction=fused";
  CHECK_FALSE(session::reproduction_of(gpu));
}
