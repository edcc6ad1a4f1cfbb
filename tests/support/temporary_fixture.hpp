// A fixture file of its own for one test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fixture/writer.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::test {

inline std::vector<const tensor::Tensor*> pointers_to(std::span<const tensor::Tensor> tensors) {
  std::vector<const tensor::Tensor*> pointers;
  for (const tensor::Tensor& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

/// Written on construction, removed at the end.
struct TemporaryFixture {
  /// With `answer` as the group expected/somebody.
  explicit TemporaryFixture(const kda::Problem& problem, const kda::Answer* answer = nullptr,
                            std::string name = "t")
      : TemporaryFixture(problem, tensors_of(answer), numeric::ComputeFormat::fp32, std::move(name)) {}
  /// With these tensors in that group, if there are any; without `compute` it does not say what it is.
  TemporaryFixture(const kda::Problem& problem, std::vector<const tensor::Tensor*> recorded,
                   std::optional<numeric::ComputeFormat> compute, std::string name)
      : path((std::filesystem::temp_directory_path() /
              ("kda-check-test-" + name + std::to_string(::getpid()) + ".h5"))
                 .string()) {
    fixture::WriteRequest request;
    request.name = std::move(name), request.problem = &problem;
    if (!recorded.empty()) request.expected.push_back({"somebody", "", "", compute, std::move(recorded), {}});
    fixture::write_fixture(path, request);
  }
  ~TemporaryFixture() { std::filesystem::remove(path); }
  TemporaryFixture(const TemporaryFixture&) = delete;
  TemporaryFixture& operator=(const TemporaryFixture&) = delete;

  std::string path;

 private:
  static std::vector<const tensor::Tensor*> tensors_of(const kda::Answer* answer) {
    if (answer == nullptr) return {};
    return {&answer->o, &answer->final_state};
  }
};

}  // namespace kda_check::test
