// The kernels themselves: every instruction set gives the same bits, sums have the order they promise.
#include "kda/kernels/table.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "tensor/tensor.hpp"

namespace kernels_tests {

using namespace kda_check;
using namespace kda_check::kda;
using namespace kda_check::test;

TEST_CASE("no table was compiled with contraction", "[kernels]") {
  const KernelTables tables = kernel_tables();
  for (int i = 0; i < tables.count; ++i)
    CHECK(tables.table[i]->keeps_roundings_apart(1 + 0x1p-23f, 1 + 0x1p-23f, -(1 + 0x1p-22f)));
}

TEMPLATE_TEST_CASE("every instruction set gives the same bits: recurrence", "[kernels]", float, double) {
  using T = TestType;
  const KernelTables tables = kernel_tables();
  constexpr std::size_t tokens = 5, K = 24, V = 96;
  for (const int contraction : {0, 1}) {
    std::vector<T> first_o, first_state;
    for (int i = 0; i < tables.count; ++i) {
      test::Random random(9);
      const Kernels<T>& kernel = kernels_of<T>(*tables.table[i]);
      const std::vector<T> q = numbers<T>(random, tokens * K, -1, 1),
                           k = numbers<T>(random, tokens * K, -0.3, 0.3),
                           decay = numbers<T>(random, tokens * K, 0.5, 1),
                           beta = numbers<T>(random, tokens, 0, 1), v = numbers<T>(random, tokens * V, -1, 1),
                           start = numbers<T>(random, K * V, -1, 1);
      std::vector<T> o(tokens * V), state(K * V), tile(K * kernel.tile_lanes);
      for (std::size_t lane = 0; lane < V; lane += kernel.tile_lanes) {
        for (std::size_t row = 0; row < K; ++row)
          for (std::size_t j = 0; j < kernel.tile_lanes; ++j)
            tile[row * kernel.tile_lanes + j] = start[row * V + lane + j];
        kernel.recurrent[contraction]({tokens, K, K, V, q.data(), k.data(), decay.data(), beta.data(),
                                       v.data() + lane, o.data() + lane, tile.data(), Operations(),
                                       CastPoints()});
        for (std::size_t row = 0; row < K; ++row)
          for (std::size_t j = 0; j < kernel.tile_lanes; ++j)
            state[row * V + lane + j] = tile[row * kernel.tile_lanes + j];
      }
      if (i == 0) first_o = o, first_state = state;
      INFO(tables.table[i]->instruction_set);
      CHECK(same_bits(o, first_o));
      CHECK(same_bits(state, first_state));
    }
  }
}

TEST_CASE("every instruction set gives the same bits: exponential and gates", "[kernels]") {
  const KernelTables tables = kernel_tables();
  test::Random random(4);
  const std::vector<float> x = numbers<float>(random, 1003, -110, 95);
  const std::vector<double> wide = numbers<double>(random, 1003, -30, 5);
  std::vector<float> first, first_gate;
  std::vector<double> first_hi, first_lo;
  for (int i = 0; i < tables.count; ++i) {
    std::vector<float> y(x.size()), g(x.begin(), x.begin() + 1000);
    tables.table[i]->fp32.exponential(Exponential::exact, x.data(), y.data(), x.size());
    tables.table[i]->fp32.gate({10, 100, 100, g.data(), nullptr, 0.7f, false, 0.0f, Exponential::exact});
    std::vector<double> hi = wide, lo(wide.size());
    tables.table[i]->oracle.gate({hi.size(), {hi.data(), lo.data()}, {nullptr, nullptr}, 0.4, true, -5.0});
    if (i == 0) first = y, first_gate = g, first_hi = hi, first_lo = lo;
    CHECK(same_bits(y, first));
    CHECK(same_bits(g, first_gate));
    CHECK(same_bits(hi, first_hi));
    CHECK(same_bits(lo, first_lo));
  }
}

TEST_CASE("every instruction set gives the same bits: rows of errors", "[kernels]") {
  const KernelTables tables = kernel_tables();
  test::Random random(5);
  constexpr std::size_t count =
      11 * row_lanes;  // more tiles than are added up at once, and not twice as many
  std::vector<float> values = numbers<float>(random, count, -3, 3);
  const std::vector<float> truth = numbers<float>(random, count, -3, 3);
  const std::vector<double> exact = numbers<double>(random, count, -3, 3);
  values[0] = 1e20F, values[17] = -HUGE_VALF, values[40] = std::nanf("");
  std::vector<float> first;
  for (int i = 0; i < tables.count; ++i) {
    std::vector<float> error = values, columns(count, 1.0F), along(count, 2.0F), tiles(count / row_lanes);
    tables.table[i]->rows.errors({count, exact.data(), 3.0, 1e12F, error.data()});
    CHECK(error[0] == 1e12F);
    CHECK(error[17] == -1e12F);
    CHECK(std::isnan(error[40]));
    CHECK(error[1] == static_cast<float>((static_cast<double>(values[1]) - exact[1]) * 3));
    error[40] = 0;
    RowEnergies row{count, error.data(),   truth.data(), 0.3F,         1e15F,
                    0.7F,  columns.data(), along.data(), tiles.data(), 0};
    tables.table[i]->rows.energies(row);
    float last_tile = 0;
    for (std::size_t c = count - row_lanes; c < count; ++c) last_tile += error[c] * 0.3F * (error[c] * 0.3F);
    CHECK(tiles.back() == last_tile);
    std::vector<float> all = error;
    for (const std::vector<float>* const part : {&columns, &along, &tiles})
      all.insert(all.end(), part->begin(), part->end());
    all.push_back(row.along), all.push_back(tables.table[i]->rows.product(error.data(), truth.data(), count));
    if (i == 0) first = all;
    CHECK(same_bits(all, first));
  }
}

TEST_CASE("scores above the diagonal are exactly zero", "[kernels]") {
  for (const DecayForm decay :
       {DecayForm::pair, DecayForm::anchor_pair, DecayForm::anchor_first, DecayForm::anchor_mid}) {
    ChunkData<float> data(50, 16, 16);
    data.block.decay = decay;
    kernels<float>().chunk[1](data.block);
    for (std::size_t i = 0; i < 50; ++i)
      for (std::size_t j = i; j < 64; ++j) {
        REQUIRE(data.L[i * data.score_stride + j] == 0.0f);
        if (j > i) REQUIRE(data.Aqk[i * data.score_stride + j] == 0.0f);
      }
  }
}

TEST_CASE("widening and narrowing go through every element type", "[kernels]") {
  const std::vector<float> values{0.0f, -1.5f, 3.14159274f, 65504.0f, 1e-7f, -2e5f};
  for (const numeric::DType dtype :
       {numeric::DType::fp64, numeric::DType::fp32, numeric::DType::bf16, numeric::DType::fp16}) {
    tensor::Tensor stored("x", dtype, {values.size()});
    kernels<float>().narrow(values.data(), dtype, stored.data(), values.size());
    std::vector<float> back(values.size());
    kernels<float>().widen(dtype, stored.data(), back.data(), values.size());
    tensor::Tensor reference("x", dtype, {values.size()});
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference.set(i, values[i]);
      CHECK(stored.value(i) == reference.value(i));
      CHECK(static_cast<double>(back[i]) == stored.value(i));
    }
  }
}

}  // namespace kernels_tests
