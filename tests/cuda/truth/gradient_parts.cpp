// In which parts the gradient oracle works through a problem: needs no GPU.
#include "cuda/truth/gradient_schedule.hpp"

#include "support/catch.hpp"

namespace gradient_parts_tests {

using namespace kda_check;

TEST_CASE("the parts of the gradient oracle have every token once, in order, with the states that enter them",
          "[gradient_oracle]") {
  const kda::Dimensions d{.B = 1, .T = 3000, .H = 64, .HV = 64, .K = 128, .V = 128, .N = 1};
  for (const std::vector<std::size_t>& lengths : {std::vector<std::size_t>{0},
                                                  {1},
                                                  {128},
                                                  {129},
                                                  {1000},
                                                  {0, 0, 3, 0},
                                                  {30, 30, 30, 400, 1, 1, 128, 0, 129},
                                                  {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    std::vector<kda::Sequence> sequences;
    std::size_t all = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      sequences.push_back({i, 0, all, all + lengths[i]});
      all += lengths[i];
    }
    const cuda::GradientSchedule schedule(sequences, d, 64);
    CHECK(schedule.checkpoint_tokens == 128);
    CHECK(schedule.tokens.size() == all);
    std::size_t sequence = 0, begin = 0, token = 0, piece_number = 0, checkpoint = 0;
    for (const cuda::GradientPart& part : schedule.parts) {
      CHECK(part.first_piece == piece_number);
      CHECK(part.sizes.rows <= 128);
      CHECK(part.sizes.rows <= schedule.most.rows);
      CHECK(part.sizes.groups <= schedule.most.groups);
      CHECK(part.pieces.size() <= 8);
      std::size_t row = 0, group = 0;
      for (const cuda::GradientPiece& piece : part.pieces) {
        REQUIRE(piece.sequence == sequence);
        CHECK(piece.first == token);
        CHECK(piece.begin == begin);
        CHECK(piece.length == lengths[sequence]);
        CHECK(piece.row == row);
        CHECK(piece.group == group);
        CHECK(piece.begins() == part.begins());
        if (!piece.begins()) CHECK(piece.checkpoint == checkpoint++);
        token += piece.count, row += piece.count;
        group += (piece.count + 3) / 4;
        begin += piece.count, ++piece_number;
        if (piece.ends()) ++sequence, begin = 0;
      }
    }
    CHECK(sequence == lengths.size());
    CHECK(checkpoint == schedule.checkpoints);
    CHECK(token == all);
  }
}

}  // namespace gradient_parts_tests
