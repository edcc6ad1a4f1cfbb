#include <cmath>
#include <functional>

#include "hypotheses/naming/kernels.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/sampled.hpp"
#include "tensor/rearranged.hpp"

namespace naming_tests {

namespace {

/// Problems with a loss, so that each fault of gradients applies to one of them.
std::vector<kda::Problem> problems_with_loss() {
  std::vector<kda::Problem> list;
  for (const bool is_packed : {false, true})
    for (const Gate gate : {Gate::softplus, Gate::lower_bound}) {
      test::ProblemSpec spec;
      spec.T = 120, spec.K = 12, spec.V = 10, spec.H = 2, spec.HV = 4;
      if (is_packed && gate == Gate::softplus) spec.K = spec.V = 20, spec.H = 3, spec.HV = 6;
      spec.gate = gate, spec.qk_l2norm = true;
      spec.beta_sigmoid = spec.allow_neg_eigval = gate == Gate::lower_bound;
      if (is_packed && gate == Gate::softplus) spec.cu_seqlens = {0, 20, 50, 120};
      if (is_packed && gate == Gate::lower_bound) spec.B = 3;
      kda::Problem& problem = list.emplace_back(test::make_problem(spec, 7));
      if (!spec.beta_sigmoid) problem.beta.set(3, 0);
      test::add_loss(problem, 8);
    }
  return list;
}

/// Those of a kernel, with what a fault changes.
kda::GradientTensors wrong_gradients(const kda::Problem& problem, const hypotheses::GradientReading& fault,
                                     std::size_t chunk_size) {
  const hypotheses::BackwardReference reference(problem, chunk_size);
  const kda::GradientTensors right = reference.gradients({}, DType::fp64),
                             wrong = reference.gradients(fault, DType::fp64);
  kda::RunOptions options;
  options.dtype = DType::fp32, options.chunk_size = chunk_size;
  kda::GradientTensors got = kda::run_chunk_backward(problem, options);
  for (std::size_t t = 0; t < got.size(); ++t)
    for (std::size_t i = 0; i < got[t].size(); ++i)
      got[t].set(i, got[t].value(i) + wrong[t].value(i) - right[t].value(i));
  return got;
}

/// By hundreds of their limits, so that what a rounding changes is left out.
bool is_clearly_wrong(const kda::GradientTensors& got, const kda::GradientTensors& right) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!got[i].empty() && relative_error(got[i], right[i]) > 0.05) return true;
  return false;
}

std::vector<hypotheses::FailedGradient> failed(const kda::GradientTensors& got) {
  std::vector<hypotheses::FailedGradient> output;
  for (const Tensor& one : got) {
    const bool cancels = one.name() == "dA_log" || one.name() == "ddt_bias";
    if (!one.empty()) output.push_back({std::string(one.name()), &one, cancels ? 1e-3 : 1e-4});
  }
  return output;
}

}  // namespace

TEST_CASE("a matrix of the backward pass that is another one is named", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  test::ProblemSpec spec;
  spec.T = 96, spec.H = spec.HV = 2, spec.K = spec.V = 20, spec.gate_size = 0.1;
  kda::Problem problem = test::make_problem(spec, 7);
  test::add_loss(problem, 8);
  const kda::GradientTensors right = wrong_gradients(problem, {}, chunk_size);
  test::Sampled sample(250);
  INFO(sample.text());
  for (const hypotheses::plain::MovedMatrix& moved : hypotheses::plain::moved_matrices(true, true)) {
    const bool is_tried = !moved.move->is_beside() || moved.move->hits == nullptr;
    if (!is_tried || !sample.next()) continue;
    hypotheses::GradientReading reading;
    reading.site = moved.site, reading.move = moved.move;
    const kda::GradientTensors got = wrong_gradients(problem, reading, chunk_size);
    INFO(moved.name());
    if (moved.move->name == "negated") CHECK(is_clearly_wrong(got, right));  // it is read
    if (!is_clearly_wrong(got, right)) continue;
    const hypotheses::Naming finding =
        hypotheses::name_gradient_fault(problem, failed(got), {}, chunk_size, 2);
    INFO(names(finding) << (finding.nearest ? ", nearest " + finding.nearest->fault : std::string()));
    CHECK_FALSE(finding.causes.empty());
    if (finding.causes.empty()) continue;
    CHECK(finding.causes[0].explained > 0.98);
  }
}

