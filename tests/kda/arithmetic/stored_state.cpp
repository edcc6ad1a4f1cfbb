// What the token forms store a state as between tokens: the formats by their definition, the roundings by
// what they promise, and a state stored element by element once more.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.hpp"
#include "kda/arithmetic/stored_words.hpp"
#include "numeric/random.hpp"
#include "numeric/rounding.hpp"
#include "numeric/stored_formats.hpp"
#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"

namespace stored_state_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;
using numeric::StoredFormat;

namespace {

const StoredFormat& format_named(std::string_view name) {
  return *std::ranges::find(numeric::stored_formats, name, &StoredFormat::name);
}

/// The number that OCP's table gives the low seven bits of an e4m3 byte; 0x7f is NaN.
double e4m3_number(int bits) {
  const int exponent = bits >> 3, fraction = bits & 7;
  return exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
}

/// Every number of e4m3 that is not negative, in order.
std::vector<double> e4m3_numbers() {
  std::vector<double> numbers;
  for (int bits = 0; bits < 0x7f; ++bits) numbers.push_back(e4m3_number(bits));
  return numbers;
}

/// The nearest of them, of two the one whose last bit is 0; beyond all of them the largest.
double nearest_of(const std::vector<double>& numbers, double x) {
  const auto above = std::ranges::lower_bound(numbers, x);
  if (above == numbers.end()) return numbers.back();
  if (*above == x) return x;
  const double up = *above, down = *(above - 1);
  if (up - x != x - down) return up - x < x - down ? up : down;
  return (above - numbers.begin()) % 2 == 0 ? up : down;
}

double nearest(const StoredFormat& format, double x) { return numeric::on_grid<false>(format, x, 0); }

/// A state of K rows and V columns in strips of 16, and what is stored of it.
struct Stored {
  static constexpr std::size_t K = 5, V = 21, lanes = 16, columns = 32;
  std::vector<float> state, residual, decay, scales;
  StoredState form;

  Stored(const StoredState& how, std::uint64_t seed)
      : state(K * columns), residual(K * columns), decay(K), scales(columns), form(how) {
    test::Random random(seed);
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t v = 0; v < V; ++v)
        state[at(k, v)] = static_cast<float>(random.normal() * std::exp2(random.uniform(-9, 3)));
    for (float& x : decay) x = static_cast<float>(random.uniform(0.5, 1));
  }
  static std::size_t at(std::size_t k, std::size_t v) { return (v / lanes * K + k) * lanes + v % lanes; }
  void store(const KernelTable& table, std::uint64_t token = 0, std::uint64_t stream = 3) {
    table.store_state(
        {K, V, lanes, form, state.data(), residual.data(), decay.data(), stream, token, scales.data()});
  }
};

float scale_of(const Stored& before, StateScale per, bool power_of_two, double largest, std::size_t k,
               std::size_t v) {
  float most = 0;
  for (std::size_t i = 0; i < Stored::K; ++i)
    for (std::size_t j = 0; j < Stored::V; ++j)
      if (per == StateScale::head || (per == StateScale::row ? i == k : j == v))
        most = std::max(most, std::fabs(before.state[Stored::at(i, j)]));
  const float scale = most / static_cast<float>(largest);
  return power_of_two ? std::exp2(std::ceil(std::log2(scale))) : scale;
}

std::vector<std::string> every_word() {
  std::vector<std::string> words;
  for (const char* const format : {"bf16", "fp16"})
    for (const char* const rounding : {"", "+stochastic:7", "+feedback"})
      words.push_back(fmt::format("{}{}", format, rounding));
  for (const char* const format : {"e4m3", "int8"})
    for (const char* const scale :
         {"unscaled", "row", "column", "head", "row-pow2", "column-pow2", "head-pow2"})
      for (const char* const rounding : {"", "+stochastic:7", "+feedback"})
        words.push_back(fmt::format("{}+{}{}", format, scale, rounding));
  return words;
}

Answer decoded(const Problem& problem, const std::string& variant, const std::string& word, int threads = 1) {
  RunOptions options = test::default_options(problem, variant, DType::fp32);
  options.threads = threads;
  set_axis(options.arithmetic, "stored=" + word);
  return test::run(problem, variant, options);
}

}  // namespace

