// In which pieces the oracle works through a problem: needs no GPU.
#include "cuda/truth/schedule.hpp"

#include "support/catch.hpp"

namespace oracle_steps_tests {

using namespace kda_check;

namespace {

/// Sequences of these lengths, one behind the other in one batch row.
std::vector<kda::Sequence> sequences_of(const std::vector<std::size_t>& lengths) {
  std::vector<kda::Sequence> sequences;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back({i, 0, begin, begin + lengths[i]});
    begin += lengths[i];
  }
  return sequences;
}

}  // namespace

TEST_CASE("the steps of the oracle have every token once, in order, within their bounds", "[oracle]") {
  for (const std::vector<std::size_t>& lengths : {std::vector<std::size_t>{0},
                                                  {1},
                                                  {64},
                                                  {65},
                                                  {1000},
                                                  {0, 0, 3, 0},
                                                  {30, 30, 30, 200, 1, 1, 64, 0, 65},
                                                  {1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    const std::vector<kda::Sequence> sequences = sequences_of(lengths);
    std::size_t sequence = 0, token = 0;
    bool is_open = false;
    for (const cuda::OracleStep& step : cuda::oracle_steps(sequences, 64, 4)) {
      CHECK(step.tokens() <= 64);
      CHECK(step.pieces.size() <= 4);
      CHECK(step.begins != is_open);
      for (const kda::Sequence& piece : step.pieces) {
        REQUIRE(piece.index == sequence);
        CHECK(piece.begin == sequences[sequence].begin + token);
        token += piece.length();
        if (step.ends) {
          CHECK(token == sequences[sequence].length());
          ++sequence, token = 0;
        } else {
          CHECK(step.pieces.size() == 1);
          CHECK(piece.length() == 64);
        }
      }
      is_open = !step.ends;
    }
    CHECK(sequence == sequences.size());
  }
}

}  // namespace oracle_steps_tests
