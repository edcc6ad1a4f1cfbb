#include "kda/truth/stage_oracle.hpp"

#include <cmath>
#include <optional>

#include "base/threads/parallel.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/truth/oracle_inputs.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda {

namespace {

/// Memory behind the matrices of one block.
class Matrices {
 public:
  OracleMatrix make(std::size_t rows, std::size_t columns) {
    const std::size_t stride = padded(columns), size = rows * stride;
    storage_.emplace_back(3 * size);
    double* const memory = storage_.back().data();
    storage_.back().fill(0);
    return {memory, memory + size, memory + 2 * size, stride};
  }

 private:
  std::vector<tensor::Scratch<double>> storage_;
};

/// One head, chunk by chunk.
class HeadStages {
 public:
  HeadStages(const Problem& problem, const HeadJob& job, std::size_t chunk_size, Passes passes,
             StageTruths& truths)
      : problem_(problem),
        job_(job),
        chunk_size_(chunk_size),
        d_(chunked_dimensions(problem, chunk_size)),
        inputs_(problem),
        truths_(truths) {
    const std::size_t n = chunk_size, K = d_.K, V = d_.V;
    for (OracleMatrix* const m : {&block_.q, &block_.k, &block_.read, &block_.G, &block_.w, &block_.qg,
                                  &block_.kg, &block_.key_scratch})
      *m = memory_.make(n, K);
    for (OracleMatrix* const m : {&block_.v, &block_.u, &block_.v_new, &block_.value_scratch})
      *m = memory_.make(n, V);
    for (OracleMatrix* const m : {&block_.Aqk, &block_.L, &block_.Akk_inv}) *m = memory_.make(n, n);
    for (OracleMatrix* const m : {&block_.k_columns, &block_.G_columns}) *m = memory_.make(K, n);
    block_.beta = memory_.make(n, 1);
    block_.state = memory_.make(K, V);
    block_.key_dim = K, block_.value_dim = V;
    block_.scale = problem.scale();
    if (passes == Passes::both) allocate_gradients();
  }

  void forwards() {
    load_state(problem_.initial_state, block_.state);
    for (std::size_t c = 0; c < chunks(); ++c) {
      const ChunkPlace place = place_of(c);
      load(place);
      keep(Stage::g_cumsum, place, block_.G);
      keep(Stage::h, place, block_.state);
      kernel_table().oracle.stages(block_);
      keep(Stage::Aqk, place, block_.Aqk);
      keep(Stage::Akk_inv, place, block_.Akk_inv);
      keep(Stage::u, place, block_.u);
      keep(Stage::w, place, block_.w);
      keep(Stage::qg, place, block_.qg);
      keep(Stage::kg, place, block_.kg);
      keep(Stage::v_new, place, block_.v_new);
    }
  }

  /// From the forward stages, which are kept by now.
  void backwards() {
    load_state(problem_.state_gradient, gradients_.gradient);
    for (std::size_t c = chunks(); c-- > 0;) {
      const ChunkPlace place = place_of(c);
      load(place);
      inputs_.output_gradient(tokens_of(place), job_.head, gradients_.output_gradient.hi,
                              gradients_.output_gradient.stride);
      restore(Stage::Aqk, place, block_.Aqk);
      restore(Stage::Akk_inv, place, block_.Akk_inv);
      restore(Stage::w, place, block_.w);
      restore(Stage::qg, place, block_.qg);
      restore(Stage::kg, place, block_.kg);
      restore(Stage::h, place, block_.state);
      restore(Stage::v_new, place, block_.v_new);
      gradients_.forward = block_;
      keep(Stage::dh, place, gradients_.gradient);
      kernel_table().oracle.stage_gradients(gradients_);
      keep(Stage::dAqk, place, gradients_.dAqk);
      keep(Stage::dv_local, place, gradients_.dv_local);
      keep(Stage::dv, place, gradients_.dv);
      keep(Stage::dw, place, gradients_.dw);
      keep(Stage::dAkk, place, gradients_.dAkk);
    }
  }

