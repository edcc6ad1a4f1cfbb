#include "kda/bounds/term_energies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/threads/parallel.hpp"
#include "kda/bounds/state_energy.hpp"
#include "kda/head/head_io.hpp"
#include "kda/head/token_blocks.hpp"
#include "kda/kernels/truth/row_norm.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/problem/jobs.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::kda {

namespace {

using numeric::ProductSum;

ProductSum scaled(double sum, double factor) {
  ProductSum energy = ProductSum::square(std::sqrt(sum));
  energy.scale(factor);
  return energy;
}

void add(TermEnergy& energy, const Energy& sum, double factor) {
  energy.terms.add(scaled(sum.terms, factor));
  energy.rounding.add(scaled(sum.rounding, factor));
}

void add(ErrorEnergy& energy, const ProbedErrors& sum, double factor) {
  energy.recurrence.add(scaled(sum.recurrence, factor));
  energy.solving.add(scaled(sum.solving, factor));
  energy.writing.add(scaled(sum.writing, factor));
}

/// The value heads of one query head of one sequence.
class GroupScan {
 public:
  GroupScan(const Problem& problem, Pass pass, std::size_t chunk_size, const GroupJob& job,
            OutputErrors& outputs)
      : problem_(problem),
        d_(problem.dimensions()),
        s_(job.sequence),
        query_head_(job.query_head),
        chunk_size_(chunk_size),
        outputs_(outputs),
        backward_(pass == Pass::backward),
        reader_(problem, Operations{}),
        in_(reader_, problem, s_),
        state_rows_(d_.K * d_.V),
        written_(s_.length()),
        incoming_(s_.length()),
        weighted_(s_.length()) {
    if (!backward_) return;
    decayed_.resize(s_.length() * d_.K);
    dq_.resize(s_.length() * d_.K);
    dk_.resize(s_.length() * d_.K);
  }

  TermEnergies run() {
    const std::size_t group = problem_.heads_per_group();
    scale();
    for (std::size_t i = 0; i < group; ++i) {
      head_ = query_head_ * group + i;
      columns();
      forwards();
      if (backward_) backwards();
    }
    if (backward_) {
      collect(Gradient::dq, problem_.q, problem_.scale(), dq_);
      collect(Gradient::dk, problem_.k, 1.0, dk_);
    }
    return std::move(energies_);
  }

 private:
  TermEnergy& energy(Gradient gradient) { return energies_.gradients[static_cast<std::size_t>(gradient)]; }

  /// Powers of two near what v and the initial state, and do and dht, are at most: their squares are numbers.
  void scale() {
    const auto power_near = [](double largest) {
      return largest > 0 && std::isfinite(largest) ? std::ldexp(1.0, std::ilogb(largest)) : 1.0;
    };
    const auto largest_of = [](const double* values, std::size_t count, double largest) {
      for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
      return largest;
    };
    double of_state = 0, of_gradient = 0;
    const std::size_t group = problem_.heads_per_group();
    for (head_ = query_head_ * group; head_ < (query_head_ + 1) * group; ++head_) {
      in_.over([&](std::size_t begin, std::size_t count) {
        in_.read_v(head_, begin, count);
        of_state = largest_of(in_.values.data(), count * d_.V, of_state);
        if (!backward_) return;
        in_.read_do(head_, begin, count);
        of_gradient = largest_of(in_.values.data(), count * d_.V, of_gradient);
      });
      reader_.state(s_, head_, state_rows_.data(), d_.V);
      of_state = largest_of(state_rows_.data(), d_.K * d_.V, of_state);
      if (!backward_) continue;
      reader_.state_gradient(s_, head_, state_rows_.data(), d_.V);
      of_gradient = largest_of(state_rows_.data(), d_.K * d_.V, of_gradient);
    }
    state_unit_ = power_near(of_state), gradient_unit_ = power_near(of_gradient);
  }

