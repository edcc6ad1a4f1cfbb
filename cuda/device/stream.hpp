// Streams of the device and marks in them.
#pragma once

#include <algorithm>

#include "cuda/device/check.hpp"

namespace kda_check::cuda {

class Stream {
 public:
  /// What waits in it begins before what waits in those of a larger `place`, as far as the device tells
  /// streams apart.
  explicit Stream(int place = 0) {
    int last = 0, first = 0;  // the first is the least
    check(cudaDeviceGetStreamPriorityRange(&last, &first), "asking for priorities");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, std::min(first + place, last)),
          "creating a stream");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    cudaStreamSynchronize(stream_);  // nothing is copied any more to or from what goes away
    cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A place in a stream that others wait for.
class Mark {
 public:
  Mark() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event"); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() { cudaEventDestroy(event_); }
  void set(const Stream& stream) const { check(cudaEventRecord(event_, stream.get()), "recording an event"); }
  void hold_back(const Stream& stream) const {
    check(cudaStreamWaitEvent(stream.get(), event_, 0), "waiting for an event");
  }
  void wait() const { check(cudaEventSynchronize(event_), "waiting for the GPU"); }
  bool is_reached() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaErrorNotReady) check(status, "asking the GPU");
    return status == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace kda_check::cuda
