#include "report/drawings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/append.hpp"
#include "report/rows.hpp"

namespace kda_check::report {

namespace {

// All drawings share a frame, in units of about a pixel.
constexpr double width = 360, height = 196, left = 44, right = 352, top = 14, bottom = 158;
constexpr int shades = 7;

std::string drawing(const std::string& title, const std::string& body) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"><title>{}</title>{}</svg>",
                     width, height, title, title, body);
}

void text_at(std::string& out, double x, double y, const char* anchor, std::string_view text) {
  append(out, "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>", x, y, anchor, text);
}

/// Powers of ten as 0.01, 1, 100 while they are short.
std::string power_of_ten(int exponent) {
  return exponent >= -2 && exponent <= 3 ? fmt::format("{:g}", std::pow(10.0, exponent))
                                         : fmt::format("1e{}", exponent);
}

/// A logarithmic axis over whole decades.
struct Decades {
  int first, last;

  static Decades over(double least, double most) {
    Decades axis{static_cast<int>(std::floor(std::log10(least))),
                 static_cast<int>(std::ceil(std::log10(most)))};
    if (axis.first == axis.last) ++axis.last;
    return axis;
  }
  double y(double value) const {
    return bottom - (bottom - top) * (std::log10(value) - first) / static_cast<double>(last - first);
  }
  void grid(std::string& out) const {
    const int step = (last - first) / 6 + 1;
    std::string lines, labels;
    for (int exponent = first; exponent <= last; exponent += step) {
      const double at = y(std::pow(10.0, exponent));
      append(lines, "M{:.0f} {:.1f}H{:.0f}", left, at, right);
      text_at(labels, left - 5, at + 4, "end", power_of_ten(exponent));
    }
    out += "<path class=\"grid\" d=\"" + lines + "\"/>" + labels;
  }
};

/// The least and the largest that are positive and finite; first > second: there is none.
std::pair<double, double> positive_range(const std::vector<double>& values) {
  std::pair<double, double> range{HUGE_VAL, 0};
  for (const double value : values)
    if (value > 0 && std::isfinite(value))
      range = {std::min(range.first, value), std::max(range.second, value)};
  return range;
}

void token_axis(std::string& out, const ErrorMap& map) {
  text_at(out, left, bottom + 16, "start", "0");
  text_at(out, (left + right) / 2, bottom + 16, "middle",
          map.tokens_together == 1 ? "token" : fmt::format("token, windows of {}", map.tokens_together));
  text_at(out, right, bottom + 16, "end", fmt::format("{}", map.tokens - 1));
}

/// The windows as a line with dots, and crosses for those that are not finite.
std::string growth_line(const std::vector<double>& growth, const Decades& axis) {
  std::string line, dots, crosses;
  const double step = (right - left) / static_cast<double>(growth.size());
  bool connected = false;
  for (std::size_t i = 0; i < growth.size(); ++i) {
    const double value = growth[i], x = left + (static_cast<double>(i) + 0.5) * step;
    const bool drawn = value > 0 && std::isfinite(value);
    if (drawn) {
      append(line, "{}{:.1f} {:.1f}", connected ? 'L' : 'M', x, axis.y(value));
      append(dots, "M{:.1f} {:.1f}h0", x, axis.y(value));
    } else if (value != 0) {
      append(crosses, "M{:.1f} {:.0f}l6 6m0 -6l-6 6", x - 3, top - 3);
    }
    connected = drawn;
  }
  std::string out;
  if (!line.empty())
    out = "<path class=\"line\" d=\"" + line + "\"/><path class=\"dots\" d=\"" + dots + "\"/>";
  if (!crosses.empty()) out += "<path class=\"cross\" d=\"" + crosses + "\"/>";
  return out;
}

/// 1 to `shades`, by the logarithm over the range and over one decade at least; 0: no error.
int shade_of(double value, const std::pair<double, double>& range) {
  if (!(value > 0)) return 0;
  const double most = std::log10(range.second), least = std::min(std::log10(range.first), most - 1);
  const double share = (std::log10(value) - least) / (most - least);
  return std::clamp(1 + static_cast<int>(share * shades), 1, shades);
}

