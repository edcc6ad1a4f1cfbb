#include "hypotheses/naming/input_layouts.hpp"

#include <algorithm>

namespace kda_check::hypotheses {

InputAxes axes_of(const kda::Dimensions& d, TokenInput input, std::size_t chunk) {
  const bool is_of_query = input == TokenInput::query || input == TokenInput::key;
  const std::size_t widths[] = {d.K, d.K, d.V, d.decays(), d.strength == kda::Strength::value ? d.V : 1};
  const std::size_t width = widths[static_cast<std::size_t>(input)];
  return {d.B,  d.T, is_of_query ? d.H : d.HV, width, is_of_query ? d.HV : d.H, width == d.K ? d.V : d.K,
          chunk};
}

std::size_t InputLayout::element(const InputAxes& a, std::size_t batch, std::size_t t, std::size_t head,
                                 std::size_t channel) const {
  const std::array<std::size_t, 4> sizes{a.B, a.T, a.heads, a.width};
  std::array<std::size_t, 4> at{batch, t, head, channel};
  const auto flat = [&](const std::array<std::uint8_t, 4>& order) {
    std::size_t index = 0;
    for (const std::uint8_t axis : order) index = index * sizes[axis] + at[axis];
    return index;
  };
  constexpr std::array<std::uint8_t, 4> own{0, 1, 2, 3};
  if (other != nullptr) return other(a, batch, t, head, channel);
  if (!is_stored) return flat(order);
  std::size_t index = flat(own);
  for (std::size_t i = order.size(); i-- > 0;)
    at[order[i]] = index % sizes[order[i]], index /= sizes[order[i]];
  return flat(own);
}

std::span<const InputLayout> input_layouts() {
  using A = InputAxes;
  using N = std::size_t;
  using Order = std::array<std::uint8_t, 4>;
  constexpr auto has_heads = [](const A& a) { return a.heads > 1 && a.T > 1; };
  constexpr auto has_batch = [](const A& a) { return a.B > 1; };
  constexpr auto has_both = [](const A& a) { return a.B > 1 && a.heads > 1; };
  constexpr auto has_width = [](const A& a) { return a.width > 1; };
  constexpr auto has_heads_and_width = [](const A& a) { return a.width > 1 && a.heads > 1; };
  constexpr auto is_wide = [](const A& a) { return a.width > 2; };
  static constexpr InputLayout list[] = {
      {"as [B,heads,T,width]", has_heads, Order{0, 2, 1, 3}},
      {"laid out as [B,heads,T,width]", has_heads, Order{0, 2, 1, 3}, true},
      {"as [T,B,heads,width]", has_batch, Order{1, 0, 2, 3}},
      {"laid out as [T,B,heads,width]", has_batch, Order{1, 0, 2, 3}, true},
      {"as [heads,B,T,width]", has_both, Order{2, 0, 1, 3}},
      {"laid out as [heads,B,T,width]", has_both, Order{2, 0, 1, 3}, true},
      {"as [B,T,width,heads]", has_heads_and_width, Order{0, 1, 3, 2}},
      {"laid out as [B,T,width,heads]", has_heads_and_width, Order{0, 1, 3, 2}, true},
      {"as [B,heads,width,T]", has_width, Order{0, 2, 3, 1}},
      {"laid out as [B,heads,width,T]", has_width, Order{0, 2, 3, 1}, true},
      {"as [B,chunk,heads,row,width]",
       [](const A& a) { return a.heads > 1 && a.T > a.chunk; },
       {},
       false,
       [](const A& a, N b, N t, N h, N c) {
         const N first = t - t % a.chunk, rows = std::min(a.chunk, a.T - first);
         return ((b * a.T + first) * a.heads + h * rows + t % a.chunk) * a.width + c;
       }},
      {"in rows of the other number of heads",
       [](const A& a) { return a.heads != a.other_heads; },
       {},
       false,
       [](const A& a, N b, N t, N h, N c) { return ((b * a.T + t) * a.other_heads + h) * a.width + c; }},
      {"in rows as wide as those of the other of K and V",
       [](const A& a) { return a.width > 1 && a.width != a.other_width; },
       {},
       false,
       [](const A& a, N b, N t, N h, N c) { return ((b * a.T + t) * a.heads + h) * a.other_width + c; }},
      {"with its even channels before the odd ones",
       is_wide,
       {},
       false,
       [](const A& a, N b, N t, N h, N c) {
         const N half = (a.width + 1) / 2;
         return ((b * a.T + t) * a.heads + h) * a.width + (c < half ? 2 * c : 2 * (c - half) + 1);
       }},
      {"with channels of both halves by turns",
       is_wide,
       {},
       false,
       [](const A& a, N b, N t, N h, N c) {
         const N half = (a.width + 1) / 2;
         return ((b * a.T + t) * a.heads + h) * a.width + c / 2 + (c % 2 == 0 ? 0 : half);
       }},
      {"from its last token to the first",
       [](const A& a) { return a.T > 1; },
       {},
       false,
       [](const A& a, N b, N t, N h, N c) { return ((b * a.T + a.T - 1 - t) * a.heads + h) * a.width + c; }},
  };
  return list;
}

}  // namespace kda_check::hypotheses
