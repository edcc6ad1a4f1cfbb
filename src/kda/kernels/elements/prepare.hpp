// From stored elements to what the recurrence takes, and back: conversion, gate, L2 norm, cast points.
#pragma once

#include "kda/arithmetic/rounded.hpp"
#include "kda/kernels/elements/exponential.hpp"
#include "kda/kernels/elements/gradient_rules.hpp"
#include "kda/kernels/elements/special.hpp"
#include "kda/kernels/sums/reduction.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T, class Storage>
KDA_CHECK_INLINE void widen_array(const void* source, T* target, std::size_t count) {
  if constexpr (__is_same(T, Storage)) return void(__builtin_memcpy(target, source, count * sizeof(T)));
  const auto* elements = static_cast<const Storage*>(source);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == sizeof(float) && sizeof(Storage) <= sizeof(float)) {
      target[i] = numeric::widen_to_float(elements[i]);
    } else {
      target[i] = static_cast<T>(numeric::widen(elements[i]));
    }
  }
}

template <class T>
void widen(numeric::DType dtype, const void* source, T* target, std::size_t count) {
  switch (dtype) {
    case numeric::DType::fp64:
      return widen_array<T, double>(source, target, count);
    case numeric::DType::fp32:
      return widen_array<T, float>(source, target, count);
    case numeric::DType::bf16:
      return widen_array<T, numeric::Bfloat16>(source, target, count);
    case numeric::DType::fp16:
      return widen_array<T, numeric::Float16>(source, target, count);
  }
}

