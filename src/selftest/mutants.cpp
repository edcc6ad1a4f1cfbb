#include "selftest/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "engine/power_answers.hpp"
#include "explain/invariants/rearrangement.hpp"
#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "selftest/faults.hpp"

namespace kda_check::selftest {

namespace {

using kda::Answer;
using kda::Problem;
using kda::RunOptions;
using numeric::DType;
using tensor::Tensor;

/// In 16 bits the chunk form, whose products are of 16 bits; the recurrence computes in fp32 whatever it
/// stores.
constexpr std::string_view form_in(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::fp16 ? "chunk" : "recurrent";
}

Answer healthy(const Problem& problem, const RunOptions& options) {
  return kda::variant_named(form_in(options.dtype)).run(problem, options);
}

// ---- faults that come in sizes

/// A share for each precision; 0: not tried there, docs/selftest.md says why.
struct Shares {
  double fp32 = 0, bf16 = 0, fp16 = 0;

  constexpr double in(DType dtype) const {
    return dtype == DType::fp32 ? fp32 : dtype == DType::bf16 ? bf16 : dtype == DType::fp16 ? fp16 : 0;
  }
};
constexpr Shares nowhere{0, 0, 0}, whole{1, 1, 1}, percent{0.01, 0.01, 0.01};

/// answer = healthy + share x (wrong - healthy): wherever it is wrong, and in one place.
struct Sized {
  std::string_view name, what;
  Fault fault;
  Shares all, part;
  Where where;
  Shares local;
};

/// In full, 1 % of it, and a share in one head.
constexpr Sized misread(std::string_view name, std::string_view what, Fault fault, Shares in_one_head) {
  return {name, what, fault, whole, percent, Where::head, in_one_head};
}
/// A parameter that is off: 1 % everywhere, and a share in one head.
constexpr Sized off(std::string_view name, std::string_view what, Fault fault, Shares in_one_head) {
  return {name, what, fault, nowhere, percent, Where::head, in_one_head};
}
/// In one place only.
constexpr Sized local(std::string_view name, std::string_view what, Fault fault, Where where, Shares share) {
  return {name, what, fault, nowhere, nowhere, where, share};
}

/// A row of hypotheses/naming/faults.hpp by its name.
template <std::size_t size>
struct Name {
  char text[size];
  constexpr Name(const char (&name)[size]) { std::copy_n(name, size, text); }
};
template <Name name, std::size_t place = 64>
Difference known(const Solved& healthy) {
  return known_fault(healthy, name.text, place);
}
constexpr std::size_t inside = 68;  ///< a token that is at no edge of a chunk

/// Shares in one place are at least twice what is seen on the problem of the selftest (docs/selftest.md).
constexpr Sized sized[] = {
    misread("too_large", "o too large", output_itself, {0.001, 0.01, 0.005}),
    local("chunk_too_large", "o of a chunk too large", output_itself, Where::chunk, {0.001, 0.01, 0.01}),
    local("window_too_large", "o of 8 tokens too large", output_itself, Where::window, {0.001, 0.03, 0.01}),
    local("last_rows_too_large", "o too large in the last row of every chunk", output_itself,
          Where::last_rows, {0.001, 0.03, 0.01}),
    local("ragged_too_large", "o of the last, ragged chunk too large", output_itself, Where::ragged,
          {0.001, 0.03, 0.01}),
    local("row_too_large", "o of a token too large", output_itself, Where::row, {0.001, 0.06, 0.04}),
    local("column_too_large", "a column of o too large", output_itself, Where::column, {0.001, 0.04, 0.02}),
    local("tile_too_large", "a tile of o too large", output_itself, Where::tile, {0.001, 0.04, 0.02}),
    local("element_too_large", "an element of o too large", output_itself, Where::element, {0.001, 0.2, 0.1}),
    misread("state_too_large", "final_state too large", state_itself, {0.001, 0.01, 0.01}),
    local("state_row_too_large", "a channel of final_state too large", state_itself, Where::row,
          {0.001, 0.02, 0.01}),
    local("state_column_too_large", "a column of final_state too large", state_itself, Where::column,
          {0.001, 0.02, 0.01}),
    misread("carried_state_too_large", "the state after the first chunk too large", carried_state_itself,
            {0.001, 0.4, 0.1}),
    misread("gate_late", "the gate of the token before", known<"gate_late">, {0.001, 0.01, 0.01}),
    misread("gate_mean", "the gate averaged over the channels", known<"gate_mean">, {0.001, 0.04, 0.01}),
    misread("gate_at_chunk_starts", "the first token of a chunk has the gate of the second",
            gate_of_second_token, {0.001, 0.04, 0.04}),
    misread("exp2_for_exp", "the decay is a power of two", known<"exp2">, {0.001, 0.04, 0.01}),
    off("gate_too_large", "log decays too large", gate_scaled, {0.001, 0.02, 0.01}),
    off("slowest_channel", "the slowest channel of a head loses of its decay", gate_of_slowest_channel,
        {0.001, 0.2, 0.06}),
    misread("decay_missed", "one token does not decay", known<"decay_missed", inside>, {0.001, 0.2, 0.04}),
    misread("beta_twice", "beta in the prediction and in the update", known<"beta_twice">,
            {0.001, 0.01, 0.01}),
    misread("without_beta", "beta is not applied", known<"beta_missing">, {0.001, 0.01, 0.01}),
    off("beta_too_large", "beta too large", beta_scaled, {0.001, 0.01, 0.01}),
    misread("predict_before_decay", "the prediction from the state before it decays",
            known<"predict_before_decay">, {0.001, 0.04, 0.01}),
    misread("scale_of_values", "1/sqrt(V) for 1/sqrt(K)", known<"scale_from_value_width">,
            {0.001, 0.04, 0.02}),
    misread("write_lost", "the update of token 64 is lost", known<"write_lost">, {0.001, 0.1, 0.04}),
    misread("initial_state_dropped", "starts from zeros", known<"initial_state_missing">,
            {0.001, 0.06, 0.04}),
    // In 16 bits it is no more than a bit of one operand of many, and shows only where little but that state
    // is.
    {"state_read_in_bf16",
     "the state handed over is read in bf16",
     initial_state_in_bf16,
     {1, 0, 0},
     {0, 1, 1},
     Where::head,
     {1, 0, 0}},
    misread("state_not_carried", "every chunk starts from zeros", known<"state_lost_in_chunks">,
            {0.001, 0.04, 0.04}),
    misread("last_token_dropped", "the last token is not read", known<"last_token_dropped">,
            {0.001, 0.01, 0.01}),
    misread("last_row_stale", "the last row of o is the one before", last_row_stale, {0.001, 0.04, 0.01}),
    misread("row_stale", "a row of o is the one before", known<"row_stale", inside>, {0.001, 0.06, 0.04}),
    {"wrong_head",
     "the first head gets the output of the last",
     output_of_last_head,
     whole,
     percent,
     Where::chunk,
     {0.001, 0.02, 0.01}},
};

enum class Extent : std::uint8_t { all, part, local };

double share_of(const Sized& row, Extent extent, DType dtype) {
  const Shares& shares = extent == Extent::all ? row.all : extent == Extent::part ? row.part : row.local;
  return shares.in(dtype);
}

/// One rounding, to the element type, after the fault.
Tensor stored(std::string name, DType dtype, const Tensor& exact, const std::vector<double>& difference,
              double share) {
  Tensor tensor(std::move(name), dtype, exact.shape());
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, exact.value(i) + share * difference[i]);
  return tensor;
}

Answer with_fault(const Sized& row, Extent extent, const Problem& problem, const RunOptions& options) {
  const kda::Variant& variant = kda::variant_named(form_in(options.dtype));
  Answer exact;
  if (numeric::format_of(options.dtype).bytes == 2) {
    kda::Tensors tensors = engine::unrounded(problem, variant, options);
    exact = {std::move(tensors.at("o")), std::move(tensors.at("final_state"))};
  } else {
    exact = variant.run(problem, options);
  }
  const Solved solved{problem, options, exact};
  Difference difference = row.fault(solved);
  if (extent == Extent::local) keep_only(row.where, solved, difference);
  const double share = share_of(row, extent, options.dtype);
  return {stored("o", options.dtype, exact.o, difference.o, share),
          stored("final_state", kda::state_dtype(options.dtype), exact.final_state, difference.final_state,
                 share)};
}

template <std::size_t row, Extent extent>
Answer run_sized(const Problem& problem, const RunOptions& options) {
  return with_fault(sized[row], extent, problem, options);
}

using Run = Answer (*)(const Problem&, const RunOptions&);
template <Extent extent, std::size_t... row>
constexpr std::array<Run, sizeof...(row)> runs(std::index_sequence<row...>) {
  return {run_sized<row, extent>...};
}
template <Extent extent>
constexpr std::array<Run, std::size(sized)> runs_of =
    runs<extent>(std::make_index_sequence<std::size(sized)>());

std::string_view text_of(Where where) {
  switch (where) {
    case Where::everywhere:
      return "";
    case Where::head:
      return " in one head";
    case Where::chunk:
      return " in one chunk of a head";
    case Where::window:
      return " in 8 tokens of a head";
    case Where::last_rows:
      return " in the last row of every chunk";
    case Where::ragged:
      return " in the last chunk";
    case Where::row:
      return " in one row of a head";
    case Where::column:
      return " in one column of a head";
    case Where::tile:
      return " in 16 x 16 of a head";
    case Where::element:
      return " in one element";
  }
  return "";
}

// ---- kernels that are wrong altogether, or in bits

/// The recurrence of explain/interpretation in fp64.
Answer written_again(const Problem& problem, const RunOptions& options) {
  const Answer exact = hypotheses::answer_of(problem, hypotheses::Interpretation(problem));
  return {exact.o.converted_to(options.dtype),
          exact.final_state.converted_to(kda::state_dtype(options.dtype))};
}

Answer biased_bf16(const Problem& problem, const RunOptions& options) {
  RunOptions fine = options;
  fine.dtype = DType::fp32;
  const Answer exact = kda::run_recurrent(problem, fine);
  Answer answer{Tensor("o", options.dtype, exact.o.shape()), exact.final_state.clone()};
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, exact.o.value(i) * (1 + 0x1p-8));
  return answer;
}

