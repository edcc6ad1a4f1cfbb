#include "cli/shared_devices.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "cli/progress.hpp"
#include "kda/gpu/device.hpp"
#include "kda/shards/shared_devices.hpp"

namespace kda_check::cli {

namespace {

std::vector<int> ranks() {
  if (const std::string reason = kda::gpu_unavailable(); !reason.empty())
    throw Error(ErrorKind::environment, "--segments nccl: " + reason);
  return nccl::devices_named(kda::gpu_count());
}

}  // namespace

SharedDevices::SharedDevices() : devices_(ranks()) { kda::share_devices(&devices_); }
SharedDevices::~SharedDevices() { kda::share_devices(nullptr); }

void SharedDevices::add_to(plan::Request& request) const {
  request.arithmetic.push_back(fmt::format("segments=tree:{}", devices_.count()));
}

void SharedDevices::say_costs() const {
  say(devices_.library());
  const std::vector<kda::DeviceCost> costs = kda::device_costs();
  for (std::size_t rank = 0; rank < costs.size(); ++rank)
    say(fmt::format("rank {} of {}, device {}: {} tokens, {:.3g} s, exchanges {:.3g} s and {:.0f} MB", rank,
                    costs.size(), devices_.device(rank), costs[rank].tokens, costs[rank].seconds,
                    costs[rank].exchanging, costs[rank].megabytes));
}

void check_shared(const plan::Request& request, SharedBy whose) {
  const bool by_devices = whose == SharedBy::nccl;
  const std::string who = by_devices ? "nccl" : "mpi", variant = by_devices ? "gpu-chunk" : "chunk";
  const std::optional<plan::Names>& variants = request.selection.variants;
  const bool is_named = variants && std::ranges::find(*variants, variant) != variants->end();
  if (variants ? !is_named : by_devices)
    throw Error(ErrorKind::usage, fmt::format("--segments {} shares {}, which is not selected", who, variant),
                {}, "--variant " + variant);
  for (const std::string& target : request.targets)
    if (target.starts_with("@"))
      throw Error(ErrorKind::usage,
                  fmt::format("--segments {}: {} has lines with an arithmetic of their own", who, target), {},
                  "files and regimes");
  for (const std::string& word : request.arithmetic)
    if (word.starts_with("segments="))
      throw Error(ErrorKind::usage, fmt::format("--segments {}: --arithmetic {} is another cut", who, word));
}

}  // namespace kda_check::cli
