// Who runs a kernel that both processors have: on a CPU one thread, which takes independent elements by
// packs; on a GPU a team, the threads of a block, which share them out. A kernel is written for a team: what
// it does to arrays goes through each() and what is built on it, whose bodies are independent of each other;
// what stands between is done alike by every thread. A function for a team is marked KDA_CHECK_TEAM, one that
// a body may call (each thread for itself) KDA_CHECK_THREAD; _CALLED: the compiler decides whether it is
// copied there, _APART: it is not.
#pragma once

#ifdef __CUDACC__
#include "kda/kernels/lanes/one_lane.hpp"
#define KDA_CHECK_TEAM __device__
#define KDA_CHECK_TEAM_CALLED __device__
#define KDA_CHECK_TEAM_APART __device__ __noinline__
#define KDA_CHECK_THREAD __device__ __forceinline__
#define KDA_CHECK_THREAD_CALLED __device__
#define KDA_CHECK_THREAD_APART __device__ __noinline__
#define KDA_CHECK_BODY
/// Before a loop: what several turns load is on its way together.
#define KDA_CHECK_UNROLLED _Pragma("unroll 8")
#else
#include "kda/kernels/lanes/lanes.hpp"
#define KDA_CHECK_TEAM KDA_CHECK_INLINE
#define KDA_CHECK_TEAM_CALLED
#define KDA_CHECK_TEAM_APART __attribute__((noinline))
#define KDA_CHECK_THREAD KDA_CHECK_INLINE
#define KDA_CHECK_THREAD_CALLED
#define KDA_CHECK_THREAD_APART __attribute__((noinline))
#define KDA_CHECK_BODY __attribute__((always_inline))
#define KDA_CHECK_UNROLLED
#endif

namespace kda_check::kda::KDA_CHECK_ISA {

#ifdef __CUDACC__

/// body(i) for i < count.
template <class Body>
KDA_CHECK_TEAM void each(std::size_t count, Body body) {
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) body(std::size_t{i});
  __syncthreads();
}
/// body(row, column) for all of these.
template <class Body>
KDA_CHECK_TEAM void each(std::size_t rows, std::size_t columns, Body body) {
  const auto width = static_cast<unsigned>(columns), count = static_cast<unsigned>(rows) * width;
  for (unsigned e = threadIdx.x; e < count; e += blockDim.x) {
    const unsigned row = e / width;
    body(std::size_t{row}, std::size_t{e - row * width});
  }
  __syncthreads();
}
/// body(column) for the first column of each pack of columns, a multiple of 16 of them.
template <class T, class Body>
KDA_CHECK_TEAM void each_pack(std::size_t columns, Body body) {
  each(columns, body);
}
template <class T, class Body>
KDA_CHECK_TEAM void each_pack(std::size_t rows, std::size_t columns, Body body) {
  each(rows, columns, body);
}

#else

template <class Body>
KDA_CHECK_TEAM void each(std::size_t count, Body body) {
  for (std::size_t i = 0; i < count; ++i) body(i);
}
template <class Body>
KDA_CHECK_TEAM void each(std::size_t rows, std::size_t columns, Body body) {
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column) body(row, column);
}
template <class T, class Body>
KDA_CHECK_TEAM void each_pack(std::size_t columns, Body body) {
  for (std::size_t column = 0; column < columns; column += Sixteen<T>::count) body(column);
}
template <class T, class Body>
KDA_CHECK_TEAM void each_pack(std::size_t rows, std::size_t columns, Body body) {
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; column += Sixteen<T>::count) body(row, column);
}

#endif

}  // namespace kda_check::kda::KDA_CHECK_ISA
