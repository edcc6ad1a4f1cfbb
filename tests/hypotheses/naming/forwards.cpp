#include <cmath>
#include <functional>

#include "hypotheses/naming/kernels.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace naming_tests {

namespace {

/// q as a kernel has it that takes [B][T][H][K] for [B][H][T][K].
kda::Problem with_query_by_heads(const kda::Problem& problem) {
  kda::Problem other = kda::clone(problem);
  const kda::Dimensions& d = problem.dimensions();
  for (std::size_t t = 0; t < d.T; ++t)
    for (std::size_t h = 0; h < d.H; ++h)
      for (std::size_t k = 0; k < d.K; ++k)
        other.q.set((t * d.H + h) * d.K + k, problem.q.value((h * d.T + t) * d.K + k));
  return other;
}

/// The right answer where the second sequence begins elsewhere.
kda::Answer with_boundary(const kda::Problem& problem, std::int64_t at) {
  kda::Problem other = kda::clone(problem);
  other.cu_seqlens[1] = at;
  return mutant(other, "none");
}

/// Of rows that are about the chunk form.
bool is_of_chunk_form(const hypotheses::Fault& fault, const kda::Problem& problem) {
  hypotheses::Interpretation reading(problem);
  fault.apply(reading, 0);
  return reading.chunk_fault != hypotheses::ChunkFault::none;
}

}  // namespace

TEST_CASE("a fault of every table is found by its name", "[hypotheses][faults]") {
  for (const hypotheses::Fault& row : hypotheses::faults())
    CHECK(hypotheses::fault_named(std::string(row.name)).of_output->name == row.name);
  for (const hypotheses::GradientFault& row : hypotheses::gradient_faults())
    CHECK(hypotheses::fault_named(row.name).of_gradients == &row);
  for (const hypotheses::PoolFault& row : hypotheses::pool_faults())
    CHECK(hypotheses::fault_named(row.name).of_pool == &row);
  CHECK(hypotheses::fault_named("inverse_doubling_32_in_bf16").of_matrix);
  CHECK(hypotheses::fault_named("write_lost:7").at == 7);
  CHECK(hypotheses::fault_named("gate_factor:0.5").at == 500'000'000);
}

TEST_CASE("the scalar kernel of these tests without a mistake is right", "[hypotheses][naming]") {
  for (const char* const name :
       {"exp2", "gate_raw", "gate_lower_bound", "beta_not_doubled", "l2norm_missing"}) {
    const kda::Problem problem = problem_of(case_for(name));
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    const kda::Answer answer = mutant(problem, "none");
    CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-7);
    CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-7);
    CHECK(names(probed(problem, answer)).empty());
  }
  const kda::Problem problem = problem_of({});
  const test::WholeOracle oracle = test::whole_oracle(problem, 2);
  const kda::Answer answer = chunk_mutant(problem, "none", DType::fp32);
  CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-7);
  CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-7);
}

