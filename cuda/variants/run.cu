#include "cuda/device/launch.cuh"
#include "cuda/problem/device_tensors.cuh"
#include "cuda/variants/launcher.cuh"

namespace kda_check::cuda {

void run(Kernel kernel, const Request& request) { run(kernel, request, {}); }

void run(Kernel kernel, const Request& request, const Segments& segments) {
  const DeviceTensors tensors(request);
  const std::unique_ptr<Launcher> launcher = launcher_for(kernel, request, segments);
  launcher->launch_on(tensors.problem(request));
  check(cudaDeviceSynchronize(), "running the kernels");
  tensors.check_canaries();
  launcher->check_canaries();
  tensors.check_inputs();
  tensors.download(request);
  launcher->download_stages(request);
}

}  // namespace kda_check::cuda