TEST_CASE("every fault of gradients is named beside the errors of a kernel", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  std::vector<kda::Problem> problems = problems_with_loss();
  test::Sampled sample(20);
  INFO(sample.text());
  for (const hypotheses::GradientFault& fault : hypotheses::gradient_faults()) {
    if (!sample.next()) continue;
    INFO(fault.name);
    const auto found = std::ranges::find_if(problems, fault.applies);
    REQUIRE(found != problems.end());
    kda::Problem problem = kda::clone(*found);
    if (fault.name == "sigmoid_lost") {
      for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, 14);
      for (std::size_t h = 0; h < problem.A_log->size(); ++h) problem.A_log->set(h, 0);
    }
    if (fault.name == "slope_overflows") {
      for (std::size_t i = 0; i < problem.g.size(); i += 3) problem.g.set(i, 100);
      for (std::size_t h = 0; h < problem.A_log->size(); ++h) problem.A_log->set(h, -8);
    }
    const kda::GradientTensors got = wrong_gradients(problem, fault.reading(), chunk_size);
    const std::vector<hypotheses::FailedGradient> output = failed(got);
    const hypotheses::Naming naming = hypotheses::name_gradient_fault(problem, output, {}, chunk_size, 2);
    INFO((naming.nearest ? "nearest " + naming.nearest->fault : std::string("nothing near")));
    REQUIRE_FALSE(naming.causes.empty());
    // Of strong gates a carry that is lost is as one that is not.
    CHECK(std::ranges::find(naming.causes, fault.name, &hypotheses::Cause::fault) != naming.causes.end());
    CHECK(naming.causes.front().explained > 0.98);
    CHECK(naming.causes.size() <= 3);  // tiles that end in the same rows; a mean over few channels
  }
}

TEST_CASE("a fault of few small gradients is named where these fail", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  kda::Problem problem = std::move(problems_with_loss()[1]);
  for (std::size_t i = 0; i < problem.g.size(); i += 40) problem.g.set(i, 30);  // s rounds to 1
  for (std::size_t h = 0; h < problem.A_log->size(); ++h) problem.A_log->set(h, 0);
  const auto fault =
      std::ranges::find(hypotheses::gradient_faults(), "sigmoid_lost", &hypotheses::GradientFault::name);
  const kda::GradientTensors got = wrong_gradients(problem, fault->reading(), chunk_size);
  std::vector<hypotheses::FailedGradient> output = failed(got);
  CHECK(names(hypotheses::name_gradient_fault(problem, output, {}, chunk_size, 2)).empty());
  std::ranges::find(output, "dg", &hypotheses::FailedGradient::name)->by_elements = true;
  const hypotheses::Naming naming = hypotheses::name_gradient_fault(problem, output, {}, chunk_size, 2);
  INFO((naming.nearest ? "nearest " + naming.nearest->fault : std::string("nothing near")));
  CHECK_THAT(names(naming), ContainsSubstring("sigmoid_lost"));
}

TEST_CASE("a backward pass that reads an input otherwise, or is wrong by a factor, is named",
          "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  const kda::Problem problem = std::move(problems_with_loss().front());
  const auto named = [&](const kda::GradientTensors& got) {
    return hypotheses::name_gradient_fault(problem, failed(got), {}, chunk_size, 2);
  };
  test::Sampled sample(2);
  INFO(sample.text());
  for (const char* const name :
       {"exp2", "key_not_normalised", "beta_of_other_head", "dt_bias_missing", "value_of_other_row"}) {
    if (!sample.next()) continue;
    const auto fault = std::ranges::find(hypotheses::faults(), name, &hypotheses::Fault::name);
    hypotheses::Interpretation reading(problem);
    fault->apply(reading, 1);
    hypotheses::GradientReading misread;
    misread.misread = &reading;
    const hypotheses::Naming naming = named(wrong_gradients(problem, misread, chunk_size));
    INFO(name << (naming.nearest ? ", nearest " + naming.nearest->fault : std::string()));
    CHECK_THAT(names(naming), ContainsSubstring(name));
    if (!naming.causes.empty()) CHECK_THAT(naming.causes[0].meaning, ContainsSubstring("the backward pass"));
  }
  kda::GradientTensors got = wrong_gradients(problem, {}, chunk_size);
  Tensor& dk = *std::ranges::find(got, "dk", &Tensor::name);
  for (std::size_t i = 0; i < dk.size(); ++i) dk.set(i, 0.7 * dk.value(i));
  const hypotheses::Naming naming = named(got);
  CHECK(names(naming) == "factor");
  if (!naming.causes.empty()) CHECK(naming.causes[0].meaning == "dk is 0.7 of what it should be");
}

