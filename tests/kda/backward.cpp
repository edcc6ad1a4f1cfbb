// The backward passes against truths: PyTorch's autograd in fp64 (the fixtures), and laws.
#include <filesystem>

#include "fixture/fixture.hpp"
#include "kda/variants.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;
using numeric::DType;

namespace {

/// The fixtures that hold gradients: those committed, and the large ones where they are.
std::vector<std::string> files_with_gradients() {
  std::vector<std::string> files = test::large_fixture_files();
  for (const auto& entry : std::filesystem::directory_iterator(test::case_fixtures()))
    files.push_back(entry.path().string());
  std::vector<std::string> chosen;
  for (const std::string& file : files)
    if (fixture::Fixture::open(file).expected_named("torch_fp64")->tensor("dq") != nullptr)
      chosen.push_back(file);
  REQUIRE(chosen.size() >= 2);
  return chosen;
}

std::vector<numeric::DoubleDouble> exactly(const tensor::Tensor& tensor) {
  std::vector<numeric::DoubleDouble> values(tensor.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = {tensor.value(i), 0.0};
  return values;
}

void check_against_autograd(std::string_view variant, double limit) {
  std::size_t compared = 0;
  for (const std::string& path : files_with_gradients()) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const kda::Problem problem = file.read_problem();
    const kda::GradientTensors got = kda::variant_named(variant).run_backward(
        problem, test::default_options(problem, variant, DType::fp64));
    for (const kda::GradientRow& row : kda::gradients()) {
      const fixture::DatasetInfo* const info = file.expected_named("torch_fp64")->tensor(row.name);
      const tensor::Tensor& tensor = got[static_cast<std::size_t>(row.gradient)];
      CAPTURE(path, row.name);
      REQUIRE((info != nullptr) == !tensor.empty());
      if (info == nullptr) continue;
      CHECK(test::rms_ratio(tensor, exactly(file.read(*info))) <= limit);
      ++compared;
    }
  }
  CHECK(compared >= 14);
}

}  // namespace

TEST_CASE("recurrent backwards in fp64 has the gradients of PyTorch's autograd", "[backward]") {
  check_against_autograd("recurrent", 1e-12);
}

TEST_CASE("chunk backwards in fp64 has the gradients of PyTorch's autograd", "[backward]") {
  check_against_autograd("chunk", 1e-11);
}
