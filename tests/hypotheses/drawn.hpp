// Computations drawn at random that no preset has, and faults on top of what they give.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.hpp"
#include "hypotheses/hypothesis.hpp"
#include "kda/regimes/regimes.hpp"
#include "numeric/random.hpp"

namespace kda_check::test {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, 36) {}
  double uniform() { return random_.uniform(next_++); }
  std::size_t below(std::size_t count) {
    return static_cast<std::size_t>(uniform() * static_cast<double>(count));
  }
  template <class List>
  auto one_of(const List& list) -> decltype(list[0]) {
    return list[below(std::size(list))];
  }

 private:
  numeric::Random random_;
  std::uint64_t next_ = 0;
};

/// Chunks of 16, 32, 64; 2 to 5 roundings in three formats; every axis at its first value or at another.
inline hypotheses::Hypothesis drawn_chunk_form(Draw& draw, const kda::Problem& problem,
                                               kda::Pass pass = kda::Pass::forward) {
  static const std::vector<std::string> places{"products",
                                               "normalised",
                                               "exponentials",
                                               "score_operands",
                                               "off_diagonal",
                                               "scores",
                                               "Aqk",
                                               "L",
                                               "inverse_operands",
                                               "Akk_inv",
                                               "beta_key",
                                               "operands",
                                               "kg",
                                               "w",
                                               "u",
                                               "prediction",
                                               "residual",
                                               "v_new",
                                               "o_inter",
                                               "o_intra",
                                               "tensor_core",
                                               "state",
                                               "carry"};
  static const std::vector<std::string> backward{"dv_local", "dv", "dh", "dw", "dA"};
  static const std::vector<std::vector<std::string>> axes{
      {"decay=anchor-pair:16", "decay=pair", "decay=anchor-pair:32", "decay=anchor-first:16",
       "decay=anchor-first:64", "decay=anchor-mid:16", "decay=anchor-mid:32", "decay=factored:16",
       "decay=reciprocal:16"},
      {"inverse=substitution", "inverse=blocks:16", "inverse=doubling:16", "inverse=eliminate:16",
       "inverse=horner:16"},
      {"tail=difference", "tail=suffix", "tail=factored"},
      {"delta=wy", "delta=residual", "delta=chained"},
      {"beta=rows", "beta=columns", "beta=keys"},
      {"scale=scores", "scale=q", "scale=output"},
      {"gates=natural", "gates=log2", "gates=log2-each"},
      {"update=chained", "update=added", "update=transposed"},
      {"output=chained", "output=apart", "output=fused"},
      {"exponential=exact", "exponential=cuda", "exponential=cuda-fast", "exponential=exp2-scaled"},
      {"accumulator=fp32", "accumulator=fp16"},
      {"reduction=sequential", "reduction=mma:25", "reduction=lanes:25", "reduction=tree:32"},
      {"contraction=fused", "contraction=separate"}};
  static const std::array<std::string_view, 5> formats{"bf16", "bf16", "bf16", "fp16", "tf32"};
  static const std::array<std::size_t, 3> sizes{16, 32, 64};
  const kda::Variant& chunk = kda::variant_named("chunk");
  for (;;) {
    hypotheses::Hypothesis drawn;
    drawn.variant = &chunk;
    drawn.pass = pass;
    drawn.options.dtype = problem.dtype();
    drawn.options.chunk_size = draw.one_of(sizes);
    drawn.options.arithmetic = chunk.default_arithmetic(problem, problem.dtype());
    std::vector<std::string> all = places;
    if (pass == kda::Pass::backward) all.insert(all.end(), backward.begin(), backward.end());
    std::string storage;
    if (draw.uniform() < 0.7) storage = "bf16@tensor_core", std::erase(all, "tensor_core");
    for (std::size_t count = 2 + draw.below(4); count > 0; --count) {
      const std::size_t place = draw.below(all.size());
      storage += (storage.empty() ? "" : "+") + std::string(draw.one_of(formats)) + "@" + all[place];
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(place));
    }
    drawn.word = "storage=" + storage;
    for (const auto& values : axes)
      drawn.word += "," + (draw.uniform() < 0.5 ? values.front() : draw.one_of(values));
    try {
      for (const std::string& word : split(drawn.word, ',')) kda::set_axis(drawn.options.arithmetic, word);
    } catch (const std::exception&) {
      continue;  // a point stands twice, "products" being several
    }
    if (hypotheses::is_possible(drawn, problem)) return drawn;
  }
}

/// Rounds o to its format again, as a kernel's last step would.
struct DrawnFault {
  std::string name;
  bool is_everywhere = false;  ///< in all heads, or a gain
};
inline DrawnFault add_fault(Draw& draw, kda::Tensors& output) {
  tensor::Tensor &o = output.at("o"), &state = output.at("final_state");
  const tensor::Tensor before = o.clone();
  const std::size_t T = o.shape()[1], HV = o.shape()[2], V = o.shape()[3], head = draw.below(HV);
  const auto at = [&](std::size_t t, std::size_t h, std::size_t v) { return (t * HV + h) * V + v; };
  const auto every = [&](auto changed) {
    for (std::size_t t = 0; t < T; ++t)
      for (std::size_t h = 0; h < HV; ++h)
        for (std::size_t v = 0; v < V; ++v) o.set(at(t, h, v), changed(t, h, v, before.value(at(t, h, v))));
  };
  switch (draw.below(8)) {
    case 0:
      every([&](std::size_t t, std::size_t h, std::size_t v, double x) {
        return t == T / 2 && h == head ? before.value(at(t - 1, h, v)) : x;
      });
      return {"a stale row"};
    case 1:
      every([&](std::size_t, std::size_t h, std::size_t, double x) { return h == head ? x * 1.02 : x; });
      return {"a head x 1.02"};
    case 2:
      every([&](std::size_t t, std::size_t h, std::size_t v, double x) {
        return t >= T / 2 ? x + 0.2 * before.value(at(t - 1, h, v)) : x;
      });
      return {"20 % of the row before from the middle on", true};
    case 3:
      for (std::size_t i = 0; i < state.size(); ++i) state.set(i, state.value(i) * 1.01);
      return {"final state x 1.01", true};
    case 4:
      every([&](std::size_t, std::size_t, std::size_t v, double x) {
        return v >= 16 && v < 32 ? x * 1.006 : x;
      });
      return {"columns 16..31 x 1.006", true};
    case 5:
      every([&](std::size_t t, std::size_t, std::size_t, double x) { return t % 16 == 15 ? x * 1.01 : x; });
      return {"rows 15 mod 16 x 1.01", true};
    case 6:
      every([&](std::size_t, std::size_t, std::size_t, double x) { return x * 1.02; });
      return {"o x 1.02", true};
    default:
      every([&](std::size_t t, std::size_t h, std::size_t v, double x) {
        return t == T - 1 && h == head ? (v % 2 != 0 ? 0 : x) : x;
      });
      return {"odd columns of the last row never written"};
  }
}

}  // namespace kda_check::test
