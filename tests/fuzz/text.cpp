// Texts from outside: what a terminal is shown, command lines with placeholders, sizes.
#include "base/memory.hpp"
#include "base/names.hpp"
#include "base/shell_text.hpp"
#include "fuzz/input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  using fuzz::require;
  const std::string_view text = fuzz::text_of(data, size);
  const std::string shown = printable(text);
  require(printable(shown) == shown);
  for (const char c : shown) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  require(with_placeholders(text, {}) == text);
  try {
    with_placeholders(text, {{"{in}", "/a b'\"$`\\\n"}, {"{out}", text}});
  } catch (const Error& error) {
    fuzz::require_refusal(error);
  }
  if (const auto bytes = parse_size(text)) require(*bytes > 0 && !size_text(*bytes).empty());
  return 0;
}
