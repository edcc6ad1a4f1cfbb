// Outputs of kernels under names that say nothing: what computes them is found, so that correct ones pass and
// what is wrong with others shows far below their noise.
#include <algorithm>

#include "base/names.hpp"
#include "fixture/writer.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_folder.hpp"

namespace computations_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;

namespace {

struct Kernel {
  const char* arithmetic;
  const char* regime;
  DType dtype = DType::bf16;
  std::size_t chunk_size = 64;
};

struct Computed {
  kda::Problem problem;
  kda::RunOptions options;
  kda::Answer answer;
};

const kda::Variant& chunk() { return kda::variant_named("chunk"); }

Computed computed(const Kernel& kernel) {
  Computed result{
      kda::parse_regime(std::string(kernel.regime) + ",dtype=" + std::string(numeric::name_of(kernel.dtype)))
          .build(),
      {},
      {}};
  result.options.dtype = kernel.dtype;
  result.options.arithmetic = chunk().default_arithmetic(result.problem, kernel.dtype);
  for (const std::string& word : split(kernel.arithmetic, ','))
    kda::set_axis(result.options.arithmetic, word);
  result.options.chunk_size = kernel.chunk_size;
  const auto preset = std::ranges::find(kda::presets(), kernel.arithmetic, &kda::Preset::name);
  if (preset != kda::presets().end() && preset->chunk_size != 0)
    result.options.chunk_size = preset->chunk_size;
  result.answer = chunk().run(result.problem, result.options);
  return result;
}

/// Of a file whose name of the output says how it was computed, or does not; and the precision of its
/// products.
report::CaseResult judged(const Computed& computed, std::optional<numeric::ComputeFormat> compute = {},
                          const std::string& name = "mine", bool as_declared = false) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "mine.h5";
  fixture::WriteRequest request;
  request.name = "mine", request.problem = &computed.problem;
  request.expected.push_back(
      {name,
       "",
       "",
       compute.value_or(kda::compute_format(chunk(), computed.options.dtype, computed.options.arithmetic)),
       {&computed.answer.o, &computed.answer.final_state},
       {}});
  fixture::write_fixture(path, request);
  plan::Request asked = test::request_for({path}, plan::Names{});
  asked.selection.against = plan::Names{"oracle"};
  asked.judging.as_declared = as_declared;
  return test::ran(asked).cases.at(0);
}

void scale(tensor::Tensor& o, std::size_t begin, std::size_t end, double factor) {
  const std::size_t H = o.shape()[2], V = o.shape()[3];
  for (std::size_t t = begin; t < end; ++t)
    for (std::size_t v = 0; v < V; ++v) o.set(t * H * V + v, o.value(t * H * V + v) * factor);
}

}  // namespace

TEST_CASE("a kernel with roundings or an order of its own passes under any name, and its faults do not",
          "[engine][twins]") {
  const char* const real = "lb_real:K=64,V=64,T=200,H=2";
  const char* const constant = "ftz_window:T=130,H=3,seed=2";
  test::Sampled sample(11);
  INFO(sample.text());
  for (const Kernel& kernel :
       {Kernel{"cudnn-sm90", real}, Kernel{"cula-sm90", real}, Kernel{"flash-kda", real},
        Kernel{"flash-kda-1", real}, Kernel{"flashinfer-bt16", real}, Kernel{"attention-gym", real},
        Kernel{"h100-mma", real}, Kernel{"h100-mma", constant, DType::fp16}, Kernel{"delta=residual", real},
        Kernel{"beta=columns", real}, Kernel{"gates=log2-each", constant, DType::fp32}}) {
    if (!sample.next()) continue;
    Computed one = computed(kernel);
    INFO(kernel.arithmetic << " on " << kernel.regime);
    const report::CaseResult healthy = judged(one);
    INFO(healthy.reason);
    CHECK(healthy.verdict == Verdict::pass);
    for (const char* const name : {"o", "final_state"}) {
      REQUIRE(test::tensor_of(healthy, name).twins);
      CHECK(test::tensor_of(healthy, name).twins->ratio < 1);
    }
    scale(one.answer.o, 64, 128, 1.005);
    const report::CaseResult wrong = judged(one);
    CHECK(wrong.verdict == Verdict::fail);
    CHECK_THAT(wrong.reason, ContainsSubstring("head 0"));
  }
}

TEST_CASE("the verdict on a head that is wrong gets no better where it is more wrong", "[engine][twins]") {
  Computed one = computed({"fla", "lb_real:K=64,V=64,T=128,H=2"});
  Verdict last = judged(one).verdict;
  CHECK(last == Verdict::pass);
  for (const double share : {1e-4, 5e-4, 1.15e-3}) {
    kda::Problem other = kda::clone(one.problem);
    for (std::size_t i = 1; i < other.beta.size(); i += 2)
      other.beta.set(i, other.beta.value(i) * (1 + share));
    one.answer = chunk().run(other, one.options);
    const report::CaseResult result = judged(one);
    INFO("beta of head 1 too large by " << share << ": " << result.reason);
    CHECK(judge::worst_of({last, result.verdict}) == result.verdict);
    last = result.verdict;
  }
  CHECK(last == Verdict::fail);
}

