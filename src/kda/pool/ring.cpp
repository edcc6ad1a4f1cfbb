#include "kda/pool/ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/excerpt.hpp"
#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

namespace {

using numeric::DType;
using tensor::Tensor;

[[noreturn]] void refuse_ring(std::string what, std::string hint = {}) {
  throw Error(ErrorKind::input, std::move(what), {}, std::move(hint));
}

/// Of that input, whether there is one or not.
std::string ring_of(std::string_view input, bool is_solved) {
  return fmt::format("ring_{}", is_solved && input == "v" ? "u" : input);
}

/// That holds the elements of both.
DType common(DType a, DType b) {
  if (a == b) return a;
  return a == DType::fp64 || b == DType::fp64 ? DType::fp64 : DType::fp32;
}

/// Rows `held` of a ring, or one that stands for each of them, and then the tokens of each piece.
Tensor woven(const Tensor& tokens, const Tensor& before, const std::vector<PoolPiece>& pieces) {
  const DType dtype = common(tokens.dtype(), before.dtype());
  const Tensor behind = tokens.converted_to(dtype), rows = before.converted_to(dtype);
  tensor::Shape shape = tokens.shape();
  const std::size_t bytes = behind.bytes() / shape[1];
  const bool is_one = rows.bytes() == bytes;
  std::vector<const std::byte*> from;
  std::size_t own = 0;
  for (const PoolPiece& piece : pieces) {
    for (const std::size_t row : piece.held) from.push_back(rows.data() + (is_one ? 0 : row) * bytes);
    for (std::size_t t = 0; t < piece.tokens.length(); ++t) from.push_back(behind.data() + own++ * bytes);
  }
  shape[1] = from.size();
  Tensor result(tokens.name(), dtype, std::move(shape));
  for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(result.data() + i * bytes, from[i], bytes);
  return result;
}

/// One row of these elements.
Tensor row_like(const Tensor& tokens, double value) {
  Tensor row(tokens.name(), tokens.dtype(), {tokens.size() / tokens.shape()[1]});
  for (std::size_t i = 0; i < row.size(); ++i) row.set(i, value);
  return row;
}

DType strength_dtype(const Options& options, DType beta) { return options.beta_sigmoid ? DType::fp64 : beta; }

/// beta as erase and write gates, with which a token of the ring is erase 0, write 1 and v u.
void split_beta(Problem& tokens) {
  const Tensor beta = std::exchange(tokens.beta, {});
  const Dimensions d = tokens.dimensions();
  const auto repeated = [&](const char* name, std::size_t width) {
    tensor::Shape shape = beta.shape();
    shape.push_back(width);
    Tensor gate(name, strength_dtype(tokens.options, beta.dtype()), std::move(shape));
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double x = beta.value(i / width), most = tokens.options.allow_neg_eigval ? 2 : 1;
      gate.set(i, tokens.options.beta_sigmoid ? most * numeric::sigmoid(numeric::DoubleDouble{x}).hi : x);
    }
    return gate;
  };
  tokens.erase = repeated("erase", d.K), tokens.write = repeated("write", d.V);
  tokens.options.beta_sigmoid = tokens.options.allow_neg_eigval = false;
}

}  // namespace

std::size_t rows_of_rings(const std::function<const tensor::Shape*(std::string_view)>& shape_of,
                          std::size_t slots, const Dimensions& call) {
  const auto first =
      std::ranges::find_if(ring_tensors, [&](std::string_view name) { return shape_of(name) != nullptr; });
  if (first == std::end(ring_tensors)) return 0;
  const bool is_solved = shape_of("ring_u") != nullptr;
  for (const std::string_view name : ring_tensors) {
    const bool is_wanted = name == "ring_k" || name == "ring_g" || (name == "ring_u") == is_solved;
    if (is_wanted != (shape_of(name) != nullptr))
      refuse_ring(
          fmt::format("inputs/{} is {}", name,
                      is_wanted ? fmt::format("missing beside inputs/{}", *first)
                                : "there beside inputs/ring_u; wanted either"),
          "raw writes are ring_k, ring_v, ring_g and ring_beta; solved ones ring_k, ring_u and ring_g");
  }
  if (!is_solved && call.strength == Strength::gates)
    refuse_ring(
        "inputs/ring_v is there beside inputs/erase and inputs/write; wanted ring_u, the solved writes");
  if (is_solved && call.strength == Strength::value)
    refuse_ring("inputs/ring_u is there beside a beta for each column; wanted ring_v and ring_beta");
  const tensor::Shape& k = *shape_of("ring_k");
  for (const std::string_view name : ring_tensors)
    if (const tensor::Shape* const shape = shape_of(name);
        shape != nullptr && ((*shape)[0] != slots || (*shape)[1] != k[1]))
      refuse_ring(
          fmt::format("inputs/{} is {}; wanted {} slots, as inputs/state_pool has, and {} rows, as "
                      "inputs/ring_k has",
                      name, tensor::to_string(*shape), slots, k[1]));
  return k[1];
}

void check_ring_entries(const RingTable& ring, std::size_t sequences) {
  for (const auto* const list : {&ring.length, &ring.base})
    if (list->size() != sequences && (list == &ring.length || !list->empty()))
      refuse_ring(fmt::format("inputs/{} has {} entries; wanted {}, one a sequence",
                              list == &ring.length ? "ring_length" : "ring_base", list->size(), sequences));
}

