// A baseline, and a run that is held against it.
#include "judge/baseline.hpp"
#include "fuzz/input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  using fuzz::require;
  try {
    const std::string text = judge::baseline_text(judge::parse_baseline(fuzz::text_of(data, size), "input"));
    const judge::Baseline baseline = judge::parse_baseline(text, "input");
    require(judge::baseline_text(baseline) == text);
    // What was measured is what the rows say, and then far worse.
    judge::Readings readings;
    for (const auto& [key, value] : baseline) readings[key] = {value, numeric::DType::bf16, true};
    require(judge::worsened(baseline, readings).empty());
    require(judge::findings(baseline, readings).stale.empty());
    for (auto& item : readings) item.second.value = item.second.value * 1e6 + 1e6;
    for (const judge::Worsened& row : judge::worsened(baseline, readings)) require(row.after > row.before);
    require(judge::updated(baseline, readings, judge::Ratchet::better, true) == baseline);
  } catch (const Error& error) {
    fuzz::require_refusal(error);
  }
  return 0;
}
