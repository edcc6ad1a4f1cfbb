#include "kept_inputs.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <utility>

#include "check.hpp"
#include "device_input.hpp"

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

int this_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  return device;
}

Shared uploaded_input(const char* name, const Input& input) {
  DeviceMemory memory(name, bytes_of(input));
  memory.upload(input.data);
  const std::uint64_t hash = memory.hash();
  return std::make_shared<const DeviceInput>(std::move(memory), hash);
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

std::shared_ptr<const DeviceInput> on_device(const char* name, const Input& input) {
  if (Shared there = already_on_device(input); there != nullptr) return there;
  Shared own = uploaded_input(name, input);
  const int device = this_device();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto kept = all.places.find(place_of(input)); kept != all.places.end())
    kept->second.there.insert_or_assign(device, own);
  return own;
}

void free_kept_inputs() {
  std::vector<Shared> unused;  // freed without the lock
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (auto& [place, kept] : all.places)
    std::erase_if(kept.there, [&](auto& there) {
      if (there.second.use_count() > 1) return false;
      unused.push_back(std::move(there.second));
      return true;
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
