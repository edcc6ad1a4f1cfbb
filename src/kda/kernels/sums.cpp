// Sums in every order, and products.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/product.hpp"

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
template void cumulate(const Reduction&, float*, std::size_t, std::size_t);
template void cumulate(const Reduction&, double*, std::size_t, std::size_t);

}  // namespace kda_check::kda::KDA_CHECK_ISA