TEST_CASE("every fault is named when a kernel has exactly this one", "[hypotheses][naming]") {
  test::Sampled sample(40);
  INFO(sample.text());
  std::vector<std::pair<std::string, const hypotheses::Fault*>> list;
  for (const hypotheses::Fault& fault : hypotheses::faults())
    for (const char* const part : {"", "_in_first_channels", "_in_last_channels"})
      if (fault.in_part != std::string(part).empty())
        list.emplace_back(std::string(fault.name) + part, &fault);
  for (const auto& [name, row] : list) {
    if (!sample.next()) continue;
    const hypotheses::Fault& fault = *row;
    kda::Problem problem = problem_of(case_for(name));
    if (name == "lower_bound_of_usual") problem.options.lower_bound = -3;
    INFO(name);
    REQUIRE(fault.applies(problem));
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (fault.at == hypotheses::Fault::At::chunk && dtype == DType::bf16) continue;  // as in fp32
      const kda::Answer answer = is_of_chunk_form(fault, problem) ? chunk_mutant(problem, name, dtype)
                                 : name == "sequence_late" || name == "sequence_early"
                                     ? with_boundary(problem, name == "sequence_late" ? 61 : 59)
                                 : name == "input_in_other_layout"
                                     ? mutant(with_query_by_heads(problem), "none", dtype)
                                     : mutant(problem, name, dtype, 64);
      // Nothing else of the problem is wrong.
      const bool is_second =
          (!problem.cu_seqlens.empty() && name != "rows_behind") ||
          (problem.dimensions().HV > 1 && name != "heads_interleaved" && name != "key_interleaved");
      const std::size_t behind = problem.sequences().size() > 4 ? 2 : 1;  // where all readings differ
      const hypotheses::FailurePlace place{problem.sequences().size() - behind, problem.dimensions().HV - 1};
      const hypotheses::Naming finding =
          probed(problem, answer, is_second ? place : hypotheses::FailurePlace{});
      INFO(name << ' ' << numeric::name_of(dtype)
                << (finding.nearest ? ", nearest " + finding.nearest->fault : std::string()));
      // Two heads of two need not tell whose state it is.
      if (fault.is_variation && name.starts_with("initial_state_"))
        CHECK_THAT(names(finding), ContainsSubstring(name));
      else if (dtype == DType::bf16 && name.starts_with("state_") && name.find("_in_") != std::string::npos)
        CHECK_THAT(names(finding), ContainsSubstring(name));  // o rounded hides who reads the state first
      else
        CHECK(names(finding) == name);
      if (finding.causes.empty()) continue;
      CHECK(finding.causes[0].explained > 0.99);
      if (fault.at == hypotheses::Fault::At::token || fault.at == hypotheses::Fault::At::start)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(t=64)"));
      if (fault.at == hypotheses::Fault::At::part)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(parts of 64)"));
      if (fault.at == hypotheses::Fault::At::block)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(block 2,0: L(2,1) A(1,0))"));
      if (fault.at == hypotheses::Fault::At::row)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(": the same one of the first chunk"));
      if (fault.at == hypotheses::Fault::At::factor)
        CHECK_THAT(finding.causes[0].meaning,
                   ContainsSubstring(name == "gate_raised"      ? "a bound: -0.7"
                                     : name == "epsilon_larger" ? "larger by 0.01"
                                                                : ": 0.7 of what it should be"));
      if (fault.at == hypotheses::Fault::At::function)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(": x sigmoid(x)"));
      if (fault.at == hypotheses::Fault::At::layout)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(": q as [B,heads,T,width]"));
      if (fault.at == hypotheses::Fault::At::chunk)
        CHECK_THAT(finding.causes[0].meaning, ContainsSubstring("(chunks of 64)"));
    }
  }
}

TEST_CASE("a fault of some columns is named with them", "[hypotheses][naming]") {
  Case c;
  c.slow = true;
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = mutant(problem, "none");
  test::Sampled sample(2);
  INFO(sample.text());
  for (const std::size_t first : {0, 24})
    for (const char* const name : {"beta_twice", "readout_undecayed"}) {
      if (!sample.next()) continue;
      INFO(name << ' ' << first);
      kda::Answer answer = std::string(name) == "readout_undecayed" ? chunk_mutant(problem, name, DType::fp32)
                                                                    : mutant(problem, name);
      for (const auto& [tensor, of] :
           {std::pair(&answer.o, &right.o), {&answer.final_state, &right.final_state}})
        for (std::size_t i = 0; i < tensor->size(); ++i)
          if (i % c.V < first || i % c.V >= first + 8) tensor->set(i, of->value(i));
      const hypotheses::Naming finding = probed(problem, answer);
      CHECK(names(finding) == name);
      if (finding.causes.empty()) continue;
      CHECK_THAT(finding.causes[0].meaning,
                 Catch::Matchers::EndsWith(", in columns " + std::to_string(first) + ".." +
                                           std::to_string(first + 7) + " alone"));
    }
}

TEST_CASE("a state transposed is named in both layouts, square or not", "[hypotheses][naming]") {
  for (const bool v_first : {false, true})
    for (const std::size_t V : {48, 32})
      for (const char* const name :
           {"initial_state_transposed", "final_state_transposed", "states_transposed"}) {
        Case c;
        c.T = 12, c.V = V, c.v_first = v_first;
        const kda::Problem problem = problem_of(c);
        INFO(name << ' ' << V << ' ' << v_first);
        CHECK(names(probed(problem, mutant(problem, name))) == name);
      }
}

