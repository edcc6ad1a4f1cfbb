// What code on a GPU has of the words of --arithmetic. What it has not been told of it must not compute.
#include <string>
#include <type_traits>

#include "kda/arithmetic/gpu_words.hpp"
#include "support/catch.hpp"

namespace gpu_words_tests {

using namespace kda_check::kda;
using kda_check::numeric::DType;

namespace {

std::string key_of(const Arithmetic& arithmetic, DType dtype = DType::fp32) {
  return std::string(cpu_only_key(arithmetic, cast_points(arithmetic, dtype, false, true)));
}
std::string key_of(const char* word, DType dtype = DType::fp32) {
  Arithmetic arithmetic;
  set_axis(arithmetic, word);
  return key_of(arithmetic, dtype);
}

}  // namespace

TEST_CASE("a value of an axis that nobody has named for a GPU is the CPU's alone", "[gpu]") {
  CHECK(key_of(Arithmetic()).empty());
  const auto with_new = [](auto Arithmetic::*axis) {
    Arithmetic arithmetic;
    arithmetic.*axis = static_cast<std::remove_reference_t<decltype(arithmetic.*axis)>>(200);
    return key_of(arithmetic);
  };
  CHECK(with_new(&Arithmetic::contraction) == "contraction");
  CHECK(with_new(&Arithmetic::exponential) == "exponential");
  CHECK(with_new(&Arithmetic::special) == "special");
  CHECK(with_new(&Arithmetic::subnormals) == "subnormals");
  CHECK(with_new(&Arithmetic::decay) == "decay");
  CHECK(with_new(&Arithmetic::inverse) == "inverse");
  CHECK(with_new(&Arithmetic::merge) == "merge");
  CHECK(with_new(&Arithmetic::accumulator) == "accumulator");
  CHECK(with_new(&Arithmetic::tail) == "tail");
  CHECK(with_new(&Arithmetic::gates) == "gates");
  CHECK(with_new(&Arithmetic::update) == "update");
  CHECK(with_new(&Arithmetic::delta) == "delta");
  CHECK(with_new(&Arithmetic::beta) == "beta");
  CHECK(with_new(&Arithmetic::scale) == "scale");
  CHECK(with_new(&Arithmetic::output) == "output");
  CHECK(with_new(&Arithmetic::readout) == "readout");
  Arithmetic arithmetic;
  arithmetic.reduction.kind = static_cast<ReductionKind>(200);
  CHECK(key_of(arithmetic) == "reduction");
}

TEST_CASE("a storage is the CPU's alone where it rounds what no GPU does", "[gpu]") {
  CHECK(key_of("storage=sglang-jax", DType::bf16) == "storage");  // kg
  CHECK(key_of("storage=sglang-jax").empty());                    // nothing in fp32
  CHECK(key_of("storage=triton") == "storage");                   // operands as a tensor core takes them
  CHECK(key_of("storage=fla").empty());
  CHECK(key_of("storage=flash-kda").empty());
  CHECK(key_of("storage=h100-mma", DType::bf16).empty());
  std::size_t refused = 0;
  for (const CastPointRow& row : cast_point_rows()) {
    const std::string word = "storage=bf16@" + std::string(row.name) + "+bf16@state";
    INFO(word);
    const std::string key = key_of(word.c_str());
    CHECK((key.empty() || key == "storage"));
    refused += !key.empty();
  }
  CHECK(refused > 5);
}

TEST_CASE("trees that are wider than a GPU's thread has room for are the CPU's alone", "[gpu]") {
  CHECK(key_of("reduction=tree:256").empty());
  CHECK(key_of("reduction=tree:257") == "reduction");
  CHECK(key_of("reduction=tree:1024") == "reduction");
  CHECK(key_of("reduction=blocks:1024").empty());
}

}  // namespace gpu_words_tests
