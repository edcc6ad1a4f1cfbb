// A hash of words and bytes that is the same on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kda_check {

/// 64 bits: FNV-1a, then a finalizer.
class Hash {
 public:
  void add(std::string_view word);
  std::uint64_t value() const;
  std::string text() const;  ///< 16 hexadecimal digits

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace kda_check