TEST_CASE("numbers of tokens that nobody foresaw are told from the rows that they give",
          "[hypotheses][naming]") {
  Case c;
  c.K = 16, c.slow = true;
  const kda::Problem problem = problem_of(c);
  const auto told = [&](const std::string& fault, const std::string& sentence, auto change) {
    kda::Problem other = kda::clone(problem);
    test::Random random(7);
    change(other, random);
    const hypotheses::Naming finding = probed(problem, mutant(other, "none"));
    INFO(fault << ": " << (finding.nearest ? finding.nearest->fault : ""));
    CHECK(names(finding) == fault);
    if (!finding.causes.empty()) CHECK_THAT(finding.causes[0].meaning, ContainsSubstring(sentence));
  };
  const auto scaled = [&](Tensor& rows, std::size_t width, test::Random& random) {
    for (std::size_t t = 30; t < c.T; t += 3) {
      const double factor = random.uniform(0.5, 0.9);
      for (std::size_t i = t * width; i < (t + 1) * width; ++i) rows.set(i, factor * rows.value(i));
    }
  };
  told("beta_of_tokens", "beta has other values: at 110 of 130 tokens that of 20 tokens before",
       [&](kda::Problem& p, test::Random&) {
         for (std::size_t t = c.T; t-- > 20;) p.beta.set(t, p.beta.value(t - 20));
       });
  told("beta_of_tokens key_of_tokens", "from t=30 on, 0 of what it should be",
       [&](kda::Problem& p, test::Random&) {
         for (std::size_t t = 30; t < c.T; t += 3) p.beta.set(t, 0);
       });
  told("query_of_tokens", "at 34 of 130 tokens: t=30 0.",
       [&](kda::Problem& p, test::Random& random) { scaled(p.q, c.K, random); });
  told("value_of_tokens", "at 34 of 130 tokens: t=30 0.",
       [&](kda::Problem& p, test::Random& random) { scaled(p.v, c.V, random); });
  told("key_of_tokens", "at 34 of 130 tokens: t=30 0.",
       [&](kda::Problem& p, test::Random& random) { scaled(p.k, c.K, random); });
  told("other_state", "the state before t=0 is another one", [&](kda::Problem& p, test::Random& random) {
    for (std::size_t i = 0; i < p.initial_state->size(); ++i) p.initial_state->set(i, random.normal());
  });
}

TEST_CASE(
    "pairs of rows that are lost where nothing decays between them are told from the rows that they give",
    "[hypotheses][naming]") {
  kda::Problem problem = problem_of({});
  for (std::size_t i = 0; i < problem.g.size(); ++i)
    if (i / 48 % 7 > 1) problem.g.set(i, 0);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const hypotheses::Naming finding = probed(problem, chunk_mutant(problem, "undecayed_pairs_lost", dtype));
    CHECK(names(finding) == "undecayed_pairs_lost");
    if (!finding.causes.empty()) CHECK(finding.causes[0].explained > 0.99);
  }
}

TEST_CASE("what the answer cannot tell apart is named together", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  const kda::Answer answer = mutant(problem, "last_token_dropped");
  const hypotheses::Naming finding = hypotheses::name_fault(problem, {&answer.o, nullptr, 2e-6, 0}, {}, 2);
  CHECK(names(finding) == "last_token_dropped last_row_unwritten");
}

TEST_CASE("noise is explained by no fault", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  for (const double size : {1e-5, 1e-2, 1.0}) {
    kda::Answer answer = mutant(problem, "none");
    test::Random random(9);
    for (Tensor* const tensor : {&answer.o, &answer.final_state})
      for (std::size_t i = 0; i < tensor->size(); ++i)
        tensor->set(i, tensor->value(i) * (1 + size * random.normal()));
    const hypotheses::Naming finding = probed(problem, answer);
    INFO(size);
    CHECK(names(finding).empty());
    CHECK(finding.tried > 25);
  }
}

TEST_CASE("two mistakes at once are named together", "[hypotheses][naming]") {
  Case c;
  c.slow = true;
  const kda::Problem problem = problem_of(c);
  test::Sampled sample(3);
  INFO(sample.text());
  for (const char* const both :
       {"exp2 and beta_twice", "gate_missing and final_state_transposed",
        "output_doubled and initial_state_missing", "log2e_twice and initial_state_missing"})
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (!sample.next()) continue;
      INFO(both << numeric::name_of(dtype));
      CHECK(names(probed(problem, mutant(problem, both, dtype))) == both);
    }
}

TEST_CASE("what a fault explains but for a little is said to be near, with its share",
          "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  kda::Problem rescaled = problem_of({});
  for (std::size_t i = 0; i < problem.g.size(); ++i) rescaled.g.set(i, -0.001 * problem.g.value(i));
  const hypotheses::Naming finding = probed(problem, mutant(rescaled, "none"));
  CHECK(names(finding).empty());
  REQUIRE(finding.nearest);
  // g is zero, for all tokens or, of the matrices of a chunk, for those of one.
  CHECK((finding.nearest->fault == "gate_missing" || finding.nearest->fault == "gate_lost"));
  CHECK(finding.nearest->explained > 0.99);
  CHECK(finding.nearest->explained < 1);
}

