#include "engine/twins.hpp"

#include <algorithm>
#include <cmath>

#include "base/parallel.hpp"
#include "engine/likeness.hpp"
#include "engine/twin_family.hpp"
#include "kda/heads.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::engine {

namespace {

using numeric::ComputeFormat;
using numeric::DType;

constexpr double most_rms_ratio = 0.1;  ///< of a twin; above, it has failed itself

double storage_unit(DType dtype) { return std::ldexp(1.0, -numeric::format_of(dtype).precision); }

bool is_finite(std::span<const double> values) {
  return std::ranges::all_of(values, [](double x) { return std::isfinite(x); });
}

/// One head of a tensor as [rows][width], times a power of two.
template <class Element>
std::vector<double> head_of(std::span<const Element> whole, const judge::RowLayout& layout, std::size_t head,
                            double scale) {
  std::vector<double> values(layout.rows * layout.width);
  for (std::size_t r = 0; r < layout.rows; ++r) {
    const Element* const row = &whole[layout.element(r, head, 0)];
    for (std::size_t v = 0; v < layout.width; ++v)
      values[r * layout.width + v] = numeric::widen(row[v * layout.column_stride]) * scale;
  }
  return values;
}
std::vector<double> head_of(const tensor::Tensor& tensor, const judge::RowLayout& layout, std::size_t head,
                            double scale) {
  return numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    using Element = decltype(tag);
    return head_of(std::span<const Element>(tensor.elements<Element>()), layout, head, scale);
  });
}

/// A power of two that brings the values of a head near 1: their squares are to be numbers.
double scale_of(std::span<const double> whole, const judge::RowLayout& layout, std::size_t head) {
  double largest = 0;
  for (std::size_t r = 0; r < layout.rows; ++r)
    for (std::size_t v = 0; v < layout.width; ++v)
      largest = std::max(largest, std::fabs(whole[layout.element(r, head, v)]));
  if (largest == 0) return 1;
  return std::ldexp(1.0, std::clamp(-std::ilogb(largest), -1000, 1000));
}

/// Sums of squares: of a twin's errors, and of the truth.
struct Sizes {
  double error = 0, truth = 0;

  void add(const std::vector<double>& got, const std::vector<double>& exact) {
    for (std::size_t i = 0; i < exact.size(); ++i)
      error += (got[i] - exact[i]) * (got[i] - exact[i]), truth += exact[i] * exact[i];
  }
  bool is_fit() const { return error <= most_rms_ratio * most_rms_ratio * truth; }  // not of a NaN
};

/// One tensor of the answers of a class.
struct Judged {
  std::string name;
  judge::RowLayout layout;
  std::span<const double> truth;
  std::vector<const Answered*> answers;
  std::size_t heads_per_query_head = 1;
  std::unique_ptr<judge::TwinTest> test = nullptr;
  std::vector<std::vector<Sizes>> sizes = {};  ///< by twin and head

  double largest_rms_ratio() const {
    double largest = 0;
    for (const std::vector<Sizes>& heads : sizes) {
      Sizes all;
      for (const Sizes& head : heads) all.error += head.error, all.truth += head.truth;
      if (all.truth > 0) largest = std::max(largest, std::sqrt(all.error / all.truth));
    }
    return largest;
  }
};

kda::Problem one_query_head(const kda::Problem& problem, std::size_t query_head) {
  const std::size_t group = problem.heads_per_group();
  std::vector<std::size_t> heads(group);
  for (std::size_t i = 0; i < group; ++i) heads[i] = query_head * group + i;
  return kda::with_heads(problem, std::vector<std::size_t>{query_head}, heads);
}

std::vector<kda::Tensors> solved(const std::vector<Twin>& family, kda::Pass pass, const kda::Problem& part) {
  std::vector<kda::Tensors> list;
  for (const Twin& twin : family) list.push_back(kda::run_pass(pass, *twin.variant, part, twin.options));
  return list;
}

}  // namespace

/// Answers that one family is for.
struct Twins::Class {
  ComputeFormat compute;
  DType dtype;
  judge::Form form;
  std::vector<const Answered*> answers;
  std::vector<Twin> family;
  std::map<std::pair<const Answered*, std::string>, TwinResult> results = {};
};

Twins::Twins(const kda::Problem& problem, kda::Pass pass, int threads)
    : problem_(problem), pass_(pass), threads_(threads) {}
Twins::~Twins() = default;

void Twins::add(const Answered& answer) {
  if (answer.compute == ComputeFormat::fp64) return;
  for (const std::unique_ptr<Class>& known : classes_)
    if (known->compute == answer.compute && known->dtype == answer.dtype && known->form == answer.form) {
      if (std::ranges::find(known->answers, &answer) == known->answers.end())
        known->answers.push_back(&answer);
      return;
    }
  std::vector<Twin> family = twin_family(problem_, pass_, answer.compute, answer.dtype, answer.form);
  if (family.size() < fewest_twins) return;
  classes_.push_back(std::make_unique<Class>(
      Class{answer.compute, answer.dtype, answer.form, {&answer}, std::move(family)}));
}

void Twins::truth(std::string_view tensor, std::size_t size, std::size_t begin,
                  std::span<const double> values) {
  if (is_empty()) return;
  auto found = truth_.find(tensor);
  if (found == truth_.end()) found = truth_.emplace(tensor, std::vector<double>(size)).first;
  std::ranges::copy(values, found->second.begin() + static_cast<std::ptrdiff_t>(begin));
}

