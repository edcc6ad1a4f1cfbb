// Doubles that are uninitialised until somebody fills them: who does touches the memory first, on all
// threads. A vector would go through them one by one to begin and to end them.
#pragma once

#include <cstddef>

#include "tensor/tensor.hpp"

namespace kda_check::tensor {

class Unfilled {
 public:
  /// What was there is lost, unless it is that many.
  void resize(std::size_t count) {
    if (count != size()) bytes_ = AlignedBytes(count * sizeof(double));
  }
  std::size_t size() const { return bytes_.size() / sizeof(double); }
  bool empty() const { return size() == 0; }
  double* data() { return reinterpret_cast<double*>(bytes_.data()); }
  const double* data() const { return reinterpret_cast<const double*>(bytes_.data()); }
  double& operator[](std::size_t i) { return data()[i]; }
  double operator[](std::size_t i) const { return data()[i]; }
  double* begin() { return data(); }
  double* end() { return data() + size(); }
  const double* begin() const { return data(); }
  const double* end() const { return data() + size(); }

 private:
  AlignedBytes bytes_;
};

}  // namespace kda_check::tensor
