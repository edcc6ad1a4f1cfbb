#pragma once

namespace kda_check::cli {

/// The program without its exceptions: returns the exit code of the command, throws Error.
int app_main(int argc, char** argv);

}  // namespace kda_check::cli
