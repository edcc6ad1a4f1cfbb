// A fixture file of its own for one test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "fixture/writer.hpp"
#include "kda/variants.hpp"

namespace kda_check::test {

/// Written on construction, with `answer` as the group expected/somebody; removed at the end.
struct TemporaryFixture {
  explicit TemporaryFixture(const kda::Problem& problem, const kda::Answer* answer = nullptr,
                            std::string name = "t")
      : path((std::filesystem::temp_directory_path() /
              ("kda-check-test-" + name + std::to_string(::getpid()) + ".h5"))
                 .string()) {
    fixture::WriteRequest request;
    request.name = std::move(name), request.problem = &problem;
    if (answer != nullptr)
      request.expected.push_back(
          {"somebody", "", "", numeric::ComputeFormat::fp32, {&answer->o, &answer->final_state}, {}});
    fixture::write_fixture(path, request);
  }
  ~TemporaryFixture() { std::filesystem::remove(path); }
  TemporaryFixture(const TemporaryFixture&) = delete;
  TemporaryFixture& operator=(const TemporaryFixture&) = delete;

  std::string path;
};

}  // namespace kda_check::test
