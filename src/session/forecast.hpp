// `forecast`: what the inputs of a fixture alone say about a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/forecast.hpp"
#include "report/result.hpp"
#include "report/writers.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct ForecastRequest {
  std::string fixture;
  std::string dtype;                    ///< name; empty: the fixture's
  std::vector<std::string> arithmetic;  ///< key=value; the rest as the variant chunk has it
  std::optional<std::size_t> chunk_size;
  fixture::ReadLimits limits;
  int threads = 1;
};

struct ForecastResult {
  report::FixtureResult fixture;
  bool packed = false;
  analysis::Forecast forecast;

  /// 0 when a run of chunk with the selected arithmetic is forecast to be right, 1 when not.
  int exit_code() const { return forecast.outlook() >= analysis::Outlook::wrong ? 1 : 0; }
};

/// Throws Error{usage} for a name that does not exist, Error{input} for a file that cannot be read.
ForecastResult forecast(const ForecastRequest& request, const Log& log);

/// One line for each formulation, then the inverse, then the heads.
std::string forecast_text(const ForecastResult& result, report::Detail detail);
/// docs/json.md
std::string forecast_json(const ForecastResult& result, const std::vector<std::string>& argv);

}  // namespace kda_check::session
