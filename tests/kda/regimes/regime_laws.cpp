// What must hold on the regimes, and what must not (docs/scenarios.md).
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "kda/pool/pool.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace regime_laws_tests {

using namespace kda_check;
using numeric::DType;

namespace {

constexpr DType every_dtype[] = {DType::fp64, DType::fp32, DType::bf16, DType::fp16};

kda::Problem built(std::string_view text) { return kda::parse_regime(text).build(); }

kda::RunOptions options_for(const kda::Problem& problem, const kda::Variant& variant, DType dtype,
                            const std::vector<std::string>& assignments) {
  kda::RunOptions options = test::default_options(problem, variant.name, dtype);
  for (const std::string& assignment : assignments) kda::set_axis(options.arithmetic, assignment);
  return options;
}

kda::Answer chunk(const kda::Problem& problem, const std::vector<std::string>& assignments,
                  DType dtype = DType::fp32) {
  const kda::Variant& variant = kda::variant_named("chunk");
  return variant.run(problem, options_for(problem, variant, dtype, assignments));
}

/// Elements that are not the exact value, rounded once.
std::size_t differing(const tensor::Tensor& got, const std::vector<numeric::DoubleDouble>& exact) {
  tensor::Tensor rounded(got.name(), got.dtype(), got.shape());
  std::size_t count = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    rounded.set(i, exact[i].hi);
    // The oracle's zeros have no sign to compare.
    count += !(got.value(i) == rounded.value(i)) || exact[i].lo != 0;
  }
  return count;
}

bool finite(const tensor::Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.size(); ++i)
    if (!std::isfinite(tensor.value(i))) return false;
  return true;
}

/// Elements [first, first + count) of a, and the first `count` of b, bit for bit.
bool same_bits(const tensor::Tensor& a, std::size_t first, const tensor::Tensor& b, std::size_t count) {
  return std::memcmp(a.at(first), b.at(0), count * numeric::format_of(a.dtype()).bytes) == 0;
}

std::size_t row(const kda::Problem& problem) { return problem.dimensions().HV * problem.dimensions().V; }

/// To add a formulation: one row here.
const std::vector<std::vector<std::string>> formulations = {
    {"decay=pair"},          {"decay=anchor-first:16"}, {"decay=anchor-first:64"}, {"decay=anchor-mid:16"},
    {"decay=anchor-mid:64"}, {"decay=factored:16"},     {"decay=factored:64"},     {"decay=clamp:126"},
    {"decay=pair-late"},     {"inverse=substitution"},  {"inverse=blocks:16"},     {"inverse=doubling:16"},
    {"inverse=doubling:64"}, {"inverse=horner:16"},     {"inverse=horner:64"},
};

}  // namespace

TEST_CASE("on the exact regimes no variant, dtype or formulation is off by a bit", "[regimes][laws]") {
  for (const char* const name : {"onehot_exact", "dyadic_exact", "onehot_exact:C=16,T=130",
                                 "dyadic_exact:C=32,T=130", "dyadic_exact:seed=2", "dyadic_exact:HV=4"})
    for (const DType dtype : every_dtype) {
      const kda::Problem problem = kda::with_inputs_rounded_to(built(name), dtype);
      const test::WholeOracle oracle = test::whole_oracle(problem);
      const auto check = [&](const kda::Variant& variant, const std::vector<std::string>& assignments) {
        INFO(name << ' ' << variant.name << ' ' << numeric::name_of(dtype) << ' '
                  << (assignments.empty() ? "" : assignments.front()));
        const kda::Answer answer = variant.run(problem, options_for(problem, variant, dtype, assignments));
        CHECK(differing(answer.o, oracle.o) == 0);
        CHECK(differing(answer.final_state, oracle.final_state) == 0);
      };
      for (const kda::Variant& variant : test::cpu_variants()) check(variant, {});
      for (const auto& assignments : formulations) check(kda::variant_named("chunk"), assignments);
    }
}

