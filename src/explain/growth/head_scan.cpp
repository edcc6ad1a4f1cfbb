#include "explain/growth/head_scan.hpp"

#include <algorithm>
#include <cmath>

#include "kda/head/head_io.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

class HeadScan {
 public:
  HeadScan(const kda::Problem& problem, std::size_t head, const kda::RunOptions& options,
           const std::vector<kda::Arithmetic>& forms)
      : problem_(problem),
        head_(head),
        chunk_size_(options.chunk_size),
        forms_(forms),
        limits_(factor_limits(options.dtype == numeric::DType::fp64,
                              kda::cast_points(options.arithmetic, options.dtype, false, true))),
        reader_(problem),
        K_(problem.dimensions().K),
        k_(chunk_size_ * K_),
        read_(problem.erase ? chunk_size_ * K_ : 0),
        g_(chunk_size_ * K_),
        G_(chunk_size_ * K_),
        decay_(chunk_size_ * K_),
        beta_(chunk_size_),
        kept_(K_) {
    found_.ranges.resize(forms.size());
  }

  HeadFindings run() {
    for (const kda::Sequence& sequence : problem_.sequences()) {
      std::ranges::fill(kept_, 0.0);
      growth_ = 0;
      for (std::size_t begin = sequence.begin; begin < sequence.end; begin += chunk_size_)
        add_chunk(sequence, begin, std::min(chunk_size_, sequence.end - begin));
      found_.decay_rate.growth = std::max(found_.decay_rate.growth, growth_);
    }
    if (decays_ > 0) found_.decay_rate.mean_log_decay /= decays_;
    return std::move(found_);
  }

 private:
  void add_chunk(const kda::Sequence& sequence, std::size_t begin, std::size_t rows) {
    const std::size_t count = rows * K_;
    reader_.query({sequence, head_, begin, rows}, kda::NormForm::division, kda::Rounding::none, k_.data(),
                  K_);
    note_operands(count);
    reader_.key({sequence, head_, begin, rows}, kda::NormForm::division, kda::Rounding::none, k_.data(), K_);
    note_operands(count);
    reader_.beta({sequence, head_, begin, rows}, beta_.data());
    reader_.log_decay({sequence, head_, begin, rows}, g_.data(), K_);
    const double* read = k_.data();
    if (problem_.erase) {
      reader_.read_key({sequence, head_, begin, rows}, k_.data(), read_.data(), K_);
      read = read_.data();
    }
    for (std::size_t e = 0; e < count; ++e) G_[e] = e < K_ ? g_[e] : G_[e - K_] + g_[e];
    const auto is_finite = [](double x) { return std::isfinite(x); };
    if (!std::all_of(G_.data(), G_.data() + count, is_finite) ||
        !std::all_of(read, read + count, is_finite) ||
        !std::all_of(beta_.data(), beta_.data() + rows, is_finite))
      return;
    for (std::size_t e = 0; e < count; ++e) decay_[e] = numeric::exp(g_[e]);
    const Place at{sequence.index, sequence.batch, head_, (begin - sequence.begin) / chunk_size_, 0, 0};
    for (std::size_t form = 0; form < forms_.size(); ++form)
      scan_exponents({rows, K_, G_.data(), at, problem_.options.lower_bound.value_or(0)}, forms_[form],
                     std::min(static_cast<std::size_t>(forms_[form].anchor_rows), chunk_size_), limits_,
                     found_.ranges[form]);
    scan_inverse(strict_lower({rows, K_, k_.data(), read, decay_.data(), beta_.data()}), rows, at,
                 found_.growth);
    for (std::size_t i = 0; i < rows; ++i) add_token(i, read);
  }

  void note_operands(std::size_t count) {
    for (std::size_t e = 0; e < count; ++e)
      found_.largest_operand = std::max(found_.largest_operand, std::fabs(k_[e]));
  }

  void add_token(std::size_t i, const double* read) {
    DecayRate& rate = found_.decay_rate;
    double square = 0;
    for (std::size_t c = 0; c < K_; ++c) {
      const double g = g_[i * K_ + c];
      kept_[c] = std::min(decay_[i * K_ + c], 1.0) * kept_[c] + 1;
      rate.persistence = std::max(rate.persistence, kept_[c]);
      rate.mean_log_decay += g, ++decays_;
      rate.least_log_decay = std::min(rate.least_log_decay, g);
      rate.largest_chunk_sum = std::max(rate.largest_chunk_sum, std::fabs(G_[i * K_ + c]));
      square += read[i * K_ + c] * k_[i * K_ + c];
    }
    const double write = beta_[i] * square;
    rate.largest_write = std::max(rate.largest_write, write);
    growth_ += numeric::log(std::max(1.0, std::fabs(1 - write)));
  }

  const kda::Problem& problem_;
  const std::size_t head_, chunk_size_;
  const std::vector<kda::Arithmetic>& forms_;
  const FactorLimits limits_;
  const kda::HeadReader<double> reader_;
  const std::size_t K_;
  tensor::Scratch<double> k_;              ///< [rows][K]; q before it
  tensor::Scratch<double> read_;           ///< erase * k, where there is an erase gate
  tensor::Scratch<double> g_, G_, decay_;  ///< log decays, their sums, and exp(g)
  tensor::Scratch<double> beta_;
  std::vector<double> kept_;  ///< tokens remembered, by channel
  double growth_ = 0, decays_ = 0;
  HeadFindings found_;
};

}  // namespace

HeadFindings scan_head(const kda::Problem& problem, std::size_t head, const kda::RunOptions& options,
                       const std::vector<kda::Arithmetic>& forms) {
  return HeadScan(problem, head, options, forms).run();
}

}  // namespace kda_check::explain
