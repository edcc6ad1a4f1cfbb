#include "engine/external.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/scratch_file.hpp"
#include "base/shell.hpp"
#include "base/shell_text.hpp"
#include "engine/context.hpp"
#include "fixture/writer.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/shapes.hpp"
#include "plan/reproduction.hpp"

namespace kda_check::engine {

namespace {

using explain::Fill;
using judge::Verdict;
using plan::ExternalProgram;
using tensor::Tensor;

constexpr int cannot_do_this = 77;  ///< exit status: this problem is not for this program
constexpr int not_executable = 126, not_found = 127;
/// What outputs are full of: a NaN of every element type, and none that arithmetic makes.
constexpr std::uint16_t unwritten = 0x7ff3;

/// In the form that a program is asked in.
const kda::Problem& asked_as(const kda::Problem& problem) {
  return problem.pool ? problem.pool->problem : problem;
}

/// By their names in that form.
std::vector<std::string> names_of(const kda::Problem& problem, kda::Pass pass) {
  if (problem.pool && pass == kda::Pass::forward) {
    std::vector<std::string> names{"o", "state_pool"};
    for (const std::string& name : kda::beside_pool(*problem.pool)) names.push_back(name);
    return names;
  }
  return kda::tensors_of(pass, problem);
}

/// Pool, scale or ring, which a kernel changes in place; null: none of them.
const Tensor* in_place(const kda::Problem& problem, const std::string& name) {
  if (name == "state_pool") return &problem.pool->stored();
  if (name == "state_scale") return &problem.pool->scale;
  return kda::is_ring(name) ? &problem.pool->ring.at(name) : nullptr;
}

Tensor filled(const std::string& name, Fill fill, const kda::Problem& problem) {
  const numeric::DType dtype = kda::dtype_of(name, problem, problem.dtype());
  Tensor tensor(name, dtype, kda::shape_of(name, problem));
  if (fill != Fill::huge) {
    for (std::size_t i = 0; i < tensor.bytes(); i += sizeof unwritten)
      std::memcpy(tensor.data() + i, &unwritten, sizeof unwritten);
    return tensor;
  }
  const double huge = dtype == numeric::DType::fp16 ? 6e4 : 1e30;  // 16-bit floats end at 65504
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, huge);
  return tensor;
}

bool is_unwritten(const Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.bytes(); i += sizeof unwritten)
    if (std::memcmp(tensor.data() + i, &unwritten, sizeof unwritten) != 0) return false;
  return true;
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
                     kda::Pass pass, const fixture::ReadLimits& limits, bool must_have_gradients) {
  const fixture::Fixture file = fixture::Fixture::open(path, limits);
  const fixture::ExpectedGroup& group = answer_in(file, program.name);
  Answered answer;
  answer.name = program.name;
  answer.role = report::Role::external;
  answer.pass = pass;
  describe_as_said(answer, group, kda::Outline(problem).operand_dtype());
  answer.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
  const kda::Problem& asked = asked_as(problem);
  for (const std::string& name : names_of(problem, pass)) {
    const fixture::DatasetInfo* const info = group.tensor(name);
    if (info == nullptr) continue;
    const Tensor* const before = in_place(problem, name);
    const tensor::Shape wanted = before != nullptr ? before->shape() : kda::shape_of(name, asked);
    const tensor::Shape by_head{problem.dimensions().HV, problem.dimensions().decays()};  // as dt_bias may be
    if (info->shape != wanted && !(name == "ddt_bias" && info->shape == by_head))
      throw NoAnswer{Verdict::fail, fmt::format("its {} is {}; wanted {}", name,
                                                tensor::to_string(info->shape), tensor::to_string(wanted))};
    answer.tensors.emplace(name, file.read(*info));
  }
  if (problem.pool) answer.tensors = of_ordinary_form(problem, std::move(answer.tensors));
  // A program that knows nothing of gradients is no failure; one that makes some of them, or NaN, is.
  if (pass == kda::Pass::backward && !must_have_gradients &&
      std::ranges::all_of(answer.tensors, [](const auto& named) { return is_unwritten(named.second); }))
    throw NoAnswer{Verdict::skipped, "the program wrote no gradients"};
  const fixture::DatasetInfo* const o = group.tensor("o");
  answer.dtype = o != nullptr && o->dtype ? *o->dtype : problem.dtype();
  return answer;
}

