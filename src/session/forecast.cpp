#include "session/forecast.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/variants.hpp"
#include "session/describe.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

namespace {

using numeric::DType;

DType wanted_dtype(const std::string& name, DType of_fixture) {
  if (name.empty() || name == "fixture") return of_fixture;
  if (const auto dtype = numeric::dtype_named(name)) return *dtype;
  std::vector<std::string> names{"fixture"};
  for (const numeric::Format& format : numeric::formats) names.emplace_back(format.name);
  throw Error(ErrorKind::usage, fmt::format("no dtype '{}'", name), {}, suggest(name, names));
}

}  // namespace

ForecastResult forecast(const ForecastRequest& request, const Log& log) {
  kda::Arithmetic unused;
  for (const std::string& assignment : request.arithmetic) kda::set_axis(unused, assignment);
  Source file = Source::open(request.fixture, request.limits);
  const auto warn = [&](const std::string& text) {
    if (log.warning) log.warning(fmt::format("{} ({})", text, file.path()));
  };
  for (const std::string& warning : file.warnings()) warn(warning);
  kda::RunOptions options;
  options.dtype = wanted_dtype(request.dtype, file.dtype());
  const report::FixtureResult described = describe(file);
  kda::Problem problem = file.take_problem();
  for (const std::string& line : fixture::announce_values(problem)) warn(line);
  if (options.dtype != problem.dtype()) problem = kda::with_inputs_rounded_to(problem, options.dtype);

  const kda::Variant& chunk = kda::variant_named("chunk");
  options.chunk_size = request.chunk_size.value_or(static_cast<std::size_t>(problem.options.chunk_size));
  options.threads = request.threads;
  options.arithmetic = chunk.default_arithmetic(problem, options.dtype);
  for (const std::string& assignment : request.arithmetic) kda::set_axis(options.arithmetic, assignment);
  if (const std::string reason = kda::unsupported(options.arithmetic, options.dtype); !reason.empty())
    throw Error(ErrorKind::usage, fmt::format("--dtype {}: {}", numeric::name_of(options.dtype), reason));
  if (log.progress) log.progress(fmt::format("{}: forecast", file.name()));
  return {described, problem.packed(), analysis::forecast(problem, options)};
}

}  // namespace kda_check::session
