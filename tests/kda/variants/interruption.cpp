// Where work stops when a signal asks for the end: at a token of a head, not behind it.
#include "base/interruption.hpp"

#include <csignal>

#include "kda/head/head_io.hpp"
#include "kda/regimes/regimes.hpp"
#include "kda/truth/oracle_inputs.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace interruption_tests {

using namespace kda_check;

namespace {

/// As long as it lives a signal asks for the end.
class Asked {
 public:
  Asked() { interrupt(SIGTERM); }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked() { forget_interruption(); }
};

}  // namespace

TEMPLATE_TEST_CASE("whatever goes along the tokens of a head stops at the next block of them",
                   "[interruption]", float, double) {
  const kda::Problem problem = test::make_problem({});
  const kda::Sequence all = problem.sequences().front();
  const kda::Dimensions& d = problem.dimensions();
  const kda::HeadReader<TestType> reader(problem);
  std::vector<TestType> rows(d.T * std::max(d.K, d.V));
  const auto read = [&](std::size_t begin) {
    reader.query({all, 0, begin, 4}, kda::NormForm::division, kda::Rounding::none, rows.data(), d.K);
    reader.value({all, 0, begin, 4}, rows.data(), d.V);
    reader.log_decay({all, 0, begin, 4}, rows.data(), d.K);
  };
  CHECK_NOTHROW(read(0));
  const Asked asked;
  CHECK_THROWS_AS(read(4), Interrupted);
}

TEST_CASE("the oracle stops at the next block of tokens, forwards and backwards", "[interruption]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Dimensions& d = problem.dimensions();
  const kda::OracleInputs inputs(problem);
  kda::TokenPairs rows(d.T, d.K, d.V, d.strength);
  const kda::Sequence all = problem.sequences().front();
  CHECK_NOTHROW(inputs.tokens(all.block(0, 4), 0, rows, d.V));
  const Asked asked;
  CHECK_THROWS_AS(inputs.tokens(all.block(4, 4), 0, rows, d.V), Interrupted);
}

TEST_CASE("a regime is not drawn to its end", "[interruption]") {
  const kda::RegimeRequest request = kda::parse_regime("control:T=8,K=4,V=4");
  CHECK_NOTHROW(request.build());
  const Asked asked;
  CHECK_THROWS_AS(request.build(), Interrupted);
}

}  // namespace interruption_tests
