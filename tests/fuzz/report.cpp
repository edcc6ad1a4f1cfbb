// A report of a run, read back: shown in every format, joined with nothing else.
#include "engine/merge.hpp"
#include "engine/report_reader.hpp"
#include "fuzz/input.hpp"
#include "report/writers.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kda_check;
  const fuzz::File file(fuzz::text_of(data, size));
  try {
    const report::Document document = engine::read_report(file.path());
    // What it was read as can be written and read again, and is the same then.
    const std::string text = report::write_json(document, {});
    const fuzz::File again(text);
    fuzz::require(report::write_json(engine::read_report(again.path()), {}) == text);
    // One of the formats, for speed.
    const auto writers = report::writers();
    writers[size % writers.size()].write(document, {report::Detail::verbose});
    engine::merged({file.path()});
  } catch (const Error& error) {
    fuzz::require_refusal(error);
  }
  return 0;
}