TEST_CASE("the exact regimes are about something: keys overlap within a chunk, every output is used",
          "[regimes][laws]") {
  const kda::Problem problem = built("dyadic_exact");
  const kda::Dimensions& d = problem.dimensions();
  std::size_t overlapping = 0;
  for (std::size_t t = 0; t < d.C; ++t)
    for (std::size_t s = 0; s < t; ++s) {
      double product = 0;
      for (std::size_t i = 0; i < d.K; ++i)
        product += problem.k.value(t * d.H * d.K + i) * problem.k.value(s * d.H * d.K + i);
      overlapping += std::fabs(product) > 0;
    }
  CHECK(overlapping > 50);
  std::size_t zeros = 0;
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (const numeric::DoubleDouble& value : oracle.o) zeros += value.hi == 0;
  CHECK(zeros < oracle.o.size() / 5);
}

TEST_CASE("a constant gate overflows each factored form exactly beyond its limit", "[regimes][laws]") {
  // ln FLT_MAX = 88.72 over the rows between an anchor and the farthest row it meets (docs/scenarios.md,
  // "Decay").
  struct Limit {
    const char* decay;
    double rows;
  };
  // To add a form: one row.
  for (const Limit& limit : {Limit{"anchor-first:16", 15},
                             {"anchor-first:32", 31},
                             {"anchor-first:64", 63},
                             {"anchor-mid:16", 8},
                             {"anchor-mid:32", 16},
                             {"anchor-mid:64", 32},
                             {"factored:16", 16},
                             {"factored:32", 32},
                             {"factored:64", 64}}) {
    const double edge = 88.72283905206835 / limit.rows;
    const auto run_at = [&](double g) {
      const kda::Problem problem = built(fmt::format("lb_const_sweep:H=1,K=16,V=8,g={}", g));
      return chunk(problem, {fmt::format("decay={}", limit.decay)});
    };
    INFO(limit.decay << ", limit " << edge);
    CHECK(finite(run_at(-0.999 * edge).o));
    CHECK_FALSE(finite(run_at(-1.001 * edge).o));
  }
  for (const double g : {-1.0, -5.0, -20.0, -1000.0})
    for (const char* const decay : {"pair", "pair-late", "anchor-pair:16", "clamp:126"}) {
      const kda::Problem problem = built(fmt::format("lb_const_sweep:H=1,K=16,V=8,g={}", g));
      CHECK(finite(chunk(problem, {fmt::format("decay={}", decay)}).o));
    }
}

TEST_CASE("regimes break the formulations they are made for, and no other", "[regimes][laws]") {
  struct Case {
    const char *regime, *decay;
    bool survives;
  };
  for (const Case& item : {Case{"ramp_clamp:drop=8.4,H=1", "anchor-first:16", true},
                           {"ramp_clamp:drop=9,H=1", "anchor-first:16", false},
                           {"ramp_clamp:drop=9,H=1", "anchor-mid:16", true},
                           {"ramp_clamp:drop=9,H=1", "pair", true},
                           {"lb_real:A=15", "anchor-mid:64", false},
                           {"lb_real", "anchor-first:16", true},
                           {"sparse_spikes:p=0.3", "anchor-mid:64", false},
                           {"sparse_spikes:p=0.3", "anchor-first:16", true},
                           {"mixed_channels", "anchor-first:16", true},
                           {"unbounded_softplus", "anchor-first:16", false},
                           {"unbounded_softplus", "anchor-mid:16", false},
                           {"unbounded_softplus", "pair", true},
                           {"unbounded_softplus", "factored:16", false},
                           {"unbounded_softplus", "clamp:126", true},
                           {"lb_real:A=15", "factored:64", false},
                           {"lb_real", "factored:16", true},
                           {"mixed_channels", "factored:64", false},
                           {"mask_m1000", "factored:16", false},
                           {"mask_m1000", "clamp:126", true},
                           {"mask_m1000", "anchor-first:16", false},
                           {"mask_m1000", "pair", true},
                           {"ftz_window", "anchor-mid:64", true}}) {
    INFO(item.regime << ' ' << item.decay);
    CHECK(finite(chunk(built(item.regime), {std::string("decay=") + item.decay}).o) == item.survives);
  }
}

TEST_CASE("a state beyond fp16 is exact where the state is not stored in fp16", "[regimes][laws]") {
  const kda::Problem problem = built("state_fp16_edge:dtype=fp16");
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (const char* const variant : {"naive", "recurrent"})
    CHECK(differing(test::run(problem, variant, DType::fp16).o, oracle.o) == 0);
  CHECK_FALSE(finite(test::run(problem, "chunk", DType::fp16).o));  // FLA stores h in fp16
}

