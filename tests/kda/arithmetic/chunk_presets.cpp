// Words that only presets of chunked kernels need which nobody has recorded answers of, each against its
// definition (docs/arithmetic.md, "Presets").
#include <cmath>
#include <string>
#include <vector>

#include "kda/arithmetic/rounded.hpp"
#include "numeric/h100.hpp"
#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"
#include "support/tensor_core.hpp"

namespace chunk_presets_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

namespace h100 = numeric::h100;

enum class State { drawn, empty };

/// A chunk in fp32 with keys that share a part, so that its inverse is no small thing.
struct Computed : test::ChunkData<float> {
  static constexpr std::size_t K = 40, V = 20;

  Computed(std::size_t rows, const Arithmetic& arithmetic, State from = State::drawn)
      : ChunkData(rows, K, V) {
    if (from == State::empty) state.assign(state.size(), 0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t c = 0; c < K; ++c) k[i * k_stride + c] += c % 3 == 0 ? 0.2F : 0.0F;
    block.operations = operations_of(arithmetic);
    block.decay = arithmetic.decay, block.anchor_rows = static_cast<std::size_t>(arithmetic.anchor_rows);
    block.inverse = arithmetic.inverse;
    block.inverse_rows = static_cast<std::size_t>(arithmetic.inverse_rows);
    block.casts = cast_points(arithmetic, DType::bf16, false, true);
    kernels<float>().chunk[1](block);
  }
  float of(const std::vector<float>& square, std::size_t i, std::size_t j) const {
    return square[i * score_stride + j];
  }
};

Arithmetic in_words(std::initializer_list<const char*> words) {
  Arithmetic arithmetic;
  for (const char* const word : words) set_axis(arithmetic, word);
  return arithmetic;
}

}  // namespace

TEST_CASE("merging halves inverts chunks of any length, from blocks of any size", "[presets]") {
  for (const std::size_t rows : {1, 9, 16, 37, 64, 100, 150})
    for (const char* const inverse :
         {"inverse=eliminate:8", "inverse=chains:8", "inverse=doubling-wide:8", "inverse=eliminate:16",
          "inverse=blocks:16", "inverse=doubling-wide:16", "inverse=blocks:32"})
      for (const char* const merge : {"merge=nearest", "merge=halves", "merge=split:16"}) {
        const Computed data(rows, in_words({"ideal", inverse, merge}));
        INFO(rows << " rows, " << inverse << ' ' << merge);
        for (std::size_t i = 0; i < rows; ++i)
          for (std::size_t j = 0; j <= i; ++j) {  // X + L X = I
            double sum = static_cast<double>(data.of(data.A, i, j));
            for (std::size_t m = j; m < i; ++m)
              sum += static_cast<double>(data.of(data.L, i, m)) * static_cast<double>(data.of(data.A, m, j));
            REQUIRE(std::fabs(sum - (i == j ? 1.0 : 0.0)) < 1e-5);
          }
      }
}

TEST_CASE("a split merge rounds each half of its second product and what they add up to", "[presets]") {
  const auto words = [](const char* merge) {
    return in_words({"ideal", "storage=fp16@L+fp16@inverse_operands+fp16@Akk_inv", "inverse=blocks:32",
                     "reduction=mma:25", merge});
  };
  const Computed split(64, words("merge=split:16")), halves(64, words("merge=halves"));
  const auto chain = [](const std::vector<float>& row, const std::vector<float>& column) {
    return test::ruled_chain(test::Ruled(25, Rounding::fp16), 16, row, column, 0);
  };
  const auto to_fp16 = [](float x) { return rounded(Rounding::fp16, x); };
  std::size_t differing = 0;
  for (std::size_t i = 32; i < 64; ++i) {
    std::vector<float> left(32);  // -(X_ii L_ij), row i
    for (std::size_t m = 0; m < 32; ++m) {
      std::vector<float> row(32), column(32);
      for (std::size_t d = 0; d < 32; ++d)
        row[d] = split.of(split.A, i, 32 + d), column[d] = split.of(split.L, 32 + d, m);
      left[m] = to_fp16(-chain(row, column));
    }
    for (std::size_t j = 0; j < 32; ++j) {
      float parts[2];
      for (std::size_t half = 0; half < 2; ++half) {
        std::vector<float> row(16), column(16);
        for (std::size_t d = 0; d < 16; ++d)
          row[d] = left[16 * half + d], column[d] = split.of(split.A, 16 * half + d, j);
        parts[half] = to_fp16(chain(row, column));
      }
      REQUIRE(split.of(split.A, i, j) == to_fp16(parts[0] + parts[1]));
      differing += split.of(split.A, i, j) != halves.of(halves.A, i, j);
    }
  }
  CHECK(differing > 0);
}

