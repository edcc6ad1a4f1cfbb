#include "session/external.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/shell.hpp"
#include "base/temporary_files.hpp"
#include "fixture/writer.hpp"

namespace kda_check::session {

namespace {

using analysis::Fill;
using compare::Verdict;
using tensor::Tensor;

constexpr int cannot_do_this = 77;  ///< exit status: this problem is not for this program
constexpr int not_executable = 126, not_found = 127;

/// An empty file of its own in the folder for temporary files, removed at the end.
class ScratchFile {
 public:
  ScratchFile() : file_(created()) {}
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() { std::remove(path().c_str()); }
  const std::string& path() const { return file_.path(); }

 private:
  static std::string created() {
    std::error_code failure;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(failure);
    std::string path = (folder / "kda-check-XXXXXX.h5").string();
    const int descriptor = failure ? -1 : ::mkstemps(path.data(), 3);
    if (descriptor < 0)
      throw Error(ErrorKind::environment,
                  fmt::format("cannot make a temporary file: {}", std::strerror(errno)), {},
                  "TMPDIR says where");
    ::close(descriptor);
    return path;
  }
  TemporaryFile file_;
};

Tensor filled(const char* name, numeric::DType dtype, Fill fill, const kda::Problem& problem) {
  Tensor tensor(
      name, dtype,
      kda::expected_shape(*kda::find_spec(name), problem.dimensions(), problem.options.state_v_first));
  // 16-bit floats end at 65504.
  const double huge = dtype == numeric::DType::fp16 ? 6e4 : 1e30;
  const double value = fill == Fill::huge ? huge : std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, value);
  return tensor;
}

std::string with_paths(std::string command, const std::string& in, const std::string& out) {
  for (const auto& [word, path] : {std::pair{"{in}", &in}, {"{out}", &out}}) {
    const std::string quoted = shell_quoted(*path);
    for (std::size_t at = command.find(word); at != std::string::npos;
         at = command.find(word, at + quoted.size()))
      command.replace(at, std::strlen(word), quoted);
  }
  return command;
}

std::string with_tail(std::string reason, const ShellResult& result) {
  return result.tail.empty() ? reason : reason + "; it said: " + printable(result.tail);
}

/// Throws unless the program did its work.
void check_end(const ShellResult& result, const ExternalProgram& program) {
  if (result.timed_out)
    throw NoAnswer{Verdict::fail, with_tail(fmt::format("no answer within {} s", program.seconds), result)};
  if (result.signal != 0)
    throw NoAnswer{Verdict::fail, with_tail(fmt::format("it was ended by signal {} ({})", result.signal,
                                                        ::strsignal(result.signal)),
                                            result)};
  if (result.status == not_executable || result.status == not_found)
    throw Error(ErrorKind::environment,
                with_tail(fmt::format("--external: '{}' cannot be run", program.command), result));
  if (result.status == cannot_do_this)
    throw NoAnswer{Verdict::skipped, with_tail("the program does not do this (exit status 77)", result)};
  if (result.status != 0)
    throw NoAnswer{Verdict::fail, with_tail(fmt::format("exit status {}", result.status), result)};
}

/// The group that holds the answer: one that the program added, else the one it found.
const fixture::ExpectedGroup& answer_in(const fixture::Fixture& file, const std::string& prepared) {
  const fixture::ExpectedGroup* found = nullptr;
  std::size_t added = 0;
  for (const fixture::ExpectedGroup& group : file.expected()) {
    if (group.name != prepared) ++added;
    if (found == nullptr || group.name != prepared) found = &group;
  }
  if (added > 1) throw NoAnswer{Verdict::fail, fmt::format("{{out}} has {} answers, not one", added)};
  if (found == nullptr) throw NoAnswer{Verdict::fail, "{out} has no group in expected"};
  return *found;
}

Answered read_answer(const std::string& path, const ExternalProgram& program, const kda::Problem& problem,
                     const fixture::ReadLimits& limits, const std::vector<std::string>& tensors) {
  const fixture::Fixture file = fixture::Fixture::open(path, limits);
  const fixture::ExpectedGroup& group = answer_in(file, program.name);
  Answered answer;
  answer.name = program.name;
  answer.device = group.device;
  answer.arithmetic = group.implementation;
  answer.compute = group.compute_or_storage();
  for (const std::string& name : tensors) {
    const fixture::DatasetInfo* const info = group.tensor(name);
    if (info == nullptr)
      throw NoAnswer{Verdict::fail, fmt::format("{{out}} has no expected/{}/{}", group.name, name)};
    const tensor::Shape wanted =
        kda::expected_shape(*kda::find_spec(name), problem.dimensions(), problem.options.state_v_first);
    if (info->shape != wanted)
      throw NoAnswer{Verdict::fail, fmt::format("its {} is {}; wanted {}", name,
                                                tensor::to_string(info->shape), tensor::to_string(wanted))};
    answer.hold(name, file.read(*info));
  }
  answer.dtype = answer.o ? answer.o->dtype() : problem.dtype();
  return answer;
}

/// Files of the program are no input of ours: what is wrong with them is its answer.
[[noreturn]] void refuse(const Error& error, const std::string& what) {
  if (error.kind() != ErrorKind::input) throw error;
  throw NoAnswer{Verdict::fail, fmt::format("{}: {}", what, error.found())};
}

}  // namespace

