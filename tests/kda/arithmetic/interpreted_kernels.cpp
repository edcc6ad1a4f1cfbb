// The words of the presets pallas and sglang-jax, each against its definition in docs/arithmetic.md, written
// out once more for a chunk. The presets themselves are held to recorded answers (tests/engine/captures.cpp).
#include <algorithm>
#include <cmath>
#include <vector>

#include "kda/arithmetic/rounded.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/xla.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"

namespace interpreted_kernels_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

using Row = std::vector<float>;

/// A chunk computed in the words of --arithmetic, sums from the first term on and fused.
struct Computed : test::ChunkData<float> {
  static constexpr std::size_t K = 130, V = 20;

  explicit Computed(std::size_t rows, std::initializer_list<const char*> words) : ChunkData(rows, K, V) {
    Arithmetic arithmetic;
    for (const char* const word : {"ideal", "reduction=sequential"}) set_axis(arithmetic, word);
    for (const char* const word : words) set_axis(arithmetic, word);
    initial = state;
    block.operations = operations_of(arithmetic);
    block.decay = arithmetic.decay, block.inverse = arithmetic.inverse;
    block.inverse_rows = static_cast<std::size_t>(arithmetic.inverse_rows);
    block.casts = cast_points(arithmetic, DType::bf16, false, true);
    kernels<float>().chunk[1](block);
  }

  float of(const Row& square, std::size_t i, std::size_t j) const { return square[i * score_stride + j]; }
  float decay(std::size_t i, std::size_t j, std::size_t c) const {
    return exact(G[i * k_stride + c] - G[j * k_stride + c]);
  }
  static float exact(float x) { return exp(test::Big(static_cast<double>(x))).to_float(); }

  Row initial;
};

/// Rows of (I + L)^-1 B as inverse=solve has them.
std::vector<Row> solved(const Computed& data, std::vector<Row> x, std::size_t side, Rounding rounding) {
  const std::size_t n = x.size(), columns = x.front().size();
  const auto less = [&](std::size_t i, std::size_t first, std::size_t end) {
    for (std::size_t c = 0; c < columns; ++c) {
      const auto term = [&](std::size_t m, float sum) {
        return std::fma(rounded(rounding, data.of(data.L, i, m)), rounded(rounding, x[m][c]), sum);
      };
      if (end == first + 1 && i == end) {
        x[i][c] =
            std::fma(-rounded(rounding, data.of(data.L, i, first)), rounded(rounding, x[first][c]), x[i][c]);
        continue;
      }
      float sum = 0;
      for (std::size_t m = first; m < end; ++m) sum = term(m, sum);
      x[i][c] = x[i][c] - sum;
    }
  };
  for (std::size_t first = 0; first < n; first += side) {
    const std::size_t end = std::min(first + side, n);
    for (std::size_t i = first + 1; i < end; ++i) less(i, first, i);
    for (std::size_t i = end; i < n; ++i) less(i, first, end);
  }
  return x;
}

}  // namespace

TEST_CASE("a decay may multiply the row's channel first, or the product with the key's", "[interpreted]") {
  const Computed rows(40, {"decay=pair-rows"}), products(40, {"decay=pair-products"});
  std::size_t apart = 0;
  for (std::size_t i = 0; i < 40; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      float of_rows = 0, of_products = 0, of_keys = 0;
      for (std::size_t c = 0; c < Computed::K; ++c) {
        const float q = rows.q[i * rows.k_stride + c], other = rows.k[j * rows.k_stride + c],
                    own = rows.k[i * rows.k_stride + c], decay = rows.decay(i, j, c);
        of_rows = std::fma(q * decay, other, of_rows);
        of_products = std::fma(q * other, decay, of_products);
        of_keys = std::fma(own * decay, other, of_keys);
      }
      REQUIRE(rows.of(rows.Aqk, i, j) == rows.block.scale * of_rows);
      REQUIRE(products.of(products.Aqk, i, j) == rows.block.scale * of_products);
      if (j < i) REQUIRE(rows.of(rows.L, i, j) == rows.beta[i] * of_keys);
      apart += of_rows != of_products;
    }
  CHECK(apart > 100);
}

TEST_CASE("u, w and the inverse may be solutions, of blocks of 8 or 16 rows", "[interpreted]") {
  for (const char* const storage : {"storage=none", "storage=bf16@inverse_operands"})
    for (const std::size_t side : {8, 16})
      for (const std::size_t rows : {1, 2, 17, 40}) {
        INFO(storage << ", blocks of " << side << ", " << rows << " rows");
        const Computed data(rows, {"decay=pair-rows", "beta=rows-late", storage,
                                   side == 8 ? "inverse=solve:8" : "inverse=solve:16"});
        const Rounding rounding = storage == std::string("storage=none") ? Rounding::none : Rounding::bf16;
        std::vector<Row> values(rows), keys(rows), unit(rows);
        for (std::size_t i = 0; i < rows; ++i) {
          for (std::size_t c = 0; c < Computed::V; ++c)
            values[i].push_back(data.v[i * data.v_stride + c] * data.beta[i]);
          for (std::size_t c = 0; c < Computed::K; ++c) {
            const float decayed =
                data.k[i * data.k_stride + c] * Computed::exact(data.G[i * data.k_stride + c]);
            keys[i].push_back(decayed * data.beta[i]);
          }
          for (std::size_t j = 0; j < rows; ++j) unit[i].push_back(i == j ? 1.0F : 0.0F);
        }
        const std::vector<Row> u = solved(data, values, side, rounding),
                               w = solved(data, keys, side, rounding), x = solved(data, unit, side, rounding);
        for (std::size_t i = 0; i < rows; ++i) {
          for (std::size_t c = 0; c < Computed::V; ++c) REQUIRE(data.u[i * data.v_stride + c] == u[i][c]);
          for (std::size_t c = 0; c < Computed::K; ++c) REQUIRE(data.w[i * data.k_stride + c] == w[i][c]);
          for (std::size_t j = 0; j < rows; ++j) REQUIRE(data.of(data.A, i, j) == x[i][j]);
        }
      }
}

