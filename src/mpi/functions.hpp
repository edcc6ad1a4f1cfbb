// What the module with MPI (mpi/module.cpp) exports. Plain functions: it is loaded when it is asked for, and
// the program itself needs no MPI.
#pragma once

#include <cstddef>

namespace kda_check::mpi {

/// All return 0, or MPI's code of what went wrong. Waiting takes no processor time.
struct Functions {
  int (*join)(int* rank, int* count);
  int (*gather_all)(const void* own, std::size_t bytes, void* all);
  int (*send)(int to, const void* data, std::size_t bytes);
  int (*receive)(int from, void* data, std::size_t bytes);
  int (*leave)();
  /// What MPI says of a code, at most `size` characters.
  void (*explain)(int code, char* text, std::size_t size);
};

inline constexpr char module_name[] = "kda-check-mpi.so";
inline constexpr char symbol_name[] = "kda_check_mpi_functions";

}  // namespace kda_check::mpi
