// The approximate functions of an H100 over arrays.
#include "numeric/h100.hpp"

#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

namespace h100 = numeric::h100;

template <float (*function)(float)>
void each_of(const Approximations& block) {
  const float* __restrict__ const x = block.x;
  float* __restrict__ const result = block.result;
  for (std::size_t i = 0; i < block.count; ++i) result[i] = function(x[i]);
}
template <float (*function)(float, float)>
void each_pair_of(const Approximations& block) {
  const float* __restrict__ const x = block.x;
  const float* __restrict__ const y = block.y;
  float* __restrict__ const result = block.result;
  for (std::size_t i = 0; i < block.count; ++i) result[i] = function(x[i], y[i]);
}

}  // namespace

void approximate(const Approximations& block) {
  using h100::Function;
  switch (block.function) {
    case Function::ex2_ftz:
      return each_of<h100::ex2_ftz>(block);
    case Function::ex2:
    case Function::exp2f:
      return each_of<h100::ex2>(block);
    case Function::expf:
      return each_of<h100::expf>(block);
    case Function::fast_expf:
      return each_of<h100::fast_expf>(block);
    case Function::lg2_ftz:
      return each_of<h100::lg2_ftz>(block);
    case Function::lg2:
      return each_of<h100::lg2>(block);
    case Function::rcp_ftz:
      return each_of<h100::rcp_ftz>(block);
    case Function::rcp:
      return each_of<h100::rcp>(block);
    case Function::rsqrt_ftz:
      return each_of<h100::rsqrt_ftz>(block);
    case Function::rsqrt:
      return each_of<h100::rsqrt>(block);
    case Function::sqrt_ftz:
      return each_of<h100::sqrt_ftz>(block);
    case Function::sqrt:
      return each_of<h100::sqrt>(block);
    case Function::tanh:
      return each_of<h100::tanh>(block);
    case Function::div_full_ftz:
      return each_pair_of<h100::div_full_ftz>(block);
    case Function::div_full:
      return each_pair_of<h100::div_full>(block);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
