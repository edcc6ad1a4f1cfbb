// What the user asked for, as plain data: filled by the command line (or a line of a suite), read by the
// sessions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compare/limits.hpp"
#include "fixture/fixture.hpp"
#include "kda/oracle.hpp"
#include "kda/variants.hpp"

namespace kda_check::compare {
class Tolerances;
}

namespace kda_check::session {

/// How answers are judged; shared by run and diff.
struct JudgingRequest {
  std::vector<std::string> tensors;  ///< empty: all
  std::vector<compare::LimitRequest> limits;
  std::optional<double> atol, rtol;
  std::size_t worst = 5;
  std::shared_ptr<compare::Tolerances> tolerances;  ///< of run; null: none
  bool profile = false;  ///< keep what a report needs for drawings: 48 bytes for every token and head
};

/// Somebody's kernel behind a command line (docs/external.md).
struct ExternalProgram {
  std::string command;            ///< for /bin/sh -c, {in} and {out} standing for two fixtures
  std::string name = "external";  ///< what reports call it
  int seconds = 600;              ///< after which it is ended
};

struct RunRequest {
  std::vector<std::string> fixtures;    ///< files, directories for the .h5 files in them, regimes
  std::vector<std::string> variants;    ///< empty: all that can run
  std::vector<std::string> dtypes;      ///< names, or "fixture"; empty: fixture
  std::vector<std::string> arithmetic;  ///< key=value
  std::vector<std::string> against;     ///< "oracle", "replay", "all", names of expected groups; empty: all
  std::optional<std::size_t> chunk_size;
  std::optional<kda::OraclePrecision> oracle = kda::OraclePrecision::double_double;  ///< nullopt: none
  JudgingRequest judging;
  bool backward = true;                     ///< compare the gradients of problems that have a loss
  bool stages = false;                      ///< compare the intermediates of the chunk form too
  bool probe = false;                       ///< name the convention that explains a failure
  bool invariants = false;                  ///< what must hold whatever the inputs (docs/invariants.md)
  std::optional<ExternalProgram> external;  ///< answers beside the variants
  fixture::ReadLimits limits;
  int threads = 1;
  std::span<const kda::Variant> registry = kda::variants();  ///< where names of variants are looked up
};

/// Where a session tells the user something while it works; both may be empty.
struct Log {
  std::function<void(const std::string&)> warning;
  std::function<void(const std::string&)> progress;
};

}  // namespace kda_check::session
