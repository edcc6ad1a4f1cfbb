// The fences around device memory, from the outside: built with the CUDA toolkit only.
#include "cuda/device/memory.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "cuda/device/device.hpp"
#include "cuda/device/hash.hpp"
#include "support/gpu.hpp"

namespace memory_tests {

using namespace kda_check;

TEST_CASE("a byte written past either end of device memory is noticed", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::ptrdiff_t at : {-1, -4096, 1000, 1001, 1000 + 4095}) {
    const cuda::DeviceMemory memory("victim", 1000);
    CHECK_NOTHROW(memory.check_canaries());
    REQUIRE(cudaMemset(memory.as<char>() + at, 1, 1) == cudaSuccess);
    INFO(at);
    CHECK_THROWS_WITH(memory.check_canaries(), ContainsSubstring("victim"));
  }
}

TEST_CASE("device memory starts poisoned, and its hash knows every byte and its place", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  const cuda::DeviceMemory memory("victim", 1003);
  std::vector<unsigned char> bytes(1003);
  memory.download(bytes.data(), bytes.size());
  for (const unsigned char byte : bytes) REQUIRE(byte == 0xff);
  const auto before = memory.hash();
  CHECK(memory.hash() == before);
  for (const std::size_t at : {0, 500, 999, 1000, 1002}) {
    std::vector<unsigned char> other = bytes;
    other[at] = 0xfe;
    memory.upload(other.data());
    INFO(at);
    CHECK(memory.hash() != before);
  }
  std::vector<unsigned char> a = bytes, b = bytes;
  a[0] = 0, b[4] = 0;
  memory.upload(a.data());
  const auto hash_of_a = memory.hash();
  memory.upload(b.data());
  CHECK(memory.hash() != hash_of_a);
}

TEST_CASE("memory goes back to its device from a thread that is at another", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  if (devices < 2) KDA_CHECK_SKIP("one GPU");
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, 1) == cudaSuccess);
  const auto used = [&] {
    std::uint64_t bytes = 0;
    REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes) == cudaSuccess);
    return bytes;
  };
  const std::uint64_t before = used();
  {
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    const cuda::DeviceMemory memory("far", 1 << 20);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    CHECK(used() > before);
  }
  int here = 1;
  REQUIRE(cudaGetDevice(&here) == cudaSuccess);
  CHECK(here == 0);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(used() == before);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("more memory than the device has is one clear line", "[memory]") {
  KDA_CHECK_NEEDS_GPU();
  try {
    const cuda::DeviceMemory memory("victim", std::size_t{1} << 50);
    FAIL("a petabyte was there");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    CHECK_THAT(error.what(), ContainsSubstring("no memory for victim") && ContainsSubstring("are free"));
  }
  CHECK_NOTHROW(cuda::DeviceMemory("small", 16).check_canaries());
}

// In a process of its own (scripts/gpu): nothing can be done on a device afterwards.
TEST_CASE("a device on which a kernel read what is not there is not well", "[.lost]") {
  KDA_CHECK_NEEDS_GPU();
  const cuda::DeviceMemory sum("a hash", sizeof(unsigned long long));
  cuda::give_back_memory();
  REQUIRE(cuda::is_well());
  cuda::add_hash(reinterpret_cast<const void*>(4096), 1000, sum.as<unsigned long long>());
  CHECK_FALSE(cuda::is_well());
}

}  // namespace memory_tests
