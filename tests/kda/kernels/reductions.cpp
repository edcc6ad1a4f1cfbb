// The reduction axis: every order of sums against the same sum written plainly for one element, the exact one
// against MPFR. Tensor cores: tensor_core.cpp.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/sums.hpp"

namespace reductions_tests {

using namespace kda_check;
using namespace kda_check::kda;
using namespace kda_check::test;

namespace {

template <class T>
T fused_or_not(bool is_fused, T a, T b, T c) {
  if (is_fused) return std::fma(a, b, c);
  const T product = a * b;
  return product + c;
}

template <class T>
T plain_sequential(bool is_fused, const std::vector<T>& a, const std::vector<T>& b, T start) {
  for (std::size_t d = 0; d < a.size(); ++d) start = fused_or_not(is_fused, a[d], b[d], start);
  return start;
}

template <class T>
T plain_pairwise(bool is_fused, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> sums;
  for (std::size_t d = 0; d + 1 < a.size(); d += 2) {
    const T first = a[d] * b[d];
    sums.push_back(fused_or_not(is_fused, a[d + 1], b[d + 1], first));
  }
  if (a.size() % 2 == 1) sums.push_back(a.back() * b.back());
  while (sums.size() > 1) {
    std::vector<T> next;
    for (std::size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 == 1) next.push_back(sums.back());
    sums = next;
  }
  return sums.front();
}

/// A warp of `width` lanes, made up to a power of two with lanes that hold nothing.
template <class T>
T plain_tree(bool is_fused, std::size_t width, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<std::optional<T>> lane(width);
  for (std::size_t d = 0; d < a.size(); ++d) {
    std::optional<T>& sum = lane[d % width];
    sum = sum ? fused_or_not(is_fused, a[d], b[d], *sum) : a[d] * b[d];
  }
  while ((lane.size() & (lane.size() - 1)) != 0) lane.push_back(std::nullopt);
  for (; lane.size() > 1; lane.resize(lane.size() / 2))
    for (std::size_t i = 0, half = lane.size() / 2; i < half; ++i)
      if (lane[i + half]) lane[i] = lane[i] ? *lane[i] + *lane[i + half] : *lane[i + half];
  return *lane[0];
}

template <class T>
T plain_blocks(bool is_fused, std::size_t width, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> sums;
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (d % width == 0) sums.push_back(T(0));
    sums.back() = fused_or_not(is_fused, a[d], b[d], sums.back());
  }
  T total = sums.front();
  for (std::size_t i = 1; i < sums.size(); ++i) total = total + sums[i];
  return total;
}

/// Sixteen lanes, products rounded: 64 terms a lane's every sixteenth, then the next 64.
template <class T>
T plain_xla(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> lanes(16, T(0));
  for (std::size_t from = 0; from < a.size(); from += 64) {
    std::vector<T> sums(16, T(0));
    for (std::size_t d = from; d < std::min<std::size_t>(from + 64, a.size()); ++d) {
      const T product = a[d] * b[d];
      sums[d % 16] = sums[d % 16] + product;
    }
    for (std::size_t lane = 0; lane < 16; ++lane) lanes[lane] = lanes[lane] + sums[lane];
  }
  for (; lanes.size() > 1; lanes.resize(lanes.size() / 2))
    for (std::size_t i = 0, half = lanes.size() / 2; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}

float rounded(const Big& x, float) { return x.to_float(); }
double rounded(const Big& x, double) { return x.to_double(); }

template <class T>
T plain_exact(const std::vector<T>& a, const std::vector<T>& b, T start) {
  Big sum(static_cast<double>(start));
  for (std::size_t d = 0; d < a.size(); ++d)
    sum = sum + Big(static_cast<double>(a[d])) * Big(static_cast<double>(b[d]));
  return rounded(sum, T());
}

template <class T>
T plain_sum(const Reduction& reduction, bool is_fused, const std::vector<T>& a, const std::vector<T>& b) {
  const auto width = static_cast<std::size_t>(reduction.width);
  switch (reduction.kind) {
    case ReductionKind::sequential:
      return plain_sequential(is_fused, a, b, T(0));
    case ReductionKind::pairwise:
      return plain_pairwise(is_fused, a, b);
    case ReductionKind::tree:
      return plain_tree(is_fused, width, a, b);
    case ReductionKind::blocks:
      return plain_blocks(is_fused, width, a, b);
    case ReductionKind::mma:  // not for a tensor core
    case ReductionKind::triton:
    case ReductionKind::triton_rows:
    case ReductionKind::lanes:  // in no known layout
    case ReductionKind::lanes_paired:
    case ReductionKind::split:
    case ReductionKind::simt:  // along a row
      return plain_tree(is_fused, 32, a, b);
    case ReductionKind::xla:  // along a row
      return plain_xla(a, b);
    case ReductionKind::exact:
      break;
  }
  return plain_exact(a, b, T(0));
}

const Reduction orders[] = {
    {ReductionKind::sequential, 0}, {ReductionKind::pairwise, 0}, {ReductionKind::tree, 2},
    {ReductionKind::tree, 32},      {ReductionKind::tree, 33},    {ReductionKind::tree, 1024},
    {ReductionKind::blocks, 2},     {ReductionKind::blocks, 7},   {ReductionKind::blocks, 16},
    {ReductionKind::exact, 0},      {ReductionKind::simt, 0},     {ReductionKind::xla, 0}};

}  // namespace

TEMPLATE_TEST_CASE("a sum is added up in the order its reduction names, at every depth", "[reductions]",
                   float, double) {
  using T = TestType;
  Random random(3);
  for (std::size_t depth = 1; depth <= 70; ++depth) {
    const Terms<T> terms = random_terms<T>(random, depth);
    for (const bool is_fused : {false, true})
      for (const Reduction& reduction : orders) {
        INFO("kind " << static_cast<int>(reduction.kind) << ':' << reduction.width << " depth " << depth
                     << (is_fused ? " fused" : " separate"));
        const std::vector<T> sums = token_sum(reduction, is_fused, terms);
        for (std::size_t lane = 0; lane < lanes; ++lane)
          REQUIRE(sums[lane] == plain_sum(reduction, is_fused, terms.a, terms.column(lane)));
      }
  }
}

TEMPLATE_TEST_CASE("what a sum starts from comes first when sequential or exact, else last", "[reductions]",
                   float, double) {
  using T = TestType;
  Random random(5);
  for (const std::size_t depth : {1, 2, 15, 16, 17, 40, 64, 70}) {
    const Terms<T> terms = random_terms<T>(random, depth);
    const std::vector<T> start = random_terms<T>(random, 1).b;
    for (const bool is_fused : {false, true})
      for (const Reduction& reduction : orders) {
        INFO("kind " << static_cast<int>(reduction.kind) << ':' << reduction.width << " depth " << depth);
        const std::vector<T> sums = chunk_sum(reduction, is_fused, terms, start);
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          const std::vector<T> b = terms.column(lane);
          const bool running = reduction.kind == ReductionKind::sequential ||
                               reduction.kind == ReductionKind::simt || reduction.kind == ReductionKind::xla;
          const T wanted = running ? plain_sequential(is_fused, terms.a, b, start[lane])
                           : reduction.kind == ReductionKind::exact
                               ? plain_exact(terms.a, b, start[lane])
                               : start[lane] + plain_sum(reduction, is_fused, terms.a, b);
          REQUIRE(sums[lane] == wanted);
        }
      }
  }
}

