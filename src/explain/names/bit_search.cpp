#include "explain/names/bit_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <set>

#include "base/threads/parallel.hpp"
#include "hypotheses/launch_search.hpp"

namespace kda_check::explain {

using hypotheses::as_recorded;
using hypotheses::differing_bits;
using hypotheses::has_open_launch;
using hypotheses::Hypothesis;
using hypotheses::identity;
using hypotheses::launch_of;
using hypotheses::moves;
using hypotheses::RecordedOutput;
using hypotheses::RecordedPart;
using hypotheses::starts;
using hypotheses::text_of;

namespace {

constexpr std::size_t first_tokens = 192;  ///< that all known ways are tried on
constexpr std::size_t few = 6;             ///< ways that are tried on more than a beginning
constexpr std::size_t few_words = 6;       ///< the same of those that differ in a word
constexpr std::size_t telling = 32;        ///< elements that differ, to try words on
constexpr std::size_t token_runs = 1024;   ///< tokens times known ways whose words are tried

struct Ranked {
  Hypothesis way;
  std::size_t differing;
};

bool differs(const tensor::Tensor& a, const tensor::Tensor& b, std::size_t element) {
  return std::memcmp(a.at(element), b.at(element), numeric::format_of(a.dtype()).bytes) != 0;
}

Left left_of(const std::string& name, const tensor::Tensor& got, const tensor::Tensor& recorded) {
  Left left{name, 0, recorded.size(), {}};
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    if (!differs(got, recorded, i)) continue;
    ++left.differing;
    if (!left.first) left.first = i;
  }
  return left;
}

/// Where a way differs from what is recorded: in one query head of one sequence, up to some token.
struct Strand {
  kda::Sequence sequence{};
  std::size_t query = 0, tokens = 0;
};

std::string name_of(const Hypothesis& way) { return fmt::format("{} {}", way.variant->name, way.preset); }

class Search {
 public:
  Search(const RecordedOutput& whole, const std::vector<TriedWay>& forward, numeric::DType dtype, int threads,
         const std::function<void(const std::string&)>& progress)
      : whole_(whole),
        forward_(forward),
        dtype_(dtype),
        threads_(threads),
        progress_(progress),
        heads_(whole.first_heads()) {}

  BitSearch run() {
    if (whole_.tensors().empty()) return {};
    try_forward();
    if (found_.nearest.empty() || differing_of(nearest().tensors) > 0) {
      const std::vector<Ranked> known =
          of_each_name(screened(starts(whole_.problem(), dtype_, whole_.pass())));
      try_known(known);
      if (differing_of(nearest().tensors) > 0) try_words(known);
    }
    if (heads_.problem.dimensions().H < whole_.problem().dimensions().H) confirm();
    return std::move(found_);
  }

 private:
  // --- parts

  /// Tokens are cut where a chunk of any way ends.
  std::size_t whole_chunks(std::size_t tokens, const kda::Sequence& sequence) const {
    const std::size_t rows =
        std::max<std::size_t>(64, static_cast<std::size_t>(whole_.problem().options.chunk_size));
    return std::min((tokens + rows - 1) / rows * rows, sequence.length());
  }

  /// Of the first sequence that is long enough, or the longest. Backwards all tokens decide on the first
  /// ones.
  RecordedPart beginning() const {
    if (whole_.pass() == kda::Pass::backward) return whole_.heads(std::array{std::size_t{0}});
    const std::vector<kda::Sequence> sequences = whole_.problem().sequences();
    auto chosen =
        std::ranges::find_if(sequences, [](const kda::Sequence& s) { return s.length() >= first_tokens; });
    if (chosen == sequences.end()) chosen = std::ranges::max_element(sequences, {}, &kda::Sequence::length);
    return whole_.beginning(*chosen, 0, whole_chunks(first_tokens, *chosen));
  }