std::string heat_cells(const ErrorMap& map, const std::pair<double, double>& range) {
  std::string paths[shades + 1], crosses;
  const std::size_t windows = map.groups_of_tokens(), groups = map.groups_of_heads();
  for (std::size_t group = 0; group < groups; ++group)
    for (std::size_t window = 0, end; window < windows; window = end) {
      const auto shade = [&](std::size_t i) {
        const double value = map.error[group * windows + i];
        return std::isfinite(value) ? shade_of(value, range) : -1;
      };
      const int mine = shade(window);
      for (end = window + 1; end < windows && shade(end) == mine;) ++end;
      const std::size_t length = end - window;
      if (mine >= 0)
        append(paths[mine], "M{} {}h{}v1h-{}z", window, group, length, length);
      else
        for (std::size_t i = window; i < end; ++i) append(crosses, "M{} {}l1 1", i, group);
    }
  std::string out = fmt::format("<g transform=\"translate({} {}) scale({:.4f} {:.4f})\">", left, top,
                                (right - left) / static_cast<double>(windows),
                                (bottom - top - 20) / static_cast<double>(groups));
  for (int shade = 0; shade <= shades; ++shade)
    if (!paths[shade].empty()) append(out, "<path class=\"h{}\" d=\"{}\"/>", shade, paths[shade]);
  if (!crosses.empty()) append(out, "<path class=\"cross\" d=\"{}\"/>", crosses);
  return out + "</g>";
}

/// What the shades mean, below the map.
std::string heat_legend(const std::pair<double, double>& range) {
  std::string out;
  if (range.second <= 0) return out;
  const double first = left + 76, most = std::log10(range.second),
               least = std::min(std::log10(range.first), most - 1);
  for (int shade = 1; shade <= shades; ++shade)
    append(out, "<path class=\"h{}\" d=\"M{:.0f} {:.0f}h20v11h-20z\"/>", shade, first + 22 * (shade - 1),
           bottom + 24);
  text_at(out, first - 6, bottom + 34, "end", fmt::format("{:.2g}", std::pow(10.0, least)));
  text_at(out, first + 22 * shades + 4, bottom + 34, "start", fmt::format("{:.2g}", range.second));
  return out;
}

/// "largest 0.003 at t=40..47 h=2"
std::string hottest(const ErrorMap& map) {
  const auto most = std::max_element(map.error.begin(), map.error.end());
  const auto at = static_cast<std::size_t>(most - map.error.begin());
  const auto range = [](std::size_t part, std::size_t size, std::size_t count) {
    const std::size_t first = part * size, last = std::min(count, first + size) - 1;
    return first == last ? fmt::format("{}", first) : fmt::format("{}..{}", first, last);
  };
  return fmt::format("largest {} at t={} h={}", short_number(*most),
                     range(at % map.groups_of_tokens(), map.tokens_together, map.tokens),
                     range(at / map.groups_of_tokens(), map.heads_together, map.heads));
}

}  // namespace

std::string growth_drawing(const ErrorProfile& profile, double limit) {
  if (profile.growth.empty()) return {};
  auto [least, most] = positive_range(profile.growth);
  const bool has_limit = limit > 0 && std::isfinite(limit), drawn = most > 0 || has_limit;
  if (has_limit) least = std::min(least, limit), most = std::max(most, limit);
  const Decades axis = drawn ? Decades::over(least, most) : Decades{-1, 0};
  std::string out;
  axis.grid(out);
  token_axis(out, profile.heat);
  if (has_limit) {
    append(out, "<path class=\"limit\" d=\"M{:.0f} {:.1f}H{:.0f}\"/>", left, axis.y(limit), right);
    // Below the axis, where no curve is.
    const double middle = (left + right) / 2;
    append(out, "<path class=\"limit\" d=\"M{:.0f} {:.0f}H{:.0f}\"/>", middle - 64, bottom + 28, middle - 42);
    text_at(out, middle - 38, bottom + 32, "start", "limit of the whole");
  }
  out += growth_line(profile.growth, axis);
  const auto clean = [](double value) { return value == 0; };
  if (std::all_of(profile.growth.begin(), profile.growth.end(), clean))
    text_at(out, (left + right) / 2, (top + bottom) / 2 + 4, "middle", "no error at any token");
  return drawing("rms_ratio along T: " + hottest(profile.heat), out);
}

std::string series_drawing(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [least, most] = positive_range(values);
  const Decades axis = most > 0 ? Decades::over(least, most) : Decades{-1, 0};
  std::string out;
  axis.grid(out);
  out += growth_line(values, axis);
  return drawing(fmt::format("from {} to {}", short_number(values.front()), short_number(values.back())),
                 out);
}

std::string histogram_drawing(const ErrorProfile& profile) {
  const std::vector<std::uint64_t>& counts = profile.distances;
  if (counts.empty()) return {};
  const double most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  const Decades axis = Decades::over(0.5, std::max(most, 1.0));  // so that one element has a bar
  const double step = (right - left) / static_cast<double>(counts.size());
  std::string out, bars;
  axis.grid(out);
  const std::size_t labelled = counts.size() / 8 + 1;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double x = left + static_cast<double>(i) * step;
    const double y = counts[i] == 0 ? bottom : axis.y(static_cast<double>(counts[i]));
    if (counts[i] > 0)
      append(bars, "M{:.1f} {:.0f}V{:.1f}h{:.1f}V{:.0f}z", x + step * 0.1, bottom, y, step * 0.8, bottom);
    if (i % labelled != 0) continue;
    text_at(out, x + step / 2, bottom + 16, "middle",
            i == 0    ? "0"
            : i <= 10 ? fmt::format("{}", 1u << (i - 1))
                      : fmt::format("2^{}", i - 1));
  }
  out += "<path class=\"bar\" d=\"" + bars + "\"/>";
  text_at(out, (left + right) / 2, bottom + 32, "middle", "steps from expected, from this power of two on");
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  return drawing(fmt::format("elements by steps from expected: {} of {} differ", total - counts[0], total),
                 out);
}

