// A = (I + L)^-1 for a strictly lower L (docs/arithmetic.md, "inverse"). L and A are [n][stride]; A is
// written whole, zeros above the diagonal included.
#pragma once

#include "kda/kernels/elements/decays.hpp"
#include "kda/kernels/sums/product.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

// Terms -L_im X_m. On a CPU what is behind a pack of columns still holds -L.
#ifdef __CUDACC__
template <class T>
struct NegatedRows {
  const T *weights, *rows;
  std::size_t stride;

  __device__ Factors<OneLane<T>> operator()(std::size_t d) const {
    return {{-weights[d]}, {rows[d * stride]}};
  }
};
template <class T>
__device__ NegatedRows<T> substituted_terms(const T* l, const T*, const T* rows, std::size_t stride) {
  return {l, rows, stride};
}
#else
template <class T>
KDA_CHECK_INLINE WeightedRows<T> substituted_terms(const T*, const T* negated, const T* rows,
                                                   std::size_t stride) {
  return {negated, 1, rows, stride};
}
#endif

/// (a) X = -L; then row i += X[i, <i] X[<i, <i]; then X += I. `columns` is a multiple of 16 and >= n. Columns
/// are independent of each other.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void invert_by_substitution(const SumOrder& order, std::size_t n, std::size_t columns,
                                                  const T* l, T* x, std::size_t stride) {
  using Pack = Sixteen<T>;
  each(n, columns, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    x[i * stride + j] = j < i ? -l[i * stride + j] : T(0);
  });
  const SumOrder by_thread{order.reduction, is_fused, Adder::thread};
  each_pack<T>(columns, [=, &by_thread](std::size_t column) KDA_CHECK_BODY {
    const std::size_t first = column / 16 * 16 + 1;  // rows up to the block's first have nothing there
    for (std::size_t i = first; i < n; ++i) {
      Pack sum = Pack::load(x + i * stride + column);
      if (by_thread.is_running()) {
        for (std::size_t m = first; m < i; ++m)
          sum = multiply_add<is_fused>(-l[i * stride + m], Pack::load(x + m * stride + column), sum);
      } else {
        const auto terms = substituted_terms(l + i * stride + first, x + i * stride + first,
                                             x + first * stride + column, stride);
        sum = ordered_sum(by_thread, i - first, terms, sum, true);
      }
      sum.store(x + i * stride + column);
    }
  });
  each(n, [=](std::size_t i) KDA_CHECK_BODY { x[i * stride + i] = T(1); });
}

#ifndef __CUDACC__

/// The same as FLA's kernels do, a block of up to 16 rows: sums over all 16, what is not there being zero.
template <class T>
KDA_CHECK_TEAM_CALLED void substitute_as_triton(const SumOrder& order, std::size_t n, const T* l, T* x,
                                                std::size_t stride) {
  using Pack = Sixteen<T>;
  constexpr std::size_t side = 16;
  each(n, side, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    x[i * stride + j] = T(0) - (j < i ? l[i * stride + j] : T(0));
  });
  each_pack<T>(side, [=, &order](std::size_t column) KDA_CHECK_BODY {
    SumOrder sums = order;
    for (std::size_t i = 2; i < n; ++i) {
      T weights[side], zeros[side] = {};
      for (std::size_t m = 0; m < side; ++m) weights[m] = m < i ? T(0) - l[i * stride + m] : T(0);
      const auto terms = [&](std::size_t m) KDA_CHECK_BODY {
        return Factors<Pack>{Pack::broadcast(weights[m]),
                             m < n ? Pack::load(x + m * stride + column) : Pack::load(zeros)};
      };
      sums.of_upper_lanes = sums.layout.lanes == side && i >= side / 2;  // row i is taken from lane i
      const Pack sum = triton_sum<Pack>(sums.is_fused, sums.layout, sums.of_upper_lanes, side, terms);
      (Pack::load(x + i * stride + column) + sum).store(x + i * stride + column);
    }
  });
  each(n, side, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    x[i * stride + j] = x[i * stride + j] + (i == j ? T(1) : T(0));
  });
}

#endif

#ifndef __CUDACC__

