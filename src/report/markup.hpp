// Text from anywhere, made fit for XML, HTML, Markdown and workflow commands. Names of files and groups may
// hold anything a file system and HDF5 allow.
#pragma once

#include <string>
#include <string_view>

namespace kda_check::report {

/// printable(), with & < > " ' as references: fit for content and for attributes in quotes.
std::string escaped(std::string_view text);

/// printable(), with what Markdown and HTML would read as marks behind a backslash or as references; fit for
/// the cell of a table.
std::string markdown(std::string_view text);

/// printable() as the message of a GitHub workflow command, or as one of its properties.
std::string command_message(std::string_view text);
std::string command_property(std::string_view text);

}  // namespace kda_check::report
