#include "base/file_text.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/descriptors.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/memory.hpp"
#include "base/shortage.hpp"

namespace kda_check {

namespace {

class TextReader {
 public:
  TextReader(const std::string& path, const TextRequest& request) : path_(path), request_(request) {}

  TextFile read() {
    // Not blocking: a pipe is waited for where a signal is noticed.
    file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat status {};
    if (!file_.is_open() || ::fstat(file_.number(), &status) != 0) refuse(errno);
    const bool is_pipe = S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode);
    if (S_ISDIR(status.st_mode)) refuse("it is a folder");
    if (!is_pipe && !S_ISREG(status.st_mode)) refuse("it is a device; wanted a file or a pipe");
    if (!is_pipe && static_cast<std::size_t>(status.st_size) > request_.most_bytes) refuse_size();
    read_all();
    TextFile result{plain(std::move(text_)), FileIdentity::from(status)};
    if (!is_pipe && FileIdentity::of(file_.number()) != result.identity)
      refuse("it was written while it was read");
    return result;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason, ErrorKind kind = ErrorKind::input) const {
    throw Error(kind, fmt::format("cannot read {}: {}", request_.what, reason), path_, request_.hint);
  }
  [[noreturn]] void refuse(int reason) const { refuse(std::strerror(reason), kind_of_failed_input(reason)); }
  [[noreturn]] void refuse_size() const {
    refuse(fmt::format("it has more than {}", size_text(request_.most_bytes)));
  }

  void read_all() {
    std::string block(std::size_t{1} << 16, '\0');
    for (;;) {
      wait_until_ready(file_.number(), POLLIN);
      const ssize_t count = ::read(file_.number(), block.data(), block.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count < 0) refuse(errno);
      if (count == 0) return;
      text_.append(block, 0, static_cast<std::size_t>(count));
      if (text_.size() > request_.most_bytes) refuse_size();
    }
  }

  std::string plain(std::string text) const {
    if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) refuse("it is UTF-16; wanted UTF-8");
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
    auto end = text.begin();
    for (auto c = text.begin(); c != text.end(); ++c)
      if (*c != '\r' || c + 1 == text.end() || c[1] != '\n') *end++ = *c;
    text.erase(end, text.end());
    return text;
  }

  const std::string& path_;
  const TextRequest& request_;
  Descriptor file_;
  std::string text_;
};

}  // namespace

TextFile read_text(const std::string& path, const TextRequest& request) {
  return TextReader(path, request).read();
}

}  // namespace kda_check