TEST_CASE("what reads a state between chunks in another way is no fault", "[engine][twins]") {
  // All but the last token computes as a known kernel does, to the bit.
  const report::CaseResult result =
      judged(computed({"readout=first", "lb_const_sweep:T=65,H=1,seed=910682278,B=2"}));
  INFO(result.reason);
  CHECK(result.verdict == Verdict::pass);
}

TEST_CASE("a kernel in settings that nobody has passes, though a long search alone finds it",
          "[engine][twins]") {
  // Known kernels come near it, or leave single elements that are stored as their neighbours.
  test::Sampled sample(3);
  INFO(sample.text());
  for (const Kernel& kernel :
       {Kernel{"storage=bf16@products+tf32@off_diagonal+bf16@score_operands+bf16@L+tf32@operands",
               "identical_keys:T=2,H=1,HV=2,K=64,V=128,seed=237896809", DType::fp32},
        Kernel{"special=triton,beta=columns,accumulator=fp32,update=added",
               "ramp_clamp:T=65,H=3,seed=840499796", DType::bf16, 256},
        Kernel{"sglang-jax", "tails:T=260,H=2,seed=905557176,K=1,V=1"},
        Kernel{"beta=rows-late,scale=q-late,delta=chained",
               "prefix_causality:T=100,H=3,seed=884357940,K=8,V=2,HV=6,B=2", DType::fp16, 128},
        Kernel{"flash-kda-1", "state_fp16_edge:T=33,H=1,seed=79511335,B=2,size=1e-30", DType::fp32}}) {
    if (!sample.next()) continue;
    const report::CaseResult result = judged(computed(kernel));
    INFO(kernel.arithmetic << " on " << kernel.regime << ": " << result.reason);
    CHECK(result.verdict == Verdict::pass);
  }
}

TEST_CASE("zeros that any kernel gives which flushes them are no proof of how they were computed",
          "[engine][twins]") {
  const Computed one = computed({"storage=fp16@products,gates=log2-each",
                                 "sparse_spikes:T=1,H=3,seed=712260873,HV=6,size=1e-37", DType::fp32, 16});
  for (std::size_t i = 0; i < one.answer.o.size(); ++i) REQUIRE(one.answer.o.value(i) == 0);
  const report::CaseResult result = judged(one);
  INFO(result.reason);
  CHECK(result.verdict == Verdict::inconclusive);
}

TEST_CASE("a rounding that its class does not license fails by its name", "[engine][twins]") {
  struct Rounding {
    const char *word, *sentence;
  };
  const numeric::ComputeFormat fp32 = numeric::ComputeFormat::fp32;
  test::Sampled sample(3);
  INFO(sample.text());
  for (const Rounding& rounding :
       {Rounding{"storage=bf16@decay", "the decay is rounded to bf16"},
        Rounding{"storage=bf16@g_cumsum", "the sum of the gates is rounded to bf16"},
        Rounding{"storage=bf16@carry", "the last one, too, is rounded to bf16"}}) {
    if (!sample.next()) continue;
    const report::CaseResult result =
        judged(computed({rounding.word, "lb_real:K=64,V=64,T=200,H=2", DType::fp32}), fp32);
    INFO(rounding.word << ": " << result.reason);
    CHECK(result.verdict == Verdict::fail);
    CHECK_THAT(result.reason, ContainsSubstring(rounding.sentence));
  }
}

TEST_CASE("roundings that are not licensed excuse nothing in what comes nearest to an output",
          "[engine][twins]") {
  Computed one =
      computed({"storage=fp16@products", "k3_layer1:T=100,H=1,seed=875867872,K=64,V=32", DType::fp32});
  kda::Problem other = kda::clone(one.problem);
  for (std::size_t i = 0; i < other.g.size(); ++i) other.g.set(i, other.g.value(i) * (1 + 0x1p-5));
  one.answer = chunk().run(other, one.options);
  CHECK_THAT(judged(one).reason, ContainsSubstring("the log decays of head 0: 3.1 % too large"));
}

TEST_CASE("an output that computes otherwise than its name says fails as declared, and passes else",
          "[engine]") {
  const Computed one = computed({"flash-kda", "lb_real:K=64,V=64,T=200,H=2"});
  CHECK(judged(one, {}, "flash_kda", true).verdict == Verdict::pass);
  CHECK(judged(one, {}, "cula_sm90").verdict == Verdict::pass);
  const report::CaseResult otherwise = judged(one, {}, "cula_sm90", true);
  CHECK(otherwise.verdict == Verdict::fail);
  CHECK_THAT(otherwise.reason, ContainsSubstring("not as declared: it computes as chunk under flash-kda"));
}

TEST_CASE("a kernel whose factored decays overflow fails, and is told which, where and by how much",
          "[engine]") {
  plan::Request request = test::request_for({"lb_real:dtype=bf16,K=64,V=64,T=200,H=2"}, plan::Names{"chunk"});
  request.selection.against = plan::Names{"oracle"};
  request.arithmetic = {"cudnn-sm90"};  // whose chunks are of 16 tokens, not of 64
  const report::CaseResult lost = test::ran(request).cases.at(0);
  CHECK(lost.verdict == Verdict::fail);
  CHECK_THAT(lost.reason,
             ContainsSubstring("NaN for finite; decay=reciprocal:16 overflows in its factored tail: exp("));
  request.arithmetic = {"cudnn-sm90", "tail=difference"};
  CHECK_THAT(test::ran(request).cases.at(0).reason, !ContainsSubstring("overflows"));
}

}  // namespace computations_tests
