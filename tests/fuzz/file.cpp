// A whole file, read in this process: finds faults of the HDF5 library too, which the program keeps in a
// process of its own. Run it with -fork=1 -ignore_crashes=1, and look at what is not libhdf5.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/descriptors.hpp"
#include "base/error.hpp"
#include "fixture/h5.hpp"
#include "fixture/header.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  const Descriptor file(::memfd_create("input", MFD_CLOEXEC));
  if (!write_all(file.number(), {reinterpret_cast<const char*>(data), size})) return 0;
  fixture::ReadLimits limits;
  limits.memory_budget = std::size_t{1} << 20;
  try {
    const fixture::H5File opened = fixture::H5File::open(fmt::format("/proc/self/fd/{}", file.number()));
    const fixture::ObjectTable objects = fixture::objects_of(opened, [](const std::string&) {});
    const fixture::Header header =
        fixture::header_from(objects, "input", limits, [&](const fixture::DatasetInfo& info) {
          std::vector<std::int64_t> values(tensor::element_count(info.shape));
          opened.read_integers_into(info, values.data());
          return values;
        });
    for (const fixture::DatasetInfo& info : header.inputs) {
      std::vector<std::byte> elements(info.bytes());
      opened.read_into(info, elements.data());
    }
  } catch (const Error&) {
  }
  return 0;
}
