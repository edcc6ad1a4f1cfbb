// What a target stands for, looked at before anything runs: a fixture's headers, or a regime. Whatever runs
// on problems takes them from a Source and need not know which it is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fixture/fixture.hpp"
#include "kda/regimes/regimes.hpp"
#include "plan/made_output.hpp"
#include "plan/target.hpp"

namespace kda_check::plan {

class Source {
 public:
  /// The headers of a file are read and checked, a regime is understood. Throws Error{input} for a file,
  /// Error{usage} for a regime.
  static Source look(const Target& target, const fixture::ReadLimits& limits);

  const Target& target() const { return target_; }
  const std::string& name() const { return name_; }  ///< what the file calls itself; of a regime its text
  const std::string& description() const { return description_; }
  const kda::Outline& outline() const { return outline_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Answers that came with it; with a regime the one that its words ask for.
  const std::vector<fixture::ExpectedGroup>& expected() const { return expected_; }
  const fixture::ExpectedGroup* expected_named(std::string_view group) const;
  /// Of what a file holds (base/file_identity.hpp); 0 of a regime.
  std::uint64_t fingerprint() const { return fingerprint_; }
  /// Of its inputs as they are stored.
  std::size_t bytes() const { return bytes_; }

  /// The source once more, its tensors to be read.
  class Opened {
   public:
    /// The problem, validated; to be asked for once.
    kda::Problem take_problem();
    tensor::Tensor read(const fixture::DatasetInfo& info) const {
      return file_ ? file_->read(info) : made_.at(std::string(fixture::leaf(info.path))).clone();
    }
    const FileIdentity& identity() const { return file_->identity(); }  ///< of a file, not of a regime

   private:
    friend class Source;
    std::optional<fixture::Fixture> file_;
    std::optional<kda::Problem> built_;
    kda::Tensors made_;
  };
  /// Throws Error{input} for a file that is not what it was, or a regime beyond the memory budget.
  Opened open(const fixture::ReadLimits& limits) const;

 private:
  Target target_;
  std::string name_, description_;
  kda::Outline outline_;
  std::vector<std::string> warnings_;
  std::vector<fixture::ExpectedGroup> expected_;
  std::optional<kda::RegimeRequest> regime_;
  std::optional<MadeOutput> made_;
  std::optional<FileIdentity> identity_;  ///< of a file
  std::uint64_t fingerprint_ = 0;         ///< of a file
  std::size_t bytes_ = 0;
};

/// Builds a regime, within a budget. Throws Error{usage}; Error{input} beyond the budget.
kda::Problem build_regime(const kda::RegimeRequest& regime, const fixture::ReadLimits& limits);

/// "B=1 T=64 H=1 K=64 V=64"
std::string shape_text(const kda::Dimensions& dimensions);
/// "bf16 gate=lower_bound(-5) qk_l2norm chunk=64"
std::string options_text(const kda::Outline& outline);

}  // namespace kda_check::plan
