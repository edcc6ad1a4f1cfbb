// Errors beside those of twins, on made-up errors: which are beyond them, and where.
#include "judge/spread/twin_test.hpp"

#include <cmath>
#include <functional>
#include <random>

#include "support/catch.hpp"

namespace twin_test_tests {

using namespace kda_check;
using judge::Region;
using judge::RowLayout;
using judge::TwinJudgement;

namespace {

/// [rows][heads][width] in order, two sequences, chunks of 64.
RowLayout layout_of(std::size_t rows = 384, std::size_t heads = 3, std::size_t width = 48) {
  RowLayout layout{rows, heads, width, 64, {0, rows / 3, rows}, true};
  layout.block_rows = rows, layout.row_stride = heads * width, layout.head_stride = width;
  return layout;
}

/// A truth and answers of independent errors that grow along the rows, twins first.
class World {
 public:
  World(RowLayout layout, std::size_t twins, unsigned seed, double size = 1)
      : layout_(std::move(layout)), twins_(twins), random_(seed) {
    truth_.resize(layout_.rows * layout_.heads * layout_.width);
    for (double& x : truth_) x = size * normal_(random_);
    for (std::size_t i = 0; i <= twins; ++i) fields_.push_back(erring());
  }

  std::vector<double> erring() {
    std::vector<double> values = truth_;
    for (std::size_t r = 0; r < layout_.rows; ++r)
      for (std::size_t i = 0; i < row(); ++i)
        values[r * row() + i] +=
            values[r * row() + i] * 2e-3 * (1 + static_cast<double>(r % 64) / 16) * normal_(random_);
    return values;
  }
  /// The answer that is no twin.
  std::vector<double>& answer() { return fields_.back(); }
  double& at(std::size_t r, std::size_t head, std::size_t v) { return answer()[layout_.element(r, head, v)]; }
  const std::vector<double>& all_truth() const { return truth_; }
  double truth(std::size_t r, std::size_t head, std::size_t v) const {
    return truth_[layout_.element(r, head, v)];
  }

  /// From now on head 1 has that direction.
  void set_direction(std::vector<double> values) {
    moved_ = std::move(values);
    for (std::size_t i = 0; i < moved_.size(); ++i) moved_[i] += truth_[i];
  }

  TwinJudgement judged(std::optional<double> slope_floor = 0x1p-11) const {
    return measured(slope_floor).conclude().at(0);
  }
  judge::TwinTest measured(std::optional<double> slope_floor = 0x1p-11) const {
    judge::TwinTest test({layout_, twins_, 1, 0x1p-9, slope_floor});
    for (std::size_t head = 0; head < layout_.heads; ++head) test.measure(head, values_of(head));
    return test;
  }
  /// Beside the first twin where that is enough; the first head beside all.
  judge::TwinTest settled(std::size_t stable = 0) const {
    judge::TwinSetting setting{layout_, twins_, 1, 0x1p-9, 0x1p-11};
    setting.stable = stable, setting.in_full.assign(layout_.heads, false), setting.in_full[0] = true;
    judge::TwinTest test(setting);
    for (std::size_t head = 0; head < layout_.heads; ++head)
      if (!test.settle(head, values_of(head, true))) test.measure(head, values_of(head));
    return test;
  }
  judge::HeadValues values_of(std::size_t head, bool first_twin_alone = false) const {
    judge::HeadValues values{judge::HeadRows(truth_, layout_, head)};
    for (std::size_t f = 0; f <= twins_; ++f)
      if (f == 0 || f == twins_ || !first_twin_alone) values.fields.emplace_back(fields_[f], layout_, head);
    if (head == 1 && !moved_.empty())
      values.directions.push_back({Region::decays_of_head, judge::HeadRows(moved_, layout_, head), 1});
    return values;
  }
  std::vector<double>& first_twin() { return fields_.front(); }
  std::string place() const {
    const TwinJudgement judgement = judged();
    if (judgement.ratio <= 1) return "";
    return place_of(judgement.worst.region, judgement.worst.head, judgement.worst.cell, layout_);
  }

 private:
  std::size_t row() const { return layout_.heads * layout_.width; }

