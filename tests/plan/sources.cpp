// Targets looked at before anything runs, and opened when it does.
#include "plan/source.hpp"

#include <filesystem>

#include "engine/regime_file.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"
#include "support/temporary_folder.hpp"

namespace sources_tests {

using namespace kda_check;
using plan::Source;

namespace {

plan::Target target_of(const std::string& text) { return {text, text, plan::is_regime(text)}; }

/// What `make` writes.
void make(const std::string& text, const std::string& path) {
  const kda::RegimeRequest regime = kda::parse_regime(text);
  const kda::Problem problem = regime.build();
  fixture::write_fixture(path, engine::regime_file(regime, problem, 1).request);
}

/// The report on a target, under one name whatever the target was.
std::string report_on(const std::string& target) {
  plan::Request request = test::request_for({target});
  request.selection.dtypes = plan::Names{"fixture", "fp32", "bf16"};
  report::Document document = test::ran(request);
  CHECK(report::exit_code(document) == 0);
  CHECK(document.problems.size() == 1);
  for (report::ProblemResult& item : document.problems) item.path = "target";
  for (report::CaseResult& item : document.cases) item.path = "target", item.repro.clear();
  return report::write_json(document, {});
}

}  // namespace

TEST_CASE("a regime as a target and the file made of it give the same report", "[plan][regimes]") {
  for (const char* const regime : {"lb_real:T=70,raw=1", "varlen:T=100", "layout_asym:v_first=1,dtype=bf16",
                                   "zero_keys:T=20", "split_invariance:T=5,cut=3", "gva:T=20,dtype=fp16"}) {
    INFO(regime);
    const test::TemporaryFolder folder;
    make(regime, folder / "same.h5");
    CHECK(report_on(regime) == report_on(folder / "same.h5"));
  }
}

TEST_CASE("a made file says where it came from", "[plan][regimes]") {
  const test::TemporaryFolder folder;
  make("corr_keys:T=10,rho=0.5,seed=3", folder / "origin.h5");
  const Source source = Source::look(target_of(folder / "origin.h5"), {});
  CHECK(plan::shape_text(source.outline().dimensions) == "B=1 T=10 H=2 K=64 V=64");
  CHECK(source.name() == "corr_keys:T=10,rho=0.5,seed=3");
  CHECK_FALSE(source.description().empty());
  std::string all;
  const fixture::Fixture made = fixture::Fixture::open(folder / "origin.h5");
  for (const auto& [name, value] : made.provenance()) all += name + "=" + value + "\n";
  CHECK_THAT(all, ContainsSubstring("regime=corr_keys\n"));
  CHECK_THAT(all, ContainsSubstring("rho=0.5,beta=0.9997"));
  CHECK_THAT(all, ContainsSubstring("seed=3\n"));
  CHECK_THAT(all, ContainsSubstring("tool=kda-check "));
}

TEST_CASE("a word that is neither a file nor a regime says so", "[plan][regimes]") {
  const auto refused = [](const char* text) {
    return test::refusal([&] { Source::look(plan::expanded(text).at(0), {}); });
  };
  CHECK_THAT(refused("slow_alhpa:g=-1"), ContainsSubstring("2 ") && ContainsSubstring("'slow_alpha'?"));
  CHECK_THAT(refused("nothing_like_it"),
             ContainsSubstring("2 ") && ContainsSubstring("kda-check list regimes"));
  CHECK_THAT(refused("missing.h5"), ContainsSubstring("3 ") && ContainsSubstring("missing.h5"));
  CHECK_THAT(refused("some/where"), ContainsSubstring("3 ") && ContainsSubstring("some/where"));
}

TEST_CASE("a regime beyond the memory budget is refused before anything of it is built", "[plan][regimes]") {
  fixture::ReadLimits limits;
  limits.memory_budget = 1 << 20;
  // A packed one too, whose lengths are known only once it is drawn.
  for (const char* const text :
       {"control:T=16000000,H=4096", "varlen:T=16000000,H=4096", "control:T=100000"}) {
    INFO(text);
    CHECK_THAT(test::refusal([&] { Source::look(target_of(text), limits); }),
               ContainsSubstring("3 ") && ContainsSubstring("--memory-limit"));
  }
  CHECK_NOTHROW(Source::look(target_of("control:T=1,K=8,V=8"), limits).open(limits));
}

TEST_CASE("the outline of a file is that of its problem, read from the headers alone", "[plan]") {
  for (const std::string& path : test::all_fixture_files()) {
    INFO(path);
    const Source source = Source::look(target_of(path), {});
    Source::Opened opened = source.open({});
    const kda::Outline read = opened.take_problem();
    CHECK(source.outline() == read);
    std::size_t bytes = 0;
    const fixture::Fixture file = fixture::Fixture::open(path);
    for (const fixture::DatasetInfo& info : file.inputs()) bytes += info.bytes();
    CHECK(source.bytes() == bytes);
  }
}

TEST_CASE("a file that is another one when it is opened is refused", "[plan]") {
  test::ProblemSpec spec;
  const test::TemporaryFixture file(test::make_problem(spec));
  const Source source = Source::look(target_of(file.path), {});
  CHECK_NOTHROW(source.open({}));
  test::ProblemSpec longer = spec, normed = spec;
  longer.K += 4, normed.qk_l2norm = true;
  for (const test::ProblemSpec& another : {longer, normed}) {
    const test::TemporaryFixture other(test::make_problem(another), nullptr, "other");
    std::filesystem::copy_file(other.path, file.path, std::filesystem::copy_options::overwrite_existing);
    CHECK_THAT(test::refusal([&] { source.open({}); }),
               ContainsSubstring("4 was written by another process meanwhile"));
  }
}

}  // namespace sources_tests
