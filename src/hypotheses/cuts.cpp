#include "hypotheses/cuts.hpp"

#include <algorithm>
#include <numeric>

#include "kda/bounds/log_decays.hpp"
#include "kda/problem/heads.hpp"
#include "kda/problem/shapes.hpp"
#include "kda/truth/places.hpp"
#include "numeric/formats.hpp"

namespace kda_check::hypotheses {

namespace {

constexpr std::size_t fewest_tokens = 256, chunks = 3, heads = 3;
constexpr std::size_t longest_backwards = 1024;             ///< sequences whose gradients are computed whole
constexpr std::size_t beginnings[] = {16, 64};              ///< tokens of each sequence
constexpr std::size_t fewest_last = 32, whole_chunks = 64;  ///< tokens of an end
constexpr std::size_t most_sequences = 16,
                      most_state_elements = std::size_t{1} << 21;  ///< that are copied for each try
constexpr std::size_t further = 4;  ///< times the tokens of the first cut are those of the second

std::vector<std::size_t> all_of(std::size_t count) {
  std::vector<std::size_t> list(count);
  std::iota(list.begin(), list.end(), std::size_t{0});
  return list;
}

class Cutting {
 public:
  Cutting(const RecordedOutput& recorded, const Hypothesis* forward, int threads)
      : recorded_(recorded),
        forward_(forward),
        threads_(threads),
        tokens_(std::max(fewest_tokens, chunks * static_cast<std::size_t>(problem().options.chunk_size))) {}

  Cuts run() const {
    const kda::Dimensions& d = problem().dimensions();
    const bool is_backward = recorded_.pass() == kda::Pass::backward;
    std::size_t longest = 0, total = 0;
    for (const kda::Sequence& one : problem().sequences())
      longest = std::max(longest, one.length()), total += one.length();
    const std::size_t whole = std::max(longest_backwards, tokens_);
    const bool is_short = is_backward && longest <= whole;
    if (total * d.HV <= heads * (is_short ? whole : tokens_) && d.N * d.HV * d.K * d.V <= most_state_elements)
      return everything();
    std::vector<kda::Sequence> first, rest;
    std::size_t tokens = 0;
    for (const kda::Sequence& piece : in_order(is_short)) {
      const bool is_wanted = tokens < tokens_ && first.size() < most_sequences;
      if (is_wanted) tokens += piece.length();
      (is_wanted ? first : rest).push_back(piece);
    }
    if (first.empty()) return everything();
    const auto [queries, others] = chosen(heads_by_decay(first.front()));
    if (is_backward && !is_short)
      return {last_of(queries, longest_in(first), begin_of_last(longest_in(first), tokens_, fewest_tokens)),
              {},
              small_of(queries, first)};
    const bool is_beginning = !is_backward && first.size() == 1 && first.front().length() > tokens_;
    RecordedPart part =
        recorded_.parts(queries, is_beginning ? std::vector{first.front().part(0, tokens_)} : first);
    if (part.recorded.empty()) return everything();  // a final state, or a sum over all tokens
    Cuts cuts{with_truth(std::move(part)), {}, small_of(queries, first)};
    const std::vector<std::size_t>& again = others.empty() ? queries : others;
    if (is_beginning) {
      cuts.second = with_truth(recorded_.parts(again, {first.front().block(0, further * tokens_)}));
      cuts.second->from_token = tokens_;
    } else if (!rest.empty()) {
      rest.resize(std::min(rest.size(), first.size()));
      for (kda::Sequence& piece : rest)
        if (!is_backward) piece = piece.block(0, tokens_);
      cuts.second = with_truth(recorded_.parts(again, rest));
    } else if (!others.empty()) {
      cuts.second = with_truth(recorded_.parts(others, first));
    }
    return cuts;
  }

 private:
  const kda::Problem& problem() const { return recorded_.problem(); }

  Cuts everything() const {
    const std::vector<std::size_t> all = all_of(problem().dimensions().H);
    return {with_truth(recorded_.heads(all)), {}, small_of(all, in_order(false))};
  }

  std::vector<Cut> small_of(const std::vector<std::size_t>& queries,
                            const std::vector<kda::Sequence>& pieces) const {
    std::vector<Cut> list;
    if (pieces.empty()) return list;
    if (recorded_.pass() == kda::Pass::backward) {
      const kda::Sequence& longest = longest_in(pieces);
      if (recorded_.tensors().contains("dv") && begin_of_last(longest, fewest_last, whole_chunks) > 0)
        list.push_back(last_of(queries, longest, begin_of_last(longest, fewest_last, whole_chunks)));
      return list;
    }
    if (!recorded_.tensors().contains("o")) return list;
    for (const std::size_t tokens : beginnings) {
      std::vector<kda::Sequence> first;
      for (const kda::Sequence& piece : pieces) first.push_back(piece.block(0, std::min(tokens, tokens_)));
      list.push_back(with_truth(recorded_.parts(queries, first)));
    }
    return list;
  }

  Cut with_truth(RecordedPart part) const {
    HeldOracle truth = truth_of(part.problem);
    return {std::move(part), std::move(truth), 0};
  }
  HeldOracle truth_of(const kda::Problem& part) const {
    const kda::OracleOptions options(kda::OraclePrecision::double_double);
    if (recorded_.pass() == kda::Pass::forward) return hold_oracle(part, options, threads_);
    return hold_gradient_oracle(part, options, static_cast<std::size_t>(part.options.chunk_size), threads_);
  }

