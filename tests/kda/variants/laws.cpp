// Laws every variant obeys, whatever it is given.
#include <cmath>
#include <cstring>

#include "support/catch.hpp"
#include "support/problems.hpp"
#include "tensor/rearranged.hpp"

namespace laws_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

constexpr std::string_view names[] = {"naive", "recurrent", "chunk"};
constexpr DType dtypes[] = {DType::fp64, DType::fp32, DType::bf16, DType::fp16};

/// A problem with the tokens [begin, end) of another, and a state to start from.
kda::Problem slice(const kda::Problem& problem, std::size_t begin, std::size_t end,
                   const tensor::Tensor* state) {
  const auto cut = [&](const tensor::Tensor& tensor) {
    tensor::Shape shape = tensor.shape();
    const std::size_t row = tensor.size() / shape[1];
    shape[1] = end - begin;
    tensor::Tensor part(tensor.name(), tensor.dtype(), shape);
    std::memcpy(part.data(), tensor.at(begin * row), part.bytes());
    return part;
  };
  kda::Problem result = kda::clone(problem);
  result.q = cut(problem.q), result.k = cut(problem.k), result.v = cut(problem.v), result.g = cut(problem.g),
  result.beta = cut(problem.beta);
  if (state != nullptr) result.initial_state = state->clone();
  result.validate();
  return result;
}

ProblemSpec rich_spec() {
  ProblemSpec spec;
  spec.B = 2, spec.T = 70, spec.H = 2, spec.HV = 4, spec.K = 20, spec.V = 36;
  spec.qk_l2norm = true, spec.gate = kda::Gate::softplus, spec.beta_sigmoid = true;
  return spec;
}

}  // namespace

TEST_CASE("all variants agree bit for bit where every sum is exact, in every dtype and formulation",
          "[laws]") {
  for (const DType dtype : dtypes)
    for (const int chunk : {16, 32, 64}) {
      const kda::Problem problem = test::exact_problem(256, 64, 24, dtype, chunk);
      const kda::Answer naive = test::run(problem, "naive", dtype);
      const kda::Answer recurrent = test::run(problem, "recurrent", dtype);
      INFO(numeric::name_of(dtype) << " chunk " << chunk);
      CHECK(test::differing_bits(naive.o, recurrent.o) == 0);
      CHECK(test::differing_bits(naive.final_state, recurrent.final_state) == 0);
      for (const kda::DecayForm decay : {kda::DecayForm::pair, kda::DecayForm::anchor_pair,
                                         kda::DecayForm::anchor_first, kda::DecayForm::anchor_mid})
        for (const kda::InverseForm inverse : {kda::InverseForm::substitution, kda::InverseForm::blocks})
          for (const kda::Contraction contraction : {kda::Contraction::fused, kda::Contraction::separate}) {
            kda::RunOptions options = test::default_options(problem, "chunk", dtype);
            options.arithmetic.decay = decay, options.arithmetic.inverse = inverse,
            options.arithmetic.contraction = contraction;
            const kda::Answer answer = test::run(problem, "chunk", options);
            REQUIRE(test::differing_bits(naive.o, answer.o) == 0);
            REQUIRE(test::differing_bits(naive.final_state, answer.final_state) == 0);
          }
      // And they are right: the oracle's values are integers too.
      const test::WholeOracle oracle = test::whole_oracle(problem);
      CHECK(test::rms_ratio(naive.o, oracle.o) == 0);
      CHECK(test::rms_ratio(naive.final_state, oracle.final_state) == 0);
    }
}

TEST_CASE("results are the same bits on any number of threads and in every run", "[laws]") {
  const kda::Problem problem = test::make_problem(rich_spec());
  for (const std::string_view name : names)
    for (const DType dtype : dtypes) {
      const kda::Answer one = test::run(problem, name, dtype, 1);
      for (const int threads : {1, 2, 3, 16}) {
        const kda::Answer again = test::run(problem, name, dtype, threads);
        INFO(name << ' ' << numeric::name_of(dtype) << ' ' << threads);
        REQUIRE(test::differing_bits(one.o, again.o) == 0);
        REQUIRE(test::differing_bits(one.final_state, again.final_state) == 0);
      }
    }
}

