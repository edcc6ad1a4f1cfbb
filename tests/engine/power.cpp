// What the gate would see: the least fault of each family, and that the gate itself sees just that.
#include "engine/power/power.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "engine/computation.hpp"
#include "hypotheses/naming/faulty_output.hpp"
#include "kda/pool/pool.hpp"
#include "plan/power_classes.hpp"
#include "plan/reproduction.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_fixture.hpp"
#include "support/temporary_folder.hpp"
#include "tensor/rearranged.hpp"

namespace power_tests {

using namespace kda_check;
using engine::Fault;
using engine::HealthyKernel;
using judge::Verdict;
using numeric::DType;
using plan::Names;
using test::items_of;
using test::ran;
using test::request_for;

namespace {

constexpr const char* classes[] = {"bf16", "fp16", "tf32", "fp32"};

/// Grouped heads and two sequences.
kda::Problem problem_in(DType dtype, std::size_t K = 32, std::size_t V = 32) {
  test::ProblemSpec spec;
  spec.T = 200, spec.H = 2, spec.HV = 4, spec.K = K, spec.V = V;
  spec.cu_seqlens = {0, 70, 200};
  const kda::Problem problem = test::make_problem(spec, 3);
  return dtype == DType::fp32 ? kda::clone(problem) : kda::with_inputs_rounded_to(problem, dtype);
}

HealthyKernel healthy_kernel(const kda::Problem& problem, const char* of_class) {
  return engine::healthy_kernel(problem, kda::variant_named("chunk"),
                                plan::healthy_options(of_class, problem));
}

/// What is recorded in a file that says how it was computed, judged as `run` does.
report::TensorResult judged(const kda::Problem& problem, const HealthyKernel& kernel, const tensor::Tensor& o,
                            bool by_twins) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "mine.h5";
  fixture::WriteRequest request;
  request.name = "mine", request.problem = &problem;
  request.expected.push_back(
      {"chunk@cpu",
       plan::implementation_text(*kernel.variant, kernel.options, kda::Outline(problem)),
       "",
       kernel.compute(),
       {&o},
       {}});
  fixture::write_fixture(path, request);
  plan::Request words = request_for({path}, plan::Names{});
  words.selection.against = Names{"oracle"};
  words.test = by_twins;
  const report::Document document = ran(words);
  REQUIRE(document.cases.size() == 1);
  return test::tensor_of(document.cases[0], "o");
}

/// A problem, what is seen of faults in its o, and answers with them.
struct Bench {
  kda::Problem problem;
  HealthyKernel kernel;
  engine::PowerAnswers answers;
  std::vector<Fault> faults;
  engine::Power power;

  Bench(DType dtype, const char* of_class)
      : problem(problem_in(dtype)),
        kernel(healthy_kernel(problem, of_class)),
        answers(problem, "o", kernel, 1U << 30),
        faults(answers.faults()),
        power(engine::power_of(problem, answers, faults, kda::gate_statistics(problem, 64, 1), 1U << 30)) {}

  std::size_t first(std::string_view key) const {
    return static_cast<std::size_t>(
        std::ranges::find_if(faults, [&](const Fault& fault) { return fault.row->key == key; }) -
        faults.begin());
  }
};

}  // namespace

TEST_CASE("a fault at twice its floor is found where it is, at half of it not", "[engine][power]") {
  const Bench bench(DType::bf16, "bf16");
  REQUIRE(bench.power.healthy);
  CHECK(*bench.power.healthy < 1);
  REQUIRE(bench.faults.size() == bench.power.faults.size());
  const test::Sampled sample(9);
  INFO(sample.text());
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < bench.faults.size(); ++i) {
    const Fault& fault = bench.faults[i];
    const engine::PlacePower& power = bench.power.faults[i];
    // One of each is enough; behind a scale nothing is left to know the computation by.
    if (fault.row->known != nullptr || fault.row->key == "scale" || !seen.insert(fault.row->key).second)
      continue;
    if (!sample.has(seen.size())) continue;
    INFO(fault.row->key << ", " << fault.place);
    REQUIRE(power.by_twins);
    const report::TensorResult twice =
        judged(bench.problem, bench.kernel, bench.answers.tensor({&fault, 2 * *power.by_twins}), true);
    CHECK(twice.verdict != Verdict::pass);
    if (fault.direction.empty()) CHECK(twice.twins->place == power.named);
    CHECK(power.is_named);
    const report::TensorResult half =
        judged(bench.problem, bench.kernel, bench.answers.tensor({&fault, *power.by_twins / 2}), true);
    CHECK(half.verdict == Verdict::pass);
    CHECK(half.twins->ratio < judge::verdict_constants.beyond_its_computation);
  }
  CHECK(seen.size() == 9);  // all in cells but that
}

