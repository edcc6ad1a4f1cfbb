#include "session/describe.hpp"

#include <fmt/format.h>

#include <iterator>

namespace kda_check::session {

std::string shape_text(const kda::Dimensions& d) {
  std::string text = fmt::format("B={} T={} H={}", d.B, d.T, d.H);
  if (d.HV != d.H) text += fmt::format(" HV={}", d.HV);
  text += fmt::format(" K={} V={}", d.K, d.V);
  if (d.N != d.B) text += fmt::format(" N={}", d.N);
  return text;
}

namespace {

struct Traits {
  const kda::Options& options;
  numeric::DType dtype;
  bool has_initial_state, packed;
};

std::string text_of(const Traits& traits) {
  const kda::Options& options = traits.options;
  std::string text = fmt::format("{} gate={}", numeric::name_of(traits.dtype), kda::name_of(options.gate));
  if (options.gate == kda::Gate::lower_bound)
    fmt::format_to(std::back_inserter(text), "({:g})", *options.lower_bound);
  const std::pair<const char*, bool> flags[] = {{"qk_l2norm", options.qk_l2norm},
                                                {"beta_sigmoid", options.beta_sigmoid},
                                                {"allow_neg_eigval", options.allow_neg_eigval},
                                                {"state_v_first", options.state_v_first},
                                                {"safe_gate", options.safe_gate},
                                                {"initial_state", traits.has_initial_state},
                                                {"packed", traits.packed}};
  for (const auto& [name, set] : flags)
    if (set) text += fmt::format(" {}", name);
  return text + fmt::format(" chunk={}", options.chunk_size);
}

}  // namespace

std::string options_text(const fixture::Fixture& file) {
  return text_of(
      {file.options(), file.dtype(), file.input("initial_state") != nullptr, !file.cu_seqlens().empty()});
}

report::FixtureResult describe(const Source& source) {
  const std::string options =
      text_of({source.options(), source.dtype(), source.has_initial_state(), source.packed()});
  return {source.name(), source.path(), shape_text(source.dimensions()), options, {}};
}

report::FixtureResult describe(const kda::Problem& problem, const std::string& name,
                               const std::string& path) {
  const std::string options =
      text_of({problem.options, problem.dtype(), problem.initial_state.has_value(), problem.packed()});
  return {name, path, shape_text(problem.dimensions()), options, {}};
}

}  // namespace kda_check::session