/// Rank-one updates: row s, once finished, is taken from those below it. So every entry is one running sum,
/// whatever the order of other sums.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void eliminate(Subnormals subnormals, std::size_t n, const T* l, T* x,
                                     std::size_t stride) {
  each(n, [=](std::size_t j) KDA_CHECK_BODY {
    x[j * stride + j] = T(1);
    for (std::size_t i = j + 1; i < n; ++i) {
      T sum = -l[i * stride + j];
      for (std::size_t s = j + 1; s < i; ++s)
        sum = flushed(subnormals, scalar_multiply_add<is_fused>(-l[i * stride + s], x[s * stride + j], sum));
      x[i * stride + j] = sum;
    }
  });
}

#endif

#ifndef __CUDACC__

/// Column after column; every entry is four running sums, of the terms of every fourth row from the block's
/// first on, and (0 + 1) + (2 + 3) of these. What is above the diagonal is there as zeros.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void eliminate_in_chains(Subnormals subnormals, std::size_t n, const T* l, T* x,
                                               std::size_t stride) {
  each(n, [=](std::size_t j) KDA_CHECK_BODY {
    for (std::size_t i = j; i < n; ++i) {
      T sums[4] = {i == j ? T(1) : T(0), T(0), T(0), T(0)};
      for (std::size_t s = j; s < i; ++s)
        sums[s % 4] = flushed(
            subnormals, scalar_multiply_add<is_fused>(-l[i * stride + s], x[s * stride + j], sums[s % 4]));
      x[i * stride + j] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
  });
}

#endif

/// Square blocks of `side` rows, for the products that form an inverse: factors are copied with zeros around
/// and rounded. Their rows have a whole pack of columns.
template <class T, bool is_fused>
struct InverseBlocks {
  SumOrder order;
  std::size_t n, side;
  const T* l;
  T* x;
  std::size_t stride;
  Rounding rounding;
  T *left, *right, *sum, *power;  ///< [side][width()]

  KDA_CHECK_TEAM std::size_t width() const { return side < 16 ? 16 : side; }
  KDA_CHECK_TEAM std::size_t count() const { return (n + side - 1) / side; }
  KDA_CHECK_TEAM std::size_t height(std::size_t block) const {
    return n - block * side < side ? n - block * side : side;
  }

  KDA_CHECK_TEAM void factor(const T* source, std::size_t i, std::size_t j, T* target) const {
    const std::size_t rows = height(i), columns = height(j);
    each(side, width(), [&](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      target[row * width() + column] =
          row < rows && column < columns ? source[(i * side + row) * stride + j * side + column] : T(0);
    });
    round_array(rounding, target, side * width());
  }
  KDA_CHECK_TEAM void rounded_copy(const T* source, T* target) const {
    each(side * width(), [&](std::size_t e) KDA_CHECK_BODY { target[e] = source[e]; });
    round_array(rounding, target, side * width());
  }
  /// sum = columns of left by rows of right, `depth` of them from `first` on
  KDA_CHECK_TEAM void multiply_part(std::size_t first, std::size_t depth) const {
    product<T, is_fused>(order, side, width(), depth, Factor<T>{left + first, width(), 1},
                         right + first * width(), width(), sum, width(), Start::zero);
  }
  /// sum (+)= left right
  KDA_CHECK_TEAM void multiply(Start start) const {
    product<T, is_fused>(order, side, width(), side, Factor<T>{left, width(), 1}, right, width(), sum,
                         width(), start);
  }
};

/// (c) X = I - L; P = L^2; X += X P; P = P^2; X += X P ... until P is zero. `rounds_sums`: X is rounded
/// behind an addition, too.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void invert_block_by_doubling(const InverseBlocks<T, is_fused>& blocks, std::size_t b,
                                                    bool rounds_sums) {
  const std::size_t side = blocks.side, width = blocks.width(), rows = blocks.height(b),
                    stride = blocks.stride;
  T* const x = blocks.x + b * side * stride + b * side;
  const T *const power = blocks.power, *const sum = blocks.sum;
  blocks.factor(blocks.l, b, b, blocks.power);
  each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    x[row * stride + column] = (row == column ? T(1) : T(0)) - power[row * width + column];
  });
  for (std::size_t done = 2; done < side; done *= 2) {
    blocks.rounded_copy(blocks.power, blocks.left);
    blocks.rounded_copy(blocks.power, blocks.right);
    blocks.multiply(Start::zero);  // P = P^2
    blocks.rounded_copy(blocks.sum, blocks.power);
    blocks.factor(blocks.x, b, b, blocks.left);
    blocks.rounded_copy(blocks.power, blocks.right);
    blocks.multiply(Start::zero);
    each(rows, rows, [=, rounding = blocks.rounding](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      T& element = x[row * stride + column];
      const T product = sum[row * width + column];  // X += X P
      element = rounds_sums ? rounded(rounding, element + product) : rounded(rounding, element) + product;
    });
  }
}

