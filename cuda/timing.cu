// How long the kernels take by the device's own clock.
#include <algorithm>

#include "device_tensors.cuh"
#include "launcher.cuh"
#include "stopwatch.hpp"

namespace kda_check::cuda {

namespace {

std::size_t cache_bytes() {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0), "asking for the size of the cache");
  return static_cast<std::size_t>(bytes);
}

}  // namespace

std::vector<double> time(Kernel kernel, const Request& request, int repeats) {
  return time(kernel, request, {}, repeats);
}

std::vector<double> time(Kernel kernel, const Request& request, const Segments& segments, int repeats) {
  std::vector<DeviceTensors> copies;
  copies.emplace_back(request, own_on_device);
  const std::unique_ptr<Launcher> launcher = launcher_for(kernel, request, segments);
  const std::size_t wanted = 2 * cache_bytes() / std::max<std::size_t>(copies.front().bytes(), 1) + 1;
  while (copies.size() < std::min<std::size_t>(wanted, 16)) copies.emplace_back(request, own_on_device);
  std::vector<DeviceProblem> problems;
  for (const DeviceTensors& copy : copies) problems.push_back(copy.problem(request));
  std::size_t next = 0;
  const auto run_once = [&] { launcher->launch_on(problems[next++ % problems.size()]); };
  for (int warm_up = 0; warm_up < 3; ++warm_up) run_once();
  check(cudaDeviceSynchronize(), "running the kernels");
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) seconds.push_back(timed(run_once));
  launcher->check_canaries();
  for (const DeviceTensors& copy : copies) copy.check_canaries();
  return seconds;
}

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