  std::vector<std::pair<std::string, const tensor::Tensor*>> recorded_whole() const {
    return {whole_.tensors().begin(), whole_.tensors().end()};
  }
  std::vector<std::pair<std::string, const tensor::Tensor*>> recorded_heads() const {
    std::vector<std::pair<std::string, const tensor::Tensor*>> list;
    for (const auto& [name, tensor] : heads_.recorded) list.emplace_back(name, &tensor);
    return list;
  }

  // --- what ways leave

  kda::Tensors answer(const Hypothesis& way, const kda::Problem& problem, int threads) const {
    kda::RunOptions options = way.options;
    options.threads = threads;
    return as_recorded(kda::run_pass(way.pass, *way.variant, problem, options), heads_.recorded);
  }

  std::vector<Left> left(const Hypothesis& way, const kda::Problem& problem,
                         const std::vector<std::pair<std::string, const tensor::Tensor*>>& recorded) const {
    const kda::Tensors got = answer(way, problem, threads_);
    std::vector<Left> list;
    const std::map<std::string, const tensor::Tensor*> by_name(recorded.begin(), recorded.end());
    for (const std::string& name : kda::tensors_of(way.pass))
      if (const auto found = by_name.find(name); found != by_name.end())
        list.push_back(left_of(name, got.at(name), *found->second));
    return list;
  }

  /// The nearest first; of those that are as near the first.
  std::vector<Ranked> ranked(std::vector<Hypothesis> ways, const RecordedPart& part) {
    std::vector<Ranked> list;
    for (Hypothesis& way : ways) list.push_back({std::move(way), 0});
    parallel_for(list.size(), threads_, [&](std::size_t i, int) {
      list[i].differing = differing_bits(answer(list[i].way, part.problem, 1), part.recorded);
    });
    found_.tried += list.size();
    std::ranges::stable_sort(list, {}, &Ranked::differing);
    return list;
  }

  /// The nearest on a beginning, which may not tell them apart: they are ranked on the first heads.
  std::vector<Ranked> screened(std::vector<Hypothesis> ways) {
    std::vector<Ranked> list = ranked(std::move(ways), beginning());
    std::set<std::string> names;
    std::size_t least = 0;  // that leaves `few` names
    for (const Ranked& one : list)
      if (names.size() < few && names.insert(name_of(one.way)).second) least = one.differing;
    const auto rest = std::ranges::upper_bound(list, least, {}, &Ranked::differing);
    std::vector<Hypothesis> near;
    for (auto one = list.begin(); one != rest; ++one) near.push_back(std::move(one->way));
    std::vector<Ranked> sorted = ranked(std::move(near), heads_);
    found_.tried -= sorted.size();  // the same again
    std::move(rest, list.end(), std::back_inserter(sorted));
    return sorted;
  }

  /// Of a variant in a preset the chunks that are nearest.
  static std::vector<Ranked> of_each_name(std::vector<Ranked> list) {
    std::vector<Ranked> ways;
    std::set<std::string> names;
    for (Ranked& one : list)
      if (names.insert(name_of(one.way)).second) ways.push_back(std::move(one));
    return ways;
  }

  /// With the best launch, where it is open, on the first heads.
  void settle(Hypothesis way) {
    const bool has_more = way.pass == kda::Pass::backward && way.variant->axes.chunk &&
                          kda::is_triton(way.options.arithmetic.reduction);
    if (has_more || has_open_launch(*way.variant, way.options)) {
      kda::RunOptions options = way.options;
      options.threads = threads_;
      way.options.arithmetic.launch = launch_of(*way.variant, heads_, options).launch;
    }
    TriedWay tried{std::move(way), {}};
    tried.tensors = left(tried.way, heads_.problem, recorded_heads());
    found_.nearest.push_back(std::move(tried));
  }

  void sort_found() {
    std::ranges::stable_sort(found_.nearest, {},
                             [](const TriedWay& tried) { return differing_of(tried.tensors); });
  }
  TriedWay& nearest() { return found_.nearest.front(); }