/// X = I - L (I - L (I - ...)), side - 1 products.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void invert_block_by_horner(const InverseBlocks<T, is_fused>& blocks, std::size_t b) {
  const std::size_t side = blocks.side, rows = blocks.height(b), stride = blocks.stride;
  T* const x = blocks.x + b * side * stride + b * side;
  const T* const sum = blocks.sum;
  blocks.factor(blocks.l, b, b, blocks.left);
  each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    x[row * stride + column] = row == column ? T(1) : T(0);
  });
  for (std::size_t step = 1; step < side; ++step) {
    blocks.factor(blocks.x, b, b, blocks.right);
    blocks.multiply(Start::zero);
    each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      x[row * stride + column] = (row == column ? T(1) : T(0)) - sum[row * side + column];
    });
  }
}

#ifndef __CUDACC__

/// M. Paterson and L. Stockmeyer: B = I - L + L^2 - L^3 and L^4; then X = B + L^4 X from X = B on.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void invert_block_by_paterson(const InverseBlocks<T, is_fused>& blocks, std::size_t b) {
  const std::size_t side = blocks.side, width = blocks.width(), rows = blocks.height(b),
                    stride = blocks.stride;
  T* const x = blocks.x + b * side * stride + b * side;
  T *const base = blocks.power, *const sum = blocks.sum;
  blocks.factor(blocks.l, b, b, blocks.left);
  each(rows, rows, [=, l = blocks.left](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    base[row * width + column] = (row == column ? T(1) : T(0)) - l[row * width + column];
  });
  blocks.rounded_copy(blocks.left, blocks.right);
  blocks.multiply(Start::zero);  // L^2
  const auto add = [=](T sign) KDA_CHECK_BODY {
    each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      base[row * width + column] = base[row * width + column] + sign * sum[row * width + column];
    });
  };
  add(T(1));
  blocks.rounded_copy(blocks.sum, blocks.right);
  blocks.multiply(Start::zero);  // L^3
  add(T(-1));
  blocks.rounded_copy(blocks.right, blocks.left);
  blocks.multiply(Start::zero);  // L^4
  blocks.rounded_copy(blocks.sum, blocks.left);
  each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    x[row * stride + column] = base[row * width + column];
  });
  for (std::size_t done = 4; done < side; done += 4) {
    blocks.factor(blocks.x, b, b, blocks.right);
    blocks.multiply(Start::zero);
    each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      x[row * stride + column] = base[row * width + column] + sum[row * width + column];
    });
  }
}

