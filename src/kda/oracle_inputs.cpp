#include "kda/oracle_inputs.hpp"

#include <cstring>

#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

using numeric::DoubleDouble;

namespace {

constexpr DoubleDouble norm_epsilon = DoubleDouble{1.0} / DoubleDouble{1e6};

}  // namespace

void OracleInputs::widen_row(const tensor::Tensor& tensor, const Segment& segment, std::size_t t,
                             std::size_t heads, std::size_t head, std::size_t width, double* target) const {
  const std::size_t row = (segment.sequence.batch * d_.T + segment.begin + t) * heads + head;
  kernels<double>().widen(tensor.dtype(), tensor.at(row * width), target, width);
}

void OracleInputs::key_rows(const tensor::Tensor& tensor, const Segment& segment, std::size_t head,
                            DoubleDouble factor, Pairs& rows) const {
  for (std::size_t t = 0; t < segment.count; ++t) {
    const std::size_t first = t * d_.K;
    widen_row(tensor, segment, t, d_.H, head / problem_.heads_per_group(), d_.K, rows.hi.data() + first);
    DoubleDouble scaling = factor;
    if (problem_.options.qk_l2norm) {
      DoubleDouble sum = norm_epsilon;
      for (std::size_t k = 0; k < d_.K; ++k)
        sum = sum + numeric::two_product(rows.hi[first + k], rows.hi[first + k]);
      scaling = scaling * numeric::reciprocal_square_root(sum);
    }
    for (std::size_t k = 0; k < d_.K; ++k) rows.set(first + k, scaling * rows.hi[first + k]);
  }
}

void OracleInputs::query(const Segment& segment, std::size_t head, Pairs& rows) const {
  key_rows(problem_.q, segment, head, DoubleDouble{problem_.scale()}, rows);
}

void OracleInputs::unscaled_query(const Segment& segment, std::size_t head, Pairs& rows) const {
  key_rows(problem_.q, segment, head, DoubleDouble{1.0}, rows);
}

void OracleInputs::key(const Segment& segment, std::size_t head, Pairs& rows) const {
  key_rows(problem_.k, segment, head, DoubleDouble{1.0}, rows);
}

void OracleInputs::value(const Segment& segment, std::size_t head, double* rows, std::size_t stride) const {
  for (std::size_t t = 0; t < segment.count; ++t) {
    std::memset(rows + t * stride, 0, stride * sizeof(double));
    widen_row(problem_.v, segment, t, d_.HV, head, d_.V, rows + t * stride);
  }
}

void OracleInputs::log_decay(const Segment& segment, std::size_t head, Pairs& rows) const {
  std::memset(rows.lo.data(), 0, segment.count * d_.K * sizeof(double));
  for (std::size_t t = 0; t < segment.count; ++t)
    widen_row(problem_.g, segment, t, d_.HV, head, d_.K, rows.hi.data() + t * d_.K);
  if (problem_.options.gate == Gate::none) return;
  DoubleDouble amplitude{1.0};
  if (problem_.A_log) amplitude = numeric::exp(DoubleDouble{problem_.A_log->value(head)});
  Pairs bias(problem_.dt_bias ? d_.K : 0);
  if (problem_.dt_bias) {
    bias.lo.fill(0);
    kernels<double>().widen(problem_.dt_bias->dtype(), problem_.dt_bias->at(head * d_.K), bias.hi.data(),
                            d_.K);
  }
  for (std::size_t t = 0; t < segment.count; ++t)
    kernel_table().oracle.gate({d_.K, rows.lanes(t * d_.K),
                                problem_.dt_bias ? bias.rows() : OracleRows{nullptr, nullptr}, amplitude.hi,
                                amplitude.lo, problem_.options.gate == Gate::lower_bound,
                                problem_.options.lower_bound.value_or(0.0)});
}

void OracleInputs::beta(const Segment& segment, std::size_t head, Pairs& values) const {
  for (std::size_t t = 0; t < segment.count; ++t) {
    double stored = 0;
    widen_row(problem_.beta, segment, t, d_.HV, head, 1, &stored);
    DoubleDouble value{stored};
    if (problem_.options.beta_sigmoid)
      value = numeric::sigmoid(value) * (problem_.options.allow_neg_eigval ? 2.0 : 1.0);
    values.set(t, value);
  }
}

}  // namespace kda_check::kda
