// Answers of a reading process that a file has led astray: docs/fuzzing.md.
#include <cstddef>
#include <cstdint>

#include "fuzz/reader_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kda_check::test::read_answer({reinterpret_cast<const char*>(data), size});
  try {
    kda_check::fixture::unpacked_done({reinterpret_cast<const char*>(data), size});
  } catch (const kda_check::Error&) {
  }
  return 0;
}
