// Sums in every order, and products.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/sums/cumulate.hpp"
#include "kda/kernels/sums/product.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template Sixteen<float> ordered_sum(const SumOrder&, std::size_t, const WeightedRows<float>&,
                                    const Sixteen<float>&, bool);
template Sixteen<float> ordered_sum(const SumOrder&, std::size_t, const PairedRows<float>&,
                                    const Sixteen<float>&, bool);
template Sixteen<float> ordered_sum(const SumOrder&, std::size_t, const PairedColumns<float>&,
                                    const Sixteen<float>&, bool);
template Sixteen<double> ordered_sum(const SumOrder&, std::size_t, const WeightedRows<double>&,
                                     const Sixteen<double>&, bool);
template Sixteen<double> ordered_sum(const SumOrder&, std::size_t, const PairedRows<double>&,
                                     const Sixteen<double>&, bool);
template Sixteen<double> ordered_sum(const SumOrder&, std::size_t, const PairedColumns<double>&,
                                     const Sixteen<double>&, bool);
template void product<float, false>(const SumOrder&, std::size_t, std::size_t, std::size_t, Factor<float>,
                                    const float*, std::size_t, float*, std::size_t, Start);
template void product<float, true>(const SumOrder&, std::size_t, std::size_t, std::size_t, Factor<float>,
                                   const float*, std::size_t, float*, std::size_t, Start);
template void product<double, false>(const SumOrder&, std::size_t, std::size_t, std::size_t, Factor<double>,
                                     const double*, std::size_t, double*, std::size_t, Start);
template void product<double, true>(const SumOrder&, std::size_t, std::size_t, std::size_t, Factor<double>,
                                    const double*, std::size_t, double*, std::size_t, Start);
template <class T>
void scan(const ScanBlock<T>& block) {
  constexpr std::size_t most = 128;
  for (std::size_t k = 0; k < block.stride; ++k) {
    T carry = 0;
    for (std::size_t begin = 0; begin < block.rows; begin += block.together) {
      const std::size_t count = block.rows - begin < block.together ? block.rows - begin : block.together;
      T sums[most], next[most];
      for (std::size_t i = 0; i < count; ++i) sums[i] = next[i] = block.x[(begin + i) * block.stride + k];
      for (std::size_t step = 1; step < count; step *= 2) {
        for (std::size_t i = step; i < count; ++i)
          next[i] = step == 1 && block.factors != nullptr && block.is_fused
                        ? scalar_multiply_add<true>(
                              block.constant, block.factors[(begin + i) * block.stride + k], sums[i - step])
                        : sums[i] + sums[i - step];
        for (std::size_t i = step; i < count; ++i) sums[i] = next[i];
      }
      for (std::size_t i = 0; i < count; ++i)
        block.x[(begin + i) * block.stride + k] = begin > 0 ? sums[i] + carry : sums[i];
      carry = block.x[(begin + count - 1) * block.stride + k];
    }
  }
}

template void scan(const ScanBlock<float>&);
template void scan(const ScanBlock<double>&);
template void cumulate(const Reduction&, float*, std::size_t, std::size_t);
template void cumulate(const Reduction&, double*, std::size_t, std::size_t);

void tensor_core_block(const TensorCoreBlock& block) {
  tensor_core_product(block.core, block.rows, block.columns, block.depth,
                      Factor<float>{block.a, block.depth, 1}, block.b, block.columns, block.c, block.columns,
                      Start::from_result);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
