#include "kda/truth/gradient_sums.hpp"

#include <cmath>

namespace kda_check::kda {

using numeric::DoubleDouble;

namespace {

GradientSum element(const OracleMatrix& m, std::size_t row, std::size_t column) {
  const std::size_t at = row * m.stride + column;
  return {{m.hi[at], m.lo[at]}, m.magnitude[at], m.magnitude[at]};
}

void put(GradientTruth& truth, std::size_t at, const GradientSum& x) {
  truth.hi[at] = x.value.hi;
  truth.lo[at] = x.value.lo;
  truth.magnitude[at] = x.magnitude;
  if (!truth.chunk_magnitude.empty()) truth.chunk_magnitude[at] = x.chunk;
  if (!truth.spread.empty()) truth.spread[at] = x.squares.root();
}

GradientSum in_the_making(const GradientTruth& truth, std::size_t at) {
  return {{truth.hi[at], truth.lo[at]}, truth.magnitude[at], 0};
}

void add(GradientTruth& truth, std::size_t at, const GradientSum& x) {
  GradientSum sum = in_the_making(truth, at);
  sum.add(x);
  put(truth, at, sum);
}

DoubleDouble pair(OracleRows rows, std::size_t at) { return {rows.hi[at], rows.lo[at]}; }

}  // namespace

GradientSums::GradientSums(const Problem& problem, const Sequence& sequence, std::size_t chunk_size,
                           GradientTruths& truths)
    : problem_(problem),
      d_(problem.dimensions()),
      inputs_(problem),
      sequence_(sequence),
      chunk_size_(chunk_size),
      truths_(truths),
      chunk_terms_(d_.K) {}

void GradientSums::begin_head(std::size_t head, ParameterSums& parameters) {
  head_ = head;
  parameters_ = &parameters;
}

void GradientSums::add_token(const BlockGradients& block, std::size_t row, std::size_t token) {
  add_value_and_beta(block, row, token);
  add_query_and_key(block, row, token);
  add_gate(block, row, token);
}

void GradientSums::add_value_and_beta(const BlockGradients& block, std::size_t row, std::size_t token) {
  const std::size_t place = (sequence_.batch * d_.T + token) * d_.HV + head_;
  if (d_.strength == Strength::gates) return add_through_gates(block, row, token);
  if (d_.strength == Strength::value) {
    for (std::size_t v = 0; v < d_.V; ++v) {
      put(truth(Gradient::dv), place * d_.V + v, element(block.dv, row, v));
      put(truth(Gradient::dbeta), place * d_.V + v,
          element(block.dbeta, row, v).times(pair(block.beta_slope, row * d_.V + v)));
    }
    return;
  }
  GradientSum dbeta = element(block.dbeta, row, 0);
  for (std::size_t v = 0; v < d_.V; ++v) {
    put(truth(Gradient::dv), place * d_.V + v, element(block.dv, row, v));
    const std::size_t at = row * block.residual.stride + v;
    dbeta.squares.add_square(strength_terms(block.residual_terms[at], block.error.hi[at],
                                            block.residual.hi[at], block.error_terms[at]));
  }
  put(truth(Gradient::dbeta), place, dbeta.times(pair(block.beta_slope, row)));
}

void GradientSums::begin_block(const Sequence& tokens) {
  if (d_.strength != Strength::gates) return;
  erase_.resize(tokens.length() * d_.K), write_.resize(tokens.length() * d_.V);
  values_.resize(tokens.length() * d_.V);
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    const std::size_t place = (tokens.batch * d_.T + tokens.begin + t) * d_.HV + head_;
    const auto read = [&](const tensor::Tensor& tensor, std::size_t width, std::vector<double>& rows) {
      kernels<double>().widen(tensor.dtype(), tensor.at(place * width), rows.data() + t * width, width);
    };
    read(*problem_.erase, d_.K, erase_), read(*problem_.write, d_.V, write_), read(problem_.v, d_.V, values_);
  }
}

/// d(write * v) to dv and dwrite, d(erase * k) to derase.
void GradientSums::add_through_gates(const BlockGradients& block, std::size_t row, std::size_t token) {
  const std::size_t place = (sequence_.batch * d_.T + token) * d_.HV + head_;
  for (std::size_t v = 0; v < d_.V; ++v) {
    const GradientSum written = element(block.dv, row, v);
    put(truth(Gradient::dv), place * d_.V + v, written.times(DoubleDouble{write_[row * d_.V + v]}));
    put(truth(Gradient::dwrite), place * d_.V + v, written.times(DoubleDouble{values_[row * d_.V + v]}));
  }
  for (std::size_t k = 0; k < d_.K; ++k)
    put(truth(Gradient::derase), place * d_.K + k,
        element(block.dread, row, k).times(pair(block.key, row * d_.K + k)));
}