TEST_CASE("a backward pass of inputs in another order, or with other bounds, is named",
          "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  const std::vector<kda::Problem> problems = problems_with_loss();
  const kda::Problem &packed = problems[2], &batch = problems[3];
  const auto picked = [](Tensor& tensor, std::size_t axis, std::vector<std::size_t> indices) {
    tensor = tensor::picked(tensor, axis, indices);
  };
  const struct {
    const char* name;
    const kda::Problem& problem;
    std::function<void(kda::Problem&)> change;
  } cases[] = {
      {"do_of_mirrored_head", packed,
       [&](kda::Problem& p) {
         picked(*p.output_gradient, 2, {5, 4, 3, 2, 1, 0});
       }},
      {"do_of_first_batch_row", batch,
       [&](kda::Problem& p) {
         picked(*p.output_gradient, 0, {0, 0, 0});
       }},
      {"do_of_last_batch_row", batch,
       [&](kda::Problem& p) {
         picked(*p.output_gradient, 0, {2, 0, 1});
       }},
      {"state_gradient_of_mirrored_sequence", packed,
       [&](kda::Problem& p) {
         picked(*p.state_gradient, 0, {2, 1, 0});
       }},
      {"initial_of_next_head", packed,
       [&](kda::Problem& p) {
         picked(*p.initial_state, 1, {1, 2, 3, 4, 5, 0});
       }},
      {"sequence_late", packed, [](kda::Problem& p) { ++p.cu_seqlens[1], ++p.cu_seqlens[2]; }},
      {"sequence_early", packed, [](kda::Problem& p) { --p.cu_seqlens[1], --p.cu_seqlens[2]; }},
  };
  for (const auto& [name, problem, change] : cases) {
    kda::Problem other = kda::clone(problem);
    change(other);
    kda::RunOptions options;
    options.dtype = DType::fp32, options.chunk_size = chunk_size;
    const hypotheses::Naming naming = hypotheses::name_gradient_fault(
        problem, failed(kda::run_chunk_backward(other, options)), {}, chunk_size, 2);
    CHECK_THAT(names(naming), ContainsSubstring(name));
  }
}

TEST_CASE("a rounding that does all that a missing factor does is named first", "[hypotheses][naming]") {
  kda::Problem problem = problem_of({});
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, -1e-3);
  CHECK(names(probed(problem, mutant(problem, "decay_in_bf16"))) == "decay_in_bf16 gate_missing");
}

TEST_CASE("a fault of the gradients of a large problem is named from a part of it", "[hypotheses][naming]") {
  constexpr std::size_t chunk_size = 64;
  test::Sampled sample(128);
  INFO(sample.text());
  for (const hypotheses::GradientFault& fault : hypotheses::gradient_faults()) {
    if (!sample.next()) continue;
    for (const bool is_long : {false, true}) {
      test::ProblemSpec spec;
      spec.T = is_long ? 1590 : 800, spec.H = spec.HV = is_long ? 1 : 2, spec.K = spec.V = 64;
      spec.gate = Gate::softplus, spec.qk_l2norm = true, spec.beta_sigmoid = true;
      kda::Problem problem = test::make_problem(spec, 7);
      const hypotheses::GradientReading reading = fault.reading();
      const bool is_of_sums = reading.amplitude != nullptr || reading.bias != nullptr ||
                              reading.counts_for_amplitude != nullptr || reading.counts_for_bias != nullptr ||
                              reading.amplitude_of_group || reading.bias_of_heads || reading.bias_by_channel;
      const bool begins_before =  // the part
          (is_long && reading.states_from_zero) || reading.states != hypotheses::StateOf::own;
      if (!fault.applies(problem) || reading.is_of_others() || is_of_sums || begins_before) continue;
      for (std::size_t h = 0; h < spec.H; ++h) problem.A_log->set(h, -3);  // states reach far
      test::add_loss(problem, 8);
      const kda::GradientTensors got = wrong_gradients(problem, fault.reading(), chunk_size);
      const hypotheses::Naming naming =
          hypotheses::name_gradient_fault(problem, failed(got), {0, spec.H - 1}, chunk_size, 2);
      INFO(fault.name << ' ' << is_long
                      << (naming.nearest ? "nearest " + naming.nearest->fault : " nothing near"));
      if (reading.late)  // the first token of the part has what is before it
        CHECK((naming.nearest && naming.nearest->fault == fault.name));
      else
        CHECK(std::ranges::find(naming.causes, fault.name, &hypotheses::Cause::fault) != naming.causes.end());
    }
  }
}

}  // namespace naming_tests