  RowLayout layout_;
  std::size_t twins_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> truth_, moved_;
  std::vector<std::vector<double>> fields_;
};

/// Rows [begin, end) of heads [first, last), columns from `from` to `to`, times a factor.
void scale(World& world, std::size_t begin, std::size_t end, std::size_t first, std::size_t last,
           double factor, std::size_t from = 0, std::size_t to = 48) {
  for (std::size_t r = begin; r < end; ++r)
    for (std::size_t h = first; h < last; ++h)
      for (std::size_t v = from; v < to; ++v) world.at(r, h, v) *= factor;
}

judge::HeadValues values_of(const std::vector<double>& truth, const std::vector<std::vector<double>>& fields,
                            const RowLayout& layout, std::size_t head) {
  judge::HeadValues values{judge::HeadRows(truth, layout, head)};
  for (const std::vector<double>& field : fields) values.fields.emplace_back(field, layout, head);
  return values;
}

}  // namespace

TEST_CASE("errors like those of the twins are not beyond them, however many draws", "[twins]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const std::size_t width = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 16 : 48, heads = 1 + seed % 4;
    const TwinJudgement judgement =
        World(layout_of(64 + 32 * (seed % 7), heads, width), 3 + seed % 5, seed).judged();
    INFO("seed " << seed << " width " << width << " heads " << heads);
    CHECK(judgement.ratio < 1);
    CHECK(judgement.ratio > 0.1);
    CHECK(judgement.energy == Approx(1).margin(0.5));
  }
}

TEST_CASE("a fault along a direction is seen far below what any region shows", "[twins]") {
  World world(layout_of(), 4, 5);
  std::vector<double> direction = World(layout_of(), 1, 6).all_truth();
  for (std::size_t r = 0; r < 384; ++r)
    for (std::size_t h = 0; h < 3; ++h)
      for (std::size_t v = 0; v < 48; ++v) {
        direction[layout_of().element(r, h, v)] *= 0.05;
        if (h == 1) world.at(r, h, v) += 0.04 * direction[layout_of().element(r, h, v)];
      }
  CHECK(world.judged().ratio < 1);
  world.set_direction(direction);
  const TwinJudgement judgement = world.judged();
  CHECK(judgement.ratio > 1);
  CHECK(judgement.by_slope);
  CHECK(judgement.worst.slope == Approx(0.04).margin(0.01));
  CHECK(world.place() == "the log decays of head 1");
  CHECK(world.judged(std::nullopt).ratio < 1);  // where slopes do not judge
  CHECK(place_of(Region::decays, 0, 0, layout_of()) == "the log decays, all heads");
  // The fault of another head does not lie along the direction of this one.
  World other(layout_of(), 4, 5);
  for (std::size_t r = 0; r < 384; ++r)
    for (std::size_t v = 0; v < 48; ++v) other.at(r, 0, v) += 0.04 * direction[layout_of().element(r, 0, v)];
  other.set_direction(direction);
  CHECK(other.judged().ratio < 1);
}

TEST_CASE("truncated operands may leave a slope along a direction that the truth lies in", "[twins]") {
  World world(layout_of(), 4, 7);
  scale(world, 0, 384, 1, 2, 1 - 0x1.8p-12);
  CHECK(world.judged().ratio < 1);
  std::vector<double> direction = world.all_truth();
  for (double& d : direction) d *= -0.01;  // decay takes from the truth
  world.set_direction(direction);
  CHECK(world.judged().ratio < 1);
}

