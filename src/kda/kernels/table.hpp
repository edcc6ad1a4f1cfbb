// What the kernels take and the table through which they are reached. Plain data and function pointers only:
// this header is compiled into every instruction set's copy.
//
// Arrays of tokens are [token][channel]; rows of the key dimension have `key_stride` elements, rows of the
// value dimension `value_stride`, both multiples of `padding`, the elements beyond the dimension zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kda/arithmetic/arithmetic.hpp"
#include "kda/kernels/backward_blocks.hpp"
#include "kda/kernels/chunk_backward_block.hpp"
#include "kda/kernels/element_block.hpp"
#include "kda/kernels/operations.hpp"
#include "kda/kernels/oracle_blocks.hpp"
#include "numeric/formats.hpp"
#include "numeric/h100_functions.hpp"

namespace kda_check::kda {

/// Raw gate to log decay (docs/kda.md, "Gates"). `bias` may be null.
template <class T>
struct GateBlock {
  std::size_t tokens, key_dim, key_stride;
  T* g;                ///< in: as stored; out: natural log of the decay
  const T* bias;       ///< [key_dim]
  T amplitude;         ///< exp(A_log), or 1
  bool lower_bounded;  ///< lower_bound * sigmoid(amplitude * y), else -amplitude * softplus(y)
  T lower_bound;
  Exponential exponential;
  Special special = Special::ieee;
  T* factors = nullptr;  ///< [tokens][key_dim], out: the sigmoid or softplus; null: not asked for
};

/// Rows of running sums as Triton's tl.cumsum forms them: `together` rows at once by doubling steps, onto
/// which the last row before them is added. Where the rows are rounded products the first step takes the
/// product itself.
template <class T>
struct ScanBlock {
  std::size_t rows, stride, together;
  T* x;              ///< [rows][stride], in and out
  const T* factors;  ///< [rows][stride]: x = constant factors, rounded; null: x is no product
  T constant;
  bool is_fused;
};

/// x / sqrt(sum x^2 + 1e-6) over K.
template <class T>
struct NormBlock {
  std::size_t tokens, key_dim, key_stride;
  T* x;
  bool by_reciprocal;  ///< x * (1 / sqrt(...)), as FLA's chunk form does
  Operations operations;
  T factor = 1;  ///< of the reciprocal norm of special=fast
};

/// The recurrence in any arithmetic: one operation after the other over 16 columns at a time.
template <class T>
struct TokenBlock {
  std::size_t tokens, key_dim, columns, value_stride;  ///< columns: a multiple of 16
  const T *q, *k, *decay, *beta, *v;  ///< as in ColumnsBlock, but rows of the key dimension have no gaps
  T* o;
  T* state;  ///< [key_dim][state_stride]
  std::size_t state_stride;
  Operations operations;
  CastPoints casts;                                 ///< prediction and carry
  T scale = 1;                                      ///< of ScaledPart::output; else it is in q
  const T *read = nullptr, *column_beta = nullptr;  ///< as in ColumnsBlock
  /// [tokens][value_stride], what v is multiplied by as the prediction is subtracted; null: v has it.
  const T* write = nullptr;

