#include <algorithm>

#include "hypotheses/naming/kernels.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace naming_tests {

TEST_CASE("a fault of one chunk, or from one on, is named with it", "[hypotheses][naming]") {
  Case c;
  c.T = 150, c.slow = true;
  const kda::Problem problem = problem_of(c);
  struct Part {
    std::size_t begin, end;
    const char* where;
  };
  test::Sampled sample(3);
  INFO(sample.text());
  for (const Part& part :
       {Part{0, 64, ", in chunk 0 alone (t=0..63)"}, Part{64, 128, ", in chunk 1 alone (t=64..127)"},
        Part{128, 150, ", in the last chunk alone (t=128..149)"}, Part{64, 150, ", from chunk 1 on (t=64)"}})
    for (const char* const name : {"beta_missing", "gate_mean"}) {
      if (!sample.next()) continue;
      kda::Problem misread = problem_of(c);
      for (std::size_t t = part.begin; t < part.end; ++t) {
        double mean = 0;
        for (std::size_t i = t * c.K; i < (t + 1) * c.K; ++i)
          mean += problem.g.value(i) / static_cast<double>(c.K);
        if (name == std::string("beta_missing")) misread.beta.set(t, 1);
        for (std::size_t i = t * c.K; i < (t + 1) * c.K && name == std::string("gate_mean"); ++i)
          misread.g.set(i, mean);
      }
      const hypotheses::Naming finding = probed(problem, mutant(misread, "none"));
      INFO(name << part.where);
      CHECK(names(finding) == name);
      if (finding.causes.empty()) continue;
      CHECK_THAT(finding.causes[0].meaning, Catch::Matchers::EndsWith(part.where));
    }
}

TEST_CASE("a matrix of the chunk form that is another one is named", "[hypotheses][naming]") {
  Case c;
  c.T = 96, c.K = 20, c.V = 16, c.H = c.HV = 3, c.slow = true;
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = hypotheses::answer_of(problem, hypotheses::Interpretation(problem));
  test::Sampled sample(250);
  INFO(sample.text());
  for (const hypotheses::plain::MovedMatrix& moved : hypotheses::plain::moved_matrices(false, true)) {
    if (!sample.next()) continue;
    hypotheses::Interpretation reading(problem);
    reading.chunk_fault = hypotheses::ChunkFault::moved;
    reading.site = moved.site, reading.move = moved.move;
    const kda::Answer wrong = hypotheses::answer_of(problem, reading);
    kda::Answer got{Tensor("o", DType::fp32, wrong.o.shape()),
                    Tensor("final_state", DType::fp32, wrong.final_state.shape())};
    for (std::size_t i = 0; i < got.o.size(); ++i) got.o.set(i, wrong.o.value(i));
    for (std::size_t i = 0; i < got.final_state.size(); ++i)
      got.final_state.set(i, wrong.final_state.value(i));
    const double error =
        std::max(relative_error(got.o, right.o), relative_error(got.final_state, right.final_state));
    INFO(moved.name() << " errs by " << error);
    if (moved.move->name == "halved") CHECK(error > 0.001);  // it is read
    if (!(error > 0.001)) continue;
    const hypotheses::Naming finding = probed(problem, got, {0, 1});
    INFO(names(finding) << (finding.nearest ? ", nearest " + finding.nearest->fault : std::string()));
    CHECK_FALSE(finding.causes.empty());
    if (finding.causes.empty()) continue;  // others may be the same: L and the keys of its rows
    CHECK(finding.causes[0].explained > 0.98);
  }
}

TEST_CASE("inputs of another head or in another order of rows are named", "[hypotheses][naming]") {
  Case c;
  c.T = 96, c.K = 20, c.V = 16, c.H = c.HV = 3;
  const kda::Problem problem = problem_of(c);
  const auto named = [&](Tensor kda::Problem::*input, auto from) {
    kda::Problem other = kda::clone(problem);
    const Tensor& own = problem.*input;
    const std::size_t width = own.shape()[3];
    for (std::size_t t = 0; t < c.T; ++t)
      for (std::size_t h = 0; h < c.H; ++h) {
        const auto [row, head] = from(t, h);
        for (std::size_t i = 0; i < width; ++i)
          (other.*input).set((t * c.H + h) * width + i, own.value((row * c.H + head) * width + i));
      }
    return names(probed(problem, mutant(other, "none"), {0, 1}));
  };
  const auto of_next_head = [](std::size_t t, std::size_t h) { return std::pair{t, (h + 1) % 3}; };
  const auto swapped = [](std::size_t t, std::size_t h) { return std::pair{t ^ 8, h}; };
  CHECK_THAT(named(&kda::Problem::k, of_next_head), ContainsSubstring("key_of_next_head"));
  CHECK_THAT(named(&kda::Problem::q, of_next_head), ContainsSubstring("query_of_next_head"));
  CHECK_THAT(named(&kda::Problem::v, swapped), ContainsSubstring("value_rows_swapped_8"));
  CHECK_THAT(named(&kda::Problem::k, swapped), ContainsSubstring("key_rows_swapped_8"));
  CHECK_THAT(named(&kda::Problem::g, swapped), ContainsSubstring("gate_rows_swapped_8"));
}

}  // namespace naming_tests
