// SIGINT, SIGTERM and SIGHUP ask the program to come to an end: work in progress stops soon, what is known is
// written, and the process then ends by that signal. A second one ends it at once.
#pragma once

#include <chrono>

namespace kda_check {

/// Thrown where work stops because a signal asked for it. Not an Error, and no std::exception: whoever
/// collects the failures of single cases does not take it for one.
struct Interrupted {
  int signal;
};

/// Called first in main. SIGINT, SIGTERM and SIGHUP ask for the end, unless they were ignored at start
/// (nohup); a second one a quarter of a second later or more removes temporary files, ends the processes
/// started here and strikes at once. (timeout(1), and a terminal that closes, send theirs twice.) So do the
/// first SIGQUIT and SIGXCPU. SIGPIPE and SIGXFSZ are ignored: writing fails with EPIPE and EFBIG. SIGCHLD
/// has its default: one that ignores it takes the exit status of every child away.
void prepare_signals();

/// Asks for the end as `signal` would.
void interrupt(int signal);

/// The signal that asked for the end; 0: none.
int interruption();
inline bool interrupted() { return interruption() != 0; }

/// Throws Interrupted where interrupted().
void check_interruption();

/// Waits until `descriptor` is ready for `events` (of poll) or has failed. False: the time was up. Throws
/// Interrupted as soon as a signal asks for the end.
bool wait_until_ready(int descriptor, short events, std::chrono::milliseconds time);
/// ... without a limit of time.
void wait_until_ready(int descriptor, short events);
/// Throws Interrupted as soon as a signal asks for the end.
void sleep_for(std::chrono::milliseconds time);

/// In a child that was forked: nobody asked it for its end.
void forget_interruption();

/// Removes temporary files and ends the process as `signal` does where nobody handles it; a shell sees 128 +
/// signal.
[[noreturn]] void end_by_signal(int signal);

}  // namespace kda_check
