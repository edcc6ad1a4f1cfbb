// The parity matrix: every way to the same answer gives the same bits, and each way that does not is named by
// its row and its column.
#include "explain/invariants/parity.hpp"

#include <algorithm>
#include <utility>

#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace parity_tests {

using namespace kda_check;
using judge::Verdict;
using test::TemporaryFixture;

namespace {

test::ProblemSpec two_rows() {
  test::ProblemSpec spec;
  spec.B = 2, spec.T = 40, spec.H = 2, spec.HV = 2, spec.K = 20, spec.V = 12, spec.chunk_size = 16;
  spec.qk_l2norm = true, spec.gate = kda::Gate::softplus, spec.beta_sigmoid = true;
  spec.initial_state = false;
  return spec;
}

report::Document matrix_of(const kda::Problem& problem, const kda::Variant& variant,
                           plan::Names arithmetic = {}) {
  const TemporaryFixture file(problem);
  plan::Request request = test::request_for({file.path});
  request.selection.dtypes = plan::Names{"fixture"};
  request.registry = {&variant, 1};
  request.invariants = plan::Names{"parity"};
  request.arithmetic = std::move(arithmetic);
  return test::ran(request);
}

const report::Table& table_of(const report::Document& document) {
  for (const report::Section& section : document.sections)
    if (section.key == "parity") return section.entries.at(0).tables.at(0);
  FAIL("no matrix");
  throw 0;
}

std::string cell(const report::Table& table, std::string_view row, std::string_view column) {
  for (const auto& values : table.rows)
    if (std::get<std::string>(values[0]) == row)
      for (std::size_t i = 1; i < table.columns.size(); ++i)
        if (table.columns[i].title() == column) return std::get<std::string>(values[i]);
  return "no cell";
}

/// The ways that differ from `prefill`.
std::vector<std::string> differing(const report::Table& table) {
  std::vector<std::string> ways;
  for (const auto& values : table.rows)
    if (const auto& way = std::get<std::string>(values[0]);
        cell(table, way, "prefill") != "bits" && cell(table, way, "prefill") != "-")
      ways.push_back(way);
  return ways;
}

Verdict verdict_of(const report::Document& document) {
  for (const report::CaseResult& item : document.cases)
    if (item.against == "invariant:parity") return item.verdict;
  return Verdict::skipped;
}

bool is_prefill(const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return d.B == 2 && d.T == 40 && !problem.initial_state && !problem.options.state_v_first;
}

/// What each way looks like to a variant.
struct Sight {
  std::string_view way;
  bool (*is)(const kda::Problem&);
};
constexpr Sight sights[] = {
    {"chunked", [](const kda::Problem& p) { return p.dimensions().T == 8; }},
    {"decode", [](const kda::Problem& p) { return p.dimensions().T == 1; }},
    {"packed", [](const kda::Problem& p) { return p.packed(); }},
    {"alone", [](const kda::Problem& p) { return p.dimensions().B == 1 && p.dimensions().T == 40; }},
    {"zero state",
     [](const kda::Problem& p) { return p.dimensions().T == 40 && p.initial_state.has_value(); }},
    {"layout", [](const kda::Problem& p) { return p.options.state_v_first; }},
};

/// The last bit of an element of o, or of final_state, is another.
template <std::size_t sight, bool state>
kda::Answer wrong_there(const kda::Problem& problem, const kda::RunOptions& options) {
  kda::Answer answer = kda::variant_named("recurrent").run(problem, options);
  tensor::Tensor& tensor = state ? answer.final_state : answer.o;
  if (sights[sight].is(problem)) tensor.at(tensor.size() / 4)[0] ^= std::byte{1};
  return answer;
}

using Run = kda::Answer (*)(const kda::Problem&, const kda::RunOptions&);
template <bool state, std::size_t... sight>
std::vector<Run> all_wrong(std::index_sequence<sight...>) {
  return {wrong_there<sight, state>...};
}

kda::Answer wrong_in_prefill(const kda::Problem& problem, const kda::RunOptions& options) {
  kda::Answer answer = kda::variant_named("recurrent").run(problem, options);
  const std::size_t row = answer.o.size() / 80;
  if (is_prefill(problem)) answer.o.at(47 * row)[0] ^= std::byte{1};  // token 7 of the second sequence
  return answer;
}

}  // namespace