/// Files of the program are no input of ours: what is wrong with them is its answer.
[[noreturn]] void refuse(const Error& error, const std::string& what) {
  if (error.kind() != ErrorKind::input) throw error;
  throw NoAnswer{Verdict::fail, fmt::format("{}: {}", what, error.found())};
}

/// `inputs_after`, unless null: the inputs in {in} when the program has ended. `must_have_gradients`: it is
/// known to make some.
Answered run(const ExternalProgram& program, const kda::Problem& problem, kda::Pass pass,
             const fixture::ReadLimits& limits, Fill fill, std::optional<kda::Problem>* inputs_after,
             bool must_have_gradients) {
  const ScratchFile in(".h5"), out(".h5");
  std::vector<Tensor> outputs;
  for (const std::string& name : names_of(problem, kda::Pass::forward)) {
    const Tensor* const before = in_place(problem, name);
    outputs.push_back(before != nullptr ? before->clone() : filled(name, fill, asked_as(problem)));
  }
  if (pass == kda::Pass::backward)
    for (const std::string& name : kda::tensors_of(pass, problem))
      outputs.push_back(filled(name, fill, problem));
  fixture::WriteRequest request;
  request.name = "external", request.problem = &problem, request.compression = 0;
  request.with_loss = pass == kda::Pass::backward;
  fixture::write_fixture(in.path(), request);
  request.expected.push_back({program.name, "", "", numeric::compute_of(problem.dtype()), {}, {}});
  for (const Tensor& output : outputs) request.expected.front().tensors.push_back(&output);
  fixture::write_fixture(out.path(), request);
  check_end(run_shell(with_placeholders(program.command, {{"{in}", in.path()}, {"{out}", out.path()}}),
                      program.seconds),
            program);
  try {
    if (inputs_after != nullptr) *inputs_after = fixture::Fixture::open(in.path(), limits).read_problem();
  } catch (const Error& error) {
    refuse(error, "{in} was changed and cannot be read");
  }
  try {
    return read_answer(out.path(), program, problem, pass, limits, must_have_gradients);
  } catch (const Error& error) {
    refuse(error, "{out} cannot be read");
  }
}

}  // namespace

Answered external_answer(const ExternalProgram& program, const kda::Problem& problem, kda::Pass pass,
                         const fixture::ReadLimits& limits, Fill fill) {
  return run(program, problem, pass, limits, fill, nullptr, false);
}

void check_complete(const Answered& answer, const kda::Problem& problem) {
  const std::vector<std::string> wanted = kda::tensors_of(answer.pass, problem);
  for (const std::string& name : wanted)
    if (answer.tensor(name) == nullptr)
      throw NoAnswer{Verdict::skipped,
                     fmt::format("the invariants need {}",
                                 join(wanted, answer.pass == kda::Pass::forward ? " and " : ", "))};
}

explain::Subject external_subject(const ExternalProgram& program, const kda::Problem& problem, kda::Pass pass,
                                  const fixture::ReadLimits& limits) {
  explain::Subject subject;
  subject.pass = pass;
  subject.solve = [&program, &limits](const kda::Problem& asked, kda::Pass of, Fill fill) {
    Answered answer = run(program, asked, of, limits, fill, nullptr, true);
    check_complete(answer, asked);
    return std::move(answer.tensors);
  };
  subject.inputs_after = [&program, pass, &limits](const kda::Problem& asked) {
    std::optional<kda::Problem> after;
    run(program, asked, pass, limits, Fill::whatever, &after, true);
    return std::move(*after);
  };
  subject.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
  subject.layout_decides = true;  // it may be a token form of Triton
  return subject;
}

}  // namespace kda_check::engine
