// One chunk of one head, as the kernels of the CPU take it, for chunk*.cu.
#pragma once

#include "cuda/teams/work.cuh"
#include "kda/kernels/sums/cumulate.hpp"

namespace kda_check::cuda {

/// But for its scratch memory, state and h.
template <class T>
__device__ void fill_block(const DeviceProblem& p, const TeamWork<T>& work, TokenRange chunk, int local,
                           kda::ChunkBlock<T>& block) {
  const std::size_t row = work.token_of(local, chunk.first), keys = row * work.key_stride,
                    values = row * work.value_stride, scores = row * work.C;
  block = {};
  block.rows = chunk.count;
  block.key_dim = p.K, block.value_dim = p.V;
  block.key_stride = work.key_stride, block.value_stride = work.value_stride, block.score_stride = work.C;
  block.operations = work.operations;
  block.decay = work.decay, block.anchor_rows = work.anchor_rows, block.clamp = work.clamp;
  block.inverse = work.inverse, block.inverse_rows = work.inverse_rows;
  block.casts = p.casts;
  block.scale = static_cast<T>(p.scale);
  block.q = work.q + keys, block.k = work.k + keys, block.v = work.v + values, block.beta = work.beta + row;
  block.read = work.read == nullptr ? block.k : work.read + keys;
  block.G = work.g + keys;
  block.tail = work.tail_form == kda::TailForm::suffix ? work.tail + keys : nullptr;
  block.Aqk = work.Aqk + scores, block.L = work.L + scores, block.Akk_inv = work.Akk_inv + scores;
  block.w = work.w + keys, block.qg = work.qg + keys, block.kg = work.kg + keys;
  block.u = work.u + values, block.v_new = work.v_new + values, block.o = work.o + values;
}

/// x_i + ... + x_n of rows: the order of a sum from the start, of the rows turned round.
template <class T>
__device__ void cumulate_from_the_end(const kda::Reduction& reduction, T* x, std::size_t rows,
                                      std::size_t stride) {
  const auto turn = [=] {
    kernels::each(rows / 2, stride, [=](std::size_t i, std::size_t k) {
      T &a = x[i * stride + k], &b = x[(rows - 1 - i) * stride + k];
      const T first = a;
      a = b, b = first;
    });
  };
  turn();
  kernels::cumulate(reduction, x, rows, stride);
  turn();
}

/// Stages of a chunk for those who ask, of `width` columns; of a triangle zeros beyond the diagonal.
template <class T>
struct KeptStages {
  const TeamWork<T>& work;
  TokenRange tokens;
  int local;

  __device__ void rows(kda::Stage stage, const T* from, std::size_t stride, int width,
                       bool is_triangle = false) const {
    T* const stages = work.stages[static_cast<int>(stage)];
    if (stages == nullptr) return;
    T* const to = stages + (std::size_t(tokens.first) * work.heads + local) * width;
    const std::size_t step = std::size_t(work.heads) * width;
    kernels::each(tokens.count, width, [=](std::size_t i, std::size_t column) {
      to[i * step + column] = is_triangle && column > i ? T(0) : from[i * stride + column];
    });
  }
  __device__ void triangle(kda::Stage stage, const T* from) const { rows(stage, from, work.C, work.C, true); }
  /// Of chunk `number`.
  __device__ void state(kda::Stage stage, const T* from, int number, const DeviceProblem& p) const {
    T* const stages = work.stages[static_cast<int>(stage)];
    if (stages == nullptr) return;
    T* const to = stages + work.HeadsAtWork::state(number, local, p);
    const std::size_t width = p.V, stride = work.value_stride;
    kernels::each(p.K, width,
                  [=](std::size_t k, std::size_t v) { to[k * width + v] = from[k * stride + v]; });
  }
};

}  // namespace kda_check::cuda
