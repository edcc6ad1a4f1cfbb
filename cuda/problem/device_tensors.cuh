// A problem's tensors on the device, and what happened to them.
#pragma once

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cuda/device/device_input.hpp"
#include "cuda/device/memory.hpp"
#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

/// A problem's inputs, and room for its answer.
class DeviceTensors {
 public:
  /// `bring`: how its inputs come there.
  explicit DeviceTensors(const Request& r, decltype(on_device)* bring = on_device) {
    const std::pair<const char*, const Input*> inputs[] = {{"q", &r.q},
                                                           {"k", &r.k},
                                                           {"v", &r.v},
                                                           {"g", &r.g},
                                                           {"beta", &r.beta},
                                                           {"erase", &r.erase},
                                                           {"write", &r.write},
                                                           {"A_log", &r.A_log},
                                                           {"dt_bias", &r.dt_bias},
                                                           {"initial_state", &r.initial_state},
                                                           {"do", &r.output_gradient},
                                                           {"dht", &r.state_gradient}};
    for (const auto& [name, input] : inputs)
      inputs_.push_back(input->data == nullptr ? nullptr : bring(name, *input));
    for (const auto& [name, output] : outputs_of(r))
      outputs_.emplace_back(name, format_bytes(output->dtype, output->elements));
  }

  DeviceProblem problem(const Request& r) const {
    const auto tensor = [&](std::size_t i, const Input& input) {
      return Tensor{inputs_[i] == nullptr ? nullptr : inputs_[i]->memory.data(), input.dtype};
    };
    DeviceProblem p{};
    const kda::Dimensions& d = r.dimensions;
    const kda::Options& options = r.options;
    p.H = static_cast<int>(d.H), p.HV = static_cast<int>(d.HV);
    p.K = static_cast<int>(d.K), p.V = static_cast<int>(d.V);
    p.decays = static_cast<int>(d.decays()), p.strength = d.strength;
    p.q = tensor(0, r.q), p.k = tensor(1, r.k), p.v = tensor(2, r.v), p.g = tensor(3, r.g);
    p.beta = tensor(4, r.beta), p.erase = tensor(5, r.erase), p.write = tensor(6, r.write);
    p.A_log = tensor(7, r.A_log), p.dt_bias = tensor(8, r.dt_bias);
    p.initial_state = tensor(9, r.initial_state);
    p.output_gradient = tensor(10, r.output_gradient), p.state_gradient = tensor(11, r.state_gradient);
    const auto result = [&](std::size_t i, const Output& output) {
      return MutableTensor{output.data == nullptr ? nullptr : outputs_[i].data(), output.dtype};
    };
    p.o = result(0, r.o), p.final_state = result(1, r.final_state);
    for (std::size_t i = 0; i < r.gradients.size(); ++i) p.gradients[i] = result(2 + i, r.gradients[i]);
    p.scale = r.scale, p.lower_bound = options.lower_bound.value_or(0.0), p.gate = options.gate;
    p.qk_l2norm = options.qk_l2norm, p.beta_sigmoid = options.beta_sigmoid;
    p.allow_neg_eigval = options.allow_neg_eigval, p.state_v_first = options.state_v_first;
    p.exponential = r.exponential, p.casts = r.casts;
    return p;
  }

  /// They must be what they were when they went up.
  void check_inputs() const {
    for (const auto& input : inputs_)
      if (input != nullptr && input->memory.hash() != input->hash)
        throw Error(ErrorKind::internal,
                    std::string("GPU: a kernel changed its input ") + input->memory.name(), {},
                    "please report it with the command line");
  }
  void check_canaries() const {
    for (const auto& input : inputs_)
      if (input != nullptr) input->memory.check_canaries();
    for (const DeviceMemory& memory : outputs_) memory.check_canaries();
  }
  void poison_outputs() const {
    for (const DeviceMemory& memory : outputs_) memory.poison();
  }
  void download(const Request& r) const {
    std::size_t i = 0;
    for (const auto& [name, output] : outputs_of(r))
      outputs_[i++].download(output->data, format_bytes(output->dtype, output->elements));
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& input : inputs_)
      if (input != nullptr) sum += input->memory.size();
    for (const DeviceMemory& memory : outputs_) sum += memory.size();
    return sum;
  }

 private:
  /// o, final_state, then the gradients.
  static std::vector<std::pair<const char*, const Output*>> outputs_of(const Request& r) {
    std::vector<std::pair<const char*, const Output*>> outputs{{"o", &r.o}, {"final_state", &r.final_state}};
    constexpr const char* names[] = {"dq",     "dk",       "dv",     "dg",    "dbeta", "dinitial_state",
                                     "dA_log", "ddt_bias", "derase", "dwrite"};
    static_assert(std::size(names) == kda::gradient_count);
    for (std::size_t i = 0; i < r.gradients.size(); ++i) outputs.emplace_back(names[i], &r.gradients[i]);
    return outputs;
  }
  static std::size_t format_bytes(numeric::DType dtype, std::size_t elements) {
    return numeric::format_of(dtype).bytes * elements;
  }

  std::vector<std::shared_ptr<const DeviceInput>> inputs_;  ///< null: there is none
  std::vector<DeviceMemory> outputs_;
};

}  // namespace kda_check::cuda
