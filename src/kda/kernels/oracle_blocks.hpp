// What the kernels of the oracle take: arrays of double-doubles with magnitudes, a high and a low part each.
#pragma once

#include <cstddef>

#include "numeric/double_double.hpp"

namespace kda_check::kda {

struct OracleRows {
  const double *hi, *lo;
};
struct OracleLanes {
  double *hi, *lo;
};
/// What writes are weighed by.
struct OracleStrength {
  OracleRows beta;         ///< [tokens]
  OracleRows column_beta;  ///< [tokens][value_stride], a beta for each column; null pointers: beta
  // [tokens][key_dim], for magnitudes; not read with column_beta.
  const double* retained;  ///< |1 - beta k^2|, with an erase gate |1 - k read|
  const double* written;   ///< |beta k|: what a write leaves
  const double* erased;  ///< |beta k|, with an erase gate |read|: what a gradient takes from the rows before
};
/// Of a token, for the error of the recurrence in fp64; rounded up.
struct TokenNorms {
  double decay;       ///< max_k e^g; infinite: no bound is known
  double key, query;  ///< |k| and |q|, scale included
};
struct OracleError {
  const TokenNorms* tokens = nullptr;
  double* columns = nullptr;    ///< [lanes of a tile], carried: |S - exact S| over k is at most that
  double* of_output = nullptr;  ///< in, out: the largest error of o over its magnitude
  double* of_state = nullptr;   ///< out: the same of the state behind the last token
};
struct OracleBlock {
  std::size_t tokens, key_dim, value_stride;
  OracleRows q;      ///< [tokens][key_dim], scale included
  OracleRows k;      ///< [tokens][key_dim]
  OracleRows read;   ///< [tokens][key_dim], what predictions read the state along: k, or erase * k
  OracleRows decay;  ///< [tokens][key_dim], exp(g)
  OracleStrength strength;
  const double* v;      ///< [tokens][value_stride]
  const double* v_low;  ///< [tokens][value_stride], of write * v; null: v is exact
  OracleLanes o;        ///< [tokens][value_stride]
  double* o_magnitude;  ///< [tokens][value_stride]
  OracleLanes state;    ///< [key_dim][lanes of a tile]
  double* state_magnitude;
  OracleError error = {};  ///< fp64 alone; null pointers: not asked for
};

/// A matrix of double-doubles with magnitudes; rows of `stride` elements, a multiple of `padding`.
struct OracleMatrix {
  double *hi = nullptr, *lo = nullptr, *magnitude = nullptr;
  std::size_t stride = 0;
};

/// One chunk of one head, every stage exactly. Elements beyond a dimension are zero in what is read.
struct StageOracleBlock {
  std::size_t rows, key_dim, value_dim;
  double scale;
  OracleMatrix q, k, G, beta, v;      ///< [n][K], [n][K], [n][K] natural log, [n][1], [n][V]
  OracleMatrix read;                  ///< [n][K], what predictions read the state along: k, or erase * k
  OracleMatrix k_columns, G_columns;  ///< [K][n], transposed
  OracleMatrix Aqk, L, Akk_inv;       ///< [n][n]
  OracleMatrix u, v_new, value_scratch;
  OracleMatrix w, qg, kg, key_scratch;
  OracleMatrix state;  ///< [K][V]: in, entering the chunk; out, leaving it
};

/// The same chunk backwards. Read of `forward` are rows, key_dim, value_dim, scale, k, G, beta, v, Aqk,
/// Akk_inv, v_new, w, qg, kg and, as the state, the one entering the chunk; its scratch is overwritten.
struct StageGradientOracleBlock {
  StageOracleBlock forward;
  OracleMatrix output_gradient;             ///< [n][V] do
  OracleMatrix gradient;                    ///< [K][V] of the state: in, leaving the chunk; out, entering it
  OracleMatrix dAqk, dAkk;                  ///< [n][n]
  OracleMatrix dv_local, dv, dw;            ///< [n][V], [n][V], [n][K]
  OracleMatrix square, square_columns;      ///< [n][n] scratch
  OracleMatrix value_columns, key_columns;  ///< [V][n], [K][n] scratch
  OracleMatrix state_columns;               ///< [V][K] scratch
};

/// The recurrence over a block of tokens, keeping what its reverse needs. All matrices have the same stride;
/// `lanes` is V rounded up to eight, what lies beyond V zero.
struct OracleReplayBlock {
  std::size_t tokens, key_dim, lanes;
  OracleRows k, read, decay;  ///< as in OracleBlock
  OracleStrength strength;
  const double *v, *v_low;  ///< [tokens][stride], as in OracleBlock
  OracleMatrix state;       ///< [key_dim][stride]: in, entering the first token; out, leaving the last
  OracleMatrix decayed;     ///< [slots][key_dim][stride]: out, P_t in slot t mod slots
  std::size_t slots;        ///< at least 2
  OracleMatrix error;       ///< [tokens][stride]: out, e_t
  OracleMatrix write;       ///< [tokens][stride]: out, beta_t e_t, and |v_t| + sum_k |k_t P_t|
};

/// The same block backwards; everything as the replay left it, with a slot for each token.
struct OracleBackwardBlock {
  std::size_t tokens, key_dim, lanes;
  OracleRows q, k, read, decay;
  OracleStrength strength;
  const double* output_gradient;  ///< [tokens][stride]
  OracleMatrix decayed, error, write;
  OracleMatrix
      gradient;  ///< [key_dim][stride]: of the state, in leaving the last token, out entering the first
  double* gradient_energy;  ///< [key_dim][stride]: of the same, what its squares are with random signs
  OracleMatrix residual;    ///< [tokens][stride]: out, r_t
  double* residual_terms;   ///< [tokens][stride]: out, R_t
  double* residual_energy;  ///< [tokens][stride]: out, sum_k k_t^2 times that energy
  OracleMatrix dv;          ///< [tokens][stride]: out
  OracleMatrix dq, dk, dg;  ///< [tokens][key_dim]: out, dq without scale
  OracleMatrix dbeta;       ///< [tokens][1], of column betas [tokens][stride]: out
  OracleMatrix dread;       ///< [tokens][key_dim]: out, of what is read along; no memory: dk has it, too
};

/// Rows of q or k, stored in the high parts, times a factor; L2-normalised if they are to be.
struct OracleKeyBlock {
  std::size_t rows, key_dim;
  OracleLanes x;  ///< [rows][key_dim]
  numeric::DoubleDouble factor;
  bool has_norm;
};

/// The double-double functions over arrays: x in, result out, in place.
struct OracleGateBlock {
  std::size_t count;
  OracleLanes g;    ///< in: raw gate; out: log decay
  OracleRows bias;  ///< [count], or null pointers
  double A_log;     ///< of the value head; 0 without
  bool lower_bounded;
  double lower_bound;
  bool has_gate = true;  ///< read by the decays alone: without one g is the log decay
};

}  // namespace kda_check::kda
