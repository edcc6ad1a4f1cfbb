// The only file that knows MPI.
#define OMPI_SKIP_MPICXX 1  // its old C++ interface is none of ours
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <mutex>

#include "mpi/functions.hpp"

namespace {

using kda_check::mpi::Functions;

constexpr std::size_t largest_message = std::size_t{1} << 30;  // counts are int

/// Several threads run sources, one of them at a time in here, and another one beats.
std::mutex one_call;
using OneCall = std::lock_guard<std::mutex>;

/// MPI's own waiting keeps a processor busy that another rank of this host may need.
int wait(MPI_Request* request) {
  int done = 0;
  unsigned microseconds = 0;
  for (unsigned turn = 0;; ++turn) {
    {
      const OneCall one(one_call);
      if (const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS || done != 0)
        return code;
    }
    if (turn < 1000) continue;
    microseconds = microseconds < 2000 ? microseconds + 50 : 2000;
    ::usleep(microseconds);
  }
}

/// Of one thread. What is said is one byte: whether it is the last.
struct Beats {
  MPI_Comm among = MPI_COMM_NULL;
  MPI_Request out = MPI_REQUEST_NULL, in = MPI_REQUEST_NULL;
  char said = 0, heard = 0;
  bool heard_last = false;
};
Beats beats;

int join(int* rank, int* count) {
  int provided = MPI_THREAD_SINGLE;
  int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED) code = MPI_ERR_OTHER;
  if (code != MPI_SUCCESS) return code;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = MPI_Comm_dup(MPI_COMM_WORLD, &beats.among);
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(MPI_COMM_WORLD, count);
}

int gather_all(const void* own, std::size_t bytes, void* all) {
  if (bytes > INT_MAX) return MPI_ERR_COUNT;
  MPI_Request request;
  const int count = static_cast<int>(bytes);
  int code = MPI_SUCCESS;
  {
    const OneCall one(one_call);
    code = MPI_Iallgather(own, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD, &request);
  }
  return code != MPI_SUCCESS ? code : wait(&request);
}

/// transfer(from, count, request) of every piece.
template <class Transfer>
int in_pieces(std::size_t bytes, Transfer transfer) {
  for (std::size_t at = 0; at < bytes; at += largest_message) {
    const std::size_t piece = bytes - at < largest_message ? bytes - at : largest_message;
    MPI_Request request;
    int code = MPI_SUCCESS;
    {
      const OneCall one(one_call);
      code = transfer(at, static_cast<int>(piece), &request);
    }
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

int beat(int to, int from, int last, int* news) {
  const OneCall one(one_call);
  *news = 0;
  int done = 0, code = MPI_Test(&beats.out, &done, MPI_STATUS_IGNORE);
  if (code == MPI_SUCCESS && done != 0 && beats.said == 0) {
    beats.said = static_cast<char>(last);
    code = MPI_Issend(&beats.said, 1, MPI_BYTE, to, 0, beats.among, &beats.out);
  } else if (done != 0 && beats.said != 0) {
    *news |= kda_check::mpi::sent_last;
  }
  while (code == MPI_SUCCESS && !beats.heard_last) {
    if (beats.in == MPI_REQUEST_NULL)
      code = MPI_Irecv(&beats.heard, 1, MPI_BYTE, from, 0, beats.among, &beats.in);
    if (code == MPI_SUCCESS) code = MPI_Test(&beats.in, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done == 0) break;
    *news |= kda_check::mpi::heard_one;
    beats.heard_last = beats.heard != 0;
  }
  if (beats.heard_last) *news |= kda_check::mpi::heard_last;
  return code;
}

int leave() {
  MPI_Comm_free(&beats.among);
  return MPI_Finalize();
}

void explain(int code, char* text, std::size_t size) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, whole, &length);
  std::snprintf(text, size, "%s", whole);
}

}  // namespace

extern "C" {
extern const Functions kda_check_mpi_functions;
const Functions kda_check_mpi_functions{join, gather_all, send, receive, beat, leave, explain};
}
