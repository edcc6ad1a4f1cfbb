// Whatever a server does, healthy variants answer each request as if it were alone (docs/serving.md).
#include "explain/invariants/serving.hpp"
#include "support/catch.hpp"
#include "support/pools.hpp"

namespace life_laws_tests {

using namespace kda_check;
using numeric::DType;

namespace {

std::vector<test::ProblemSpec> specs() {
  test::ProblemSpec packed = test::spec_with_options(kda::Gate::softplus, 7);
  packed.T = 40, packed.K = 12, packed.V = 10, packed.cu_seqlens = {0, 9, 9, 10, 26, 40};
  test::ProblemSpec by_column = test::three_rows(), scalar = test::three_rows(), gates = test::three_rows();
  by_column.strength = kda::Strength::value, scalar.scalar_decay = true, scalar.initial_state = true;
  gates.strength = kda::Strength::gates;
  return {packed, by_column, scalar, gates, test::three_rows()};
}

/// Of servers of both token forms, `each` for a problem, by seed: how many there are, and how many of them do
/// not give every request the bits that it is given alone.
struct Alarms {
  std::size_t servers = 0, false_ones = 0;
};

Alarms alarms(int each) {
  Alarms found;
  for (const test::ProblemSpec& spec : specs())
    for (const char* const name : {"naive", "recurrent"}) {
      const kda::Variant& variant = kda::variant_named(name);
      explain::Subject subject;
      subject.form = judge::Form::recurrence, subject.chunk_size = 16;
      subject.solve = [&](const kda::Problem& problem, kda::Pass, explain::Fill) {
        return kda::by_name(variant.run(problem, test::default_options(problem, name, DType::fp32)));
      };
      const kda::Problem requests = explain::as_requests(test::make_problem(spec), DType::fp32);
      const kda::Tensors expected = subject.solve(requests, kda::Pass::forward, explain::Fill::whatever);
      for (int i = 0; i < each; ++i) {
        const explain::Served got =
            explain::served(requests, expected, subject, explain::Service::whole(++found.servers));
        found.false_ones += test::differing_bits(got.o, expected.at("o")) > 0 ||
                            test::differing_bits(got.final_state, expected.at("final_state")) > 0 ||
                            got.changed_slots;
      }
    }
  return found;
}

}  // namespace

TEST_CASE("healthy token forms give a server the bits that they give each request alone, by any seed",
          "[invariants][pool]") {
  const Alarms found = alarms(10);
  CHECK(found.servers == 100);
  CHECK(found.false_ones == 0);
}

TEST_CASE("a server whose states are of another element type than what is expected is none of ours",
          "[invariants][pool]") {
  const kda::Problem requests = explain::as_requests(test::make_problem(test::three_rows()), DType::bf16);
  explain::Subject subject;
  subject.solve = [](const kda::Problem& problem, kda::Pass, explain::Fill) {
    return kda::by_name(test::run(problem, "recurrent", DType::fp32));
  };
  const kda::Tensors expected = subject.solve(requests, kda::Pass::forward, explain::Fill::whatever);
  CHECK_THROWS_WITH(explain::served(requests, expected, subject, {}), ContainsSubstring("another type"));
}

TEST_CASE("requests of a pool in 16 bits are not cut: that rounds their states once more",
          "[invariants][pool]") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const kda::Problem call = test::make_pool_problem(test::draft_spec(), test::draft_table(), 20, dtype);
    std::string tried;
    for (const explain::Invariant& law : explain::laws_of_life())
      if (law.inapplicable(call, kda::Pass::forward).empty()) tried += std::string(law.name) + ' ';
    CHECK(tried == (dtype == DType::fp32 ? "decode prefill drafts prefix slots padding arrival server "
                                         : "slots padding arrival "));
  }
}

TEST_CASE("of a thousand servers none is a false alarm", "[.thousand]") {
  const Alarms found = alarms(100);
  CHECK(found.servers == 1000);
  CHECK(found.false_ones == 0);
}

}  // namespace life_laws_tests
