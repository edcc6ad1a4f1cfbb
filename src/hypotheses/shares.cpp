#include "hypotheses/shares.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/threads/parallel.hpp"

namespace kda_check::hypotheses {

namespace {

constexpr double least_share = 1e-3;
constexpr std::array<std::string_view, 5> costly_keys{
    "contraction=", "exponential=", "special=", "reduction=", "accumulator="};

struct Without {
  std::string setting;
  Hypothesis hypothesis;
};

std::vector<Without> everything_off(const Hypothesis& whole, const kda::Problem& problem) {
  Hypothesis ideal = whole;
  ideal.options.arithmetic = kda::ideal_arithmetic();
  std::vector<Without> list;
  const std::vector<Setting> there = differing_settings(whole, ideal, problem),
                             instead = differing_settings(ideal, whole, problem);
  for (std::size_t i = 0; i < there.size(); ++i) {
    const bool is_costly =
        there[i].point != nullptr || std::ranges::any_of(costly_keys, [&](std::string_view key) {
          return there[i].word.starts_with(key);
        });
    Hypothesis without = with_setting(whole, instead[i], problem);
    if (is_costly && is_possible(without, problem)) list.push_back({there[i].word, std::move(without)});
  }
  if (numeric::format_of(whole.options.dtype).bytes == 2) {
    // In fp32 the same roundings stand by name.
    Hypothesis without = whole;
    without.options.arithmetic.casts = kda::cast_points(whole.options.arithmetic, whole.options.dtype,
                                                        problem.beta_is_16_bit(), whole.variant->axes.chunk);
    without.options.arithmetic.storage = kda::Storage::named;
    without.options.dtype = numeric::DType::fp32;
    if (is_possible(without, problem))
      list.push_back(
          {fmt::format("outputs in {}", numeric::name_of(whole.options.dtype)), std::move(without)});
  }
  return list;
}

}  // namespace

std::vector<Share> shares_of(const Hypothesis& hypothesis, const Cut& cut, int threads) {
  const std::vector<Without> list = everything_off(hypothesis, cut.part.problem);
  const auto errors_of = [&](const Hypothesis& one) {
    kda::RunOptions options = one.options;
    options.threads = 1;
    const kda::Tensors answer = kda::run_pass(one.pass, *one.variant, cut.part.problem, options);
    std::map<std::string, double> errors;
    for (const auto& [name, recorded] : cut.part.recorded) {
      const ExactValues& exact = cut.truth.find(name)->second;
      const double size = rms(exact);
      errors[name] = size > 0 ? rms(difference(answer.at(name), exact)) / size : 0;
    }
    return errors;
  };
  const std::map<std::string, double> whole = errors_of(hypothesis);
  std::vector<Share> shares(list.size());
  if (whole.empty()) return {};
  const auto worst = std::ranges::max_element(whole, {}, [](const auto& one) { return one.second; });
  parallel_for(list.size(), threads, [&](std::size_t i, int) {
    const double without = errors_of(list[i].hypothesis).at(worst->first), ratio = without / worst->second;
    shares[i] = {list[i].setting, 1 - ratio * ratio, 1 / ratio};
  });
  std::erase_if(shares, [](const Share& one) { return !(one.share >= least_share); });
  std::ranges::stable_sort(shares, std::ranges::greater{}, &Share::share);
  return shares;
}

}  // namespace kda_check::hypotheses