TEMPLATE_TEST_CASE("the exact sum is rounded once, whatever cancels", "[reductions]", float, double) {
  using T = TestType;
  Random random(7);
  for (int trial = 0; trial < 200; ++trial) {
    // Every term comes back with the other sign but for a remainder far below.
    Terms<T> terms = random_terms<T>(random, 20);
    const std::size_t half = terms.depth();
    for (std::size_t d = 0; d < half; ++d) {
      terms.a.push_back(-terms.a[d]);
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const T b = terms.b[d * lanes + lane];
        terms.b.push_back(random.below(4) == 0 ? std::nextafter(b, T(9)) : b);
      }
    }
    const std::vector<T> sums = token_sum<T>({ReductionKind::exact, 0}, true, terms);
    for (std::size_t lane = 0; lane < lanes; ++lane)
      REQUIRE(sums[lane] == plain_exact(terms.a, terms.column(lane), T(0)));
  }
}

TEST_CASE("sums that no tensor core forms are trees of 32 under mma; fp64 has no tensor core",
          "[reductions]") {
  Random random(8);
  for (const std::size_t depth : {1, 31, 32, 33, 70}) {
    const Terms<float> terms = random_terms<float>(random, depth);
    const Reduction tree{ReductionKind::tree, 32};
    CHECK(same_bits(token_sum(mma25, true, terms), token_sum(tree, true, terms)));
    CHECK(same_bits(token_sum(mma25, false, terms), token_sum(tree, false, terms)));
  }
  Arithmetic arithmetic;
  arithmetic.reduction = mma25;
  CHECK_FALSE(unsupported(arithmetic, numeric::DType::fp64).empty());
  CHECK(unsupported(arithmetic, numeric::DType::fp32).empty());
}

