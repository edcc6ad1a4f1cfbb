// The words of a stored state: "int8+row+stochastic:7" - a format, what shares a scale, how it is rounded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kda/arithmetic/stored_state.hpp"

namespace kda_check::kda {

/// Throws Error{usage} for what is none.
StoredState stored_from(std::string_view words);
std::string words_of(const StoredState& stored);
/// The formats; and the grammar of what may stand behind one.
std::vector<std::string> stored_formats();
std::string stored_grammar();

}  // namespace kda_check::kda
