// Formats a Document can be written in, one row each. To add one: a file with its function and a row in
// writers.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "report/document.hpp"

namespace kda_check::report {

struct WriteOptions {
  Detail detail = Detail::normal;
  bool color = false;    ///< escape codes; never the only carrier of a meaning
  bool unicode = false;  ///< block characters in sparklines; else digits
};

struct Writer {
  std::string_view name;
  std::string_view summary;
  std::string (*write)(const Document& document, const WriteOptions& options);
  bool draws = false;  ///< wants TensorResult::profile
};

std::span<const Writer> writers();
/// Throws Error{usage} with a suggestion for a name that is not in the list.
const Writer& writer_named(std::string_view name);

std::string write_text(const Document& document, const WriteOptions& options);
std::string write_json(const Document& document, const WriteOptions& options);
std::string write_junit(const Document& document, const WriteOptions& options);
std::string write_github(const Document& document, const WriteOptions& options);
std::string write_summary(const Document& document, const WriteOptions& options);
std::string write_html(const Document& document, const WriteOptions& options);

/// The two parts of write_text, for a report that is shown while it grows: what is about one problem (a
/// document with that alone), and what is said at the end of the whole.
std::string text_of_problem(const Document& part, const WriteOptions& options);
std::string text_of_end(const Document& document, const WriteOptions& options);

}  // namespace kda_check::report
