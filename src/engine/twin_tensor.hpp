// One tensor of answers that have the same twins, and its test.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/answered.hpp"
#include "judge/twin_test.hpp"

namespace kda_check::engine {

struct TwinTensor {
  std::string name;
  judge::RowLayout layout;
  numeric::DType dtype;
  std::vector<const Answered*> answers;
  std::size_t heads_per_query_head;
  std::unique_ptr<judge::TwinTest> test = nullptr;  ///< when all answers are known

  bool has_to_measure(std::size_t query_head) const {
    for (std::size_t i = 0; i < heads_per_query_head; ++i)
      if (test->has_to_measure(query_head * heads_per_query_head + i)) return true;
    return false;
  }
};

}  // namespace kda_check::engine
