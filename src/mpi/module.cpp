// The only file that knows MPI.
#define OMPI_SKIP_MPICXX 1  // its old C++ interface is none of ours
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <climits>
#include <cstdio>

#include "mpi/functions.hpp"

namespace {

using kda_check::mpi::Functions;

constexpr std::size_t largest_message = std::size_t{1} << 30;  // counts are int

/// MPI's own waiting keeps a processor busy that another rank of this host may need.
int wait(MPI_Request* request) {
  int done = 0;
  unsigned microseconds = 0;
  for (unsigned turn = 0;; ++turn) {
    if (const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS || done != 0)
      return code;
    if (turn < 1000) continue;
    microseconds = microseconds < 2000 ? microseconds + 50 : 2000;
    ::usleep(microseconds);
  }
}

int join(int* rank, int* count) {
  int provided = MPI_THREAD_SINGLE;  // several threads run sources, one of them at a time in here
  int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED) code = MPI_ERR_OTHER;
  if (code != MPI_SUCCESS) return code;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(MPI_COMM_WORLD, count);
}

int gather_all(const void* own, std::size_t bytes, void* all) {
  if (bytes > INT_MAX) return MPI_ERR_COUNT;
  MPI_Request request;
  const int count = static_cast<int>(bytes);
  const int code = MPI_Iallgather(own, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD, &request);
  return code != MPI_SUCCESS ? code : wait(&request);
}

/// transfer(from, count, request) of every piece.
template <class Transfer>
int in_pieces(std::size_t bytes, Transfer transfer) {
  for (std::size_t at = 0; at < bytes; at += largest_message) {
    const std::size_t piece = bytes - at < largest_message ? bytes - at : largest_message;
    MPI_Request request;
    int code = transfer(at, static_cast<int>(piece), &request);
    if (code == MPI_SUCCESS) code = wait(&request);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

int send(int to, const void* data, std::size_t bytes) {
  return in_pieces(bytes, [=](std::size_t at, int count, MPI_Request* request) {
    return MPI_Isend(static_cast<const char*>(data) + at, count, MPI_BYTE, to, 0, MPI_COMM_WORLD, request);
  });
}

int receive(int from, void* data, std::size_t bytes) {
  return in_pieces(bytes, [=](std::size_t at, int count, MPI_Request* request) {
    return MPI_Irecv(static_cast<char*>(data) + at, count, MPI_BYTE, from, 0, MPI_COMM_WORLD, request);
  });
}

int leave() { return MPI_Finalize(); }

void explain(int code, char* text, std::size_t size) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, whole, &length);
  std::snprintf(text, size, "%s", whole);
}

}  // namespace

extern "C" {
extern const Functions kda_check_mpi_functions;
const Functions kda_check_mpi_functions{join, gather_all, send, receive, leave, explain};
}