  constexpr const T* read_key() const { return read != nullptr ? read : k; }
};

/// A head's state is stored between two tokens. Element (k, v) stands at (v / lanes key_dim + k) lanes + v
/// mod lanes; lanes beyond V are zeros.
struct StoredStateBlock {
  std::size_t key_dim, value_dim, lanes;
  StoredState stored;
  float* state;                 ///< in: as computed; out: as stored
  float* residual;              ///< of StateRounding::feedback: what the last rounding left, in and out
  const float* decay;           ///< [key_dim], of this token: what is left decays, too
  std::uint64_t stream, token;  ///< of stochastic rounding: the head, and the token's place in its sequence
  float* scales;                ///< scratch: the larger of key_dim and V, V filled up to whole lanes
};

/// What a RoundingProbe follows of one head: rows [K][probe_width].
inline constexpr std::size_t probe_width = 8;
struct ProbeRows {
  double *state, *error, *solved, *written, *carried;
};
/// A token begins: rows fade, and are read along its key.
struct ProbeReading {
  std::size_t K;
  const float* decay;  ///< [K]
  const double* key;   ///< [K]
  ProbeRows rows;
  double prediction[probe_width], error[probe_width], solved[probe_width], carried[probe_width];  ///< out
  double terms;  ///< out: the energy of what the prediction is a sum of
};
/// A token ends: rows change along its key, and are read along its query.
struct ProbeWriting {
  std::size_t K;
  const double *key, *query;  ///< [K]
  double beta;
  ProbeRows rows;
  const double *difference, *error, *solved, *carried, *written;  ///< what rows change by
  double read_error[probe_width], read_solved[probe_width], read_carried[probe_width],
      read_written[probe_width];  ///< out
};
/// Keys of a chunk fade, and are multiplied with a token's.
struct ProbeProducts {
  std::size_t K, count, stride;
  const float *decay, *key;  ///< [K]
  float* keys;               ///< [K][stride], of `count` tokens; stride is a multiple of 16
  float* products;           ///< [stride], out
};

/// Rows of errors (judge/spread/head_errors.hpp). All have a multiple of row_lanes elements, and sums of them
/// one part for every sixteenth column, added up from the first on.
inline constexpr std::size_t row_lanes = 16;
struct RowErrors {
  std::size_t count;
  const double* exact;
  double unit;    ///< what they are multiplied by
  float bound;    ///< of their size
  float* values;  ///< in; out: (value - exact) unit
};
/// One row of errors joins the sums over columns.
struct RowEnergies {
  std::size_t count;
  const float *error, *truth;
  float weight, bound;             ///< of an error, and of its size after that
  float along_weight;              ///< of error times truth
  float *columns, *columns_along;  ///< [count], of squares and of error times truth
  float* tiles;                    ///< [count / row_lanes], out: squares of each sixteen
  float along;                     ///< out: error times truth
};

/// C += A B on a tensor core, whatever the arithmetic; rows are contiguous.
struct TensorCoreBlock {
  TensorCore core;
  std::size_t rows, columns, depth;  ///< columns: a multiple of 16
  const float* a;                    ///< [rows][depth]
  const float* b;                    ///< [depth][columns]
  float* c;                          ///< [rows][columns]
};

/// An approximate function of an H100 over an array; those of two numbers are x / y.
struct Approximations {
  numeric::h100::Function function;
  const float *x, *y;
  float* result;
  std::size_t count;
};

/// Stages to be used as they are in place of those computed; null: the computed one. Layouts as in
/// ChunkBlock.
template <class T>
struct GivenStages {
  const T *Aqk = nullptr, *Akk_inv = nullptr, *u = nullptr, *w = nullptr, *qg = nullptr, *kg = nullptr,
          *h = nullptr, *v_new = nullptr;
};

/// One chunk of one head: F2 to F11 of docs/kda.md, "Stages". Every stage is left in its array.
template <class T>
struct ChunkBlock {
  std::size_t rows;  ///< valid tokens n
  std::size_t key_dim, value_dim, key_stride, value_stride, score_stride;
  Operations operations;
  DecayForm decay;
  std::size_t anchor_rows;
  T clamp;  ///< largest |exponent| of a factor, in natural units; infinite but for DecayForm::clamp
  InverseForm inverse;
  std::size_t inverse_rows;
  CastPoints casts;
  T scale;
  const T* q;     ///< [n][key_stride], normalised, without scale
  const T* k;     ///< [n][key_stride]
  const T* read;  ///< [n][key_stride], what predictions read the state along: k, or erase * k
  const T* v;     ///< [n][value_stride]
  const T* beta;  ///< [n]
  const T* G;     ///< [n][key_stride] natural-log cumulative gate
  const T* tail;  ///< [n][key_stride] gates behind each row, summed from the end; null: G_n - G_i
  T* Aqk;         ///< [n][score_stride]
  T* L;           ///< [n][score_stride], strictly lower
  T* Akk_inv;     ///< [n][score_stride]
  T* w;           ///< [n][key_stride]
  T* qg;          ///< [n][key_stride]
  T* kg;          ///< [n][key_stride]
  T* u;           ///< [n][value_stride]
  T* v_new;       ///< [n][value_stride]
  T* h;           ///< [key_dim][value_stride]: the state entering the chunk, as the products use it
  T* o;           ///< [n][value_stride]
  T* state;       ///< [key_dim][value_stride], carried
  T* scratch;     ///< ChunkScratch::total() elements
  GivenStages<T> given;
  /// [key_stride], G at the end of a chunk that was filled up with rows without decay; null: that of row n
  /// - 1.
  const T* filled_end = nullptr;
  bool forms_w = false;  ///< u and w also where Delta::residual has no use for them
  const T* bounds =
      nullptr;  ///< DecayForm::anchor_bound: [n / anchor_rows][key_stride], anchors of diagonal blocks
};

/// ChunkBlock::scratch for chunks of at most `rows` rows, array by array in the order they are used.
struct ChunkScratch {
  std::size_t operand, left, right, row, scores, inverse, weighted, anchored;
  constexpr ChunkScratch(std::size_t rows, std::size_t key_stride, std::size_t value_stride)
      : operand(rows * (key_stride > value_stride ? key_stride : value_stride)),
        left((rows > 16 ? rows : 16) * key_stride),
        right(2 * 16 * key_stride),
        row(key_stride),
        scores((rows > 16 ? rows : 16) * 16),
        inverse(4 * 64 * 64),
        weighted(rows * padded(rows)),
        anchored(key_stride * value_stride) {}
  constexpr std::size_t total() const {
    return operand + 2 * left + right + 2 * row + 2 * scores + inverse + weighted + anchored;
  }
};

/// What a run of tokens does to the state, S -> M S + A, chunk by chunk (docs/arithmetic.md, "segments"); A
/// is the state of the chunk's block, backwards its state_gradient.
template <class T>
struct TransitionBlock {
  T* M;        ///< [key_dim][key_stride], in: of the chunks so far; out: with this one
  T* scratch;  ///< [2][key_dim][key_stride]
};

/// y = M x, or y + M x.
template <class T>
struct MapProduct {
  Operations operations;
  CastPoints casts;
  std::size_t key_dim, columns, M_stride, stride;  ///< columns: a multiple of 16
  const T* M;                                      ///< [key_dim][M_stride]
  const T* x;                                      ///< [key_dim][stride], as an operand
  T* y;                                            ///< [key_dim][stride], in and out
  bool adds;
};

template <class T>
struct Kernels {
  std::size_t tile_lanes;  ///< V lanes of a ColumnsBlock
  /// Stored elements to T, and T rounded once to stored elements. When T has fewer bits than the stored
  /// format the first rounds too.
  void (*widen)(numeric::DType dtype, const void* source, T* target, std::size_t count);
  void (*narrow)(const T* source, numeric::DType dtype, void* target, std::size_t count);
  void (*exponential)(Exponential kind, const T* x, T* y, std::size_t count);
  void (*gate)(const GateBlock<T>&);
  void (*normalise)(const NormBlock<T>&);
  void (*round)(Rounding rounding, T* x, std::size_t count);
  /// Rows of running sums, from the first row on, in place.
  void (*cumulate)(const Reduction& reduction, T* x, std::size_t rows, std::size_t stride);
  void (*scan)(const ScanBlock<T>&);
  void (*token)(const TokenBlock<T>&);
  void (*recurrent[2])(const ColumnsBlock<T>&);  ///< by Contraction; sequential sums, nothing rounded
  void (*chunk[2])(const ChunkBlock<T>&);        ///< by Contraction
  void (*chunk_backward[2])(const ChunkBlock<T>&, const ChunkBackwardBlock<T>&);  ///< by Contraction
  /// A chunk's part of the map of a run of tokens; by Contraction.
  void (*chunk_map[2])(const ChunkBlock<T>&, const TransitionBlock<T>&);
  void (*chunk_map_backward[2])(const ChunkBlock<T>&, const ChunkBackwardBlock<T>&,
                                const TransitionBlock<T>&);
  void (*map_product[2])(const MapProduct<T>&);  ///< by Contraction
  TokenBackwardKernels<T> token_backward[2];     ///< by Contraction; sequential sums, nothing rounded
  TokenBackwardKernels<T> any_token_backward;    ///< in any arithmetic
  void (*row_dots)(const RowDotsBlock<T>&);
  void (*normalise_gradient)(const NormGradientBlock<T>&);
  void (*gate_gradient)(const GateGradientBlock<T>&);
};

struct ProbeKernels {
  void (*read)(ProbeReading&);
  void (*write)(ProbeWriting&);
  void (*products)(const ProbeProducts&);
};

struct RowKernels {
  void (*errors)(const RowErrors&);
  float (*product)(const float* a, const float* b, std::size_t count);
  void (*energies)(RowEnergies&);
};

struct ElementKernels {
  /// Whether the size of every element is 0 or in [2^-440, most], most being finite (numeric/within.hpp).
  bool (*within)(numeric::DType dtype, const void* elements, std::size_t count, double most);
  void (*errors)(numeric::DType dtype, ElementBlock&);
};

struct OracleKernels {
  std::size_t tile_lanes;
  void (*recurrence)(const OracleBlock&);  ///< double-double
  void (*recurrence_in_fp64)(const OracleBlock&);
  void (*exponential)(OracleLanes x, std::size_t count);
  void (*gate)(const OracleGateBlock&);
  void (*decay)(const OracleGateBlock&);  ///< in: raw gate; out: high part of exp of that of `gate`
  void (*keys)(const OracleKeyBlock&);
  void (*stages)(const StageOracleBlock&);
  void (*gate_slope)(const OracleGateBlock&);  ///< in: raw gate; out: d log decay / d raw gate
  void (*replay)(const OracleReplayBlock&);    ///< double-double, as the next
  void (*backward)(const OracleBackwardBlock&);
  void (*replay_in_fp64)(const OracleReplayBlock&);
  void (*backward_in_fp64)(const OracleBackwardBlock&);
  void (*stage_gradients)(const StageGradientOracleBlock&);
};

inline constexpr std::size_t fma_burst_values = 192;

struct KernelTable {
  const char* instruction_set;
  Kernels<float> fp32;
  Kernels<double> fp64;
  OracleKernels oracle;
  ProbeKernels probe;
  RowKernels rows;
  ElementKernels elements;
  void (*store_state)(const StoredStateBlock&);
  void (*tensor_core)(const TensorCoreBlock&);
  void (*approximate)(const Approximations&);
  /// A loop of independent fused multiply-adds over `fma_burst_values` values, all different; returns its
  /// flops.
  double (*fma_burst_fp32)(long iterations, float* values);
  double (*fma_burst_fp64)(long iterations, double* values);
  /// True unless the compiler fused what the source does not.
  bool (*keeps_roundings_apart)(float x, float y, float z);
};

/// The table for the best instruction set of this processor. All tables give the same bits.
const KernelTable& kernel_table();

/// Every table this processor can run, best first, for tests.
struct KernelTables {
  const KernelTable* table[3];
  int count;
};
KernelTables kernel_tables();

template <class T>
const Kernels<T>& kernels() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernel_table().fp32;
  } else {
    return kernel_table().fp64;
  }
}

}  // namespace kda_check::kda
