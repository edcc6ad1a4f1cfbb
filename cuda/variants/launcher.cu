#include "cuda/variants/launcher.cuh"

#include "cuda/device/launch.cuh"
#include "cuda/problem/launcher_memory.cuh"
#include "cuda/variants/recurrent/launch.cuh"

namespace kda_check::cuda {

namespace {

class RecurrentLauncher : public Launcher {
 public:
  explicit RecurrentLauncher(const Request& r)
      : is_fp64_(r.is_fp64),
        is_fused_(r.is_fused),
        count_(static_cast<int>(r.sequences.size())),
        sequences_(memory_.uploaded("sequences", sequences_of(r))) {}
  void launch_on(const DeviceProblem& p) const override {
    const auto launch = is_fp64_ ? launch_recurrent<double> : launch_recurrent<float>;
    launch(is_fused_, p, sequences_, count_);
  }
  void check_canaries() const override { memory_.check_canaries(); }

 private:
  bool is_fp64_, is_fused_;
  int count_;
  LauncherMemory memory_;
  const TokenRange* sequences_;
};

}  // namespace

std::unique_ptr<Launcher> launcher_for(Kernel kernel, const Request& request, const Segments& segments) {
  switch (kernel) {
    case Kernel::recurrent:
      break;
    case Kernel::chunk:
      return request.on_tensor_cores ? tensor_core_launcher(request)
                                     : chunk_launcher(request, segments, false);
    case Kernel::recurrent_backward:
      return recurrent_backward_launcher(request);
    case Kernel::chunk_backward:
      return request.on_tensor_cores ? tensor_core_backward_launcher(request)
                                     : chunk_launcher(request, segments, true);
  }
  return std::make_unique<RecurrentLauncher>(request);
}

}  // namespace kda_check::cuda