  /// What comes in at every token, and how it is spread over the columns.
  void columns() {
    of_v_.shares.assign(d_.V, 0.0), of_do_.shares.assign(d_.V, 0.0);
    const auto add_rows = [&](const double* rows, std::size_t count, double unit, Columns& columns,
                              double* squares) {
      for (std::size_t t = 0; t < count; ++t) {
        double sum = 0;
        for (std::size_t v = 0; v < d_.V; ++v) {
          const double x = rows[t * d_.V + v] / unit;
          columns.shares[v] += x * x, sum += x * x;
        }
        if (squares != nullptr) squares[t] = sum;
      }
    };
    in_.over([&](std::size_t begin, std::size_t count) {
      in_.read_v(head_, begin, count);
      add_rows(in_.values.data(), count, state_unit_, of_v_, written_.data() + begin);
      if (!backward_) return;
      in_.read_do(head_, begin, count);
      add_rows(in_.values.data(), count, gradient_unit_, of_do_, incoming_.data() + begin);
    });
    reader_.state(s_, head_, state_rows_.data(), d_.V);
    add_rows(state_rows_.data(), d_.K, state_unit_, of_v_, nullptr);
    of_v_.normalise();
    if (!backward_) return;
    reader_.state_gradient(s_, head_, state_rows_.data(), d_.V);
    add_rows(state_rows_.data(), d_.K, gradient_unit_, of_do_, nullptr);
    of_do_.normalise();
    in_.over([&](std::size_t begin, std::size_t count) {
      in_.read_do(head_, begin, count);
      for (std::size_t t = 0; t < count; ++t) {
        double sum = 0;
        for (std::size_t v = 0; v < d_.V; ++v) {
          const double x = in_.values[t * d_.V + v] / gradient_unit_;
          sum += of_v_.shares[v] * x * x;
        }
        weighted_[begin + t] = sum;
      }
    });
    common_ = 0;
    for (std::size_t v = 0; v < d_.V; ++v) common_ += of_v_.shares[v] * of_do_.shares[v];
  }

  StateEnergy entering(double unit) {
    StateEnergy state(d_.K);
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v) {
        const double x = state_rows_[k * d_.V + v] / unit;
        state.rows[k].terms += x * x;
      }
    return state;
  }

  /// What token t of the block reads the state along where that is not its key; else null.
  const double* read_of(std::size_t t) { return problem_.erase ? in_.read.data() + t * d_.K : nullptr; }

  void forwards() {
    reader_.state(s_, head_, state_rows_.data(), d_.V);
    StateEnergy state = entering(state_unit_);
    // Of a longer chunk than there are tokens it begins one, too, and has no room for the rest.
    RoundingProbe probe(d_.K, d_.V, std::min(chunk_size_, std::max<std::size_t>(1, s_.length())),
                        s_.index * d_.HV + head_);
    probe.begin(state_rows_.data(), state_unit_);
    Energy o;
    ProbedErrors o_error;
    double magnitudes = 0;
    const auto keep = [&](std::size_t tokens) {
      if (!problem_.has_state(s_, tokens)) return;
      Energy sum;
      for (const Energy& row : state.rows) sum.add(row);
      problem_.for_checkpoints(s_.index, tokens, [&](std::size_t) {
        add(energies_.checkpoints, sum, state_unit_);
        add(energies_.checkpoint_error, probe.of_state(), state_unit_);
      });
      if (tokens < s_.length()) return;
      add(energies_.final_state, sum, state_unit_);
      add(energies_.state_error, probe.of_state(), state_unit_);
    };
    keep(0);
    in_.over([&](std::size_t begin, std::size_t count) {
      in_.read_tokens(head_, begin, count);
      in_.read_v(head_, begin, count);
      for (std::size_t t = 0; t < count; ++t) {
        const double* const key = in_.k.data() + t * d_.K;
        const std::size_t at = (begin + t) * d_.K;
        state.fade(in_.decay.data() + t * d_.K);
        if (backward_)
          for (std::size_t k = 0; k < d_.K; ++k) decayed_[at + k].set(state.rows[k]);
        const double* const read = read_of(t);
        read == nullptr ? state.contract(key, in_.beta[t], state.along(key), written_[begin + t])
                        : state.contract(key, read, state.along(read), written_[begin + t]);
        const double* const query = in_.q.data() + t * d_.K;
        o.add(state.along(query));
        double magnitude = 0;
        for (std::size_t k = 0; k < d_.K; ++k)
          magnitude += std::fabs(query[k]) * std::sqrt(state.rows[k].terms);
        magnitudes += magnitude * magnitude;
        const ProbedErrors error = probe.token(in_.decay.data() + t * d_.K, query, key, in_.beta[t],
                                               in_.values.data() + t * d_.V, state_unit_, read);
        o_error.recurrence += error.recurrence;
        o_error.solving += error.solving, o_error.writing += error.writing;
        put(begin + t, error);
        if (backward_)
          for (std::size_t k = 0; k < d_.K; ++k) dq_[at + k].add(state.rows[k].times(weighted_[begin + t]));
        keep(begin + t + 1);
      }
    });
    add(energies_.o, o, state_unit_);
    energies_.o_magnitude.add(scaled(2 / std::numbers::pi * magnitudes, state_unit_));
    add(energies_.o_error, o_error, state_unit_);
  }

