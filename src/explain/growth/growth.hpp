// How an error goes along T: windows, a power law fitted to them, and where a limit is first crossed. Pure
// computation on the errors of single tokens (judge/series).
//
// A position is the place of a token in its sequence, from 0, counted from its first token or back from its
// last. Sequences of a packed batch and rows of a batch are laid over each other: window p holds the tokens
// at positions [p N, (p + 1) N) of all of them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "judge/measures/series.hpp"
#include "kda/problem/problem.hpp"

namespace kda_check::explain {

/// Where positions start: errors of the carried state grow from the first token, those of its gradient from
/// the last.
enum class Origin : unsigned char { start, end };
std::string_view name_of(Origin origin);

struct Window {
  std::size_t first, last;  ///< positions, both inclusive
  double rms_ratio = 0, scaled_ulp = 0, max_abs = 0;
  double bias = 0;  ///< the share of the expected values that is too much, or below 0 missing; NaN: unknown
};

/// log(error) = slope log(t) + constant by least squares, t = middle of a window, counted from 1. Windows
/// whose error is zero or not finite are left out.
struct Fit {
  std::size_t points = 0;
  double slope = 0;
  double standard_error = 0;  ///< of the slope, from the residuals
  double r2 = 0;              ///< share of the variance of log(error) that the line explains
};

enum class Trend : unsigned char { grows, falls, steady, unclear };
std::string_view name_of(Trend trend);

struct HeadGrowth {
  double rms_ratio = 0;  ///< over all tokens
  Fit fit;
  std::vector<double> window_rms_ratio;
};

struct Growth {
  std::vector<Window> windows;  ///< over all heads
  double bias = 0;              ///< of all of them
  Fit fit;                      ///< of their rms_ratio
  Trend trend = Trend::unclear;
  std::vector<HeadGrowth> heads;
  std::size_t worst_head = 0;  ///< by rms_ratio over all tokens
};

/// `window` tokens to a window, at least 1. The series must not be empty.
Growth growth_of(const judge::TokenSeries& series, const std::vector<kda::Sequence>& sequences,
                 std::size_t window, Origin origin = Origin::start);

/// Points with t <= 0, or a value that is zero or not finite, are left out.
Fit fit_power_law(std::span<const double> t, std::span<const double> error);

/// `grows` and `falls` want a slope of at least 0.2 either way that is three standard errors from 0 and a
/// line that explains half of the variance; `steady` a slope below that, known to 0.2; all else is `unclear`.
Trend trend_of(const Fit& fit);

/// What a limit can be set on here.
enum class GrowthMetric : unsigned char { rms_ratio, scaled_ulp, max_abs };
/// nullopt for any other name.
std::optional<GrowthMetric> growth_metric(std::string_view name);

struct Crossing {
  std::size_t position;             ///< in its sequence
  std::size_t row, token, head;     ///< in the tensor
  std::optional<std::size_t> lane;  ///< the element, for metrics of single elements
  double value;
};

/// The first position where a limit is exceeded: for scaled_ulp and max_abs the very token (of several at one
/// position the worst), for rms_ratio the first token of the first window, with its worst head.
std::optional<Crossing> first_crossing(const judge::TokenSeries& series,
                                       const std::vector<kda::Sequence>& sequences, std::size_t window,
                                       GrowthMetric metric, double limit, Origin origin = Origin::start);

}  // namespace kda_check::explain
