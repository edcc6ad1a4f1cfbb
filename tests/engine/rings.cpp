// Calls behind rings of writes through a run: what they leave in rings and pool, row by row.
#include <fmt/format.h>

#include "hypotheses/naming/pool_faults.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/judged_call.hpp"
#include "support/pools.hpp"

namespace rings_tests {

using namespace kda_check;
using judge::Verdict;

namespace {

/// A call behind rings of twelve rows, of which some wrap.
kda::Problem call(const std::string& more = "") {
  return kda::parse_regime("serve:ring=12,sequences=4,padding=0,H=1,HV=2,K=8,V=6,slots=6,dtype=fp32" + more)
      .build();
}

}  // namespace

TEST_CASE("a call behind rings is the same after it was written and read, and passes", "[pool]") {
  for (const char* const more : {"", ",flush=5", ",flush=5,folds_call=1", ",solved=1,flush=4"}) {
    const kda::Problem problem = call(more);
    const kda::Problem again = test::check_kept(problem);
    CHECK(test::differing_bits(again.v, problem.v) == 0);
    const report::CaseResult item = test::judged_call(problem, test::pool_answer(problem));
    INFO(item.reason);
    CHECK(item.verdict == Verdict::pass);
    CHECK(item.tensors.size() == 3 + problem.pool->ring.size() - problem.pool->ring.contains("ring_u"));
  }
}

TEST_CASE("a row of a ring that is wrong after a call is named with its token", "[pool]") {
  const kda::Problem problem = call();
  const kda::PoolPiece& piece = problem.pool->pieces.at(2);
  REQUIRE((piece.held.size() > 0 && piece.written.size() > 0));
  const auto said = [&](std::size_t row, bool is_old) {
    kda::Tensors answer = test::pool_answer(problem);
    for (std::size_t i = row * 12; i < row * 12 + 12; ++i)
      answer.at("ring_v").set(i, is_old ? problem.pool->ring.at("ring_v").value(i) : 9);
    const report::CaseResult item = test::judged_call(problem, answer);
    return item.verdict == Verdict::fail ? item.reason : std::string("pass");
  };
  const std::string where = fmt::format("slot {}'s ring row {}", piece.from, piece.written[0] % 12);
  CHECK_THAT(said(piece.written[0], true),
             ContainsSubstring(where + ", for token 0 of sequence 2, was not written"));
  CHECK_THAT(said(piece.written[0], false),
             ContainsSubstring(where + ", for token 0 of sequence 2, is not a copy of the call's"));
  CHECK_THAT(said(piece.held[0], false), ContainsSubstring("which holds a token of sequence 2, was written"));
  std::vector<bool> is_used(6);
  for (const kda::PoolPiece& one : problem.pool->pieces) is_used[one.from] = true;
  const std::size_t nobody = static_cast<std::size_t>(std::ranges::find(is_used, false) - is_used.begin());
  CHECK_THAT(said(nobody * 12 + 7, false),
             ContainsSubstring(fmt::format("slot {}'s ring row 7, which is nobody's, was written", nobody)));
  for (const kda::PoolPiece& one : problem.pool->pieces)  // a row that is free is looked at by nobody
    for (std::size_t row = one.from * 12; row < one.from * 12 + 12; ++row)
      if (std::ranges::find(one.held, row) == one.held.end() &&
          std::ranges::find(one.written, row) == one.written.end())
        CHECK(said(row, false) == "pass");
}

TEST_CASE("a kernel that replays other rows than a ring holds fails and is named", "[pool]") {
  const kda::Problem problem = call(",flush=2");
  kda::RunOptions options;
  options.dtype = problem.dtype();
  for (const hypotheses::PoolFault& fault : hypotheses::pool_faults()) {
    if (!std::string_view(fault.name).starts_with("ring_") || !fault.is_candidate) continue;
    const kda::Tensors wrong = kda::by_name(hypotheses::with_pool_fault(fault, problem, options));
    const report::CaseResult item = test::judged_call(problem, kda::of_call(*problem.pool, wrong));
    CHECK(item.verdict == Verdict::fail);
    CHECK_THAT(item.reason, ContainsSubstring(fault.what));
  }
}

}  // namespace rings_tests
