// What is done element by element, before the recurrence and behind it.
#include "kda/kernels/elements/chain_rules.hpp"
#include "kda/kernels/elements/prepare.hpp"
#include "kda/kernels/entries.hpp"
#include "numeric/elementary.hpp"
#include "numeric/elementary_steps.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

/// y[i] = function(x[i]), correctly rounded: the first step for whole packs, `step` deciding what it may be
/// asked, and the scalar function for the lanes that it leaves open.
template <class Step>
KDA_CHECK_INLINE void correctly_rounded(const double* x, double* y, std::size_t count, Step step,
                                        double (*function)(double)) {
  constexpr int W = 2;
  using Pack = Lanes<double, W>;
  for (std::size_t i = 0; i < count; i += Pack::count) {
    const std::size_t used = count - i < Pack::count ? count - i : Pack::count;
    double argument[Pack::count] = {}, value[Pack::count];
    std::memcpy(argument, x + i, used * sizeof(double));
    const auto rounded = step(Pack::load(argument));
    rounded.value.store(value);
    if (!all(rounded.sure))
      for (std::size_t lane = 0; lane < used; ++lane)
        if (!lane_of(rounded.sure, lane)) value[lane] = function(argument[lane]);
    std::memcpy(y + i, value, used * sizeof(double));
  }
}

}  // namespace

void exponential(Exponential kind, const double* x, double* y, std::size_t count) {
  if (kind == Exponential::libm) {
    for (std::size_t i = 0; i < count; ++i) y[i] = __builtin_exp(x[i]);
    return;
  }
  correctly_rounded(
      x, y, count, [](const auto& pack) __attribute__((always_inline)) {
        using Pack = std::remove_cvref_t<decltype(pack)>;
        // Beyond +-708 the result is subnormal, 0 or infinite, or close to it: 0 is told here, gates being
        // what they are, the others by the function.
        const Pack bound = Pack::broadcast(708.0), least = Pack::broadcast(-746.0);
        const auto is_zero = least > pack;
        const Pack inside = select(is_zero, Pack::zero(), pack);
        auto rounded = numeric::exp_step(inside);
        rounded.value = select(is_zero, Pack::zero(), rounded.value);
        rounded.sure = both(rounded.sure, bound >= absolute(inside));
        return rounded;
      },
      numeric::exp);
}

void log1p(const double* x, double* y, std::size_t count) {
  correctly_rounded(
      x, y, count, [](const auto& pack) __attribute__((always_inline)) {
        using Pack = std::remove_cvref_t<decltype(pack)>;
        const Pack size = absolute(pack);
        auto rounded = numeric::log1p_step(pack);
        rounded.sure =
            both(rounded.sure, both(Pack::broadcast(0x1p900) >= size, pack > Pack::broadcast(-0.5)));
        return rounded;
      },
      numeric::log1p);
}

void log1p(const float* x, float* y, std::size_t count) {
  constexpr std::size_t step = 256;
  double wide[step];
  for (std::size_t start = 0; start < count; start += step) {
    const std::size_t used = count - start < step ? count - start : step;
    for (std::size_t i = 0; i < used; ++i) wide[i] = static_cast<double>(x[start + i]);
    log1p(wide, wide, used);
    for (std::size_t i = 0; i < used; ++i) y[start + i] = static_cast<float>(wide[i]);
  }
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
template void dots_of_rows(const SumOrder&, const Rows<float>&, const Rows<float>&, std::size_t, std::size_t,
                           float*);
template void dots_of_rows(const SumOrder&, const Rows<double>&, const Rows<double>&, std::size_t,
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
