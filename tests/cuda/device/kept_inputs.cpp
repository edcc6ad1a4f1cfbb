// Inputs that stay on the device from run to run: built with the CUDA toolkit only.
#include "kda/gpu/kept_inputs.hpp"

#include <optional>
#include <vector>

#include "cuda/device/device_input.hpp"
#include "cuda/device/kept_inputs.hpp"
#include "support/gpu.hpp"
#include "support/loss.hpp"

namespace kept_inputs_tests {

using namespace kda_check;

namespace {

cuda::Input input_of(const std::vector<float>& values) {
  return {numeric::DType::fp32, values.data(), values.size()};
}

float first_of(const cuda::DeviceInput& input, std::size_t elements) {
  std::vector<float> found(elements);
  input.memory.download(found.data(), sizeof(float) * elements);
  return found[0];
}

}  // namespace

TEST_CASE("inputs that stay go up once, and again when nobody says any more that they stay", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  std::vector<float> values(1000, 1.0F);
  const cuda::Input input = input_of(values);
  CHECK(cuda::on_device("values", input) != cuda::on_device("values", input));
  CHECK(cuda::bytes_of_unused_inputs() == 0);
  {
    std::optional<cuda::KeptInputs> one(std::in_place, std::vector{input});
    const cuda::KeptInputs other({input, cuda::Input{}});
    CHECK(cuda::already_on_device(input) == nullptr);
    const auto there = cuda::on_device("values", input);
    CHECK(cuda::already_on_device(input) == there);
    one.reset();
    CHECK(cuda::on_device("values", input) == there);
    CHECK(first_of(*there, values.size()) == 1.0F);
    CHECK(cuda::own_on_device("values", input) != there);
  }
  CHECK(cuda::already_on_device(input) == nullptr);
  values[0] = 2.0F;
  CHECK(first_of(*cuda::on_device("values", input), values.size()) == 2.0F);
}

TEST_CASE("inputs that stay are freed where memory is short, but for those in use", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  const std::vector<float> used(1000, 1.0F), unused(1000, 2.0F);
  const cuda::KeptInputs kept({input_of(used), input_of(unused)});
  const auto in_use = cuda::on_device("used", input_of(used));
  cuda::on_device("unused", input_of(unused));
  REQUIRE(cuda::already_on_device(input_of(unused)) != nullptr);
  CHECK(cuda::bytes_of_unused_inputs() == sizeof(float) * unused.size());
  CHECK_THROWS(cuda::DeviceMemory("too much", std::size_t{1} << 50));
  CHECK(cuda::already_on_device(input_of(unused)) == nullptr);
  CHECK(cuda::already_on_device(input_of(used)) == in_use);
  CHECK(first_of(*cuda::on_device("unused", input_of(unused)), unused.size()) == 2.0F);
}

TEST_CASE("variants have the same bits on inputs that stay, forwards and backwards", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  test::ProblemSpec spec;
  spec.T = 200, spec.H = 2, spec.HV = 4, spec.K = 64, spec.V = 40, spec.qk_l2norm = true;
  spec.gate = kda::Gate::lower_bound;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  for (const std::string_view name : test::gpu_variants) {
    const kda::RunOptions options = test::default_options(problem, name, numeric::DType::fp32);
    const kda::Variant& variant = kda::variant_named(name);
    const kda::Answer alone = variant.run(problem, options);
    const kda::GradientTensors gradients = variant.run_backward(problem, options);
    const auto kept = kda::kept_on_gpu(problem);
    for (int repeat = 0; repeat < 2; ++repeat) {
      CHECK(test::differing(variant.run(problem, options), alone) == 0);
      CHECK(test::differing(variant.run_backward(problem, options), gradients) == 0);
    }
  }
}

}  // namespace kept_inputs_tests
