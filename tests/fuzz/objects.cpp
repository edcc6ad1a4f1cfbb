// Answers of a reading process that a file has led astray: object tables, and what the parent makes of them.
#include "fixture/reading_child.hpp"
#include "fuzz/input.hpp"
#include "fuzz/object_table.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  const std::string_view bytes = fuzz::text_of(data, size);
  test::read_answer(bytes);
  try {
    fixture::unpacked_done(bytes);
  } catch (const Error&) {
  }
  return 0;
}
