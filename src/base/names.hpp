// Names a person types: lists of them for messages, and the nearest one to a name that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kda_check {

/// "a, b, c"
std::string join(const std::vector<std::string>& names, std::string_view separator = ", ");

/// The words between separators, empty ones dropped.
std::vector<std::string> split(std::string_view text, char separator);
/// ... between commas.
std::vector<std::string> split_commas(std::string_view text);

/// The same names, each once, in the order of their first occurrence.
std::vector<std::string> without_repeats(std::vector<std::string> names);

/// Text that came from outside, fit for a terminal and for XML: valid UTF-8 of one line. Control characters
/// and bytes that are no UTF-8 are shown as \x1b, marks of direction and others that show nothing as \u202e.
/// Nor is it a command of a GitHub workflow: those begin with "::" at the start of a line or with "##[".
std::string printable(std::string_view text);

/// A hint for an unknown name: "did you mean 'recurrent'?" when one candidate is near (Damerau distance <= 2
/// or a third of its length), else "one of: ...".
std::string suggest(std::string_view unknown, const std::vector<std::string>& candidates);

}  // namespace kda_check
