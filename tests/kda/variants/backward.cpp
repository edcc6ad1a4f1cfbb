// The backward passes against truths: PyTorch's autograd in fp64 (the fixtures), and laws.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "base/error.hpp"
#include "fixture/fixture.hpp"
#include "kda/kernels/table.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "kda/variants/variants.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace backward_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

std::vector<std::string> files_with_gradients() {
  std::vector<std::string> chosen;
  for (const std::string& path : test::all_fixture_files()) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const fixture::ExpectedGroup* const truth = file.expected_named("torch_fp64");
    if (truth != nullptr && truth->tensor("dq") != nullptr) chosen.push_back(path);
  }
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

TEST_CASE("every variant backwards in fp64 has the gradients of PyTorch's autograd", "[backward]") {
  check_against_autograd("naive", 1e-12);
  check_against_autograd("recurrent", 1e-12);
  check_against_autograd("chunk", 1e-11);
}

TEST_CASE("a token form backwards in fp32 is within 64 units of the magnitude on every fixture",
          "[backward]") {
  std::map<std::string_view, double> worst;
  for (const std::string& path : files_with_gradients()) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const kda::Problem problem = file.read_problem();
    const kda::GradientTruths truths = test::gradient_truths(problem);
    for (const std::string_view variant : {"naive", "recurrent"}) {
      const kda::GradientTensors got = kda::variant_named(variant).run_backward(
          problem, test::default_options(problem, variant, DType::fp32));
      for (const kda::GradientRow& row : kda::gradients()) {
        const tensor::Tensor& tensor = got[static_cast<std::size_t>(row.gradient)];
        if (tensor.empty()) continue;
        const kda::GradientTruth& truth = truths[static_cast<std::size_t>(row.gradient)];
        CAPTURE(path, variant, row.name);
        const double units = test::max_scaled_ulp(tensor, test::values_of(truth), truth.magnitude);
        CHECK(units <= 64);
        worst[variant] = std::max(worst[variant], units);
      }
    }
  }
  for (const auto& [variant, units] : worst) CHECK(units > 0.5);  // they do round
}

TEST_CASE("a running sum gives the same gradients through the fast kernels and those for any arithmetic",
          "[backward]") {
  for (const ProblemSpec& spec : test::few_specs())
    for (const char* const contraction : {"contraction=fused", "contraction=separate"})
      for (const DType dtype : {DType::fp32, DType::fp64}) {
        const kda::Problem problem = test::with_loss(test::make_problem(spec));
        kda::RunOptions options = test::default_options(problem, "recurrent", dtype, {contraction});
        const kda::GradientTensors fast = kda::run_recurrent_backward(problem, options);
        kda::set_axis(options.arithmetic, "reduction=blocks:1024");  // one block: the same running sum
        CHECK(test::differing(fast, kda::run_recurrent_backward(problem, options)) == 0);
        kda::set_axis(options.arithmetic, "reduction=pairwise");
        CHECK(test::differing(fast, kda::run_recurrent_backward(problem, options)) > 0);
      }
}

TEST_CASE("gradients of a norm that has scale in it are those of the oracle", "[backward]") {
  for (const ProblemSpec& spec : test::few_specs()) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    const kda::GradientTruths truths = test::gradient_truths(problem);
    for (const char* const variant : {"naive", "recurrent"}) {
      kda::RunOptions options =
          test::default_options(problem, variant, DType::fp32, {"special=fast-division", "scale=norm"});
      INFO(variant);
      test::check_near(kda::variant_named(variant).run_backward(problem, options), truths, 1e-5);
    }
  }
}

TEST_CASE("naive adds up its gradients in the order that is asked for", "[backward]") {
  for (const ProblemSpec& spec : test::few_specs()) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    kda::RunOptions options = test::default_options(problem, "naive", DType::fp32);
    const auto gradients = [&](const char* const word) {
      kda::set_axis(options.arithmetic, word);
      return kda::variant_named("naive").run_backward(problem, options);
    };
    const kda::GradientTensors running = gradients("reduction=sequential");
    CHECK(test::differing(running, gradients("reduction=blocks:1024")) ==
          0);  // one block: the same running sum
    CHECK(test::differing(running, gradients("reduction=pairwise")) > 0);
    const kda::GradientTensors pairs = gradients("contraction=separate");
    CHECK(test::differing(pairs, gradients("contraction=fused")) > 0);
    const kda::GradientTensors fused = gradients("storage=none");
    for (const char* const point : {"bf16@normalised", "bf16@decay", "bf16@prediction", "bf16@carry"}) {
      if (point == std::string_view("bf16@normalised") && !spec.qk_l2norm) continue;
      CAPTURE(point);
      CHECK(test::differing(fused, gradients((std::string("storage=") + point).c_str())) > 0);
    }
  }
}

TEST_CASE("gradients do not depend on threads, and a packed sequence's are those of its own", "[backward]") {
  ProblemSpec spec;
  spec.H = 3, spec.HV = 6, spec.T = 150, spec.cu_seqlens = {0, 70, 70, 71, 150};
  const kda::Problem packed = test::with_loss(test::make_problem(spec));
  for (const std::string_view variant : {"naive", "recurrent", "chunk"}) {
    kda::RunOptions options = test::default_options(packed, variant, DType::fp32);
    const auto run = kda::variant_named(variant).run_backward;
    const kda::GradientTensors one = run(packed, options);
    options.threads = 5;
    CHECK(test::differing(one, run(packed, options)) == 0);
    // The third sequence is one token: with the others' gates changed its gradients stay.
    kda::Problem other = kda::clone(packed);
    for (std::size_t i = 0; i < other.g.size(); ++i)
      if (const std::size_t token = i / (6 * 8); token != 70) other.g.set(i, other.g.value(i) / 2);
    const kda::GradientTensors changed = run(other, kda::RunOptions{options});
    const tensor::Tensor &a = one[0], &b = changed[0];  // dq [1,T,3,8]
    for (std::size_t i = 70 * 24; i < 71 * 24; ++i) CHECK(a.value(i) == b.value(i));
    CHECK(test::differing_bits(a, b) > 0);
  }
}

