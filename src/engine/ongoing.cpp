#include "engine/ongoing.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <future>
#include <system_error>
#include <utility>

#include "base/threads/parallel.hpp"
#include "base/threads/work.hpp"
#include "numeric/rounding.hpp"
#include "plan/cost.hpp"

namespace kda_check::engine {

namespace {

using judge::Comparison;
using tensor::Tensor;

/// Rows of neighbours: all that a tensor has of some tokens and heads, `run` elements of each head.
struct Rows {
  std::size_t begin, count, width, stride, run;

  std::size_t heads() const { return width / run; }
  Rows of_head(std::size_t head) const { return {begin + head * run, count, run, stride, run}; }
};

/// Of a gradient whose oracle has a spread: errors that are independent from term to term (docs/verdicts.md).
double spread_of(kda::Gradient gradient, const kda::GradientTruth& truth, std::size_t K) {
  const double spread = judge::ratio_of_sizes(truth.spread, truth.hi);
  // A product of two sums over K, whose terms err independently as well.
  return gradient == kda::Gradient::dbeta ? 1 + spread / std::sqrt(static_cast<double>(K)) : spread;
}

void widen(const Tensor& tensor, const Rows& rows, std::vector<double>& values) {
  values.resize(rows.count * rows.width);
  numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    const auto elements = tensor.elements<decltype(tag)>();
    for (std::size_t row = 0; row < rows.count; ++row)
      for (std::size_t i = 0; i < rows.width; ++i)
        values[row * rows.width + i] = numeric::widen(elements[rows.begin + row * rows.stride + i]);
  });
}

/// Feeds what is expected to all comparisons.
class Feeder {
 public:
  /// `began`: called once, when the oracle has begun.
  Feeder(std::vector<Ongoing>& ongoing, const kda::OracleSink& also, std::function<void()> began,
         std::size_t V, int threads)
      : ongoing_(ongoing),
        also_(also),
        began_(std::move(began)),
        V_(V),
        threads_(threads),
        rooms_(static_cast<std::size_t>(std::max(1, threads))) {
    for (const Ongoing& item : ongoing_)
      if (item.tensor == "o") item.truth->least_magnitudes.assign(item.got->size() / V, HUGE_VAL);
  }

  void feed(std::string_view tensor, const Rows& rows, const judge::ExpectedValues& oracle) {
    // A thread has a head of all of them while its truth is in the cache. Few heads of many tokens would
    // leave threads idle: there comparisons share out tokens.
    const bool by_heads =
        rows.count > 1 && (rows.width != rows.stride || rows.heads() >= rows.count / judge::window_tokens);
    parallel_for(rows.heads(), threads_, [&](std::size_t head, int worker) {
      const Expected* weighed = nullptr;
      for (Ongoing& item : ongoing_) {
        if (item.tensor != tensor) continue;
        weigh(item, rows.of_head(head), oracle.from(head * rows.run), rows.width,
              item.truth.get() != weighed);
        weighed = item.truth.get();
        if (by_heads) compare(item, rows.of_head(head), oracle.from(head * rows.run), rows.width, worker);
      }
    });
    if (by_heads) return;
    for (Ongoing& item : ongoing_)
      if (item.tensor == tensor)
        item.comparison->add(rows.begin, rows.count * rows.width,
                             expected_of(item, rows, oracle, rooms_.front()));
  }

  /// What the oracle of the forward pass hands out goes to all comparisons.
  kda::OracleSink sink(const kda::Dimensions& d) {
    kda::OracleSink sink;
    sink.begun = [this] {
      if (const auto began = std::exchange(began_, nullptr)) began();
    };
    sink.output = [this, d](const kda::OracleOutput& block) {
      if (also_.output) also_.output(block);
      const std::size_t stride = d.HV * d.V, width = (block.heads.last - block.heads.first) * d.V;
      const std::size_t begin = (block.batch * d.T + block.begin) * stride + block.heads.first * d.V;
      const judge::ExpectedValues values{block.hi, block.lo, block.magnitude};
      feed("o", {begin, block.count, width, stride, d.V}, values);
    };
    sink.state = [this, d](const kda::OracleState& state) {
      if (also_.state) also_.state(state);
      const std::size_t size = d.K * d.V, begin = (state.row * d.HV + state.head) * size;
      feed(state.tensor, {begin, 1, size, size, size}, {state.hi, state.lo, state.magnitude});
    };
    sink.error = [this](double error) {
      for (Ongoing& item : ongoing_) item.truth->error = std::max(item.truth->error.value_or(0), error);
    };
    return sink;
  }

 private:
  /// Values that are not the oracle's, widened.
  struct Room {
    std::vector<double> values, zeros;
  };
  static judge::ExpectedValues expected_of(const Ongoing& item, const Rows& rows,
                                           const judge::ExpectedValues& oracle, Room& room) {
    if (item.expected == nullptr) return oracle;
    widen(*item.expected, rows, room.values);
    room.zeros.assign(room.values.size(), 0.0);
    return {room.values.data(), room.zeros.data(), oracle.magnitude};
  }