TEST_CASE("what is wrong besides a fault is left unexplained", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  kda::Answer answer = mutant(problem, "exp2");
  test::Random random(5);
  for (Tensor* const tensor : {&answer.o, &answer.final_state})
    for (std::size_t i = 0; i < tensor->size(); ++i)
      tensor->set(i, tensor->value(i) * (1 + 0.03 * random.normal()));
  const hypotheses::Naming finding = probed(problem, answer);
  CHECK(names(finding).empty());
  REQUIRE(finding.nearest);
  CHECK(finding.nearest->fault == "exp2");
  CHECK(finding.nearest->explained < 0.99);
}

TEST_CASE("a failure late in a long sequence is looked at where it is", "[hypotheses][naming]") {
  Case c;
  c.T = 2100, c.K = 16, c.V = 8;
  const kda::Problem problem = problem_of(c);
  for (const char* const name :
       {"exp2", "row_stale", "last_token_dropped", "final_state_transposed", "write_lost", "gate_late"}) {
    const hypotheses::Naming finding = probed(problem, mutant(problem, name, DType::fp32, 1900));
    INFO(name << " t=" << finding.begin << ".." << finding.end);
    // Their outputs are the same, but for the final state.
    const bool is_late = std::string(name) == "gate_late";
    CHECK(names(finding) == (is_late ? "gate_late gate_behind_update" : name));
    CHECK(finding.end - finding.begin <= 256 + 64);
  }
}

TEST_CASE("a mistake is named from the tokens before the answer overflows", "[hypotheses][naming]") {
  const kda::Problem problem = problem_of({});
  kda::Answer answer = mutant(problem, "exp2");
  for (std::size_t i = 90 * 32; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  for (std::size_t i = 0; i < answer.final_state.size(); ++i) answer.final_state.set(i, HUGE_VAL);
  const hypotheses::Naming finding = probed(problem, answer);
  CHECK(names(finding) == "exp2");
  CHECK(finding.end == 90);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  CHECK(names(probed(problem, answer)).empty());
}

TEST_CASE("a mistake that overflows in its first tokens is named from where infinities are",
          "[hypotheses][naming]") {
  kda::Problem problem = problem_of(case_for("dt_bias_behind"));
  for (std::size_t i = 0; i < problem.dt_bias->size(); ++i) problem.dt_bias->set(i, -30);
  for (std::size_t h = 0; h < problem.A_log->size(); ++h) problem.A_log->set(h, std::log(4));
  const kda::Answer answer = mutant(problem, "dt_bias_behind");
  REQUIRE(std::isinf(answer.o.value(0)));
  CHECK(names(probed(problem, answer)) == "dt_bias_behind");
}

TEST_CASE("an answer that is right up to its first NaN is explained by no fault", "[hypotheses][naming]") {
  const kda::Problem problem = test::exact_problem(64, 16, 8, DType::fp32);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  for (std::size_t i = 30 * 8; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  const hypotheses::Naming finding = probed(problem, answer);
  CHECK(names(finding).empty());
  CHECK(!finding.nearest);
  CHECK(finding.end == 30);
}

TEST_CASE("values whose squares overflow do not confuse the order of the faults", "[hypotheses][naming]") {
  Case c;
  c.T = 700, c.K = 8, c.V = 8;
  const kda::Problem problem = problem_of(c);
  CHECK(names(probed(problem, mutant(problem, "exp2", DType::fp64))) == "exp2");
}

TEST_CASE("the sequence of a packed batch that failed is the one looked at", "[hypotheses][naming]") {
  Case c;
  c.T = 60, c.cu_seqlens = {0, 25, 25, 60};
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = mutant(problem, "none"), wrong = mutant(problem, "initial_state_missing");
  kda::Answer answer = mutant(problem, "none");
  for (std::size_t i = 25 * 32; i < answer.o.size(); ++i) answer.o.set(i, wrong.o.value(i));
  for (std::size_t i = 2 * 48 * 32; i < answer.final_state.size(); ++i)
    answer.final_state.set(i, wrong.final_state.value(i));
  // Sums of gates of the whole row leave as little of it, and the first sequence right, as it is here.
  CHECK(names(probed(problem, answer, {2, 0})) == "gate_sums_of_stream initial_state_missing");
  CHECK(names(probed(problem, answer, {0, 0})).empty());
}

}  // namespace naming_tests