TEST_CASE("e4m3 has the numbers of its definition, and every fp32 number goes to the nearest of them",
          "[stored]") {
  const std::vector<double> numbers = e4m3_numbers();
  const StoredFormat& e4m3 = format_named("e4m3");
  CHECK(numbers.back() == 448);
  CHECK(numbers[1] == 0x1p-9);
  for (const double number : numbers) REQUIRE(nearest(e4m3, number) == number);
  // All that can matter: each number, what lies in the middle of two, and their neighbours in fp32.
  std::vector<float> tried{0x1p-149F, 0x1p-126F, 464.0F, 465.0F, 1e30F, HUGE_VALF};
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i)
    for (const double x : {numbers[i], (numbers[i] + numbers[i + 1]) / 2})
      for (const float y : {std::nextafterf(static_cast<float>(x), 0.0F), static_cast<float>(x),
                            std::nextafterf(static_cast<float>(x), HUGE_VALF)})
        tried.push_back(y);
  test::Random random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()) & 0x7fffffffu);
    if (!std::isnan(x)) tried.push_back(x);
  }
  for (const float x : tried)
    REQUIRE(nearest(e4m3, static_cast<double>(x)) == nearest_of(numbers, static_cast<double>(x)));
  CHECK(std::isnan(nearest(e4m3, std::nan(""))));
}

TEST_CASE("bf16 and fp16 are stored as cast points round, int8 as an integer", "[stored]") {
  test::Random random(4);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()) & 0x7fffffffu);
    if (std::isnan(x)) continue;
    const auto wide = static_cast<double>(x);
    REQUIRE(nearest(format_named("bf16"), wide) == static_cast<double>(numeric::through_bf16(x)));
    REQUIRE(nearest(format_named("fp16"), wide) == static_cast<double>(numeric::through_fp16(x)));
    REQUIRE(nearest(format_named("int8"), wide) == std::min(std::nearbyint(wide), 127.0));
  }
}

TEST_CASE("rounded by lot, a number becomes one of its two neighbours as often as it is near to it",
          "[stored]") {
  const numeric::Random lots(5, 0);
  for (const StoredFormat& format : numeric::stored_formats) {
    if (format.name == "fp32") continue;
    INFO(format.name);
    const double low = nearest(format, 3.3), x = 3.3;
    const double step = format.name == "int8" ? 1 : std::ldexp(1.0, 1 - format.precision + 1);
    const double down = std::floor(x / step) * step;
    CHECK((low == down || low == down + step));
    double sum = 0;
    constexpr int draws = 40000;
    for (int i = 0; i < draws; ++i) {
      const double got = numeric::on_grid<true>(format, x, lots.uniform(static_cast<std::uint64_t>(i)));
      REQUIRE((got == down || got == down + step));
      sum += got;
    }
    CHECK(std::fabs(sum / draws - x) < 4 * step / 2 / std::sqrt(draws));
    CHECK(numeric::on_grid<true>(format, down, 0) == down);
  }
}

TEST_CASE("a state is stored by its definition: scales, roundings and what is left over", "[stored]") {
  for (const std::string& word : every_word()) {
    INFO(word);
    const StoredState form = stored_from(word);
    CHECK(stored_from(words_of(form)) == form);
    const StoredFormat& format = numeric::stored_formats[static_cast<std::size_t>(form.format)];
    Stored before(form, 11), after = before;
    if (form.rounding == StateRounding::feedback)
      for (std::size_t i = 0; i < before.state.size(); ++i)
        after.residual[i] = before.residual[i] = 0.01F * before.state[i];
    after.store(kernel_table(), 2);
    if (form.rounding == StateRounding::feedback)
      for (std::size_t k = 0; k < Stored::K; ++k)
        for (std::size_t v = 0; v < Stored::V; ++v)
          before.state[Stored::at(k, v)] += before.decay[k] * before.residual[Stored::at(k, v)];
    const numeric::Random lots(form.seed, 3);
    for (std::size_t k = 0; k < Stored::K; ++k)
      for (std::size_t v = 0; v < Stored::V; ++v) {
        const float x = before.state[Stored::at(k, v)];
        const float scale = form.scale == StateScale::none
                                ? 1.0F
                                : scale_of(before, form.scale, form.power_of_two, format.largest, k, v);
        const auto size = static_cast<double>(std::fabs(x / scale));
        const double draw =
            static_cast<double>(lots.bits((2 * Stored::K + k) * Stored::V + v) >> 32) * 0x1p-32;
        const double number = form.rounding == StateRounding::stochastic
                                  ? numeric::on_grid<true>(format, size, draw)
                                  : nearest(format, size);
        const float wanted = std::copysign(static_cast<float>(number), x) * scale;
        REQUIRE(after.state[Stored::at(k, v)] == wanted);
        if (form.rounding == StateRounding::feedback) REQUIRE(after.residual[Stored::at(k, v)] == x - wanted);
      }
  }
}

