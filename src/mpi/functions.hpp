// What the module with MPI (mpi/module.cpp) exports. Plain functions: it is loaded when it is asked for, and
// the program itself needs no MPI.
#pragma once

#include <cstddef>

namespace kda_check::mpi {

/// What `Functions::beat` has to tell.
enum BeatNews : int {
  heard_one = 1,   ///< from the other rank, since the last call
  heard_last = 2,  ///< its last one came, now or before
  sent_last = 4,   ///< ... this rank's own was received
};

/// All return 0, or MPI's code of what went wrong. Waiting takes no processor time. Any thread may call them.
struct Functions {
  int (*join)(int* rank, int* count);
  int (*gather_all)(const void* own, std::size_t bytes, void* all);
  int (*send)(int to, const void* data, std::size_t bytes);
  int (*receive)(int from, void* data, std::size_t bytes);
  /// Tells rank `to` that this one lives, unless it has yet to hear so, and listens to rank `from`; never
  /// waits. `last`: nothing more will be said.
  int (*beat)(int to, int from, int last, int* news);
  int (*leave)();
  /// What MPI says of a code, at most `size` characters.
  void (*explain)(int code, char* text, std::size_t size);
};

inline constexpr char module_name[] = "kda-check-mpi.so";
inline constexpr char symbol_name[] = "kda_check_mpi_functions";

}  // namespace kda_check::mpi
