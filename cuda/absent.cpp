// The GPU side of a build without the CUDA toolkit.
#include "base/error.hpp"
#include "emulation.hpp"
#include "gpu.hpp"
#include "gradient_oracle.hpp"
#include "instructions.hpp"
#include "oracle.hpp"

namespace kda_check::cuda {

namespace {
constexpr char reason[] = "built without CUDA";
}

std::string unavailable() { return reason; }
std::string device_text() { return reason; }
std::string device_name() { return {}; }
void make_ready() {}
std::string unsupported_shape(Kernel, const Shape&) { return {}; }
std::string unsupported_on_tensor_cores(const Shape&) { return {}; }
void run(Kernel, const Request&) { throw Error(ErrorKind::environment, reason); }
std::vector<double> time(Kernel, const Request&, int) { throw Error(ErrorKind::environment, reason); }
std::string unsupported_oracle(const kda::Dimensions&) { return reason; }
void run_oracle(const OracleRequest&, const OracleSinks&) { throw Error(ErrorKind::environment, reason); }
std::string unsupported_gradient_oracle(const kda::Dimensions&) { return reason; }
void run_gradient_oracle(const GradientOracleRequest&) { throw Error(ErrorKind::environment, reason); }
std::string unsupported_emulation(const EmulatedForm&, const Shape&) { return reason; }
void emulate(const ProblemInputs&, std::span<const EmulatedForm>, const EmulationDone&) {
  throw Error(ErrorKind::environment, reason);
}
void evaluate(const FunctionRequest&, const AnswerSink&) { throw Error(ErrorKind::environment, reason); }
void multiply(const TileRequest&) { throw Error(ErrorKind::environment, reason); }
double copy_bandwidth() { throw Error(ErrorKind::environment, reason); }

}  // namespace kda_check::cuda
