// A whole file, read in this process: finds faults of the HDF5 library too, which the program keeps in a
// process of its own (docs/developing.md).
#include <fcntl.h>

#include <filesystem>
#include <vector>

#include "fixture/h5.hpp"
#include "fixture/header.hpp"
#include "fuzz/input.hpp"

namespace {

/// libhdf5 looks where a name leads to and opens that: a file in memory has no such place.
class NamedFile {
 public:
  explicit NamedFile(std::string_view bytes) {
    const kda_check::Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    kda_check::fuzz::require(kda_check::write_all(file.number(), bytes));
  }
  NamedFile(const NamedFile&) = delete;
  NamedFile& operator=(const NamedFile&) = delete;
  ~NamedFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      std::filesystem::temp_directory_path() / fmt::format("kda-check-fuzz-{}.h5", ::getpid());
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  const NamedFile file(fuzz::text_of(data, size));
  fixture::ReadLimits limits;
  limits.memory_budget = std::size_t{1} << 20;
  try {
    const fixture::H5File opened = fixture::H5File::open(file.path());
    const fixture::ObjectTable objects = fixture::objects_of(opened, [](const std::string&) {});
    const std::string packed = fixture::packed_objects(objects);
    const fixture::Header header = fixture::header_from(
        fixture::unpacked_objects(packed), "input", limits, [&](const fixture::DatasetInfo& info) {
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
