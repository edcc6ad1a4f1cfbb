// The one exception type. It is thrown at the borders (arguments, files, devices) and caught once, in
// cli/app.cpp; kernels and comparisons do not throw.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace kda_check {

/// Why a run could not give its answer. The value is the process's exit code; the highest that applies wins.
enum class ErrorKind : int {
  usage = 2,        ///< the command line asks for something that does not exist or cannot be
  input = 3,        ///< an input file is missing or malformed
  environment = 4,  ///< something required could not run: device, memory, an output that cannot be written
  internal = 70,    ///< a bug in kda-check
};

constexpr int exit_code(ErrorKind kind) { return static_cast<int>(kind); }

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string what, std::string where = {}, std::string hint = {});

  ErrorKind kind() const { return kind_; }
  /// The parts of the line: what was found and wanted, and the hint.
  const std::string& found() const { return what_; }
  const std::string& hint() const { return hint_; }

  /// The same error, with the file it was found in; code that checks a Problem does not know its file.
  Error in(std::string where) const { return Error(kind_, what_, std::move(where), hint_); }

  /// One line: what was found and wanted, (where), then a hint with one action.
  const char* what() const noexcept override;

 private:
  ErrorKind kind_;
  std::string what_, where_, hint_, line_;
};

}  // namespace kda_check