  /// Those that are long enough first, the shortest of them where they are taken whole; then from the longest
  /// on.
  std::vector<kda::Sequence> in_order(bool shortest) const {
    std::vector<kda::Sequence> list = problem().sequences();
    std::erase_if(list, [](const kda::Sequence& one) { return one.length() == 0; });
    std::ranges::stable_sort(list, [&](const kda::Sequence& a, const kda::Sequence& b) {
      const bool is_enough = a.length() >= tokens_;
      if (is_enough != (b.length() >= tokens_)) return is_enough;
      if (is_enough && !shortest) return false;
      return is_enough ? a.length() < b.length() : a.length() > b.length();
    });
    return list;
  }

  /// Query heads by their mean log decay, on the first tokens of a sequence.
  std::vector<std::size_t> heads_by_decay(const kda::Sequence& sequence) const {
    const kda::Problem part =
        kda::with_log_decays(kda::excerpt(problem(), {sequence.block(0, tokens_)}, kda::Layout::rows));
    const kda::Dimensions& d = part.dimensions();
    const std::size_t width = part.g.size() / (d.B * d.T * d.HV), group = d.HV / d.H;
    std::vector<double> sums(d.H);
    for (std::size_t i = 0; i < part.g.size(); ++i) sums[i / width % d.HV / group] += part.g.value(i);
    std::vector<std::size_t> order = all_of(d.H);
    std::ranges::stable_sort(order, {}, [&](std::size_t head) { return sums[head]; });
    return order;
  }

  /// The least, the median, the most; and, of the others, as many.
  std::pair<std::vector<std::size_t>, std::vector<std::size_t>> chosen(
      const std::vector<std::size_t>& order) const {
    std::vector<std::size_t> first{order.front(), order[order.size() / 2], order.back()}, others;
    std::ranges::sort(first);
    first.erase(std::unique(first.begin(), first.end()), first.end());
    const std::size_t step = std::max<std::size_t>(1, order.size() / heads);
    for (std::size_t i = step / 2; i < order.size() && others.size() < heads; ++i)
      if (std::ranges::find(first, order[i]) == first.end()) others.push_back(order[i]), i += step - 1;
    // A group of value heads is not cut.
    const std::size_t most = std::max<std::size_t>(1, heads / problem().heads_per_group());
    first.resize(std::min(first.size(), most)), others.resize(std::min(others.size(), most));
    std::ranges::sort(others);
    return {first, others};
  }

  static const kda::Sequence& longest_in(const std::vector<kda::Sequence>& pieces) {
    return *std::ranges::max_element(pieces, {}, &kda::Sequence::length);
  }

  /// Where chunks of `whole` tokens and the problem's end, and `fewest` or more follow.
  std::size_t begin_of_last(const kda::Sequence& sequence, std::size_t fewest, std::size_t whole) const {
    const std::size_t step =
        std::lcm<std::size_t>(whole, static_cast<std::size_t>(problem().options.chunk_size));
    return (sequence.length() - std::min(sequence.length(), fewest)) / step * step;
  }

  Cut last_of(const std::vector<std::size_t>& queries, const kda::Sequence& sequence,
              std::size_t begin) const {
    if (begin == 0) return with_truth(recorded_.parts(queries, {sequence}));
    const kda::Problem of_heads =
        kda::with_heads(problem(), queries, kda::value_heads_of(problem(), queries));
    const kda::Problem before = kda::excerpt(of_heads, {sequence.part(0, begin)}, kda::Layout::rows);
    const kda::Dimensions& d = before.dimensions();
    std::vector<double> exact(d.HV * d.K * d.V);
    kda::run_oracle(before, {kda::OraclePrecision::double_double}, threads_,
                    kda::by_places(d, {}, [&](const kda::OraclePart& part) {
                      std::copy_n(part.hi, part.count, &exact[part.first]);
                    }));
    kda::RunOptions options;
    if (forward_ != nullptr) options = forward_->options;
    options.threads = threads_;
    const kda::Variant& variant = forward_ != nullptr ? *forward_->variant : kda::variant_named("recurrent");
    const kda::Tensors brought = kda::run_pass(kda::Pass::forward, variant, before, options);
    // One state for each sequence of the whole, of which this one's is read.
    const auto states_of = [&](numeric::DType dtype, auto value) {
      tensor::Tensor states = kda::zeros_of("initial_state", of_heads, dtype);
      const std::size_t count = states.size() / of_heads.dimensions().N;
      for (std::size_t i = 0; i < count; ++i) states.set(sequence.index * count + i, value(i));
      return states;
    };
    const tensor::Tensor& computed = brought.at("final_state");
    const tensor::Tensor true_states =
                             states_of(numeric::DType::fp64, [&](std::size_t i) { return exact[i]; }),
                         states =
                             states_of(computed.dtype(), [&](std::size_t i) { return computed.value(i); });
    const kda::Sequence last = sequence.part(begin, sequence.length());
    const kda::Problem true_part = kda::excerpt(of_heads, {last}, kda::Layout::rows, {&true_states, nullptr});
    RecordedPart part = recorded_.parts(queries, {last}, {&states, nullptr});
    return {std::move(part), truth_of(true_part), 0};
  }

  const RecordedOutput& recorded_;
  const Hypothesis* const forward_;
  const int threads_;
  const std::size_t tokens_;
};

}  // namespace

Cuts cuts_of(const RecordedOutput& recorded, const Hypothesis* forward, int threads) {
  Cuts cuts = Cutting(recorded, forward, threads).run();
  cuts.small_are_exact = recorded.pass() == kda::Pass::forward || forward != nullptr;
  return cuts;
}

}  // namespace kda_check::hypotheses
