// Sums over rows as the gradients of the gate's parameters have them under reduction=triton: those of a
// Triton program, and PyTorch's, as an H100 adds them up in fp32 (docs/arithmetic.md, "Triton, backwards").
#pragma once

#include <cstddef>
#include <vector>

#include "kda/arithmetic/row_layout.hpp"

namespace kda_check::kda {

/// [columns] sums of `rows` rows of a matrix by the threads of a layout that has a row in a thread; as many
/// rows as a block of theirs has, those that are missing zeros.
template <class T>
std::vector<T> block_column_sums(const RowLayout& layout, std::size_t block_rows, const T* matrix,
                                 std::size_t rows, std::size_t columns);

/// [columns] sums of a [rows][columns] matrix.
template <class T>
std::vector<T> torch_column_sums(const std::vector<T>& matrix, std::size_t rows, std::size_t columns);

}  // namespace kda_check::kda
