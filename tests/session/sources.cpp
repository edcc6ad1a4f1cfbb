// Regimes as targets, and as files made of them.
#include "session/sources.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "report/writers.hpp"
#include "session/make.hpp"
#include "session/run.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;

namespace {

namespace fs = std::filesystem;

struct TemporaryFile {
  explicit TemporaryFile(const std::string& name)
      : path((fs::temp_directory_path() / ("kda-check-make-" + std::to_string(::getpid()) + name)).string()) {
  }
  ~TemporaryFile() { fs::remove(path); }
  std::string path;
};

/// The report on a target, under one name whatever the target was.
std::string report_on(const std::string& target) {
  session::RunRequest request;
  request.fixtures = {target};
  request.dtypes = {"fixture", "fp32", "bf16"};
  report::Result result = session::run(request, {});
  CHECK(result.exit_code() == 0);
  CHECK(result.fixtures.size() == 1);
  for (report::FixtureResult& item : result.fixtures) item.path = "target";
  for (report::CaseResult& item : result.cases) item.path = "target";
  return report::write_json(result, {});
}

}  // namespace

TEST_CASE("a regime as a target and the file made of it give the same report", "[session][regimes]") {
  for (const char* const regime : {"lb_real:T=70,raw=1", "varlen:T=100", "layout_asym:v_first=1,dtype=bf16",
                                   "zero_keys:T=20", "split_invariance:T=5,cut=3", "gva:T=20,dtype=fp16"}) {
    INFO(regime);
    const TemporaryFile file("same.h5");
    session::make({regime, file.path, {}});
    CHECK(report_on(regime) == report_on(file.path));
  }
}

TEST_CASE("a made file says where it came from", "[session][regimes]") {
  const TemporaryFile file("origin.h5");
  const report::FixtureResult made = session::make({"corr_keys:T=10,rho=0.5,seed=3", file.path, {}});
  CHECK(made.shape == "B=1 T=10 H=2 K=64 V=64");
  const fixture::Fixture read = fixture::Fixture::open(file.path);
  CHECK(read.name() == "corr_keys:T=10,rho=0.5,seed=3");
  CHECK_FALSE(read.description().empty());
  std::string all;
  for (const auto& [name, value] : read.provenance()) all += name + "=" + value + "\n";
  CHECK_THAT(all, ContainsSubstring("regime=corr_keys\n"));
  CHECK_THAT(all, ContainsSubstring("rho=0.5,beta=0.9997"));
  CHECK_THAT(all, ContainsSubstring("seed=3\n"));
  CHECK_THAT(all, ContainsSubstring("tool=kda-check "));
}

TEST_CASE("a file with the name of a regime is the file", "[session][regimes]") {
  CHECK(session::is_regime("control"));
  CHECK(session::is_regime("control:T=8"));
  CHECK_FALSE(session::is_regime("controls"));
  CHECK_FALSE(session::is_regime("control.h5"));
  const fs::path before = fs::current_path();
  const fs::path folder = fs::temp_directory_path() / ("kda-check-names-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  fs::current_path(folder);
  session::make({"control:T=3", "control", {}});
  CHECK_FALSE(session::is_regime("control"));
  CHECK(session::Source::open("control", {}).dimensions().T == 3);
  fs::current_path(before);
  fs::remove_all(folder);
}

TEST_CASE("a word that is neither a file nor a regime says so", "[session][regimes]") {
  CHECK_THROWS_WITH(session::Source::open("slow_alhpa:g=-1", {}),
                    ContainsSubstring("did you mean 'slow_alpha'?"));
  CHECK_THROWS_WITH(session::Source::open("nothing_like_it", {}),
                    ContainsSubstring("kda-check list regimes"));
  CHECK_THROWS_WITH(session::Source::open("missing.h5", {}), ContainsSubstring("missing.h5"));
}

TEST_CASE("a regime beyond the memory budget is refused before it is built", "[session][regimes]") {
  fixture::ReadLimits limits;
  limits.memory_budget = 1 << 20;
  CHECK_THROWS_WITH(session::Source::open("control:T=16000000,H=4096", limits),
                    ContainsSubstring("--memory-limit"));
  CHECK_NOTHROW(session::Source::open("control:T=1,K=8,V=8", limits));
}
