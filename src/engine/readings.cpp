#include "engine/readings.hpp"

#include <cmath>

namespace kda_check::engine {

namespace {

void add(judge::Readings& readings, const judge::ReadingKey& key, const judge::Reading& reading) {
  const auto [place, is_new] = readings.emplace(key, reading);
  if (is_new) return;
  judge::Reading& known = place->second;
  known.sound = known.sound && reading.sound;
  // What is not a number is the largest.
  if (!(reading.value <= known.value)) known.value = reading.value;
}

}  // namespace

std::string name_of_answer(const report::CaseResult& item) {
  if (item.recorded()) return "expected/" + item.variant;
  const bool here = item.device == "cpu" || item.device.empty() || item.role == report::Role::external;
  return here ? item.variant : item.variant + "@" + item.device;
}

judge::ReadingKey key_of(const report::CaseResult& item, const std::string& tensor,
                         const std::string& metric) {
  return {item.path,
          name_of_answer(item),
          item.dtype,
          item.against,
          tensor,
          metric,
          item.recorded() ? std::string() : item.arithmetic};
}

judge::Readings readings_of(std::span<const report::CaseResult> cases) {
  judge::Readings readings;
  for (const report::CaseResult& item : cases)
    for (const report::TensorResult& tensor : item.tensors)
      for (const auto& [metric, value] : tensor.metrics)
        add(readings, key_of(item, tensor.name, metric),
            {std::fabs(value), numeric::dtype_named(tensor.dtype).value_or(numeric::DType::fp32),
             tensor.verdict == judge::Verdict::pass});
  return readings;
}

}  // namespace kda_check::engine
