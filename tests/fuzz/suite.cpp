// The text of a suite, down to what each line asks for.
#include <cstdio>

#include "cli/command.hpp"
#include "fuzz/input.hpp"
#include "plan/selection.hpp"
#include "plan/suite.hpp"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // A line that asks for help gets it.
  return std::freopen("/dev/null", "w", stdout) == nullptr ? 1 : 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  try {
    for (const plan::Suite::Line& line : plan::suite_lines(fuzz::text_of(data, size), "@input")) {
      const plan::Request request = cli::parse_run_line(line.words);
      plan::check_words(request);
      plan::under(request, {});
    }
  } catch (const Error& error) {
    fuzz::require_refusal(error);
  }
  return 0;
}
