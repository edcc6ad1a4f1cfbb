// The kernels of the gradients' oracle, table by table.
#include <vector>

#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"

namespace gradient_kernels_tests {

using namespace kda_check;

namespace {

/// One block through the kernels of one table; everything they write, in one list.
std::vector<double> through_kernels(const kda::OracleKernels& kernels, bool in_fp64) {
  constexpr std::size_t tokens = 5, K = 12, lanes = 24, stride = 32;
  test::Random random(4);
  std::vector<std::vector<double>> memory;
  const auto make = [&](std::size_t rows, std::size_t columns, double from, double to) {
    memory.push_back(test::numbers<double>(random, 3 * rows * columns, from, to));
    std::vector<double>& all = memory.back();
    for (std::size_t i = 0; i < rows * columns; ++i) all[rows * columns + i] = all[i] * 0x1p-55;
    return kda::OracleMatrix{all.data(), all.data() + rows * columns, all.data() + 2 * rows * columns,
                             columns};
  };
  const auto rows_of = [](const kda::OracleMatrix& m) { return kda::OracleRows{m.hi, m.lo}; };
  memory.reserve(24);
  const kda::OracleMatrix q = make(tokens, K, -1, 1), k = make(tokens, K, -0.3, 0.3),
                          decay = make(tokens, K, 0.5, 1), beta = make(tokens, 1, 0, 1),
                          state = make(K, stride, -1, 1), decayed = make(tokens * K, stride, 0, 0),
                          error = make(tokens, stride, 0, 0), write = make(tokens, stride, 0, 0),
                          gradient = make(K, stride, -1, 1), residual = make(tokens, stride, 0, 0),
                          dv = make(tokens, stride, 0, 0), dq = make(tokens, K, 0, 0),
                          dk = make(tokens, K, 0, 0), dg = make(tokens, K, 0, 0),
                          dbeta = make(tokens, 1, 0, 0), terms = make(tokens, stride, 0, 0),
                          v = make(tokens, stride, -1, 1), incoming = make(tokens, stride, -1, 1),
                          factors = make(tokens, K, 0, 1), energy = make(K, stride, 0, 1),
                          along = make(tokens, stride, 0, 0);
  const kda::OracleStrength strength{
      rows_of(beta), {nullptr, nullptr}, factors.hi, factors.magnitude, factors.magnitude};
  (in_fp64 ? kernels.replay_in_fp64
           : kernels.replay)({tokens, K, lanes, rows_of(k), rows_of(k), rows_of(decay), strength, v.hi,
                              nullptr, state, decayed, tokens, error, write});
  (in_fp64 ? kernels.backward_in_fp64 : kernels.backward)(
      {tokens,  K,     lanes, rows_of(q), rows_of(k), rows_of(k), rows_of(decay), strength, incoming.hi,
       decayed, error, write, gradient,   energy.hi,  residual,   terms.hi,       along.hi, dv,
       dq,      dk,    dg,    dbeta,      {}});
  std::vector<double> all;
  for (const std::vector<double>& part : memory) all.insert(all.end(), part.begin(), part.end());
  for (const bool lower_bounded : {false, true}) {
    std::vector<double> hi = test::numbers<double>(random, 30, -20, 20), lo(30, 0.0);
    kernels.gate_slope({30, {hi.data(), lo.data()}, {nullptr, nullptr}, 0.4, lower_bounded, -5.0});
    all.insert(all.end(), hi.begin(), hi.end()), all.insert(all.end(), lo.begin(), lo.end());
  }
  return all;
}

}  // namespace

TEST_CASE("every instruction set gives the same bits: the recurrence backwards", "[gradients]") {
  const kda::KernelTables tables = kda::kernel_tables();
  for (const bool in_fp64 : {false, true}) {
    const std::vector<double> first = through_kernels(tables.table[0]->oracle, in_fp64);
    for (int i = 1; i < tables.count; ++i) {
      INFO(tables.table[i]->instruction_set);
      CHECK(test::same_bits(through_kernels(tables.table[i]->oracle, in_fp64), first));
    }
  }
}

TEMPLATE_TEST_CASE("every instruction set gives the same bits: token forms backwards", "[gradients]", float,
                   double) {
  using T = TestType;
  constexpr std::size_t tokens = 5, K = 12, V = 20, stride = 32, count = tokens * stride;
  for (const int which : {0, 1, 2}) {  // by Contraction, then in any arithmetic
    const auto gradients = [&](const kda::KernelTable& table) {
      const kda::Kernels<T>& all = test::kernels_of<T>(table);
      const auto& kernels = which < 2 ? all.token_backward[which] : all.any_token_backward;
      const std::size_t lanes = all.tile_lanes;
      test::Random random(4);
      const std::vector<T> x = test::numbers<T>(random, count, -0.3, 0.3);
      std::vector<T> sums(5 * count);
      const T* const in = x.data();
      T* const out = sums.data();
      kda::Operations operations;
      operations.reduction.kind = kda::ReductionKind::pairwise;
      for (std::size_t lane = 0; lane < stride; lane += lanes) {
        std::vector<T> state(V * lanes, T(0.5)), gradient = state, history(tokens * lanes * (V + 1));
        const auto columns = [&](T* to) {
          return kda::ColumnsBlock<T>{tokens, K,         stride, stride,       in,         in, in,
                                      in,     in + lane, to,     state.data(), operations, {}};
        };
        kernels.replay(columns(out + lane));
        kernels.column_gradients(columns(out + count + lane));
        kernels.row_gradients({tokens,
                               V,
                               stride,
                               stride,
                               in + lane,
                               in + lane,
                               in + lane,
                               in,
                               in,
                               in,
                               out + 2 * count + lane,
                               out + 3 * count + lane,
                               out + 4 * count + lane,
                               state.data(),
                               gradient.data(),
                               history.data(),
                               operations,
                               {}});
      }
      return sums;
    };
    const kda::KernelTables tables = kda::kernel_tables();
    for (int i = 1; i < tables.count; ++i) {
      INFO(tables.table[i]->instruction_set);
      CHECK(test::same_bits(gradients(*tables.table[i]), gradients(*tables.table[0])));
    }
  }
}

}  // namespace gradient_kernels_tests