template <class T, class Storage>
KDA_CHECK_INLINE void narrow_array(const T* source, void* target, std::size_t count) {
  if constexpr (__is_same(T, Storage)) return void(__builtin_memcpy(target, source, count * sizeof(T)));
  auto* elements = static_cast<Storage*>(target);
  if constexpr (__is_same(T, float) && __is_same(Storage, numeric::Bfloat16)) {  // what a compiler vectorises
    for (std::size_t i = 0; i < count; ++i)
      elements[i].bits = static_cast<std::uint16_t>(
          __builtin_bit_cast(std::uint32_t, numeric::through_bf16(source[i])) >> 16);
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    elements[i] = numeric::round_to<Storage>(static_cast<double>(source[i]));
}

template <class T>
void narrow(const T* source, numeric::DType dtype, void* target, std::size_t count) {
  switch (dtype) {
    case numeric::DType::fp64:
      return narrow_array<T, double>(source, target, count);
    case numeric::DType::fp32:
      return narrow_array<T, float>(source, target, count);
    case numeric::DType::bf16:
      return narrow_array<T, numeric::Bfloat16>(source, target, count);
    case numeric::DType::fp16:
      return narrow_array<T, numeric::Float16>(source, target, count);
  }
}

/// All of x through a cast point. Cast points are those of kernels that compute in fp32; fp64 computations
/// have none. In elements.cpp.
void round_array(Rounding rounding, float* x, std::size_t count);
void round_array(Rounding rounding, double* x, std::size_t count);

/// ln(1 + exp(y)) as FLA writes it in PTX; there is none in fp64.
template <class T>
KDA_CHECK_INLINE void triton_softplus(const T* y, T* result, std::size_t count) {
  if constexpr (sizeof(T) == sizeof(float))
    for (std::size_t i = 0; i < count; ++i)
      result[i] =
          numeric::h100::lg2_ftz(numeric::h100::ex2_ftz(y[i] * 0x1.715476p+0F) + 1.0F) * 0x1.62e43p-1F;
}

/// x to ln(1 + x), in place, of special=triton-logf; there is none in fp64.
template <class T>
KDA_CHECK_INLINE void logf_of_sum(T* x, std::size_t count) {
  if constexpr (sizeof(T) == sizeof(float))
    for (std::size_t i = 0; i < count; ++i) x[i] = numeric::h100::cuda_logf(1.0F + x[i]);
}

template <class T>
void gate(const GateBlock<T>& block) {
  for (std::size_t t = 0; t < block.tokens; ++t) {
    T* const g = block.g + t * block.key_stride;
    T* const y = g;
    if (block.bias != nullptr)
      for (std::size_t k = 0; k < block.key_dim; ++k) y[k] = g[k] + block.bias[k];
    constexpr std::size_t step = 256;
    T exponential_of[step];  // for the softplus, then its log1p
    for (std::size_t start = 0; start < block.key_dim; start += step) {
      const std::size_t count = block.key_dim - start < step ? block.key_dim - start : step;
      for (std::size_t i = 0; i < count; ++i)
        exponential_of[i] = block.lower_bounded ? -(block.amplitude * y[start + i]) : y[start + i];
      const bool by_tanh = has_tanh(block.special), is_one_fma = block.special == Special::fast_floor;
      if (!block.lower_bounded && (is_fast(block.special) || block.special == Special::triton)) {
        triton_softplus(exponential_of, exponential_of, count);
      } else if (by_tanh) {
        for (std::size_t i = 0; i < count; ++i)
          exponential_of[i] =
              is_one_fma ? fast_tanh_of_half(-exponential_of[i]) : fast_sigmoid(-exponential_of[i]);
      } else {
        exponential(block.exponential, exponential_of, exponential_of, count);
        if (!block.lower_bounded && block.special == Special::triton_logf)
          logf_of_sum(exponential_of, count);
        else if (!block.lower_bounded)
          log1p(exponential_of, exponential_of, count);
      }
      for (std::size_t i = 0; i < count; ++i) {
        T factor;
        if (block.lower_bounded) {  // lb * sigmoid(A y)
          factor = by_tanh ? exponential_of[i] : divided(block.special, T(1), T(1) + exponential_of[i]);
          g[start + i] = is_one_fma ? bounded_by_tanh(block.lower_bound, factor) : block.lower_bound * factor;
        } else {
          factor = y[start + i] > softplus_threshold<T> ? y[start + i] : exponential_of[i];
          g[start + i] = -(block.amplitude * factor);  // -A * softplus(y)
        }
        if (block.factors != nullptr) block.factors[t * block.key_stride + start + i] = factor;
      }
    }
  }
}

/// Running sums of a number of rows that the compiler knows, so that they stay in registers.
template <class T, std::size_t rows, bool is_fused>
KDA_CHECK_INLINE void running_dots(const Rows<T>& a, const Rows<T>& b, std::size_t columns, T* dots) {
  T sum[rows] = {};
  for (std::size_t k = 0; k < columns; ++k)
    for (std::size_t row = 0; row < rows; ++row)
      sum[row] = scalar_multiply_add<is_fused>(a(row, k), b(row, k), sum[row]);
  for (std::size_t row = 0; row < rows; ++row) dots[row] = sum[row];
}

/// a . b of up to 8 rows, in the order asked for: independent rows, so that the sums overlap.
template <class T>
void dots_of_rows(const SumOrder& order, const Rows<T>& a, const Rows<T>& b, std::size_t rows,
                  std::size_t columns, T* dots) {
  constexpr std::size_t together = 8;
  if (order.reduction.kind == ReductionKind::sequential) {
    const auto run = [&]<std::size_t count>(std::size_t row) {
      const Rows<T> x{a.first + row * a.stride, a.stride}, y{b.first + row * b.stride, b.stride};
      order.is_fused ? running_dots<T, count, true>(x, y, columns, dots + row)
                     : running_dots<T, count, false>(x, y, columns, dots + row);
    };
    if (rows == together) return run.template operator()<together>(0);
    for (std::size_t row = 0; row < rows; ++row) run.template operator()<1>(row);
    return;
  }
  using Pack = Sixteen<T>;
  T result[Pack::count];
  ordered_sum(order, columns, PairedColumns<T>{a, b, rows}, Pack::zero(), false).store(result);
  for (std::size_t row = 0; row < rows; ++row) dots[row] = result[row];
}

// In elements.cpp.
extern template void dots_of_rows(const SumOrder&, const Rows<float>&, const Rows<float>&, std::size_t,
                                  std::size_t, float*);
extern template void dots_of_rows(const SumOrder&, const Rows<double>&, const Rows<double>&, std::size_t,
                                  std::size_t, double*);

template <class T>
KDA_CHECK_INLINE void dot_of_row(const SumOrder& order, const T* a, const T* b, std::size_t columns, T* dot) {
  dots_of_rows(order, Rows<T>{a, 0}, Rows<T>{b, 0}, 1, columns, dot);
}

template <class T>
void normalise(const NormBlock<T>& block) {
  constexpr std::size_t together = 8;
  const Special special = block.operations.special;
  SumOrder order = sums_of_rows(block.operations);
  order.layout = block.operations.norm;
  const std::size_t in_turn = block.operations.norm_halves.rows;  // 0: one half's sum is for all
  const bool of_upper_columns = block.operations.of_upper_columns;
  for (std::size_t t = 0; t < block.tokens; t += together) {
    const std::size_t rows = block.tokens - t < together ? block.tokens - t : together;
    T* const x = block.x + t * block.key_stride;
    T sums[2][together];
    const Rows<T> rows_of_x{x, block.key_stride};
    for (const bool of_upper : {false, true}) {
      order.of_upper_lanes = of_upper;
      if (in_turn > 0 || of_upper == of_upper_columns)
        dots_of_rows(order, rows_of_x, rows_of_x, rows, block.key_dim, sums[of_upper]);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      T* const y = x + row * block.key_stride;
      if (is_fast(special)) {
        // A square below 2^-126 is nothing beside 1e-6 or the floor, kept or not.
        const Subnormals subnormals = block.operations.subnormals;
        const T reciprocal =
            fast_reciprocal_root(under_root(special, sums[of_upper_columns][row])) * block.factor;
        for (std::size_t k = 0; k < block.key_dim; ++k)
          y[k] = flushed(subnormals, flushed(subnormals, y[k]) * reciprocal);
        continue;
      }
      const std::size_t step = in_turn > 0 ? in_turn : block.key_dim;
      for (std::size_t first = 0; first < block.key_dim; first += step) {
        const std::size_t end = first + step < block.key_dim ? first + step : block.key_dim;
        const bool of_upper = in_turn > 0 ? first / step % 2 > 0 : of_upper_columns;
        const T norm = square_root(special, sums[of_upper][row] + T(1e-6));
        if (block.by_reciprocal) {
          const T reciprocal = divided(special, T(1), norm);
          for (std::size_t k = first; k < end; ++k) y[k] = y[k] * reciprocal;
        } else {
          for (std::size_t k = first; k < end; ++k) y[k] = divided(special, y[k], norm);
        }
      }
    }
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
