// One page that needs nothing but itself: no network, no scripts, light or dark as the reader's system is. It
// is HTML5 and well-formed XML at once, so that any parser can check it.
#include <fmt/format.h>

#include <set>
#include <sstream>

#include "base/names.hpp"
#include "base/version.hpp"
#include "report/html_nodes.hpp"
#include "report/html_rows.hpp"
#include "report/html_sections.hpp"
#include "report/html_style.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

using html::add;
using html::Node;
using html::say;
using html::set;

constexpr std::size_t most_details = 1'750'000;  // bytes; what did not pass comes first

/// The rows of the page, numbered, each with its details or none where the page would grow too long.
class Page {
 public:
  explicit Page(const Document& document) : document_(document), problems_(rows_by_problem(document)) {
    choose_details();
  }

  std::string text() {
    Node root = xml_.append_child("html");
    set(root, "lang", "en");
    add_head(add(root, "head"));
    Node body = add(root, "body");
    add_header(add(body, "header"));
    Node main = add(body, "main");
    add_failures(main);
    add_bad_rows(main);
    for (const ProblemRows& problem : problems_)
      if (problem.path.empty()) add_sections(main, problem);
    add_table(main);
    add_details(main);
    add(add(body, "footer", {}, "soft"), "p", fmt::format("kda-check {}", version));
    std::ostringstream out;
    out << "<!DOCTYPE html>\n";
    xml_.save(out, "", pugi::format_raw | pugi::format_no_declaration, pugi::encoding_utf8);
    return out.str() + "\n";
  }

 private:
  template <class Body>
  void over_rows(Body body) const {
    std::size_t number = 0;
    for (const ProblemRows& problem : problems_)
      for (const Row& row : problem.rows) body(problem, row, ++number);
  }

  /// By what they would take, written alone.
  void choose_details() {
    std::size_t size = 0;
    for (const bool bad : {true, false})
      over_rows([&](const ProblemRows&, const Row& row, std::size_t number) {
        if (row.is_bad() != bad || size >= most_details) return;
        pugi::xml_document alone;
        html::add_row_details(alone, document_, row, number);
        std::ostringstream out;
        alone.save(out, "", pugi::format_raw | pugi::format_no_declaration);
        size += out.str().size();
        detailed_.insert(number);
      });
  }

  void add_head(Node head) const {
    set(head.append_child("meta"), "charset", "utf-8");
    Node view = head.append_child("meta");
    set(view, "name", "viewport");
    set(view, "content", "width=device-width, initial-scale=1");
    add(head, "title", fmt::format("{} - kda-check {}", outcome(document_), document_.command));
    head.append_child("style").append_child(pugi::node_pcdata).set_value(html_style);
  }

  void add_header(Node header) const {
    Node title = add(header, "h1");
    if (document_.judges || exit_code(document_) != 0) {
      html::add_verdict(title, exit_code(document_) == 0 ? Verdict::pass : Verdict::fail);
      say(title, " ");
    }
    say(title, "kda-check " + document_.command);
    if (document_.judges) add(header, "p", counts_text(document_) + ".");
    if (const std::string failure = unexplained_failure(document_); !failure.empty())
      add(add(header, "p"), "strong", failure);
    if (!document_.argv.empty())
      add(add(header, "p", {}, "soft"), "code", "kda-check " + join(document_.argv, " "));
  }

  void add_failures(Node main) const {
    if (document_.failures.empty()) return;
    add(main, "h2", "Errors");
    Node list = add(main, "ul");
    for (const Failure& failure : document_.failures) {
      Node item = add(list, "li", failure.message + " ");
      add(item, "span", fmt::format("(exit code {})", failure.exit_code), "soft");
    }
  }

  /// To the details of the row, where there are some.
  Node link(Node parent, std::size_t number) const {
    if (!detailed_.contains(number)) return parent;
    Node anchor = add(parent, "a");
    set(anchor, "href", fmt::format("#r{}", number));
    return anchor;
  }

