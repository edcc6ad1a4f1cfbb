// How long the kernels take by the device's own clock.
#include <algorithm>

#include "cuda/device/stopwatch.hpp"
#include "cuda/problem/device_tensors.cuh"
#include "cuda/variants/launcher.cuh"

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

}  // namespace kda_check::cuda