TEST_CASE("every two ways of the token forms give the same bits", "[parity][laws]") {
  for (const char* const name : {"naive", "recurrent"}) {
    INFO(name);
    const report::Document document = matrix_of(test::make_problem(two_rows()), kda::variant_named(name));
    const report::Table& table = table_of(document);
    CHECK(table.rows.size() == explain::parity_ways().size() - 1);
    CHECK(differing(table).empty());
    CHECK(cell(table, "layout", "zero state") == "bits");
    CHECK(cell(table, "chunked", "packed").empty());
    CHECK(verdict_of(document) == Verdict::pass);
  }
}

TEST_CASE("a state that is stored to nearest is handed over as it is, of others more is needed",
          "[parity][laws][stored]") {
  const kda::Problem problem = test::make_problem(two_rows());
  const kda::Variant& variant = kda::variant_named("recurrent");
  for (const char* const words : {"stored=bf16", "stored=e4m3+head", "stored=int8+row-pow2"}) {
    INFO(words);
    CHECK(differing(table_of(matrix_of(problem, variant, {words}))).empty());
  }
  for (const char* const words : {"stored=bf16+stochastic:1", "stored=bf16+feedback"}) {
    INFO(words);
    const report::Document document = matrix_of(problem, variant, {words});
    CHECK(differing(table_of(document)).empty());
    CHECK(cell(table_of(document), "chunked", "prefill") == "-");
    CHECK(cell(table_of(document), "decode", "prefill") == "-");
    CHECK(verdict_of(document) == Verdict::pass);
  }
}

TEST_CASE(
    "sums in the order of the state's layout are other sums without a state, and right within the limits",
    "[parity][laws]") {
  test::ProblemSpec spec = two_rows();
  spec.K = 64;
  for (const bool has_state : {false, true}) {
    spec.initial_state = has_state;
    const report::Document document =
        matrix_of(test::make_problem(spec), kda::variant_named("recurrent"), {"reduction=triton"});
    const std::vector<std::string> ways = differing(table_of(document));
    CHECK(std::ranges::count(ways, "layout") == 1);
    CHECK(std::ranges::count(ways, "packed") + std::ranges::count(ways, "alone") == 0);
    CHECK(std::ranges::count(ways, "decode") == (has_state ? 0 : 1));
    CHECK(verdict_of(document) == Verdict::pass);
  }
}

TEST_CASE("a way that is the same call as prefill is none", "[parity][laws]") {
  test::ProblemSpec spec = two_rows();
  spec.B = 1, spec.T = 16;
  const report::Document document = matrix_of(test::make_problem(spec), kda::variant_named("recurrent"));
  CHECK(cell(table_of(document), "chunked", "prefill") == "-");
  CHECK(cell(table_of(document), "alone", "prefill") == "-");
  CHECK(cell(table_of(document), "decode", "prefill") == "bits");
  spec.T = 17;
  CHECK(cell(table_of(matrix_of(test::make_problem(spec), kda::variant_named("recurrent"))), "chunked",
             "prefill") == "bits");
}

