// What the program says and how it exits, whatever the command.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/sanitized.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"

namespace program_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

TEST_CASE("a run that passes prints the report, nothing else, and exits with 0", "[cli]") {
  const Output output = program("run " + small + on_cpu);
  CHECK(output.code == 0);
  CHECK(output.err.empty());
  CHECK_THAT(output.out, ContainsSubstring("15 passed, 0 failed"));
  CHECK(program("run " + small + on_cpu).out == output.out);  // no dates, durations or machine paths
}

TEST_CASE("a failed limit exits with 1 and lists the worst points", "[cli]") {
  const Output output =
      program("run " + small + " --variant recurrent --against oracle --limit scaled_ulp=1 --worst 2");
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring("FAIL - scaled_ulp 5.92 > 1"));
  CHECK_THAT(output.out, ContainsSubstring(" %*") && ContainsSubstring("* limit from the command line"));
  CHECK_THAT(output.out, ContainsSubstring("magnitude") && ContainsSubstring("repro: kda-check run "));
}

TEST_CASE("wrong words exit with 2 and one line with a hint", "[cli]") {
  for (const auto& [words, message] :
       {std::pair{"", "no command given"},
        {"rnu", "did you mean 'run'?"},
        {"run", "no fixture given"},
        {"run --vriant naive x.h5", "did you mean '--variant'?"},
        {"run x.h5 --threads 0", "--threads"},
        {"run x.h5 --limit scaled_upl=3", "did you mean 'scaled_ulp'?"},
        {"run x.h5 --memory-limit much", "not a size"},
        {"run @smke", "did you mean 'smoke'?"},
        {"run corr_kyes", "neither a file nor a regime"},
        {"run corr_keys:rho=7", "wanted a number from 0 to 1"},
        {"make corr_keys", "make: no file to write; hint: -o FILE.h5"},
        {"show corr_keys:T=8", "kda-check make corr_keys:T=8 -o FILE.h5"},
        {"make corr_kyes -o x.h5", "did you mean 'corr_keys'?"},
        {"explain", "no fixture given"},
        {"explain x.h5 --only growth --tensor final_state", "one of: o, dq, dk, dv, dg, dbeta"},
        {"diff one.h5", "AFTER is required"},
        {"list variant", "did you mean 'variants'?"},
        {"bench --dtype fp8", "no dtype 'fp8'"},
        {"bench --arithmetic bogus=1", "no axis 'bogus'"},
        {"run x.h5 --color alwys", "did you mean 'always'?"},
        {"run x.h5 --oracle ddd", "did you mean 'dd'?"},
        {"run x.h5 --color 9", "one of: auto, always, never"},
        {"run x.h5 --limit scaled_ulp=inf", "'inf' is not a number >= 0"},
        {"run x.h5 --atol -1", "--atol -1: wanted a number >= 0"},
        {"run x.h5 --rtol inf", "--rtol inf: wanted a number >= 0"},
        {"run x.h5 --atol nan", "--atol nan: wanted a number >= 0"},
        {"run x.h5 --variant , -q", "--variant ',': an empty name"},
        {"run x.h5 --arithmetic fla,,decay=pair", "an empty name"},
        {"run x.h5 --external-name mine", "of which program?"},
        {"run x.h5 --external-timeout 5", "of which program?"},
        {"run x.h5 --report json=", "no path"},
        {"run x.h5 --json /tmp/kda-check-x --report json=/tmp/./kda-check-x", "two reports to"},
        {"run ''", "empty word"}}) {
    const Output output = program(words);
    INFO(words << ": " << output.err);
    CHECK(output.code == 2);
    CHECK(output.out.empty());
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring(message));
    CHECK_THAT(output.err, ContainsSubstring("kda-check: error: "));
  }
}

TEST_CASE("a missing or malformed file exits with 3 and one line", "[cli]") {
  for (const char* const name :
       {"no_such_file.h5", "truncated_half.h5", "not_hdf5.h5", "missing_q.h5", "huge.h5"})
    for (const char* const command : {"run ", "show "}) {
      const Output output = program(command + bad + name);
      INFO(output.err);
      CHECK(output.code == 3);
      CHECK(lines(output.err) == 1);
      CHECK(output.err.find("HDF5-DIAG") == std::string::npos);
    }
  CHECK(program("diff " + small + " " + bad + "missing_q.h5").code == 3);
}

TEST_CASE("help and version go to standard output", "[cli]") {
  CHECK_THAT(program("--help").out, ContainsSubstring("usage: kda-check COMMAND"));
  CHECK_THAT(program("--version").out, ContainsSubstring("kda-check 0."));
  for (const char* const command : {"run", "diff", "explain", "power", "show", "make", "list", "bench"}) {
    const Output output = program(std::string(command) + " --help");
    CHECK(output.code == 0);
    CHECK_THAT(output.out, ContainsSubstring("kda-check " + std::string(command)));
  }
}

TEST_CASE("the program refuses to work when subnormals are flushed", "[cli]") {
  if (kda_check::is_sanitized) KDA_CHECK_SKIP("a sanitizer wants to be preloaded first");
#if defined(__x86_64__)
  const Output output = shell("LD_PRELOAD=" KDA_CHECK_FTZ_LIBRARY " $KDA run " + small);
  INFO(output.err);
  CHECK(output.code == 4);
  CHECK_THAT(output.err, ContainsSubstring("FTZ"));
#else
  KDA_CHECK_SKIP("needs the flush-to-zero bit of x86");
#endif
}

}  // namespace program_tests