void Twins::judge() {
  for (const std::unique_ptr<Class>& one : classes_) judge(*one);
}

void Twins::judge(Class& one) const {
  std::vector<Judged> tensors;
  for (const auto& [name, truth] : truth_) {
    if (!is_finite(truth)) continue;
    Judged judged{name, {}, truth, {}};
    for (const Answered* const answer : one.answers) {
      const tensor::Tensor* const tensor = answer->tensor(name);
      if (tensor == nullptr || tensor->size() != truth.size()) continue;
      bool finite = true;
      for (std::size_t i = 0; i < tensor->size() && finite; ++i) finite = std::isfinite(tensor->value(i));
      if (finite) judged.answers.push_back(answer);
    }
    if (judged.answers.empty()) continue;
    judged.layout = judge::row_layout(name, judged.answers.front()->tensor(name)->shape(), problem_,
                                      static_cast<std::size_t>(problem_.options.chunk_size));
    if (judged.layout.rows == 0) continue;
    judged.heads_per_query_head = judged.layout.heads / problem_.dimensions().H;
    tensors.push_back(std::move(judged));
  }
  if (tensors.empty()) return;
  const auto layout_in = [](const Judged& judged, const kda::Tensors& twin, const kda::Problem& part) {
    return judge::row_layout(judged.name, twin.at(judged.name).shape(), part, judged.layout.chunk);
  };

  // The first query head tells which twins are fit.
  const kda::Problem first = one_query_head(problem_, 0);
  std::erase_if(one.family, [&](const Twin& twin) {
    const kda::Tensors answer = kda::run_pass(pass_, *twin.variant, first, twin.options);
    return !std::ranges::all_of(tensors, [&](const Judged& judged) {
      const judge::RowLayout layout = layout_in(judged, answer, first);
      Sizes sizes;
      for (std::size_t head = 0; head < judged.heads_per_query_head; ++head) {
        const double scale = scale_of(judged.truth, judged.layout, head);
        sizes.add(head_of(answer.at(judged.name), layout, head, scale),
                  head_of(judged.truth, judged.layout, head, scale));
      }
      return sizes.is_fit();
    });
  });
  if (one.family.size() < fewest_twins) return;

  for (Judged& judged : tensors) {
    judge::TwinSetting setting{judged.layout, one.family.size(), judged.answers.size(),
                               storage_unit(judged.answers.front()->tensor(judged.name)->dtype()),
                               one.compute == ComputeFormat::fp32 ? 0.0 : 0x1p-11};
    judged.test = std::make_unique<judge::TwinTest>(std::move(setting));
    judged.sizes.assign(one.family.size(), std::vector<Sizes>(judged.layout.heads));
  }
  parallel_for(problem_.dimensions().H, threads_, [&](std::size_t query_head, int) {
    const kda::Problem part = one_query_head(problem_, query_head);
    const std::vector<kda::Tensors> twins = solved(one.family, pass_, part);
    for (Judged& judged : tensors) {
      const judge::RowLayout layout = layout_in(judged, twins.front(), part);
      for (std::size_t i = 0; i < judged.heads_per_query_head; ++i) {
        const std::size_t head = query_head * judged.heads_per_query_head + i;
        const double scale = scale_of(judged.truth, judged.layout, head);
        const std::vector<double> truth = head_of(judged.truth, judged.layout, head, scale);
        std::vector<std::vector<double>> values;
        for (const kda::Tensors& twin : twins)
          values.push_back(head_of(twin.at(judged.name), layout, i, scale));
        for (std::size_t f = 0; f < twins.size(); ++f) judged.sizes[f][head].add(values[f], truth);
        for (const Answered* const answer : judged.answers)
          values.push_back(head_of(*answer->tensor(judged.name), judged.layout, head, scale));
        judge::HeadValues of_head{truth.data(), {}, {}};
        for (std::size_t k = 0; k < values.size(); ++k)
          (k < twins.size() ? of_head.twins : of_head.answers).push_back(values[k].data());
        judged.test->measure(head, of_head);
      }
    }
  });
  for (const Judged& judged : tensors) {
    const std::vector<judge::TwinJudgement> judgements = judged.test->conclude();
    const double largest = judged.largest_rms_ratio();
    for (std::size_t a = 0; a < judged.answers.size(); ++a) {
      TwinResult result;
      result.judgement = judgements[a];
      result.twins = one.family.size();
      result.largest_rms_ratio = largest;
      result.structure_known = judged.answers[a]->form != judge::Form::unknown;
      if (const judge::Excess& worst = result.judgement.worst; result.judgement.ratio > 1) {
        result.place = judge::place_of(worst.region, worst.head, worst.cell, judged.layout);
        result.likeness =
            likeness(worst, judged.layout, judged.truth, *judged.answers[a]->tensor(judged.name));
      }
      one.results.emplace(std::pair(judged.answers[a], judged.name), std::move(result));
    }
  }
}

const TwinResult* Twins::result(const Answered& answer, std::string_view tensor) const {
  for (const std::unique_ptr<Class>& one : classes_)
    if (const auto found = one->results.find({&answer, std::string(tensor)}); found != one->results.end())
      return &found->second;
  return nullptr;
}

}  // namespace kda_check::engine