TEST_CASE("threads that share a head leave the same bits, whatever they add up", "[backward]") {
  ProblemSpec plain;
  plain.T = 4200, plain.K = 40, plain.V = 70;  // two spans, tiles with lanes to spare
  ProblemSpec gated = plain;
  gated.HV = 2, gated.qk_l2norm = gated.beta_sigmoid = true, gated.gate = kda::Gate::softplus;
  ProblemSpec packed = plain;
  packed.T = 1300, packed.K = packed.V = 64, packed.cu_seqlens = {0, 1100, 1100, 1300};
  packed.gate = kda::Gate::lower_bound, packed.initial_state = false;
  for (const ProblemSpec& spec : {plain, gated, packed}) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const char* const reduction : {"reduction=sequential", "reduction=pairwise"}) {
      kda::RunOptions options = test::default_options(problem, "recurrent", DType::fp32, {reduction});
      const kda::GradientTensors alone = kda::run_recurrent_backward(problem, options);
      for (const int threads : {2, 7}) {
        options.threads = threads;
        CHECK(test::differing(alone, kda::run_recurrent_backward(problem, options)) == 0);
      }
    }
  }
}

TEST_CASE("chunk has the gradients of recurrent in every decay form, inverse and chunk size", "[backward]") {
  for (const ProblemSpec& spec : test::few_specs()) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    const kda::GradientTensors exact =
        kda::run_recurrent_backward(problem, test::default_options(problem, "recurrent", DType::fp64));
    for (const char* const form :
         {"decay=pair", "decay=pair-late", "decay=anchor-pair:16", "decay=anchor-first:16",
          "decay=anchor-mid:16", "decay=factored:16", "decay=clamp:126", "decay=anchor-pair:32",
          "inverse=blocks:16", "inverse=doubling:16", "inverse=horner:16", "tail=suffix"})
      for (const std::size_t chunk_size : {16, 64}) {
        kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64);
        options.chunk_size = chunk_size;
        kda::set_axis(options.arithmetic, form);
        const kda::GradientTensors got = kda::run_chunk_backward(problem, options);
        for (std::size_t g = 0; g < kda::gradient_count; ++g) {
          if (got[g].empty()) continue;
          CAPTURE(form, chunk_size, got[g].name());
          CHECK(test::rms_ratio(got[g], exactly(exact[g])) <= 1e-11);
        }
      }
  }
}

TEST_CASE("a backward pass that needs more memory than the limit says so, and what would need less",
          "[backward]") {
  ProblemSpec spec;
  spec.H = spec.HV = 2;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  for (const std::string_view variant : {"naive", "recurrent", "chunk"})
    for (const auto& [threads, hint] : {std::pair{2, "--threads 1"}, {1, "a larger --memory-limit"}}) {
      kda::RunOptions options = test::default_options(problem, variant, DType::fp32);
      options.memory_limit = 1000, options.threads = threads;
      try {
        kda::variant_named(variant).run_backward(problem, options);
        FAIL_CHECK("nothing was thrown");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::environment);
        CHECK_THAT(error.what(), ContainsSubstring("memory limit"));
        CHECK(error.hint() == hint);
      }
    }
}

TEST_CASE("ddt_bias adds up dg in blocks of 64 tokens, these from the last of a sequence, then sequences",
          "[backward]") {
  ProblemSpec spec;
  spec.T = 400, spec.H = 2, spec.HV = 2, spec.K = 20, spec.V = 12, spec.gate = kda::Gate::softplus;
  spec.cu_seqlens = {0, 130, 130, 131, 400};
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  for (const std::string_view variant : {"naive", "recurrent"}) {
    const kda::GradientTensors got = kda::variant_named(variant).run_backward(
        problem, test::default_options(problem, variant, DType::fp32));
    const std::span dg = got[static_cast<std::size_t>(kda::Gradient::dg)].elements<float>(),
                    bias = got[static_cast<std::size_t>(kda::Gradient::ddt_bias)].elements<float>();
    const std::size_t row = spec.HV * spec.K;
    for (std::size_t i = 0; i < row; ++i) {
      float total = 0;
      for (std::size_t n = 0; n + 1 < spec.cu_seqlens.size(); ++n) {
        const auto begin = static_cast<std::size_t>(spec.cu_seqlens[n]),
                   end = static_cast<std::size_t>(spec.cu_seqlens[n + 1]);
        float part = 0;
        for (std::size_t block = (end - begin + 63) / 64; block-- > 0;) {
          float sum = 0;
          for (std::size_t t = begin + 64 * block; t < std::min(end, begin + 64 * (block + 1)); ++t)
            sum = sum + dg[t * row + i];
          part = part + sum;
        }
        total = n == 0 ? part : total + part;
      }
      CHECK(bias[i] == total);
    }
  }
}

}  // namespace backward_tests
