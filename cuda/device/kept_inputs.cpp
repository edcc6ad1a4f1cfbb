#include "cuda/device/kept_inputs.hpp"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/device/device.hpp"
#include "cuda/device/device_input.hpp"

namespace kda_check::cuda {

namespace {

using Shared = std::shared_ptr<const DeviceInput>;

/// Elements of a tensor of the host's, and their bytes.
using Place = std::pair<const void*, std::size_t>;

struct Kept {
  int users = 0;                ///< who says that it does not change
  std::map<int, Shared> there;  ///< by device
};

struct Registry {
  std::mutex mutex;
  std::map<Place, Kept> places;
};
Registry& registry() {
  static auto& only = *new Registry;  // at the end of the process the runtime may be gone
  return only;
}

std::size_t bytes_of(const Input& input) { return numeric::format_of(input.dtype).bytes * input.elements; }
Place place_of(const Input& input) { return {input.data, bytes_of(input)}; }

/// Calls body(copies, this device's) for each input that stays on this device, but that nobody uses.
template <class Body>
void over_unused(Registry& all, const Body& body) {
  const int device = this_device();
  for (auto& [place, kept] : all.places)
    if (const auto found = kept.there.find(device);
        found != kept.there.end() && found->second.use_count() == 1)
      body(kept.there, found);
}

}  // namespace

std::shared_ptr<const DeviceInput> already_on_device(const Input& input) {
  const int device = this_device();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto kept = all.places.find(place_of(input));
  if (kept == all.places.end()) return nullptr;
  const auto there = kept->second.there.find(device);
  return there == kept->second.there.end() ? nullptr : there->second;
}

std::shared_ptr<const DeviceInput> own_on_device(const char* name, const Input& input) {
  DeviceMemory memory(name, bytes_of(input));
  memory.upload(input.data);
  const std::uint64_t hash = memory.hash();
  return std::make_shared<const DeviceInput>(std::move(memory), hash);
}

std::shared_ptr<const DeviceInput> on_device(const char* name, const Input& input) {
  if (Shared known = already_on_device(input); known != nullptr) return known;
  Shared own = own_on_device(name, input);
  const int device = this_device();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto kept = all.places.find(place_of(input)); kept != all.places.end())
    kept->second.there.insert_or_assign(device, own);
  return own;
}

std::size_t bytes_of_unused_inputs() {
  std::size_t bytes = 0;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  over_unused(all, [&](const auto&, const auto& unused) { bytes += unused->second->memory.size(); });
  return bytes;
}

void free_unused_inputs() {
  std::vector<Shared> freed;  // without the lock
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  over_unused(all, [&](auto& copies, const auto& unused) {
    freed.push_back(std::move(unused->second));
    copies.erase(unused);
  });
}

KeptInputs::KeptInputs(std::vector<Input> inputs) : inputs_(std::move(inputs)) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Input& input : inputs_)
    if (input.data != nullptr) ++all.places[place_of(input)].users;
}

KeptInputs::~KeptInputs() {
  std::map<Place, Kept> ended;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Input& input : inputs_) {
    if (input.data == nullptr) continue;
    const auto kept = all.places.find(place_of(input));
    if (--kept->second.users == 0) ended.insert(all.places.extract(kept));
  }
}

}  // namespace kda_check::cuda
