// The search finds computations that nobody told it of, also behind a fault, and names nothing in noise.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "hypotheses/between.hpp"
#include "hypotheses/cuts.hpp"
#include "hypotheses/drawn.hpp"
#include "hypotheses/explained.hpp"
#include "hypotheses/identify.hpp"
#include "kda/arithmetic/presets.hpp"
#include "numeric/rounding.hpp"
#include "support/catch.hpp"
#include "support/sampled.hpp"

namespace identify_tests {

using namespace kda_check;
using hypotheses::Hypothesis;
using hypotheses::Identification;
using hypotheses::Identity;

namespace {

struct Drawn {
  kda::Problem problem;
  Hypothesis hypothesis;
  kda::Tensors output;
  double error = 0;  ///< of o, over the truth
};

/// Of bf16 problems; error at least twice what storing o costs, as else nothing is there to be identified.
Drawn drawn(std::uint64_t seed, const std::string& shape = "T=96,H=2,K=64,V=64") {
  test::Draw draw(seed);
  for (;;) {
    const std::string regime =
        fmt::format("{}:{},dtype=bf16,seed={}", draw.uniform() < 0.5 ? "control" : "lb_real", shape,
                    seed * 100 + draw.below(100));
    Drawn one{kda::parse_regime(regime).build(), {}, {}, 0};
    const hypotheses::HeldOracle truth =
        hypotheses::hold_oracle(one.problem, {kda::OraclePrecision::double_double}, 1);
    for (int tries = 0; tries < 50; ++tries) {
      one.hypothesis = test::drawn_chunk_form(draw, one.problem);
      one.output =
          kda::run_pass(kda::Pass::forward, *one.hypothesis.variant, one.problem, one.hypothesis.options);
      const hypotheses::ExactValues& exact = truth.at("o");
      const double error =
          hypotheses::rms(hypotheses::difference(one.output.at("o"), exact)) / hypotheses::rms(exact);
      double rounding = 0, size = 0;
      for (std::size_t i = 0; i < exact.hi.size(); ++i) {
        const double stored = numeric::widen_to_float(numeric::round_to<numeric::Bfloat16>(exact.hi[i]));
        rounding += (stored - exact.hi[i]) * (stored - exact.hi[i]), size += exact.hi[i] * exact.hi[i];
      }
      one.error = error;
      if (std::isfinite(error) && error < 0.03 && error >= 2 * std::sqrt(rounding / size)) return one;
    }
  }
}

std::string text_of(const Drawn& one, const Identification& found) {
  return fmt::format("explained {:.4f} error {:.4f} tried {} | drawn {} {} | found {} {} {}", found.explained,
                     one.error, found.tried, one.hypothesis.options.chunk_size, one.hypothesis.word,
                     found.hypothesis.options.chunk_size, found.hypothesis.preset, found.hypothesis.word);
}

Identification identified(const kda::Problem& problem, const kda::Tensors& output, int threads = 2) {
  const hypotheses::RecordedOutput recorded(problem, kda::Pass::forward, output, problem.dtype());
  return hypotheses::identify(recorded, problem.dtype(), {.threads = threads});
}

/// By somebody who wants figures, of problems as large as docs/explain.md says.
bool is_counted() { return std::getenv("KDA_CHECK_DRAWS") != nullptr; }

/// Only where somebody counts: KDA_CHECK_DRAWS=500 draws so many, from number KDA_CHECK_FIRST_DRAW on, and
/// prints each.
template <class... Arguments>
void tell(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (is_counted()) fmt::print("{}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
}

std::size_t number_in(const char* variable, std::size_t usual) {
  const char* const wanted = std::getenv(variable);
  return wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : usual;
}
std::size_t draws(std::size_t usual) { return number_in("KDA_CHECK_DRAWS", usual); }
std::size_t first_draw() { return number_in("KDA_CHECK_FIRST_DRAW", 0); }

}  // namespace

TEST_CASE("a computation that no preset has is found from its output alone", "[identify]") {
  const std::size_t count = draws(2);
  std::size_t found = 0;
  for (std::size_t i = first_draw(); i < first_draw() + count; ++i) {
    const Drawn one = drawn(1000 + i);
    const Identification identification = identified(one.problem, one.output);
    found += identification.explained >= 0.99;
    tell("{} {}", i, text_of(one, identification));
  }
  tell("{} of {}", found, count);
  CHECK(static_cast<double>(found) >= 0.95 * static_cast<double>(count) - 0.5);
}

TEST_CASE("a fault on top does not hide it", "[identify][faults]") {
  const std::size_t count = draws(1);
  std::size_t found = 0;
  for (std::size_t i = first_draw(); i < first_draw() + count; ++i) {
    const Drawn one = drawn(2000 + i);
    kda::Tensors output = kda::clone(one.output);
    test::Draw draw(3000 + i);
    const test::DrawnFault fault = test::add_fault(draw, output);
    const Identification identification = identified(one.problem, output);
    const kda::Tensors predicted = kda::run_pass(kda::Pass::forward, *identification.hypothesis.variant,
                                                 one.problem, identification.hypothesis.options);
    const hypotheses::HeldOracle truth =
        hypotheses::hold_oracle(one.problem, {kda::OraclePrecision::double_double}, 1);
    const double left = hypotheses::rms(hypotheses::difference(one.output.at("o"), predicted.at("o"))) /
                        hypotheses::rms(hypotheses::difference(one.output.at("o"), truth.at("o")));
    found += left <= 0.1;
    tell("{} {}: left {:.3f} {}", i, fault.name, left, text_of(one, identification));
  }
  tell("{} of {}", found, count);
  CHECK(static_cast<double>(found) >= 0.9 * static_cast<double>(count) - 0.5);
}

TEST_CASE("gradients of a computation that no preset has are explained by it", "[identify][gradients]") {
  const std::size_t count = draws(1);
  std::size_t found = 0;
  for (std::size_t i = first_draw(); i < first_draw() + count; ++i) {
    test::Draw draw(4000 + i);
    const std::string regime =
        fmt::format("{}:T={},dtype=bf16,loss=1,seed={}", draw.uniform() < 0.5 ? "control" : "lb_real",
                    is_counted() ? "96,H=2,K=64,V=64" : "64,H=1,K=32,V=32", 4000 + i);
    const kda::Problem problem = kda::parse_regime(regime).build();
    Hypothesis hypothesis;
    kda::Tensors output;
    do {  // some overflow
      hypothesis = test::drawn_chunk_form(draw, problem, kda::Pass::backward);
      output = kda::run_pass(kda::Pass::backward, *hypothesis.variant, problem, hypothesis.options);
      std::erase_if(output, [](const auto& one) { return !kda::has_tokens(one.first); });
    } while (!std::ranges::all_of(output, [](const auto& one) {
      return std::isfinite(hypotheses::rms(hypotheses::values(one.second)));
    }));
    Hypothesis forwards = hypothesis;
    forwards.pass = kda::Pass::forward;
    const Identification of_o =
        identified(problem, kda::run_pass(forwards.pass, *forwards.variant, problem, forwards.options));
    const hypotheses::RecordedOutput recorded(problem, kda::Pass::backward, output, problem.dtype());
    const Identification identification = hypotheses::identify(
        recorded, problem.dtype(),
        {.threads = 2, .forward = of_o.end == Identity::identified ? &of_o.hypothesis : nullptr});
    found += identification.explained >= 0.99;
    tell("{} explained {:.4f} error {:.4f} tried {} | drawn {} {} | found {}", i, identification.explained,
         identification.relative_error, identification.tried, hypothesis.options.chunk_size, hypothesis.word,
         hypotheses::text_of(identification.hypothesis, problem));
  }
  tell("{} of {}", found, count);
  CHECK(static_cast<double>(found) >= 0.9 * static_cast<double>(count) - 0.5);
}

TEST_CASE("a kernel whose preset nobody knows is found setting by setting", "[identify][presets]") {
  const std::size_t count = draws(1);
  std::size_t found = 0, tried = 0;
  std::vector<const kda::Preset*> kernels;
  for (const kda::Preset& preset : kda::presets())
    if (!preset.variant.empty()) kernels.push_back(&preset);
  for (std::size_t i = first_draw(); i < first_draw() + count; ++i) {
    const kda::Preset& preset = *kernels[i % kernels.size()];
    const std::string regime =
        fmt::format("{}:T=128,H=2,K=64,V=64,dtype=bf16,seed={}",
                    std::array{"control", "lb_real", "slow_alpha"}[i / kernels.size() % 3], 5000 + i);
    const kda::Problem problem = kda::parse_regime(regime).build();
    Hypothesis hypothesis;
    hypothesis.variant = &kda::variant_named(preset.variant);
    hypothesis.options.dtype = problem.dtype();
    if (preset.chunk_size != 0) hypothesis.options.chunk_size = preset.chunk_size;
    hypothesis.options.arithmetic = hypothesis.variant->default_arithmetic(problem, problem.dtype());
    kda::set_axis(hypothesis.options.arithmetic, preset.name);
    if (!hypotheses::is_possible(hypothesis, problem)) continue;
    const kda::Tensors output =
        kda::run_pass(kda::Pass::forward, *hypothesis.variant, problem, hypothesis.options);
    const hypotheses::RecordedOutput recorded(problem, kda::Pass::forward, output, problem.dtype());
    const Identification identification = hypotheses::identify(
        recorded, problem.dtype(), {.threads = 2, .without_presets = {std::string(preset.name)}});
    ++tried;
    found += identification.explained >= 0.9;
    tell("{} {} {}: explained {:.4f} tried {} | found {}", i, preset.name, regime, identification.explained,
         identification.tried, hypotheses::text_of(identification.hypothesis, problem));
  }
  tell("{} of {}", found, tried);
  CHECK(static_cast<double>(found) >= 0.8 * static_cast<double>(tried) - 0.5);
}

TEST_CASE("where no computation may be a start nothing is identified", "[identify][starts]") {
  const Drawn one = drawn(1003, "T=32,H=1,K=32,V=32");
  const hypotheses::RecordedOutput recorded(one.problem, kda::Pass::forward, one.output, one.problem.dtype());
  std::vector<std::string> all{""};
  for (const kda::Preset& preset : kda::presets()) all.emplace_back(preset.name);
  const Identification found =
      hypotheses::identify(recorded, one.problem.dtype(), {.threads = 1, .without_presets = all});
  CHECK(found.end == Identity::stranger);
  CHECK(found.hypothesis.variant == nullptr);
}

TEST_CASE("noise is never identified", "[identify][noise]") {
  const std::size_t count = draws(2);
  std::size_t identified_ones = 0;
  for (std::size_t i = first_draw(); i < first_draw() + count; ++i) {
    test::Draw draw(7000 + i);
    // 64 to 100,000 elements; the first ones, which are usual, few and some thousand.
    const std::size_t width = draw.one_of(std::array<std::size_t, 3>{16, 32, 64}), H = 1 + draw.below(2),
                      wanted = i == 0 ? 64
                               : i == 1
                                   ? 3000
                                   : static_cast<std::size_t>(64 * std::exp(draw.uniform() * std::log(1562)));
    const std::string regime = fmt::format("control:T={},H={},K={},V={},dtype={},seed={}",
                                           std::max<std::size_t>(1, wanted / (H * width)), H, width, width,
                                           draw.uniform() < 0.7 ? "bf16" : "fp32", i + 1);
    const kda::Problem problem = kda::parse_regime(regime).build();
    const hypotheses::HeldOracle truth =
        hypotheses::hold_oracle(problem, {kda::OraclePrecision::double_double}, 1);
    const double size = std::exp(std::log(1e-3) + draw.uniform() * std::log(30));
    kda::Tensors output;
    for (const auto& [name, exact] : truth) {
      tensor::Tensor noisy(name, kda::dtype_of(name, problem, problem.dtype()),
                           kda::expected_shape(*kda::find_spec(name), problem.dimensions(), false));
      const numeric::Random random(i + 1, name == "o" ? 1 : 2);
      const double scale = hypotheses::rms(exact) * size;
      for (std::size_t e = 0; e < noisy.size(); ++e) noisy.set(e, exact.hi[e] + scale * random.normal(e));
      output.emplace(name, std::move(noisy));
    }
    const Identification identification = identified(problem, output);
    const bool is_wrong = identification.end == Identity::identified;
    identified_ones += is_wrong;
    tell("{} noise of {:.4f}, {}: n = {} explained {:.4f} tried {}{}", i, size, regime, identification.errors,
         identification.explained, identification.tried, is_wrong ? " IDENTIFIED" : "");
  }
  CHECK(identified_ones == 0);
}

TEST_CASE("a search ends in the same words on any number of threads", "[identify][threads]") {
  const Drawn one = drawn(1003);
  const Identification alone = identified(one.problem, one.output, 1);
  for (const int threads : {5}) {
    const Identification together = identified(one.problem, one.output, threads);
    CHECK(hypotheses::arithmetic_words(together.hypothesis, one.problem) ==
          hypotheses::arithmetic_words(alone.hypothesis, one.problem));
    CHECK(together.explained == alone.explained);
    CHECK(together.tried == alone.tried);
    CHECK(together.cannot_be_told_apart == alone.cannot_be_told_apart);
  }
}

/// The same with a setting made ideal, as advice names it; none where it has no such setting.
std::optional<Hypothesis> made_ideal(const Hypothesis& hypothesis, const std::string& setting,
                                     const kda::Problem& problem) {
  if (setting.starts_with("outputs in"))
    return hypotheses::with_outputs_in(hypothesis, numeric::DType::fp32, problem);
  Hypothesis ideal = hypothesis;
  ideal.options.arithmetic = kda::ideal_arithmetic();
  const std::vector<hypotheses::Setting> there = hypotheses::differing_settings(hypothesis, ideal, problem),
                                         instead = hypotheses::differing_settings(ideal, hypothesis, problem);
  for (std::size_t i = 0; i < there.size(); ++i)
    if (there[i].word == setting) return hypotheses::with_setting(hypothesis, instead[i], problem);
  return std::nullopt;
}

/// Of operands several points may say the same: whether a setting is of one, and both have others there.
bool is_another_word(const std::string& setting, const Hypothesis& a, const Hypothesis& b,
                     const kda::Problem& problem) {
  const auto casts = [&](const Hypothesis& one) {
    return kda::cast_points(one.options.arithmetic, one.options.dtype, problem.beta_is_16_bit(), true);
  };
  const kda::CastPoints of_a = casts(a), of_b = casts(b);
  bool is_of_operand = false, agree = true;
  for (const kda::CastPointRow& row : kda::cast_point_rows()) {
    if (!row.is_operand && row.point != &kda::CastPoints::tensor_core) continue;
    is_of_operand = is_of_operand || setting.ends_with("@" + std::string(row.name));
    agree = agree && of_a.*row.point == of_b.*row.point;
  }
  return is_of_operand && !agree;
}

TEST_CASE("what a rounding is said to cost is what goes away without it, and so of several",
          "[identify][shares]") {
  // Told of the computation that was found, on a cut; measured on the one that was drawn, on the whole.
  if (!is_counted() && !test::Sampled(3).has(0)) KDA_CHECK_SKIP("takes half a minute: one run in three does");
  const std::size_t wanted = draws(1);
  std::size_t casts = 0, compared = 0, right = 0;
  for (std::uint64_t seed = 2; casts < wanted && seed < 200; ++seed) {
    const Drawn one = drawn(6000 + seed, "T=192,H=2,K=32,V=32");
    const hypotheses::RecordedOutput recorded(one.problem, kda::Pass::forward, one.output,
                                              one.problem.dtype());
    const Identification found = hypotheses::identify(recorded, one.problem.dtype(), {.threads = 2});
    if (found.end != Identity::identified) continue;
    const auto translated = [&](const Hypothesis& from, const std::string& setting) {
      return is_another_word(setting, found.hypothesis, one.hypothesis, one.problem)
                 ? std::nullopt
                 : made_ideal(from, setting, one.problem);
    };
    const hypotheses::HeldOracle truth =
        hypotheses::hold_oracle(one.problem, {kda::OraclePrecision::double_double}, 2);
    const hypotheses::ExactValues& exact = truth.at("o");
    const auto gain_of = [&](const Hypothesis& finer) {
      const kda::Tensors output =
          kda::run_pass(kda::Pass::forward, *finer.variant, one.problem, finer.options);
      return hypotheses::rms(hypotheses::difference(one.output.at("o"), exact)) /
             hypotheses::rms(hypotheses::difference(output.at("o"), exact));
    };
    const auto compare = [&](const std::string& what, double told, const Hypothesis& finer) {
      const double measured = gain_of(finer);
      tell("{} {}: told {:.3f}, measured {:.3f}", seed, what, told, measured);
      INFO(seed << " " << what << " told " << told << " measured " << measured << " drawn "
                << one.hypothesis.word);
      const bool is_right =
          std::abs(told / measured - 1) <= 0.1 || (told > 10 && measured > 10);  // and advice ends
      ++compared, right += is_right;
      CHECK(is_right);
    };
    for (const hypotheses::Share& share : found.shares)
      if (const auto finer = translated(one.hypothesis, share.setting);
          finer && share.share > 0.02 && share.setting.find('@') != std::string::npos)
        compare(share.setting, share.better, *finer), ++casts;
    std::optional<Hypothesis> finer = one.hypothesis;
    for (const hypotheses::Advice& step :
         hypotheses::advice_of(found.hypothesis, hypotheses::cuts_of(recorded, nullptr, 2).first, 2)) {
      finer = translated(*finer, step.setting);
      if (!finer) break;
      compare("and " + step.setting, step.together, *finer);
    }
  }
  tell("{} of {}, {} casts", right, compared, casts);
  CHECK(casts >= wanted);
}

TEST_CASE("the settings that two computations differ in make all of their difference",
          "[identify][between]") {
  const Drawn one = drawn(7000);
  Hypothesis other = hypotheses::exact_like(one.hypothesis, one.problem.dtype());
  other.options.arithmetic =
      kda::variant_named("recurrent").default_arithmetic(one.problem, one.problem.dtype());
  other.variant = &kda::variant_named("recurrent");
  const kda::Tensors theirs = kda::run_pass(kda::Pass::forward, *other.variant, one.problem, other.options);
  const hypotheses::RecordedOutput a(one.problem, kda::Pass::forward, one.output, one.problem.dtype()),
      b(one.problem, kda::Pass::forward, theirs, one.problem.dtype());
  const hypotheses::Between found = hypotheses::between({&a, &one.hypothesis}, {&b, &other}, 2);
  CHECK((found.left_of_a == 0 && found.left_of_b == 0));
  REQUIRE(!found.steps.empty());
  CHECK(found.steps.front().setting == "variant chunk");
  double sum = 0;
  for (const hypotheses::Step& step : found.steps) {
    sum += step.share;
    double mean = 0;
    for (const auto& [name, share] : step.of_tensors) mean += share / 2;  // o and final_state
    CHECK(mean == Approx(step.share).margin(1e-12));
    // Each is a setting of the one, and was another of the other.
    CHECK(step.setting != step.instead);
  }
  CHECK(sum == Approx(1).epsilon(1e-9));
  const hypotheses::Between none = hypotheses::between({&a, &one.hypothesis}, {&a, &one.hypothesis}, 2);
  CHECK((none.differing == 0 && none.steps.empty()));
}

}  // namespace identify_tests
