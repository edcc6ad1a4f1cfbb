// Open files by their numbers.
#pragma once

#include <string_view>
#include <utility>

namespace kda_check {

/// Owns one descriptor; a negative one is nobody's.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void reset(int number = -1);

 private:
  int number_;
};

/// Writes all of it to a file, a pipe or a terminal, blocking or not. False: errno says why not. Who does not
/// read keeps this waiting: a signal that asks for the end meanwhile throws Interrupted. Where one came
/// before, as in a run that is interrupted and tells what it found, all is written.
bool write_all(int descriptor, std::string_view text);

}  // namespace kda_check