 private:
  std::size_t chunks() const { return (job_.sequence.length() + chunk_size_ - 1) / chunk_size_; }
  Sequence tokens_of(const ChunkPlace& place) const {
    return job_.sequence.block(place.begin - job_.sequence.begin, place.rows);
  }
  ChunkPlace place_of(std::size_t c) const {
    const Sequence& s = job_.sequence;
    const std::size_t begin = s.begin + c * chunk_size_;
    return {s.batch, begin, std::min(chunk_size_, s.end - begin), first_chunk(problem_, s, chunk_size_) + c,
            job_.head};
  }

  void allocate_gradients() {
    const std::size_t n = chunk_size_, K = d_.K, V = d_.V;
    StageGradientOracleBlock& g = gradients_;
    for (OracleMatrix* const m : {&g.dAqk, &g.dAkk, &g.square, &g.square_columns}) *m = memory_.make(n, n);
    for (OracleMatrix* const m : {&g.output_gradient, &g.dv_local, &g.dv}) *m = memory_.make(n, V);
    g.dw = memory_.make(n, K);
    g.gradient = memory_.make(K, V), g.state_columns = memory_.make(V, K);
    g.value_columns = memory_.make(V, n), g.key_columns = memory_.make(K, n);
  }

  void load_state(const std::optional<tensor::Tensor>& stored, const OracleMatrix& m) const {
    if (!stored) return;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) {
        const double value = stored->value(inputs_.state_index(job_.sequence, job_.head, k, v));
        m.hi[k * m.stride + v] = value;
        m.magnitude[k * m.stride + v] = std::fabs(value);
      }
  }

  /// Rows of [count][width] into a matrix.
  void fill(const OracleMatrix& m, Pairs& rows, std::size_t count, std::size_t width) {
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t c = 0; c < width; ++c) {
        m.hi[i * m.stride + c] = rows.hi[i * width + c];
        m.lo[i * m.stride + c] = rows.lo[i * width + c];
      }
  }

  void load(const ChunkPlace& place) {
    const Sequence tokens = tokens_of(place);
    const std::size_t n = place.rows, K = d_.K;
    block_.rows = n;
    Pairs rows(n * K), beta(n);
    inputs_.unscaled_query(tokens, job_.head, rows);
    fill(block_.q, rows, n, K);
    inputs_.key(tokens, job_.head, rows);
    fill(block_.k, rows, n, K);
    transpose(block_.k, block_.k_columns);
    inputs_.read_key(tokens, job_.head, rows);
    fill(block_.read, rows, n, K);
    inputs_.log_decay(tokens, job_.head, rows);
    fill(block_.G, rows, n, K);
    cumulate(block_.G);
    transpose(block_.G, block_.G_columns);
    inputs_.beta(tokens, job_.head, beta);
    fill(block_.beta, beta, n, 1);
    inputs_.value(tokens, job_.head, block_.v.hi, block_.v.lo, block_.v.stride);
  }

  void transpose(const OracleMatrix& from, const OracleMatrix& to) const {
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t i = 0; i < to.stride; ++i) {
        const bool valid = i < block_.rows;
        to.hi[k * to.stride + i] = valid ? from.hi[i * from.stride + k] : 0.0;
        to.lo[k * to.stride + i] = valid ? from.lo[i * from.stride + k] : 0.0;
      }
  }

  /// Running sums of the gates, in place and in `sums_`, whose -inf stays. The sums in place are for
  /// differences: one gate of -1e6 forgets everything as any below does, and later rows still differ by what
  /// lies between them, which nothing added to -inf, or to -1e300, tells.
  void cumulate(const OracleMatrix& G) {
    constexpr double forgets_everything = -1e6;
    sums_.assign(block_.rows * G.stride, {});
    for (std::size_t k = 0; k < d_.K; ++k) {
      numeric::DoubleDouble sum{0.0}, for_differences{0.0};
      double magnitude = 0;
      for (std::size_t i = 0; i < block_.rows; ++i) {
        const std::size_t at = i * G.stride + k;
        const numeric::DoubleDouble gate{G.hi[at], G.lo[at]};
        const double size = sum.hi + gate.hi;
        sum = std::isfinite(size) ? sum + gate : numeric::DoubleDouble{size};
        for_differences = for_differences +
                          (gate.hi < forgets_everything ? numeric::DoubleDouble{forgets_everything} : gate);
        magnitude += std::fabs(std::isinf(gate.hi) ? forgets_everything : gate.hi);
        sums_[at] = sum;
        G.hi[at] = for_differences.hi;
        G.lo[at] = for_differences.lo;
        G.magnitude[at] = magnitude;
      }
    }
  }

  void keep(Stage stage, const ChunkPlace& place, const OracleMatrix& m) {
    StageTruth& truth = truths_[static_cast<std::size_t>(stage)];
    const StageLayout layout(stage, d_, problem_.options.state_v_first);
    const bool triangular = row_of(stage).lower_triangular();
    for (std::size_t row = 0; row < layout.rows(place); ++row)
      for (std::size_t column = 0; column < (triangular ? row + 1 : layout.columns(place)); ++column) {
        const std::size_t element = layout.element(place, row, column), at = row * m.stride + column;
        const numeric::DoubleDouble value =
            stage == Stage::g_cumsum ? sums_[at] : numeric::DoubleDouble{m.hi[at], m.lo[at]};
        truth.hi[element] = value.hi;
        truth.lo[element] = value.lo;
        truth.magnitude[element] = m.magnitude[at];
      }
  }

  /// What was kept.
  void restore(Stage stage, const ChunkPlace& place, const OracleMatrix& m) const {
    const StageTruth& truth = truths_[static_cast<std::size_t>(stage)];
    const StageLayout layout(stage, d_, problem_.options.state_v_first);
    for (std::size_t row = 0; row < layout.rows(place); ++row)
      for (std::size_t column = 0; column < layout.columns(place); ++column) {
        const std::size_t element = layout.element(place, row, column), at = row * m.stride + column;
        m.hi[at] = truth.hi[element];
        m.lo[at] = truth.lo[element];
        m.magnitude[at] = truth.magnitude[element];
      }
  }

  const Problem& problem_;
  const HeadJob& job_;
  const std::size_t chunk_size_;
  const Dimensions d_;
  const OracleInputs inputs_;
  StageTruths& truths_;
  Matrices memory_;
  StageOracleBlock block_{};
  StageGradientOracleBlock gradients_{};
  std::vector<numeric::DoubleDouble> sums_;  ///< of gates, [row][stride of G]
};

}  // namespace

