// What a first user brings: recorded answers come first, are judged alone where that is asked, and are missed
// when they are gone.
#include <nlohmann/json.hpp>

#include "fixture/h5.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/temporary_fixture.hpp"

namespace your_answer_tests {

using namespace kda_check::test;

namespace {

/// A file of a recorded answer whose o is as many times too large.
TemporaryFixture recorded(const char* name, double factor) {
  const kda_check::kda::Problem problem = make_problem({});
  kda_check::kda::Answer answer = run(problem, "recurrent", kda_check::numeric::DType::fp32);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, factor * answer.o.value(i));
  return TemporaryFixture(problem, &answer, name);
}

}  // namespace

TEST_CASE("an answer that is gone from the files fails what requires it, and what held its baseline",
          "[cli]") {
  const Folder folder;
  const std::string file = (folder / "f.h5").string(), rows = (folder / "b.tsv").string();
  const std::string words = "run " + file + " --baseline " + rows;
  fs::copy_file(small, file);
  REQUIRE(program(words + " --update-baseline").code == 0);
  REQUIRE(program("run " + file + " --require fla_chunk").code == 0);
  REQUIRE(program("make tails:T=64,H=1 --replace -o " + file).code == 0);
  const Output required = program("run " + file + " --require fla_chunk -q");
  CHECK(required.code == 1);
  CHECK_THAT(required.err, ContainsSubstring("--require fla_chunk: nobody of that name is to answer"));
  const Output held = program(words + " -q");
  CHECK(held.code == 1);
  CHECK_THAT(held.err,
             ContainsSubstring("fla_chunk of " + file + " has rows in the baseline and is no longer there"));
}

TEST_CASE("two files that call themselves the same are two, in a baseline and in JUnit", "[cli]") {
  const Folder folder;
  const std::string a = (folder / "a.h5").string(), b = (folder / "b.h5").string(),
                    rows = (folder / "b.tsv").string();
  fs::copy_file(small, a);
  fs::copy_file(small, b);
  const std::string words = "run " + a + " " + b + " --variant none --recorded fla_chunk";
  REQUIRE(program(words + " --baseline " + rows + " --update-baseline").code == 0);
  CHECK_THAT(read_file(rows),
             ContainsSubstring(a + "\tfla_chunk") || ContainsSubstring(a + "\texpected/fla_chunk"));
  CHECK_THAT(read_file(rows), ContainsSubstring(b + "\texpected/fla_chunk"));
  program(words + " --report junit=" + (folder / "j.xml").string());
  CHECK_THAT(read_file(folder / "j.xml"),
             ContainsSubstring("<testsuite name=\"" + a) && ContainsSubstring("<testsuite name=\"" + b));
}

TEST_CASE("a wrong answer is one failure in every report, however many of ours stand beside it", "[cli]") {
  const Folder folder;
  const TemporaryFixture a = recorded("a", 1.5), b = recorded("b", 1.5), c = recorded("c", 1.5);
  const auto in = [&](const char* name) { return (folder / name).string(); };
  const Output output = program("run " + a.path + " " + b.path + " " + c.path + on_cpu + " --json " +
                                in("j") + " --report github=" + in("g") + " --report junit=" + in("x"));
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring("3 failed, 0 inconclusive") &&
                             ContainsSubstring("SKIPPED  ours: naive, recurrent, chunk against somebody: "
                                               "not compared, as that fails (3 rows"));
  const std::string annotations = read_file(in("g"));
  CHECK(lines(annotations) == 4);  // one for each file, and the sum
  CHECK(annotations.find("::error ") == 0);
  const auto document = nlohmann::json::parse(read_file(in("j")));
  std::size_t left_out = 0;
  for (const auto& item : document["cases"])
    for (const auto& tensor : item["tensors"]) {
      if (tensor["verdict"] != "skipped") continue;
      CHECK(item["against"] == "somebody");
      CHECK(tensor["name"] == "o");
      CHECK(tensor["reason"] == "not compared: somebody fails");
      ++left_out;
    }
  CHECK(left_out == 9);
  CHECK_THAT(read_file(in("x")), ContainsSubstring("failures=\"3\" errors=\"0\" skipped=\"9\""));
  CHECK(program("merge " + in("j")).out == output.out);
}

TEST_CASE("an answer that got worse is one failure beside a baseline", "[cli]") {
  const Folder folder;
  const std::string rows = (folder / "b.tsv").string(), before = (folder / "before.json").string(),
                    after = (folder / "after.json").string(), file = (folder / "f.h5").string();
  const std::string words = "run " + file + on_cpu + " --test off --baseline " + rows + " --json ";
  fs::copy_file(recorded("good", 1).path, file);
  REQUIRE(program(words + before + " --update-baseline").code == 0);
  const std::string written = read_file(rows);
  for (const double factor : {1 + 5e-7, 1.5}) {  // within the limits, and beyond them
    INFO(factor);
    fs::copy_file(recorded("worse", factor).path, file, fs::copy_options::overwrite_existing);
    const Output worse = program(words + after);
    CHECK(worse.code == 1);
    CHECK_THAT(worse.out, ContainsSubstring("worse than the baseline") && ContainsSubstring(" 1 failed"));
    CHECK(worse.err.empty());
    // What was not compared keeps its rows.
    CHECK(program(words + after + " --update-baseline").code == 1);
    CHECK(read_file(rows) == written);
  }
}

TEST_CASE("diff judges the second of two, the first is what it is held against", "[cli]") {
  const Output output =
      program("diff " + small + ":torch_fp64 " + small + ":fla_chunk --limit rms_ratio=5e-3 --json");
  CHECK(output.code == 0);
  const auto document = nlohmann::json::parse(output.out);
  CHECK_THAT(document["cases"][0]["against"].get<std::string>(), ContainsSubstring("torch_fp64"));
  CHECK_THAT(program("diff " + small + ":torch_fp64 " + small + ":fla_chunk").out,
             !ContainsSubstring("magnitude"));
}

TEST_CASE("an answer without o is none, and a baseline misses a tensor whichever comparisons are asked for",
          "[cli]") {
  const Folder folder;
  const std::string file = (folder / "f.h5").string(), rows = (folder / "b.tsv").string();
  fs::copy_file(small, file);
  const std::string words = "run " + file + " --recorded fla_recurrent --against oracle --baseline " + rows;
  REQUIRE(program(words + " --update-baseline").code == 0);
  REQUIRE(program("run " + file + " --require fla_recurrent").code == 0);
  {
    kda_check::fixture::H5File edited = kda_check::fixture::H5File::open_to_extend(file);
    edited.remove("/expected/fla_recurrent/o");
    edited.close();
  }
  const Output required = program("run " + file + " --require fla_recurrent");
  CHECK(required.code == 1);
  CHECK_THAT(
      required.err,
      ContainsSubstring("--require fla_recurrent: expected/fla_recurrent has neither o nor a gradient"));
  const Output held = program(words);
  CHECK(held.code == 1);
  CHECK_THAT(held.err,
             ContainsSubstring("o of expected/fla_recurrent of " + file + " has rows in the baseline"));
  CHECK(program(words + " --tensor final_state").code == 0);
}

}  // namespace your_answer_tests
