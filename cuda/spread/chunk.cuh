// One chunk of one head, as the kernels of the CPU take it, for chunk*.cu.
#pragma once

#include "cuda/spread/emulation.cuh"
#include "kda/kernels/sums/cumulate.hpp"

namespace kda_check::cuda {

/// But for its scratch memory, state and h.
__device__ inline void fill_block(const DeviceProblem& p, const EmulationWork& work, TokenRange chunk,
                                  int local, kda::ChunkBlock<float>& block) {
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
  block.scale = static_cast<float>(p.scale);
  block.q = work.q + keys, block.k = block.read = work.k + keys, block.v = work.v + values,
  block.beta = work.beta + row;
  block.G = work.g + keys;
  block.tail = work.tail_form == kda::TailForm::suffix ? work.tail + keys : nullptr;
  block.Aqk = work.Aqk + scores, block.L = work.L + scores, block.Akk_inv = work.Akk_inv + scores;
  block.w = work.w + keys, block.qg = work.qg + keys, block.kg = work.kg + keys;
  block.u = work.u + values, block.v_new = work.v_new + values, block.o = work.o + values;
}

/// x_i + ... + x_n of rows: the order of a sum from the start, of the rows turned round.
__device__ inline void cumulate_from_the_end(const kda::Reduction& reduction, float* x, std::size_t rows,
                                             std::size_t stride) {
  const auto turn = [=] {
    kernels::each(rows / 2, stride, [=](std::size_t i, std::size_t k) {
      float &a = x[i * stride + k], &b = x[(rows - 1 - i) * stride + k];
      const float first = a;
      a = b, b = first;
    });
  };
  turn();
  kernels::cumulate(reduction, x, rows, stride);
  turn();
}

}  // namespace kda_check::cuda
