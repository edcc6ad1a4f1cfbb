// What an H100 answered, replayed here: cases/captures, written there by `capture`, and cases/kernels, what
// the kernels of others answered.
#include <algorithm>
#include <filesystem>
#include <iterator>

#include "plan/reproduction.hpp"
#include "plan/selection.hpp"
#include "plan/source.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace captures_tests {

using namespace kda_check;

namespace {

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(test::case_fixtures() + "/../" + folder))
    files.push_back(entry.path().string());
  return files;
}

/// Elements of a recorded stage that are not what was computed. `capture` stores stages in the format they
/// were rounded to, so values are compared.
std::size_t differing(const tensor::Tensor& recorded, const tensor::Tensor& computed) {
  REQUIRE(recorded.shape() == computed.shape());
  std::size_t count = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) count += recorded.value(i) != computed.value(i);
  return count;
}

/// A problem and what somebody answered to it.
struct Answered {
  explicit Answered(const std::string& path)
      : source(plan::Source::look({path, path}, {})),
        opened(source.open({})),
        problem(opened.take_problem()) {}

  /// Elements of the outputs of a group that a variant under these words gives otherwise.
  std::size_t differing(const char* group_name, const char* variant_name,
                        const std::vector<std::string>& words) {
    const fixture::ExpectedGroup& group = *source.expected_named(group_name);
    const tensor::Tensor o = opened.read(*group.tensor("o"));
    const kda::Variant& variant = kda::variant_named(variant_name);
    const kda::Answer answer =
        variant.run(problem, plan::run_options(variant, problem, o.dtype(), words, 64));
    return test::differing_bits(answer.o, o) +
           test::differing_bits(answer.final_state, opened.read(*group.tensor("final_state")));
  }

  plan::Source source;
  plan::Source::Opened opened;
  kda::Problem problem;
};

}  // namespace

TEST_CASE("a CPU replays what an H100 answered bit for bit, stages included", "[engine][captures]") {
  std::size_t groups = 0, stages = 0;
  for (const std::string& path : files_of("captures")) {
    auto [source, opened, problem] = Answered(path);
    for (const fixture::ExpectedGroup& group : source.expected()) {
      if (!group.name.starts_with("gpu-")) continue;
      INFO(path << ' ' << group.name);
      const auto how = plan::reproduction_of(group);
      REQUIRE(how);
      CHECK(group.device == "NVIDIA H100 80GB HBM3");
      const tensor::Tensor o = opened.read(*group.tensor("o"));
      kda::RunOptions options = plan::run_options(*how->variant, problem, o.dtype(), how->arithmetic,
                                                  static_cast<std::size_t>(problem.options.chunk_size));
      options.threads = 2;
      kda::StageTensors computed;
      if (!group.stages.empty()) {
        computed = kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(o.dtype()));
        options.stages.computed = &computed;
      }
      const kda::Answer answer = how->variant->run(problem, options);
      CHECK(test::differing_bits(answer.o, o) == 0);
      CHECK(test::differing_bits(answer.final_state, opened.read(*group.tensor("final_state"))) == 0);
      if (group.tensor("dq") != nullptr) {
        const kda::GradientTensors replayed = how->variant->run_backward(problem, options);
        for (const kda::GradientRow& row : kda::gradients())
          if (const fixture::DatasetInfo* const recorded = group.tensor(row.name)) {
            INFO(row.name);
            CHECK(test::differing_bits(opened.read(*recorded),
                                       replayed[static_cast<std::size_t>(row.gradient)]) == 0);
          }
      }
      for (const fixture::DatasetInfo& info : group.stages)
        for (const kda::StageRow& row : kda::stages()) {
          if (row.name != fixture::leaf(info.path)) continue;
          INFO(row.name);
          CHECK(differing(opened.read(info), computed[static_cast<std::size_t>(row.stage)]) == 0);
          ++stages;
        }
      ++groups;
    }
  }
  CHECK(groups == 10);
  CHECK(stages == 45);
}

