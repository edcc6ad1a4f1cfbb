#include "hypotheses/licence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kda_check::hypotheses {

namespace {

using kda::CastPoints;
using kda::Rounding;
using numeric::ComputeFormat;

struct Never {
  kda::CastPointRow::Point point;
  std::string_view says;
  bool is_stored_state = false;  ///< licensed where states are stored in 16 bits
};
constexpr std::array never{
    Never{&CastPoints::beta, "beta"},
    Never{&CastPoints::gate, "the gate"},
    Never{&CastPoints::decay, "the decay"},
    Never{&CastPoints::g_cumsum, "the sum of the gates"},
    Never{&CastPoints::carry, "the carried state"},
    Never{&CastPoints::initial_state, "the initial state", true},
};

/// Bits that are kept.
int precision_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::none:
      return 24;
    case Rounding::bf16:
      return 8;
    default:
      return 11;
  }
}

Rounding most_of(const Licence& licence, bool is_operand) {
  switch (licence.compute) {
    case ComputeFormat::bf16:
      return Rounding::bf16;
    case ComputeFormat::fp16:
      return Rounding::fp16;
    case ComputeFormat::tf32:
      return is_operand || numeric::format_of(licence.storage).bytes == 2 ? Rounding::tf32 : Rounding::none;
    default:
      return Rounding::none;
  }
}

bool is_read_by_products(const kda::CastPointRow& row) {
  return row.is_operand || row.point == &CastPoints::off_diagonal || row.point == &CastPoints::kg ||
         row.point == &CastPoints::beta_key || row.point == &CastPoints::exponentials ||
         row.point == &CastPoints::tensor_core || row.point == &CastPoints::transition;
}

/// Calls change(row, now, licensed, what) where these differ.
template <class Change>
void over(const Hypothesis& known, const CastPoints& casts, const Licence& licence, const Change& change) {
  for (const kda::CastPointRow& row : kda::cast_point_rows()) {
    const Rounding now = casts.*row.point;
    if (now == Rounding::none || row.point == &CastPoints::normalised ||
        (row.backward && known.pass == kda::Pass::forward) ||
        !(known.variant->axes.chunk ? row.in_chunk_form : row.in_token_forms))
      continue;
    const auto barred = std::ranges::find(never, row.point, &Never::point);
    if (barred != never.end()) {
      if (!barred->is_stored_state || !licence.states_are_narrow)
        change(row, now, Rounding::none, barred->says);
      continue;
    }
    const Rounding most = most_of(licence, is_read_by_products(row));
    if (precision_of(now) < precision_of(most)) change(row, now, most, row.name);
  }
}

}  // namespace

Hypothesis licensed(Hypothesis known, const Licence& licence, const kda::Problem& problem) {
  const CastPoints casts = casts_of(known, problem);
  kda::Arithmetic& arithmetic = known.options.arithmetic;
  CastPoints kept = casts;
  over(known, casts, licence, [&](const kda::CastPointRow& row, Rounding, Rounding most, std::string_view) {
    kept.*row.point = most;
  });
  if (!(kept == casts)) arithmetic.casts = kept, arithmetic.storage = kda::Storage::named;
  if (!licence.states_are_narrow) arithmetic.stored = {};
  return known;
}

std::vector<std::string> unlicensed(const Hypothesis& known, const Licence& licence,
                                    const kda::Problem& problem) {
  std::vector<std::string> list;
  over(known, casts_of(known, problem), licence,
       [&](const kda::CastPointRow&, Rounding now, Rounding, std::string_view what) {
         list.push_back(fmt::format("{} is rounded to {}", what, name_of(now)));
       });
  if (!licence.states_are_narrow && !(known.options.arithmetic.stored == kda::StoredState{}))
    list.emplace_back("the state is stored in fewer bits");
  return list;
}

}  // namespace kda_check::hypotheses
