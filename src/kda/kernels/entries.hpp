// What table.cpp puts into the table, by the translation unit that has it. Each is compiled once for each
// instruction set.
#pragma once

#include "kda/kernels/lanes/lanes.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Two registers a row keep both multiply-add units busy: four chains of dependent sums, eight operations a
/// row. No fewer than 16 lanes, which is what the kernels for any arithmetic take at a time.
template <class T>
inline constexpr int tile_width = sixteen_width<T> > 2 ? sixteen_width<T> : 2;
template <class T>
inline constexpr std::size_t tile_lanes = Lanes<T, tile_width<T>>::count;
inline constexpr int oracle_tile_width = 1;
inline constexpr std::size_t oracle_tile_lanes = Lanes<double, oracle_tile_width>::count;

// elements/elements.cpp
template <class T>
void widen(numeric::DType dtype, const void* source, T* target, std::size_t count);
template <class T>
void narrow(const T* source, numeric::DType dtype, void* target, std::size_t count);
void exponential(Exponential kind, const double* x, double* y, std::size_t count);
void round_array(Rounding rounding, float* x, std::size_t count);
void round_array(Rounding rounding, double* x, std::size_t count);
template <class T>
void gate(const GateBlock<T>& block);
template <class T>
void normalise(const NormBlock<T>& block);
template <class T>
void row_dots(const RowDotsBlock<T>& block);
template <class T>
void normalise_gradient(const NormGradientBlock<T>& block);
template <class T>
void gate_gradient(const GateGradientBlock<T>& block);

// elements/approximations.cpp
void approximate(const Approximations& block);

// elements/exponentials.cpp
void exponential(Exponential kind, const float* x, float* y, std::size_t count);

// sums/sums.cpp
template <class T>
void cumulate(const Reduction& reduction, T* x, std::size_t rows, std::size_t stride);
template <class T>
void scan(const ScanBlock<T>& block);
void tensor_core_block(const TensorCoreBlock& block);

// token/tokens.cpp
template <class T, int W, bool is_fused, bool replays>
void recurrent_tile(const ColumnsBlock<T>& block);
template <class T, int W, bool is_fused>
void column_gradients_tile(const ColumnsBlock<T>& block);
template <class T, int W, bool is_fused>
void row_gradients_tile(const RowsBlock<T>& block);

// token/any_tokens.cpp
template <class T>
void token_block(const TokenBlock<T>& block);
template <class T, std::size_t lanes>
void replay_block(const ColumnsBlock<T>& block);
template <class T, std::size_t lanes>
void column_gradients_block(const ColumnsBlock<T>& block);
template <class T, std::size_t lanes>
void row_gradients_block(const RowsBlock<T>& block);

// token/stored_state.cpp
void store_state(const StoredStateBlock& block);

// chunk/chunk.cpp, chunk/chunk_backward.cpp
template <class T, bool is_fused>
void chunk_forward(const ChunkBlock<T>& chunk);
template <class T, bool is_fused>
void chunk_backward(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block);

// chunk/segments.cpp
template <class T, bool is_fused>
void chunk_map(const ChunkBlock<T>& chunk, const TransitionBlock<T>& transition);
template <class T, bool is_fused>
void chunk_map_backward(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                        const TransitionBlock<T>& transition);
template <class T, bool is_fused>
void map_product(const MapProduct<T>& product);

// truth/oracle.cpp
void oracle(const OracleBlock& block);
void oracle_in_fp64(const OracleBlock& block);
void oracle_exponential(OracleLanes x, std::size_t count);
void oracle_gate(const OracleGateBlock& block);
void oracle_decay(const OracleGateBlock& block);
void oracle_keys(const OracleKeyBlock& block);
void oracle_gate_slope(const OracleGateBlock& block);

// truth/gradient_oracle.cpp
void oracle_replay(const OracleReplayBlock& block);
void oracle_backward(const OracleBackwardBlock& block);
void oracle_replay_in_fp64(const OracleReplayBlock& block);
void oracle_backward_in_fp64(const OracleBackwardBlock& block);

// truth/rounding_probe.cpp
void probe_read(ProbeReading& block);
void probe_write(ProbeWriting& block);
void probe_products(const ProbeProducts& block);

// elements/row_errors.cpp
void row_errors(const RowErrors& row);
float row_product(const float* a, const float* b, std::size_t count);
void row_energies(RowEnergies& row);

// elements/element_errors.cpp
bool elements_within(numeric::DType dtype, const void* elements, std::size_t count, double most);
void element_errors(numeric::DType dtype, ElementBlock& block);

// truth/stage_oracle.cpp
void stage_oracle(const StageOracleBlock& block);
void stage_gradient_oracle(const StageGradientOracleBlock& block);

}  // namespace kda_check::kda::KDA_CHECK_ISA
