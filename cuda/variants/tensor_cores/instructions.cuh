// What tensor cores and the copies that feed them are asked for: the instructions of an sm_90, and pairs of
// 16-bit numbers.
#pragma once

#include <cstdint>

#include "cuda/arithmetic/approximations.cuh"
#include "cuda/arithmetic/fragments.cuh"
#include "numeric/formats.hpp"

namespace kda_check::cuda {

#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define KDA_CHECK_SM90 1
#endif

#ifdef KDA_CHECK_SM90

/// Two neighbouring numbers of a 16-bit format in a word, the first in its low half.
template <numeric::DType dtype>
struct Pair {
  static constexpr bool is_bf16 = dtype == numeric::DType::bf16;

  static __device__ float first(std::uint32_t pair) {
    if constexpr (is_bf16) return __uint_as_float(pair << 16);
    return half(static_cast<std::uint16_t>(pair));
  }
  static __device__ float second(std::uint32_t pair) {
    if constexpr (is_bf16) return __uint_as_float(pair & 0xffff0000u);
    return half(static_cast<std::uint16_t>(pair >> 16));
  }
  /// Both rounded to nearest even.
  static __device__ std::uint32_t of(float first, float second) {
    std::uint32_t pair;
    if constexpr (is_bf16)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    else
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
  }

 private:
  static __device__ float half(std::uint16_t bits) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
  }
};

/// c += a b: 16 x 16 by 16 x 8. Lane l has of a rows l / 4 and + 8, columns 2 (l mod 4), + 1, + 8 and + 9; of
/// c the same rows, columns 2 (l mod 4) and + 1; of b the rows that a has columns, column l / 4.
template <numeric::DType dtype>
__device__ void multiply_16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  constexpr bool is_bf16 = dtype == numeric::DType::bf16;
  multiply_fragments<is_bf16 ? kda::Rounding::bf16 : kda::Rounding::fp16>(c, a, b0, b1);
}
/// The same of fp32 numbers as tf32, 16 x 8 by 8 x 8: upper and lower are rows l / 4 and + 8 of a, x and y
/// columns 2 (l mod 4) and + 1, which b has as rows: the eight products are added at once, in any order.
__device__ inline void multiply_8(float (&c)[4], float2 upper, float2 lower, float b0, float b1) {
  const std::uint32_t a[] = {__float_as_uint(upper.x), __float_as_uint(lower.x), __float_as_uint(upper.y),
                             __float_as_uint(lower.y)};
  multiply_fragments<kda::Rounding::tf32>(c, a, __float_as_uint(b0), __float_as_uint(b1));
}

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
/// Four 8 x 8 matrices of 16-bit numbers: lane l gives the address of row l mod 8 of matrix l / 8, and gets
/// of each row l / 4, columns 2 (l mod 4) and + 1; transposed: of that column, these rows.
__device__ inline void load_matrices(std::uint32_t (&x)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row));
}
__device__ inline void load_transposed(std::uint32_t (&x)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row));
}
__device__ inline void store_transposed(std::uint32_t row, const std::uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

/// 16 bytes on their way to shared memory, or zeros.
__device__ inline void begin_copy_16(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Multiples of 16 bytes, both addresses too. Loads announce themselves to a Gate.
__device__ inline void begin_load(void* to, const void* from, unsigned bytes, std::uint64_t* gate) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(gate))
      : "memory");
}
__device__ inline void begin_store(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until what this thread began to store may be overwritten.
__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void store_all(void* to, const void* from, unsigned bytes) {
  begin_store(to, from, bytes);
  wait_for_stores();
}
/// What this thread did in shared memory comes before the bulk copies that follow.
__device__ inline void before_bulk_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A barrier in shared memory that opens when `count` threads have arrived and all announced bytes are there.
namespace gate {
__device__ inline void make(std::uint64_t* gate, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(count));
}
/// Behind make(), for threads and copies.
__device__ inline void make_known() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(std::uint64_t* gate) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
}
__device__ inline void arrive_expecting(std::uint64_t* gate, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes)
               : "memory");
}
/// As soon as what this thread began to copy is there; expected like any other.
__device__ inline void arrive_with_copies(std::uint64_t* gate) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(gate)) : "memory");
}
/// Until it has opened for the `round`-th time, counted from 0.
__device__ inline void wait(std::uint64_t* gate, unsigned round) {
  asm volatile(
      "{\n.reg .pred open;\nAGAIN: mbarrier.try_wait.parity.shared.b64 open, [%0], %1;\n@open bra DONE;\n"
      "bra AGAIN;\nDONE: }" ::"r"(shared_address(gate)),
      "r"(round & 1)
      : "memory");
}
}  // namespace gate

#endif

}  // namespace kda_check::cuda
