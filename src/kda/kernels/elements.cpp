// What is done element by element, before the recurrence and behind it.
#include "kda/kernels/chain_rules.hpp"
#include "kda/kernels/entries.hpp"
#include "kda/kernels/prepare.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

void exponential(Exponential kind, const float* x, float* y, std::size_t count) {
  if (kind != Exponential::exact) return numeric::exponentials(kind, x, y, count);
  constexpr int W = 4;
  constexpr std::size_t step = W * lanes_per_vector<double>;
  std::size_t i = 0;
  for (; i + step <= count; i += step) exponential_pack<W>(x + i, y + i);
  if (i < count) {
    float rest[step] = {};
    for (std::size_t j = i; j < count; ++j) rest[j - i] = x[j];
    exponential_pack<W>(rest, rest);
    for (std::size_t j = i; j < count; ++j) y[j] = rest[j - i];
  }
}

void exponential(Exponential kind, const double* x, double* y, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    y[i] = kind == Exponential::exact ? numeric::exp(numeric::DoubleDouble{x[i]}).hi : __builtin_exp(x[i]);
}

void round_array(Rounding rounding, float* x, std::size_t count) {
  switch (rounding) {
    case Rounding::none:
      return;
    case Rounding::bf16:
      for (std::size_t i = 0; i < count; ++i) x[i] = numeric::through_bf16(x[i]);
      return;
    case Rounding::fp16:
      for (std::size_t i = 0; i < count; ++i) x[i] = numeric::through_fp16(x[i]);
      return;
    case Rounding::tf32:
      for (std::size_t i = 0; i < count; ++i) x[i] = numeric::through_tf32(x[i]);
      return;
  }
}
void round_array(Rounding, double*, std::size_t) {}

template void widen(numeric::DType, const void*, float*, std::size_t);
template void widen(numeric::DType, const void*, double*, std::size_t);
template void narrow(const float*, numeric::DType, void*, std::size_t);
template void narrow(const double*, numeric::DType, void*, std::size_t);
template void dots_of_rows(const Operations&, const float*, const float*, std::size_t, std::size_t,
                           std::size_t, float*);
template void dots_of_rows(const Operations&, const double*, const double*, std::size_t, std::size_t,
                           std::size_t, double*);
template void gate(const GateBlock<float>&);
template void gate(const GateBlock<double>&);
template void normalise(const NormBlock<float>&);
template void normalise(const NormBlock<double>&);
template void row_dots(const RowDotsBlock<float>&);
template void row_dots(const RowDotsBlock<double>&);
template void normalise_gradient(const NormGradientBlock<float>&);
template void normalise_gradient(const NormGradientBlock<double>&);
template void gate_gradient(const GateGradientBlock<float>&);
template void gate_gradient(const GateGradientBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