TEST_CASE("what is wrong is found where it is", "[twins]") {
  struct Fault {
    const char* place;
    std::function<void(World&)> apply;
  };
  const Fault faults[] = {
      {"the whole tensor", [](World& w) { scale(w, 0, 384, 0, 3, 1.005); }},
      {"head 1", [](World& w) { scale(w, 0, 384, 1, 2, 1.01); }},
      {"tokens 64..127 of sequence 1 of head 2", [](World& w) { scale(w, 192, 256, 2, 3, 1.03); }},
      {"token 172 of sequence 1 of head 0", [](World& w) { scale(w, 300, 301, 0, 1, 1.2); }},
      {"token 173 of sequence 1, all heads", [](World& w) { scale(w, 301, 302, 0, 3, 1.2); }},
      {"column 7 of head 1", [](World& w) { scale(w, 0, 384, 1, 2, 1.05, 7, 8); }},
      {"column 7, all heads", [](World& w) { scale(w, 0, 384, 0, 3, 1.05, 7, 8); }},
      {"tokens 16..31 of sequence 1, columns 16..31 of head 0",
       [](World& w) { scale(w, 144, 160, 0, 1, 1.2, 16, 32); }},
      {"rows 63 mod 64, all heads",
       [](World& w) {
         for (std::size_t r : {63, 127, 191, 255, 319, 383}) scale(w, r, r + 1, 0, 3, 1.1);
       }},
      {"sequence 0, all heads", [](World& w) { scale(w, 0, 128, 0, 3, 1.01); }},
      {"token 72 of sequence 1, column 5 of head 2",
       [](World& w) { w.at(200, 2, 5) = w.truth(200, 2, 5) + 1; }},
  };
  for (const Fault& fault : faults) {
    World world(layout_of(), 5, 7);
    REQUIRE(world.judged().ratio < 1);
    fault.apply(world);
    CHECK(world.place() == fault.place);
  }
}

TEST_CASE("heads that the first twin gives need no others, and what is wrong elsewhere is seen as ever",
          "[twins]") {
  World world(layout_of(), 6, 40);
  world.answer() = world.first_twin();
  const judge::TwinTest right = world.settled();
  CHECK(right.judged_heads() == 1);
  CHECK(right.conclude().at(0).ratio <= 1);
  scale(world, 70, 71, 2, 3, 1.05);
  const judge::TwinTest wrong = world.settled();
  CHECK(wrong.judged_heads() == 2);
  const TwinJudgement judgement = wrong.conclude().at(0);
  CHECK(judgement.ratio > 1);
  CHECK(judgement.worst.head == 2);
}

TEST_CASE("a head that was measured beside all is settled as well, and no direction of it is left",
          "[twins]") {
  World world(layout_of(), 6, 43);
  world.answer() = world.first_twin();
  world.set_direction(world.erring());
  judge::TwinTest test = world.settled();
  const TwinJudgement alone = test.conclude().at(0);
  for (std::size_t head = 0; head < 3; ++head) test.measure(head, world.values_of(head));
  CHECK(test.judged_heads() == 1);
  CHECK(test.conclude().at(0).ratio == alone.ratio);
}

TEST_CASE("what stable computations err by is known from the heads where they ran", "[twins]") {
  World world(layout_of(1536, 8), 6, 41);
  world.answer() = world.first_twin();
  const double all = world.settled(2).stable_rms_ratio();
  World other = world;
  other.answer() = other.erring();  // so that every head is measured beside all
  CHECK(all == Approx(other.settled(2).stable_rms_ratio()).epsilon(0.02));
}

TEST_CASE("a head in which the first twin errs far more is measured beside all", "[twins]") {
  World world(layout_of(), 6, 42);
  for (std::size_t r = 0; r < 384; ++r)
    for (std::size_t v = 0; v < 48; ++v) {
      double& x = world.first_twin()[(r * 3 + 1) * 48 + v];
      x += 9 * (x - world.truth(r, 1, v));
    }
  world.answer() = world.first_twin();
  judge::TwinTest test = world.settled();
  CHECK(test.judged_heads() == 1);
  REQUIRE(test.reopen());
  CHECK(test.has_to_measure(1));
  CHECK_FALSE(test.has_to_measure(2));
  CHECK_FALSE(test.settle(1, world.values_of(1, true)));
  test.measure(1, world.values_of(1));
  CHECK(test.judged_heads() == 2);
  CHECK_FALSE(test.reopen());
}

