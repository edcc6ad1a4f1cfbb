// Kernels that are wrong in their pool break the laws of the life of a state, and no other law.
#include "hypotheses/naming/pool_faults.hpp"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <set>

#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/pools.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace pool_faults_tests {

using namespace kda_check;
using hypotheses::PoolFault;
using judge::Verdict;
using test::TemporaryFixture;

namespace {

/// The laws that each breaks.
const std::map<std::string_view, std::string> laws_broken_by{
    {"pool_in_bf16", "arrival decode drafts padding prefill prefix server slots "},
    {"steps_in_bf16", "decode server "},
    {"steps_from_zero", "decode server "},
    {"prefill_from_zero", "prefill server "},
    {"pool_read_transposed", "decode drafts prefill prefix server "},
    {"pool_stored_transposed", "arrival decode drafts padding prefill prefix server slots "},
    {"drafts_transposed", "drafts prefix server "},
    {"one_accepted_more", "drafts server "},
    {"accepted_ignored", "drafts prefix server "},
    {"rejected_kept", "drafts server "},
    {"draft_in_first_slot", "drafts prefix server "},
    {"accepted_ignored_in_steps", "drafts server "},
    {"accepted_of_first_row", "drafts server "},
    {"rollback_late", "drafts prefix server "},
    {"last_of_draft_alone", "drafts server "},
    {"prefix_overwritten", "drafts prefix server "},
    {"rows_for_slots", "arrival drafts padding prefill prefix server slots "},
    {"offsets_wrap", "drafts prefix server slots "},
    {"padding_in_last_slot", "padding server "},
    {"padding_computed", "padding server "},
    {"draft_padding_in_last_slot", "server "},
    {"number_accepted_not_checked", "server "},
    {"empty_row_zeroed", "server "},
    {"padding_in_slot_0", "padding server "},
    {"rows_without_padding", "padding server "},
    {"slot_of_next_row", "arrival decode drafts padding prefill prefix server slots "},
    {"requests_swapped", "arrival decode drafts padding prefill prefix server slots "},
    {"next_slot_zeroed", "arrival decode drafts padding prefill prefix server slots "},
    {"last_row_not_stored", "arrival decode drafts padding prefill prefix server slots "},
    {"slot_0_for_padding", "arrival decode drafts padding prefill prefix "},
    {"stale_slot", "arrival server "},
    {"stale_start", "server slots "},
};

/// "decode server ": what is broken of the oracle and the laws.
std::string broken_by(const PoolFault& fault,
                      const kda::Problem& problem = test::make_problem(test::three_rows()),
                      plan::Names laws = {}) {
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run = [&fault](const kda::Problem& asked, const kda::RunOptions& options) {
    return hypotheses::with_pool_fault(fault, asked, options);
  };
  const TemporaryFixture file(problem, nullptr, "life");
  plan::Request request = test::request_for({file.path});
  request.registry = {&variant, 1};
  request.invariants = laws;
  std::set<std::string> names;
  for (const report::CaseResult& item : test::ran(request).cases)
    if (item.verdict != Verdict::pass && item.verdict != Verdict::skipped)
      names.insert(item.against.substr(item.against.find(':') + 1));
  std::string text;
  for (const std::string& name : names) text += name + ' ';
  return text;
}

}  // namespace

TEST_CASE("kernels that are wrong in their pool break the laws of the life of a state, and nothing else",
          "[invariants][pool]") {
  for (const PoolFault& fault : hypotheses::pool_faults()) {
    INFO(fault.what);
    if (!laws_broken_by.contains(fault.name))
      continue;  // of calls with two tables or pools, which no law makes
    CHECK(broken_by(fault) == laws_broken_by.at(fault.name));
  }
}

TEST_CASE("a step without drafts behind two accepted tokens is in drafts and server, of short requests too",
          "[invariants][pool]") {
  const auto fault =
      std::ranges::find(hypotheses::pool_faults(), std::string_view("accepted_ignored_in_steps"),
                        [](const PoolFault& one) { return std::string_view(one.name); });
  // No row of these calls is one, and all requests are drafts of few tokens.
  for (const std::size_t tokens : {3u, 4u}) {
    test::ProblemSpec spec = test::three_rows();
    spec.B = 1, spec.T = 4 * tokens, spec.cu_seqlens.clear();
    for (std::size_t n = 0; n <= 4; ++n) spec.cu_seqlens.push_back(static_cast<std::int64_t>(n * tokens));
    std::vector<std::int64_t> slots(4 * tokens);
    std::iota(slots.begin(), slots.end(), 0);
    CHECK(broken_by(*fault, test::make_pool_problem(spec, {slots, tokens, {1, 1, 1, 1}}, 20)) ==
          "drafts server ");
  }
}

TEST_CASE("kernels that are wrong in their rings break the laws of rings, and nothing else",
          "[invariants][pool]") {
  const auto call = [](const char* more, bool from_row_0) {
    const std::string text = "serve:ring=5,sequences=6,padding=0,T=6,K=8,V=8,H=1,dtype=fp32";
    const kda::Problem drawn = kda::parse_regime(text + more).build();
    kda::PoolCall other{kda::clone(drawn.pool->problem), drawn.pool->states.clone(), drawn.pool->table};
    other.ring = kda::clone(drawn.pool->ring);
    if (from_row_0) other.table.ring.base.assign(6, 0);
    return kda::ordinary_form(std::move(other));
  };
  const plan::Names laws{"wrap", "rollback", "flush"};
  // No ring wraps, none is folded, and nothing is taken back: the oracle sees nothing.
  const kda::Problem problem = call("", true);
  const std::map<std::string_view, std::string> broken{{"ring_does_not_wrap", "wrap "},
                                                       {"ring_from_row_0", "wrap "},
                                                       {"ring_folded_twice", "flush "},
                                                       {"ring_not_taken_back", "rollback "}};
  for (const PoolFault& fault : hypotheses::pool_faults()) {
    INFO(fault.what);
    if (broken.contains(fault.name)) CHECK(broken_by(fault, problem, laws) == broken.at(fault.name));
  }
  for (const char* const more : {"", ",flush=2", ",flush=2,folds_call=1", ",solved=1"})
    CHECK(broken_by({}, call(more, false), laws).empty());
}

TEST_CASE("kernels that are wrong in codes or scales fail beside the oracle, which right ones do not",
          "[pool]") {
  for (const char* const codes :
       {"codes=1", "codes=2,scales=1", "codes=3,drafts=3", "codes=1,draws=1", "codes=2,draws=2"}) {
    const kda::Problem problem =
        kda::parse_regime(fmt::format("serve:{},sequences=6,K=8,V=8,H=1,dtype=fp32", codes)).build();
    INFO(codes);
    CHECK(broken_by({}, problem).empty());
    for (const PoolFault& fault : hypotheses::pool_faults()) {
      INFO(fault.name);
      if (fault.quantiser || std::string_view(fault.name).starts_with("scale_of_"))
        CHECK(broken_by(fault, problem) == "oracle ");
    }
  }
}

TEST_CASE("a kernel that stores in the pool itself, and rightly, breaks no law", "[invariants][pool]") {
  CHECK(broken_by({}).empty());
}

}  // namespace pool_faults_tests
