// The truth of a pass, some query heads at a time: whole it would be the largest thing in memory.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "judge/measures/head_values.hpp"
#include "kda/terms/row_error_sums.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/oracle.hpp"
#include "tensor/unfilled.hpp"

namespace kda_check::engine {

/// Of query heads [first, first + count): by tensor, as a problem of these heads alone would have it.
struct HeadTruths {
  std::size_t first = 0, count = 0;
  using Values = std::map<std::string, std::span<const double>, std::less<>>;
  Values tensors = {};
  using OnGpu = std::map<std::string, kda::TensorOnGpu, std::less<>>;
  OnGpu on_gpu = {};  ///< what is there, too or alone
};

/// One head, counted in the whole tensor that `layout` is of.
judge::HeadRows truth_of(const HeadTruths& truths, std::string_view tensor, const judge::RowLayout& layout,
                         std::size_t head);

class TruthSource {
 public:
  virtual ~TruthSource() = default;
  /// How many heads it is best asked for.
  virtual std::size_t at_once() const = 0;
  /// Of these heads at least; valid until it is asked again.
  virtual HeadTruths of(std::size_t first, std::size_t count) = 0;
};

/// Calls body(truths, first, count) for all of `query_heads` heads that are wanted, in their order, some at
/// once.
void for_heads(TruthSource& source, std::size_t query_heads,
               const std::function<bool(std::size_t query_head)>& is_wanted,
               const std::function<void(const HeadTruths&, std::size_t first, std::size_t count)>& body);

/// o and states: the oracle runs for every question.
class ForwardTruths : public TruthSource {
 public:
  /// `problem` must stay.
  ForwardTruths(const kda::Problem& problem, kda::OracleOptions options, int threads, std::size_t at_once)
      : problem_(problem), options_(std::move(options)), threads_(threads), at_once_(at_once) {}

  std::size_t at_once() const override { return at_once_; }
  HeadTruths of(std::size_t first, std::size_t count) override { return of(first, count, {}); }
  /// `also` sees all that the oracle hands out. `on_gpu`: o is wanted there, and there alone if there is
  /// room.
  HeadTruths of(std::size_t first, std::size_t count, const kda::OracleSink& also, bool on_gpu = false);

 private:
  /// Of the heads that were asked for last.
  struct Held {
    std::map<std::string, tensor::Unfilled, std::less<>> tensors = {};  // threads fill their parts
    kda::TensorOnGpu o_on_gpu = {};
  };
  /// Takes the values of some heads to `held`.
  kda::OracleSink kept(std::size_t first, std::size_t count, Held& held, bool on_gpu) const;

  const kda::Problem& problem_;
  const kda::OracleOptions options_;
  const int threads_;
  const std::size_t at_once_;
  Held values_;
};

/// Copies of the values of `truths`; none where there is no memory.
HeadTruths::OnGpu copied_to_gpu(const kda::GradientTruths& truths);

/// Gradients, whose truth is whole in any case.
class GradientHeads : public TruthSource {
 public:
  /// Keeps the values of `truths` alone. `on_gpu`: those that are there, too.
  GradientHeads(std::size_t query_heads, kda::GradientTruths truths, HeadTruths::OnGpu on_gpu, int threads);

  std::size_t at_once() const override { return query_heads_; }
  HeadTruths of(std::size_t first, std::size_t count) override;

 private:
  const std::size_t query_heads_;
  kda::GradientTruths truths_;
  const HeadTruths::OnGpu on_gpu_;
};

}  // namespace kda_check::engine
