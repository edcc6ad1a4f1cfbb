#include "explain/growth/head_scan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "explain/stages/divergence.hpp"
#include "kda/head/head_io.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using kda::CastPoints;
using kda::Rounding;

/// Value columns that DivergenceProbe follows: enough that the largest of all is hardly larger.
constexpr std::size_t probe_columns = 16;

template <class T>
class HeadScan {
 public:
  HeadScan(const kda::Problem& problem, const kda::Sequence& sequence, std::size_t head,
           const kda::RunOptions& options, const std::vector<kda::Arithmetic>& forms)
      : problem_(problem),
        sequence_(sequence),
        head_(head),
        options_(options),
        forms_(forms),
        reader_(problem, kda::operations_of(options.arithmetic)),
        casts_(kda::cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true)),
        K_(problem.dimensions().K),
        V_(problem.dimensions().V),
        stride_(kda::padded(K_)),
        v_stride_(kda::padded(V_)),
        q_(options.chunk_size * stride_),
        k_(options.chunk_size * stride_),
        G_(options.chunk_size * stride_),
        v_(options.chunk_size * v_stride_),
        beta_(options.chunk_size),
        wide_q_(options.chunk_size * stride_),
        wide_k_(options.chunk_size * stride_),
        read_(problem.erase ? options.chunk_size * stride_ : 0),
        wide_read_(read_.size()),
        wide_G_(options.chunk_size * stride_),
        wide_beta_(options.chunk_size),
        columns_(std::min(V_, probe_columns)),
        first_columns_(options.chunk_size * columns_),
        contraction_(K_) {
    found_.ranges.resize(forms.size());
  }

  HeadFindings run() {
    check_state();
    for (std::size_t begin = sequence_.begin; begin < sequence_.end; begin += options_.chunk_size)
      add_chunk(begin, std::min(options_.chunk_size, sequence_.end - begin));
    for (std::size_t side = 0; side < probes_.size(); ++side)
      found_.divergence[side] = probes_[side].overflow();
    found_.decay_rate = contraction_.result();
    return std::move(found_);
  }

 private:
  Rounding output_rounding() const {
    if (options_.dtype == numeric::DType::fp16) return Rounding::fp16;
    return options_.dtype == numeric::DType::bf16 ? Rounding::bf16 : Rounding::none;
  }

  Place place(std::size_t begin, std::size_t row, std::size_t channel) const {
    return {sequence_.index, sequence_.batch, head_, (begin - sequence_.begin) / options_.chunk_size, row,
            channel};
  }

  enum class Fails : unsigned char { chunk_forms, all };
  void fail(Fails who, const std::string& what, const Place& where) {
    if (!found_.chunk_forms) found_.chunk_forms = CommonFailure{what, where};
    if (who == Fails::all && !found_.token_forms) found_.token_forms = CommonFailure{what, where};
  }

  /// The first element that is not finite; `count` when all are.
  static std::size_t not_finite(const T* values, std::size_t count) {
    T sum = 0;  // 0 * inf and 0 * NaN are NaN
    for (std::size_t i = 0; i < count; ++i) sum += values[i] * T(0);
    if (std::isfinite(sum)) return count;
    return static_cast<std::size_t>(
        std::find_if(values, values + count, [](T x) { return !std::isfinite(x); }) - values);
  }

  void check_state() {
    const std::size_t count = K_ * v_stride_;
    tensor::Scratch<T> state(count);
    reader_.state(sequence_, head_, state.data(), v_stride_);
    const std::size_t bad = not_finite(state.data(), count);
    if (bad < count)
      return fail(Fails::all, "initial_state is not finite", place(sequence_.begin, 0, bad / v_stride_));
    std::vector<double> columns(K_ * columns_);
    for (std::size_t k = 0; k < K_; ++k)
      std::copy_n(state.data() + k * v_stride_, columns_, columns.data() + k * columns_);
    for (const std::size_t side : block_sides)
      probes_.emplace_back(side, casts_, output_rounding(), columns_, columns);
    kda::kernels<T>().round(casts_.state, state.data(), count);
    const std::size_t too_large = not_finite(state.data(), count);
    if (too_large < count && sequence_.length() > 0)
      fail(Fails::chunk_forms, "initial_state exceeds the format it is multiplied in",
           place(sequence_.begin, 0, too_large / v_stride_));
  }

  /// False when the chunk holds something that no form survives.
  bool check_inputs(std::size_t begin, std::size_t rows) {
    const struct {
      const char* what;
      const T* values;
      std::size_t stride;
    } inputs[] = {{"q is not finite", q_.data(), stride_},
                  {"k is not finite", k_.data(), stride_},
                  {"v is not finite", v_.data(), v_stride_},
                  {"beta is not finite", beta_.data(), 1}};
    for (const auto& input : inputs) {
      const std::size_t bad = not_finite(input.values, rows * input.stride);
      if (bad == rows * input.stride) continue;
      fail(Fails::all, input.what, place(begin, bad / input.stride, bad % input.stride));
      return false;
    }
    if (casts_.operands != Rounding::none) {
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t e = 0; e < v_stride_; ++e) v_[i * v_stride_ + e] *= beta_[i];
      kda::kernels<T>().round(casts_.operands, v_.data(), rows * v_stride_);
      const std::size_t bad = not_finite(v_.data(), rows * v_stride_);
      if (bad < rows * v_stride_)
        return fail(Fails::chunk_forms, "beta v exceeds the format it is multiplied in",
                    place(begin, bad / v_stride_, bad % v_stride_)),
               false;
    }
    return true;
  }

  /// G from the log decays in place. False where it is not finite, or grows beyond what exp holds.
  bool cumulate(std::size_t begin, std::size_t rows) {
    const double limit = numeric::log(static_cast<double>(std::numeric_limits<T>::max()));
    bool good = true;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < K_; ++k) {
        const T g = G_[i * stride_ + k];
        if (std::isnan(g) || static_cast<double>(g) > limit)
          fail(Fails::all, "the log decay is NaN or overflows", place(begin, i, k));
      }
    kda::kernels<T>().cumulate(options_.arithmetic.reduction, G_.data(), rows, stride_);
    kda::kernels<T>().round(casts_.g_cumsum, G_.data(), rows * stride_);
    const T* const last = G_.data() + (rows - 1) * stride_;
    for (std::size_t i = 0; i < rows && good; ++i)
      for (std::size_t k = 0; k < K_ && good; ++k) {
        const T G = G_[i * stride_ + k];
        if (!std::isfinite(G)) {
          fail(Fails::chunk_forms, "the sum of log decays is not finite", place(begin, i, k)), good = false;
        } else if (static_cast<double>(G) > limit || static_cast<double>(last[k] - G) > limit) {
          fail(Fails::chunk_forms, "gates grow beyond what exp holds", place(begin, i, k)), good = false;
        }
      }
    return good;
  }

  /// Of betas of columns, which no chunk form has, the largest.
  void read_strengths(std::size_t begin, std::size_t rows) {
    if (problem_.dimensions().strength != kda::Strength::value)
      return reader_.beta(sequence_, head_, begin, rows, beta_.data());
    tensor::Scratch<T> columns(V_);
    for (std::size_t i = 0; i < rows; ++i) {
      reader_.column_beta(sequence_, head_, begin + i, 1, columns.data(), V_);
      beta_[i] = *std::max_element(columns.data(), columns.data() + V_);
    }
  }

  void add_chunk(std::size_t begin, std::size_t rows) {
    using kda::NormForm;
    reader_.query(sequence_, head_, begin, rows, NormForm::reciprocal, casts_.normalised, q_.data(), stride_);
    reader_.key(sequence_, head_, begin, rows, NormForm::reciprocal, casts_.normalised, k_.data(), stride_);
    reader_.value(sequence_, head_, begin, rows, v_.data(), v_stride_);
    read_strengths(begin, rows);
    reader_.log_decay(sequence_, head_, begin, rows, G_.data(), stride_);
    for (std::size_t i = 0; i < rows; ++i)
      std::copy_n(v_.data() + i * v_stride_, columns_, first_columns_.data() + i * columns_);
    const bool good_inputs = check_inputs(begin, rows), good_gates = cumulate(begin, rows);
    if (!good_inputs || !good_gates) return;
    const ChunkRows<T> chunk{rows, K_, stride_, q_.data(), k_.data(), G_.data(), place(begin, 0, 0)};
    for (std::size_t form = 0; form < forms_.size(); ++form)
      scan_exponents(chunk, forms_[form],
                     std::min(static_cast<std::size_t>(forms_[form].anchor_rows), options_.chunk_size),
                     casts_, found_.ranges[form]);
    add_keys(chunk, begin);
  }

  /// Everything about L, in fp64.
  void add_keys(const ChunkRows<T>& chunk, std::size_t begin) {
    const std::size_t rows = chunk.rows;
    std::transform(q_.data(), q_.data() + rows * stride_, wide_q_.data(),
                   [this](T q) { return problem_.scale() * static_cast<double>(q); });
    std::copy_n(k_.data(), rows * stride_, wide_k_.data());
    const double* read = wide_k_.data();
    if (problem_.erase) {
      reader_.read_key(sequence_, head_, begin, rows, k_.data(), read_.data(), stride_);
      std::copy_n(read_.data(), rows * stride_, wide_read_.data());
      read = wide_read_.data();
    }
    std::copy_n(G_.data(), rows * stride_, wide_G_.data());
    std::copy_n(beta_.data(), rows, wide_beta_.data());
    const std::vector<double> L =
        strict_lower({rows, K_, stride_, wide_k_.data(), read, wide_G_.data(), wide_beta_.data()});
    InverseGrowth growth;
    scan_inverse(L, rows, chunk.at, growth);
    found_.growth.merge(growth);
    for (std::size_t side = 0; side < probes_.size() && sizeof(T) == sizeof(float); ++side)
      probes_[side].add({rows, K_, stride_, wide_q_.data(), wide_k_.data(), read, wide_G_.data(),
                         wide_beta_.data(), first_columns_.data(), &L, chunk.at},
                        growth.blocks[side].doubling_amplification);
    contraction_.add(rows, stride_, wide_G_.data(), wide_k_.data(), read, wide_beta_.data());
  }

  const kda::Problem& problem_;
  const kda::Sequence& sequence_;
  const std::size_t head_;
  const kda::RunOptions& options_;
  const std::vector<kda::Arithmetic>& forms_;
  const kda::HeadReader<T> reader_;
  const CastPoints casts_;
  const std::size_t K_, V_, stride_, v_stride_;
  tensor::Scratch<T> q_, k_, G_, v_, beta_;
  tensor::Scratch<double> wide_q_, wide_k_;
  tensor::Scratch<T> read_;  ///< erase * k, where there is an erase gate
  tensor::Scratch<double> wide_read_, wide_G_, wide_beta_;
  const std::size_t columns_;
  tensor::Scratch<double> first_columns_;  ///< of v
  std::vector<DivergenceProbe> probes_;    ///< by block_sides; none when the initial state is not finite
  DecayRateScan contraction_;
  HeadFindings found_;
};

}  // namespace

HeadFindings scan_head(const kda::Problem& problem, const kda::Sequence& sequence, std::size_t head,
                       const kda::RunOptions& options, const std::vector<kda::Arithmetic>& forms) {
  if (options.dtype == numeric::DType::fp64)
    return HeadScan<double>(problem, sequence, head, options, forms).run();
  return HeadScan<float>(problem, sequence, head, options, forms).run();
}

}  // namespace kda_check::explain
