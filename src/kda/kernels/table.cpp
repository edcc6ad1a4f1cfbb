// The table of one instruction set, KDA_CHECK_ISA naming it (src/CMakeLists.txt).
#include "kda/kernels/table.hpp"

#include "kda/kernels/entries.hpp"

#define KDA_CHECK_STRINGIFY(x) #x
#define KDA_CHECK_NAME_OF(x) KDA_CHECK_STRINGIFY(x)
#define KDA_CHECK_JOIN(a, b) a##b
#define KDA_CHECK_JOINED(a, b) KDA_CHECK_JOIN(a, b)

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

template <class T>
double fma_burst(long iterations, T* values) {
  using Pack = Lanes<T, 4>;
  // Twelve chains: enough for two units of latency four, and the registers hold them.
  Pack a = Pack::load(values), b = Pack::load(values + Pack::count), c = Pack::load(values + 2 * Pack::count);
  const Pack addend = Pack::broadcast(T(1e-9));
  for (long i = 0; i < iterations; ++i) {
    a = multiply_add<true>(T(0.999), a, addend);
    b = multiply_add<true>(T(0.999), b, addend);
    c = multiply_add<true>(T(0.999), c, addend);
  }
  a.store(values);
  b.store(values + Pack::count);
  c.store(values + 2 * Pack::count);
  return 2.0 * 3 * static_cast<double>(Pack::count) * static_cast<double>(iterations);
}

bool keeps_roundings_apart(float x, float y, float z) {
  // (1 + e)^2 - (1 + 2e): zero when the product is rounded first.
  const Lanes<float, 1> product = Lanes<float, 1>::broadcast(x) * Lanes<float, 1>::broadcast(y);
  float lanes[Lanes<float, 1>::count];
  (product + Lanes<float, 1>::broadcast(z)).store(lanes);
  const float scalar = x * y;
  return lanes[0] == 0 && scalar + z == 0;
}

template <class T, bool is_fused>
constexpr TokenBackwardKernels<T> token_backward_kernels{recurrent_tile<T, tile_width<T>, is_fused, true>,
                                                         column_gradients_tile<T, tile_width<T>, is_fused>,
                                                         row_gradients_tile<T, tile_width<T>, is_fused>};

template <class T>
constexpr Kernels<T> kernels_for() {
  return {tile_lanes<T>,
          widen<T>,
          narrow<T>,
          exponential,
          gate<T>,
          normalise<T>,
          round_array,
          cumulate<T>,
          scan<T>,
          token_block<T>,
          {recurrent_tile<T, tile_width<T>, false, false>, recurrent_tile<T, tile_width<T>, true, false>},
          {chunk_forward<T, false>, chunk_forward<T, true>},
          {chunk_backward<T, false>, chunk_backward<T, true>},
          {chunk_map<T, false>, chunk_map<T, true>},
          {chunk_map_backward<T, false>, chunk_map_backward<T, true>},
          {map_product<T, false>, map_product<T, true>},
          {token_backward_kernels<T, false>, token_backward_kernels<T, true>},
          {replay_block<T, tile_lanes<T>>, column_gradients_block<T, tile_lanes<T>>,
           row_gradients_block<T, tile_lanes<T>>},
          row_dots<T>,
          normalise_gradient<T>,
          gate_gradient<T>};
}

}  // namespace

}  // namespace kda_check::kda::KDA_CHECK_ISA

namespace kda_check::kda {

// A name of its own outside all namespaces: the only one that the objects of this instruction set show to
// others (cmake/kernels.cmake). A constant, so that nothing of it has to run before main.
extern "C" {
extern constinit const KernelTable KDA_CHECK_JOINED(kda_check_kernels_, KDA_CHECK_ISA);
constinit const KernelTable KDA_CHECK_JOINED(kda_check_kernels_, KDA_CHECK_ISA){
    KDA_CHECK_NAME_OF(KDA_CHECK_ISA),
    KDA_CHECK_ISA::kernels_for<float>(),
    KDA_CHECK_ISA::kernels_for<double>(),
    {KDA_CHECK_ISA::oracle_tile_lanes, KDA_CHECK_ISA::oracle, KDA_CHECK_ISA::oracle_in_fp64,
     KDA_CHECK_ISA::oracle_exponential, KDA_CHECK_ISA::oracle_gate, KDA_CHECK_ISA::oracle_decay,
     KDA_CHECK_ISA::oracle_keys, KDA_CHECK_ISA::stage_oracle, KDA_CHECK_ISA::oracle_gate_slope,
     KDA_CHECK_ISA::oracle_replay, KDA_CHECK_ISA::oracle_backward, KDA_CHECK_ISA::oracle_replay_in_fp64,
     KDA_CHECK_ISA::oracle_backward_in_fp64, KDA_CHECK_ISA::stage_gradient_oracle},
    {KDA_CHECK_ISA::probe_read, KDA_CHECK_ISA::probe_write, KDA_CHECK_ISA::probe_products},
    {KDA_CHECK_ISA::row_errors, KDA_CHECK_ISA::row_product, KDA_CHECK_ISA::row_energies},
    {KDA_CHECK_ISA::elements_within, KDA_CHECK_ISA::element_errors},
    KDA_CHECK_ISA::store_state,
    KDA_CHECK_ISA::tensor_core_block,
    KDA_CHECK_ISA::approximate,
    KDA_CHECK_ISA::fma_burst<float>,
    KDA_CHECK_ISA::fma_burst<double>,
    KDA_CHECK_ISA::keeps_roundings_apart,
};
}

}  // namespace kda_check::kda
