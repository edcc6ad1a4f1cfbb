#include "session/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "report/json_values.hpp"
#include "session/run.hpp"
#include "session/selftest_suite.hpp"

namespace kda_check::session {

namespace {

using compare::Verdict;

/// Gates of every size, an initial state, groups of heads and a ragged last chunk: each mutant shows on it.
constexpr char target[] = "lb_real:T=130,H=2,HV=4,K=48,V=32,C=64";
/// For gradients, with a loss: norm, gate, bias and sigmoid in the kernel besides.
constexpr char gradient_target[] = "bwd_chain:T=130,H=2,HV=4,K=48,V=32,C=64";

SelftestRow found_about(const report::Result& result, SelftestRow row) {
  for (const report::CaseResult& item : result.cases) {
    if (item.variant != row.name || item.verdict == Verdict::skipped) continue;
    if (item.verdict == Verdict::pass)
      row.passed = true;
    else
      row.caught_by.push_back(item.against + ": " + item.reason);
  }
  return row;
}

SelftestRow row_about(std::string_view name, std::string_view what, numeric::DType dtype, bool healthy) {
  return {std::string(name),
          std::string(what),
          std::string(numeric::name_of(dtype)),
          healthy,
          {},
          false,
          {},
          false};
}

/// Those who run, and the rows about them.
struct Field {
  numeric::DType dtype;
  std::vector<kda::Variant> registry = {};
  std::vector<SelftestRow> rows = {};

