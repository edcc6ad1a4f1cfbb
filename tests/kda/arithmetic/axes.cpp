// The axes together: ideal arithmetic is as good as can be, every value of every axis gives the same
// bits on every instruction set, and none changes a bit where nothing is ever rounded.
#include <fmt/format.h>

#include <cmath>

#include "base/names.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/pool/pool.hpp"
#include "kda/regimes/regimes.hpp"
#include "numeric/ulp.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace axes_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

/// Values of the axes every variant has.
std::vector<std::string> common_values() {
  std::vector<std::string> values = {"contraction=fused",  "contraction=separate", "special=ieee",
                                     "special=triton",     "special=triton-logf",  "scale=output",
                                     "update=decay-fused", "launch=block:8x1",     "scale=norm",
                                     "delta=fused"};
  for (const char* const kind : {"exact", "libm", "cuda", "cuda-fast", "exp2-scaled", "flush", "poly", "xla"})
    values.push_back(fmt::format("exponential={}", kind));
  for (const char* const order :
       {"sequential", "pairwise", "tree:2", "tree:32", "tree:33", "tree:1024", "blocks:16", "mma:25",
        "mma:24", "triton:25", "triton:24", "triton-rows:25", "lanes:25", "lanes-paired:25", "split:25",
        "split:24", "xla", "simt", "exact"})
    values.push_back(fmt::format("reduction={}", order));
  values.insert(values.end(), {"special=fast", "special=fast-floor", "special=fast-division",
                               "special=fast-signed", "subnormals=flush"});
  for (const char* const storage : {"none", "upstream", "fla", "triton", "flash-kda", "sglang-jax"})
    values.push_back(fmt::format("storage={}", storage));
  for (const CastPointRow& point : cast_point_rows())
    for (const char* const format : {"bf16", "fp16", "tf32"})
      values.push_back(fmt::format("storage={}@{}", format, point.name));
  return values;
}

std::vector<std::string> chunk_values() {
  std::vector<std::string> values = {
      "decay=pair",     "decay=pair-late",   "decay=clamp:126", "inverse=substitution", "tail=difference",
      "tail=suffix",    "tail=factored",     "gates=natural",   "gates=log2",           "gates=log2-each",
      "delta=residual", "scale=q",           "beta=rows",       "beta=columns",         "merge=nearest",
      "merge=halves",   "merge=split:16",    "merge=split:8",   "tail=factored-late",   "output=apart",
      "update=chained", "update=transposed", "update=added",    "delta=chained",        "scale=q-late",
      "beta=keys",      "beta=rows-late",    "decay=pair-rows", "decay=pair-products",  "delta=blocked",
      "output=fused",   "readout=first",     "readout=centre",  "inverse=solve:8",      "inverse=solve:16",
      "inverse=nested"};
  for (const int rows : {16, 32, 64}) {
    for (const char* const decay :
         {"anchor-pair", "anchor-first", "anchor-mid", "anchor-bound", "factored", "reciprocal"})
      values.push_back(fmt::format("decay={}:{}", decay, rows));
    for (const char* const inverse : {"blocks", "doubling", "horner", "paterson"})
      values.push_back(fmt::format("inverse={}:{}", inverse, rows));
  }
  values.insert(values.end(), {"inverse=eliminate:8", "inverse=eliminate:16", "inverse=chains:8",
                               "inverse=chains:16", "inverse=doubling-wide:8", "inverse=doubling-wide:16",
                               "segments=none", "segments=sequential:3", "segments=tree:3"});
  return values;
}

/// Elements that are not the exact value.
std::size_t differing(const tensor::Tensor& got, const std::vector<numeric::DoubleDouble>& exact) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < got.size(); ++i) count += !(got.value(i) == exact[i].hi) || exact[i].lo != 0;
  return count;
}