void GradientSums::add_query_and_key(const BlockGradients& block, std::size_t row, std::size_t token) {
  const bool ends_chunk = token + 1 == sequence_.end || (token + 1 - sequence_.begin) % chunk_size_ == 0;
  if (ends_chunk) chunk_terms_ = end_terms_;
  const std::size_t place = (sequence_.batch * d_.T + token) * d_.H + head_ / problem_.heads_per_group();
  for (std::size_t k = 0; k < d_.K; ++k) {
    const GradientSum dq = element(block.dq, row, k);
    GradientSum dk = element(block.dk, row, k);
    if (d_.strength == Strength::gates)
      dk.add(element(block.dread, row, k).times(DoubleDouble{erase_[row * d_.K + k]}));
    add(truth(Gradient::dq), place * d_.K + k, dq.times(DoubleDouble{problem_.scale()}));
    add(truth(Gradient::dk), place * d_.K + k, dk);
    chunk_terms_[k] +=
        chunk_terms(block.q[row * d_.K + k], dq.magnitude, block.k[row * d_.K + k], dk.magnitude);
  }
}

void GradientSums::add_gate(const BlockGradients& block, std::size_t row, std::size_t token) {
  const std::size_t place = (sequence_.batch * d_.T + token) * d_.HV + head_;
  const bool has_gate = problem_.options.gate != Gate::none;
  GradientSum of_amplitude;
  double size_of_amplitude = 0;
  const auto of_channel = [&](std::size_t k) {
    GradientSum dg = element(block.dg, row, k);
    // Where the chunk before ends, sum_v S D is the dg of this token.
    end_terms_[k] = dg.magnitude;
    dg.chunk += chunk_terms_[k];
    return dg;
  };
  const std::size_t decays = d_.decays();
  for (std::size_t k = 0; k < decays; ++k) {
    GradientSum dg = of_channel(k);
    for (std::size_t other = decays; other < d_.K && d_.has_scalar_decay; ++other) dg.add(of_channel(other));
    if (!has_gate) {
      put(truth(Gradient::dg), place * decays + k, dg);
      continue;
    }
    const std::size_t at = row * decays + k;
    GradientSum raw = dg.times(pair(block.gate_slope, at));
    raw.squares = numeric::ProductSum::square(raw.value.hi);
    put(truth(Gradient::dg), place * decays + k, raw);
    if (problem_.dt_bias) parameters_->dt_bias[k].add(raw);
    if (problem_.A_log) {
      of_amplitude.add(dg.times(pair(block.amplitude_slope, at)));
      size_of_amplitude += std::fabs(dg.value.hi * block.amplitude_slope.hi[at]);
    }
  }
  of_amplitude.squares = numeric::ProductSum::square(size_of_amplitude);
  if (has_gate && problem_.A_log) parameters_->A_log.add(of_amplitude);
}

void GradientSums::put_state(const OracleMatrix& gradient) {
  for (std::size_t k = 0; k < d_.K; ++k)
    for (std::size_t v = 0; v < d_.V; ++v)
      put(truth(Gradient::dinitial_state), inputs_.state_index(sequence_, head_, k, v),
          element(gradient, k, v));
}

void GradientSums::finish(const Sequence& tokens) {
  if (!problem_.options.qk_l2norm) return;
  Pairs normalised(tokens.length() * d_.K), reciprocals(tokens.length());
  inputs_.unscaled_query(tokens, head_, normalised);
  inputs_.reciprocal_norms(problem_.q, tokens, head_, reciprocals);
  through_norm(truth(Gradient::dq), tokens, normalised, reciprocals);
  inputs_.key(tokens, head_, normalised);
  inputs_.reciprocal_norms(problem_.k, tokens, head_, reciprocals);
  through_norm(truth(Gradient::dk), tokens, normalised, reciprocals);
}

void GradientSums::through_norm(GradientTruth& gradient, const Sequence& tokens, Pairs& y,
                                Pairs& reciprocals) const {
  for (std::size_t t = 0; t < tokens.length(); ++t) {
    const std::size_t row =
        (sequence_.batch * d_.T + tokens.begin + t) * d_.H + head_ / problem_.heads_per_group();
    GradientSum along;  // dy . y
    for (std::size_t k = 0; k < d_.K; ++k) {
      const std::size_t at = row * d_.K + k;
      along.add(in_the_making(gradient, at).times(y.get(t * d_.K + k)));
    }
    for (std::size_t k = 0; k < d_.K; ++k) {
      const std::size_t at = row * d_.K + k;
      put(gradient, at,
          kda::through_norm(along, in_the_making(gradient, at), y.get(t * d_.K + k), reciprocals.get(t)));
    }
  }
}

}  // namespace kda_check::kda
