// The clock of the device.
#pragma once

#include "cuda/device/check.hpp"

namespace kda_check::cuda {

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "creating an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "recording an event"); }
  double seconds_since(const Event& start) const {
    check(cudaEventSynchronize(event_), "running the kernels");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "reading an event");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Seconds of what body() sends to the stream.
template <class Body>
double timed(Body body, cudaStream_t stream = nullptr) {
  const Event start, end;
  start.record(stream);
  body();
  end.record(stream);
  return end.seconds_since(start);
}

}  // namespace kda_check::cuda
