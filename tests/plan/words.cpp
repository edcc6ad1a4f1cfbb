// Lines of suites and repro lines: cut as a shell cuts them.
#include "plan/words.hpp"

#include <cstdio>

#include "base/error.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/running.hpp"

namespace words_tests {

using namespace kda_check;
using plan::line_of;
using plan::Words;
using plan::words_of;

namespace {

/// What a shell makes of a line.
Words words_by_shell(const std::string& line) {
  std::string command = "set -f; printf '%s\\001' " + line;
  FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Words words;
  std::string word;
  for (int c; (c = std::fgetc(pipe)) != EOF;)
    if (c == 1)
      words.push_back(std::exchange(word, {}));
    else
      word += static_cast<char>(c);
  CHECK(::pclose(pipe) == 0);
  return words;
}

}  // namespace

TEST_CASE("blanks part words, and quotes and backslashes keep them", "[plan][words]") {
  CHECK(words_of("a  b\tc\r") == Words{"a", "b", "c"});
  CHECK(words_of("").empty());
  CHECK(words_of(" \t").empty());
  CHECK(words_of("'a b' \"c d\" e\\ f") == Words{"a b", "c d", "e f"});
  CHECK(words_of("a'b c'd\"e f\"g") == Words{"ab cde fg"});
  CHECK(words_of("'' \"\" x''") == Words{"", "", "x"});
  CHECK(words_of("--external './mine \"{in}\" {out}'") == Words{"--external", "./mine \"{in}\" {out}"});
}

TEST_CASE("a backslash is itself in single quotes, and before what is no sign in double quotes",
          "[plan][words]") {
  CHECK(words_of(R"('a\b' 'c\')") == Words{R"(a\b)", R"(c\)"});
  CHECK(words_of(R"("a\b" "c\"d" "e\\f" "\$x" "\`y")") == Words{R"(a\b)", R"(c"d)", R"(e\f)", "$x", "`y"});
  CHECK(words_of(R"(\'a\" \\ \#)") == Words{R"('a")", R"(\)", "#"});
}

TEST_CASE("a # begins a comment where a word could begin, and nowhere else", "[plan][words]") {
  CHECK(words_of("# all of it").empty());
  CHECK(words_of("a b # 'not closed") == Words{"a", "b"});
  CHECK(words_of("a#b '#c' \\#d") == Words{"a#b", "#c", "#d"});
}

TEST_CASE("what is not closed is bad input", "[plan][words]") {
  for (const char* const line : {"'a", "a 'b c", "\"a", "\"a\\\"", "a\\"}) {
    INFO(line);
    CHECK(test::refusal([&] { words_of(line); }).starts_with("3 "));
  }
  CHECK_THAT(test::refusal([] { words_of("\"a"); }), ContainsSubstring("a \" without its partner"));
}

TEST_CASE("a line of words is cut into these words again, by us and by a shell", "[plan][words]") {
  constexpr std::string_view letters = "ab0 -=,.:/@%^_+'\"\\#$`!*?[]{}()<>|&;~\t\n";
  test::Random random(7);
  std::string all;
  Words expected;
  for (int round = 0; round < 400; ++round) {
    Words words;
    for (std::size_t count = 1 + random.below(5); words.size() < count;) {
      std::string word;
      for (std::size_t length = random.below(9); word.size() < length;)
        word += letters[random.below(letters.size())];
      words.push_back(word);
    }
    const std::string line = line_of(words);
    INFO(line);
    CHECK(words_of(line) == words);
    all += (all.empty() ? "" : " ") + line;
    expected.insert(expected.end(), words.begin(), words.end());
  }
  CHECK(words_by_shell(all) == expected);
}

TEST_CASE("words that need no quotes have none", "[plan][words]") {
  CHECK(line_of({"kda-check", "run", "../x/a_b.h5", "--limit", "max_ulp=3", "corr_keys:rho=0.9,T=64",
                 "gpu-chunk@nvidia-h100"}) ==
        "kda-check run ../x/a_b.h5 --limit max_ulp=3 corr_keys:rho=0.9,T=64 gpu-chunk@nvidia-h100");
  CHECK(line_of({"a b", ""}) == "'a b' ''");
}

}  // namespace words_tests