TEST_CASE(
    "what kernels of vLLM, SGLang, llama.cpp, cuLA, FlashKDA, FlashInfer and cuDNN answered on an H100, and "
    "two of Pallas on a CPU, is replayed in every bit",
    "[engine][captures]") {
  struct Kernel {
    std::string_view group;
    const char* other;  ///< a word that is not its own
    std::size_t captures, found = 0, differing = 0;
  };
  Kernel kernels[] = {{"vllm_decode", "fla-recurrent", 3},
                      {"vllm_packed", "launch=block:8x1", 1},
                      {"sglang_decode", "fla-recurrent", 3},
                      {"llama_cpp", "update=chained", 2},
                      {"cula_sm90", "beta=rows", 2},
                      {"flash_kda", "output=chained", 2},
                      {"flashinfer_decode", "special=fast", 2},
                      {"cudnn_sm90", "scale=q", 2},
                      {"pallas", "decay=pair-rows", 2},
                      {"sglang_jax", "decay=pair-products", 2}};
  for (const std::string& path : files_of("kernels")) {
    const plan::Source source = plan::Source::look({path, path}, {});
    plan::Source::Opened opened = source.open({});
    for (const fixture::ExpectedGroup& group : source.expected()) {
      const auto kernel = std::ranges::find(kernels, group.name, &Kernel::group);
      if (kernel == std::end(kernels)) continue;
      INFO(path << ' ' << group.name);
      const kda::Problem problem = opened.take_problem();
      const tensor::Tensor o = opened.read(*group.tensor("o")),
                           state = opened.read(*group.tensor("final_state"));
      const auto how = plan::reproduction_of(group);
      REQUIRE(how);
      const std::size_t chunk_size =
          how->chunk_size > 0 ? how->chunk_size : static_cast<std::size_t>(problem.options.chunk_size);
      const auto differing_under = [&](const std::vector<std::string>& words) {
        const kda::Answer answer = how->variant->run(
            problem, plan::run_options(*how->variant, problem, o.dtype(), words, chunk_size));
        // What a pool keeps in 16 bits is rounded as it is stored.
        return test::differing_bits(answer.o, o) +
               test::differing_bits(answer.final_state.converted_to(state.dtype()), state);
      };
      CHECK(differing_under(how->arithmetic) == 0);
      std::vector<std::string> others = how->arithmetic;
      others.emplace_back(kernel->other);
      kernel->differing += differing_under(others);
      ++kernel->found;
    }
  }
  for (const Kernel& kernel : kernels) {
    INFO(kernel.group);
    CHECK(kernel.found == kernel.captures);
    CHECK(kernel.differing > 0);
  }
}

TEST_CASE("what FLA's kernels of GDN-2 answered on an H100 is replayed in every bit", "[engine][captures]") {
  Answered file(test::case_fixtures() + "/../kernels/fla_gdn2_bf16.h5");
  CHECK(file.differing("fla_recurrent", "recurrent", {"fla-recurrent"}) == 0);
  // The write gate's product and the prediction are one operation there.
  CHECK(file.differing("fla_recurrent", "recurrent", {"fla-recurrent", "delta=wy"}) > 0);
  CHECK(file.differing("fla_chunk", "chunk", {"fla", "launch=scan:2+pairs:2x16x1"}) == 0);
  CHECK(file.differing("fla_chunk", "chunk", {"fla", "launch=scan:4+pairs:2x16x1"}) > 0);
}

TEST_CASE(
    "FLA's norms of 32 channels, of which each half of the lanes has its own, are replayed in every bit",
    "[engine][captures]") {
  std::size_t captures = 0;
  for (const std::string& path : files_of("kernels")) {
    if (!std::filesystem::path(path).filename().string().starts_with("fla_norm_")) continue;
    INFO(path);
    Answered file(path);
    CHECK(file.differing("fla_recurrent", "recurrent", {"fla-recurrent"}) == 0);
    CHECK(file.differing("fla_recurrent", "recurrent", {"fla-recurrent", "special=ieee"}) > 0);
    ++captures;
  }
  CHECK(captures == 3);
}

}  // namespace captures_tests