TEST_CASE("a prediction may be a sum for every 64 channels", "[interpreted]") {
  const Computed blocked(20, {"delta=blocked"}), whole(20, {"delta=wy"});
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t c = 0; c < Computed::V; ++c) {
      float total = 0;
      for (std::size_t first = 0; first < Computed::K; first += 64) {
        float sum = 0;
        for (std::size_t d = first; d < std::min(first + 64, Computed::K); ++d)
          sum = std::fma(blocked.w[i * blocked.k_stride + d], blocked.initial[d * blocked.v_stride + c], sum);
        total = first == 0 ? sum : total + sum;
      }
      REQUIRE(blocked.v_new[i * blocked.v_stride + c] == blocked.u[i * blocked.v_stride + c] - total);
    }
  CHECK(!test::same_bits(blocked.v_new, whole.v_new));
}

TEST_CASE("o may read the state from an anchor on, scaled as its other part is added", "[interpreted]") {
  for (const char* const readout : {"readout=start", "readout=first", "readout=centre"}) {
    INFO(readout);
    const Computed data(20, {readout, "output=fused"});
    const std::string from = readout;
    for (std::size_t i = 0; i < 20; ++i)
      for (std::size_t v = 0; v < Computed::V; ++v) {
        float inter = 0, intra = 0;
        for (std::size_t c = 0; c < Computed::K; ++c) {
          const float first = data.G[c], last = data.G[19 * data.k_stride + c],
                      G = data.G[i * data.k_stride + c];
          const float state = data.initial[c * data.v_stride + v], q = data.q[i * data.k_stride + c];
          const float anchor = from == "readout=first" ? first : (first + last) * 0.5F;
          inter = from == "readout=start"
                      ? std::fma(q * Computed::exact(G), state, inter)
                      : std::fma(q * Computed::exact(G - anchor), state * Computed::exact(anchor), inter);
        }
        for (std::size_t j = 0; j <= i; ++j)
          intra = std::fma(data.of(data.Aqk, i, j), data.v_new[j * data.v_stride + v], intra);
        REQUIRE(data.o[i * data.v_stride + v] == std::fma(inter, data.block.scale, intra));
      }
  }
}

TEST_CASE("kg may be rounded alone, and is where all operands are", "[interpreted]") {
  const auto are_narrow = [](const Row& values) {
    return std::ranges::all_of(values, [](float x) { return rounded(Rounding::bf16, x) == x; });
  };
  const Computed alone(20, {"storage=bf16@kg"}), all(20, {"storage=bf16@operands"}),
      none(20, {"storage=none"});
  CHECK(are_narrow(alone.kg));
  CHECK(are_narrow(all.kg));
  CHECK_FALSE(are_narrow(alone.qg));
  CHECK_FALSE(are_narrow(none.kg));
}

TEST_CASE("a chunk that is not full ends where one that is filled up does", "[interpreted]") {
  // Sums of 40 gates: those that end at the 64th row are added up in another order than those at the 40th.
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 40, spec.V = 16, spec.chunk_size = 64;
  const Problem problem = test::make_problem(spec);
  RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  set_axis(options.arithmetic, "sglang-jax");
  const Answer filled = test::run(problem, "chunk", options);
  set_axis(options.arithmetic, "launch=any");
  const Answer in_runs = test::run(problem, "chunk", options);
  set_axis(options.arithmetic, "ideal");
  const Answer ideal = test::run(problem, "chunk", options);
  CHECK(test::differing_bits(filled.final_state, in_runs.final_state) > 0);
  for (std::size_t e = 0; e < ideal.final_state.size(); ++e)
    REQUIRE(std::fabs(filled.final_state.value(e) - ideal.final_state.value(e)) < 1e-5);
}

TEST_CASE("XLA's exponential is that of its polynomial, and flushes", "[interpreted][exponential]") {
  CHECK(numeric::xla::exp(-87.4F) == 0);
  CHECK(numeric::xla::exp(-87.3F) > 0);
  CHECK(numeric::xla::exp2(-1.0F) == 0.5F);
  test::Random random(4);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(random.uniform(-87.0, 88.5));
    const double truth = exp(test::Big(static_cast<double>(x))).to_double(),
                 error = std::fabs(static_cast<double>(numeric::xla::exp(x)) - truth);
    worst = std::max(worst, error / std::ldexp(1.0, std::ilogb(truth) - 23));
  }
  INFO(worst << " ULP");
  CHECK(worst < 2);
  CHECK(worst > 0.5);
}

}  // namespace interpreted_kernels_tests
