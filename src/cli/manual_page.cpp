#include <fmt/format.h>

#include "base/append.hpp"
#include "base/names.hpp"
#include "base/version.hpp"
#include "cli/completions.hpp"

namespace kda_check::cli {

namespace {

/// Text that troff prints as it is.
std::string plain(const std::string& text) {
  std::string out;
  bool starts_line = true;
  for (const char letter : text) {
    if (starts_line && (letter == '.' || letter == '\'')) out += "\\&";
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else {
      out += letter;
    }
    starts_line = letter == '\n';
  }
  return out;
}

/// Text whose lines stay as they are.
std::string preformatted(const std::string& text) {
  std::string end = text;
  while (end.ends_with('\n')) end.pop_back();
  return end.empty() ? "" : fmt::format(".PP\n.nf\n{}\n.fi\n", plain(end));
}

void add_option(std::string& out, const OptionDescription& option) {
  std::string heading;
  for (const std::string& flag : option.flags)
    heading += fmt::format("{}\\fB{}\\fR", heading.empty() ? "" : ", ", plain(flag));
  if (!option.value.empty())
    heading += fmt::format("{}\\fI{}\\fR", heading.empty() ? "" : " ", plain(option.value));
  append(out, ".TP\n{}\n{}\n", heading, plain(one_line(option.text)));
}

void add_command(std::string& out, const CommandDescription& command) {
  append(out, ".SS kda\\-check {}\n{}.\n", plain(command.name), plain(command.text));
  for (const OptionDescription& option : command.options) add_option(out, option);
  out += preformatted(command.footer);
}

constexpr char introduction[] = R"(.SH DESCRIPTION
Reads tensors of Kimi Delta Attention from HDF5 fixtures, runs reference variants of it in fp64, fp32, bf16
and fp16, and says tensor by tensor how far each implementation is from the truth, the token-by-token
recurrence in double-double.
.PP
A target is a fixture, a folder of fixtures, a regime (a problem made by a recipe; \fBkda\-check list
regimes\fR) or a suite of targets (\fB@\fR\fINAME\fR, or \fB@\fR\fIFILE\fR.txt).
)";

constexpr char conclusion[] = R"(.SH EXIT STATUS
.TP
0
all passed
.TP
1
something failed or was inconclusive, or nothing could be compared
.TP
2
the command line asks for something that does not exist
.TP
3
a file is missing or malformed
.TP
4
something could not run or be written
.TP
70
a bug in kda\-check
.TP
128 + n
ended by signal n; reports say what was done
.PP
The highest that applies wins. Reports go to standard output, everything else to standard error.
.SH ENVIRONMENT
.TP
NO_COLOR
when set and not empty, no colour unless \fB\-\-color always\fR
.TP
LC_ALL, LC_CTYPE, LANG
bars are drawn in Unicode where these name UTF\-8
)";

}  // namespace

std::string manual_page(const std::vector<CommandDescription>& tree) {
  std::string out = fmt::format(
      ".TH KDA\\-CHECK 1 \"\" \"kda\\-check {}\" \"User Commands\"\n.SH NAME\nkda\\-check \\- verify the "
      "numerics of "
      "Kimi Delta Attention kernels\n.SH SYNOPSIS\n\\fBkda\\-check\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n",
      version);
  out += introduction;
  out += ".SH COMMANDS\n";
  for (const CommandDescription& command : tree)
    if (!command.is_hidden) add_command(out, command);
  return out + conclusion;
}

}  // namespace kda_check::cli
