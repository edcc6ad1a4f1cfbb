// What must hold of every answer, and that each law catches what breaks it and nothing else.
#include "explain/invariants/invariants.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/sanitized.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_fixture.hpp"

namespace laws_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;
using test::TemporaryFixture;

namespace {

test::ProblemSpec grouped_heads() {
  test::ProblemSpec spec;
  spec.T = 70, spec.H = 2, spec.HV = 4, spec.K = 20, spec.V = 12, spec.chunk_size = 16;
  spec.qk_l2norm = true, spec.gate = kda::Gate::softplus, spec.beta_sigmoid = true;
  return spec;
}

report::Document battery(const kda::Problem& problem, std::span<const kda::Variant> registry,
                         plan::Names dtypes = {"fixture"}) {
  const TemporaryFixture file(problem);
  plan::Request request = test::request_for({file.path});
  request.selection.dtypes = std::move(dtypes);
  request.registry = registry;
  request.invariants.emplace();
  return test::ran(request);
}

/// Those that are tried when none is named.
std::size_t usual_laws() {
  return static_cast<std::size_t>(std::ranges::count_if(
      explain::invariants(), [](const auto& law) { return !law.by_name && !law.of_checkpoints; }));
}

std::set<std::string> failing(const report::Document& document, std::string_view pass = "forward") {
  std::set<std::string> names;
  for (const report::CaseResult& item : document.cases) {
    if (item.verdict == Verdict::pass || item.verdict == Verdict::skipped) continue;
    INFO(item.pass << ' ' << item.against << ": " << item.reason);
    CHECK(item.pass == pass);
    names.insert(item.against);
  }
  return names;
}

void flip(tensor::Tensor& tensor, std::size_t element) { tensor.at(element)[0] ^= std::byte{1}; }

/// The laws that a variant breaks whose answers are changed like this.
std::set<std::string> broken_by(void (*spoil)(const kda::Problem&, kda::Answer&),
                                const test::ProblemSpec& spec = grouped_heads()) {
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run = [spoil](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::Answer answer = kda::run_recurrent(problem, options);
    spoil(problem, answer);
    return answer;
  };
  return failing(battery(test::make_problem(spec), {&variant, 1}));
}

/// ... whose gradients are, behind healthy answers.
std::set<std::string> broken_backwards(void (*spoil)(const kda::Problem&, kda::GradientTensors&),
                                       const test::ProblemSpec& spec = grouped_heads(),
                                       const char* row = "recurrent") {
  kda::Variant variant = kda::variant_named(row);
  variant.run_backward = [spoil, healthy = variant.run_backward](const kda::Problem& problem,
                                                                 const kda::RunOptions& options) {
    kda::GradientTensors gradients = healthy(problem, options);
    spoil(problem, gradients);
    return gradients;
  };
  return failing(battery(test::with_loss(test::make_problem(spec)), {&variant, 1}), "backward");
}

tensor::Tensor& of(kda::GradientTensors& gradients, kda::Gradient gradient) {
  return gradients[static_cast<std::size_t>(gradient)];
}

std::set<std::string> only(const char* law) { return {std::string("invariant:") + law}; }

}  // namespace

TEST_CASE("the variants obey every law in every dtype, on rows and packed, whatever the options",
          "[invariants]") {
  test::ProblemSpec rows = grouped_heads(), packed = grouped_heads(), narrow, v_first = grouped_heads();
  rows.B = 2;
  packed.cu_seqlens = {0, 1, 34, 34, 70};
  narrow.T = 1;
  v_first.state_v_first = true, v_first.gate = kda::Gate::lower_bound, v_first.safe_gate = true;
  v_first.initial_state = false;
  const std::vector<kda::Variant> variants = test::cpu_variants();
  test::Sampled sample(2);
  INFO(sample.text());
  for (const test::ProblemSpec& spec : {rows, packed, narrow, v_first}) {
    if (!sample.next()) continue;
    const report::Document document =
        battery(test::with_loss(test::make_problem(spec)), variants, {"fp64", "fp32", "bf16", "fp16"});
    std::size_t tried = 0;
    for (const report::CaseResult& item : document.cases) {
      if (!item.against.starts_with("invariant:")) continue;
      INFO(item.variant << ' ' << item.dtype << ' ' << item.pass << ' ' << item.against << ": "
                        << item.reason);
      const bool may_skip = spec.T == 1 || item.reason == "a state in a pool has no gradient";
      CHECK((item.verdict == Verdict::pass || (item.verdict == Verdict::skipped && may_skip)));
      ++tried;
    }
    CHECK(tried == variants.size() * 4 * 2 * usual_laws());
  }
}

