#include "report/html_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "report/drawings.hpp"

namespace kda_check::report::html {

namespace {

void add_metrics(Node parent, const TensorResult& tensor) {
  if (tensor.metrics.empty()) return;
  Node list = add(parent, "ul", {}, "metrics");
  for (const auto& [name, value] : tensor.metrics) {
    Node item = add(list, "li");
    add(item, "b", name);
    say(item, " ");
    add_figure(item, value);
    if (const judge::Limit* const limit = judge::find_limit(tensor.limits, name)) {
      say(item, ", limit ");
      add_figure(item, limit->value);
      say(item, " (" + limit->source + ")");
    }
  }
}

void add_points(Node parent, const TensorResult& tensor) {
  if (tensor.points.empty()) return;
  Node body = add_table(parent, {{"worst points"}, {"got", true}, {"expected", true}, {"magnitude", true}});
  for (const PointResult& point : tensor.points) {
    Node row = add(body, "tr");
    add(row, "td", point.place);
    for (const auto& [value, hex] :
         {std::pair{point.got, &point.got_hex}, {point.expected, &point.expected_hex}}) {
      Node cell = add(row, "td", fmt::format("{:.9g} ", value), "n");
      add(cell, "code", *hex);
    }
    add(row, "td", fmt::format("{:.3g}", point.magnitude), "n");
  }
}

void add_drawings(Node parent, const TensorResult& tensor) {
  if (!tensor.profile) return;
  const std::vector<double>& growth = tensor.profile->growth;
  const bool errs = std::any_of(growth.begin(), growth.end(), [](double value) { return value != 0; });
  if (tensor.profile->distances.size() == 1 && !errs) {
    add(parent, "p", "No element differs.");
    return;
  }
  double limit = 0;
  if (const judge::Limit* const rms = judge::find_limit(tensor.limits, "rms_ratio")) limit = rms->value;
  Node figures = add(parent, "div", {}, "figures");
  add_drawing(figures, growth_drawing(*tensor.profile, limit), "Error along T: rms_ratio of each window");
  add_drawing(figures, histogram_drawing(*tensor.profile), "Elements by ULP from expected");
  if (tensor.profile->heat.groups_of_heads() > 1)  // of one head the growth shows it
    add_drawing(figures, heat_drawing(tensor.profile->heat),
                "Where the error is: rms_ratio by head and token");
}

void add_tensor(Node parent, const Row& row) {
  const TensorResult& tensor = *row.tensor;
  std::string places;
  if (tensor.worst) places = "worst element " + tensor.worst->place;
  if (!tensor.worst_window.empty())
    places += (places.empty() ? "" : "; ") + ("worst window " + tensor.worst_window);
  if (!tensor.worst_head.empty())
    places += (places.empty() ? "" : "; ") + ("worst head " + tensor.worst_head);
  if (!places.empty()) add(parent, "p", places);
  add_drawings(parent, tensor);
  if (row.is_bad()) add_points(parent, tensor);
  add_metrics(parent, tensor);
}

}  // namespace

void add_row_details(Node parent, const Document& document, const Row& row, std::size_t number) {
  Node details = add(parent, "details");
  if (row.is_bad()) set(details, "open", "");
  Node summary = add(details, "summary");
  add_verdict(summary, row.verdict);
  say(summary, fmt::format(" {}", row_and_reference(document, row)));
  Node inside = add(details, "div", {}, "inside");
  set(inside, "id", fmt::format("r{}", number));
  if (!row.reason.empty()) add(add(inside, "p"), "strong", row.reason);
  if (row.tensor != nullptr) add_tensor(inside, row);
  if (row.item == nullptr) return;
  if (!row.item->arithmetic.empty()) add(inside, "p", "arithmetic: " + row.item->arithmetic, "soft");
  if (!row.item->device.empty()) add(inside, "p", "device: " + row.item->device, "soft");
  if (!row.item->repro.empty()) add(add(inside, "p", "repro: "), "code", row.item->repro);
}

}  // namespace kda_check::report::html
