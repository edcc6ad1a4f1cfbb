#include "base/temporary_files.hpp"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/signal_safe_list.hpp"

namespace kda_check {

namespace {

using Paths = SignalSafeList<const char*>;
Paths kept;
Paths unkept;  ///< of files that are no longer kept, below

}  // namespace

TemporaryFile::TemporaryFile(std::string path)
    : path_(std::move(path)), entry_(kept.add(::strdup(path_.c_str()))) {}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : path_(std::move(other.path_)), entry_(std::exchange(other.entry_, nullptr)) {}

// The copy of the path is left to the handler, which may be reading it: some bytes for every file written.
TemporaryFile::~TemporaryFile() {
  if (entry_ != nullptr) unkept.add(Paths::remove(static_cast<Paths::Node*>(entry_)));
}

void remove_temporary_files() {
  kept.for_each([](const char* path) { ::unlink(path); });
}

}  // namespace kda_check
