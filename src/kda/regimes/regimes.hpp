// Regimes: named recipes for problems on which formulations of KDA are known to fail, or on which none may
// (docs/scenarios.md). One row each, in kda/regimes/*.cpp by idea.
//
// A problem is a function of the recipe and its settings. Inputs are drawn in fp64; q, k, v and the initial
// state are then rounded to the dtype, g and beta to fp32, so that no kernel is charged for the rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kda/problem/outline.hpp"

namespace kda_check::kda {

/// A number a recipe can be given, and what it may be.
struct Parameter {
  std::string_view name;
  std::string_view summary;
  double value;  ///< when nothing is given
  double least, most;
  bool whole = false;
};

/// The values of all parameters of a recipe.
class Settings {
 public:
  explicit Settings(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {}

  /// The value of a parameter the recipe has.
  double operator[](std::string_view name) const;
  std::size_t count(std::string_view name) const { return static_cast<std::size_t>((*this)[name]); }
  std::uint64_t seed() const { return static_cast<std::uint64_t>((*this)["seed"]); }

  std::span<const Parameter> all() const { return parameters_; }
  Parameter* find(std::string_view name);

  /// "B=1,T=128,...,dtype=fp32": words that give these settings again.
  std::string text() const;

  numeric::DType dtype = numeric::DType::fp32;

 private:
  std::vector<Parameter> parameters_;
};

struct Recipe {
  std::string_view name;
  std::string_view summary;
  std::string_view source;  ///< the public reports it comes from, as the project's design notes number them
  /// Its own parameters, and those of the shared ones (B T H HV K V C seed loss size) whose default differs.
  std::vector<Parameter> parameters;
  Problem (*build)(const Settings& settings);
};

std::span<const Recipe> recipes();
/// The row of that name, or null.
const Recipe* find_recipe(std::string_view name);

/// Parameters every recipe has: B, T, H, HV (0: as many as H), K, V, C (rows of a chunk), seed, loss (do and
/// dht: 0 or 1), size (v and the initial state times it).
std::span<const Parameter> shared_parameters();

/// "NAME" or "NAME:key=value,...", understood.
struct RegimeRequest {
  std::string text;  ///< as typed
  const Recipe* recipe;
  Settings settings;
  /// "fault", "by" and "compute", of an output that is made beside the problem (plan/made_output.hpp).
  std::map<std::string, std::string, std::less<>> output = {};

  /// Validated. Throws Error{usage} for settings that contradict each other.
  Problem build() const;
  /// Of what build() would give, drawing no more tokens than it takes to know. Throws as build() does.
  Outline outline() const;
  /// What the tensors take while they are drawn, roughly; known before anything is.
  std::size_t bytes() const;
};

/// True for a text that starts with the name of a recipe, alone or followed by a colon.
bool names_recipe(std::string_view text);

/// Throws Error{usage}: an unknown name, key or dtype with a suggestion, a value out of range with the range.
RegimeRequest parse_regime(std::string_view text);

}  // namespace kda_check::kda
