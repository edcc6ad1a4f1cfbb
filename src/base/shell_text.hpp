// Text that goes into a command line of a shell.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kda_check {

/// `text` as one word of a shell: 'it'\''s'.
std::string shell_quoted(std::string_view text);

/// A word such as {in} and what it stands for.
using Placeholder = std::pair<std::string_view, std::string_view>;

/// A command line in which each placeholder is replaced by its text, whatever quotes stand around it: plain,
/// '{in}', "{in}", "a{in}b", "$(cat {in})". The shell sees the text, never anything in it that it would
/// expand. Comments lose their placeholders. The body of a here-document cannot be quoted in: there, texts
/// are right that hold letters, digits and / . _ - alone. Throws Error{usage} for more than 8 backquotes in
/// one another around a placeholder.
std::string with_placeholders(std::string_view command, const std::vector<Placeholder>& placeholders);

}  // namespace kda_check
