// An output is compared with computations that leave the range of a format, and with rules that say where 0
// meets infinity: one row each.
#include "engine/explain/not_finite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.hpp"
#include "engine/explain/overflow.hpp"
#include "explain/growth/forecast.hpp"
#include "hypotheses/naming/conditions.hpp"
#include "kda/bounds/log_decays.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

using hypotheses::always;
using hypotheses::has_A_log;
using hypotheses::has_norm;
using hypotheses::has_softplus;
using kda::Problem;
using tensor::Tensor;

constexpr double largest_fp32 = 0x1.fffffep127;

// --- computations

/// Arithmetic of `chunk`; ANCHOR is the rows of a block, which a chunk may have fewer of.
struct Breaking {
  const char *words, *kind, *meaning;
};
constexpr Breaking breakings[] = {
    {"decay=factored:ANCHOR", "algorithm", "that multiplies exp(G) and exp(-G)"},
    {"storage=fp16@carry", "rounding", "whose state between chunks is in fp16, which ends at 65504"},
    {"storage=fp16@v_new", "rounding", "whose v_new is in fp16, which ends at 65504"},
    {"inverse=doubling:ANCHOR,storage=fp16@inverse_operands", "rounding",
     "that raises L to powers in fp16, which ends at 65504"},
};

std::string replaced(std::string words, std::string_view name, std::size_t number) {
  if (const std::size_t at = words.find(name); at != std::string::npos)
    words.replace(at, name.size(), std::to_string(number));
  return words;
}

bool loses_the_same(const Problem& problem, const Answered& got, const kda::Answer& answer,
                    std::size_t rows) {
  if (const Tensor* const state = got.tensor("final_state"))
    for (std::size_t i = 0; i < state->size(); ++i)
      if (std::isfinite(state->value(i)) != std::isfinite(answer.final_state.value(i))) return false;
  return explain::lost_chunks(problem, *got.tensor("o"), rows) ==
         explain::lost_chunks(problem, answer.o, rows);
}

std::string breaking_like(const Problem& problem, const Answered& got, int threads) {
  const kda::Variant& chunk = kda::variant_named("chunk");
  kda::RunOptions plain;
  plain.dtype = numeric::DType::fp32, plain.chunk_size = got.chunk_size, plain.threads = threads;
  plain.arithmetic = chunk.default_arithmetic(problem, plain.dtype);
  if (loses_the_same(problem, got, chunk.run(problem, plain), plain.chunk_size)) return {};
  for (const Breaking& breaking : breakings)
    for (const std::size_t rows : {got.chunk_size, std::size_t{64}, std::size_t{32}, std::size_t{16}}) {
      constexpr std::size_t longest = 256;  // that any kernel has
      if (rows > longest) continue;
      kda::RunOptions options = plain;
      options.chunk_size = rows;
      for (const std::string& word : split_commas(replaced(breaking.words, "ANCHOR",
                                                           rows <= 16   ? 16
                                                           : rows <= 32 ? 32
                                                                        : 64)))
        kda::set_axis(options.arithmetic, word);
      if (!chunk.unsupported(problem, options).empty() ||
          !loses_the_same(problem, got, chunk.run(problem, options), rows))
        continue;
      const std::string where = forecast_overflow(problem, options);
      return fmt::format("{}: as of a kernel in chunks of {} {}{}{}", breaking.kind, rows, breaking.meaning,
                         where.empty() ? "" : ": ", where);
    }
  return {};
}

// --- rules

/// An element of a tensor: of a token, of a state, of a parameter.
struct Element {
  kda::Sequence sequence;
  std::size_t token, head, channel;  ///< 0 where the tensor has none
};
struct Inputs {
  const Problem &problem, &decays;              ///< `decays`: g as log decays in fp64
  const std::vector<std::size_t>& large_gates;  ///< [sequence][head]: the first token of one, or the end
  std::size_t rows;                             ///< of a chunk
};

/// Those whose softplus has exp(x) with such an x.
std::vector<std::size_t> large_gates_of(const Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  std::vector<std::size_t> first;
  for (const kda::Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head) {
      const auto is_large = [&](std::size_t t) {
        for (std::size_t k = head * d.decays(); k < (head + 1) * d.decays(); ++k) {
          const double bias = problem.dt_bias ? problem.dt_bias->value(k) : 0,
                       x = problem.g.value((sequence.batch * d.T + t) * d.HV * d.decays() + k);
          if (x + bias > numeric::log(largest_fp32)) return true;
        }
        return false;
      };
      std::size_t t = sequence.begin;
      while (t < sequence.end && !is_large(t)) ++t;
      first.push_back(t);
    }
  return first;
}

struct Rule {
  std::string_view tensor;
  bool (*applies)(const Problem&);
  bool (*is_lost)(const Inputs&, const Element&);
  const char* meaning;  ///< goes on after "as of a kernel that"
};

bool is_zero_row(const Problem& problem, const Tensor& x, const Element& at) {
  const kda::Dimensions& d = problem.dimensions();
  const std::size_t row = ((at.sequence.batch * d.T + at.token) * d.H + at.head) * d.K;
  for (std::size_t k = 0; k < d.K; ++k)
    if (x.value(row + k) != 0) return false;
  return true;
}

