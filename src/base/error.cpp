#include "base/error.hpp"

namespace kda_check {

Error::Error(ErrorKind kind, std::string what, std::string where, std::string hint)
    : kind_(kind), what_(std::move(what)), where_(std::move(where)), hint_(std::move(hint)) {
  line_ = what_;
  if (!where_.empty()) line_ += " (" + where_ + ")";
  if (!hint_.empty()) line_ += "; hint: " + hint_;
}

const char* Error::what() const noexcept { return line_.c_str(); }

}  // namespace kda_check
