// The program as a process that stays: the Python package keeps one, and has it do job after job.
#pragma once

#include "plan/words.hpp"

namespace kda_check::cli {

/// `serve LEFT...`, at standard input a socket whose other end has who started it. LEFT: how the paths of
/// folders begin that are to be removed when that process is gone: it cannot do so itself any more.
///
/// A job is a message (fixture/messages.hpp) of texts that end with a zero: the number of its files, that of
/// its words, the words, its environment. Behind it come as many descriptors as it has files: its folder, its
/// standard output and error, then those that it knows as /dev/fd/16, 17 ... One byte says that it was taken;
/// then comes a ServedJob. Where the socket ends before that byte nothing was done of it.
///
/// It ends with the process at the other end, however that ends, in the middle of a job too; by itself where
/// something may be left of a job, for want of memory or a device or for a bug; and when nobody asked for
/// long.
int serve(const plan::Words& words);

struct ServedJob {
  int exit_code;
  int stays;  ///< 0: the process ends now, and takes no other
};

}  // namespace kda_check::cli
