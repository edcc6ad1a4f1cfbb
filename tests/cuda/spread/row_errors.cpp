// What twins are measured with on a GPU: the sums of the CPU, in every bit.
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "judge/spread/gpu_head_errors.hpp"
#include "kda/bounds/scaled_decays.hpp"
#include "kda/variants/gpu_emulation.hpp"
#include "support/gpu.hpp"

namespace row_errors_tests {

using namespace kda_check;
using judge::RowLayout;
using numeric::DType;

namespace {

template <class Number>
bool same(Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>)
    if (a != a && b != b) return true;  // which NaN is a processor's
  return std::bit_cast<std::conditional_t<sizeof(Number) == 8, std::uint64_t, std::uint32_t>>(a) ==
         std::bit_cast<std::conditional_t<sizeof(Number) == 8, std::uint64_t, std::uint32_t>>(b);
}
template <class Number>
bool same(const std::vector<Number>& a, const std::vector<Number>& b) {
  return std::ranges::equal(a, b, [](Number x, Number y) { return same(x, y); });
}

void check_same(const judge::HeadErrors& gpu, const judge::HeadErrors& cpu) {
  CHECK(gpu.exponent == cpu.exponent);
  CHECK(gpu.fit == cpu.fit);
  CHECK(same(gpu.truth_squares, cpu.truth_squares));
  CHECK(same(gpu.twin_squares, cpu.twin_squares));
  CHECK(same(gpu.coherence, cpu.coherence));
  CHECK(same(gpu.row_truth, cpu.row_truth));
  CHECK(same(gpu.column_truth, cpu.column_truth));
  REQUIRE(gpu.directions.size() == cpu.directions.size());
  for (std::size_t n = 0; n < cpu.directions.size(); ++n) {
    CHECK(gpu.directions[n].region == cpu.directions[n].region);
    CHECK(same(gpu.directions[n].squares, cpu.directions[n].squares));
    CHECK(same(gpu.directions[n].truth, cpu.directions[n].truth));
    CHECK(same(gpu.directions[n].coherence, cpu.directions[n].coherence));
  }
  REQUIRE(gpu.fields.size() == cpu.fields.size());
  for (std::size_t f = 0; f < cpu.fields.size(); ++f) {
    INFO("field " << f);
    const judge::ErrorSums &a = gpu.fields[f], &b = cpu.fields[f];
    CHECK(same(a.row_energy, b.row_energy));
    CHECK(same(a.row_along, b.row_along));
    CHECK(same(a.column_energy, b.column_energy));
    CHECK(same(a.column_along, b.column_along));
    CHECK(same(a.tile_energy, b.tile_energy));
    CHECK(same(a.element_energy, b.element_energy));
    CHECK(same(a.element_share, b.element_share));
    CHECK(a.element == b.element);
    CHECK(same(a.squares, b.squares));
    REQUIRE(a.directions.size() == b.directions.size());
    for (std::size_t n = 0; n < a.directions.size(); ++n) {
      CHECK(same(a.directions[n].sum, b.directions[n].sum));
      CHECK(same(a.directions[n].squares, b.directions[n].squares));
    }
  }
}

/// A truth, five twins, two answers and two directions of all heads of a tensor.
struct World {
  RowLayout layout;
  DType dtype;
  std::vector<double> truth;
  std::vector<tensor::Tensor> fields, directions;

  World(RowLayout of, DType stored, unsigned seed) : layout(std::move(of)), dtype(stored) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    truth.resize(layout.rows * layout.heads * layout.width);
    for (double& x : truth) x = normal(random) * std::ldexp(1.0, static_cast<int>(seed % 5) * 9 - 18);
    const auto erring = [&](DType as, double size) {
      tensor::Tensor tensor("o", as, {truth.size()});
      for (std::size_t i = 0; i < truth.size(); ++i) tensor.set(i, truth[i] * (1 + size * normal(random)));
      return tensor;
    };
    for (int i = 0; i < 5; ++i) fields.push_back(erring(i % 2 == 0 ? DType::fp32 : stored, 3e-3));
    for (int i = 0; i < 2; ++i) fields.push_back(erring(stored, 4e-3));
    for (int i = 0; i < 2; ++i) directions.push_back(erring(DType::fp32, 0.05));
  }

  void check() const {
    judge::TwinSetting setting{layout, 5, 2, 0x1p-9, 0x1p-11};
    setting.least_error = 0x1p-127;
    const judge::Tiles tiles = judge::tiles_of(layout);
    const std::vector<judge::RowCells> cells = judge::row_cells(layout);
    const judge::RowCells& chunks =
        *std::ranges::find(cells, std::optional(judge::Region::chunk_of_head), &judge::RowCells::of_head);
    constexpr double step = 0x1p-6;
    constexpr judge::Region regions[] = {judge::Region::slowest_decay_of_head, judge::Region::decays_of_head};
    const auto up = [&](const tensor::Tensor& tensor, DType as) {
      return judge::rows_on_gpu(kda::uploaded(tensor.dtype(), tensor.data(), tensor.size()), as, layout, 0);
    };
    judge::HeadsOnGpu all{
        layout.heads,
        judge::rows_on_gpu(kda::uploaded(DType::fp64, truth.data(), truth.size()), DType::fp64, layout, 0)};
    for (const tensor::Tensor& field : fields) all.fields.push_back(up(field, dtype));
    for (std::size_t n = 0; n < 2; ++n)
      all.directions.push_back(up(directions[n], DType::fp32)), all.regions.push_back(regions[n]);
    all.step = step;
    for (std::size_t head = 0; head < layout.heads; ++head) all.have_directions.push_back(head != 1);
    const std::vector<judge::HeadErrors> errors = judge::head_errors_on_gpu(setting, tiles, chunks, all, 3);
    REQUIRE(errors.size() == layout.heads);
    for (std::size_t head = 0; head < layout.heads; ++head) {
      INFO("head " << head);
      judge::HeadValues values{judge::HeadRows(truth, layout, head)};
      for (const tensor::Tensor& field : fields) {
        values.fields.emplace_back(field, layout, head);
        values.fields.back().store_as(dtype);
      }
      for (std::size_t n = 0; n < 2 && head != 1; ++n)
        values.directions.push_back({regions[n], judge::HeadRows(directions[n], layout, head), step});
      check_same(errors[head], judge::head_errors(setting, tiles, chunks, values));
    }
  }
};