/// Everything a chunk computes in this arithmetic, by the kernels of `table`.
template <class T>
std::vector<T> chunk_on(const KernelTable& table, const Arithmetic& arithmetic, DType dtype) {
  std::vector<T> all;
  for (const std::size_t rows : {19, 64}) {
    test::ChunkData<T> data(rows, 20, 33);
    data.block.operations = operations_of(arithmetic);
    data.block.decay = arithmetic.decay;
    data.block.inverse = arithmetic.inverse;
    data.block.anchor_rows = std::min<std::size_t>(static_cast<std::size_t>(arithmetic.anchor_rows), rows);
    data.block.inverse_rows =
        std::min<std::size_t>(static_cast<std::size_t>(arithmetic.inverse_rows), (rows + 15) / 16 * 16);
    data.block.clamp = static_cast<T>(arithmetic.clamp);
    data.block.casts = cast_points(arithmetic, dtype, true, true);
    test::kernels_of<T>(table).chunk[arithmetic.contraction == Contraction::fused](data.block);
    for (const auto* const part : {&data.Aqk, &data.A, &data.u, &data.w, &data.o, &data.state})
      all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

/// What the kernels of the token forms and of the inputs make of the common axes.
template <class T>
std::vector<T> tokens_on(const KernelTable& table, const Arithmetic& arithmetic, DType dtype) {
  test::Random random(6);
  constexpr std::size_t tokens = 3, K = 21, lanes = 32;
  const Kernels<T>& kernel = test::kernels_of<T>(table);
  const Operations operations = operations_of(arithmetic);
  std::vector<T> q = test::numbers<T>(random, tokens * K, -1, 1),
                 k = test::numbers<T>(random, tokens * K, -1, 1),
                 decay = test::numbers<T>(random, tokens * K, -2, 0),
                 beta = test::numbers<T>(random, tokens, 0, 1),
                 v = test::numbers<T>(random, tokens * lanes, -1, 1), o(tokens * lanes),
                 state = test::numbers<T>(random, K * lanes, -1, 1);
  kernel.normalise({tokens, K, K, k.data(), true, operations});
  kernel.gate({1, K, K, decay.data(), nullptr, T(0.7), false, T(0), operations.exponential});
  kernel.cumulate(operations.reduction, decay.data(), tokens, K);
  kernel.exponential(operations.exponential, decay.data(), decay.data(), decay.size());
  kernel.token({tokens, K, lanes, lanes, q.data(), k.data(), decay.data(), beta.data(), v.data(), o.data(),
                state.data(), lanes, operations, cast_points(arithmetic, dtype, true, false)});
  for (const auto* const part : {&state, &k, &decay}) o.insert(o.end(), part->begin(), part->end());
  return o;
}

}  // namespace

TEST_CASE("a preset sets what its words say, whatever was there before", "[axes]") {
  Arithmetic arithmetic;
  for (const Preset& preset : presets()) set_axis(arithmetic, preset.name);
  set_axis(arithmetic, "ideal");
  CHECK(arithmetic == ideal_arithmetic());
  set_axis(arithmetic, "flash-kda");
  set_axis(arithmetic, "ieee");
  Arithmetic ieee = ideal_arithmetic();
  ieee.contraction = Contraction::separate, ieee.exponential = Exponential::libm, ieee.reduction = {};
  CHECK(arithmetic == ieee);
  for (const Preset& preset : presets()) {
    INFO(preset.name);
    CHECK((preset.evidence == "a definition" || preset.evidence.starts_with("proven") ||
           preset.evidence.starts_with("close") || preset.evidence == "from source"));
    // Whoever knows another's kernel knows where it was read.
    const bool is_ours = preset.evidence == "a definition" || preset.name.starts_with("h100");
    CHECK(preset.source.empty() == is_ours);
    CHECK((is_ours || preset.source.find('/') < preset.source.find(' ')));
  }
}

TEMPLATE_TEST_CASE("every instruction set gives the same bits for every value of every axis",
                   "[axes][kernels]", float, double) {
  using T = TestType;
  const DType dtype = sizeof(T) == sizeof(float) ? DType::fp32 : DType::fp64;
  const KernelTables tables = kernel_tables();
  std::vector<std::string> words = common_values();
  for (const auto& more : {chunk_values(), preset_names()})
    words.insert(words.end(), more.begin(), more.end());
  for (const std::string& word : words) {
    Arithmetic arithmetic;
    set_axis(arithmetic, word);
    if (!unsupported(arithmetic, dtype).empty()) continue;
    const std::vector<T> chunk = chunk_on<T>(*tables.table[0], arithmetic, dtype),
                         tokens = tokens_on<T>(*tables.table[0], arithmetic, dtype);
    for (int i = 1; i < tables.count; ++i) {
      INFO(word << ' ' << tables.table[i]->instruction_set);
      CHECK(test::same_bits(chunk_on<T>(*tables.table[i], arithmetic, dtype), chunk));
      CHECK(test::same_bits(tokens_on<T>(*tables.table[i], arithmetic, dtype), tokens));
    }
  }
}

TEST_CASE("every value of every axis reaches the computation", "[axes]") {
  // A word that changed nothing would pass every test of equality.
  test::ProblemSpec spec;
  spec.T = 70, spec.qk_l2norm = true, spec.beta_sigmoid = true, spec.gate = Gate::softplus, spec.K = 40,
  spec.chunk_size = 16;
  const Problem problem = test::make_problem(spec);
  for (const char* const variant : {"naive", "recurrent", "chunk"}) {
    RunOptions options = test::default_options(problem, variant, DType::fp32);
    options.arithmetic = ideal_arithmetic();
    const Answer ideal = test::run(problem, variant, options);
    for (const char* const word :
         {"contraction=separate", "exponential=cuda", "exponential=cuda-fast", "exponential=exp2-scaled",
          "exponential=poly", "exponential=xla", "reduction=xla", "reduction=sequential",
          "reduction=pairwise", "reduction=tree:2", "reduction=tree:32", "reduction=blocks:16",
          "reduction=mma:25", "reduction=triton:25", "special=triton", "storage=bf16@normalised",
          "storage=bf16@decay", "storage=bf16@prediction", "storage=bf16@carry"}) {
      INFO(variant << ' ' << word);
      options.arithmetic = ideal_arithmetic();
      // Under exact sums there is nothing to contract in a sum; a sequential one has.
      if (std::string_view(word).starts_with("contraction")) {
        set_axis(options.arithmetic, "reduction=sequential");
        const Answer fused = test::run(problem, variant, options);
        set_axis(options.arithmetic, word);
        CHECK(test::differing_bits(test::run(problem, variant, options).o, fused.o) > 0);
        continue;
      }
      set_axis(options.arithmetic, word);
      CHECK(test::differing_bits(test::run(problem, variant, options).o, ideal.o) > 0);
    }
  }
}

TEST_CASE("the exact exponential in fp64 is correctly rounded", "[axes][exponential]") {
  test::Random random(12);
  std::vector<double> x{0.0, -0.0, 709.78271289338397, -708.39641853226410, 1e-300, -1e-20, 1.0, -1.0};
  for (int i = 0; i < 100000; ++i) x.push_back(random.uniform(-708.3, 709.7));
  for (int i = 0; i < 100000; ++i) x.push_back(random.normal() * std::exp2(random.uniform(-40, 3)));
  std::vector<double> y(x.size());
  kernels<double>().exponential(Exponential::exact, x.data(), y.data(), x.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += y[i] != exp(test::Big(x[i])).to_double();
  CHECK(wrong == 0);
  // Subnormal results too, rounded once.
  for (double z = -708.5; z > -746; z -= 0.0037) {
    double result = 0;
    kernels<double>().exponential(Exponential::exact, &z, &result, 1);
    CHECK(result == exp(test::Big(z)).to_double());
  }
  for (const auto& [z, wanted] :
       {std::pair{710.0, HUGE_VAL}, {HUGE_VAL, HUGE_VAL}, {-800.0, 0.0}, {-HUGE_VAL, 0.0}}) {
    double result = 0;
    kernels<double>().exponential(Exponential::exact, &z, &result, 1);
    CHECK(result == wanted);
  }
  double not_a_number = std::nan("");
  kernels<double>().exponential(Exponential::exact, &not_a_number, &not_a_number, 1);
  CHECK(std::isnan(not_a_number));
}

TEMPLATE_TEST_CASE("in ideal arithmetic one token costs one rounding an operation", "[axes]", float, double) {
  using T = TestType;
  // S' = decay S; p = S'^T k; e = v - p; S'' = S' + k (beta e); o = S''^T q, each rounded once from its own
  // operands.
  const auto rounded = [](const test::Big& x) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return x.to_float();
    } else {
      return x.to_double();
    }
  };
  const auto big = [](T x) { return test::Big(static_cast<double>(x)); };
  test::Random random(13);
  constexpr std::size_t K = 37, lanes = 16;
  const auto q = test::numbers<T>(random, K, -1, 1), k = test::numbers<T>(random, K, -1, 1),
             decay = test::numbers<T>(random, K, 0, 1), beta = test::numbers<T>(random, 1, 0, 1),
             v = test::numbers<T>(random, lanes, -1, 1), before = test::numbers<T>(random, K * lanes, -1, 1);
  std::vector<T> o(lanes), state = before;
  kernels<T>().token({1,
                      K,
                      lanes,
                      lanes,
                      q.data(),
                      k.data(),
                      decay.data(),
                      beta.data(),
                      v.data(),
                      o.data(),
                      state.data(),
                      lanes,
                      operations_of(ideal_arithmetic()),
                      {}});
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::vector<T> S(K);
    test::Big prediction(0.0), read(0.0);
    for (std::size_t c = 0; c < K; ++c) {
      S[c] = rounded(big(before[c * lanes + lane]) * big(decay[c]));
      prediction = prediction + big(S[c]) * big(k[c]);
    }
    const T error = rounded(big(v[lane]) - big(rounded(prediction))),
            write = rounded(big(error) * big(beta[0]));
    for (std::size_t c = 0; c < K; ++c) {
      S[c] = rounded(big(S[c]) + big(k[c]) * big(write));
      REQUIRE(state[c * lanes + lane] == S[c]);
      read = read + big(S[c]) * big(q[c]);
    }
    REQUIRE(o[lane] == rounded(read));
  }
}

