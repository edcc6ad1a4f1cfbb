#include "report/writers.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::report {

namespace {

constexpr Writer list[] = {
    {"text", "a table for people", write_text},
    {"json", "everything, for scripts (docs/ci.md)", write_json},
    {"junit", "JUnit XML, for the test panel of a CI system", write_junit},
    {"github", "annotations of a GitHub workflow: the first ten of what did not pass", write_github},
    {"summary", "Markdown for the summary of a GitHub job", write_summary},
    {"html", "one page with drawings, needing no network (docs/ci.md)", write_html, true},
};

}  // namespace

std::span<const Writer> writers() { return list; }

const Writer& writer_named(std::string_view name) {
  std::vector<std::string> names;
  for (const Writer& writer : list) {
    if (writer.name == name) return writer;
    names.emplace_back(writer.name);
  }
  throw Error(ErrorKind::usage, fmt::format("no report format '{}'", name), {}, suggest(name, names));
}

}  // namespace kda_check::report
