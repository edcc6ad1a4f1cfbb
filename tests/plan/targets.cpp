// From words to targets: files, folders, regimes, suites.
#include "plan/target.hpp"

#include <filesystem>
#include <fstream>

#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"

namespace targets_tests {

namespace fs = std::filesystem;
using namespace kda_check;
using plan::expanded;
using plan::Names;

namespace {

/// The current folder while it lives.
class Inside {
 public:
  explicit Inside(const fs::path& folder) : before_(fs::current_path()) { fs::current_path(folder); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { fs::current_path(before_); }

 private:
  fs::path before_;
};

void put(const test::TemporaryFolder& folder, const std::string& name) {
  fs::create_directories(fs::path(folder / name).parent_path());
  fs::copy_file(test::case_fixtures() + "/fla_fp16_c32.h5", folder / name);
}

Names names_of(const std::vector<plan::Target>& targets) {
  Names names;
  for (const plan::Target& target : targets) names.push_back(target.name);
  return names;
}

}  // namespace

TEST_CASE("a folder stands for the fixtures in it and below it, in order of name", "[plan][targets]") {
  const test::TemporaryFolder folder;
  for (const char* const name :
       {"b.h5", "a.hdf5", "deeper/c.h5", "deeper/still/d.h5", "not.txt", "a.h5.bak", "deeper.h5/e.h5"})
    put(folder, name);
  const std::string root = folder.path();
  CHECK(names_of(expanded(root)) == Names{root + "/a.hdf5", root + "/b.h5", root + "/deeper/c.h5",
                                          root + "/deeper/still/d.h5", root + "/deeper.h5/e.h5"});
  for (const plan::Target& target : expanded(root)) {
    CHECK(target.path == target.name);
    CHECK_FALSE(target.is_regime);
  }
  // As typed, slash or not.
  CHECK(names_of(expanded(root + "/deeper/")) == Names{root + "/deeper/c.h5", root + "/deeper/still/d.h5"});
  const Inside inside(root);
  CHECK(names_of(expanded("deeper")) == Names{"deeper/c.h5", "deeper/still/d.h5"});
  CHECK(names_of(expanded("b.h5")) == Names{"b.h5"});
  CHECK(names_of(expanded("no_such.h5")) == Names{"no_such.h5"});
}

TEST_CASE("a folder without fixtures is a mistake, and an empty word too", "[plan][targets]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::refusal([&] { expanded(folder.path()); }),
             ContainsSubstring("2 " + folder.path() + " holds no .h5 or .hdf5 file"));
  CHECK_THAT(test::refusal([] { expanded(""); }), ContainsSubstring("2 a target is an empty word"));
}

TEST_CASE("a target in a suite is found from its folder, and called as the suite calls it",
          "[plan][targets]") {
  const test::TemporaryFolder folder;
  put(folder, "files/a.h5");
  const std::vector<plan::Target> of_folder = expanded("../files", folder / "suites", "cases/suites");
  REQUIRE(of_folder.size() == 1);
  CHECK(of_folder[0].name == "cases/files/a.h5");
  CHECK(of_folder[0].path == folder / "files/a.h5");
  const plan::Target file = expanded("../files/a.h5", folder / "suites", "cases/suites").at(0);
  CHECK(file.name == of_folder[0].name);
  CHECK(file.path == of_folder[0].path);
  const plan::Target absolute = expanded(folder / "files/a.h5", "/elsewhere", "cases/suites").at(0);
  CHECK(absolute.name == folder / "files/a.h5");
  const plan::Target regime = expanded("control:T=4", folder / "suites", "cases/suites").at(0);
  CHECK(regime.is_regime);
  CHECK(regime.name == "control:T=4");
}

TEST_CASE("a folder may be named like a command, a variant or an option's value", "[plan][targets]") {
  const test::TemporaryFolder folder;
  for (const char* const name : {"run/a.h5", "chunk/a.h5", "o/a.h5", "smoke/a.h5"}) put(folder, name);
  const Inside inside(folder.path());
  CHECK(test::request_of("run").targets == Names{"run"});
  CHECK(test::request_of("@smoke run").targets == Names{"@smoke", "run"});
  const plan::Request both = test::request_of("run chunk --variant chunk --tensor o");
  CHECK(both.targets == Names{"run", "chunk"});
  CHECK(both.selection.variants == Names{"chunk"});
  CHECK(both.selection.tensors == Names{"o"});
  const plan::Plan plan = test::planned_line(both);
  REQUIRE(plan.problems.size() == 2);
  CHECK(plan.problems[0].source->target().path == "run/a.h5");
  CHECK(plan.problems[1].source->target().path == "chunk/a.h5");
}

TEST_CASE("a word of the line is kept though another one is spelled like it", "[plan][targets]") {
  const plan::Request request = test::request_of(
      "control control:T=4 --external-name control --external 'x {in} {out}' --variant none");
  CHECK(request.targets == Names{"control", "control:T=4"});
  CHECK(request.external->name == "control");
}

TEST_CASE("a file with the name of a regime is the file, and one with the name of a suite too",
          "[plan][targets]") {
  CHECK(plan::is_regime("control"));
  CHECK(plan::is_regime("control:T=8"));
  CHECK_FALSE(plan::is_regime("controls"));
  CHECK_FALSE(plan::is_regime("control.h5"));
  CHECK(plan::is_suite("@smoke"));
  CHECK(plan::is_suite("@no/such/file.txt"));
  CHECK_FALSE(plan::is_suite("smoke"));
  const test::TemporaryFolder folder;
  put(folder, "control");
  put(folder, "@smoke");
  const Inside inside(folder.path());
  CHECK_FALSE(plan::is_regime("control"));
  CHECK(plan::is_regime("control:T=8"));
  CHECK_FALSE(expanded("control").at(0).is_regime);
  CHECK_FALSE(plan::is_suite("@smoke"));
  CHECK(test::planned_line("control").problems.at(0).source->name() == "fla_fp16_c32_cut");
}

TEST_CASE("what an option's value is mistaken for is a target, and nothing else", "[plan][targets]") {
  const test::TemporaryFolder folder;
  const Inside inside(folder.path());
  fs::create_directory("files");
  for (const char* const word : {"control", "corr_keys:T=4", "@smoke", "x.h5", "x.hdf5", "files", "./files"})
    CHECK(plan::looks_like_a_target(word));
  for (const char* const word : {"out.json", "corr", "x.h5.json", "report", "-"})
    CHECK_FALSE(plan::looks_like_a_target(word));
}

TEST_CASE("the same file is one target, however often it is named", "[plan][targets]") {
  const test::TemporaryFolder folder;
  put(folder, "a.h5");
  put(folder, "b.h5");
  const std::string a = folder / "a.h5";
  const plan::Plan plan = test::planned_line(a + " " + folder.path() + " " + a + " --variant recurrent");
  REQUIRE(plan.problems.size() == 2);
  CHECK(plan.problems[0].source->target().path == a);
  CHECK(plan.inputs == Names{a, folder / "b.h5"});
}

}  // namespace targets_tests