TEST_CASE(
    "where the first twin loses digits in a head that was measured beside all, that one says nothing of "
    "others",
    "[twins]") {
  for (const std::size_t bad : {0, 2}) {
    World world(layout_of(384, 5), 6, 44);
    for (std::size_t r = 0; r < 384; ++r)
      for (std::size_t v = 0; v < 48; ++v) {
        double& x = world.first_twin()[(r * 5 + bad) * 48 + v];
        x += 30 * (x - world.truth(r, bad, v));
      }
    world.answer() = world.first_twin();
    judge::TwinTest test = world.settled(2);
    CHECK(test.reopen() == (bad == 0));  // beside a bad head alone nothing is known of others
    for (std::size_t head = 1; head < 5; ++head)
      if (test.has_to_measure(head)) test.measure(head, world.values_of(head));
    World others = world;
    others.answer() = others.erring();
    CHECK(test.stable_rms_ratio() == Approx(others.settled(2).stable_rms_ratio()).epsilon(0.05));
  }
}

TEST_CASE("a slope is told from noise, and does not judge where none is asked for", "[twins]") {
  World world(layout_of(), 5, 3);
  scale(world, 0, 384, 0, 3, 1.004);
  const TwinJudgement judgement = world.judged();
  CHECK(judgement.by_slope);
  CHECK(judgement.worst.slope == Approx(0.004).epsilon(0.1));
  CHECK(judgement.worst.sigmas > 10);
  const TwinJudgement without = world.judged(std::nullopt);
  CHECK_FALSE(without.by_slope);
  CHECK(without.ratio < 1);
}

TEST_CASE("excess that is even is told from excess in some places", "[twins]") {
  World even(layout_of(), 5, 11);
  for (std::size_t r = 0; r < 384; ++r)
    for (std::size_t h = 0; h < 3; ++h)
      for (std::size_t v = 0; v < 48; ++v)
        even.at(r, h, v) = even.truth(r, h, v) + 5 * (even.at(r, h, v) - even.truth(r, h, v));
  const TwinJudgement all = even.judged();
  CHECK(all.ratio > 1);
  CHECK_FALSE(all.uneven);
  CHECK(all.energy == Approx(5).epsilon(0.2));
  World local(layout_of(), 5, 11);
  scale(local, 192, 256, 2, 3, 1.1);
  CHECK(local.judged().uneven);
}

TEST_CASE("where all twins are exact, exactness is asked for", "[twins]") {
  const RowLayout layout = layout_of(64, 1, 16);
  const std::vector<double> exact(64 * 16, 0.5);
  std::vector<double> answer = exact;
  const auto judged = [&] {
    judge::TwinTest test({layout, 3, 1, 0, 0});
    const judge::HeadRows twin(exact, layout, 0);
    const judge::HeadValues values{twin, {twin, twin, twin, judge::HeadRows(answer, layout, 0)}};
    test.measure(0, values);
    return test.conclude().at(0).ratio;
  };
  CHECK(judged() == 0);
  answer[100] += 1e-6;
  CHECK(judged() > 1);
}

TEST_CASE("twins that are all lucky in the first rows of a triangle ask no luck of others", "[twins]") {
  RowLayout layout = layout_of(192, 1, 64);
  for (std::size_t r = 0; r < layout.rows; ++r)
    layout.counted.push_back(static_cast<std::uint32_t>(r % layout.chunk + 1));
  // Of an answer that errs as its twins do elsewhere, but for one row.
  const auto judged = [&](std::size_t wrong_row, double error) {
    std::mt19937 random(4);
    std::normal_distribution<double> normal;
    std::vector<double> truth(layout.rows * layout.width, 0.0);
    std::vector<std::vector<double>> fields(5, truth);
    for (std::size_t r = 0; r < layout.rows; ++r)
      for (std::size_t v = 0; v < layout.columns(r); ++v) {
        const std::size_t at = r * layout.width + v;
        truth[at] = normal(random);
        // Twins round the same operands.
        const double shared = normal(random) * (layout.columns(r) < 4 ? 0.05 : 1);
        for (std::size_t f = 0; f < 4; ++f) fields[f][at] = truth[at] + 2e-3 * shared;
        fields[4][at] = truth[at] + (r == wrong_row ? error : 2e-3) * normal(random);
      }
    judge::TwinTest test({layout, 4, 1, 0, 0x1p-11});
    test.measure(0, values_of(truth, fields, layout, 0));
    return test.conclude().at(0).ratio;
  };
  CHECK(judged(0, 2e-3) < 1);
  CHECK(judged(66, 4e-2) > 1);
  CHECK(judged(40, 2e-2) > 1);
}

