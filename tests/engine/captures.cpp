// What an H100 answered, replayed here: cases/captures, written there by `capture`.
#include <filesystem>

#include "plan/reproduction.hpp"
#include "plan/selection.hpp"
#include "plan/source.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;

namespace {

std::vector<std::string> capture_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(test::case_fixtures() + "/../captures"))
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

}  // namespace

TEST_CASE("a CPU replays what an H100 answered bit for bit, stages included", "[engine][captures]") {
  std::size_t groups = 0, stages = 0;
  for (const std::string& path : capture_files()) {
    const plan::Source source = plan::Source::look({path, path}, {});
    plan::Source::Opened opened = source.open({});
    const kda::Problem problem = opened.take_problem();
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
