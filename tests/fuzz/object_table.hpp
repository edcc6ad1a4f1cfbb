// What the program does with the answer of a reading process, whatever that is.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "fixture/header.hpp"
#include "fixture/object_table.hpp"
#include "fixture/reading_child.hpp"

namespace kda_check::test {

/// Refused with an Error of the file or of the environment, or read: true. Anything else ends the process.
inline bool read_answer(std::string_view bytes) {
  fixture::ReadLimits limits;
  limits.memory_budget = std::size_t{1} << 20;
  const auto offsets = [&](const fixture::DatasetInfo& info) {
    std::vector<std::int64_t> values(tensor::element_count(info.shape));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
    return values;
  };
  try {
    const fixture::ObjectTable objects = fixture::unpacked_objects(bytes);
    const fixture::Header header = fixture::header_from(objects, "file.h5", limits, offsets);
    // What everybody does with a header.
    std::size_t sum = header.dtype() == numeric::DType::fp32 ? header.dimensions.N : header.dimensions.T;
    for (const fixture::ExpectedGroup& group : header.expected)
      sum +=
          static_cast<std::size_t>(group.compute_claim(numeric::DType::bf16).format) + group.tensors.size();
    for (const fixture::DatasetInfo& info : header.inputs) sum += info.bytes();
    return sum > 0;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input && error.kind() != ErrorKind::environment) std::abort();
    return false;
  }
}

}  // namespace kda_check::test