std::string heat_drawing(const ErrorMap& map) {
  if (map.error.empty()) return {};
  const std::pair<double, double> range = positive_range(map.error);
  std::string out = heat_cells(map, range);
  append(out, "<path class=\"frame\" d=\"M{} {}H{}V{}H{}z\"/>", left, top, right, bottom - 20, left);
  text_at(out, left - 5, top + 10, "end", "h=0");
  if (map.heads > 1) text_at(out, left - 5, bottom - 22, "end", fmt::format("h={}", map.heads - 1));
  text_at(out, left, bottom - 4, "start", "0");
  text_at(out, (left + right) / 2, bottom - 4, "middle", "tokens");
  text_at(out, right, bottom - 4, "end", fmt::format("{}", map.tokens - 1));
  const std::string caption = hottest(map);
  text_at(out, (left + right) / 2, bottom + 13, "middle", caption);
  out += heat_legend(range);
  return drawing("rms_ratio by heads and tokens: " + caption, out);
}

std::string shares_drawing(const std::string& title, const std::vector<ShareBar>& bars) {
  if (bars.empty()) return {};
  constexpr double margin = 8, step = 30, thickness = 9, span = width - 2 * margin;
  double least = 0, most = 1;
  for (const ShareBar& bar : bars)
    if (std::isfinite(bar.share)) least = std::min(least, bar.share), most = std::max(most, bar.share);
  const double zero = margin - span * least / (most - least), whole = span / (most - least);
  const double tall = step * static_cast<double>(bars.size()) + margin;
  std::string out, more, less;
  append(out, "<path class=\"grid\" d=\"M{:.1f} 4V{:.0f}M{:.1f} 4V{:.0f}\"/>", zero, tall - 4, zero + whole,
         tall - 4);
  double y = 15;
  for (const ShareBar& bar : bars) {
    text_at(out, margin, y, "start", bar.name);
    const bool is_number = std::isfinite(bar.share);
    // Rounded first, so that nothing prints as -0.0.
    text_at(out, width - margin, y, "end",
            is_number ? fmt::format("{:.1f} %", std::round(1000 * bar.share) / 10 + 0.0) : "-");
    if (is_number)
      append(bar.share < 0 ? less : more, "M{:.1f} {:.0f}h{:.2f}v{:.0f}H{:.1f}z", zero, y + 4,
             bar.share * whole, thickness, zero);
    y += step;
  }
  if (!more.empty()) out += "<path class=\"bar\" d=\"" + more + "\"/>";
  if (!less.empty()) out += "<path class=\"bar less\" d=\"" + less + "\"/>";
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"><title>{}</title>{}</svg>",
                     width, tall, title, title, out);
}

std::string scatter_drawing(const std::string& along, const std::string& over,
                            const std::vector<NamedDot>& dots) {
  const auto has_place = [](double value) { return value > 0 && std::isfinite(value); };
  std::vector<double> across, up;
  for (const NamedDot& dot : dots) across.push_back(dot.along), up.push_back(dot.over);
  const auto [least_x, most_x] = positive_range(across);
  const auto [least_y, most_y] = positive_range(up);
  if (!(most_x > 0) || !(most_y > 0)) return {};
  const Decades x = Decades::over(least_x, most_x), y = Decades::over(least_y, most_y);
  const auto place = [&](double value) {
    return left + (right - left) * (std::log10(value) - x.first) / static_cast<double>(x.last - x.first);
  };
  std::string out, marks;
  y.grid(out);
  for (int exponent = x.first; exponent <= x.last; ++exponent)
    text_at(out, place(std::pow(10.0, exponent)), bottom + 16, "middle", power_of_ten(exponent));
  text_at(out, (left + right) / 2, bottom + 32, "middle", along);
  for (const NamedDot& dot : dots) {
    if (!has_place(dot.along) || !has_place(dot.over)) continue;
    const double at = place(dot.along), height_of = y.y(dot.over);
    append(marks, "M{:.1f} {:.1f}h0", at, height_of);
    const bool is_right = at > (left + right) / 2;
    text_at(out, at + (is_right ? -6 : 6), height_of + 4, is_right ? "end" : "start", dot.name);
  }
  out += "<path class=\"dots\" d=\"" + marks + "\"/>";
  return drawing(over + " over " + along, out);
}

}  // namespace kda_check::report