void check_external(const ExternalProgram& program) {
  for (const char* const word : {"{in}", "{out}"})
    if (program.command.find(word) == std::string::npos)
      throw Error(ErrorKind::usage, fmt::format("--external '{}' lacks {}", program.command, word), {},
                  "e.g. --external 'python3 my_kernel.py {in} {out}'");
  const std::string& name = program.name;
  const bool known = name == "oracle" || name == "replay" || name == "all" || name == "fixture";
  const bool odd = name.empty() || name.find_first_of("/,: ") != std::string::npos || name.front() == '.';
  const auto variants = kda::variants();
  const bool variant =
      std::any_of(variants.begin(), variants.end(), [&](const auto& row) { return row.name == name; });
  if (known || odd || variant)
    throw Error(ErrorKind::usage, fmt::format("--external-name '{}' cannot be the name of an answer", name),
                {}, "letters, digits, - and _, and not the name of a variant");
}

Answered External::run(const kda::Problem& problem, Fill fill,
                       std::optional<kda::Problem>* inputs_after) const {
  const ScratchFile in, out;
  const Tensor o = filled("o", problem.dtype(), fill, problem);
  const Tensor state = filled("final_state", kda::state_dtype(problem.dtype()), fill, problem);
  fixture::WriteRequest request;
  request.name = "external", request.problem = &problem, request.compression = 0;
  fixture::write_fixture(in.path(), request);
  request.expected.push_back({program_.name, "", "", numeric::compute_of(problem.dtype()), {&o, &state}, {}});
  fixture::write_fixture(out.path(), request);
  check_end(run_shell(with_paths(program_.command, in.path(), out.path()), program_.seconds), program_);
  try {
    if (inputs_after != nullptr) *inputs_after = fixture::Fixture::open(in.path(), limits_).read_problem();
  } catch (const Error& error) {
    refuse(error, "{in} was changed and cannot be read");
  }
  try {
    return read_answer(out.path(), program_, problem, limits_, tensors_);
  } catch (const Error& error) {
    refuse(error, "{out} cannot be read");
  }
}

Answered External::answer(const kda::Problem& problem, Fill fill) const {
  return run(problem, fill, nullptr);
}

analysis::Subject External::subject(const kda::Problem& problem) const {
  analysis::Subject subject;
  const auto whole = [](Answered answer) {
    if (!answer.o || !answer.final_state)
      throw NoAnswer{Verdict::skipped, "the invariants need o and final_state"};
    return kda::Answer{std::move(*answer.o), std::move(*answer.final_state)};
  };
  subject.solve = [this, whole](const kda::Problem& asked, Fill fill) { return whole(answer(asked, fill)); };
  subject.inputs_after = [this](const kda::Problem& asked) {
    std::optional<kda::Problem> after;
    run(asked, Fill::whatever, &after);
    return std::move(*after);
  };
  subject.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
  return subject;
}

}  // namespace kda_check::session
