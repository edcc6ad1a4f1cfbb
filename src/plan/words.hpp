// Words as a shell cuts a line into them: quotes and backslashes keep spaces, '#' begins a comment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kda_check::plan {

using Words = std::vector<std::string>;

/// Throws Error{input} for a quote that is not closed, or a backslash at the end.
Words words_of(std::string_view line);

/// One line that a shell, or words_of, cuts into these words again.
std::string line_of(const Words& words);

}  // namespace kda_check::plan