  /// Rows of a head, of which the oracle's begin `oracle_stride` after each other.
  void compare(const Ongoing& item, const Rows& rows, const judge::ExpectedValues& oracle,
               std::size_t oracle_stride, int worker) {
    for (std::size_t row = 0; row < rows.count; ++row) {
      const std::size_t begin = rows.begin + row * rows.stride;
      const judge::ExpectedValues expected =
          expected_of(item, {begin, 1, rows.run, 0, rows.run}, oracle.from(row * oracle_stride),
                      rooms_[static_cast<std::size_t>(worker)]);
      item.comparison->add_run(begin, expected, worker);
    }
  }
  /// How large the truth is. `first`: of those that share one.
  void weigh(Ongoing& item, const Rows& rows, const judge::ExpectedValues& oracle, std::size_t oracle_stride,
             bool first) const {
    for (std::size_t row = 0; row < rows.count; ++row) {
      const std::size_t begin = rows.begin + row * rows.stride;
      const judge::ExpectedValues of_row = oracle.from(row * oracle_stride);
      if (first) {
        item.truth->energy.add(begin, rows.run, of_row.hi);
        item.truth->magnitude_energy.add(begin, rows.run, of_row.magnitude);
        if (item.tensor == "o")
          item.truth->least_magnitudes[begin / V_] =
              kda::OutputErrors::least_magnitude({of_row.magnitude, rows.run});
      }
      item.got_units.add(begin, rows.run, of_row.hi);
      if (item.expected_units) item.expected_units->add(begin, rows.run, of_row.hi);
    }
  }

  std::vector<Ongoing>& ongoing_;
  const kda::OracleSink& also_;
  std::function<void()> began_;
  const std::size_t V_;
  const int threads_;
  std::vector<Room> rooms_;  ///< of threads
};

kda::GradientTruths gradient_truths(const Truth& truth) {
  const Work at_hand(truth.seconds, plan::steps_of_run(truth.problem));
  return kda::run_gradient_oracle(truth.problem, *truth.oracle, truth.chunk_size, truth.threads);
}

/// Copies that go up while the CPU compares.
class GoingUp {
 public:
  /// `truths` must stay as they are until they are taken.
  GoingUp(const kda::GradientTruths& truths, bool are_wanted) {
    try {
      if (are_wanted) copies_ = std::async(std::launch::async, [&] { return copied_to_gpu(truths); });
    } catch (const std::system_error&) {
      // No thread is to be had: they go up when they are wanted.
    }
  }
  HeadTruths::OnGpu taken() { return copies_.valid() ? copies_.get() : HeadTruths::OnGpu(); }

 private:
  std::future<HeadTruths::OnGpu> copies_;
};

/// What is left for twins; null without any.
std::unique_ptr<TruthSource> compare_gradients(const Truth& truth, const std::vector<Pairing>& pairings,
                                               std::vector<Ongoing>& ongoing, Twins& twins) {
  const kda::Problem& problem = truth.problem;
  check_gradient_memory(problem, truth.threads, truth.memory_budget,
                        "--no-backward compares the forward pass only; --memory-limit raises it");
  kda::GradientTruths truths = gradient_truths(truth);
  GoingUp copies(truths, !twins.is_empty() && twins.are_on_gpu());
  twins.begin(problem.dimensions().H);
  // Sums over a whole tensor, in its order: those of several side by side.
  std::array<double, kda::gradient_count> chunk_excess{};
  parallel_for(truths.size(), truth.threads, [&](std::size_t i, int) {
    chunk_excess[i] = judge::ratio_of_sizes(truths[i].chunk_magnitude, truths[i].magnitude);
  });

  std::vector<double> values, zeros;
  const Expected* weighed = nullptr;
  for (const kda::GradientRow& row : kda::gradients())
    for (Ongoing& item : ongoing) {
      if (row.name != item.tensor) continue;
      const kda::GradientTruth& exact = truths[static_cast<std::size_t>(row.gradient)];
      const std::size_t count = item.got->size();
      judge::ExpectedValues expected{exact.hi.data(), exact.lo.data(),
                                     exact.magnitude_of(!both_recur(pairings[item.pairing])).data()};
      if (item.expected != nullptr) {
        widen(*item.expected, {0, 1, count, 0, count}, values);
        zeros.assign(count, 0.0);
        expected.hi = values.data(), expected.lo = zeros.data();
      }
      item.comparison->add(0, count, expected);
      const bool over_tokens =
          row.gradient == kda::Gradient::dA_log || row.gradient == kda::Gradient::ddt_bias;
      for (judge::UnitsSum* const units :
           {&item.got_units, item.expected_units ? &*item.expected_units : nullptr}) {
        if (units == nullptr) continue;
        if (over_tokens)
          units->add_sums(count, exact.hi.data(), truths[static_cast<std::size_t>(kda::Gradient::dg)].hi,
                          truth.threads);
        else
          units->add(0, count, exact.hi.data(), truth.threads);
      }
      if (item.truth.get() == weighed) continue;
      weighed = item.truth.get();
      item.truth->energy.add(0, count, exact.hi.data(), truth.threads);
      if (!exact.spread.empty()) item.truth->spread = spread_of(row.gradient, exact, problem.dimensions().K);
      item.truth->chunk_excess = chunk_excess[static_cast<std::size_t>(row.gradient)];
    }
  if (twins.is_empty()) return nullptr;
  return std::make_unique<GradientHeads>(problem.dimensions().H, std::move(truths), copies.taken(),
                                         truth.threads);
}

