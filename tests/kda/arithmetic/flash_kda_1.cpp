// FlashKDA after its inverse was replaced: the preset's inverse against the kernel's steps, one element at a
// time, and its L. What else the preset says, flash_kda.cpp holds to recorded answers.
#include <cmath>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/tensor_core.hpp"

namespace flash_kda_1_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

constexpr std::size_t K = 40, V = 20, side = 8;

float to_bf16(float x) {  // to nearest even, for finite x
  const std::uint32_t bits = test::bits_of(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff'0000);
}

Arithmetic preset(const char* more = "") {
  Arithmetic arithmetic;
  set_axis(arithmetic, "flash-kda-1");
  if (*more != 0) set_axis(arithmetic, more);
  return arithmetic;
}

void compute(test::ChunkData<float>& data, const Arithmetic& arithmetic) {
  data.block.operations = operations_of(arithmetic);
  data.block.decay = arithmetic.decay, data.block.anchor_rows = 16;
  data.block.inverse = arithmetic.inverse;
  data.block.inverse_rows = static_cast<std::size_t>(arithmetic.inverse_rows);
  data.block.casts = cast_points(arithmetic, DType::bf16, false, true);
  kernels<float>().chunk[1](data.block);
}

struct Square {
  float at[16][16] = {};
};

Square lower(const test::ChunkData<float>& data, const std::vector<float>& of) {
  Square square;
  for (std::size_t i = 0; i < data.block.rows; ++i)
    for (std::size_t j = 0; j <= i; ++j) square.at[i][j] = of[i * data.score_stride + j];
  return square;
}

/// A row of 16 by a column of 16 on a Hopper: what stands outside the block that is not zero, too.
float on_tensor_core(const Square& a, std::size_t i, const Square& b, std::size_t j) {
  std::vector<float> row(a.at[i], a.at[i] + 16), column(16);
  for (std::size_t d = 0; d < 16; ++d) column[d] = b.at[d][j];
  return test::ruled_chain(test::Ruled(25, Rounding::bf16), 16, row, column, 0);
}

/// (I + L)^-1 as the kernel's warp forms it: rank-one updates of I + L below each pivot row, then P = both
/// blocks in bf16, M = what stands below them in bf16, and P - bf16(bf16(P M) P).
Square inverted(const Square& L) {
  Square x;
  for (std::size_t first : {std::size_t{0}, side}) {
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t j = 0; j <= i; ++j)
        x.at[first + i][first + j] = i == j ? 1 : L.at[first + i][first + j];
    for (std::size_t s = 0; s + 1 < side; ++s)
      for (std::size_t i = s + 1; i < side; ++i) {
        float* const row = x.at[first + i] + first;
        const float scale = -row[s];
        for (std::size_t p = 0; p < s; ++p) row[p] = std::fma(scale, x.at[first + s][first + p], row[p]);
        row[s] = scale;
      }
  }
  Square P, M, products, result;
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j) {
      P.at[i][j] = to_bf16(x.at[i][j]);
      if (i >= side && j < side) M.at[i][j] = to_bf16(L.at[i][j]);
    }
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j) products.at[i][j] = to_bf16(-on_tensor_core(P, i, M, j));
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j)
      result.at[i][j] = P.at[i][j] + to_bf16(on_tensor_core(products, i, P, j));
  return result;
}

/// Elements that differ, a zero being a zero.
std::size_t differing(const Square& a, const Square& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j) count += a.at[i][j] != b.at[i][j];
  return count;
}

/// Keys of norm 1 that share a part: the larger it is, the nearer L is to beta.
void set_keys(test::ChunkData<float>& data, test::Random& random, double shared) {
  std::vector<double> common(K);
  for (double& x : common) x = random.normal();
  for (std::size_t i = 0; i < data.block.rows; ++i) {
    double squares = 0;
    std::vector<double> key(K);
    for (std::size_t k = 0; k < K; ++k) {
      key[k] = shared * common[k] + random.normal();
      squares += key[k] * key[k];
    }
    for (std::size_t k = 0; k < K; ++k)
      data.k[i * data.k_stride + k] = to_bf16(static_cast<float>(key[k] / std::sqrt(squares)));
    data.beta[i] = static_cast<float>(random.uniform(0.1, 1.0));
  }
}

}  // namespace

TEST_CASE("the inverse of flash-kda-1 is what the kernel's warp does, step by step", "[flash]") {
  test::Random random(41);
  for (const std::size_t rows : {16, 11, 8, 3})
    for (const double shared : {0.0, 1.0, 20.0})
      for (int trial = 0; trial < 20; ++trial) {
        test::ChunkData<float> data(rows, K, V);
        set_keys(data, random, shared);
        compute(data, preset());
        const Square L = lower(data, data.L), expected = inverted(L);
        INFO(rows << " rows, shared part " << shared);
        Square got = lower(data, data.A);
        for (std::size_t i = rows; i < 16; ++i) got.at[i][i] = 1;  // rows that are not there
        REQUIRE(differing(got, expected) == 0);
      }
}

TEST_CASE("flash-kda-1 multiplies scores by beta in fp32 and rounds nothing of L", "[flash]") {
  test::ChunkData<float> data(16, K, V), ones(16, K, V);
  test::Random random(42);
  set_keys(data, random, 1.0);
  ones.k = data.k;
  for (float& beta : ones.beta) beta = 1;
  ones.block.k = ones.k.data();
  compute(data, preset());
  compute(ones, preset());
  std::size_t beyond_fp16 = 0;
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const std::size_t at = i * data.score_stride + j;
      REQUIRE(data.L[at] == data.beta[i] * ones.L[at]);
      beyond_fp16 += (test::bits_of(data.L[at]) & 0x1fff) != 0;
    }
  CHECK(beyond_fp16 > 100);
}

TEST_CASE("elimination takes every row in one running sum, whatever the order of other sums", "[flash]") {
  test::ChunkData<float> data(16, K, V);
  for (const char* const order : {"reduction=mma:25", "reduction=pairwise", "reduction=triton:25"}) {
    Arithmetic arithmetic = preset("storage=none");
    set_axis(arithmetic, "inverse=eliminate:16");
    set_axis(arithmetic, order);
    compute(data, arithmetic);
    const auto at = [&](std::size_t i, std::size_t j) { return i * data.score_stride + j; };
    for (std::size_t j = 0; j < 16; ++j)
      for (std::size_t i = j + 1; i < 16; ++i) {
        float sum = -data.L[at(i, j)];
        for (std::size_t s = j + 1; s < i; ++s) sum = std::fma(-data.L[at(i, s)], data.A[at(s, j)], sum);
        REQUIRE(data.A[at(i, j)] == sum);
      }
  }
}

}  // namespace flash_kda_1_tests
