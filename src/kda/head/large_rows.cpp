#include "kda/head/large_rows.hpp"

#include <algorithm>
#include <cmath>

#include "kda/kernels/truth/row_norm.hpp"

namespace kda_check::kda {

namespace {

bool is_large(const double* row, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (std::fabs(row[i]) > large_element) return true;
  return false;
}

}  // namespace

LargeRows::LargeRows(const double* rows, std::size_t count, std::size_t K, std::size_t stride)
    : K_(K), stride_(stride) {
  for (std::size_t t = 0; t < count; ++t)
    if (is_large(rows + t * stride, K)) places_.push_back(t);
  values_.resize(places_.size() * K);
}

void LargeRows::put_into(double* rows) const {
  for (std::size_t i = 0; i < places_.size(); ++i)
    std::copy_n(values_.data() + i * K_, K_, rows + places_[i] * stride_);
}

}  // namespace kda_check::kda