TEST_CASE("a floor is within five percent of the least share that is beyond the twins", "[engine][power]") {
  test::Sampled sample(2);
  INFO(sample.text());
  for (const char* const of_class : {"tf32", "fp32"}) {
    if (!sample.next()) continue;
    const Bench bench(DType::fp32, of_class);
    const report::TensorResult healthy =
        judged(bench.problem, bench.kernel, bench.answers.tensor({&bench.faults[0], 0}), true);
    REQUIRE(healthy.twins);
    for (const char* const key : {"chunk", "column", "state_lost", "gate_mean"}) {
      const Fault& fault = bench.faults[bench.first(key)];
      const engine::PlacePower* const place = &bench.power.faults[bench.first(key)];
      INFO(of_class << ' ' << key << ' ' << fault.place);
      REQUIRE(place->by_twins);
      judge::TruthValues truth(bench.answers.healthy().size(), true);
      const test::WholeOracle exact = test::whole_oracle(bench.problem);
      for (std::size_t i = 0; i < exact.o.size(); ++i) truth.set(i, std::array{exact.o[i].hi});
      const auto judgements =
          bench.answers.judged(truth, {{&fault, *place->by_twins * 0.95}, {&fault, *place->by_twins * 1.05}});
      CHECK(judgements.at(0).ratio <= 1);
      CHECK(judgements.at(1).ratio > 1);
    }
  }
}

TEST_CASE("what limits need is what makes a verdict fail by them", "[engine][power]") {
  const Bench bench(DType::bf16, "bf16");
  test::Sampled sample(3);
  INFO(sample.text());
  for (const char* const key : {"scale", "head", "chunk", "last_rows", "state_lost", "gate_mean"}) {
    if (!sample.next()) continue;
    const engine::PlacePower& power = bench.power.faults[bench.first(key)];
    INFO(key << ' ' << power.place);
    REQUIRE(power.by_limits);
    for (const double factor : {0.9, 1.1}) {
      const report::TensorResult result =
          judged(bench.problem, bench.kernel,
                 bench.answers.tensor({&bench.faults[bench.first(key)], factor * *power.by_limits}), false);
      CHECK((result.verdict == Verdict::fail) == (factor > 1));
    }
  }
}

TEST_CASE("the healthy kernel of a class is the first of its twins, and rounds what it computes once",
          "[engine][power]") {
  for (const char* const of_class : classes) {
    INFO(of_class);
    const kda::Problem problem = problem_in(plan::power_dtype(of_class));
    const HealthyKernel kernel = healthy_kernel(problem, of_class);
    REQUIRE(kernel.twins.size() >= judge::fewest_twins + kernel.stable);
    CHECK(kernel.twins.front().options.arithmetic == kernel.options.arithmetic);
    const kda::Answer answer = test::run(problem, "chunk", kernel.options);
    const kda::Tensors wide = hypotheses::unrounded(problem, *kernel.variant, kernel.options);
    CHECK(wide.at("o").dtype() == DType::fp32);
    CHECK(test::differing_bits(wide.at("o").converted_to(kernel.options.dtype), answer.o) == 0);
    CHECK(test::differing_bits(wide.at("final_state"), answer.final_state) == 0);
  }
}