  /// The error of a token's output.
  void put(std::size_t token, const ProbedErrors& error) {
    const std::size_t row = (s_.batch * d_.T + s_.begin + token) * d_.HV + head_;
    const auto size = [&](double energy) {
      return std::sqrt(energy / static_cast<double>(d_.V)) * state_unit_;
    };
    outputs_.recurrence[row] = size(error.recurrence);
    outputs_.solving[row] = size(error.solving), outputs_.writing[row] = size(error.writing);
  }

  void backwards() {
    reader_.state_gradient(s_, head_, state_rows_.data(), d_.V);
    StateEnergy gradient = entering(gradient_unit_), state(d_.K);
    Energy dv, dbeta, dg, derase, dwrite, initial;
    const bool is_gated = d_.strength == Strength::gates;
    const double amplitude = reader_.amplitude(head_);
    in_.over_reversed([&](std::size_t begin, std::size_t count) {
      in_.read_tokens(head_, begin, count);
      for (std::size_t t = count; t-- > 0;) {
        const double *const key = in_.k.data() + t * d_.K, *const query = in_.q.data() + t * d_.K;
        const double beta = in_.beta[t];
        const std::size_t at = (begin + t) * d_.K;
        for (std::size_t k = 0; k < d_.K; ++k) state.rows[k] = decayed_[at + k].get();
        for (std::size_t k = 0; k < d_.K; ++k)
          gradient.rows[k].terms += query[k] * query[k] * incoming_[begin + t];
        const double* const read = read_of(t);
        const Energy residual = gradient.along(key), prediction = state.along(is_gated ? read : key);
        const Energy error{written_[begin + t] + prediction.terms,
                           prediction.rounding + 2 * prediction.terms};
        dv.add(residual.times(is_gated ? in_.write2[t] : beta * beta));
        if (is_gated) dwrite.add(product(Energy{written_without_gate(t), 0}, residual).times(common_));
        const double slope = beta_slope(beta);
        dbeta.add(product(residual, error).times(slope * slope * common_));
        for (std::size_t k = 0; k < d_.K; ++k) {
          Energy dk = product(gradient.rows[k], error), dread = product(state.rows[k], residual);
          if (is_gated) {
            derase.add(dread.times(key[k] * key[k] * common_));
            const double gate = key[k] == 0 ? 0 : read[k] / key[k];
            dread = dread.times(gate * gate);
          }
          dk.add(dread);
          dk_[at + k].add(dk.times(beta * beta * common_));
        }
        is_gated ? gradient.contract(read, key, residual, 0) : gradient.contract(key, beta, residual, 0);
        for (std::size_t k = 0; k < d_.K; ++k) {
          const double of_gate = gate_slope(in_.g[t * d_.K + k], amplitude);
          dg.add(product(gradient.rows[k], state.rows[k]).times(of_gate * of_gate * common_));
        }
        gradient.fade(in_.decay.data() + t * d_.K);
      }
    });
    for (const Energy& row : gradient.rows) initial.add(row);
    const double both = state_unit_ * gradient_unit_;
    add(energy(Gradient::dv), dv, gradient_unit_);
    add(energy(Gradient::dbeta), dbeta, both);
    add(energy(Gradient::dg), dg, both);
    add(energy(Gradient::derase), derase, both);
    add(energy(Gradient::dwrite), dwrite, both);
    add(energy(Gradient::dinitial_state), initial, gradient_unit_);
  }

  /// |v|^2 of token t of the block that was read last: before its write gate.
  double written_without_gate(std::size_t t) { return in_.v2[t] / (state_unit_ * state_unit_); }

  /// d log decay / d raw gate, from the log decay.
  double gate_slope(double g, double amplitude) const {
    double slope = 1;
    if (problem_.options.gate == Gate::softplus)
      slope = amplitude * (1 - numeric::exp(g / amplitude));
    else if (problem_.options.gate == Gate::lower_bound)
      slope = amplitude * g * (1 - g / *problem_.options.lower_bound);
    return std::isfinite(slope) ? slope : 0;
  }
  double beta_slope(double beta) const {
    if (!problem_.options.beta_sigmoid) return 1;
    return beta * (1 - beta / (problem_.options.allow_neg_eigval ? 2 : 1));
  }