/// The diagonal blocks of 4 rows, A, by Horner's scheme; those of 8 rows, B = A + (A N) A with N what -L has
/// in them besides; then X = ((I + M) (I + M^2) ...) B with M = B N, N the rest of -L in the block.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void invert_block_by_nesting(const InverseBlocks<T, is_fused>& blocks, std::size_t b) {
  const std::size_t side = blocks.side, width = blocks.width(), rows = blocks.height(b),
                    stride = blocks.stride, area = side * width;
  T* const x = blocks.x + b * side * stride + b * side;
  T *const sum = blocks.sum, *const power = blocks.power;
  const auto keep = [=, &blocks](T* target, std::size_t within, std::size_t outside) KDA_CHECK_BODY {
    blocks.factor(blocks.l, b, b, target);
    each(side, width, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      T& entry = target[row * width + column];
      entry = row / within == column / within && row / outside != column / outside ? -entry : T(0);
    });
  };
  const auto add_unit = [=](T* target) KDA_CHECK_BODY {
    each(side, [=](std::size_t row) KDA_CHECK_BODY { target[row * width + row] += T(1); });
  };
  const auto store = [=](auto entry) KDA_CHECK_BODY {
    each(rows, rows, [=](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      x[row * stride + column] = entry(row, column);
    });
  };
  keep(blocks.left, 4, 1);
  store([=, n = blocks.left](std::size_t row, std::size_t column)
            KDA_CHECK_BODY { return (row == column ? T(1) : T(0)) + n[row * width + column]; });
  for (int step = 0; step < 2; ++step) {
    blocks.factor(blocks.x, b, b, blocks.right);
    blocks.multiply(Start::zero);
    store([=](std::size_t row, std::size_t column)
              KDA_CHECK_BODY { return (row == column ? T(1) : T(0)) + sum[row * width + column]; });
  }
  keep(blocks.right, 8, 4);
  blocks.factor(blocks.x, b, b, blocks.left);
  blocks.multiply(Start::zero);  // A N
  blocks.rounded_copy(blocks.left, blocks.right);
  blocks.rounded_copy(blocks.sum, blocks.left);
  blocks.multiply(Start::zero);
  store([=](std::size_t row, std::size_t column)
            KDA_CHECK_BODY { return x[row * stride + column] + sum[row * width + column]; });
  keep(blocks.right, side, 8);
  blocks.factor(blocks.x, b, b, blocks.left);
  blocks.multiply(Start::zero);  // M
  each(area, [=](std::size_t e) KDA_CHECK_BODY { power[e] = sum[e]; });
  blocks.rounded_copy(blocks.sum, blocks.left);
  blocks.rounded_copy(blocks.sum, blocks.right);
  blocks.multiply(Start::zero);  // M^2; blocks have 32 rows, so M^4 is zero
  add_unit(power), add_unit(sum);
  blocks.rounded_copy(power, blocks.left);
  blocks.rounded_copy(sum, blocks.right);
  blocks.multiply(Start::zero);
  blocks.rounded_copy(blocks.sum, blocks.left);
  blocks.factor(blocks.x, b, b, blocks.right);
  blocks.multiply(Start::zero);
  store([=](std::size_t row, std::size_t column) KDA_CHECK_BODY { return sum[row * width + column]; });
}

#endif

/// X_ij becomes -`product`, of the layout of blocks.sum.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void store_merged(const InverseBlocks<T, is_fused>& blocks, std::size_t i,
                                        std::size_t j, const T* product) {
  const std::size_t side = blocks.side;
  each(blocks.height(i), blocks.height(j), [&](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    const T sum = product[row * blocks.width() + column];
    blocks.x[(i * side + row) * blocks.stride + j * side + column] =
        blocks.order.reduction.kind == ReductionKind::triton ? T(0) - sum : -sum;
  });
}

/// -(X_ii L_ij) X_jj, the factors of the second product ready in `left` and `right`.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void factors_of_neighbours(const InverseBlocks<T, is_fused>& blocks, std::size_t i,
                                                 std::size_t j) {
  blocks.factor(blocks.x, i, i, blocks.left);
  blocks.factor(blocks.l, i, j, blocks.right);
  blocks.multiply(Start::zero);  // X_ii L_ij
  blocks.rounded_copy(blocks.sum, blocks.left);
  blocks.factor(blocks.x, j, j, blocks.right);
}

/// Two and two blocks to one. `terms`: of a sum of the second product; each is rounded, and what they add up
/// to.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void merge_pairs(const InverseBlocks<T, is_fused>& blocks, std::size_t terms) {
  const std::size_t side = blocks.side, size = side * blocks.width();
  for (std::size_t j = 0; j + 1 < blocks.count(); j += 2) {
    factors_of_neighbours(blocks, j + 1, j);
    if (terms >= side) {
      blocks.multiply(Start::zero);
      store_merged(blocks, j + 1, j, blocks.sum);
      continue;
    }
    T* const total = blocks.power;
    const T* const sum = blocks.sum;
    for (std::size_t first = 0; first < side; first += terms) {
      blocks.multiply_part(first, terms);
      each(size, [=, rounding = blocks.rounding](std::size_t e) KDA_CHECK_BODY {
        const T part = rounded(rounding, sum[e]);
        total[e] = first == 0 ? part : rounded(rounding, total[e] + part);
      });
    }
    store_merged(blocks, j + 1, j, total);
  }
}

