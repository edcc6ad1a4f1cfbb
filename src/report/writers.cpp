#include "report/writers.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::report {

namespace {

constexpr Writer list[] = {
    {"text", "a table for people", write_text},
    {"json", "everything, for scripts (docs/json.md)", write_json},
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