RowLayout tokens(std::size_t rows, std::size_t heads, std::size_t width, std::size_t chunk) {
  RowLayout layout{rows, heads, width, chunk, {0, rows / 3, rows}, true};
  layout.block_rows = rows, layout.row_stride = heads * width, layout.head_stride = width;
  return layout;
}
/// [sequences][heads][V][K].
RowLayout states(std::size_t sequences, std::size_t heads, std::size_t K, std::size_t V) {
  RowLayout layout{sequences * K, heads, V, 16, {}, false};
  layout.block_rows = K, layout.block_stride = heads * K * V, layout.head_stride = K * V;
  layout.row_stride = 1, layout.column_stride = K;
  for (std::size_t n = 0; n <= sequences; ++n) layout.starts.push_back(n * K);
  return layout;
}

}  // namespace

TEST_CASE("errors of rows that a GPU adds up are those of the CPU in every bit", "[emulation][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  unsigned seed = 0;
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32})
    for (const std::size_t width : {1, 5, 16, 40, 128}) {
      INFO("width " << width << " in " << numeric::name_of(dtype));
      World(tokens(150 + width, 3, width, width % 2 == 0 ? 64 : 16), dtype, ++seed).check();
      World(states(2, 3, 20 + width, width), dtype, ++seed).check();
    }
}

TEST_CASE("a GPU adds up errors that are huge, tiny, not finite or none as the CPU does",
          "[emulation][small]") {
  KDA_CHECK_NEEDS_GPU();
  World world(tokens(200, 4, 48, 64), DType::fp32, 11);
  const auto at = [&](std::size_t row, std::size_t head, std::size_t v) {
    return world.layout.element(row, head, v);
  };
  for (std::size_t v = 0; v < 48; ++v) {
    world.truth[at(20, 0, v)] = 0;
    world.truth[at(21, 0, v)] *= 0x1p-900;
    for (std::size_t row = 0; row < 200; ++row) world.truth[at(row, 3, v)] = 0;
  }
  world.fields[1].set(at(5, 1, 7), HUGE_VAL);  // a twin that is not fit there
  world.fields[5].set(at(9, 0, 3), std::nan(""));
  world.fields[6].set(at(90, 2, 30), 1e38);
  world.fields[6].set(at(91, 2, 31), -HUGE_VAL);
  world.directions[1].set(at(50, 2, 3), HUGE_VAL);
  world.check();
}

TEST_CASE("a GPU answers with longer decays as the CPU does", "[emulation][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::lower_bound})
    for (int options = 0; options < 64; options += 9) {
      test::ProblemSpec spec = test::spec_with_options(gate, options);
      spec.T = 90, spec.H = 2, spec.HV = 4, spec.K = 33, spec.V = 40;
      const kda::Problem problem = test::make_problem(spec, static_cast<std::uint64_t>(options));
      INFO("gate " << kda::name_of(gate) << " options " << options);
      const kda::RunOptions plain = kda::scaled_decay_options(problem);
      const float factor = 1.015625F;
      std::vector<kda::Emulated> wanted;
      for (const auto scaled : {kda::ScaledDecays::slowest, kda::ScaledDecays::all})
        wanted.push_back({&kda::variant_named("recurrent"), &plain, kda::Pass::forward, scaled, factor});
      std::vector<kda::AnswerOnGpu> gpu;
      kda::emulate_on_gpu(problem, wanted,
                          [&](std::size_t, kda::AnswerOnGpu answer) { gpu.push_back(std::move(answer)); });
      REQUIRE(gpu.size() == 2);
      const std::size_t H = problem.dimensions().H, heads = problem.heads_per_group();
      for (std::size_t query = 0; query < H; ++query) {
        const kda::ScaledDecayAnswers cpu = kda::answers_with_scaled_decays(problem, query, factor);
        bool any = false;
        for (std::size_t i = 0; i < heads; ++i) any = any || gpu[0].slowest[query * heads + i] >= 0;
        CHECK(any == cpu.any_decays);
        for (const bool all : {false, true}) {
          const tensor::Tensor of_gpu = kda::downloaded(gpu[all].o, "o"),
                               &of_cpu = (all ? cpu.all : cpu.slowest).o;
          const std::size_t row = heads * spec.V;
          std::size_t differing = 0;
          for (std::size_t i = 0; i < of_cpu.size(); ++i)
            differing += of_cpu.value(i) != of_gpu.value((i / row * H + query) * row + i % row);
          CHECK(differing == 0);
        }
      }
    }
}

}  // namespace row_errors_tests