StageTruths run_stage_oracle(const Problem& problem, std::size_t chunk_size, int threads, Passes passes) {
  const Dimensions d = chunked_dimensions(problem, chunk_size);
  StageTruths truths;
  for (const StageRow& row : stages(passes)) {
    const std::size_t size =
        tensor::element_count(expected_shape(*find_spec(row.name), d, problem.options.state_v_first));
    StageTruth& truth = truths[static_cast<std::size_t>(row.stage)];
    truth.hi.assign(size, 0), truth.lo.assign(size, 0), truth.magnitude.assign(size, 0);
  }
  const std::vector<HeadJob> jobs = head_jobs(problem);
  parallel_for(jobs.size(), threads, [&](std::size_t item, int) {
    HeadStages head(problem, jobs[item], chunk_size, passes, truths);
    head.forwards();
    if (passes == Passes::both) head.backwards();
  });
  return truths;
}

StageTensors rounded_stages(const StageTruths& truths, const Problem& problem, std::size_t chunk_size,
                            numeric::DType dtype) {
  const bool backward = !truths.back().hi.empty();
  StageTensors tensors =
      allocate_stages(problem, chunk_size, dtype, backward ? Passes::both : Passes::forward);
  for (std::size_t s = 0; s < stage_count; ++s)
    for (std::size_t i = 0; i < tensors[s].size(); ++i) {
      const numeric::DoubleDouble exact{truths[s].hi[i], truths[s].lo[i]};
      if (dtype == numeric::DType::fp64) {
        tensors[s].elements<double>()[i] = exact.hi;
      } else {
        tensors[s].elements<float>()[i] =
            std::isfinite(exact.hi) ? numeric::round_to<float>(exact) : static_cast<float>(exact.hi);
      }
    }
  return tensors;
}

}  // namespace kda_check::kda
