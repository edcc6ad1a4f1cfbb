// What stands in the place of the truth where an answer is wrong: nothing, or the truth of somewhere else.
#pragma once

#include <string>
#include <vector>

#include "judge/spread/twin_test.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::engine {

class Likeness {
 public:
  /// Of an answer where it is farthest beyond its twins. Both must stay.
  Likeness(const judge::Excess& excess, const judge::RowLayout& layout, const tensor::Tensor& answer);

  /// Whether it depends on the truth of a head.
  bool needs(std::size_t head) const { return !looks_[head].empty(); }
  /// The truth of a head; from any thread, each head once.
  void take(std::size_t head, const judge::HeadRows& truth);
  /// "zero", "the values of the token before", "the values of the next head"; empty where nothing of that
  /// kind explains nine tenths of the error.
  std::string text() const;

 private:
  static constexpr std::size_t shift_count = 4;
  /// A row of the answer beside a row of the truth: its own (shift_count), or one that is shifted.
  struct Look {
    judge::RowPlace place;
    std::size_t truth_row, shift;
  };
  /// Of the looks at one head.
  struct Sums {
    bool zero = true, truth_is_zero = true;
    double error = 0, left[shift_count] = {};
  };

  const judge::RowLayout& layout_;
  const tensor::Tensor& answer_;
  std::vector<std::vector<Look>> looks_;  ///< by head of the truth
  std::vector<Sums> sums_;                ///< likewise
  std::size_t rows_ = 0, compared_[shift_count] = {};
};

}  // namespace kda_check::engine
