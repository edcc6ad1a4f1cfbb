// A variant's kernels, ready to be launched on a problem, and the memory they share.
#pragma once

#include <memory>

#include "cuda/problem/problem.cuh"
#include "cuda/variants/gpu.hpp"
#include "cuda/variants/shards/segments.hpp"

namespace kda_check::cuda {

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual void launch_on(const DeviceProblem& p) const = 0;
  virtual void download_stages(const Request&) const {}
  virtual void check_canaries() const = 0;
};

std::unique_ptr<Launcher> launcher_for(Kernel kernel, const Request& request, const Segments& segments);

// Those in files of their own.
std::unique_ptr<Launcher> recurrent_backward_launcher(const Request& request);
std::unique_ptr<Launcher> chunk_launcher(const Request& request, const Segments& segments, bool backward);
std::unique_ptr<Launcher> tensor_core_launcher(const Request& request);
std::unique_ptr<Launcher> tensor_core_backward_launcher(const Request& request);

}  // namespace kda_check::cuda
