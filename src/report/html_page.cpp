#include "report/html_page.hpp"

#include <fmt/format.h>

#include <iterator>

#include "report/html_style.hpp"
#include "report/markup.hpp"
#include "report/version.hpp"

namespace kda_check::report {

std::string page_begin(const std::string& title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n",
      title, html_style);
}

std::string page_end(const std::string& about) {
  return fmt::format("<footer class=\"soft\"><p>kda-check {}{}{}</p></footer>\n</body>\n</html>\n", version,
                     about.empty() ? "" : "; ", about);
}

std::string errors_html(const std::vector<FailedInput>& errors) {
  if (errors.empty()) return {};
  std::string out = "<h2>Errors</h2>\n<ul>\n";
  for (const FailedInput& error : errors)
    fmt::format_to(std::back_inserter(out), "<li>{} <span class=\"soft\">(exit code {})</span></li>\n",
                   escaped(error.message), error.exit_code);
  return out + "</ul>\n";
}

}  // namespace kda_check::report