  // --- what is tried

  /// Gradients: those that computed o and final_state.
  void try_forward() {
    for (const TriedWay& tried : forward_) {
      const Hypothesis& known = tried.way;
      if (differing_of(tried.tensors) > 0 ||
          !kda::lacks_gradients(known.options.arithmetic, whole_.problem().dimensions().strength).empty())
        continue;
      Hypothesis way = known;
      way.pass = kda::Pass::backward;
      progress_(text_of(way, whole_.problem()));
      settle(std::move(way));
      ++found_.tried;
    }
    sort_found();
  }

  /// Where one leaves nothing, only those beside it that leave nothing either.
  void try_known(const std::vector<Ranked>& known) {
    bool is_found = false;
    for (std::size_t i = 0; i < std::min(few, known.size()) && !(is_found && known[i].differing > 0); ++i) {
      progress_(text_of(known[i].way, whole_.problem()));
      settle(known[i].way);
      is_found = is_found || differing_of(found_.nearest.back().tensors) == 0;
    }
    sort_found();
  }

  /// On everything: those that leave nothing of the first heads, until one leaves nothing; or the nearest.
  void confirm() {
    std::vector<TriedWay>& list = found_.nearest;
    const auto leaves_some = [](const TriedWay& tried) { return differing_of(tried.tensors) > 0; };
    const auto end = std::max(std::ranges::find_if(list, leaves_some), list.begin() + 1);
    for (auto one = list.begin(); one != end; ++one) {
      one->tensors = left(one->way, whole_.problem(), recorded_whole());
      if (leaves_some(*one)) continue;
      std::rotate(list.begin(), one, one + 1);
      return;
    }
    std::stable_sort(list.begin(), end, [](const TriedWay& a, const TriedWay& b) {
      return differing_of(a.tensors) < differing_of(b.tensors);
    });
  }

  void try_words(const std::vector<Ranked>& known) {
    const std::optional<RecordedPart> telling_part =
        whole_.pass() == kda::Pass::forward ? part_of(where_nearest_differs()) : head_that_differs();
    if (!telling_part) return;
    const RecordedPart& part = *telling_part;
    const kda::Dimensions& d = part.problem.dimensions();
    std::vector<Ranked> bases = ranked(with_found_launches(known), part);
    bases.resize(std::min(bases.size(), std::max<std::size_t>(1, token_runs / (d.B * d.T))));
    progress_(fmt::format("single words of {} ways", bases.size()));
    std::vector<Hypothesis> ways;
    std::set<std::string> seen;
    for (const Ranked& base : bases) seen.insert(identity(base.way, whole_.problem()));
    for (const Ranked& base : bases)
      for (Hypothesis& way : moves(base.way, whole_.problem()))
        if (seen.insert(identity(way, whole_.problem())).second) ways.push_back(std::move(way));
    std::size_t settled = 0;
    for (Ranked& one : ranked(std::move(ways), part)) {
      const Ranked& base =
          *std::ranges::find(bases, name_of(one.way), [](const Ranked& row) { return name_of(row.way); });
      // One that changes no bit, or none for the better - unless in a launch that was found without the word.
      const bool has_launch = one.way.options.arithmetic.launch != kda::Launch{};
      if (has_launch ? one.differing == base.differing : one.differing >= base.differing) continue;
      // It was searched for; backwards the search goes on from it.
      if (one.way.variant->axes.chunk && one.way.pass == kda::Pass::forward)
        one.way.options.arithmetic.launch = {};
      settle(std::move(one.way));
      if (++settled == few_words) break;
    }
    sort_found();
  }

