// The errors of answers in rows, on the GPU (kda/terms/row_error_sums.hpp). Plain data in, plain data out.
#pragma once

#include <memory>

#include "kda/terms/row_error_sums.hpp"

namespace kda_check::cuda {

std::unique_ptr<kda::RowErrorSums> row_errors(kda::RowErrorRequest request);
kda::TensorOnGpu uploaded(numeric::DType dtype, const void* data, std::size_t elements);
kda::TensorOnGpu room_for_doubles(std::size_t elements);
void upload_part(const kda::TensorOnGpu& to, std::size_t begin, std::size_t count, const double* values);

}  // namespace kda_check::cuda