TEST_CASE("split operands leave a tensor core's answers the errors of fp32", "[axes]") {
  for (const char* const regime : {"control:T=128,H=1", "lb_real:T=128", "corr_keys:T=128,H=1"}) {
    const Problem problem = parse_regime(regime).build();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    RunOptions options = test::default_options(problem, "chunk", DType::fp32);
    options.threads = 2;
    const auto errors = [&](const char* preset) {
      set_axis(options.arithmetic, preset);
      const Answer answer = test::run(problem, "chunk", options);
      return std::pair{test::rms_ratio(answer.o, oracle.o),
                       test::rms_ratio(answer.final_state, oracle.final_state)};
    };
    const auto plain = errors("h100"), split = errors("h100-mma3");
    INFO(regime << ": o " << split.first << " beside " << plain.first << ", final_state " << split.second
                << " beside " << plain.second);
    CHECK(split.first < 1.2 * plain.first);
    CHECK(split.second < 2 * plain.second);
  }
}

TEST_CASE("ideal arithmetic is as good as any other, but for chance", "[axes]") {
  // What is left is the rounding of G: half a unit of a sum, the same for all.
  for (const char* const regime : {"control:T=128,H=1", "lb_real:T=128", "corr_keys:T=128,H=1"}) {
    const Problem problem = parse_regime(regime).build();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    for (const char* const variant : {"recurrent", "chunk"}) {
      RunOptions options = test::default_options(problem, variant, DType::fp32);
      options.threads = 2;
      options.arithmetic = ideal_arithmetic();
      const double ideal = test::rms_ratio(test::run(problem, variant, options).o, oracle.o);
      for (const char* const preset : {"ieee", "h100", "fla"}) {
        set_axis(options.arithmetic, preset);
        INFO(regime << ' ' << variant << ' ' << preset);
        CHECK(ideal < 1.5 * test::rms_ratio(test::run(problem, variant, options).o, oracle.o));
      }
      CHECK(ideal < 2.5e-6);
    }
  }
}