TEST_CASE("splitting the tokens and handing the state over changes nothing in a recurrence", "[laws]") {
  ProblemSpec spec = rich_spec();
  spec.B = 1;
  const kda::Problem problem = test::make_problem(spec);
  for (const std::string_view name : {"naive", "recurrent"})
    for (const DType dtype : {DType::fp64, DType::fp32}) {
      const kda::Answer whole = test::run(problem, name, dtype);
      for (const std::size_t cut : {1, 33, 64, 69}) {
        const kda::Answer first = test::run(slice(problem, 0, cut, nullptr), name, dtype);
        const kda::Answer second = test::run(slice(problem, cut, spec.T, &first.final_state), name, dtype);
        INFO(name << " cut at " << cut);
        CHECK(test::differing_bits(whole.final_state, second.final_state) == 0);
        CHECK(std::memcmp(whole.o.data(), first.o.data(), first.o.bytes()) == 0);
        CHECK(std::memcmp(whole.o.at(first.o.size()), second.o.data(), second.o.bytes()) == 0);
      }
    }
}

TEST_CASE("splitting at a chunk boundary changes nothing in the chunk form", "[laws]") {
  ProblemSpec spec = rich_spec();
  spec.B = 1, spec.chunk_size = 16;
  const kda::Problem problem = test::make_problem(spec);
  for (const DType dtype : dtypes) {
    const kda::Answer whole = test::run(problem, "chunk", dtype);
    const kda::Answer first = test::run(slice(problem, 0, 48, nullptr), "chunk", dtype);
    const kda::Answer second = test::run(slice(problem, 48, spec.T, &first.final_state), "chunk", dtype);
    CHECK(test::differing_bits(whole.final_state, second.final_state) == 0);
    CHECK(std::memcmp(whole.o.at(first.o.size()), second.o.data(), second.o.bytes()) == 0);
  }
}

TEST_CASE("changing a token changes nothing before it", "[laws]") {
  ProblemSpec spec = rich_spec();
  spec.B = 1;
  const kda::Problem problem = test::make_problem(spec);
  kda::Problem changed = kda::clone(problem);
  const std::size_t token = 41, g_row = spec.HV * spec.K, v_row = spec.HV * spec.V;
  changed.g.set(token * g_row + 3, -7.0);
  changed.v.set(token * v_row + 1, 100.0);
  for (const std::string_view name : names)
    for (const kda::DecayForm decay :
         {kda::DecayForm::pair, kda::DecayForm::anchor_pair, kda::DecayForm::anchor_first}) {
      kda::RunOptions options = test::default_options(problem, name, DType::fp32);
      options.arithmetic.decay = decay;
      const kda::Answer before = test::run(problem, name, options), after = test::run(changed, name, options);
      INFO(name);
      CHECK(std::memcmp(before.o.data(), after.o.data(), token * v_row * sizeof(float)) == 0);
      CHECK(test::differing_bits(before.o, after.o) > 0);
    }
}

TEST_CASE("with beta zero the state only decays", "[laws]") {
  ProblemSpec spec;
  spec.T = 40;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.beta.size(); ++i) problem.beta.set(i, 0.0);
  kda::Problem other_values = kda::clone(problem);
  for (std::size_t i = 0; i < other_values.v.size(); ++i) other_values.v.set(i, 17.0);
  for (const std::string_view name : names) {
    const kda::Answer answer = test::run(problem, name, DType::fp64);
    CHECK(test::differing_bits(answer.final_state, test::run(other_values, name, DType::fp64).final_state) ==
          0);
    for (std::size_t k = 0; k < spec.K; ++k) {
      double sum = 0;
      for (std::size_t t = 0; t < spec.T; ++t) sum += problem.g.value(t * spec.K + k);
      for (std::size_t v = 0; v < spec.V; ++v)
        CHECK(answer.final_state.value(k * spec.V + v) ==
              Approx(problem.initial_state->value(k * spec.V + v) * std::exp(sum)).epsilon(1e-12));
    }
  }
}