TEST_CASE("an answer that is not the same twice breaks repeat", "[invariants]") {
  static int calls;
  calls = 0;
  CHECK(broken_by([](const kda::Problem&, kda::Answer& answer) {
          if (++calls == 2) flip(answer.o, 3);
        }) == only("repeat"));
}

TEST_CASE("anchors in later rows break causality, and rounding explains them where they are declared",
          "[invariants]") {
  kda::Variant variant = kda::variant_named("chunk");
  variant.run = [](const kda::Problem& problem, kda::RunOptions ahead) {
    ahead.arithmetic.decay = kda::DecayForm::anchor_mid;
    return kda::run_chunk(problem, ahead);
  };
  CHECK(failing(battery(test::make_problem(grouped_heads()), {&variant, 1})) == only("causality"));
}

TEST_CASE("a state rounded when it is handed over breaks split, and all that serves in several calls",
          "[invariants]") {
  CHECK(broken_by([](const kda::Problem&, kda::Answer& answer) {
          answer.final_state = answer.final_state.converted_to(DType::fp16).converted_to(DType::fp32);
        }) == std::set<std::string>{"oracle", "invariant:split", "invariant:decode", "invariant:prefill",
                                    "invariant:drafts", "invariant:prefix", "invariant:server"});
}

TEST_CASE("a place in the batch that counts breaks batch, and drafts, which have several states",
          "[invariants]") {
  CHECK(broken_by([](const kda::Problem& problem, kda::Answer& answer) {
          if (problem.dimensions().N > 1)
            answer.final_state.at(answer.final_state.size() / problem.dimensions().N)[2] ^= std::byte{1};
        }) == std::set<std::string>{"invariant:batch", "invariant:drafts", "invariant:server"});
}

TEST_CASE("laws that take a state for all that is left are not tried where more is left", "[invariants]") {
  std::set<std::string> wanted{"split", "decode", "prefill", "drafts", "prefix", "server"};
  for (const char* const word : {"stored=bf16+feedback", "stored=bf16+stochastic:1"}) {
    const TemporaryFixture file(test::make_problem(grouped_heads()));
    plan::Request request = test::request_for({file.path}, plan::Names{"recurrent"});
    request.selection.against = plan::Names{};
    request.arithmetic = {word}, request.invariants.emplace();
    const report::Document document = test::ran(request);
    CHECK(failing(document).empty());
    std::set<std::string> skipped;
    for (const report::CaseResult& item : document.cases)
      if (item.verdict == Verdict::skipped) skipped.insert(item.against.substr(item.against.find(':') + 1));
    CHECK(skipped == wanted);
    wanted.insert("heads");  // by lot every head draws numbers of its own
  }
}

TEST_CASE("a head that is not like the others breaks heads", "[invariants]") {
  CHECK(broken_by([](const kda::Problem& problem, kda::Answer& answer) {
          const kda::Dimensions& d = problem.dimensions();
          for (std::size_t row = 0; row < d.B * d.T; ++row) flip(answer.o, row * d.HV * d.V);
        }) == only("heads"));
}

TEST_CASE("a mask that multiplies by zero breaks neighbour", "[invariants]") {
  CHECK(broken_by([](const kda::Problem& problem, kda::Answer& answer) {
          const double masked = 0 * problem.v.value(problem.v.size() - 1);
          for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) + masked);
        }) == only("neighbour"));
}

#if defined(__GLIBC__)
TEST_CASE("memory read before it is written breaks poison", "[invariants]") {
  if (is_sanitized) KDA_CHECK_SKIP("a sanitizer has a heap of its own");
  CHECK(broken_by([](const kda::Problem&, kda::Answer& answer) {
          // So large that it is fresh from the system: zeros, unless somebody fills it.
          constexpr std::size_t count = std::size_t{40} << 20;
          const tensor::AlignedBytes scratch(count);
          const volatile std::byte* const memory = scratch.data();
          if (memory[count / 2] != std::byte{0}) flip(answer.o, 5);
        }) == only("poison"));
}
#endif

