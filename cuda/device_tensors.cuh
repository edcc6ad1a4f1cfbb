// A problem's tensors on the device, and what happened to them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "memory.hpp"
#include "problem.cuh"

namespace kda_check::cuda {

/// One copy of a problem's inputs and room for its answer.
class DeviceTensors {
 public:
  explicit DeviceTensors(const Request& r) {
    const std::pair<const char*, const Input*> inputs[] = {{"q", &r.q},
                                                           {"k", &r.k},
                                                           {"v", &r.v},
                                                           {"g", &r.g},
                                                           {"beta", &r.beta},
                                                           {"A_log", &r.A_log},
                                                           {"dt_bias", &r.dt_bias},
                                                           {"initial_state", &r.initial_state}};
    for (const auto& [name, input] : inputs) {
      memory_.emplace_back(name, input->data == nullptr ? 0 : format_bytes(input->dtype, input->elements));
      if (input->data != nullptr) memory_.back().upload(input->data);
    }
    o_ = DeviceMemory("o", format_bytes(r.o.dtype, r.o.elements));
    final_state_ = DeviceMemory("final_state", format_bytes(r.final_state.dtype, r.final_state.elements));
  }

  DeviceProblem problem(const Request& r) const {
    const auto tensor = [&](std::size_t i, const Input& input) {
      return Tensor{input.data == nullptr ? nullptr : memory_[i].data(), input.dtype};
    };
    DeviceProblem p{};
    const kda::Dimensions& d = r.dimensions;
    const kda::Options& options = r.options;
    p.H = static_cast<int>(d.H), p.HV = static_cast<int>(d.HV);
    p.K = static_cast<int>(d.K), p.V = static_cast<int>(d.V);
    p.q = tensor(0, r.q), p.k = tensor(1, r.k), p.v = tensor(2, r.v), p.g = tensor(3, r.g);
    p.beta = tensor(4, r.beta), p.A_log = tensor(5, r.A_log), p.dt_bias = tensor(6, r.dt_bias);
    p.initial_state = tensor(7, r.initial_state);
    p.o = {o_.data(), r.o.dtype}, p.final_state = {final_state_.data(), r.final_state.dtype};
    p.scale = r.scale, p.lower_bound = options.lower_bound.value_or(0.0), p.gate = options.gate;
    p.qk_l2norm = options.qk_l2norm, p.beta_sigmoid = options.beta_sigmoid;
    p.allow_neg_eigval = options.allow_neg_eigval, p.state_v_first = options.state_v_first;
    p.exponential = r.exponential, p.casts = r.casts;
    return p;
  }

  std::vector<std::uint64_t> hash_inputs() const {
    std::vector<std::uint64_t> hashes;
    for (const DeviceMemory& memory : memory_) hashes.push_back(memory.hash());
    return hashes;
  }
  void check_inputs(const std::vector<std::uint64_t>& before) const {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (memory_[i].hash() != before[i])
        throw Error(ErrorKind::internal, std::string("GPU: a kernel changed its input ") + memory_[i].name(),
                    {}, "please report it with the command line");
  }
  void check_canaries() const {
    for (const DeviceMemory& memory : memory_) memory.check_canaries();
    o_.check_canaries();
    final_state_.check_canaries();
  }
  void download(const Request& r) const {
    o_.download(r.o.data, format_bytes(r.o.dtype, r.o.elements));
    final_state_.download(r.final_state.data, format_bytes(r.final_state.dtype, r.final_state.elements));
  }

  std::size_t bytes() const {
    std::size_t sum = o_.size() + final_state_.size();
    for (const DeviceMemory& memory : memory_) sum += memory.size();
    return sum;
  }

 private:
  static std::size_t format_bytes(numeric::DType dtype, std::size_t elements) {
    return numeric::format_of(dtype).bytes * elements;
  }

  std::vector<DeviceMemory> memory_;
  DeviceMemory o_, final_state_;
};

}  // namespace kda_check::cuda