TEST_CASE("a stored state has the same bits on every instruction set", "[stored][kernels]") {
  const KernelTables tables = kernel_tables();
  for (const std::string& word : every_word()) {
    INFO(word);
    Stored first(stored_from(word), 12);
    Stored other = first;
    for (std::uint64_t token = 0; token < 3; ++token) first.store(*tables.table[0], token);
    for (int i = 1; i < tables.count; ++i) {
      Stored mine = other;
      for (std::uint64_t token = 0; token < 3; ++token) mine.store(*tables.table[i], token);
      CHECK(test::same_bits(mine.state, first.state));
    }
  }
}

TEST_CASE("a group with a number that is not finite becomes NaN, its neighbours stay", "[stored]") {
  for (const float bad : {HUGE_VALF, std::nanf("")}) {
    Stored stored(stored_from("int8+row"), 13);
    stored.state[Stored::at(2, 17)] = bad;
    stored.store(kernel_table());
    for (std::size_t k = 0; k < Stored::K; ++k)
      for (std::size_t v = 0; v < Stored::V; ++v)
        CHECK(std::isnan(stored.state[Stored::at(k, v)]) == (k == 2));
  }
}

TEST_CASE("both token forms store the state behind every token, o having read it before", "[stored]") {
  test::ProblemSpec spec;
  spec.T = 70, spec.HV = 2, spec.H = 2, spec.K = 24, spec.V = 20, spec.qk_l2norm = true;
  const Problem problem = test::make_problem(spec, 9);
  for (const char* const variant : {"naive", "recurrent"}) {
    const Answer exact = decoded(problem, variant, "fp32");
    for (const std::string& word : every_word()) {
      INFO(variant << ' ' << word);
      const Answer stored = decoded(problem, variant, word);
      CHECK(test::differing_bits(stored.final_state, exact.final_state) > 0);
      // The first token is read before anything is stored.
      const std::size_t row = spec.HV * spec.V;
      std::size_t first = 0, others = 0;
      for (std::size_t i = 0; i < stored.o.size(); ++i)
        (i < row ? first : others) += stored.o.value(i) != exact.o.value(i);
      CHECK(first == 0);
      CHECK(others > 0);
      const Answer again = decoded(problem, variant, word, 3);
      CHECK(test::differing_bits(again.o, stored.o) == 0);
      CHECK(test::differing_bits(again.final_state, stored.final_state) == 0);
    }
  }
}

TEST_CASE("gates and beta are rounded where their cast points say so", "[stored][storage]") {
  test::ProblemSpec spec;
  spec.T = 20, spec.gate = Gate::softplus, spec.beta_sigmoid = true;
  const Problem problem = test::make_problem(spec, 14);
  for (const char* const variant : {"naive", "recurrent"})
    for (const char* const point : {"g", "beta"}) {
      INFO(variant << ' ' << point);
      RunOptions options = test::default_options(problem, variant, DType::fp32);
      const Answer whole = test::run(problem, variant, options);
      set_axis(options.arithmetic, fmt::format("storage=bf16@{}", point));
      CHECK(test::differing_bits(test::run(problem, variant, options).o, whole.o) > 0);
    }
  // Inputs that are bf16 already stay.
  test::ProblemSpec plain;
  plain.dtype = DType::bf16;
  Problem narrow = test::make_problem(plain, 15);
  narrow.g = narrow.g.converted_to(DType::bf16).converted_to(DType::fp32);
  narrow.beta = narrow.beta.converted_to(DType::bf16).converted_to(DType::fp32);
  RunOptions options = test::default_options(narrow, "recurrent", DType::fp32);
  const Answer whole = test::run(narrow, "recurrent", options);
  set_axis(options.arithmetic, "storage=bf16@g+bf16@beta");
  CHECK(test::differing_bits(test::run(narrow, "recurrent", options).o, whole.o) == 0);
}

TEST_CASE("words of a stored state that mean nothing are refused", "[stored]") {
  for (const char* const word :
       {"", "fp8", "fp32+feedback", "bf16+row", "int8+rows", "int8+stochastic:x", "int8+stochastic:-1",
        "e4m3+stochasticity", "int8+row+head", "int8+row+row-pow2", "e4m3+unscaled+row",
        "bf16+nearest+feedback", "bf16+stochastic:7+nearest"})
    CHECK_THROWS_AS(stored_from(word), Error);
  CHECK(words_of(stored_from("int8")) == "int8+row");
  CHECK(words_of(stored_from("bf16+stochastic")) == "bf16+stochastic:0");
  CHECK(words_of(stored_from("e4m3+nearest+head")) == "e4m3+head");
  CHECK(has_axis({.chunk = false}, "stored=bf16"));
  CHECK(!has_axis({.chunk = true}, "stored=bf16"));
}

}  // namespace stored_state_tests
