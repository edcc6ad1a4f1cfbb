// The GPU side of a build without the CUDA toolkit.
#include "base/error.hpp"
#include "cuda/device/device.hpp"
#include "cuda/device/kept_inputs.hpp"
#include "cuda/probe/instructions.hpp"
#include "cuda/spread/emulation.hpp"
#include "cuda/spread/row_errors.hpp"
#include "cuda/truth/gradient_oracle.hpp"
#include "cuda/truth/oracle.hpp"
#include "cuda/variants/decoding/decoding.hpp"
#include "cuda/variants/gpu.hpp"

namespace kda_check::cuda {

namespace {
constexpr char reason[] = "built without CUDA";
}

std::string unavailable() { return reason; }
std::string device_text() { return reason; }
std::string device_name() { return {}; }
void make_ready() {}
bool is_well() { return true; }
void give_back_memory() {}
std::size_t device_count() { return 0; }
std::string device_text_of(int) { return reason; }
void use_device(int) { throw Error(ErrorKind::environment, reason); }
void check_exchange(Peers&) { throw Error(ErrorKind::environment, reason); }
KeptInputs::KeptInputs(std::vector<Input>) {}
KeptInputs::~KeptInputs() = default;
std::string unsupported_shape(const Shape&) { return {}; }
std::string unsupported_shape(Kernel, const Shape&) { return {}; }
std::string unsupported_on_tensor_cores(const Shape&) { return {}; }
void run(Kernel, const Request&) { throw Error(ErrorKind::environment, reason); }
void run(Kernel, const Request&, const Segments&) { throw Error(ErrorKind::environment, reason); }
std::vector<double> time(Kernel, const Request&, const Segments&, int) {
  throw Error(ErrorKind::environment, reason);
}
std::vector<double> time(Kernel, const Request&, int) { throw Error(ErrorKind::environment, reason); }
bool has_decoding(const Request&) { return false; }
void run_decoding(const DecodingRequest&) { throw Error(ErrorKind::environment, reason); }
StepSeconds time_decoding(const DecodingRequest&, int) { throw Error(ErrorKind::environment, reason); }
std::string unsupported_oracle(const kda::Dimensions&) { return reason; }
void run_oracle(const OracleRequest&, const OracleSinks&) { throw Error(ErrorKind::environment, reason); }
std::string unsupported_gradient_oracle(const kda::Dimensions&) { return reason; }
void run_gradient_oracle(const GradientOracleRequest&) { throw Error(ErrorKind::environment, reason); }
std::string unsupported_emulation(const EmulatedForm&, const Shape&) { return reason; }
void emulate(const ProblemInputs&, std::span<const EmulatedForm>, const EmulationDone&) {
  throw Error(ErrorKind::environment, reason);
}
void download(const kda::TensorOnGpu&, void*) { throw Error(ErrorKind::environment, reason); }
std::unique_ptr<kda::RowErrorSums> row_errors(kda::RowErrorRequest) {
  throw Error(ErrorKind::environment, reason);
}
kda::TensorOnGpu uploaded(numeric::DType, const void*, std::size_t) {
  throw Error(ErrorKind::environment, reason);
}
kda::TensorOnGpu room_for_doubles(std::size_t) { throw Error(ErrorKind::environment, reason); }
void upload_part(const kda::TensorOnGpu&, std::size_t, std::size_t, const double*) {
  throw Error(ErrorKind::environment, reason);
}
void evaluate(const FunctionRequest&, const AnswerSink&) { throw Error(ErrorKind::environment, reason); }
void multiply(const TileRequest&) { throw Error(ErrorKind::environment, reason); }
double copy_bandwidth() { throw Error(ErrorKind::environment, reason); }

}  // namespace kda_check::cuda
