// Wrong gradients: each must fail the gate, in the gradients it gets wrong and in no other.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "hypotheses/naming/reference_backward.hpp"
#include "kda/regimes/regimes.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "selftest/mutants.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"

namespace backward_mutants_tests {

using namespace kda_check;
using numeric::DType;

namespace {

using Names = std::set<std::string>;

/// The gradients of each mutant, and of each variant that has any, that fail on a problem.
std::map<std::string, Names> failures_on(const std::string& target,
                                         const std::function<bool(const std::string&)>& is_wanted) {
  std::vector<kda::Variant> registry;
  for (const kda::Variant& variant : kda::variants())
    if (variant.run_backward != nullptr) registry.push_back(variant);
  for (const selftest::Subject& mutant : selftest::mutants(kda::Pass::backward))
    if (is_wanted(std::string(mutant.name))) registry.push_back(mutant.variant);
  plan::Request request = test::request_for({target});
  request.registry = registry;
  request.selection.against = plan::Names{"oracle"};
  std::map<std::string, Names> failures;
  for (const report::CaseResult& item : test::ran(request, test::on_threads(2)).cases) {
    // The forward pass of all of them is a healthy one.
    if (item.pass == "forward") CHECK(item.verdict == judge::Verdict::pass);
    if (item.pass != "backward") continue;
    Names& names = failures[item.variant];
    for (const report::TensorResult& tensor : item.tensors)
      if (tensor.verdict == judge::Verdict::fail) names.insert(tensor.name);
  }
  return failures;
}

}  // namespace

TEST_CASE("the chunk form written again has the true gradients", "[selftest][backward]") {
  for (const char* const target :
       {"bwd_chain:T=130,K=16,V=8", "bwd_dgate_cancel:K=16,V=8", "varlen:K=8,V=8,H=1,loss=1",
        "unbounded_softplus:T=70,A=1,raw=1,K=8,V=8,loss=1", "layout_asym:T=20,v_first=1,K=8,V=16,loss=1",
        "zero_keys:T=70,K=8,V=8,loss=1", "lb_real:B=2,T=40,C=16,raw=1,K=8,V=8,loss=1"}) {
    const kda::Problem problem = kda::parse_regime(std::string(target) + ",dtype=fp64").build();
    const kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64);
    const kda::GradientTensors got =
        hypotheses::BackwardReference(problem, options.chunk_size).gradients({}, DType::fp64);
    INFO(target);
    test::check_near(got, test::gradient_truths(problem, options.chunk_size), 1e-11);
  }
}

TEST_CASE("every wrong backward pass fails in the gradients it gets wrong, and no healthy one fails",
          "[selftest][backward]") {
  const std::map<std::string, Names> wrong = {
      {"naive", {}},
      {"recurrent", {}},
      {"chunk", {}},
      {"gradients_again", {}},
      {"norm_dropped", {"dq", "dk"}},
      {"norm_not_projected", {"dq", "dk"}},
      {"gate_of_next_head", {"dg", "dA_log", "ddt_bias"}},
      {"inclusive_mask", {"dbeta"}},  // what it adds to dk lies along k: the norm's derivative takes it out
      {"first_token_masked", {"dg", "dA_log", "ddt_bias"}},
      {"dAqk_lost", {"dq", "dk", "dg", "dA_log", "ddt_bias"}},
      {"not_transposed", {"dk", "dg", "dbeta", "dA_log", "ddt_bias"}},
      {"last_of_group", {"dq", "dk"}},
      {"bias_by_channel", {"ddt_bias"}},
      {"amplitude_not_raised", {"dA_log"}},
      {"base_two", {"dg", "dA_log", "ddt_bias"}},
      {"early_rounding", {"dg", "dA_log", "ddt_bias"}},
      {"sigmoid_lost", {"dg"}},
      {"state_gradient_lost", {"dk", "dv", "dg", "dbeta", "dinitial_state", "dA_log", "ddt_bias"}},
      {"last_row_of_tile", {"dg", "dA_log", "ddt_bias"}},
      {"erase_lost", {"dbeta"}},
      {"slope_lost", {"dg", "ddt_bias"}},
      {"amplitude_sign", {"dA_log"}},
      {"unscaled_query", {"dq"}},
      {"write_strength_lost", {"dv"}},
      {"chunks_apart", {"dk", "dv", "dg", "dbeta", "dinitial_state", "dA_log", "ddt_bias"}},
      {"gradient_late", {"dg", "dA_log", "ddt_bias"}},
      {"tail_decay_lost", {"dk", "dg", "dA_log", "ddt_bias"}},
      {"sigmoid_slope_lost", {"dbeta"}},
      {"tail_not_summed", {"dA_log", "ddt_bias"}},
      {"initial_gradient_early", {"dinitial_state"}},
      {"local_masked", {"dk", "dv", "dg", "dbeta", "dinitial_state", "dA_log", "ddt_bias"}},
      {"value_masked", {"dv"}},
      {"states_from_zero", {"dq", "dk", "dg", "dbeta", "dA_log", "ddt_bias"}},
      {"gradient_not_cumulated", {"dg", "dA_log", "ddt_bias"}},
      {"first_head_decay", {"dk", "dv", "dg", "dbeta", "dinitial_state", "dA_log", "ddt_bias"}},
      {"key_prediction_lost", {"dk"}},
      {"dq_state_lost", {"dq", "dg", "dA_log", "ddt_bias"}},
      {"masked_late", {"dq", "dk", "dg", "dbeta", "dA_log", "ddt_bias"}},
  };
  // Of the others a few each time.
  test::Sampled sample(8);
  INFO(sample.text());
  const std::map<std::string, Names> failures = failures_on(
      "bwd_chain", [&](const std::string& name) { return wrong.contains(name) || sample.next(); });
  for (const auto& [name, names] : failures) {
    INFO(name);
    if (!wrong.contains(name)) CHECK_FALSE(names.empty());
  }
  for (const auto& [name, names] : wrong) {
    INFO(name);
    REQUIRE(failures.contains(name));
    CHECK(failures.at(name) == names);
  }
}

}  // namespace backward_mutants_tests
