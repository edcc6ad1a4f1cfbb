// reduction=mma against sums that tensor cores formed (tensor_cores/README.md).
#include <bit>
#include <fstream>
#include <string>
#include <vector>

#include "kda/kernels/table.hpp"
#include "numeric/rounding.hpp"
#include "support/catch.hpp"

namespace tensor_core_vectors_tests {

using namespace kda_check;
using namespace kda_check::kda;

namespace {

class Recorded {
 public:
  Recorded() : file_(KDA_CHECK_SOURCE_DIR "/tests/kda/tensor_cores/vectors.bin", std::ios::binary) {
    REQUIRE(file_);
    count = words<std::uint32_t>(1)[0];
  }
  template <class Word>
  std::vector<Word> words(std::size_t number) {
    static_assert(std::endian::native == std::endian::little);
    std::vector<Word> result(number);
    file_.read(reinterpret_cast<char*>(result.data()), static_cast<std::streamsize>(number * sizeof(Word)));
    REQUIRE(file_);
    return result;
  }
  std::vector<float> bf16(std::size_t number) { return widened(words<numeric::Bfloat16>(number)); }
  std::vector<float> fp16(std::size_t number) { return widened(words<numeric::Float16>(number)); }
  std::vector<float> fp32(std::size_t number) { return words<float>(number); }
  bool is_at_end() { return file_.peek() == std::ifstream::traits_type::eof(); }

  std::size_t count;

 private:
  template <class Stored>
  static std::vector<float> widened(const std::vector<Stored>& stored) {
    std::vector<float> result;
    for (const Stored x : stored) result.push_back(numeric::widen_to_float(x));
    return result;
  }
  std::ifstream file_;
};

struct Operands {
  Rounding format;
  std::vector<float> a, b;  ///< [count][products]
};

/// Of the sums, those that are not what was recorded.
std::size_t mismatches(const TensorCore& core, const Operands& operands, const std::vector<float>& c,
                       const std::vector<float>& d) {
  const std::size_t products = operands.a.size() / c.size();
  std::size_t found = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    std::vector<float> columns(products * 16), sums(16, c[i]);
    for (std::size_t p = 0; p < products; ++p) columns[p * 16] = operands.b[i * products + p];
    kernel_table().tensor_core(
        {core, 1, 16, products, operands.a.data() + i * products, columns.data(), sums.data()});
    found += std::bit_cast<std::uint32_t>(sums[0]) != std::bit_cast<std::uint32_t>(d[i]);
  }
  return found;
}

}  // namespace

TEST_CASE("tensor cores of six GPUs formed the sums that the models form", "[reductions][mma]") {
  Recorded recorded;
  const std::size_t count = recorded.count;
  const auto read = [&](Rounding format, std::size_t products) {
    const auto next = [&] {
      const std::size_t number = count * products;
      return format == Rounding::bf16   ? recorded.bf16(number)
             : format == Rounding::fp16 ? recorded.fp16(number)
                                        : recorded.fp32(number);
    };
    Operands operands{format, next(), {}};
    operands.b = next();
    return operands;
  };
  const Operands older[] = {read(Rounding::bf16, 8), read(Rounding::fp16, 8)};
  const Operands newer[] = {read(Rounding::bf16, 16), read(Rounding::fp16, 16)};
  const Operands tf32 = read(Rounding::tf32, 4);
  std::size_t sums = 0;
  for (const char* const gpu : {"A100", "A2", "Ada", "H100", "H200", "B200"}) {
    const bool is_older = gpu[0] == 'A';
    const Reduction own{ReductionKind::mma, is_older ? 24 : 25},
        other{ReductionKind::mma, is_older ? 25 : 24};
    const Operands* const narrow = is_older ? older : newer;
    for (const Operands* const operands : {&narrow[0], &narrow[1], &tf32}) {
      const std::vector<float> c = recorded.fp32(count), d = recorded.fp32(count);
      INFO(gpu << ", format " << static_cast<int>(operands->format));
      CHECK(mismatches(tensor_core(own, operands->format), *operands, c, d) == 0);
      CHECK(mismatches(tensor_core(other, operands->format), *operands, c, d) > count / 100);
      sums += count;
      if (operands->format != Rounding::fp16) continue;
      std::vector<float> start;
      for (const float x : c) start.push_back(numeric::through_fp16(x));
      const TensorCore in_fp16 = tensor_core(own, Rounding::fp16, Accumulator::fp16);
      CHECK(mismatches(in_fp16, *operands, start, recorded.fp16(count)) == 0);
      sums += count;
    }
  }
  CHECK(recorded.is_at_end());
  CHECK(sums == 24 * count);
}

}  // namespace tensor_core_vectors_tests
