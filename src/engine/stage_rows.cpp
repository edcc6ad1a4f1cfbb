#include "engine/stage_rows.hpp"

#include <fmt/format.h>

#include <utility>

#include "report/rows.hpp"

namespace kda_check::engine {

using report::Show;

report::Section stages_section(std::string path) {
  report::Section section;
  section.key = "stages";
  section.path = std::move(path);
  section.columns = {{"answer", {}, Show::words},
                     {"recorded", {}, Show::data},
                     {"dtype", {}, Show::data},
                     {"compute", {}, Show::data},
                     {"arithmetic", {}, Show::data},
                     {"divergence", {}, Show::data},
                     {"first_divergence", {}, Show::sentence},
                     {"disagreements", {}, Show::sentence},
                     {"repro", {}, Show::data}};
  return section;
}

report::Table stages_table() {
  report::Table table;
  table.key = "stages";
  table.columns = {{"name", "stage"},
                   {"verdict", {}},
                   {"dtype", {}},
                   {"rms_ratio", {}, Show::figure},
                   {"scaled_ulp", {}, Show::figure},
                   {"limit", {}, Show::figure},
                   {"twins", {}, Show::figure},
                   {"own_rms_ratio", "own rms_ratio", Show::figure},
                   {"own_scaled_ulp", "own scaled_ulp", Show::figure},
                   {"cancelled_bits", "cancelled bits", Show::tenths},
                   {"max_ulp", {}, Show::figure, report::Detail::verbose},
                   {"compared", {}, Show::data},
                   {"nonfinite", {}, Show::count},
                   {"worst", "worst at"},
                   {"reason", {}, Show::data}};
  return table;
}

std::string stages_title(const report::Entry& entry) {
  const auto word = [&](std::size_t column) { return std::get<std::string>(entry.values[column]); };
  return fmt::format("stages of {} {}{}", word(0), report::precision_text(word(2), word(3)),
                     std::get<bool>(entry.values[1]) ? ", recorded" : "");
}

}  // namespace kda_check::engine