RingRows ring_rows_of(const RingTable& ring, const Sequence& sequence, std::size_t slot) {
  const std::size_t n = sequence.index;
  const auto entry = [&](const char* name, std::int64_t found, std::size_t most) {
    if (found < 0 || found > static_cast<std::int64_t>(most))
      refuse_ring(fmt::format("inputs/{}[{}] is {}; wanted 0..{}, as a ring has {} rows", name, n, found,
                              most, ring.rows));
    return static_cast<std::size_t>(found);
  };
  const std::size_t held = entry("ring_length", ring.length[n], ring.rows),
                    base = ring.base.empty() ? 0 : entry("ring_base", ring.base[n], ring.rows - 1);
  const bool folds = ring.folds(held);
  const std::size_t left = folds ? 0 : held;
  if (left + sequence.length() > ring.rows && !(folds && ring.folds_call))
    refuse_ring(
        fmt::format("sequence {} has {} tokens, and {} of the {} rows of its ring hold others; wanted "
                    "a row for each",
                    n, sequence.length(), left, ring.rows),
        "options/ring_flush says when a ring is folded into the state of its slot");
  const auto row = [&](std::size_t i) { return slot * ring.rows + i % ring.rows; };
  RingRows rows;
  for (std::size_t i = 0; i < held; ++i) rows.held.push_back(row(base + i));
  // A ring that does not wrap starts anew.
  const std::size_t first = ring.base.empty() ? left : base + held;
  for (std::size_t t = 0; t < sequence.length() && !(folds && ring.folds_call); ++t)
    rows.written.push_back(row(first + t));
  return rows;
}

Problem behind_rings(Problem tokens, const PoolCall& call, const std::vector<PoolPiece>& pieces) {
  const bool is_solved = call.ring.contains("ring_u");
  if (is_solved && !tokens.beta.empty()) split_beta(tokens);
  for (const InputSlot& slot : input_slots) {
    const Tensor* const own = slot.of(tokens);
    if (own == nullptr || !find_spec(slot.name)->has(Axis::token)) continue;
    const auto ring = call.ring.find(ring_of(slot.name, is_solved));
    // What a ring does not have: a query, whose o nobody asks for.
    const Tensor one = row_like(*own, slot.name == "write");
    slot.set(tokens, woven(*own, ring != call.ring.end() ? ring->second : one, pieces));
  }
  tokens.cu_seqlens = {0};
  for (const PoolPiece& piece : pieces)
    tokens.cu_seqlens.push_back(tokens.cu_seqlens.back() + static_cast<std::int64_t>(piece.length()));
  tokens.validate();
  return tokens;
}

void put_behind_rings(Outline& call) {
  if (!call.has("ring_k")) return;
  const bool is_solved = call.has("ring_u"), splits = is_solved && call.has("beta");
  std::vector<std::pair<std::string_view, DType>> inputs;
  for (const InputSlot& slot : input_slots) {
    std::optional<DType> dtype = call.dtype_of(slot.name);
    if (splits && slot.name == "beta") continue;
    if (splits && (slot.name == "erase" || slot.name == "write"))
      dtype = strength_dtype(call.options, *call.dtype_of("beta"));
    if (!dtype) continue;
    const std::optional<DType> ring = call.dtype_of(ring_of(slot.name, is_solved));
    inputs.emplace_back(slot.name, ring ? common(*dtype, *ring) : *dtype);
  }
  call.inputs = std::move(inputs);
  if (!splits) return;
  call.options.beta_sigmoid = call.options.allow_neg_eigval = false;
  call.dimensions.strength = Strength::gates;
}

std::vector<RingRow> ring_rows_after(const PoolCall& call) {
  const RingTable& ring = call.table.ring;
  std::vector<bool> is_used(call.slots(), false);
  std::vector<RingRow> after;
  for (const PoolPiece& piece : call.pieces) {
    is_used[piece.from] = true;
    if (!ring.folds(piece.held.size()))
      for (const std::size_t row : piece.held) after.push_back({row, &piece, std::nullopt});
    for (std::size_t t = 0; t < piece.written.size(); ++t) after.push_back({piece.written[t], &piece, t});
  }
  for (std::size_t row = 0; row < is_used.size() * ring.rows; ++row)
    if (!is_used[row / ring.rows]) after.push_back({row, nullptr, std::nullopt});
  return after;
}

Tensor ring_after(const PoolCall& call, const Tensor& answered) {
  Tensor after = answered.clone();
  const Tensor& before = call.ring.at(answered.name());
  const std::size_t bytes = after.bytes() / (call.slots() * call.table.ring.rows);
  const auto own = std::ranges::find(input_slots, answered.name().substr(5), &InputSlot::name);
  const Tensor tokens =  // none of ring_u
      own == std::end(input_slots) ? Tensor() : own->of(call.problem)->converted_to(after.dtype());
  for (const RingRow& row : ring_rows_after(call)) {
    std::byte* const to = after.data() + row.number * bytes;
    if (!row.token)
      std::memcpy(to, before.data() + row.number * bytes, bytes);
    else if (!tokens.empty())
      std::memcpy(to, tokens.data() + row_of(call.problem, row.of->tokens, *row.token) * bytes, bytes);
  }
  return after;
}

}  // namespace kda_check::kda
