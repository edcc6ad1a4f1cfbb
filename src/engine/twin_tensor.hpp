// What is measured of answers that have the same twins: a tensor - an output, a gradient, a stage - and its
// test, the sizes of errors in a gradient of parameters.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/head_truths.hpp"
#include "engine/twin_heads.hpp"
#include "judge/spread/twin_test.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::engine {

/// What twins say, by tensor of an answer.
using TwinResults = std::map<const tensor::Tensor*, judge::TwinJudgement>;

struct TwinTensor {
  std::string name;
  judge::RowLayout layout;
  numeric::ComputeFormat compute;
  numeric::DType dtype;
  std::size_t heads_per_query_head;
  std::vector<const tensor::Tensor*> answers = {};
  std::unique_ptr<judge::TwinTest> test = nullptr;  ///< when all answers are known

  /// `every`: of so many query heads one is measured beside all twins, and those that the first of them does
  /// not give.
  void begin(TwinsOf what, std::size_t twins, std::size_t stable = 0, std::optional<double> left = {},
             std::size_t every = 1);
  bool has_to_measure(std::size_t query_head) const;
  /// `values`: of its head `head`, which is number `i` of the query head.
  void measure(std::size_t query_head,
               const std::function<judge::HeadValues(std::size_t head, std::size_t i)>& values);
  /// The same where the first twin, alone in `values`, is enough: false, where it is not in all heads.
  bool settle(std::size_t query_head,
              const std::function<judge::HeadValues(std::size_t head, std::size_t i)>& values);
};

/// When all heads were measured.
void conclude(const std::vector<const TwinTensor*>& tensors, int threads, TwinResults& results);

/// The errors of twins in a gradient of parameters, which has no rows to judge.
struct TwinParameter {
  std::string name;
  std::size_t per_head, heads_per_query_head;  ///< elements of a value head
  std::size_t every;                           ///< as of TwinTensor::begin
  std::vector<const tensor::Tensor*> answers;
  struct Sums {
    numeric::ProductSum truth;
    std::vector<numeric::ProductSum> errors;    ///< by twin, then by answer; of the first alone if that is it
    std::vector<numeric::ProductSum> to_first;  ///< how far from the first twin: twins, then answers
  };
  std::vector<Sums> heads;              ///< by value head
  std::set<std::size_t> reopened = {};  ///< query heads: judge::TwinTest::reopen

  std::size_t per_query_head() const { return heads_per_query_head * per_head; }
  bool has_to_measure(std::size_t query_head) const {
    return heads[query_head * heads_per_query_head].errors.empty();
  }

  /// Of which errors are known.
  std::size_t twin_count() const {
    return heads.front().errors.empty() ? 0 : heads.front().errors.size() - answers.size();
  }

  bool is_in_full(std::size_t query_head) const {
    return query_head % every == 0 || reopened.contains(query_head);
  }
  static bool is_settled(const Sums& sums) { return sums.errors.size() == 1; }

  /// What a twin has of a query head, from an element of a tensor on.
  struct Values {
    const tensor::Tensor* tensor;
    std::size_t first;
  };
  /// False, and nothing is measured: there is but the first twin, and it does not give the answers.
  bool measure(std::size_t query_head, const HeadTruths& truths, const std::vector<Values>& twins);
  /// As judge::TwinTest::reopen.
  bool reopen();
  /// Of the twins from `first` on; 0 where none of them is finite.
  double largest_rms_ratio(std::size_t first) const;
  /// Of an answer that the first twin computes but for `left` of its error: how far it is from that, in units
  /// of what the first `compared` twins are; nothing where that is not finite. `factor`: as in
  /// judge::TwinSetting.
  std::optional<judge::TwinJudgement> judgement(std::size_t answer, std::size_t compared, double left,
                                                double factor) const;
  /// Of an answer that computes unlike anything that is known: the head whose error is the most times
  /// that of the worst twin there, a single element being small in all of them by luck.
  std::optional<judge::TwinJudgement> worst_head(std::size_t answer, std::size_t compared) const;
};

}  // namespace kda_check::engine