TEST_CASE("the residual of a converged memory is not lost", "[regimes][laws]") {
  const kda::Problem problem = built("residual_cancel");
  for (const kda::Variant& variant : test::cpu_variants()) {
    const kda::Answer answer = test::run(problem, variant.name, DType::fp32);
    CHECK(answer.o.value(answer.o.size() - 1) == 16);
    CHECK(answer.o.value(0) == 17);
  }
}

TEST_CASE("no output depends on a later token; with a late anchor it does", "[regimes][laws]") {
  const kda::Problem one = built("prefix_causality"), other = built("prefix_causality:perturbed=1");
  const std::size_t before = 21 * row(one);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const kda::Problem a = kda::with_inputs_rounded_to(one, dtype),
                       b = kda::with_inputs_rounded_to(other, dtype);
    const kda::Problem cut = kda::with_inputs_rounded_to(built("prefix_causality:T=21"), dtype);
    for (const kda::Variant& variant : test::cpu_variants()) {
      INFO(variant.name);
      const kda::Answer answer = test::run(a, variant.name, dtype),
                        perturbed = test::run(b, variant.name, dtype);
      CHECK(same_bits(answer.o, 0, perturbed.o, before));
      CHECK_FALSE(same_bits(answer.o, 0, perturbed.o, answer.o.size()));
      CHECK(same_bits(answer.o, 0, test::run(cut, variant.name, dtype).o, before));
    }
    // fla#1240: the anchor in the middle of the last block of rows reads the gate of token 21.
    CHECK_FALSE(same_bits(chunk(a, {"decay=anchor-mid:16"}, dtype).o, 0,
                          chunk(b, {"decay=anchor-mid:16"}, dtype).o, before));
  }
}

TEST_CASE("a run cut at a multiple of a chunk continues bit for bit, elsewhere within rounding",
          "[regimes][laws]") {
  for (const std::size_t cut : {1, 63, 64, 65, 100, 128, 130, 191}) {
    const kda::Problem whole = built("split_invariance:cut=0,T=192");
    const kda::Problem first = built(fmt::format("split_invariance:cut=0,T={}", cut));
    kda::Problem second = built(fmt::format("split_invariance:cut={},T={}", cut, 192 - cut));
    for (const kda::Variant& variant : test::cpu_variants()) {
      INFO(variant.name << " cut at " << cut);
      const kda::Answer all = test::run(whole, variant.name, DType::fp32);
      kda::Answer beginning = test::run(first, variant.name, DType::fp32);
      // The recipe gives the second part the true state; here it gets what the first run left.
      CHECK(test::rms_ratio(beginning.final_state, test::whole_oracle(first).final_state) < 1e-6);
      kda::Problem continued = kda::clone(second);
      continued.initial_state = std::move(beginning.final_state);
      const kda::Answer end = test::run(continued, variant.name, DType::fp32);
      if (cut % 64 == 0 || variant.name != "chunk") {
        CHECK(same_bits(all.o, cut * row(whole), end.o, end.o.size()));
        CHECK(same_bits(all.final_state, 0, end.final_state, end.final_state.size()));
      }
      CHECK(test::rms_ratio(end.final_state, test::whole_oracle(whole).final_state) < 2e-6);
    }
  }
}

TEST_CASE("a sequence of NaN in a packed batch touches no other", "[regimes][laws]") {
  const kda::Problem clean = built("varlen"), poisoned = built("varlen:poison=1");
  const kda::Dimensions& d = clean.dimensions();
  CHECK(d.N == 6);
  for (const kda::Variant& variant : test::cpu_variants()) {
    INFO(variant.name);
    const kda::Answer a = test::run(clean, variant.name, DType::fp32);
    const kda::Answer b = test::run(poisoned, variant.name, DType::fp32);
    const std::size_t state = d.HV * d.K * d.V;
    for (const kda::Sequence& s : clean.sequences()) {
      bool same = true;
      for (std::size_t i = s.begin * row(clean); i < s.end * row(clean); ++i)
        same = same && a.o.value(i) == b.o.value(i);
      for (std::size_t i = s.index * state; i < (s.index + 1) * state; ++i)
        same = same && a.final_state.value(i) == b.final_state.value(i);
      CHECK(same == (s.index != 3));
    }
  }
}

}  // namespace regime_laws_tests