  template <class Mutants>
  void add_mutants(Mutants mutants) {
    for (const auto& mutant : mutants)
      if (mutant.dtype == dtype) {
        registry.push_back(variant_of(mutant));
        rows.push_back(row_about(mutant.name, mutant.what, dtype, mutant.healthy));
      }
  }
};

void run_field(Field field, const char* problem, RunRequest request, const Log& log,
               SelftestResult& selftest) {
  request.fixtures = {fmt::format("{},dtype={}", problem, numeric::name_of(field.dtype))};
  request.registry = field.registry;
  request.against = {"oracle"};
  const report::Result result = run(request, log);
  for (SelftestRow& row : field.rows) selftest.rows.push_back(found_about(result, std::move(row)));
  selftest.errors.insert(selftest.errors.end(), result.errors.begin(), result.errors.end());
}

void add_rows_of(numeric::DType dtype, int threads, const Log& log, SelftestResult& selftest) {
  Field field{dtype};
  for (const kda::Variant& variant : kda::variants())
    if (variant.unavailable().empty()) {
      field.registry.push_back(variant);
      field.rows.push_back(row_about(variant.name, variant.summary, dtype, true));
    }
  field.add_mutants(mutants());
  RunRequest request;
  request.invariants = true, request.threads = threads;
  run_field(std::move(field), target, std::move(request), log, selftest);
}

/// Gradients of the variants that have them, and wrong ones.
void add_gradient_rows_of(numeric::DType dtype, int threads, const Log& log, SelftestResult& selftest) {
  Field field{dtype};
  for (const kda::Variant& variant : kda::variants())
    if (variant.run_backward != nullptr && variant.unavailable().empty()) {
      field.registry.push_back(variant);
      field.rows.push_back(row_about(variant.name, "its gradients", dtype, true));
    }
  field.add_mutants(backward_mutants());
  RunRequest request;
  request.threads = threads;
  for (const kda::GradientRow& row : kda::gradients()) request.judging.tensors.emplace_back(row.name);
  run_field(std::move(field), gradient_target, std::move(request), log, selftest);
}

std::size_t count(const SelftestResult& result, bool healthy, bool as_it_should) {
  return static_cast<std::size_t>(std::count_if(
      result.rows.begin(), result.rows.end(),
      [&](const SelftestRow& row) { return row.healthy == healthy && row.as_it_should() == as_it_should; }));
}

}  // namespace

int SelftestResult::exit_code() const {
  int code = std::all_of(rows.begin(), rows.end(), [](const SelftestRow& row) { return row.as_it_should(); })
                 ? 0
                 : 1;
  for (const SuiteRun& run : suite_runs)
    if (!run.as_it_should()) code = 1;
  for (const report::FailedInput& error : errors) code = std::max(code, error.exit_code);
  return code;
}

SelftestResult selftest(const SelftestRequest& request, const Log& log) {
  SelftestResult result;
  result.target = target, result.suite = request.suite;
  for (const kda::Variant& variant : kda::variants())
    result.devices.emplace_back(variant.name, variant.unavailable());
  for (const numeric::DType dtype : {numeric::DType::fp64, numeric::DType::fp32, numeric::DType::bf16})
    add_rows_of(dtype, request.threads, log, result);
  result.gradient_target = gradient_target;
  for (const numeric::DType dtype : {numeric::DType::fp64, numeric::DType::fp32})
    add_gradient_rows_of(dtype, request.threads, log, result);
  if (request.lines.empty()) return result;
  const auto over_lines = [&](const auto& mutant) {
    for (SelftestRow& row : result.rows)
      if (row.name == mutant.name) {
        row.in_suite = caught_in(mutant, request, log, result.errors);
        row.suite_counts = true;
      }
  };
  for (const Mutant& mutant : mutants()) over_lines(mutant);
  for (const BackwardMutant& mutant : backward_mutants()) over_lines(mutant);
  result.suite_runs = healthy_over(request, log, result.errors);
  return result;
}

std::string selftest_text(const SelftestResult& result) {
  std::string out = "floating point: round to nearest, subnormals kept, nothing fused, fma rounds once\n";
  for (const auto& [name, reason] : result.devices)
    fmt::format_to(std::back_inserter(out), "device: {:<14} {}\n", name,
                   reason.empty() ? "here" : "not tried, " + reason);
  fmt::format_to(std::back_inserter(out), "problem: {}\n", result.target);
  fmt::format_to(std::back_inserter(out), "problem: {} (gradients)\n\n", result.gradient_target);
  for (const SelftestRow& row : result.rows) {
    const char* const verdict = row.healthy ? (row.as_it_should() ? "PASSES" : "FALSE ALARM")
                                            : (row.as_it_should() ? "CAUGHT" : "MISSED");
    fmt::format_to(std::back_inserter(out), "{:<11}  {:<22} {:<5} {}\n", verdict, row.name, row.dtype,
                   row.what);
    for (const std::string& check : row.caught_by)
      fmt::format_to(std::back_inserter(out), "             by {}\n", check);
    if (row.suite_counts)
      fmt::format_to(std::back_inserter(out), "             {}: {}\n", result.suite,
                     !row.in_suite.empty() ? "first at " + row.in_suite : "passes every line");
  }
  fmt::format_to(std::back_inserter(out),
                 "\n{} wrong kernels caught, {} missed; {} healthy ones pass, {} false alarms\n",
                 count(result, false, true), count(result, false, false), count(result, true, true),
                 count(result, true, false));
  for (const SuiteRun& run : result.suite_runs) {
    fmt::format_to(std::back_inserter(out), "{} on {}: {} comparisons pass, {} skipped, {} false alarms\n",
                   result.suite, run.threads == 1 ? "1 thread" : "2 threads", run.passed, run.skipped,
                   run.alarms.size());
    for (const std::string& alarm : run.alarms)
      fmt::format_to(std::back_inserter(out), "FALSE ALARM  {}\n", alarm);
  }
  return out;
}

std::string selftest_json(const SelftestResult& result) {
  report::Json rows = report::Json::array(), devices = report::Json::object();
  for (const SelftestRow& row : result.rows) {
    rows.push_back({{"name", row.name},
                    {"what", row.what},
                    {"dtype", row.dtype},
                    {"healthy", row.healthy},
                    {"caught_by", row.caught_by},
                    {"as_it_should", row.as_it_should()}});
    if (row.suite_counts) rows.back()["in_suite"] = row.in_suite;
  }
  report::Json runs = report::Json::array();
  for (const SuiteRun& run : result.suite_runs)
    runs.push_back({{"threads", run.threads},
                    {"passed", run.passed},
                    {"skipped", run.skipped},
                    {"alarms", run.alarms},
                    {"as_it_should", run.as_it_should()}});
  for (const auto& [name, reason] : result.devices) devices[name] = reason;
  return report::json_text({{"schema_version", 1},
                            {"tool", report::json_tool()},
                            {"request", {{"command", "selftest"}, {"argv", result.argv}}},
                            {"target", result.target},
                            {"gradient_target", result.gradient_target},
                            {"devices", devices},
                            {"rows", rows},
                            {"suite", result.suite},
                            {"suite_runs", runs},
                            {"errors", report::json_errors(result.errors)},
                            {"summary", {{"exit_code", result.exit_code()}}}});
}

}  // namespace kda_check::session