/// (b) X_ij = -(X_ii L_ij) X_jj for neighbours, and X_ij = -X_ii (sum_{m=j}^{i-1} L_im X_mj) below, in order
/// of increasing i - j.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void merge_blocks(const InverseBlocks<T, is_fused>& blocks) {
  for (std::size_t apart = 1; apart < blocks.count(); ++apart)
    for (std::size_t j = 0; j + apart < blocks.count(); ++j) {
      const std::size_t i = j + apart;
      if (apart == 1) {
        factors_of_neighbours(blocks, i, j);
        blocks.multiply(Start::zero);  // (X_ii L_ij) X_jj
      } else {
        for (std::size_t m = j; m < i; ++m) {
          blocks.factor(blocks.l, i, m, blocks.left);
          blocks.factor(blocks.x, m, j, blocks.right);
          blocks.multiply(m == j ? Start::zero : Start::from_result);  // sum_m L_im X_mj
        }
        blocks.rounded_copy(blocks.sum, blocks.right);
        blocks.factor(blocks.x, i, i, blocks.left);
        blocks.multiply(Start::zero);  // X_ii sum
      }
      store_merged(blocks, i, j, blocks.sum);
    }
}

/// How an inverse is formed.
struct InverseWay {
  InverseForm form;
  std::size_t side;  ///< of the blocks
  Merge merge;
  std::size_t merge_terms;
  Subnormals subnormals;
  Rounding rounding;
};

/// `scratch`: 4 * side * max(side, 16) elements.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void invert(const InverseWay& way, const SumOrder& order, std::size_t n, const T* l,
                                  T* x, std::size_t stride, T* scratch) {
  const std::size_t columns = (n + 15) / 16 * 16, side = way.side;
  const InverseForm form = way.form;
  if (form == InverseForm::substitution)
    return invert_by_substitution<T, is_fused>(order, n, columns, l, x, stride);
  const auto blocks_of = [=](std::size_t rows) KDA_CHECK_BODY {
    const std::size_t area = rows * (rows < 16 ? 16 : rows);
    return InverseBlocks<T, is_fused>{order,
                                      n,
                                      rows,
                                      l,
                                      x,
                                      stride,
                                      way.rounding,
                                      scratch,
                                      scratch + area,
                                      scratch + 2 * area,
                                      scratch + 3 * area};
  };
  const InverseBlocks<T, is_fused> blocks = blocks_of(side);
  each(n, columns, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY { x[i * stride + j] = T(0); });
  for (std::size_t b = 0; b < blocks.count(); ++b) {
    const std::size_t first = b * side * stride + b * side;
    if (form == InverseForm::doubling || form == InverseForm::doubling_wide) {
      invert_block_by_doubling(blocks, b, form == InverseForm::doubling);
    } else if (form == InverseForm::horner) {
      invert_block_by_horner(blocks, b);
#ifndef __CUDACC__
    } else if (form == InverseForm::paterson) {
      invert_block_by_paterson(blocks, b);
    } else if (form == InverseForm::nested) {
      invert_block_by_nesting(blocks, b);
    } else if (form == InverseForm::eliminate) {
      eliminate<T, is_fused>(way.subnormals, blocks.height(b), l + first, x + first, stride);
    } else if (form == InverseForm::chains) {
      eliminate_in_chains<T, is_fused>(way.subnormals, blocks.height(b), l + first, x + first, stride);
    } else if (order.layout.registers > 0 && order.reduction.kind == ReductionKind::triton && side == 16) {
      substitute_as_triton(order, blocks.height(b), l + first, x + first, stride);
#endif
    } else {
      invert_by_substitution<T, is_fused>(order, blocks.height(b), (blocks.height(b) + 15) / 16 * 16,
                                          l + first, x + first, stride);
    }
  }
  if (way.merge == Merge::nearest) return merge_blocks(blocks);
  constexpr std::size_t widest = 64;
  std::size_t merged = side;
  for (; merged < widest && merged < n; merged *= 2)
    merge_pairs(blocks_of(merged), way.merge == Merge::split ? way.merge_terms : merged);
  merge_blocks(blocks_of(merged));
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
