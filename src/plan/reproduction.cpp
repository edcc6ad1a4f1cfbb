#include "plan/reproduction.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/version.hpp"
#include "kda/arithmetic/presets.hpp"
#include "plan/replay.hpp"

namespace kda_check::plan {

namespace {

/// How the implementations that write fixtures compute.
struct Emulation {
  std::string_view group, variant, preset;
  std::string_view implementation = "";  ///< what that attribute begins with, in a group of another name

  bool is_of(const fixture::ExpectedGroup& known) const {
    return known.name == group ||
           (!implementation.empty() && known.implementation.starts_with(implementation));
  }
};
constexpr Emulation emulations[] = {
    {"fla_chunk", "chunk", "fla"},
    {"fla_recurrent", "recurrent", "fla-recurrent"},
    {"flash_kda", "chunk", "flash-kda", "FlashKDA"},
    {"vllm_decode", "recurrent", "vllm-decode"},
    {"vllm_packed", "recurrent", "vllm-decode-packed"},
    {"sglang_decode", "recurrent", "sglang-decode"},
    {"llama_cpp", "recurrent", "llama.cpp"},
    {"cula_sm90", "chunk", "cula-sm90"},
    {"flashinfer_decode", "recurrent", "flashinfer-decode"},
    {"cudnn_sm90", "chunk", "cudnn-sm90"},
    {"pallas", "chunk", "pallas"},
    {"sglang_jax", "chunk", "sglang-jax"},
    {"torch_fp64", "naive", ""},
};

/// Before the chunk length in `implementation`, where it is not that of the file.
constexpr std::string_view chunk_size_word = "chunk-size=";

/// Of a group that `capture` wrote.
std::optional<Reproduction> captured(const fixture::ExpectedGroup& group) {
  const std::string name = group.name.substr(0, group.name.find('@'));
  const std::size_t words = group.implementation.find(": ");
  if (name == group.name || !group.implementation.starts_with("kda-check ") || words == std::string::npos)
    return std::nullopt;
  for (const kda::Variant& variant : kda::variants()) {
    if (variant.name != name) continue;
    Reproduction found{&on_cpu(variant), {}, 0};
    for (std::string& word : split(std::string_view(group.implementation).substr(words + 2), ' ')) {
      if (word.starts_with(chunk_size_word)) {
        found.chunk_size = std::strtoul(word.c_str() + chunk_size_word.size(), nullptr, 10);
      } else {
        found.arithmetic.push_back(std::move(word));
      }
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace

Reproduction reproduction_named(const std::string& text, std::span<const kda::Variant> registry) {
  const std::size_t plus = text.find('+');
  Reproduction found{&kda::variant_named(text.substr(0, plus), registry), {}, 0};
  if (plus != std::string::npos) found.arithmetic = split(std::string_view(text).substr(plus + 1), '+');
  for (const std::string& word : found.arithmetic) {
    kda::Arithmetic unused;
    kda::set_axis(unused, word);
  }
  return found;
}

std::optional<Reproduction> reproduction_of(const fixture::ExpectedGroup& group,
                                            std::span<const kda::Variant> registry) {
  for (const Emulation& row : emulations) {
    if (!row.is_of(group)) continue;
    Reproduction known{&kda::variant_named(row.variant), {}, 0};
    if (row.preset.empty()) return known;
    known.arithmetic.emplace_back(row.preset);
    known.chunk_size = kda::preset_named(row.preset).chunk_size;
    return known;
  }
  if (std::optional<Reproduction> found = captured(group)) return found;
  for (const kda::Variant& variant : registry)
    if (!variant.replay.empty() && group.name.starts_with(fmt::format("{}@", variant.name)))
      return Reproduction{&on_cpu(variant), {"h100"}, 0};
  return std::nullopt;
}

Declaration declaration_of(const fixture::ExpectedGroup& group) {
  Declaration said;
  try {
    const std::optional<Reproduction> known = reproduction_of(group);
    if (!known) return said;
    said.chunk_size = known->chunk_size;
    if (known->variant->axes.chunk)
      for (const std::string& word : known->arithmetic) kda::set_axis(said.arithmetic, word);
  } catch (const Error&) {  // words of another version: what it answered can be judged all the same
    said.arithmetic = {};
  }
  return said;
}

std::string implementation_text(const kda::Variant& variant, const kda::RunOptions& options,
                                const kda::Outline& problem) {
  std::string text =
      fmt::format("kda-check {}: {}", version, kda::describe(options.arithmetic, variant.axes));
  if (variant.axes.chunk && options.chunk_size != problem.chunk_size())
    text += fmt::format(" {}{}", chunk_size_word, options.chunk_size);
  return text;
}

std::string captured_name(std::string_view variant, std::string_view device) {
  std::string name = fmt::format("{}@", variant);
  const std::size_t first = name.size();
  for (const char letter : device) {
    const bool upper = letter >= 'A' && letter <= 'Z';
    if (upper || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9')) {
      name += static_cast<char>(upper ? letter - 'A' + 'a' : letter);
    } else if (name.size() > first && name.back() != '-') {
      name += '-';
    }
  }
  if (name.back() == '-') name.pop_back();
  return name;
}

}  // namespace kda_check::plan