TEST_CASE("beta in the columns of the inverse is rounded with them", "[presets]") {
  // From an empty state nothing is predicted: v_new = T v.
  const Computed data(
      50, in_words({"ideal", "delta=residual", "beta=columns", "storage=bf16@operands+fp16@residual"}),
      State::empty);
  std::size_t rounded_factors = 0;
  for (std::size_t i = 0; i < 50; ++i)
    for (std::size_t v = 0; v < Computed::V; ++v) {
      double sum = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        const float weighted = data.of(data.A, i, j) * data.beta[j], error = data.v[j * data.v_stride + v];
        sum += static_cast<double>(rounded(Rounding::bf16, weighted)) *
               static_cast<double>(rounded(Rounding::bf16, rounded(Rounding::fp16, error)));
        rounded_factors += rounded(Rounding::bf16, weighted) != weighted;
      }
      REQUIRE(data.v_new[i * data.v_stride + v] == static_cast<float>(sum));
    }
  CHECK(rounded_factors > 1000);
  const Computed rows(50, in_words({"ideal", "delta=residual"})),
      columns(50, in_words({"ideal", "delta=residual", "beta=columns"})),
      wy(50, in_words({"ideal", "beta=columns"}));
  CHECK(!test::same_bits(rows.v_new, columns.v_new));
  CHECK(!test::same_bits(wy.v_new, columns.v_new));
  for (std::size_t e = 0; e < rows.v_new.size(); ++e) {
    REQUIRE(std::fabs(rows.v_new[e] - columns.v_new[e]) < 1e-5F);
    REQUIRE(std::fabs(wy.v_new[e] - columns.v_new[e]) < 1e-5F);
  }
}

TEST_CASE("scores left of the diagonal have operands of their own", "[presets]") {
  const auto words = [](const char* storage) {
    return in_words({"ideal", "decay=anchor-first:16", storage});
  };
  const Computed whole(64, words("storage=none")), narrow(64, words("storage=bf16@score_operands")),
      left(64, words("storage=bf16@off_diagonal")),
      mixed(64, words("storage=bf16@off_diagonal+fp16@score_operands"));
  std::size_t of_diagonal = 0, beside = 0;
  for (std::size_t i = 0; i < 64; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      if (i / 16 == j / 16) {
        REQUIRE(left.of(left.Aqk, i, j) == whole.of(whole.Aqk, i, j));
        of_diagonal += mixed.of(mixed.Aqk, i, j) != whole.of(whole.Aqk, i, j);
      } else {
        REQUIRE(left.of(left.Aqk, i, j) == narrow.of(narrow.Aqk, i, j));
        REQUIRE(mixed.of(mixed.Aqk, i, j) == narrow.of(narrow.Aqk, i, j));
        beside += left.of(left.Aqk, i, j) != whole.of(whole.Aqk, i, j);
      }
    }
  CHECK(of_diagonal > 100);
  CHECK(beside > 1000);
}

TEST_CASE("growth may be the reciprocal of decay, and a factored tail need not be rounded on its way",
          "[presets]") {
  const auto words = [](const char* special, const char* tail) {
    return in_words({"ideal", "exponential=cuda-fast", "decay=reciprocal:16", "gates=log2", special, tail,
                     "storage=bf16@score_operands+bf16@operands"});
  };
  const auto to_bf16 = [](float x) { return rounded(Rounding::bf16, x); };
  std::size_t apart = 0;
  for (const char* const special : {"special=ieee", "special=fast"}) {
    const Computed late(16, words(special, "tail=factored-late")), early(16, words(special, "tail=factored"));
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t c = 0; c < Computed::K; ++c) {
        const std::size_t at = i * late.k_stride + c;
        const float decay = h100::ex2_ftz(late.G[at]), last = h100::ex2_ftz(late.G[15 * late.k_stride + c]);
        const float growth = special == std::string("special=fast") ? h100::rcp_ftz(decay) : 1.0F / decay;
        REQUIRE(late.kg[at] == to_bf16(late.k[at] * growth * last));
        REQUIRE(early.kg[at] == to_bf16(to_bf16(late.k[at] * growth) * last));
        apart += late.kg[at] != early.kg[at];
      }
  }
  CHECK(apart > 100);
}

TEST_CASE("scale may multiply the finished output of a chunk", "[presets]") {
  const Computed scores(64, in_words({"ideal"})), output(64, in_words({"ideal", "scale=output"}));
  for (std::size_t i = 0; i < 64; ++i)
    for (std::size_t j = 0; j <= i; ++j)
      REQUIRE(scores.of(scores.Aqk, i, j) == output.block.scale * output.of(output.Aqk, i, j));
  CHECK(!test::same_bits(scores.o, output.o));
  for (std::size_t e = 0; e < scores.o.size(); ++e) REQUIRE(std::fabs(scores.o[e] - output.o[e]) < 1e-5F);
}

TEST_CASE("fast-floor has a floor of 1e-24 under the norm and one fma in a bounded gate", "[presets]") {
  constexpr std::size_t K = 32;
  Arithmetic arithmetic = in_words({"ideal", "special=fast-floor"});
  for (const float size : {0.0F, 1e-14F, 1e-3F, 1.0F}) {
    std::vector<float> x(K, size), y = x;
    kernels<float>().normalise({1, K, K, y.data(), true, operations_of(arithmetic)});
    const float sum = static_cast<float>(static_cast<double>(size) * static_cast<double>(size) * K);
    REQUIRE(y[0] == size * h100::rsqrt_ftz(sum < 1e-24F ? 1e-24F : sum));
  }
  for (const float raw : {-3.0F, -0.1F, 0.7F, 5.0F}) {
    std::vector<float> g(K, raw), factors(K);
    kernels<float>().gate({1, K, K, g.data(), nullptr, 1.3F, true, -5.0F, Exponential::cuda_fast,
                           Special::fast_floor, factors.data()});
    const float t = h100::tanh(1.3F * raw * 0.5F);
    REQUIRE(g[0] == std::fma(t, -2.5F, -2.5F));
    REQUIRE(factors[0] == t);
  }
}

}  // namespace chunk_presets_tests
