// `explain --only growth`: errors window by window, crossings, and what does not depend on threads.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/writers.hpp"
#include "support/growth.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

namespace growth_tests {

using namespace kda_check;
using numeric::DType;
using plan::Names;
using report::exit_code;
using test::crossing;
using test::followed;
using test::growth_of;
using test::Item;
using test::items_of;
using test::TemporaryFixture;

namespace {

report::Document ran(const plan::Request& request) { return test::ran(request, test::on_threads(2)); }

}  // namespace

TEST_CASE("a perturbation is first crossed at its token, head and lane", "[engine][growth]") {
  test::ProblemSpec spec;
  spec.T = 90, spec.H = 2, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const auto perturb = [&](std::size_t t, std::size_t h, std::size_t v, double by) {
    const std::size_t at = (t * 4 + h) * spec.V + v;
    answer.o.set(at, answer.o.value(at) + by);
  };
  perturb(37, 2, 3, 0.01);
  perturb(61, 0, 1, 5);  // later and larger
  const TemporaryFixture file(problem, &answer, "growth");
  plan::Request request = growth_of(file.path);
  request.window = 10;
  const report::Document document = ran(request);
  const Item item = followed(document, "somebody");
  REQUIRE(crossing(item, "scaled_ulp").flag("crossed"));
  CHECK(crossing(item, "scaled_ulp").count("position") == 37);
  CHECK(crossing(item, "scaled_ulp").words("place") == "o[b=0 t=37 h=2 v=3]");
  CHECK(crossing(item, "scaled_ulp").words("source") == "derived");
  CHECK(crossing(item, "rms_ratio").count("position") == 30);
  CHECK(crossing(item, "rms_ratio").words("place") == "o[b=0 t=30 h=2]");
  CHECK(item.words("worst_head").starts_with("h=0 "));
  CHECK(item.words("worst").ends_with(" at t=60"));
  CHECK(item.rows("heads").size() == 4);
  for (const test::Row& untouched : followed(document, "recurrent").rows("crossings"))
    CHECK(!untouched.flag("crossed"));
  CHECK(exit_code(document) == 0);  // derived limits inform
  CHECK_FALSE(item.entry().verdict);
}

TEST_CASE("windows agree with what run measures over the whole tensor", "[engine][growth]") {
  plan::Request request = growth_of(test::case_fixtures() + "/fla_fp32_varlen.h5");
  request.window = 1 << 20;  // one window: everything
  const report::Document document = ran(request);
  const Item item = followed(document, "fla_chunk");
  REQUIRE(item.along("rms_ratio").size() == 1);
  CHECK(item.figure("first") == Approx(1e-3).epsilon(0.15));  // docs/file-format.md
  CHECK(item.words("trend") == "unclear");
  CHECK(item.is_nothing("slope"));
}

TEST_CASE("against a recorded answer, itself is left out", "[engine][growth]") {
  plan::Request request = growth_of(test::case_fixtures() + "/fla_fp32_small.h5");
  request.selection.variants = Names{"naive", "recurrent", "chunk"};
  request.selection.against = Names{"fla_chunk"};
  request.window = 8;
  const report::Document document = ran(request);
  CHECK(items_of(document, "growth").size() == 5);
  for (const Item& item : items_of(document, "growth")) {
    CHECK(item.words("answer") != "fla_chunk");
    CHECK(item.figure("first") == Approx(1e-3).epsilon(0.2));
    CHECK_THAT(item.section().title, ContainsSubstring("o against expected/fla_chunk"));
  }
}

TEST_CASE("a file without the group that growth is to be held against does not lose the others",
          "[engine][growth]") {
  const std::string path = test::case_fixtures() + "/fla_fp32_small.h5";
  const TemporaryFixture without(test::make_problem({}), nullptr, "without");
  plan::Request request = test::explaining({without.path, path}, "growth");
  request.selection.variants = Names{"recurrent"};
  request.selection.against = Names{"fla_chunk"};
  const report::Document document = ran(request);
  CHECK(items_of(document, "growth").size() == 3);  // and fla_recurrent, torch_fp64
  REQUIRE(document.failures.size() == 1);
  CHECK_THAT(document.failures[0].message, ContainsSubstring("no group expected/fla_chunk"));
  CHECK(document.failures[0].path == without.path);
  CHECK(exit_code(document) == 3);
}

TEST_CASE("growth does not depend on the number of threads", "[engine][growth]") {
  const plan::Request request = growth_of(test::case_fixtures() + "/fla_fp32_varlen.h5");
  CHECK(report::write_json(test::ran(request, test::on_threads(1)), {}) ==
        report::write_json(test::ran(request, test::on_threads(5)), {}));
}

}  // namespace growth_tests