TEST_CASE("the final state of a sequence without tokens is compared, too", "[parity][laws]") {
  test::ProblemSpec spec = test::packed_spec();
  spec.initial_state = true;
  kda::Problem problem = test::make_problem(spec);
  problem.cu_seqlens[1] = 0;  // the first has none
  kda::Variant variant = kda::variant_named("recurrent");
  static std::size_t sequences;
  sequences = problem.cu_seqlens.size() - 1;
  variant.run = [](const kda::Problem& p, const kda::RunOptions& options) {
    kda::Answer answer = kda::variant_named("recurrent").run(p, options);
    const std::size_t size = answer.final_state.size() / p.dimensions().N;
    for (const kda::Sequence& sequence : p.sequences())
      if (sequence.length() == 0 && p.dimensions().N != sequences)
        answer.final_state.at(sequence.index * size)[0] ^= std::byte{1};
    return answer;
  };
  const report::Document document = matrix_of(problem, variant);
  CHECK(differing(table_of(document)) == std::vector<std::string>{"packed"});
}

TEST_CASE("neighbours in a packed call have other tokens and another state", "[parity][laws]") {
  test::ProblemSpec spec = two_rows();
  spec.initial_state = true;
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run = [](const kda::Problem& p, const kda::RunOptions& options) {
    // Every sequence from the state of the first.
    kda::Problem wrong = kda::clone(p);
    const std::size_t size = p.initial_state->size() / p.dimensions().N;
    if (p.packed())
      for (std::size_t i = size; i < p.initial_state->size(); ++i)
        wrong.initial_state->set(i, p.initial_state->value(i % size));
    return kda::variant_named("recurrent").run(wrong, options);
  };
  spec.B = 1;
  CHECK(differing(table_of(matrix_of(test::make_problem(spec), variant))) ==
        std::vector<std::string>{"packed"});
}

TEST_CASE("of the chunk form decode alone has other bits, and is right within the limits", "[parity][laws]") {
  const report::Document document = matrix_of(test::make_problem(two_rows()), kda::variant_named("chunk"));
  CHECK(differing(table_of(document)) == std::vector<std::string>{"decode"});
  CHECK(verdict_of(document) == Verdict::pass);
}

TEST_CASE("a way that differs is named, and no other", "[parity][laws]") {
  constexpr std::size_t count = std::size(sights);
  for (const bool state : {false, true}) {
    const std::vector<Run> runs = state ? all_wrong<true>(std::make_index_sequence<count>())
                                        : all_wrong<false>(std::make_index_sequence<count>());
    for (std::size_t sight = 0; sight < count; ++sight) {
      INFO(sights[sight].way << (state ? " state" : " o"));
      kda::Variant variant = kda::variant_named("recurrent");
      variant.run = runs[sight];
      const report::Document document = matrix_of(test::make_problem(two_rows()), variant);
      const report::Table& table = table_of(document);
      CHECK(differing(table) == std::vector<std::string>{std::string(sights[sight].way)});
      CHECK(verdict_of(document) == Verdict::fail);
      for (std::size_t other = 0; other < sight; ++other)
        CHECK(cell(table, sights[sight].way, sights[other].way) != "bits");
    }
  }
}

TEST_CASE("where prefill differs all others agree, and the first token that differs is told",
          "[parity][laws]") {
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run = wrong_in_prefill;
  const report::Document document = matrix_of(test::make_problem(two_rows()), variant);
  const report::Table& table = table_of(document);
  CHECK(differing(table).size() == std::size(sights));
  CHECK(cell(table, "packed", "prefill").starts_with("o t=7, "));
  CHECK(cell(table, "packed", "decode") == "bits");
}

TEST_CASE("the matrix knows packed sequences of any length, and states that are no zeros", "[parity][laws]") {
  test::ProblemSpec spec = test::packed_spec();
  spec.initial_state = true;
  const report::Document document = matrix_of(test::make_problem(spec), kda::variant_named("recurrent"));
  CHECK(differing(table_of(document)).empty());
  CHECK(cell(table_of(document), "zero state", "prefill") == "-");
  CHECK(verdict_of(document) == Verdict::pass);
  // Not among the laws that are tried when none is named.
  const TemporaryFixture file(test::make_problem(spec));
  plan::Request request = test::request_for({file.path});
  request.invariants.emplace();
  const report::Document all = test::ran(request);
  CHECK(verdict_of(all) == Verdict::skipped);
}

}  // namespace parity_tests