Answer nan_as_zero(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  answer.o.set(answer.o.size() / 2, 0);
  return answer;
}

Answer state_in_fp16(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.storage = kda::Storage::named;
  coarse.arithmetic.casts = {};
  coarse.arithmetic.casts.carry = kda::Rounding::fp16;
  return kda::run_recurrent(problem, coarse);
}

Answer silent_tf32(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.storage = kda::Storage::fla;
  return kda::run_chunk(problem, coarse);
}

/// Stores in fp16.
Answer silent_bf16(const Problem& problem, const RunOptions& options) {
  RunOptions coarse = options;
  coarse.arithmetic.casts = kda::fla_cast_points(kda::Rounding::bf16, problem.beta_is_16_bit());
  coarse.arithmetic.storage = kda::Storage::named;
  return kda::run_chunk(problem, coarse);
}

Answer scale_off_by_an_ulp(const Problem& problem, const RunOptions& options) {
  Problem changed = kda::clone(problem);
  changed.options.scale = problem.scale() * (1 + 0x1p-23);
  return healthy(changed, options);
}

Answer looks_ahead(const Problem& problem, const RunOptions& options) {
  RunOptions ahead = options;
  ahead.arithmetic.decay = kda::DecayForm::anchor_mid;
  return kda::run_chunk(problem, ahead);
}

