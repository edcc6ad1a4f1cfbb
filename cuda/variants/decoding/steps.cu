// Steps of decoding from host memory, and how long they take.
#include "cuda/device/stopwatch.hpp"
#include "cuda/device/stream.hpp"
#include "cuda/problem/device_tensors.cuh"
#include "cuda/problem/launcher_memory.cuh"
#include "cuda/variants/decoding/decoding.hpp"
#include "cuda/variants/decoding/step.cuh"

namespace kda_check::cuda {

namespace {

/// A request on the device.
class Decoding {
 public:
  explicit Decoding(const DecodingRequest& r)
      : tensors_(r),
        pool_("state_pool", r.pool.elements * sizeof(float)),
        problem_(tensors_.problem(r)),
        sequences_(memory_.uploaded("sequences", sequences_of(r))),
        slots_(memory_.uploaded("slots", r.slots)),
        count_(static_cast<int>(r.slots.size())) {
    pool_.upload(r.pool.data);
    problem_.initial_state = {pool_.data(), numeric::DType::fp32};
    problem_.final_state = {pool_.data(), numeric::DType::fp32};
  }
  void launch_on(cudaStream_t stream) const { launch_decoding(stream, problem_, sequences_, slots_, count_); }
  const DeviceTensors& tensors() const { return tensors_; }
  void download(const DecodingRequest& r) const {
    tensors_.download(r);
    pool_.download(r.pool.data, r.pool.elements * sizeof(float));
  }
  void check_canaries() const { tensors_.check_canaries(), pool_.check_canaries(), memory_.check_canaries(); }

 private:
  DeviceTensors tensors_;
  DeviceMemory pool_;
  LauncherMemory memory_;
  DeviceProblem problem_;
  const TokenRange* sequences_;
  const std::uint32_t* slots_;
  int count_;
};

/// What a stream is asked for while body() runs, to be done again.
class Graph {
 public:
  template <class Body>
  Graph(const Stream& stream, Body body) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capturing a graph");
    body();
    check(cudaStreamEndCapture(stream.get(), &graph_), "capturing a graph");
    check(cudaGraphInstantiate(&ready_, graph_, 0), "making a graph ready");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaGraphExecDestroy(ready_);
    cudaGraphDestroy(graph_);
  }
  void launch_on(const Stream& stream) const {
    check(cudaGraphLaunch(ready_, stream.get()), "launching a graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace

void run_decoding(const DecodingRequest& request) {
  const Decoding decoding(request);
  decoding.launch_on(nullptr);
  check(cudaDeviceSynchronize(), "running the kernels");
  decoding.check_canaries();
  decoding.tensors().check_inputs();
  decoding.download(request);
}

StepSeconds time_decoding(const DecodingRequest& request, int repeats) {
  const Decoding decoding(request);
  check(cudaDeviceSynchronize(), "uploading a problem");
  const Stream stream;
  const auto launch_all = [&] {
    for (int step = 0; step < steps_together; ++step) decoding.launch_on(stream.get());
  };
  const Graph graph(stream, launch_all);
  const auto seconds = [&](auto body) {
    body();
    std::vector<double> found;
    for (int repeat = 0; repeat < repeats; ++repeat)
      found.push_back(timed(body, stream.get()) / steps_together);
    return found;
  };
  StepSeconds found{seconds([&] { graph.launch_on(stream); }), seconds(launch_all)};
  decoding.check_canaries();
  return found;
}

}  // namespace kda_check::cuda
