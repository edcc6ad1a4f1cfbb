#include "kda/head/column_sums.hpp"

#include <algorithm>
#include <bit>

namespace kda_check::kda {

namespace {

/// Who adds up what: `threads` of `blocks` blocks share the rows of a column.
struct Shares {
  std::size_t threads = 1, height = 1, blocks = 1;
};

constexpr std::size_t accumulators = 4, threads_of_block = 512, lanes_of_warp = 32, processors = 132,
                      threads_of_processor = 2048, rows_of_thread = 16, most_rows_of_thread = 256;

/// Among how many blocks PyTorch shares what is so much for a thread of one, where so many are wanted.
std::size_t blocks_for(std::size_t of_thread, std::size_t wanted) {
  return std::max(std::min(wanted, (of_thread + rows_of_thread - 1) / rows_of_thread),
                  (of_thread + most_rows_of_thread - 1) / most_rows_of_thread);
}

/// PyTorch's setReduceConfig() for a reduction along the slower of two dimensions.
Shares shares_of(std::size_t rows, std::size_t columns) {
  std::size_t vector = accumulators;
  while (columns % vector != 0) vector /= 2;
  const std::size_t packs = columns / vector, most = threads_of_block / vector;
  const std::size_t wide = std::min(most, std::bit_floor(packs)),
                    high = std::clamp<std::size_t>(std::bit_floor(rows), 1, most);
  const std::size_t height = std::min(high, most / std::min(wide, lanes_of_warp)),
                    width = std::min(wide, most / height);
  Shares shares;
  shares.height = height;
  if (rows >= height * rows_of_thread || rows >= most_rows_of_thread) shares.threads = height;
  const std::size_t of_thread = (rows + shares.threads - 1) / shares.threads;
  if (shares.threads == 1 || of_thread < most_rows_of_thread) return shares;
  const std::size_t grid = (packs + width - 1) / width,
                    target = processors * (threads_of_processor / (width * height));
  if (grid <= target) shares.blocks = blocks_for(of_thread, (target + grid - 1) / grid);
  return shares;
}

/// The upper half onto the lower until one is left.
template <class T>
T halved(std::vector<T> sums) {
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  return sums.front();
}

/// What threads add up in four accumulators.
template <class T>
T joined(const T (&sums)[accumulators]) {
  return ((sums[0] + sums[1]) + sums[2]) + sums[3];
}

/// The block that comes last adds up those of all, with so many threads.
template <class T>
T over_blocks(const std::vector<T>& of_blocks, std::size_t threads) {
  if (of_blocks.size() == 1) return of_blocks.front();
  std::vector<T> last(threads);
  for (std::size_t block = 0; block < of_blocks.size(); ++block)
    last[block % threads] = last[block % threads] + of_blocks[block];
  return halved(last);
}

/// PyTorch's sum of `count` neighbours: from 128 on threads take four of them at a time, an accumulator each.
template <class T>
T torch_sum(const T* x, std::size_t count) {
  const bool by_vectors = count >= 128;
  const std::size_t vectors = count / accumulators, whole = vectors * accumulators,
                    threads = std::clamp<std::size_t>(std::bit_floor(by_vectors ? vectors : count), 1,
                                                      threads_of_block);
  const std::size_t of_thread = (count + threads_of_block - 1) / threads_of_block;
  std::size_t blocks = 1;
  if (of_thread >= most_rows_of_thread)
    blocks = blocks_for(of_thread, processors * (threads_of_processor / threads_of_block));
  std::vector<T> of_blocks(blocks), of_threads(threads);
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t thread = 0; thread < threads; ++thread) {
      T sums[accumulators] = {};
      if (by_vectors) {
        for (std::size_t v = thread + threads * block; v < vectors; v += threads * blocks)
          for (std::size_t i = 0; i < accumulators; ++i) sums[i] = sums[i] + x[v * accumulators + i];
        if (block == 0 && thread < count - whole) sums[0] = sums[0] + x[whole + thread];
      } else {
        for (std::size_t e = thread, i = 0; e < count; e += threads, ++i) sums[i] = sums[i] + x[e];
      }
      of_threads[thread] = joined(sums);
    }
    of_blocks[block] = halved(of_threads);
  }
  return over_blocks(of_blocks, threads_of_block);
}

}  // namespace

template <class T>
std::vector<T> block_column_sums(const RowLayout& layout, std::size_t block_rows, const T* matrix,
                                 std::size_t rows, std::size_t columns) {
  const std::size_t threads = layout.lanes * layout.warps;
  std::vector<T> result(columns);
  for (std::size_t column = 0; column < columns; ++column) {
    const auto element = [&](std::size_t row) { return row < rows ? matrix[row * columns + column] : T(0); };
    std::vector<T> of_warps(layout.warps);
    for (std::size_t warp = 0; warp < layout.warps; ++warp) {
      std::vector<T> of_lanes(layout.lanes);
      for (std::size_t lane = 0; lane < layout.lanes; ++lane) {
        T& sum = of_lanes[lane];
        sum = element(warp * layout.lanes + lane);
        for (std::size_t row = warp * layout.lanes + lane + threads; row < block_rows; row += threads)
          sum = sum + element(row);
      }
      of_warps[warp] = halved(of_lanes);
    }
    result[column] = halved(of_warps);
  }
  return result;
}

template <class T>
std::vector<T> torch_column_sums(const std::vector<T>& matrix, std::size_t rows, std::size_t columns) {
  if (columns == 1) return {torch_sum(matrix.data(), rows)};
  const Shares shares = shares_of(rows, columns);
  const auto of_thread = [&](std::size_t column, std::size_t first, std::size_t step) {
    T sums[accumulators] = {};
    for (std::size_t row = first, i = 0; row < rows; row += step, ++i)
      sums[i % accumulators] = sums[i % accumulators] + matrix[row * columns + column];
    return joined(sums);
  };
  std::vector<T> result(columns);
  for (std::size_t column = 0; column < columns; ++column) {
    std::vector<T> of_blocks(shares.blocks), of_threads(shares.threads);
    for (std::size_t block = 0; block < shares.blocks; ++block) {
      for (std::size_t thread = 0; thread < shares.threads; ++thread)
        of_threads[thread] =
            of_thread(column, thread + shares.threads * block, shares.threads * shares.blocks);
      of_blocks[block] = halved(of_threads);
    }
    result[column] = over_blocks(of_blocks, shares.height);
  }
  return result;
}

template std::vector<float> block_column_sums(const RowLayout&, std::size_t, const float*, std::size_t,
                                              std::size_t);
template std::vector<double> block_column_sums(const RowLayout&, std::size_t, const double*, std::size_t,
                                               std::size_t);
template std::vector<float> torch_column_sums(const std::vector<float>&, std::size_t, std::size_t);
template std::vector<double> torch_column_sums(const std::vector<double>&, std::size_t, std::size_t);

}  // namespace kda_check::kda