TEST_CASE("work in place breaks inputs", "[invariants]") {
  test::ProblemSpec spec = grouped_heads();
  spec.initial_state = false, spec.gate = kda::Gate::none;
  CHECK(broken_by(
            [](const kda::Problem& problem, kda::Answer&) {
              // The first gate decays a state of zeros: no answer shows it.
              auto& g = const_cast<tensor::Tensor&>(problem.g);  // NOLINT
              if (!problem.initial_state) g.set(0, g.value(0) / 2);
            },
            spec) == only("inputs"));
}

TEST_CASE("gradients that are not the same twice break repeat", "[invariants][gradients]") {
  static int calls;
  calls = 0;
  CHECK(broken_backwards([](const kda::Problem&, kda::GradientTensors& gradients) {
          if (++calls == 2) flip(of(gradients, kda::Gradient::dA_log), 1);
        }) == only("repeat"));
}

TEST_CASE("gradients through anchors in later rows break causality", "[invariants][gradients]") {
  // Rows before the middle of a block of 16 hang on its gate; a cut between blocks changes nothing.
  CHECK(broken_backwards(
            [](const kda::Problem& problem, kda::GradientTensors& gradients) {
              const kda::Dimensions& d = problem.dimensions();
              for (const kda::Sequence& s : problem.sequences())
                for (std::size_t i = 0; i < s.length() * d.HV; ++i) {
                  const std::size_t t = i / d.HV, middle = std::min(t / 16 * 16 + 8, s.length() - 1);
                  const auto row = [&](std::size_t token) {
                    return (s.batch * d.T + s.begin + token) * d.HV + i % d.HV;
                  };
                  if (t < middle && (problem.g.at(row(middle) * d.K)[0] & std::byte{1}) != std::byte{0})
                    flip(of(gradients, kda::Gradient::dv), row(t) * d.V);
                }
            },
            grouped_heads(), "chunk") == only("causality"));
}

TEST_CASE("gradients obey every law in every order of sums, whatever kernel is emulated",
          "[invariants][gradients]") {
  const kda::Problem problem = test::with_loss(test::make_problem(grouped_heads()));
  const TemporaryFixture file(problem);
  for (const char* const word : {"reduction=pairwise", "reduction=tree:7", "reduction=blocks:16",
                                 "reduction=exact", "decay=anchor-mid:16", "h100", "fla"}) {
    plan::Request request = test::request_for({file.path}, plan::Names{"recurrent", "chunk"});
    request.selection.against.emplace(), request.selection.pass = kda::Pass::backward;
    request.arithmetic = {word}, request.invariants.emplace();
    const report::Document document = test::ran(request);
    INFO(word);
    CHECK(document.cases.size() == 2 * usual_laws());
    CHECK(failing(document, "backward").empty());
  }
}

TEST_CASE("a gradient of a token that is not in the loss breaks causality", "[invariants][gradients]") {
  // The terms of a mask that lets through the row above the diagonal, where there is no loss behind.
  CHECK(broken_backwards([](const kda::Problem& problem, kda::GradientTensors& gradients) {
          tensor::Tensor& dv = of(gradients, kda::Gradient::dv);
          const kda::Dimensions& d = problem.dimensions();
          const std::size_t row = d.HV * d.V;
          for (const kda::Sequence& s : problem.sequences())
            for (std::size_t t = s.begin + 1; t < s.end; ++t) {
              const std::size_t at = (s.batch * d.T + t) * row;
              if (dv.value(at) == 0) dv.set(at, problem.output_gradient->value(at - row));
            }
        }) == only("causality"));
}

TEST_CASE("a state gradient rounded when it is handed over breaks split", "[invariants][gradients]") {
  CHECK(broken_backwards([](const kda::Problem&, kda::GradientTensors& gradients) {
          tensor::Tensor& state = of(gradients, kda::Gradient::dinitial_state);
          state = state.converted_to(DType::fp16).converted_to(DType::fp32);
        }) == std::set<std::string>{"oracle", "invariant:split"});
}

TEST_CASE("a dht that is dropped breaks split", "[invariants][gradients]") {
  test::ProblemSpec spec = grouped_heads();
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run_backward = [](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::Problem without = kda::clone(problem);
    without.state_gradient.reset();
    return kda::run_recurrent_backward(without, options);
  };
  kda::Problem problem = test::with_loss(test::make_problem(spec));
  problem.state_gradient.reset();
  problem.validate();
  CHECK(failing(battery(problem, {&variant, 1}), "backward") == only("split"));
}

