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

TEMPLATE_TEST_CASE("every instruction set gives the same bits: naive backwards", "[gradients]", float,
                   double) {
  using T = TestType;
  constexpr std::size_t tokens = 5, K = 12, V = 20, k_stride = 32, v_stride = 32, matrix = K * v_stride;
  for (const auto kind : {kda::ReductionKind::sequential, kda::ReductionKind::pairwise}) {
    const auto gradients = [&](const kda::KernelTable& table) {
      test::Random random(4);
      const auto numbers = [&](std::size_t count, double from, double to) {
        return test::numbers<T>(random, count, from, to);
      };
      std::vector<T> q = numbers(tokens * k_stride, -1, 1), k = numbers(tokens * k_stride, -0.3, 0.3),
                     decay = numbers(tokens * k_stride, 0.5, 1), beta = numbers(tokens, 0, 1),
                     rows = numbers(tokens * v_stride, -1, 1), states = numbers((1 + tokens) * matrix, -1, 1),
                     gradient = numbers(matrix, -1, 1), errors(tokens * v_stride), dq(tokens * k_stride),
                     dk(tokens * k_stride), dg(tokens * k_stride), dv(tokens * v_stride), dbeta(tokens),
                     decayed(matrix), scratch(2 * k_stride);
      kda::Operations operations;
      operations.reduction.kind = kind;
      const kda::NaiveBackwardBlock<T> block{tokens,
                                             K,
                                             V,
                                             k_stride,
                                             v_stride,
                                             q.data(),
                                             k.data(),
                                             decay.data(),
                                             beta.data(),
                                             rows.data(),
                                             states.data(),
                                             errors.data(),
                                             gradient.data(),
                                             dq.data(),
                                             dk.data(),
                                             dg.data(),
                                             dv.data(),
                                             dbeta.data(),
                                             decayed.data(),
                                             scratch.data(),
                                             operations,
                                             {}};
      const kda::NaiveBackwardKernels<T>& kernels = test::kernels_of<T>(table).naive_backward;
      kernels.replay(block);
      kernels.gradients(block);
      std::vector<T> all;
      for (const std::vector<T>& part : {errors, dq, dk, dg, dv, dbeta, gradient})
        all.insert(all.end(), part.begin(), part.end());
      return all;
    };
    const kda::KernelTables tables = kda::kernel_tables();
    const std::vector<T> first = gradients(*tables.table[0]);
    for (int i = 1; i < tables.count; ++i) {
      INFO(tables.table[i]->instruction_set);
      CHECK(test::same_bits(gradients(*tables.table[i]), first));
    }
  }
}

}  // namespace gradient_kernels_tests
