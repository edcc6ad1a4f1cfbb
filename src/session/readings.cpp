#include "session/readings.hpp"

#include <cmath>

namespace kda_check::session {

namespace {

void add(analysis::Readings& readings, const analysis::ReadingKey& key, const analysis::Reading& reading) {
  const auto [place, is_new] = readings.emplace(key, reading);
  if (is_new) return;
  analysis::Reading& known = place->second;
  known.sound = known.sound && reading.sound;
  // What is not a number is the largest.
  if (!(reading.value <= known.value)) known.value = reading.value;
}

}  // namespace

std::string name_of_answer(const report::CaseResult& item) {
  if (item.recorded) return "expected/" + item.variant;
  return item.device == "cpu" ? item.variant : item.variant + "@" + item.device;
}

analysis::Readings readings_of(const report::Result& result) {
  analysis::Readings readings;
  for (const report::CaseResult& item : result.cases)
    for (const report::TensorResult& tensor : item.tensors)
      for (const auto& [metric, value] : tensor.metrics)
        add(readings,
            {item.fixture, name_of_answer(item), item.dtype, item.against, tensor.name, metric,
             item.recorded ? "" : item.arithmetic},
            {std::fabs(value), numeric::dtype_named(tensor.dtype).value_or(numeric::DType::fp32),
             tensor.verdict == compare::Verdict::pass});
  return readings;
}

}  // namespace kda_check::session