bool is_lost_of_exp(const Inputs& in, const Element& at) {
  return numeric::exp(in.problem.A_log->value(at.head)) > largest_fp32;
}
bool is_behind_large_gate(const Inputs& in, const Element& at) {
  return at.token >= in.large_gates[at.sequence.index * in.problem.dimensions().HV + at.head];
}
/// exp(G_i - G_j) of a row behind, in a value head of its own.
bool has_infinite_pair(const Inputs& in, const Element& at) {
  const kda::Dimensions& d = in.problem.dimensions();
  const std::size_t group = in.problem.heads_per_group(), begin = at.sequence.begin,
                    end = std::min(begin + ((at.token - begin) / in.rows + 1) * in.rows, at.sequence.end);
  for (std::size_t head = at.head * group; head < (at.head + 1) * group; ++head) {
    double exponent = 0;
    for (std::size_t t = at.token + 1; t < end; ++t)
      exponent -= in.decays.g.value(((at.sequence.batch * d.T + t) * d.HV + head) * d.K + at.channel);
    if (exponent > numeric::log(largest_fp32)) return true;
  }
  return false;
}

constexpr auto has_tail = [](const Inputs& in, const Element& at) {
  return at.sequence.length() % in.rows != 0;
};

constexpr Rule rules[] = {
    {"final_state", always, has_tail,
     "whose final state is not written, or has the padding of a last chunk in it (0 times infinity)"},
    {"o", has_norm,
     [](const Inputs& in, const Element& at) {
       const Element query{at.sequence, at.token, at.head / in.problem.heads_per_group(), 0};
       return is_zero_row(in.problem, in.problem.q, query);
     },
     "that divides q by a norm of 0"},
    {"o", has_A_log, is_lost_of_exp, "in whose gate exp(A_log) overflows"},
    {"o", has_softplus, is_behind_large_gate, "whose softplus has exp(x), which overflows"},
    {"dq", has_norm,
     [](const Inputs& in, const Element& at) { return is_zero_row(in.problem, in.problem.q, at); },
     "that differentiates the norm of q where it is 0"},
    {"dk", has_norm,
     [](const Inputs& in, const Element& at) { return is_zero_row(in.problem, in.problem.k, at); },
     "that differentiates the norm of k where it is 0"},
    {"dg", has_A_log, is_lost_of_exp, "in whose gradient of the gate exp(A_log) overflows"},
    {"dA_log", has_A_log, is_lost_of_exp, "in whose gradient of the gate exp(A_log) overflows"},
    {"dq", always, has_infinite_pair,
     "that forms exp(G_i - G_j) above the diagonal, too, where it overflows, and masks it afterwards"},
};

/// Whether a tensor is not finite in these elements, and only there.
bool is_lost_by(const Rule& rule, const Tensor& got, const Inputs& in) {
  std::size_t lost = 0;
  const auto is_as_told = [&](std::size_t at, const Element& element) {
    const bool is_lost = rule.is_lost(in, element);
    lost += is_lost;
    return is_lost == !std::isfinite(got.value(at));
  };
  const kda::Dimensions& d = in.problem.dimensions();
  const std::vector<kda::Sequence> sequences = in.problem.sequences();
  if (got.shape().size() == 1)
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!is_as_told(i, {{}, 0, i, 0})) return false;
  const bool is_state = rule.tensor == "final_state";
  const std::size_t heads = got.shape().size() > 2 ? got.shape()[is_state ? 1 : 2] : 0,
                    width = is_state ? d.K * d.V : got.size() / (d.B * d.T * std::max<std::size_t>(heads, 1));
  for (const kda::Sequence& sequence : sequences)
    for (std::size_t t = is_state ? sequence.end - 1 : sequence.begin; t < sequence.end; ++t)
      for (std::size_t row = 0; row < heads * width; ++row)
        if (const std::size_t first = is_state ? sequence.index : sequence.batch * d.T + t;
            !is_as_told(first * heads * width + row, {sequence, t, row / width, row % width}))
          return false;
  return lost > 0;
}

}  // namespace

std::string not_finite_like(const Problem& problem, const Answered& got, const report::TensorResult& failed,
                            int threads) {
  constexpr double most = 1 << 26;  // elements of states: some tenths of a second for each row
  const kda::Dimensions& d = problem.dimensions();
  if (failed.decided_by != "nonfinite" ||
      static_cast<double>(d.B * d.T) * static_cast<double>(d.HV * d.K * d.V) > most)
    return {};
  const Problem decays = kda::with_log_decays(problem);
  const std::vector<std::size_t> large_gates = large_gates_of(problem);
  for (const Rule& rule : rules)
    for (const std::size_t rows : {got.chunk_size, std::size_t{64}, std::size_t{32}, std::size_t{16}})
      if (rule.tensor == failed.name && rule.applies(problem) &&
          is_lost_by(rule, *got.tensor(failed.name), {problem, decays, large_gates, rows}))
        return fmt::format("bug: as of a kernel {}", rule.meaning);
  if (got.pass == kda::Pass::forward && got.tensor("o") != nullptr)
    return breaking_like(problem, got, threads);
  return {};
}

}  // namespace kda_check::engine