TEST_CASE("on the exact regimes no value of any axis and no preset changes a bit", "[axes][regimes]") {
  // Values there have at most eight bits; as a product of at most two of them may have to be kept in fp16,
  // their range matters too, and dyadic_exact stays within it: nothing but readout=centre is left out.
  for (const char* const name : {"onehot_exact:T=130,H=1", "dyadic_exact:T=130,H=1"})
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      const Problem problem = with_inputs_rounded_to(parse_regime(name).build(), dtype);
      const test::WholeOracle oracle = test::whole_oracle(problem);
      for (const Variant& variant : test::cpu_variants()) {
        std::vector<std::string> words = common_values();
        const std::vector<std::string> presets = preset_names();
        words.insert(words.end(), presets.begin(), presets.end());
        if (variant.axes.chunk)
          for (const std::string& word : chunk_values()) words.push_back(word);
        for (const std::string& word : words) {
          RunOptions options = test::default_options(problem, variant.name, dtype);
          set_axis(options.arithmetic, word);
          if (!unsupported(options.arithmetic, dtype).empty()) continue;
          // The middle of two whole exponents is a half: its power is no dyadic number.
          if (options.arithmetic.readout == Readout::centre) continue;
          // Stages that are rounded matter in fp32 computations, which are the same for the other dtypes.
          if (word.find('@') != std::string::npos && dtype != DType::fp32) continue;
          const Answer answer = test::run(problem, variant.name, options);
          INFO(name << ' ' << variant.name << ' ' << numeric::name_of(dtype) << ' ' << word);
          CHECK(differing(answer.o, oracle.o) == 0);
          CHECK(differing(answer.final_state, oracle.final_state) == 0);
        }
      }
    }
}