TEMPLATE_TEST_CASE("running sums are rounded where their reduction says", "[reductions]", float, double) {
  using T = TestType;
  Random random(9);
  constexpr std::size_t stride = 3;
  for (const std::size_t rows : {1, 2, 3, 16, 37, 64, 70}) {
    const std::vector<T> x = numbers<T>(random, rows * stride, -5, 0);
    const auto at = [&](std::size_t i, std::size_t k) { return x[i * stride + k]; };
    for (const Reduction& reduction :
         {orders[0], orders[1], orders[3], orders[7], orders[8], orders[9], orders[10], orders[11], mma25}) {
      std::vector<T> sums = x;
      kernels<T>().cumulate(reduction, sums.data(), rows, stride);
      for (std::size_t k = 0; k < stride; ++k) {
        // The scan of a warp: after level l every row holds the sum from the start of its block of 2^l rows.
        const auto scan = [&](auto self, std::size_t i, std::size_t side) -> T {
          if (side == 0) return at(i, k);
          const T own = self(self, i, side / 2);
          return (i / side) % 2 == 1 ? self(self, i / side * side - 1, side / 2) + own : own;
        };
        T running = 0, finished = 0;
        Big exact(0.0);
        for (std::size_t i = 0; i < rows; ++i) {
          exact = exact + Big(static_cast<double>(at(i, k)));
          T wanted = 0;
          if (reduction.kind == ReductionKind::sequential || reduction.kind == ReductionKind::simt) {
            wanted = running = i == 0 ? at(i, k) : running + at(i, k);
          } else if (reduction.kind == ReductionKind::exact) {
            wanted = rounded(exact, T());
          } else if (reduction.kind == ReductionKind::blocks || reduction.kind == ReductionKind::xla) {
            const bool is_xla = reduction.kind == ReductionKind::xla;
            const std::size_t width = is_xla ? 16 : static_cast<std::size_t>(reduction.width),
                              begin = i / width * width;
            if (i == begin) finished = i == 0 ? T(0) : sums[(i - 1) * stride + k];
            running = i == begin ? at(i, k) : running + at(i, k);
            wanted = begin == 0 ? running : finished + running;
          } else {
            wanted = scan(scan, i, 64);
          }
          INFO("kind " << static_cast<int>(reduction.kind) << " row " << i << " of " << rows);
          REQUIRE(sums[i * stride + k] == wanted);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("running sums stay at -inf after a gate of -inf, and are NaN after one of NaN",
                   "[reductions]", float, double) {
  using T = TestType;
  const T inf = std::numeric_limits<T>::infinity(), most = std::numeric_limits<T>::max();
  for (const Reduction& reduction : orders) {
    INFO("kind " << static_cast<int>(reduction.kind) << " width " << reduction.width);
    std::vector<T> x{-1, -inf, -2, -3, -4, -5, -6, -7}, nan = x, beyond{-most, -most, -1, -1, -1, -1, -1, -1};
    nan[3] = std::numeric_limits<T>::quiet_NaN();
    for (std::vector<T>* const sums : {&x, &nan, &beyond})
      kernels<T>().cumulate(reduction, sums->data(), sums->size(), 1);
    CHECK(x[0] == -1);
    for (std::size_t i = 1; i < x.size(); ++i) CHECK(x[i] == -inf);
    for (std::size_t i = 3; i < nan.size(); ++i) CHECK(std::isnan(nan[i]));
    for (std::size_t i = 1; i < beyond.size(); ++i) CHECK(beyond[i] == -inf);
  }
}

TEST_CASE("sums of squares and of scores follow the reduction too", "[reductions]") {
  Random random(10);
  const std::vector<float> x = numbers<float>(random, 70, -2, 2);
  for (const bool is_fused : {false, true})
    for (const Reduction& reduction : orders) {
      std::vector<float> y = x;
      kernels<float>().normalise(
          {1, 70, 70, y.data(), false, {is_fused, Exponential::exact, Special::ieee, reduction}});
      const float norm = std::sqrt(plain_sum(reduction, is_fused, x, x) + 1e-6f);
      for (std::size_t k = 0; k < x.size(); ++k) REQUIRE(y[k] == x[k] / norm);
      // Row 1 of a chunk without decay: Aqk_10 = scale sum_k q_1k k_0k, a pairwise and a factored score
      // alike.
      for (const DecayForm decay : {DecayForm::pair, DecayForm::anchor_first}) {
        ChunkData<float> data(2, 70, 4);
        std::fill(data.G.begin(), data.G.end(), 0.0f);
        data.block.decay = decay;
        data.block.operations = {is_fused, Exponential::exact, Special::ieee, reduction};
        kernels<float>().chunk[is_fused](data.block);
        const auto q = data.q.begin() + static_cast<std::ptrdiff_t>(data.k_stride);
        const std::vector<float> query{q, q + 70}, key{data.k.begin(), data.k.begin() + 70};
        const bool is_running = reduction.kind == ReductionKind::simt ||  // one thread for each score
                                (reduction.kind == ReductionKind::xla && decay != DecayForm::pair);
        const float sum = is_running ? plain_sequential(is_fused, query, key, 0.0f)
                                     : plain_sum(reduction, is_fused, query, key);
        REQUIRE(data.Aqk[data.score_stride] == data.block.scale * sum);
      }
    }
}

}  // namespace reductions_tests
