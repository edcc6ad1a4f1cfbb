// merge: the reports of the shards of one run are the report of the run.
#include <cmath>
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/temporary_fixture.hpp"

namespace merge_tests {

using namespace kda_check::test;
using nlohmann::json;

namespace {

const std::string targets = "run control:T=4,H=1 control:T=5,H=1 control:T=6,H=1 --variant naive,recurrent";

/// Writes the JSON of each of `count` shards; their paths, with blanks between.
std::string parts(const Folder& folder, std::size_t count, const std::string& words = targets) {
  std::string paths;
  for (std::size_t index = 1; index <= count; ++index) {
    const std::string path = (folder / ("part" + std::to_string(index) + ".json").c_str()).string();
    program(words + " --shard " + std::to_string(index) + "/" + std::to_string(count) + " -q --json " + path);
    paths += " " + path;
  }
  return paths;
}

}  // namespace

TEST_CASE("a report that went through JSON says in words what the run said", "[cli][merge]") {
  const Folder folder;
  const kda_check::kda::Problem problem = make_problem({});
  kda_check::kda::Answer answer = run(problem, "recurrent", kda_check::numeric::DType::fp32);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, 1.5 * answer.o.value(i));
  answer.final_state.set(3, HUGE_VAL);
  const TemporaryFixture file(problem, &answer);
  const std::string words = "run " + file.path + " control:T=70,H=1,K=8,V=8 no_such_file.h5" + on_cpu +
                            " --dtype fp64,bf16 --arithmetic exponential=cuda --stages --invariants "
                            "--limit scaled_ulp=4 ";
  for (const char* const detail : {"", "-v", "-q"}) {
    const Output once = program(words + detail + " --json " + (folder / "once.json").string());
    INFO(once.out);
    CHECK(once.code == 3);
    CHECK(program("merge " + (folder / "once.json").string() + " " + detail).out == once.out);
  }
}

TEST_CASE("the exit code of merge is that of the run, and failures are said", "[cli][merge]") {
  const Folder folder;
  CHECK(program("merge" + parts(folder, 2, targets + " --limit scaled_ulp=0.5")).code == 1);
  const Output unread = program("merge" + parts(folder, 2, targets + " /no/such.h5"));
  CHECK(unread.code == 3);
  CHECK(lines(unread.err) == 1);
  CHECK_THAT(unread.err, ContainsSubstring("/no/such.h5"));
}

TEST_CASE("an answer that one part skips and another gives is missed by nobody", "[cli][merge]") {
  const Folder folder;
  std::ofstream(folder / "odd.sh") << "case $($KDA show $1 --headers) in *T=5*) exit 77;; esac\n"
                                      "$KDA capture $1 --variant naive --replace -o $2\n";
  const auto run = [&](const std::string& targets_of_run) {
    std::string out;
    for (const char* const index : {"1", "2"}) {
      const std::string path = (folder / "part").string() + index + ".json";
      const Output part = shell(
          "export KDA; $KDA run " + targets_of_run + " --variant none --require external --external 'sh " +
          (folder / "odd.sh").string() + " {in} {out}' -q --json " + path + " --shard " + index + "/2");
      INFO(part.out << part.err);
      CHECK(part.code == 0);
      CHECK((part.err.empty() ||
             part.out.ends_with("; nothing passed in this part: merge judges the whole\n")));
      out += part.err;
    }
    CHECK_THAT(out, ContainsSubstring("in this part --require external: it answered nothing") &&
                        ContainsSubstring("merge judges the whole"));
    return program("merge " + (folder / "part1.json").string() + " " + (folder / "part2.json").string());
  };
  const Output some = run("control:T=4 control:T=5");
  INFO(some.out << some.err);
  CHECK(some.code == 0);
  CHECK(some.err.empty());
  const Output none = run("control:T=5 control:T=5,H=3");
  CHECK(none.code == 1);
  CHECK(lines(none.err) == 1);
  CHECK_THAT(none.err, ContainsSubstring("--require external: it answered nothing; skipped everywhere"));
}

TEST_CASE("a baseline may be about one part of a run, and must be about some", "[cli][merge]") {
  const Folder folder;
  const std::string path = (folder / "b.tsv").string();
  REQUIRE(program("run control:T=4,H=1 --variant naive --update-baseline --baseline " + path).code == 0);
  const auto merged = [&](const std::string& targets_of_run) {
    std::string paths;
    for (const char* const index : {"1", "2"}) {
      paths += " " + (folder / "part").string() + index + ".json";
      const Output part = program("run " + targets_of_run + " --variant naive -q --baseline " + path +
                                  " --json" + paths.substr(paths.rfind(' ')) + " --shard " + index + "/2");
      INFO(part.out << part.err);
      CHECK(part.code == 0);
    }
    return program("merge" + paths);
  };
  CHECK(merged("control:T=4,H=1 control:T=5,H=1").code == 0);
  const Output other = merged("control:T=6,H=1 control:T=5,H=1");
  CHECK(other.code == 1);
  CHECK_THAT(other.err, ContainsSubstring("no row of the baseline is about this run"));
}

}  // namespace merge_tests