void flip_last_bit(Tensor& tensor, std::size_t element) { tensor.at(element)[0] ^= std::byte{1}; }

Answer second_sequence(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  const std::size_t N = problem.dimensions().N;
  if (N > 1) flip_last_bit(answer.final_state, answer.final_state.size() / N);
  return answer;
}

Answer odd_head(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  flip_last_bit(answer.o, 0);
  return answer;
}

Answer mask_by_zero(const Problem& problem, const RunOptions& options) {
  Answer answer = healthy(problem, options);
  const double masked = 0 * problem.v.value(problem.v.size() - 1);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) + masked);
  return answer;
}

struct Form {
  std::string_view like;
  DType dtype;
};

struct Other {
  std::string_view name, what;
  std::vector<Form> forms;
  Run run;
  bool healthy = false;
};

const std::vector<Other>& others() {
  const auto form = [](DType dtype) { return Form{form_in(dtype), dtype}; };
  const std::vector<Form> every{form(DType::fp32), form(DType::bf16), form(DType::fp16)};
  static const std::vector<Other> rows{
      {"written_again", "the recurrence in other code", {form(DType::fp64)}, written_again, true},
      {"scale_off_by_an_ulp",
       "a scale wrong by one step of fp32, in fp64",
       {form(DType::fp64)},
       scale_off_by_an_ulp},
      {"biased_bf16", "o times 1 + 2^-8, in bf16", {{"recurrent", DType::bf16}}, biased_bf16},
      {"state_in_fp16", "the state is kept in fp16", {form(DType::fp32)}, state_in_fp16},
      {"silent_tf32", "products in tf32 that say fp32", {{"chunk", DType::fp32}}, silent_tf32},
      {"silent_bf16", "products in bf16 that say fp16", {form(DType::fp16)}, silent_bf16},
      {"nan_as_zero", "one element is zero", every, nan_as_zero},
      {"looks_ahead",
       "anchors in later rows, undeclared",
       {{"chunk", DType::fp32}, {"chunk", DType::bf16}, {"chunk", DType::fp16}},
       looks_ahead},
      {"second_sequence", "one bit of the second sequence of a batch", every, second_sequence},
      {"odd_head", "one bit of the first head", every, odd_head},
      {"mask_by_zero", "what lies outside is multiplied by zero", every, mask_by_zero},
  };
  return rows;
}

