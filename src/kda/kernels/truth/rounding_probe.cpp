// The rows of a rounding probe, in two passes a token.
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

/// One row, in the registers that there are, wherever it lies. Not `using`: clang takes no alignment there.
typedef double Row
    __attribute__((vector_size(probe_width * sizeof(double)), aligned(alignof(double)), may_alias));
typedef float Products __attribute__((vector_size(64), aligned(alignof(float)), may_alias));

KDA_CHECK_INLINE Row& row_of(double* rows, std::size_t k) {
  return *reinterpret_cast<Row*>(rows + k * probe_width);
}
KDA_CHECK_INLINE Row row_of(const double* row) { return *reinterpret_cast<const Row*>(row); }
KDA_CHECK_INLINE void store(Row row, double* to) { *reinterpret_cast<Row*>(to) = row; }

}  // namespace

void probe_read(ProbeReading& block) {
  Row prediction{}, error{}, solved{}, carried{};
  double terms = 0;
  for (std::size_t k = 0; k < block.K; ++k) {
    const auto kept = static_cast<double>(block.decay[k]);
    const double key = block.key[k];
    Row &state = row_of(block.rows.state, k), &of_error = row_of(block.rows.error, k),
        &of_solved = row_of(block.rows.solved, k), &of_carried = row_of(block.rows.carried, k);
    state *= kept, of_error *= kept, of_solved *= kept, of_carried *= kept;
    row_of(block.rows.written, k) *= kept;
    prediction += key * state, error += key * of_error;
    solved += key * of_solved, carried += key * of_carried;
    const Row squares = state * state;
    double energy = 0;
    for (std::size_t i = 0; i < probe_width; ++i) energy += squares[i];
    terms += key * key * energy;
  }
  store(prediction, block.prediction), store(error, block.error);
  store(solved, block.solved), store(carried, block.carried);
  block.terms = terms;
}

void probe_write(ProbeWriting& block) {
  const Row difference = row_of(block.difference), error = row_of(block.error), solved = row_of(block.solved),
            carried = row_of(block.carried), written = row_of(block.written);
  Row read_error{}, read_solved{}, read_carried{}, read_written{};
  for (std::size_t k = 0; k < block.K; ++k) {
    const double by = block.beta * block.key[k], against = -block.beta * block.key[k], query = block.query[k];
    Row &of_error = row_of(block.rows.error, k), &of_solved = row_of(block.rows.solved, k),
        &of_carried = row_of(block.rows.carried, k), &of_written = row_of(block.rows.written, k);
    row_of(block.rows.state, k) += by * difference;
    of_error += by * error, of_solved += by * solved, of_written += by * written;
    of_carried += against * carried;
    read_error += query * of_error, read_solved += query * of_solved;
    read_carried += query * of_carried, read_written += query * of_written;
  }
  store(read_error, block.read_error), store(read_solved, block.read_solved);
  store(read_carried, block.read_carried), store(read_written, block.read_written);
}

void probe_products(const ProbeProducts& block) {
  constexpr std::size_t step = sizeof(Products) / sizeof(float);
  for (std::size_t begin = 0; begin < block.count; begin += step) {
    Products sums{};
    for (std::size_t k = 0; k < block.K; ++k) {
      Products& keys = *reinterpret_cast<Products*>(block.keys + k * block.stride + begin);
      keys *= block.decay[k];
      sums += block.key[k] * keys;
    }
    *reinterpret_cast<Products*>(block.products + begin) = sums;
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