  void add_bad_rows(Node main) const {
    Node list;
    over_rows([&](const ProblemRows& problem, const Row& row, std::size_t number) {
      if (!row.is_bad()) return;
      if (!list) {
        add(main, "h2", "What did not pass");
        list = add(main, "ul");
      }
      Node item = add(list, "li");
      html::add_verdict(item, row.verdict);
      say(item, " ");
      say(link(item, number), problem.name + " " + row_and_reference(document_, row));
      say(item, ": " + row.reason);
    });
  }

  void add_row(Node body, const Row& row, std::size_t number) const {
    const TensorResult* const tensor = row.tensor;
    Node line = add(body, "tr");
    html::add_verdict(link(add(line, "td"), number), row.verdict);
    add(line, "td", row.item ? row.item->variant : row.entry);
    add(line, "td", row.item ? precision_text(*row.item) : std::string());
    add(line, "td", tensor ? tensor->name : std::string());
    html::say_words(add(line, "td"), row.item ? reference_text(document_, *row.item) : std::string());
    if (tensor == nullptr) {
      Node cell = add(line, "td");
      html::say_words(cell, row.reason);
      return set(cell, "colspan", "6");
    }
    for (const char* const name : {"rms_ratio", "scaled_ulp", "max_abs", "max_ulp"}) {
      Node cell = add(line, "td", {}, "n");
      if (const double* const value = metric(*tensor, name))
        html::add_figure(cell, *value);
      else
        say(cell, "-");
    }
    add(line, "td", closest_limit(*tensor));
    html::say_words(add(line, "td"), tensor->worst ? tensor->worst->place : "-");
  }

  void add_table(Node main) const {
    Node body;
    const ProblemRows* current = nullptr;
    over_rows([&](const ProblemRows& problem, const Row& row, std::size_t number) {
      if (!body) {
        add(main, "h2", "All rows");
        body = html::add_table(main, {{"verdict"},
                                      {"answer"},
                                      {"dtype/compute"},
                                      {"tensor"},
                                      {"against"},
                                      {"rms_ratio", true},
                                      {"scaled_ulp", true},
                                      {"max_abs", true},
                                      {"max_ulp", true},
                                      {"of its limit"},
                                      {"worst at"}});
        set(body.parent(), "id", "rows");
      }
      if (current != &problem) {
        Node heading = add(add(body, "tr"), "th", problem.name + " ", "group");
        set(heading, "colspan", "11");
        set(heading, "scope", "rowgroup");
        if (problem.problem != nullptr) add(heading, "span", problem.problem->shape, "soft");
      }
      current = &problem;
      add_row(body, row, number);
    });
  }

  void add_sections(Node parent, const ProblemRows& problem) const {
    for (const Section* const section : problem.sections) html::add_section(parent, *section);
  }

  void add_details(Node main) const {
    std::size_t number = 0, missing = 0;
    bool headed = false;
    for (const ProblemRows& problem : problems_) {
      if (problem.path.empty()) {
        number += problem.rows.size();
        continue;
      }
      if (!headed) add(main, "h2", document_.judges ? "Row by row" : "One by one");
      headed = true;
      Node part = add(main, "section");
      add(part, "h3", problem.name);
      if (problem.path != problem.name) add(part, "p", problem.path, "soft");
      if (problem.problem != nullptr) {
        add(part, "p", problem.problem->shape + "; " + problem.problem->options, "soft");
        for (const std::string& note : problem.problem->notes) add(part, "p", "note: " + note);
      }
      add_sections(part, problem);
      for (const Row& row : problem.rows) {
        if (detailed_.contains(++number))
          html::add_row_details(part, document_, row, number);
        else
          ++missing;
      }
    }
    if (missing > 0)
      add(main, "p", fmt::format("The page would grow too long: {} rows are in the table alone.", missing));
  }

  const Document& document_;
  const std::vector<ProblemRows> problems_;
  pugi::xml_document xml_;
  std::set<std::size_t> detailed_;  ///< the numbers of rows with details, from 1
};

}  // namespace

std::string write_html(const Document& document, const WriteOptions&) { return Page(document).text(); }

}  // namespace kda_check::report