// ---- kernels that are wrong in a pool of states

template <std::size_t fault>
Answer run_pool_fault(const Problem& problem, const RunOptions& options) {
  return hypotheses::with_pool_fault(hypotheses::pool_faults()[fault], problem, options);
}
template <std::size_t... fault>
constexpr std::array<Run, sizeof...(fault)> runs_on_pools(std::index_sequence<fault...>) {
  return {run_pool_fault<fault>...};
}

/// In fp32; where there is one request some have nothing to be wrong with.
void add_pool_faults(std::vector<Mutant>& list) {
  constexpr std::array runs = runs_on_pools(std::make_index_sequence<hypotheses::pool_fault_count>());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const hypotheses::PoolFault& fault = hypotheses::pool_faults()[i];
    list.push_back({fault.name, fault.name, fault.what, {}, true, "recurrent", DType::fp32, false, runs[i]});
  }
}

std::vector<Mutant> in_precision(DType dtype) {
  std::vector<Mutant> list;
  if (dtype == DType::fp32) add_pool_faults(list);
  for (const Other& row : others())
    for (const Form& form : row.forms)
      if (form.dtype == dtype)
        list.push_back(
            {std::string(row.name), row.name, row.what, {}, false, form.like, dtype, row.healthy, row.run});
  const auto add = [&](const Sized& row, Extent extent, std::string_view suffix, Run run) {
    const double share = share_of(row, extent, dtype);
    if (share == 0) return;
    const std::string_view where = extent == Extent::local ? text_of(row.where) : "";
    list.push_back({fmt::format("{}{}", row.name, suffix), row.name, row.what,
                    fmt::format("{:.3g} %{}", 100 * share, where), extent == Extent::part, form_in(dtype),
                    dtype, false, run});
  };
  for (std::size_t i = 0; i < std::size(sized); ++i) {
    add(sized[i], Extent::all, "", runs_of<Extent::all>[i]);
    add(sized[i], Extent::part, "-in-part", runs_of<Extent::part>[i]);
    add(sized[i], Extent::local, "-in-one-place", runs_of<Extent::local>[i]);
  }
  return list;
}

}  // namespace

std::span<const Mutant> mutants() {
  static const std::vector<Mutant> list = [] {
    std::vector<Mutant> all;
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16})
      std::ranges::move(in_precision(dtype), std::back_inserter(all));
    return all;
  }();
  return list;
}

}  // namespace kda_check::selftest