  /// Those that were settled in their launch.
  std::vector<Hypothesis> with_found_launches(const std::vector<Ranked>& known) const {
    std::vector<Hypothesis> ways;
    for (const Ranked& one : known) {
      Hypothesis& way = ways.emplace_back(one.way);
      for (const TriedWay& tried : found_.nearest)
        if (tried.way.variant == way.variant && tried.way.preset == way.preset && tried.way.change.empty())
          way = tried.way;
    }
    return ways;
  }

  std::optional<RecordedPart> part_of(const Strand& strand) const {
    if (strand.tokens == 0) return std::nullopt;
    return whole_.beginning(strand.sequence, strand.query, strand.tokens);
  }

  /// Of gradients: the query head in which most elements differ under the nearest way.
  std::optional<RecordedPart> head_that_differs() {
    std::vector<RecordedPart> parts;
    for (std::size_t query = 0; query < heads_.problem.dimensions().H; ++query)
      parts.push_back(whole_.heads(std::array{query}));
    std::vector<std::size_t> counts(parts.size());
    parallel_for(parts.size(), threads_, [&](std::size_t i, int) {
      counts[i] = differing_bits(answer(nearest().way, parts[i].problem, 1), parts[i].recorded);
    });
    const auto most = std::ranges::max_element(counts);
    if (*most == 0) return std::nullopt;
    return std::move(parts[static_cast<std::size_t>(most - counts.begin())]);
  }

  /// Where most elements differ under the nearest way: as many tokens as show it.
  Strand where_nearest_differs() {
    const kda::Problem& problem = heads_.problem;
    const kda::Dimensions& d = problem.dimensions();
    const kda::Tensors got = answer(nearest().way, problem, threads_);
    const auto count_in = [&](const std::string& name, std::size_t first, std::size_t count) {
      std::size_t differing = 0;
      if (const auto found = heads_.recorded.find(name); found != heads_.recorded.end())
        for (std::size_t i = first; i < first + count; ++i)
          differing += differs(got.at(name), found->second, i);
      return differing;
    };
    const std::size_t row = d.HV * d.V, of_query = d.HV / d.H;
    Strand worst;
    std::size_t most = 0;
    for (const kda::Sequence& sequence : problem.sequences())
      for (std::size_t query = 0; query < d.H && sequence.length() > 0; ++query) {
        std::vector<std::size_t> by_token;
        for (std::size_t t = sequence.begin; t < sequence.end; ++t)
          by_token.push_back(
              count_in("o", (sequence.batch * d.T + t) * row + query * of_query * d.V, of_query * d.V));
        std::size_t of_o = 0;
        for (const std::size_t count : by_token) of_o += count;
        const std::size_t of_state = count_in(
            "final_state", (sequence.index * d.HV + query * of_query) * d.K * d.V, of_query * d.K * d.V);
        if (of_o + of_state <= most) continue;
        most = of_o + of_state;
        std::size_t tokens = sequence.length();
        if (of_o > 0) {
          tokens = 0;
          for (std::size_t seen = 0; seen < std::min(of_o, telling);) seen += by_token[tokens++];
        }
        worst = {sequence, query, whole_chunks(tokens, sequence)};
      }
    return worst;
  }

  const RecordedOutput& whole_;
  const std::vector<TriedWay>& forward_;
  const numeric::DType dtype_;
  const int threads_;
  const std::function<void(const std::string&)>& progress_;
  const RecordedPart heads_;
  BitSearch found_;
};

}  // namespace

std::size_t differing_of(const std::vector<Left>& tensors) {
  std::size_t count = 0;
  for (const Left& left : tensors) count += left.differing;
  return count;
}

std::size_t elements_of(const std::vector<Left>& tensors) {
  std::size_t count = 0;
  for (const Left& left : tensors) count += left.elements;
  return count;
}

BitSearch search_bits(const RecordedOutput& recorded, const std::vector<TriedWay>& forward,
                      numeric::DType dtype, int threads,
                      const std::function<void(const std::string&)>& progress) {
  return Search(recorded, forward, dtype, threads, progress).run();
}

}  // namespace kda_check::explain