  /// dq or dk: through the norm, dx = (dy - y (y . dy)) / n.
  void collect(Gradient gradient, const tensor::Tensor& of, double factor, std::vector<StoredEnergy>& rows) {
    Energy sum;
    std::vector<double> stored(d_.K), y(d_.K);
    for (std::size_t t = 0; t < s_.length(); ++t) {
      const StoredEnergy* const row = rows.data() + t * d_.K;
      if (!problem_.options.qk_l2norm) {
        for (std::size_t k = 0; k < d_.K; ++k) sum.add(row[k].get());
        continue;
      }
      reader_.rows_of(of, d_.H, d_.K, {s_, query_head_, s_.begin + t, 1}, stored.data(), d_.K);
      const RowNorm norm = RowNorm::of(stored.data(), d_.K);
      Energy along, of_row;
      for (std::size_t k = 0; k < d_.K; ++k) {
        y[k] = norm.normalised(numeric::DoubleDouble{1.0}, stored[k]).hi;
        along.add(row[k].get().times(y[k] * y[k]));
      }
      for (std::size_t k = 0; k < d_.K; ++k) {
        of_row.add(row[k].get());
        of_row.add(along.times(y[k] * y[k]));
      }
      const double reciprocal = norm.reciprocal().hi;
      sum.add(of_row.times(reciprocal * reciprocal));
    }
    add(energy(gradient), sum, factor * state_unit_ * gradient_unit_);
  }

  const Problem& problem_;
  const Dimensions d_;
  const Sequence s_;
  const std::size_t query_head_, chunk_size_;
  OutputErrors& outputs_;
  const bool backward_;
  const HeadReader<double> reader_;
  TokenBlocks in_;
  tensor::Scratch<double> state_rows_;      ///< [K][V]
  std::vector<double> written_, incoming_;  ///< by token: |v|^2, |do|^2
  std::vector<double> weighted_;            ///< |do|^2 in the columns of v
  Columns of_v_, of_do_;
  double common_ = 0;  ///< of the columns of v and do
  double state_unit_ = 1, gradient_unit_ = 1;
  std::size_t head_ = 0;
  std::vector<StoredEnergy> decayed_, dq_, dk_;  ///< [tokens][K]
  TermEnergies energies_;
};

void add(TermEnergy& sum, const TermEnergy& part) {
  sum.terms.add(part.terms);
  sum.rounding.add(part.rounding);
}
void add(ErrorEnergy& sum, const ErrorEnergy& part) {
  sum.recurrence.add(part.recurrence);
  sum.solving.add(part.solving);
  sum.writing.add(part.writing);
}

}  // namespace

const TermEnergy* TermEnergies::of(std::string_view tensor) const {
  if (tensor == "o") return &o;
  if (tensor == "final_state") return &final_state;
  if (tensor == "checkpoints") return &checkpoints;
  for (const GradientRow& row : kda::gradients())
    if (row.name == tensor && row.gradient != Gradient::dA_log && row.gradient != Gradient::ddt_bias)
      return &gradients[static_cast<std::size_t>(row.gradient)];
  return nullptr;
}

const ErrorEnergy* TermEnergies::error_of(std::string_view tensor) const {
  if (tensor == "o") return &o_error;
  if (tensor == "final_state") return &state_error;
  return tensor == "checkpoints" ? &checkpoint_error : nullptr;
}

TermEnergies term_energies(const Problem& problem, Pass pass, std::size_t chunk_size, int threads) {
  const Dimensions& d = problem.dimensions();
  TermEnergies whole;
  for (std::vector<double>* const rows :
       {&whole.outputs.recurrence, &whole.outputs.solving, &whole.outputs.writing})
    rows->assign(d.B * d.T * d.HV, 0.0);
  const std::vector<GroupJob> jobs = group_jobs(problem);
  std::vector<TermEnergies> parts(jobs.size());
  parallel_for(jobs.size(), threads, [&](std::size_t item, int) {
    parts[item] = GroupScan(problem, pass, chunk_size, jobs[item], whole.outputs).run();
  });
  for (const TermEnergies& part : parts) {
    add(whole.o, part.o);
    whole.o_magnitude.add(part.o_magnitude);
    add(whole.final_state, part.final_state);
    add(whole.checkpoints, part.checkpoints);
    add(whole.o_error, part.o_error);
    add(whole.state_error, part.state_error);
    add(whole.checkpoint_error, part.checkpoint_error);
    for (std::size_t i = 0; i < gradient_count; ++i) add(whole.gradients[i], part.gradients[i]);
  }
  return whole;
}

double term_energies_bytes(const Problem& problem, Pass pass, int threads) {
  const Dimensions& d = problem.dimensions();
  const std::size_t longest = longest_of(problem.sequences());
  const auto workers =
      static_cast<double>(std::min<std::size_t>(d.N * d.H, static_cast<std::size_t>(std::max(1, threads))));
  const std::size_t rows = pass == Pass::backward ? 3 * longest * d.K : 0;
  return workers *
         (static_cast<double>(rows * sizeof(StoredEnergy)) + static_cast<double>(d.K * d.V * sizeof(double)));
}

}  // namespace kda_check::kda