TEST_CASE("any values of axes together compute the same problem, two by two and five by five", "[axes]") {
  // Norm, gate, bias and sigmoid around the kernel, and in it.
  const auto regime =
      GENERATE("control:T=40,H=2,HV=4,K=16,V=16,loss=1", "bwd_chain:T=40,H=2,HV=4,K=16,V=16,loss=1");
  INFO(regime);
  const Problem problem = parse_regime(regime).build();
  const test::WholeOracle oracle = test::whole_oracle(problem);
  const Tensors gradients = run_pass(Pass::backward, variant_named("naive"), problem,
                                     test::default_options(problem, "naive", DType::fp64));
  std::vector<std::string> words;
  for (const std::vector<std::string>& list : {common_values(), chunk_values()})
    std::ranges::copy_if(list, std::back_inserter(words),
                         [](const std::string& word) { return word.find('@') == std::string::npos; });
  words.emplace_back("launch=scan:4");
  const auto check = [&](const std::vector<std::string>& some) {
    RunOptions options = test::default_options(problem, "chunk", DType::fp64);
    options.chunk_size = 16;
    for (const std::string& word : some) set_axis(options.arithmetic, word);
    if (!unsupported(options.arithmetic, DType::fp64).empty()) return;
    const Answer answer = test::run(problem, "chunk", options);
    INFO(join(some, " "));
    CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-5);
    CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-5);
    if (!lacks_gradients(options.arithmetic).empty()) return;
    for (const auto& [name, got] : run_pass(Pass::backward, variant_named("chunk"), problem, options)) {
      double error = 0, size = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double expected = gradients.at(name).value(i);
        error += std::pow(got.value(i) - expected, 2), size += expected * expected;
      }
      INFO(name);
      CHECK(error < 1e-10 * size);
    }
  };
  test::Sampled sample(4);
  INFO(sample.text());
  for (std::size_t a = 0; a < words.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (sample.next()) check({words[a], words[b]});
  test::Random random(11);
  for (int draw = 0; draw < 800; ++draw) {
    std::vector<std::string> some;
    while (some.size() < 5) some.push_back(words[random.below(words.size())]);
    if (sample.next()) check(some);
  }
}

}  // namespace axes_tests
