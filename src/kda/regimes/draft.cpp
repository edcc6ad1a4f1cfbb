#include "kda/regimes/draft.hpp"

#include <cmath>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::kda::regimes {

namespace {

using numeric::DType;
using tensor::Shape;
using tensor::Tensor;

/// Divides each row by sqrt(sum of squares + 1e-6).
void make_unit(std::vector<double>& rows, std::size_t width) {
  for (std::size_t first = 0; first < rows.size(); first += width) {
    check_interruption();
    double sum = 1e-6;
    for (std::size_t i = 0; i < width; ++i) sum += rows[first + i] * rows[first + i];
    const double factor = 1 / std::sqrt(sum);
    for (std::size_t i = 0; i < width; ++i) rows[first + i] *= factor;
  }
}

/// `held` is the format the values are rounded to, `stored` the element type.
Tensor stored_tensor(const char* name, const std::vector<double>& values, Shape shape, DType held,
                     DType stored) {
  constexpr std::size_t block = 1 << 16;
  Tensor tensor(name, held, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % block == 0) check_interruption();
    tensor.set(i, values[i]);
  }
  return held == stored ? std::move(tensor) : tensor.converted_to(stored);
}

}  // namespace

double sigmoid(double x) { return 1 / (1 + numeric::exp(-x)); }
double softplus(double x) {
  return x > 0 ? x + numeric::log1p(numeric::exp(-x)) : numeric::log1p(numeric::exp(x));
}
double log_sigmoid(double x) { return -softplus(-x); }

Element constant(double value) {
  return [value](const At&, const Draw&) { return value; };
}

Parameter shared(std::string_view name, double value) {
  for (Parameter parameter : shared_parameters())
    if (parameter.name == name) {
      parameter.value = value;
      return parameter;
    }
  throw Error(ErrorKind::internal, "no shared parameter " + std::string(name));
}

Parameter fixed(std::string_view name, double value) {
  Parameter parameter = shared(name, value);
  parameter.least = parameter.most = value;
  return parameter;
}

Parameter flag(std::string_view name, std::string_view summary) { return {name, summary, 0, 0, 1, true}; }

Draft::Draft(const Settings& given)
    : settings(given),
      B(given.count("B")),
      T(given.count("T")),
      H(given.count("H")),
      HV(given.count("HV") == 0 ? H : given.count("HV")),
      K(given.count("K")),
      V(given.count("V")),
      N(B) {
  options.chunk_size = static_cast<int>(given.count("C"));
}

Draw Draft::draw(Stream stream, const At& at, std::size_t heads, std::size_t width) const {
  const std::uint64_t row_stream = (static_cast<std::uint64_t>(stream) << 32) + at.b;
  return {numeric::Random(settings.seed(), row_stream), (at.t * heads + at.h) * width + at.i};
}

std::vector<double> Draft::filled(Stream stream, std::size_t heads, std::size_t width,
                                  const Element& element) const {
  std::vector<double> values;
  values.reserve(B * T * heads * width);
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t t = 0; t < T; ++t) {
      check_interruption();
      for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t i = 0; i < width; ++i) {
          const At at{b, t, h, i};
          values.push_back(element(at, draw(stream, at, heads, width)));
        }
    }
  return values;
}

std::vector<double> Draft::keys(Stream stream, const Element& element) const {
  return filled(stream, H, K, element);
}
std::vector<double> Draft::values(const Element& element) const { return filled(Stream::v, HV, V, element); }
std::vector<double> Draft::gates(Stream stream, const Element& element) const {
  return filled(stream, HV, decays(), element);
}
std::vector<double> Draft::betas(const Element& element) const {
  return filled(Stream::beta, HV, strength == Strength::value ? V : 1, element);
}

std::vector<double> Draft::erase_gates(const Element& element) const {
  return filled(Stream::erase, HV, K, element);
}

std::vector<double> Draft::states(const Element& element, Stream stream) const {
  const bool v_first = options.state_v_first;
  std::vector<double> values(N * HV * K * V);
  for (std::size_t n = 0; n < N; ++n)
    for (std::size_t h = 0; h < HV; ++h)
      for (std::size_t k_row = 0; k_row < K; ++k_row) {
        check_interruption();
        for (std::size_t lane = 0; lane < V; ++lane) {
          // Numbered like tokens of a tensor [N,K,HV,V]: the same in either layout.
          const At at{n, k_row, h, lane};
          const std::size_t inside = v_first ? lane * K + k_row : k_row * V + lane;
          values[(n * HV + h) * K * V + inside] = element(at, draw(stream, at, HV, V));
        }
      }
  return values;
}

void Draft::draw_normal_state() {
  initial_state = states([](const At&, const Draw& draw) { return draw.normal(); });
}

