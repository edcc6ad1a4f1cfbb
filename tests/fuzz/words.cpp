// Single words that say much: limits, regimes, arithmetic, shards, element types, and lines of words. The
// first byte says which of them the rest is.
#include <cmath>

#include "fuzz/input.hpp"
#include "judge/limits.hpp"
#include "kda/arithmetic/arithmetic.hpp"
#include "kda/regimes/regimes.hpp"
#include "numeric/dtype_words.hpp"
#include "plan/shard.hpp"
#include "plan/words.hpp"

namespace {

using namespace kda_check;
using fuzz::require;

void limit(std::string_view text) {
  const judge::LimitRequest request = judge::parse_limit(text);
  require(std::isfinite(request.value) && request.value >= 0);
  require(judge::overlaid({}, {{"here", {request}}}).size() == (request.none ? 0 : 1));
}

void regime(std::string_view text) {
  const kda::RegimeRequest request = kda::parse_regime(text);
  // Spelled out in full it is the same.
  const std::string full = request.settings.text();
  require(kda::parse_regime(std::string(request.recipe->name) + ":" + full).settings.text() == full);
  if (request.bytes() <= std::size_t{1} << 18) request.outline();
}

void arithmetic(std::string_view text) {
  kda::Arithmetic set;
  kda::set_axis(set, text);
  const std::string described = kda::describe(set, {.chunk = true});
  kda::Arithmetic again;
  for (const std::string& word : plan::words_of(described)) {
    require(kda::has_axis({.chunk = true}, word));
    kda::set_axis(again, word);
  }
  require(kda::describe(again, {.chunk = true}) == described);
}

void shard(std::string_view text) {
  if (text == "auto") return;  // what the environment says
  const plan::Shard part = plan::shard_named(std::string(text));
  require(part.index >= 1 && part.index <= part.count);
  require(plan::shard_named(part.text()).text() == part.text());
}

void line(std::string_view text) {
  const plan::Words words = plan::words_of(text);
  require(plan::words_of(plan::line_of(words)) == words);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  try {
    switch (data[0]) {
      case 'l':
        limit(text);
        break;
      case 'r':
        regime(text);
        break;
      case 'a':
        arithmetic(text);
        break;
      case 's':
        shard(text);
        break;
      case 'd':
        numeric::dtype_of_word(text);
        break;
      default:
        line(text);
    }
  } catch (const Error& error) {
    fuzz::require_refusal(error);
  }
  return 0;
}
