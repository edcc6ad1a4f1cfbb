// Reports read back: what merge is given.
#include "engine/report_reader.hpp"

#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "engine/merge.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace report_reader_tests {

using namespace kda_check;
using Json = nlohmann::ordered_json;

namespace {

Json kept(const std::string& name) {
  std::ifstream file(KDA_CHECK_SOURCE_DIR "/tests/fuzz/corpus/report/" + name);
  return Json::parse(file);
}

class Written {
 public:
  explicit Written(const std::string& text) : path_(folder_ / "report.json") { std::ofstream(path_) << text; }
  explicit Written(const Json& report) : Written(report.dump()) {}
  const std::string& path() const { return path_; }

 private:
  test::TemporaryFolder folder_;
  std::string path_;
};

/// The line that refuses a kept report in which something was changed.
std::string refusal(const std::string& name, const std::function<void(Json&)>& change,
                    const std::function<void(const std::string&)>& use = engine::read_report) {
  Json report = kept(name);
  change(report);
  const Written file(report);
  try {
    use(file.path());
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    CHECK_THAT(error.what(), ContainsSubstring(file.path()));
    return error.what();
  }
  return "was accepted";
}

}  // namespace

TEST_CASE("a report that is read and written is the same", "[reports]") {
  for (const char* const name : {"error", "fail", "interrupted", "shard_1_of_2", "stages"}) {
    INFO(name);
    const Written file(kept(name));
    const std::string once = report::write_json(engine::read_report(file.path()), {});
    CHECK(report::write_json(engine::read_report(Written(once).path()), {}) == once);
    CHECK(Json::parse(once)["cases"] == kept(name)["cases"]);
  }
}

TEST_CASE("what twins say of stages is read as it was written, and may be missing", "[reports]") {
  const Written file(kept("stages_and_twins")), before_twins(kept("stages"));
  const Json once = Json::parse(report::write_json(engine::read_report(file.path()), {}));
  CHECK(once["stages"] == kept("stages_and_twins")["stages"]);
  CHECK(once["summary"] == kept("stages_and_twins")["summary"]);
  const Json earlier = Json::parse(report::write_json(engine::read_report(before_twins.path()), {}));
  CHECK(earlier["stages"][0]["stages"][0]["twins"] == nullptr);
  CHECK_FALSE(earlier["stages"][0].contains("verdict"));
}

TEST_CASE("an exit code that no process can have does not make a pass of a failure", "[reports]") {
  for (const Json& code : {Json(256), Json(0), Json(-1), Json(1.5), Json(1e300), Json("3")})
    CHECK_THAT(refusal("error", [&](Json& report) { report["errors"][0]["exit_code"] = code; }),
               ContainsSubstring("whole number from 1 to 127"));
}

TEST_CASE("numbers of a report that count something are whole", "[reports]") {
  const auto whole = ContainsSubstring("wanted a whole number");
  CHECK_THAT(refusal("interrupted", [](Json& report) { report["interrupted"]["signal"] = 1000; }), whole);
  CHECK_THAT(refusal("fail", [](Json& report) { report["cases"][0]["tensors"][0]["shape"][0] = 1e300; }),
             whole);
  CHECK_THAT(refusal("fail", [](Json& report) { report["cases"][0]["number"] = -1; }), whole);
  CHECK_THAT(refusal("shard_1_of_2", [](Json& report) { report["plan"]["shard"] = 3; }),
             ContainsSubstring("from 1 to 2, found 3"));
}

TEST_CASE("a stage of nobody is refused, not a bug", "[reports]") {
  for (const char* const key : {"answer", "dtype", "compute", "recorded"})
    CHECK_THAT(refusal("stages", [&](Json& report) { report["stages"][0][key] = nullptr; }),
               ContainsSubstring("a field is missing or of another type"));
}

TEST_CASE("a report of very many shards is refused at once", "[reports]") {
  CHECK_THAT(refusal(
                 "shard_1_of_2", [](Json& report) { report["plan"]["shards"] = 1'000'000'000'000'000; },
                 [](const std::string& path) { engine::merged({path}); }),
             ContainsSubstring("shard 2, 3, 4") && ContainsSubstring("... of 1000000000000000 is missing"));
}

}  // namespace report_reader_tests
