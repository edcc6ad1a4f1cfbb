#include "base/descriptors.hpp"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/interruption.hpp"

namespace kda_check {

void Descriptor::reset(int number) {
  if (number_ >= 0) ::close(number_);
  number_ = number;
}

bool write_all(int descriptor, std::string_view text) {
  struct stat status {};
  const bool may_wait = ::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode);
  const bool was_interrupted = interrupted();
  while (!text.empty()) {
    if (may_wait) {
      if (was_interrupted) {
        pollfd ready{descriptor, POLLOUT, 0};
        ::poll(&ready, 1, -1);
      } else {
        wait_until_ready(descriptor, POLLOUT);
      }
    }
    // A pipe that is ready has room for so much; more would wait where no signal is noticed.
    const std::size_t most = may_wait ? std::size_t{PIPE_BUF} : std::size_t{1} << 30;
    const ssize_t count = ::write(descriptor, text.data(), std::min(text.size(), most));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace kda_check
