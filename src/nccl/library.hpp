// What is used of NCCL, declared as its ABI has it (nccl.h, 2.4 and newer). The library is loaded when it is
// asked for: the program itself needs no NCCL.
#pragma once

#include <cstddef>
#include <string>

namespace kda_check::nccl {

using Communicator = void*;  ///< ncclComm_t
using Result = int;          ///< ncclResult_t
inline constexpr Result success = 0, in_progress = 7;
inline constexpr int bytes_type = 1;  ///< ncclUint8

struct Library {
  Result (*get_version)(int* version);
  Result (*init_all)(Communicator* communicators, int count, const int* devices);
  /// In place where `own` is block number rank of `all`. Of `count` elements of each rank.
  Result (*all_gather)(const void* own, void* all, std::size_t count, int type, Communicator communicator,
                       void* stream);
  /// What went wrong behind the caller's back.
  Result (*async_error)(Communicator communicator, Result* error);
  Result (*destroy)(Communicator communicator);
  const char* (*explain)(Result result);

  std::string path;  ///< what was loaded
};

/// From the path that KDA_CHECK_NCCL names, else as the loader finds libnccl.so.2, else the wheel of python3
/// (nvidia-nccl-cu13). Throws Error{environment} without one.
Library load();

/// "2.28.9", of 22809.
std::string version_text(int version);

}  // namespace kda_check::nccl
