#include "bench/rivals.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/scratch_file.hpp"
#include "base/shell.hpp"
#include "base/shell_text.hpp"
#include "fixture/fixture.hpp"
#include "fixture/writer.hpp"
#include "kda/pool/pool.hpp"
#include "numeric/formats.hpp"

namespace kda_check::bench {

namespace {

constexpr int patience = 600;       ///< seconds; kernels are tuned
constexpr int steps_together = 20;  ///< of decoding, as ours are timed

/// Numbers between blanks.
std::vector<double> numbers(const std::string& text) {
  std::vector<double> found;
  const char* at = text.c_str();
  for (char* end = nullptr;; at = end) {
    const double value = std::strtod(at, &end);
    if (end == at) return found;
    found.push_back(value);
  }
}

std::vector<double> seconds_in(const fixture::Fixture& answer, std::string_view name) {
  for (const auto& [key, value] : answer.provenance())
    if (key == name) return numbers(value);
  return {};
}

/// Its last line says why.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of("\n");
  if (end == std::string::npos) return "it said nothing";
  const std::size_t begin = text.find_last_of('\n', end);
  std::string line = text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
  constexpr std::string_view ours = "kda-check: error: ";
  return printable(line.starts_with(ours) ? line.substr(ours.size()) : line);
}

}  // namespace

const std::vector<std::string>& rival_names() {
  static const std::vector<std::string> names{"fla", "fla-recurrent", "flash-kda"};  // KERNELS of _timing.py
  return names;
}

Contestant rival(const std::string& name, const kda::Problem& problem, numeric::DType dtype,
                 const BenchRequest& request) {
  const ScratchFile in(".h5"), out(".h5");
  fixture::WriteRequest question;
  question.name = "bench", question.problem = &problem, question.compression = 0;
  fixture::write_fixture(in.path(), question);
  const std::string command =
      fmt::format("python3 -m kda_check time {} {} {} --repeats {} --configs {} --together {}", name,
                  shell_quoted(in.path()), shell_quoted(out.path()), request.repeats, request.configs,
                  request.decode > 0 ? steps_together : 1);
  const ShellResult done = run_shell(command, patience);
  if (done.timed_out)
    throw Error(ErrorKind::environment, fmt::format("{}: no answer within {} s", name, patience));
  if (done.status != 0 || done.signal != 0) {
    const std::string said = last_line(done.tail);
    throw Error(
        ErrorKind::environment, fmt::format("{}: {}", name, said), {},
        said.find("; hint: ") == std::string::npos ? "python3 needs kda_check, PyTorch and the kernel" : "");
  }
  fixture::ReadLimits limits;
  limits.memory_budget = request.memory_budget, limits.threads = request.threads;
  const fixture::Fixture answer = fixture::Fixture::open(out.path(), limits);
  const fixture::ExpectedGroup* const group = answer.expected_named(name);
  const std::vector<double> times = seconds_in(answer, "seconds"), launched = seconds_in(answer, "launched");
  if (group == nullptr || times.empty())
    throw Error(ErrorKind::environment, name + ": its answer lacks what `python -m kda_check time` writes");
  Contestant result;
  result.row.variant = name;
  result.row.dtype = numeric::name_of(dtype);
  result.row.arithmetic = group->implementation;
  result.row.device = group->device;
  result.row.pass = request.words.selection.pass.value_or(kda::Pass::forward);
  result.dtype = dtype;
  result.problem = &problem;
  if (launched.empty())
    result.time = [times](int) { return times; };
  else
    result.time_steps = [times, launched](int) { return kda::StepSeconds{times, launched}; };
  const auto tensors = std::make_shared<kda::Tensors>();
  for (const char* const tensor : {"o", "final_state", "state_pool"})
    if (const fixture::DatasetInfo* const info = group->tensor(tensor))
      tensors->emplace(tensor, answer.read(*info));
  if (problem.pool) *tensors = kda::of_ordinary_form(*problem.pool, std::move(*tensors));
  if (result.row.pass == kda::Pass::forward) result.answer = [tensors] { return tensors; };
  return result;
}

}  // namespace kda_check::bench