TEST_CASE("a twin that errs far more than the stable computations does not count", "[twins]") {
  const RowLayout layout = layout_of(128, 2, 16);
  World world(layout, 5, 12);
  std::vector<std::vector<double>> fields;
  for (int i = 0; i < 6; ++i) fields.push_back(world.erring());
  const std::vector<double> truth = world.all_truth();
  // In head 1 the first twin errs by a third of the truth.
  for (std::size_t r = 0; r < layout.rows; ++r)
    for (std::size_t v = 0; v < layout.width; ++v) {
      fields[0][layout.element(r, 1, v)] *= 4.0 / 3;
      fields[5][layout.element(r, 1, v)] *= 1.1;  // an output beside it
    }
  judge::TwinSetting setting{layout, 5, 1, 0x1p-9, 0x1p-11};
  setting.stable = 1;
  judge::TwinTest test(setting);
  CHECK(test.has_to_measure(0));
  for (const std::size_t head : {0U, 1U}) {
    test.measure(head, values_of(truth, fields, layout, head));
    CHECK_FALSE(test.has_to_measure(head));
  }
  CHECK(test.conclude().at(0).ratio > 3);
  CHECK(test.stable_rms_ratio() > 0);
  CHECK(test.stable_rms_ratio() < 0.1);
}

TEST_CASE("a fault far below the noise is seen where the computation is known", "[twins]") {
  const RowLayout layout = layout_of(128, 2, 64);
  World world(layout, 4, 12);
  std::vector<double> computed = world.erring();
  const std::vector<double> truth = world.all_truth();
  const auto noise_of = [&](std::size_t i) { return computed[i] - truth[i]; };
  // Others differ from it by a tenth of its noise.
  std::vector<std::vector<double>> fields{computed};
  for (int twin = 0; twin < 3; ++twin) {
    fields.push_back(computed);
    const std::vector<double> other = world.erring();
    for (std::size_t i = 0; i < computed.size(); ++i) fields.back()[i] += (other[i] - truth[i]) / 10;
  }
  const auto ratio = [&](double share, bool known) {
    fields.push_back(computed);
    for (std::size_t r = 0; r < layout.rows; ++r)  // head 1 has more of its own noise
      for (std::size_t v = 0; v < layout.width; ++v)
        fields.back()[layout.element(r, 1, v)] += share * noise_of(layout.element(r, 1, v));
    judge::TwinSetting setting{layout, 4, 1, 0x1p-9, 0};
    if (known) setting.left = 0;
    judge::TwinTest test(setting);
    for (const std::size_t head : {0U, 1U}) test.measure(head, values_of(truth, fields, layout, head));
    fields.pop_back();
    return test.conclude().at(0).ratio;
  };
  CHECK(ratio(0, true) < 1e-3);  // what reading numbers of fp64 as fp32 makes
  CHECK(ratio(1, true) > 1);
  CHECK(ratio(1, false) < 1);
}

TEST_CASE("regions say where they are, and which rows they have", "[twins]") {
  const RowLayout layout = layout_of();
  CHECK(place_of(Region::window_of_head, 1, 16, layout) == "tokens 0..7 of sequence 1 of head 1");
  CHECK(place_of(Region::chunk, 0, 2, layout) == "tokens 0..63 of sequence 1, all heads");
  CHECK(place_of(Region::edge, 0, 0, layout) == "first rows of sequences");
  CHECK(rows_in(Region::token, 0, 9, layout, 100).size() == 3);
  CHECK(rows_in(Region::chunk_of_head, 2, 0, layout, 100).size() == 64);
  CHECK(rows_in(Region::chunk_of_head, 2, 0, layout, 10).size() == 10);
  CHECK(rows_in(Region::tile, 0, 0, layout, 100).empty());
}

}  // namespace twin_test_tests
