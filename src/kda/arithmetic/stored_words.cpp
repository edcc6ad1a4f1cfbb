#include "kda/arithmetic/stored_words.hpp"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/names.hpp"
#include "kda/arithmetic/axis_numbers.hpp"
#include "numeric/stored_formats.hpp"

namespace kda_check::kda {

namespace {

struct ScaleName {
  StateScale scale;
  bool power_of_two;
  std::string_view name;
};
constexpr ScaleName scales[] = {
    {StateScale::none, false, "unscaled"}, {StateScale::row, false, "row"},
    {StateScale::column, false, "column"}, {StateScale::head, false, "head"},
    {StateScale::row, true, "row-pow2"},   {StateScale::column, true, "column-pow2"},
    {StateScale::head, true, "head-pow2"}};
constexpr std::string_view stochastic = "stochastic", feedback = "feedback", nearest = "nearest";

const numeric::StoredFormat& format_of(const StoredState& stored) {
  return numeric::stored_formats[static_cast<std::size_t>(stored.format)];
}
/// Those of 8 bits.
bool has_scales(const StoredState& stored) { return format_of(stored).bits == 8; }

std::uint64_t seed_of(std::string_view words, std::string_view word) {
  if (word == stochastic) return 0;
  const std::string_view text = word.substr(stochastic.size() + 1);
  std::uint64_t seed = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (failure != std::errc{} || end != text.data() + text.size())
    refuse_value("stored", words, "wanted a whole number as the seed");
  return seed;
}

/// What has been said behind the format.
struct Said {
  bool scale = false, rounding = false;
};

void take(StoredState& stored, Said& said, std::string_view words, std::string_view word) {
  for (const ScaleName& row : scales)
    if (row.name == word) {
      if (!has_scales(stored)) refuse_value("stored", words, "formats of 8 bits alone have scales");
      if (std::exchange(said.scale, true)) refuse_value("stored", words, "a second scale");
      stored.scale = row.scale, stored.power_of_two = row.power_of_two;
      return;
    }
  if (word == nearest) {
    stored.rounding = StateRounding::nearest;
  } else if (word == feedback) {
    stored.rounding = StateRounding::feedback;
  } else if (word == stochastic || word.starts_with(fmt::format("{}:", stochastic))) {
    stored.rounding = StateRounding::stochastic;
    stored.seed = seed_of(words, word);
  } else {
    refuse_value("stored", words, fmt::format("no word '{}'", word), stored_grammar());
  }
  if (std::exchange(said.rounding, true)) refuse_value("stored", words, "a second rounding");
}

}  // namespace

StoredState stored_from(std::string_view words) {
  const std::vector<std::string> parts = split(words, '+');
  const std::string format = parts.empty() ? std::string() : parts.front();
  StoredState stored;
  bool known = false;
  for (std::size_t i = 0; i < numeric::stored_formats.size(); ++i)
    if (numeric::stored_formats[i].name == format) stored.format = static_cast<StateFormat>(i), known = true;
  if (!known) refuse_value("stored", words, "no such format", suggest(format, stored_formats()));
  if (has_scales(stored)) stored.scale = StateScale::row;
  if (stored.format == StateFormat::fp32 && parts.size() > 1)
    refuse_value("stored", words, "nothing is rounded to fp32");
  Said said;
  for (std::size_t i = 1; i < parts.size(); ++i) take(stored, said, words, parts[i]);
  return stored;
}

std::string words_of(const StoredState& stored) {
  std::string words(format_of(stored).name);
  if (has_scales(stored))
    for (const ScaleName& row : scales)
      if (row.scale == stored.scale && row.power_of_two == stored.power_of_two)
        words += fmt::format("+{}", row.name);
  if (stored.rounding == StateRounding::stochastic) words += fmt::format("+{}:{}", stochastic, stored.seed);
  if (stored.rounding == StateRounding::feedback) words += fmt::format("+{}", feedback);
  return words;
}

std::vector<std::string> stored_formats() {
  std::vector<std::string> names;
  for (const numeric::StoredFormat& format : numeric::stored_formats) names.emplace_back(format.name);
  return names;
}

std::string stored_grammar() {
  std::vector<std::string> names;
  for (const ScaleName& row : scales) names.emplace_back(row.name);
  return fmt::format("FORMAT+SCALE+ROUNDING: of 8 bits {}; {}, {}:SEED, {}", join(names), nearest, stochastic,
                     feedback);
}

}  // namespace kda_check::kda
