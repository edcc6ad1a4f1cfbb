// Formats a Result can be written in, one row each. To add one: a file with its function and a row in
// writers.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "report/result.hpp"

namespace kda_check::report {

enum class Detail : unsigned char { quiet, normal, verbose };

struct WriteOptions {
  Detail detail = Detail::normal;
  bool color = false;    ///< escape codes; never the only carrier of a meaning
  bool unicode = false;  ///< block characters in sparklines; else digits
};

struct Writer {
  std::string_view name;
  std::string_view summary;
  std::string (*write)(const Result& result, const WriteOptions& options);
  bool draws = false;  ///< wants TensorResult::profile
};

std::span<const Writer> writers();
/// Throws Error{usage} with a suggestion for a name that is not in the list.
const Writer& writer_named(std::string_view name);

std::string write_text(const Result& result, const WriteOptions& options);
std::string write_json(const Result& result, const WriteOptions& options);
std::string write_junit(const Result& result, const WriteOptions& options);
std::string write_github(const Result& result, const WriteOptions& options);
std::string write_summary(const Result& result, const WriteOptions& options);
std::string write_html(const Result& result, const WriteOptions& options);

}  // namespace kda_check::report
