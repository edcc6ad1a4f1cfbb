#include "kda/problem/jobs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "kda/problem/shapes.hpp"

namespace kda_check::kda {

namespace {

std::vector<Sequence> longest_first(const Problem& problem) {
  std::vector<Sequence> sequences = problem.sequences();
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Sequence& a, const Sequence& b) { return a.length() > b.length(); });
  return sequences;
}

}  // namespace

std::vector<HeadJob> head_jobs(const Problem& problem) {
  std::vector<HeadJob> jobs;
  for (const Sequence& sequence : longest_first(problem))
    for (std::size_t head = 0; head < problem.dimensions().HV; ++head) jobs.push_back({sequence, head});
  return jobs;
}

std::vector<GroupJob> group_jobs(const Problem& problem) {
  std::vector<GroupJob> jobs;
  for (const Sequence& sequence : longest_first(problem))
    for (std::size_t head = 0; head < problem.dimensions().H; ++head) jobs.push_back({sequence, head});
  return jobs;
}

void refuse_memory(const std::string& what, double bytes, std::size_t threads, std::size_t limit,
                   std::size_t chunk_rows) {
  if (bytes <= static_cast<double>(limit)) return;
  const char* const hint = chunk_rows > 64 ? "--chunk-size 64"
                           : threads > 1   ? "--threads 1"
                                           : "a larger --memory-limit";
  throw Error(ErrorKind::environment,
              fmt::format("{} {:.3g} GB on {} threads; the memory limit is {:.3g} GB", what, bytes * 1e-9,
                          threads, static_cast<double>(limit) * 1e-9),
              {}, hint);
}

Answer allocate_answer(const Problem& problem, numeric::DType dtype, int threads) {
  const numeric::DType state_dtype =
      dtype == numeric::DType::fp64 ? numeric::DType::fp64 : numeric::DType::fp32;
  Answer answer{tensor::Tensor("o", dtype, shape_of("o", problem)),
                tensor::Tensor("final_state", state_dtype, shape_of("final_state", problem))};
  if (!problem.checkpoints.empty())
    answer.checkpoints = tensor::Tensor("checkpoints", state_dtype, shape_of("checkpoints", problem));
  constexpr std::size_t most_left_to_threads = 16 * large_page_bytes;
  if (threads > 1 && answer.o.bytes() >= most_left_to_threads)
    touch_pages(answer.o.data(), answer.o.bytes(), threads);
  return answer;
}

}  // namespace kda_check::kda
