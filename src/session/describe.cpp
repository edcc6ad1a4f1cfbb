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

std::string options_text(const fixture::Fixture& file) {
  const kda::Options& options = file.options();
  std::string text = fmt::format("{} gate={}", numeric::name_of(file.dtype()), kda::name_of(options.gate));
  if (options.gate == kda::Gate::lower_bound)
    fmt::format_to(std::back_inserter(text), "({:g})", *options.lower_bound);
  const std::pair<const char*, bool> flags[] = {{"qk_l2norm", options.qk_l2norm},
                                                {"beta_sigmoid", options.beta_sigmoid},
                                                {"allow_neg_eigval", options.allow_neg_eigval},
                                                {"state_v_first", options.state_v_first},
                                                {"safe_gate", options.safe_gate},
                                                {"initial_state", file.input("initial_state") != nullptr},
                                                {"packed", !file.cu_seqlens().empty()}};
  for (const auto& [name, set] : flags)
    if (set) text += fmt::format(" {}", name);
  return text + fmt::format(" chunk={}", options.chunk_size);
}

report::FixtureResult describe(const fixture::Fixture& file) {
  return {file.name(), file.path(), shape_text(file.dimensions()), options_text(file), {}};
}

}  // namespace kda_check::session
