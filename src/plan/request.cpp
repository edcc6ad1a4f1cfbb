#include "plan/request.hpp"

#include <algorithm>

#include "kda/truth/gradient_oracle.hpp"

namespace kda_check::plan {

std::optional<kda::OraclePrecision> precision_of(OracleChoice choice) {
  if (choice == OracleChoice::none) return std::nullopt;
  return choice == OracleChoice::fp64 ? kda::OraclePrecision::fp64 : kda::OraclePrecision::double_double;
}

namespace {

template <class T>
void replace(std::optional<T>& value, const std::optional<T>& by) {
  if (by) value = by;
}

}  // namespace

std::string why_no_gpu_oracle(const kda::Dimensions& dimensions, kda::Pass pass) {
  return pass == kda::Pass::backward ? kda::gpu_gradient_oracle_unavailable(dimensions)
                                     : kda::gpu_oracle_unavailable(dimensions);
}

bool Request::begins_in_fp64(const kda::Dimensions& d, kda::Pass pass) const {
  // Below this double-double is done in a quarter of a second.
  constexpr double worth_it = 0x1p28;
  return !oracle && pass == kda::Pass::forward && d.strength != kda::Strength::gates &&
         static_cast<double>(d.B * d.T * d.HV) * static_cast<double>(d.K * d.V) >= worth_it;
}

kda::OracleDevice Request::oracle_device_for(const kda::Dimensions& d, kda::Pass pass) const {
  const OracleDeviceChoice choice = oracle_device.value_or(OracleDeviceChoice::automatic);
  if (choice == OracleDeviceChoice::cpu) return kda::OracleDevice::cpu;
  // Below this the CPU is done before a device is awake: tokens times heads of K = V = 128.
  constexpr double worth_it = 16384;
  const double size = static_cast<double>(d.B * d.T * d.HV) * static_cast<double>(d.K * d.V) / (128 * 128);
  if (choice == OracleDeviceChoice::automatic && size < worth_it) return kda::OracleDevice::cpu;
  return why_no_gpu_oracle(d, pass).empty() ? kda::OracleDevice::gpu : kda::OracleDevice::cpu;
}

Request under(Request line, const Request& command) {
  line.task = command.task;
  line.command = command.command;
  line.registry = command.registry;
  line.narrowing = command.selection;
  if (!command.arithmetic.empty()) line.arithmetic = command.arithmetic;
  replace(line.chunk_size, command.chunk_size);
  replace(line.oracle, command.oracle);
  replace(line.oracle_device, command.oracle_device);
  replace(line.external, command.external);
  replace(line.expectation, command.expectation);
  replace(line.invariants, command.invariants);
  replace(line.judging.atol, command.judging.atol);
  replace(line.judging.rtol, command.judging.rtol);
  if (command.judging.atol || command.judging.rtol)
    line.judging.allclose_source = command.judging.allclose_source;
  replace(line.judging.worst, command.judging.worst);
  replace(line.judging.floor, command.judging.floor);
  replace(line.judging.undecided, command.judging.undecided);
  line.judging.as_declared = line.judging.as_declared || command.judging.as_declared;
  line.judging.limits.insert(line.judging.limits.end(), command.judging.limits.begin(),
                             command.judging.limits.end());
  if (!command.tolerance.empty()) line.tolerance = command.tolerance;
  line.stages = line.stages || command.stages;
  replace(line.test, command.test);
  return line;
}

}  // namespace kda_check::plan
