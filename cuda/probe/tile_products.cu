// Tiles on a tensor core, a warp for each. What a lane holds of a fragment: PTX ISA, "Matrix fragments for
// mma.m16n8k16" and "... m16n8k8".
#include "cuda/probe/instructions.hpp"

#include <type_traits>

#include "cuda/arithmetic/fragments.cuh"
#include "cuda/device/launch.cuh"
#include "cuda/device/memory.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::cuda {

namespace {

using kda::Accumulator, kda::Rounding;

constexpr int side = static_cast<int>(tile_side), half_side = side / 2, lanes = 32, warps = 4;

/// The bits of a number that the format has.
__device__ std::uint32_t stored(std::integral_constant<Rounding, Rounding::bf16>, float x) {
  return __float_as_uint(x) >> 16;
}
__device__ std::uint32_t stored(std::integral_constant<Rounding, Rounding::fp16>, float x) {
  return numeric::round_to<numeric::Float16>(static_cast<double>(x)).bits;
}
/// Two neighbours in one register; the first in its low half.
template <class Format>
__device__ std::uint32_t packed(Format format, float first, float second) {
  return stored(format, first) | stored(format, second) << 16;
}
__device__ float unpacked(std::uint32_t bits) {
  return numeric::widen_to_float(numeric::Float16{static_cast<std::uint16_t>(bits)});
}

struct Fragments {
  std::uint32_t a[4], b[2];
};

/// Columns from `left` on.
template <Rounding format>
__device__ Fragments load(const float* a, const float* b, int left) {
  constexpr std::integral_constant<Rounding, format> kind;
  const int lane = static_cast<int>(threadIdx.x) % lanes, group = lane / 4, place = lane % 4;
  Fragments result;
  if constexpr (format == Rounding::tf32) {
    constexpr int depth = 8;
    for (int i = 0; i < 4; ++i)
      result.a[i] = __float_as_uint(a[(group + i % 2 * half_side) * depth + place + i / 2 * 4]);
    for (int i = 0; i < 2; ++i) result.b[i] = __float_as_uint(b[(place + i * 4) * side + left + group]);
  } else {
    constexpr int depth = 16;
    for (int i = 0; i < 4; ++i) {
      const float* const two = a + (group + i % 2 * half_side) * depth + 2 * place + i / 2 * 8;
      result.a[i] = packed(kind, two[0], two[1]);
    }
    for (int i = 0; i < 2; ++i) {
      const float* const first = b + (2 * place + i * 8) * side + left + group;
      result.b[i] = packed(kind, first[0], first[side]);
    }
  }
  return result;
}

template <Rounding format, Accumulator accumulator>
__device__ void multiply(const Fragments& f, float (&c)[4]) {
  if constexpr (accumulator == Accumulator::fp16) {
    constexpr std::integral_constant<Rounding, Rounding::fp16> half;
    std::uint32_t c0 = packed(half, c[0], c[1]), c1 = packed(half, c[2], c[3]);
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(c0), "+r"(c1)
        : "r"(f.a[0]), "r"(f.a[1]), "r"(f.a[2]), "r"(f.a[3]), "r"(f.b[0]), "r"(f.b[1]));
    c[0] = unpacked(c0), c[1] = unpacked(c0 >> 16), c[2] = unpacked(c1), c[3] = unpacked(c1 >> 16);
  } else {
    multiply_fragments<format>(c, f.a, f.b[0], f.b[1]);
  }
}

template <Rounding format, Accumulator accumulator>
__global__ void multiply_kernel(std::size_t tiles, const float* a, const float* b, float* c) {
  constexpr std::size_t depth = tile_depth(format);
  const std::size_t tile = std::size_t{blockIdx.x} * warps + threadIdx.x / lanes;
  if (tile >= tiles) return;  // a whole warp
  const int lane = static_cast<int>(threadIdx.x) % lanes, group = lane / 4, place = lane % 4;
  for (int left = 0; left < side; left += half_side) {
    float* const target = c + tile * side * side + group * side + left + 2 * place;
    float* const lower = target + half_side * side;
    float sums[4] = {target[0], target[1], lower[0], lower[1]};
    multiply<format, accumulator>(load<format>(a + tile * side * depth, b + tile * side * depth, left), sums);
    target[0] = sums[0], target[1] = sums[1], lower[0] = sums[2], lower[1] = sums[3];
  }
}

auto* kernel_of(Rounding format, Accumulator accumulator) {
  if (accumulator == Accumulator::fp16) return multiply_kernel<Rounding::fp16, Accumulator::fp16>;
  if (format == Rounding::bf16) return multiply_kernel<Rounding::bf16, Accumulator::fp32>;
  if (format == Rounding::fp16) return multiply_kernel<Rounding::fp16, Accumulator::fp32>;
  return multiply_kernel<Rounding::tf32, Accumulator::fp32>;
}

}  // namespace

void multiply(const TileRequest& request) {
  const std::size_t operands = request.tiles * tile_side * tile_depth(request.format) * sizeof(float),
                    sums = request.tiles * tile_side * tile_side * sizeof(float);
  const DeviceMemory a("A", operands), b("B", operands), c("C", sums);
  a.upload(request.a);
  b.upload(request.b);
  c.upload(request.c);
  launch("multiplying tiles", kernel_of(request.format, request.accumulator),
         dim3(static_cast<unsigned>((request.tiles + warps - 1) / warps)), warps * lanes, 0, request.tiles,
         a.as<const float>(), b.as<const float>(), c.as<float>());
  c.download(request.c, sums);
  for (const DeviceMemory* const memory : {&a, &b, &c}) memory->check_canaries();
}

}  // namespace kda_check::cuda