TEST_CASE("a place in the batch that counts breaks batch backwards", "[invariants][gradients]") {
  CHECK(broken_backwards([](const kda::Problem& problem, kda::GradientTensors& gradients) {
          tensor::Tensor& state = of(gradients, kda::Gradient::dinitial_state);
          if (problem.dimensions().N > 1) flip(state, state.size() / problem.dimensions().N);
        }) == only("batch"));
}

TEST_CASE("gradients of a head that is not like the others break heads", "[invariants][gradients]") {
  CHECK(broken_backwards([](const kda::Problem& problem, kda::GradientTensors& gradients) {
          flip(of(gradients, kda::Gradient::ddt_bias), problem.dimensions().K);
        }) == only("heads"));
}

TEST_CASE("a mask of gradients that multiplies by zero breaks neighbour", "[invariants][gradients]") {
  CHECK(broken_backwards([](const kda::Problem& problem, kda::GradientTensors& gradients) {
          const double masked = 0 * problem.output_gradient->value(problem.output_gradient->size() - 1);
          tensor::Tensor& dk = of(gradients, kda::Gradient::dk);
          for (std::size_t i = 0; i < dk.size(); ++i) dk.set(i, dk.value(i) + masked);
        }) == only("neighbour"));
}

#if defined(__GLIBC__)
TEST_CASE("a gradient that is not written where it is zero breaks poison", "[invariants][gradients]") {
  if (is_sanitized) KDA_CHECK_SKIP("a sanitizer has a heap of its own");
  CHECK(broken_backwards([](const kda::Problem&, kda::GradientTensors& gradients) {
          constexpr std::size_t count = std::size_t{40} << 20;  // fresh from the system: zeros
          const tensor::AlignedBytes scratch(count);
          const volatile std::byte* const memory = scratch.data();
          if (memory[count / 2] != std::byte{0}) flip(of(gradients, kda::Gradient::dbeta), 5);
        }) == only("poison"));
}
#endif

TEST_CASE("gradients made in place break inputs", "[invariants][gradients]") {
  test::ProblemSpec spec = grouped_heads();
  spec.initial_state = false, spec.gate = kda::Gate::none;
  CHECK(broken_backwards(
            [](const kda::Problem& problem, kda::GradientTensors&) {
              // The first gate decays a state of zeros: no answer shows it.
              auto& g = const_cast<tensor::Tensor&>(problem.g);  // NOLINT
              if (!problem.initial_state) g.set(0, g.value(0) / 2);
            },
            spec) == only("inputs"));
}

TEST_CASE("of many value heads the sums over them are left out of heads, and all else is held to it",
          "[invariants][gradients]") {
  test::ProblemSpec spec = grouped_heads();
  spec.HV = 6;
  for (const char* const name : {"naive", "recurrent", "chunk"}) {
    const kda::Variant variant = kda::variant_named(name);
    const report::Document document =
        battery(test::with_loss(test::make_problem(spec)), {&variant, 1}, {"fp32"});
    CHECK(failing(document).empty());
    for (const report::CaseResult& item : document.cases)
      if (item.against == "invariant:heads" && item.pass == "backward") CHECK(item.tensors.size() == 6);
  }
}

TEST_CASE("a law names what was tried and the worst place", "[invariants]") {
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run = [](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::Answer answer = kda::run_recurrent(problem, options);
    if (problem.dimensions().T == 16) answer.final_state.set(0, answer.final_state.value(0) + 1);
    return answer;
  };
  const report::Document document = battery(test::make_problem(grouped_heads()), {&variant, 1});
  CHECK(report::exit_code(document) == 1);
  for (const report::CaseResult& item : document.cases) {
    if (item.against != "invariant:split") continue;
    CHECK(item.verdict == Verdict::fail);
    CHECK(item.reason.starts_with("cut at 16: "));
    CHECK_THAT(item.trials, ContainsSubstring("cut at 1, cut at 15, cut at 16"));
    REQUIRE(item.tensors.size() == 2);
    CHECK(item.tensors[0].worst);
  }
}

}  // namespace laws_tests
