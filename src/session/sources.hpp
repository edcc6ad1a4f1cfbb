// What a target stands for: a fixture file, or a regime that is built here. Everything that runs on problems
// takes them from a Source and need not know which it is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fixture/fixture.hpp"
#include "kda/regimes.hpp"

namespace kda_check::session {

/// True for a target that names a regime and no file.
bool is_regime(const std::string& target);

/// Builds a regime, within a budget. Throws Error{usage}; Error{input} beyond the budget.
kda::Problem build_regime(const kda::RegimeRequest& regime, const fixture::ReadLimits& limits);

class Source {
 public:
  /// A file is opened and checked, a regime built. Throws Error{input} for a file, Error{usage} for a regime
  /// or for a word that is neither, a suite for one.
  static Source open(const std::string& target, const fixture::ReadLimits& limits);

  const std::string& path() const { return path_; }  ///< the target as given
  const std::string& name() const { return name_; }
  const std::string& description() const { return description_; }
  const kda::Options& options() const { return options_; }
  const kda::Dimensions& dimensions() const { return dimensions_; }
  numeric::DType dtype() const { return dtype_; }
  bool has_initial_state() const { return has_initial_state_; }
  bool packed() const { return packed_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Answers that came with it; none with a regime.
  const std::vector<fixture::ExpectedGroup>& expected() const { return expected_; }
  const fixture::ExpectedGroup* expected_named(std::string_view group) const;
  tensor::Tensor read(const fixture::DatasetInfo& info) const { return file_->read(info); }

  /// The problem, validated; to be asked for once.
  kda::Problem take_problem();

 private:
  Source() = default;

  std::string path_, name_, description_;
  kda::Options options_;
  kda::Dimensions dimensions_;
  numeric::DType dtype_ = numeric::DType::fp32;
  bool has_initial_state_ = false, packed_ = false;
  std::vector<std::string> warnings_;
  std::vector<fixture::ExpectedGroup> expected_;
  std::optional<fixture::Fixture> file_;
  std::optional<kda::Problem> built_;
};

}  // namespace kda_check::session