TEST_CASE("the two state layouts hold the same numbers", "[laws]") {
  ProblemSpec spec;
  spec.K = 12, spec.V = 20, spec.HV = spec.H = 2, spec.T = 30;
  const kda::Problem k_first = test::make_problem(spec);
  kda::Problem v_first = kda::clone(k_first);
  v_first.options.state_v_first = true;
  v_first.initial_state = tensor::transposed(*k_first.initial_state);
  v_first.validate();
  for (const std::string_view name : names)
    for (const DType dtype : dtypes) {
      const kda::Answer a = test::run(k_first, name, dtype), b = test::run(v_first, name, dtype, 3);
      REQUIRE(test::differing_bits(a.o, b.o) == 0);
      REQUIRE(test::differing_bits(a.final_state, tensor::transposed(b.final_state)) == 0);
    }
}

TEST_CASE("grouped value heads read the query and key head of their group", "[laws]") {
  ProblemSpec spec;
  spec.H = 2, spec.HV = 6, spec.T = 25;
  const kda::Problem grouped = test::make_problem(spec);
  kda::Problem repeated = kda::clone(grouped);
  constexpr std::size_t group_of[] = {0, 0, 0, 1, 1, 1};
  for (tensor::Tensor* const tensor : {&repeated.q, &repeated.k})
    *tensor = tensor::picked(*tensor, 2, group_of);
  repeated.validate();
  for (const std::string_view name : names) {
    const kda::Answer a = test::run(grouped, name, DType::fp32), b = test::run(repeated, name, DType::fp32);
    CHECK(test::differing_bits(a.o, b.o) == 0);
    CHECK(test::differing_bits(a.final_state, b.final_state) == 0);
  }
}

TEST_CASE("a packed sequence gives the bits it gives alone, an empty one keeps its state", "[laws]") {
  ProblemSpec spec;
  spec.T = 105, spec.HV = spec.H = 2, spec.cu_seqlens = {0, 1, 66, 66, 105};
  const kda::Problem packed = test::make_problem(spec);
  const std::size_t state_size = 2 * spec.K * spec.V;
  for (const std::string_view name : names)
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      const kda::Answer together = test::run(packed, name, dtype, 2);
      for (std::size_t n = 0; n < 4; ++n) {
        const auto begin = static_cast<std::size_t>(spec.cu_seqlens[n]),
                   end = static_cast<std::size_t>(spec.cu_seqlens[n + 1]);
        tensor::Tensor state("initial_state", packed.initial_state->dtype(), {1, 2, spec.K, spec.V});
        std::memcpy(state.data(), packed.initial_state->at(n * state_size), state.bytes());
        if (begin == end) {
          for (std::size_t i = 0; i < state_size; ++i)
            CHECK(together.final_state.value(n * state_size + i) == state.value(i));
          continue;
        }
        kda::Problem unpacked = kda::clone(packed);
        unpacked.cu_seqlens.clear();
        tensor::Tensor first_state = state.clone();
        unpacked.initial_state = std::move(first_state);
        const kda::Answer alone = test::run(slice(unpacked, begin, end, &state), name, dtype);
        INFO(name << " sequence " << n);
        CHECK(std::memcmp(alone.o.data(), together.o.at(begin * 2 * spec.V), alone.o.bytes()) == 0);
        CHECK(std::memcmp(alone.final_state.data(), together.final_state.at(n * state_size),
                          alone.final_state.bytes()) == 0);
      }
    }
}

TEST_CASE("batch rows and heads do not see each other", "[laws]") {
  const ProblemSpec spec = rich_spec();
  const kda::Problem problem = test::make_problem(spec);
  kda::Problem poisoned = kda::clone(problem);
  // Everything of batch row 1 becomes NaN.
  for (tensor::Tensor* const tensor : {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.g, &poisoned.beta})
    for (std::size_t i = tensor->size() / 2; i < tensor->size(); ++i) tensor->set(i, std::nan(""));
  for (const std::string_view name : names) {
    const kda::Answer clean = test::run(problem, name, DType::fp32),
                      dirty = test::run(poisoned, name, DType::fp32);
    CHECK(std::memcmp(clean.o.data(), dirty.o.data(), clean.o.bytes() / 2) == 0);
    CHECK(std::memcmp(clean.final_state.data(), dirty.final_state.data(), clean.final_state.bytes() / 2) ==
          0);
  }
}

}  // namespace laws_tests
