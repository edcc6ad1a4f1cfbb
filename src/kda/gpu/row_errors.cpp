#include "cuda/spread/row_errors.hpp"

namespace kda_check::kda {

std::unique_ptr<RowErrorSums> row_errors_on_gpu(RowErrorRequest request) {
  return cuda::row_errors(std::move(request));
}

TensorOnGpu uploaded(numeric::DType dtype, const void* data, std::size_t elements) {
  return cuda::uploaded(dtype, data, elements);
}

TensorOnGpu room_on_gpu(std::size_t elements) { return cuda::room_for_doubles(elements); }
void upload_part(const TensorOnGpu& to, std::size_t begin, std::size_t count, const double* values) {
  cuda::upload_part(to, begin, count, values);
}

}  // namespace kda_check::kda
