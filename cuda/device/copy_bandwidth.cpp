#include <algorithm>
#include <vector>

#include "cuda/device/device.hpp"
#include "cuda/device/memory.hpp"
#include "cuda/device/stopwatch.hpp"

namespace kda_check::cuda {

double copy_bandwidth() {
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "asking for free memory");
  const std::size_t bytes = std::min(std::size_t{1} << 30, available / 4);
  constexpr int repeats = 7;
  const DeviceMemory from("the source of a copy", bytes), to("the target of a copy", bytes);
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= repeats; ++repeat)
    seconds.push_back(timed([&] {
      check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice), "copying memory");
    }));
  return 2.0 * static_cast<double>(bytes) / *std::min_element(seconds.begin() + 1, seconds.end());
}

}  // namespace kda_check::cuda