/// Answers with answers alone.
void compare_with_answers(std::vector<Ongoing>& ongoing) {
  std::vector<double> values;
  for (Ongoing& item : ongoing) {
    item.comparison->add_all(*item.expected);
    widen(*item.expected, {0, 1, item.expected->size(), 0, 0}, values);
    item.truth->energy.add(0, values.size(), values.data());
    item.got_units.add(0, values.size(), values.data());
    if (item.expected_units) item.expected_units->add(0, values.size(), values.data());
    const bool over_tokens = item.tensor == "dA_log" || item.tensor == "ddt_bias";
    if (over_tokens) item.truth->spread = HUGE_VAL;  // the oracle's to know
  }
}

}  // namespace

bool both_recur(const Pairing& pairing) {
  const auto recurs = [](const Answered& answer) { return answer.form == judge::Form::recurrence; };
  return recurs(*pairing.got) && (pairing.expected == nullptr || recurs(*pairing.expected));
}

std::vector<Ongoing> ongoing_comparisons(const Truth& truth, const std::vector<Pairing>& pairings) {
  const bool v_first = truth.problem.options.state_v_first;
  std::vector<Ongoing> ongoing;
  const auto truth_of = [&](const std::string& name, const Tensor& got) {
    const auto known = std::ranges::find(ongoing, name, &Ongoing::tensor);
    if (truth.oracle && known != ongoing.end()) return known->truth;
    const judge::HeadEnergies none(name, got.shape(), v_first);
    return std::make_shared<Expected>(Expected{none, none});
  };
  for (std::size_t i = 0; i < pairings.size(); ++i)
    for (const std::string& name : pairings[i].tensors) {
      const Tensor* const got = pairings[i].got->tensor(name);
      const Tensor* const expected =
          pairings[i].expected != nullptr ? pairings[i].expected->tensor(name) : nullptr;
      judge::ComparisonOptions options = pairings[i].options;
      options.against_oracle = expected == nullptr;
      if (options.against_oracle) options.largest = pairings[i].got->range().largest();
      options.threads = truth.threads;
      options.cu_seqlens = truth.problem.cu_seqlens;
      const auto units_of = [&](const Answered& answer) {
        return judge::UnitsSum(name, got->shape(), truth.problem, truth.gates(answer.chunk_size),
                               answer.compute, answer.form);
      };
      ongoing.push_back({i,
                         name,
                         got,
                         expected,
                         truth_of(name, *got),
                         std::make_unique<Comparison>(name, *got, v_first, truth.oracle.has_value(), options),
                         units_of(*pairings[i].got),
                         {}});
      if (expected != nullptr) ongoing.back().expected_units.emplace(units_of(*pairings[i].expected));
    }
  return ongoing;
}

std::unique_ptr<TruthSource> run_comparisons(const Truth& truth, const std::vector<Pairing>& pairings,
                                             std::vector<Ongoing>& ongoing, Twins& twins) {
  const kda::Dimensions& d = truth.problem.dimensions();
  if (!truth.oracle) {
    compare_with_answers(ongoing);
    return nullptr;
  }
  if (truth.pass == kda::Pass::backward) return compare_gradients(truth, pairings, ongoing, twins);
  // Not before the oracle: what twins leave of a GPU's memory is not much.
  const auto begin_twins = [&] { twins.begin(truth.heads_of_twins); };
  Feeder feeder(ongoing, truth.also, begin_twins, d.V, truth.threads);
  const kda::OracleSink sink = feeder.sink(d);
  const double steps = plan::steps_of_run(truth.problem);
  if (twins.is_empty()) {
    const Work at_hand(truth.seconds, steps);
    kda::run_oracle(truth.problem, *truth.oracle, truth.threads, sink);
    return nullptr;
  }
  auto truths =
      std::make_unique<ForwardTruths>(truth.problem, *truth.oracle, truth.threads, truth.heads_of_twins);
  const auto truths_of = [&](std::size_t first, std::size_t count) {
    const double share = static_cast<double>(count) / static_cast<double>(d.H);
    const Work at_hand(share * truth.seconds, share * steps);
    return truths->of(first, count, sink, twins.are_on_gpu());
  };
  for (std::size_t first = 0; first < d.H; first += truths->at_once())
    twins.measure(truths_of(first, std::min(truths->at_once(), d.H - first)));
  return truths;
}

}  // namespace kda_check::engine