TEST_CASE("a fault of the carried state is what a run from that state shows", "[engine][power]") {
  test::ProblemSpec spec;
  spec.T = 50, spec.K = 8, spec.V = 16;
  spec.gate = kda::Gate::softplus, spec.qk_l2norm = true, spec.beta_sigmoid = true;
  const kda::Problem problem = test::make_problem(spec);
  const tensor::Tensor o = test::run(problem, "recurrent", DType::fp64).o;
  const judge::RowLayout layout = judge::row_layout("o", o.shape(), problem, 64);
  const std::vector<Fault> faults = engine::faults_on({problem, "o", layout, o, DType::fp32, 1}, 1);
  const auto fault =
      std::ranges::find_if(faults, [](const Fault& one) { return one.row->key == "state_lost"; });
  REQUIRE(fault != faults.end());
  const auto first = static_cast<std::size_t>(std::ranges::find(fault->rows, true) - fault->rows.begin());
  REQUIRE(first > 0);
  const auto part = [&](std::size_t begin, std::size_t end) {
    std::vector<std::size_t> tokens;
    for (std::size_t t = begin; t < end; ++t) tokens.push_back(t);
    return kda::with_inputs(problem, [&](const kda::InputSlot& slot, const tensor::Tensor& tensor) {
      const bool has_tokens = kda::find_spec(slot.name)->axes[1] == kda::Axis::token;
      return has_tokens ? tensor::picked(tensor, 1, tokens) : tensor.clone();
    });
  };
  kda::Problem rest = part(first, spec.T);
  rest.initial_state = test::run(part(0, first), "recurrent", DType::fp64).final_state.clone();
  const tensor::Tensor before = test::run(rest, "recurrent", DType::fp64).o;
  for (std::size_t i = 0; i < rest.initial_state->size(); ++i)
    rest.initial_state->set(i, 0.5 * rest.initial_state->value(i));
  const tensor::Tensor after = test::run(rest, "recurrent", DType::fp64).o;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double shown = (after.value(i) - before.value(i)) / 0.5;
    CHECK(static_cast<double>(fault->direction[first * 16 + i]) == Approx(shown).epsilon(1e-5).margin(1e-9));
  }
}

TEST_CASE("power tells every fault, of o and of the final state", "[engine][power]") {
  plan::Request request = request_for({"lb_real:T=130,H=2,K=32,V=32,C=64"}, plan::Task::power);
  request.selection.tensors = Names{"o", "final_state"};
  request.selection.dtypes = Names{"bf16"};
  request.classes = {"bf16"};
  const report::Document document = ran(request);
  const std::vector<test::Item> items = items_of(document, "power");
  REQUIRE(items.size() == 2);
  CHECK(report::exit_code(document) == 0);
  for (const test::Item& item : items) {
    INFO(item.words("tensor"));
    CHECK(item.words("class") == "bf16");
    CHECK(item.figure("healthy") < 1);
    CHECK(item.entry().verdict == Verdict::pass);
    for (const test::Row& row : item.rows("floors")) {
      INFO(row.words("fault"));
      CHECK(row.figure("by_twins") > 0);
      const bool is_everywhere = row.words("fault") == "scale" || row.words("fault") == "last_rows";
      CHECK(row.count("places") <= (is_everywhere ? 1 : 3));
    }
    CHECK(item.rows("known").size() > 40);
    CHECK_THAT(item.words("known_text"), ContainsSubstring(" known faults are seen in full"));
  }
  // Twins see what limits do not.
  const test::Row scale = items[0].rows("floors")[0];
  CHECK(scale.words("fault") == "scale");
  CHECK(scale.figure("by_twins") < scale.figure("by_limits") / 3);
}

TEST_CASE("power does not depend on the number of threads", "[engine][power]") {
  plan::Request request = request_for({test::case_fixtures() + "/fla_bf16_gva.h5"}, plan::Task::power);
  const auto json = [&](int threads) {
    return report::write_json(ran(test::planned(request), test::on_threads(threads)), {});
  };
  CHECK(json(1) == json(2));
}

TEST_CASE("where nothing is known of twins, power says so and is no pass", "[engine][power]") {
  // Values beyond fp16.
  plan::Request request = request_for({"control:T=64,H=1,K=16,V=16"}, plan::Task::power);
  const test::TemporaryFolder folder;
  const std::string path = folder / "large.h5";
  kda::Problem problem = problem_in(DType::fp16, 16, 16);
  for (std::size_t i = 0; i < problem.v.size(); ++i) problem.v.set(i, 60000);
  fixture::WriteRequest write;
  write.name = "large", write.problem = &problem;
  fixture::write_fixture(path, write);
  request.targets = {path};
  const report::Document document = ran(request);
  const std::vector<test::Item> items = items_of(document, "power");
  REQUIRE(items.size() == 1);
  CHECK(items[0].entry().verdict == Verdict::inconclusive);
  CHECK_THAT(items[0].entry().reason, ContainsSubstring("not finite"));
  CHECK(report::exit_code(document) == 1);

  request.targets = {"control:T=20,H=1,dtype=fp64"};
  const report::Document wide = ran(request);
  REQUIRE(wide.failures.size() == 1);
  CHECK_THAT(wide.failures[0].message, ContainsSubstring("no twins"));
  CHECK(report::exit_code(wide) == 3);
}

}  // namespace power_tests
