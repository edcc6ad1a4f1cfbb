// One page that needs nothing but itself: no network, no scripts, light or dark as the reader's system is. It
// is HTML5 and well-formed XML at once, so that any parser can check it.
#include <fmt/format.h>

#include <iterator>
#include <map>

#include "base/names.hpp"
#include "report/html_details.hpp"
#include "report/html_page.hpp"
#include "report/markup.hpp"
#include "report/stages_writers.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

constexpr std::size_t most_details = 1'750'000;  // bytes; what did not pass comes first

template <class... Values>
void add(std::string& out, fmt::format_string<Values...> text, Values&&... values) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Values>(values)...);
}

/// The rows of the page, numbered, each with its details or none where the page would grow too long.
class Page {
 public:
  explicit Page(const Result& result) : result_(result), fixtures_(rows_by_fixture(result)) {
    std::size_t size = 0;
    for (const bool bad : {true, false}) {
      std::size_t number = 0;
      for (const FixtureRows& fixture : fixtures_)
        for (const Row& row : fixture.rows) {
          ++number;
          if (row.is_bad() != bad || size >= most_details) continue;
          size += details_.emplace(number, details_html(result, row, number)).first->second.size();
        }
    }
  }

  std::string text() const {
    const bool clean = result_.exit_code() == 0;
    std::string out =
        page_begin(fmt::format("{} - kda-check {}", clean ? "PASS" : "FAIL", escaped(result_.command)));
    add_header(out, clean);
    out += errors_html(result_.errors);
    add_bad_rows(out);
    add_table(out);
    for (const StageCase& item : result_.stages) out += stages_html(item);
    add_details(out);
    out += page_end("oracle: " + escaped(result_.oracle));
    return out;
  }

 private:
  void add_header(std::string& out, bool clean) const {
    add(out, "<header>\n<h1>{} kda-check {}</h1>\n<p>{} ({} {}).</p>\n",
        verdict_html(clean ? compare::Verdict::pass : compare::Verdict::fail), escaped(result_.command),
        counts_text(result_), fixtures_.size(), fixtures_.size() == 1 ? "fixture" : "fixtures");
    if (const std::string failure = unexplained_failure(result_); !failure.empty())
      add(out, "<p><strong>{}</strong></p>\n", escaped(failure));
    if (!result_.argv.empty())
      add(out, "<p class=\"soft\"><code>kda-check {}</code></p>\n", escaped(join(result_.argv, " ")));
    out += "</header>\n<main>\n";
  }

  template <class Body>
  void over_rows(Body body) const {
    std::size_t number = 0;
    for (const FixtureRows& fixture : fixtures_)
      for (const Row& row : fixture.rows) body(fixture, row, ++number);
  }

  /// To the details of the row, where there are some.
  std::string link(std::size_t number, const std::string& content) const {
    return details_.contains(number) ? fmt::format("<a href=\"#r{}\">{}</a>", number, content) : content;
  }

  void add_bad_rows(std::string& out) const {
    std::string list;
    over_rows([&](const FixtureRows& fixture, const Row& row, std::size_t number) {
      if (!row.is_bad()) return;
      add(list, "<li>{} {}: {}</li>\n", verdict_html(row.verdict),
          link(number, escaped(fixture.name + " " + row_and_reference(result_, row))), escaped(row.reason));
    });
    if (!list.empty()) out += "<h2>What did not pass</h2>\n<ul>\n" + list + "</ul>\n";
  }

  void add_row(std::string& out, const Row& row, std::size_t number) const {
    const TensorResult* const tensor = row.tensor;
    add(out, "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"wrap\">{}</td>",
        link(number, verdict_html(row.verdict)), escaped(row.item->variant),
        escaped(precision_text(*row.item)), tensor ? escaped(tensor->name) : "",
        escaped(reference_text(result_, *row.item)));
    if (tensor == nullptr) {
      add(out, "<td class=\"wrap\" colspan=\"6\">{}</td></tr>\n", escaped(row.reason));
      return;
    }
    for (const char* const name : {"max_ulp", "scaled_ulp", "max_abs", "rms_ratio"}) {
      const double* const value = metric(*tensor, name);
      add(out, "<td class=\"n\">{}</td>", value ? figure_html(*value) : "-");
    }
    add(out, "<td>{}</td><td>{}</td></tr>\n", escaped(closest_limit(*tensor)),
        tensor->worst ? escaped(tensor->worst->place) : "-");
  }

  void add_table(std::string& out) const {
    std::string body;
    const FixtureRows* current = nullptr;
    over_rows([&](const FixtureRows& fixture, const Row& row, std::size_t number) {
      if (current != &fixture)
        add(body,
            "<tr><th class=\"group\" colspan=\"11\" scope=\"rowgroup\">{} <span "
            "class=\"soft\">{}</span></th></tr>\n",
            escaped(fixture.name), fixture.fixture ? escaped(fixture.fixture->shape) : "");
      current = &fixture;
      add_row(body, row, number);
    });
    if (body.empty()) return;
    out +=
        "<h2>All rows</h2>\n<div class=\"scroll\"><table "
        "id=\"rows\"><thead><tr><th>verdict</th><th>answer</th>"
        "<th>dtype/compute</th><th>tensor</th><th>against</th><th class=\"n\">max_ulp</th>"
        "<th class=\"n\">scaled_ulp</th><th class=\"n\">max_abs</th><th class=\"n\">rms_ratio</th>"
        "<th>closest limit</th><th>worst at</th></tr></thead>\n<tbody>\n" +
        body + "</tbody></table></div>\n";
  }

  void add_details(std::string& out) const {
    std::size_t number = 0;
    if (!fixtures_.empty()) out += "<h2>Row by row</h2>\n";
    for (const FixtureRows& fixture : fixtures_) {
      add(out, "<section>\n<h3>{}</h3>\n<p class=\"soft\">{}</p>\n", escaped(fixture.name),
          escaped(fixture.path));
      if (fixture.fixture != nullptr) {
        add(out, "<p class=\"soft\">{}; {}</p>\n", escaped(fixture.fixture->shape),
            escaped(fixture.fixture->options));
        for (const std::string& note : fixture.fixture->notes) add(out, "<p>note: {}</p>\n", escaped(note));
      }
      for (std::size_t i = 0; i < fixture.rows.size(); ++i)
        if (const auto found = details_.find(++number); found != details_.end()) out += found->second;
      out += "</section>\n";
    }
    if (details_.size() < number)
      add(out, "<p>The page would grow too long: {} rows are in the table alone.</p>\n",
          number - details_.size());
    out += "</main>\n";
  }

  const Result& result_;
  std::vector<FixtureRows> fixtures_;
  std::map<std::size_t, std::string> details_;  ///< by the number of the row, from 1
};

}  // namespace

std::string write_html(const Result& result, const WriteOptions&) { return Page(result).text(); }

}  // namespace kda_check::report