std::vector<double> Draft::unit_rows(Stream stream) const {
  std::vector<double> rows = keys(stream, [](const At&, const Draw& draw) { return draw.normal(); });
  make_unit(rows, K);
  return rows;
}

std::vector<double> Draft::correlated_rows(double rho) const {
  std::vector<double> rows = unit_rows(Stream::k);
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t h = 0; h < H; ++h) {
      std::vector<double> common(K);
      for (std::size_t i = 0; i < K; ++i) common[i] = draw(Stream::direction, {b, 0, h, i}, H, K).normal();
      make_unit(common, K);
      for (std::size_t t = 0; t < T; ++t) {
        double* const row = &rows[((b * T + t) * H + h) * K];
        for (std::size_t i = 0; i < K; ++i) row[i] = std::sqrt(rho) * common[i] + std::sqrt(1 - rho) * row[i];
      }
    }
  make_unit(rows, K);
  return rows;
}

void Draft::fill_defaults() {
  if (q.empty()) q = unit_rows(Stream::q);
  if (k.empty()) k = unit_rows(Stream::k);
  if (v.empty()) v = values([](const At&, const Draw& draw) { return draw.normal(); });
  if (g.empty()) g = gates(Stream::g, [](const At&, const Draw& draw) { return log_sigmoid(draw.normal()); });
  const Element share = [](const At&, const Draw& draw) { return sigmoid(draw.normal()); };
  if (strength == Strength::gates) {
    if (erase.empty()) erase = filled(Stream::erase, HV, K, share);
    if (write.empty()) write = filled(Stream::write, HV, V, share);
  } else if (beta.empty()) {
    beta = betas(share);
  }
  const double loss = settings["loss"];
  if (loss < 1) return;
  const Element normal = [](const At&, const Draw& draw) { return draw.normal(); };
  if (output_gradient.empty()) output_gradient = filled(Stream::output_gradient, HV, V, normal);
  if (state_gradient.empty()) state_gradient = states(normal, Stream::state_gradient);
  if (loss == 2) state_gradient.clear();
  if (loss == 3) output_gradient.clear();
}

void Draft::drop_tokens(std::size_t count) {
  fill_defaults();
  for (std::vector<double>* const tensor : {&q, &k, &v, &g, &beta, &erase, &write, &output_gradient}) {
    const std::size_t row = tensor->size() / (B * T);
    std::vector<double> kept;
    kept.reserve(B * (T - count) * row);
    for (std::size_t b = 0; b < B; ++b) {
      const double* const of_row = tensor->data() + b * T * row;
      kept.insert(kept.end(), of_row + count * row, of_row + T * row);
    }
    *tensor = std::move(kept);
  }
  T -= count;
}

Problem Draft::finish() {
  fill_defaults();
  const double size = settings["size"];
  for (std::vector<double>* const tensor : {&v, &initial_state})
    for (double& x : *tensor) x *= size;
  const DType dtype = settings.dtype;
  const DType parameter = dtype == DType::fp64 ? DType::fp64 : DType::fp32;
  Problem problem;
  problem.options = options;
  problem.q = stored_tensor("q", q, {B, T, H, K}, dtype, dtype);
  problem.k = stored_tensor("k", k, {B, T, H, K}, dtype, dtype);
  problem.v = stored_tensor("v", v, {B, T, HV, V}, dtype, dtype);
  problem.g =
      stored_tensor("g", g, has_scalar_decay ? Shape{B, T, HV} : Shape{B, T, HV, K}, DType::fp32, parameter);
  if (strength == Strength::gates) {
    problem.erase = stored_tensor("erase", erase, {B, T, HV, K}, DType::fp32, parameter);
    problem.write = stored_tensor("write", write, {B, T, HV, V}, DType::fp32, parameter);
  } else {
    problem.beta =
        stored_tensor("beta", beta, strength == Strength::value ? Shape{B, T, HV, V} : Shape{B, T, HV},
                      DType::fp32, parameter);
  }
  if (A_log) problem.A_log = stored_tensor("A_log", *A_log, {HV}, DType::fp32, DType::fp32);
  if (dt_bias)
    problem.dt_bias = stored_tensor("dt_bias", *dt_bias, {HV * decays()}, DType::fp32, DType::fp32);
  const Shape state = options.state_v_first ? Shape{N, HV, V, K} : Shape{N, HV, K, V};
  if (!initial_state.empty())
    problem.initial_state =
        stored_tensor("initial_state", initial_state, state, keep_state ? parameter : dtype, parameter);
  if (!output_gradient.empty())
    problem.output_gradient = stored_tensor("do", output_gradient, {B, T, HV, V}, dtype, dtype);
  if (!state_gradient.empty())
    problem.state_gradient = stored_tensor("dht", state_gradient, state, dtype, parameter);
  problem.cu_seqlens = cu_seqlens;
  problem.validate();
  return problem;
}

}  // namespace kda_check::kda::regimes
