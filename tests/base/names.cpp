#include "base/names.hpp"

#include "support/catch.hpp"

namespace names_tests {

using namespace kda_check;

TEST_CASE("text from outside reaches no terminal as anything but text", "[names]") {
  CHECK(printable("plain text, déjà vu, 漢字, 🙂") == "plain text, déjà vu, 漢字, 🙂");
  CHECK(printable("\x1b[2J\n\t\x7f") == "\\x1b[2J\\x0a\\x09\\x7f");
  // Control characters of eight bits: as UTF-8, and as the bytes that some terminals obey.
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\xc2\\x9b31m");
  CHECK(printable("\x9b"
                  "31m") == "\\x9b31m");
  // Direction.
  CHECK(printable("a\u202eb\u2066c\u200fd\u061ce") == "a\\u202eb\\u2066c\\u200fd\\u061ce");
  // Ends of lines, nothing wide, tags.
  CHECK(printable("a\u2028b\u2029c\u200bd\ufeffe\u2060f\U000e0041") ==
        "a\\u2028b\\u2029c\\u200bd\\ufeffe\\u2060f\\ue0041");
}

TEST_CASE("bytes that are no UTF-8 are shown as bytes", "[names]") {
  CHECK(printable("caf\xe9") == "caf\\xe9");
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");                    // longer than it need be
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");                    // cut off
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond the last plane
  CHECK(printable("\xe2\x82\xac\xff\xe2\x82\xac") == "€\\xff€");
  CHECK(printable("\uffff\ufdd0") == "\\uffff\\ufdd0");
}

TEST_CASE("text from outside is no command of a workflow", "[names]") {
  CHECK(printable("::stop-commands::x") == "\\x3a:stop-commands::x");
  CHECK(printable("  \u00a0\u3000::x") == "  \u00a0\u3000\\x3a:x");
  CHECK(printable("##[add-mask]x ##[y") == "\\x23#[add-mask]x \\x23#[y");
  CHECK(printable("a::b :c ## [d] #[") == "a::b :c ## [d] #[");
  for (const char* const text : {"::x", "###[x", ":::x", "##[##["})
    CHECK(printable(printable(text)) == printable(text));
}

TEST_CASE("what is printable already stays as it is", "[names]") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(printable(printable(all)) == printable(all));
}

}  // namespace names_tests
