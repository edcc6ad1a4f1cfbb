"""`verify`: problems made by the program, answers and gradients by a kernel, one report."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from . import _call_laws, _calls, _program, _scratch, _who
from ._configurations import Configurations, digests, other_bits, table, tried
from ._files import Path, make_folder, write_text
from ._kinds import flag, listed
from ._names import in_a_line
from ._options import of_problem
from ._progress import Progress, Told, shown
from ._tensors import Stored, stored
from .checking import ALONE, judge
from .fixture import BESIDE_POOL, INPUTS, LOSS, STATES, WHOLE_NUMBERS, Fixture
from .report import RANKS, Report, not_kept
from .signatures import FLA, Signature, Unsupported, Words

# What stands for the kernel where the program asks for it as --external: it hands the question to us and waits.
ASKING = """mkfifo "$2.pipe" && printf '%s\\n%s\\n' "$1" "$2" >"${0%/*}/questions" && read -r status why <"$2.pipe"
echo "$why"
exit "${status:-1}"
"""
CANNOT = 77  # the exit status that says: this problem is not for me
# What a command says of who answers and what is compared: `verify` has words for it.
ITS_OWN = ("--variant", "--recorded", "--external", "--external-name", "--external-timeout", "--tensor", "--against")


def regime(name: str, *, lengths: Sequence[int] | None = None, **parameters: Any) -> Fixture:
    """A problem of that name (`kda-check list regimes`), with its parameters: B, T, H, K, V, seed, dtype, rho ...

    lengths: its tokens as packed sequences of these lengths, which give T; a state of it is that of every sequence, times
    1, -1/2, 1/4, -1, 1/2 ... Raises ValueError where it has several batch rows, is packed, or a call on a pool.

    >>> regime("corr_keys", T=64, rho=0.99, dtype="bf16").inputs["q"].dtype
    'bfloat16'
    >>> regime("control", lengths=(3, 0, 2), K=4, V=4).inputs["cu_seqlens"].numpy().tolist()
    [0, 3, 3, 5]
    """
    said = dict(parameters)
    if lengths is not None:
        lengths = tuple(int(length) for length in lengths)
        said, parameters = {"lengths": lengths, **parameters}, {"T": sum(lengths), **parameters}
    words = ",".join(f"{key}={value}" for key, value in parameters.items())
    target = f"{name}{',' if ':' in name else ':'}{words}" if words else name
    with _scratch.folder() as folder:
        path = os.path.join(folder, "problem.h5")
        _program.run(["make", target, "--compression", "0", "-o", path, "--quiet"])
        made = Fixture.read(path)  # its elements stay readable when the file is gone
    if lengths is not None:
        made = _packed(made, lengths)
    made.made_by = f"kda_check.regime({', '.join([repr(name), *(f'{key}={value!r}' for key, value in said.items())])})"
    return made


def _packed(made: Fixture, lengths: Sequence[int]) -> Fixture:
    tokens = made.inputs["q"].shape[:2]
    if tokens[0] != 1 or "cu_seqlens" in made.inputs or "state_pool" in made.inputs:
        raise ValueError(f"lengths of {made.name}, which has batch rows, is packed, or a call on a pool; wanted one sequence")
    least = min(lengths, default=0)
    if sum(lengths) != tokens[1] or least < 0:
        raise ValueError(f"lengths: {sum(lengths)} tokens in all, {least} at least; wanted {tokens[1]}, none below 0")
    factors = np.array([(-1.0) ** n * 2.0 ** -(n % 3) for n in range(len(lengths))]).reshape(-1, 1, 1, 1)
    for key in ("initial_state", "dht"):
        if key in made.inputs:
            made.inputs[key] = _in(made.inputs[key].dtype, made.inputs[key].numpy().astype(np.float64) * factors)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    made.inputs["cu_seqlens"] = Stored(ends, "int64")
    return made


def suite(name: str) -> list[str]:
    """The problems of a suite ("@smoke", "@ci", "@hazards", "@FILE"), as `verify` takes them: regimes, and files."""
    problems: dict[str, None] = {}
    for case in Report.run(["run", name, "--dry-run"]).documents[0]["cases_planned"]:
        problem = shlex.split(case["repro"])[2]  # with the path of a file from here
        _, rounded, dtype = case["target"].rpartition(", inputs rounded to ")
        problems[_rounded(problem, dtype) if rounded and not os.path.isfile(problem) else problem] = None
    return list(problems)


def _rounded(problem: str, dtype: str) -> str:
    """A regime with its inputs in that element type."""
    return f"{problem}{',' if ':' in problem else ':'}dtype={dtype}"


def verify(
    kernel: Callable[..., Any],
    problem: Fixture | str,
    *,
    signature: Signature | None = None,
    framework: str | None = None,
    device: Any = None,
    compute: str | None = None,
    name: str = "",
    backward: bool = False,
    invariants: bool | Sequence[str] = False,
    checkpoints: int | None = None,
    configs: Any = None,
    save: Path | None = None,
    options: Sequence[str] = ALONE,
    timeout: float | None = None,
    progress: Progress = None,
) -> Report:
    """Calls a kernel on a problem and judges what it answers.

    problem: a Fixture, or its file; a regime ("corr_keys:rho=0.99") or a suite ("@smoke"), of which all are tried. signature: its
    words; FLA's without (chunk_kda). An own one: `Signature`. compute: as `check` has it; without, that of a signature that is
    given, else it follows from the element type of o. framework: "torch", "jax" or "numpy", without the first of them that is
    imported. device: where torch and JAX put tensors. backward: gradients too, by autograd or jax.vjp, for the loss of the
    problem or one that is drawn. invariants: the invariants of docs/serving.md, all or those named, of gradients too where they
    are made; those of calls (`report.calls`) of one problem alone. checkpoints: asks the kernel for the states inside
    sequences, of every so many tokens, on the side that its signature says; FLA's are before every 64. configs: "all", every
    configuration of every Triton autotuner below the call; or a list of keyword arguments, each a way to call the kernel. The
    first is judged; each other one is called three times, and judged where its bits are others (`report.configs`): one that
    fails, or has other bits at another call, fails the report. A kernel that fails is called once more: other bits are a note.
    save: a file to keep problem and answer in; of a suite a folder for those that do not pass, for which the kernel is called
    once more. timeout: seconds of the program, for the invariants as many again; a call of the kernel is not broken off.
    Exceptions of the kernel are passed on; under a suite or an invariant they are a FAIL that quotes them. Raises Unsupported
    where it cannot take the problem, and what `check` raises.
    progress: as of `check`.

    A kernel that has always its own scale or layout of states, as it is fixed or has no word, takes others too: q is
    multiplied, states are turned, and that problem is the one that is judged.

    >>> verify(lambda q, k, v, g, beta, scale: v * 0, "control:T=8", framework="numpy")["o"].verdict
    'fail'
    """
    who = name or str(getattr(kernel, "__name__", "kernel"))
    frame = framework or next((each for each in ("torch", "jax") if each in sys.modules), "numpy")
    # Whose kernel it is nobody said: FLA's words, and not how FLA computes.
    caller = Caller(kernel, signature or replace(FLA, compute={}), frame, device, compute)
    every = isinstance(invariants, bool)
    names = [] if isinstance(invariants, bool) else listed(invariants, "invariants")
    calls = _call_laws.wanted(None if every else names) if invariants else []
    names = [name for name in names if name not in [law.name for law in calls]]
    options = listed(options, "options")
    backward = flag(backward, "backward")
    laws = ["--invariants" + "=" * bool(names) + ",".join(names)] if names or (every and invariants) else []
    words = {"signature": signature, "framework": framework, "device": device, "compute": compute, "name": name,
             "backward": backward, "checkpoints": checkpoints}  # fmt: skip
    again = _Again(kernel, problem if isinstance(problem, str) else "", words)
    if isinstance(problem, str) and problem.startswith("@"):
        of_calls = None if every else ", ".join(law.name for law in calls) or None
        for word, x in (("checkpoints", checkpoints), ("configs", configs), (of_calls, of_calls)):
            if x is not None:
                raise ValueError(f"{word} of a suite; wanted a problem")
        passes = [] if backward else ["--no-backward"]
        make_folder(save or ".")
        with _scratch.folder() as folder, shown(progress) as told:
            arguments = [problem, "--recorded", "none", "--against", "oracle", *passes, *options, *laws]
            report = _asked(caller, who, folder, arguments, again.of_command, timeout, told)
        if save is not None:
            again.keep(report, os.fspath(save), timeout)
        return report
    if isinstance(problem, str):
        problem = Fixture.read(problem) if os.path.isfile(problem) else regime(problem)
    inputs, own_options = _with_loss(problem.inputs, backward), problem.options
    if checkpoints is not None:
        asks = {"checkpoint_every": checkpoints, "checkpoint_side": (signature or FLA).checkpoint_side}
        own_options = of_problem({**own_options, **asks}, "A_log" in inputs)
        inputs = {key: x for key, x in inputs.items() if key not in ("checkpoint_tokens", "checkpoint_sequence")}
    asked = Fixture(inputs, own_options, {}, problem.name, problem.description, problem.provenance)
    asked, notes = caller.suited(asked)
    ways = None if configs is None else Configurations(kernel, configs)
    if ways is not None:
        caller.kernel = ways.first
    with ways.held() if ways is not None else contextlib.nullcontext(), _who.watching() as backends:
        answer, _ = caller(asked)
    notes += [f"{who}: answered by {', '.join(backends)}"] * bool(backends)
    before = dict(answer)
    # The loss as the kernel had it: in the element type of its outputs.
    asked.inputs.update({key: stored(answer.pop(key), key) for key in LOSS.values() if key in answer})
    asked.add(who, answer)
    here = options if options != list(ALONE) else None
    with shown(progress) as told:
        saving = again.saving(who, here)
        report = judge(asked, save=save, instead=saving, options=options, timeout=timeout, progress=told or False)
        if report.verdict == "fail" and ways is None:
            with contextlib.suppress(Exception):  # a kernel that can be called once is no less wrong
                again_bits = other_bits([digests(before), digests(caller(asked)[0])])
                notes += [f"{who}: {again_bits}: a race, or memory that nothing wrote"] * bool(again_bits)
        report.note([*caller.notes(who), *notes])
        if ways is not None:
            _each(caller, ways, who, asked, before, report, options)
            caller.kernel = ways.first
        again.problem = again.problem if save is None else os.fspath(save)
        if calls:
            _called(caller, who, asked, calls, report, options, again)
        if not laws:
            return report
        with asked.in_memory() as (folder, path):
            arguments = [path, *ALONE, "--recorded", "none", "--against", "none", *laws]
            more = _asked(caller, who, folder, arguments, again.of_command, timeout, told)
    whole = Report([*report.documents, *more.documents], f"{report.text}\n{more.text}", report.source)
    whole.configs, whole.calls = report.configs, report.calls
    return whole


def _each(
    caller: Caller, ways: Configurations, who: str, asked: Fixture, first: Words, report: Report, options: Sequence[str]
) -> None:
    """Tries the other configurations, and says in the report what came of them."""

    def call(kernel: Callable[..., Any]) -> Words:
        caller.kernel = kernel
        with ways.held():
            return caller(asked)[0]

    report.configs = tried(ways, call, first, _judging(asked, who, options))
    report.text += "\n" + table(who, report.configs) + "\n"
    wrong = [row for row in report.configs if row["verdict"] in ("fail", "inconclusive")]
    report.fail(f"{who}: {row['config']}: {row['reason']}" for row in wrong)


def _judging(asked: Fixture, who: str, options: Sequence[str]) -> Callable[[Words], tuple[str, str]]:
    """The verdict on an answer, and why."""

    def judged(answer: Words) -> tuple[str, str]:
        given = {key: x for key, x in answer.items() if key not in LOSS.values()}
        problem = Fixture(asked.inputs, asked.options, {}, asked.name)
        problem.add(who, given)
        found = judge(problem, options=options, progress=False)
        wrong = [f"{row.row['name']} {row.verdict.upper()} {row.reason}" for row in found.tensors() if not row.passed]
        return found.verdict, "; ".join([*wrong, *found.errors])

    return judged


def _called(
    caller: Caller, who: str, asked: Fixture, laws: Sequence[_calls.Law], report: Report, options: Sequence[str], again: _Again
) -> None:
    """Calls the kernel in other ways, and says in the report what came of them."""
    rows = _calls.tried(caller, asked, laws, _judging(asked, who, options))
    report.calls = [asdict(row) for row in rows]
    report.text += "\n".join([f"\ncalls of {who}", *(f"  {row}" for row in rows)]) + "\n"
    is_backward = bool(LOSS.values() & asked.inputs.keys())
    report.add([{"pass": "backward" if is_backward and law.of_gradients else "forward", "against": f"invariant:{law.name}",
                 "verdict": row.verdict, "reason": row.reason, "trials": row.trials,
                 "repro": again.call(again.problem, invariants=[law.name])} for law, row in zip(laws, rows)])  # fmt: skip


class _Again:
    """Says the call of `verify` that does something again: no command can, for the kernel is in this process."""

    def __init__(self, kernel: Any, problem: str, words: Mapping[str, Any]) -> None:
        self.kernel, self.problem, self.words = kernel, problem, words
        self.told: dict[str, tuple[str, Words]] = {}  # what was said -> the problem and more words

    def call(self, problem: str, **more: Any) -> str:
        if not problem:
            return not_kept()
        name = str(getattr(self.kernel, "__name__", ""))
        shown = {**self.words, **more, "device": self.words["device"] and str(self.words["device"])}
        said = [f"{key}={x!r}" for key, x in shown.items() if x]
        line = f"kda_check.verify({', '.join([name if name.isidentifier() else 'kernel', repr(problem), *said])})"
        self.told[line] = problem, more
        return line

    def saving(self, who: str, options: Sequence[str] | None) -> Callable[[str], str]:
        path = Fixture({}, name=who).file_name
        return lambda _: self.call(self.problem, options=options, save=path)

    def of_command(self, command: str) -> str:
        """In place of a command that asks the kernel."""
        words = shlex.split(command)
        problem, given, options = words[2], iter(words[3:]), []
        law, dtype = "", ""
        for word in given:
            if word == "--dtype":
                dtype = next(given)
            elif word in ITS_OWN:
                next(given)
            elif word.startswith("--invariants="):
                law = word.partition("=")[2]
            else:
                options.append(word)
        if not self.problem.startswith("@"):
            problem = self.problem  # and not the file, which is gone
        elif dtype and os.path.isfile(problem):  # only a suite rounds it
            problem, options = self.problem, ["--dtype", dtype, *options]
        elif dtype:
            problem = _rounded(problem, dtype)
        return self.call(problem, invariants=[law] if law else None, options=[*ALONE, *options] if options else None)

    def keep(self, report: Report, folder: str, timeout: float | None) -> None:
        """Of a suite: calls the kernel once more where it did not pass, and keeps what does not pass again."""
        failed = {case["repro"]: case["fixture"] for case in report.cases if RANKS[case["verdict"]] > 1}
        for number, line in enumerate(failed, 1):
            problem, more = self.told.get(line, ("", {}))
            if not problem or problem.startswith("@") or more["invariants"]:
                continue
            path = os.path.join(folder, Fixture({}, name=f"{number:04d}-{failed[line]}").file_name)
            try:
                options = more["options"] or ALONE
                found = verify(self.kernel, problem, **self.words, options=options, save=path, timeout=timeout)
            except _program.KdaCheckError:
                raise
            except Exception:  # of the kernel: the report quotes it
                continue
            if found.repro is None:
                os.remove(path)
                continue
            report.text = report.text.replace(line, found.repro)
            for case in report.cases:
                case["repro"] = found.repro if case["repro"] == line else case["repro"]


class Caller:
    """Calls the kernel on a fixture, in its framework."""

    def __init__(self, kernel: Any, signature: Signature, framework: str, device: Any, compute: str | None) -> None:
        if framework not in ("torch", "jax", "numpy"):
            raise ValueError(f"framework '{framework}'; wanted torch, jax or numpy")
        self.kernel, self.signature, self.framework = kernel, signature, framework
        self.device, self.compute = device, compute
        self.left: set[str] = set()  # of what it returned, not judged

    def notes(self, who: str) -> list[str]:
        """What its limits follow from though nobody said so in the call."""
        known = ", ".join(f"{compute} for {dtype}" for dtype, compute in self.signature.compute.items())
        is_said = self.compute or not known
        said = [] if is_said else [f"{who}: compute as its signature says, {known}; its limits follow from that"]
        return [*said, *[f"{who}: not judged: {', '.join(sorted(self.left))}"] * bool(self.left)]

    def suited(self, fixture: Fixture, exactly: bool = False) -> tuple[Fixture, list[str]]:
        """The same problem with the scale and the layout of states that the kernel has always, and what was done to it: q
        is multiplied by what is left of the scale, and rounded unless that is a power of two; states are turned.
        exactly: nothing may be rounded. Raises Unsupported where q cannot carry it."""
        problem = {**fixture.inputs, **fixture.options}
        own = self.signature.own(self.kernel, problem, lambda x: self.given(x) if isinstance(x, Stored) else x)
        if not own:
            return fixture, []
        options, notes = dict(fixture.options), []
        if "state_v_first" in own:
            options["state_v_first"] = int(own["state_v_first"])
            notes.append(f"states are [{'V][K' if own['state_v_first'] else 'K][V'}], as the kernel has them")
        if "scale" in own:
            scale = float(fixture.options["scale"])
            factor = scale / own["scale"]
            power = math.copysign(2.0 ** round(math.log2(abs(factor))), factor) if factor and math.isfinite(factor) else 0.0
            is_power = power != 0 and math.isclose(factor, power, rel_tol=1e-14)
            options["scale"] = scale / power if is_power else own["scale"]
            times = f"times {factor:g}" + ("" if is_power else ", rounded")
            notes.append(f"scale {scale:g}: the kernel has {own['scale']:g} always, and q carries the rest, {times}")
        inputs = _carried(fixture.inputs, fixture.options, options)
        if "scale" in own:
            back = _carried(inputs, options, fixture.options)["q"] if is_power else None
            before, after = fixture.inputs["q"].numpy(), inputs["q"].numpy()
            is_lost = np.any(np.isfinite(before) & ~np.isfinite(after))
            is_other = back is None or not np.array_equal(before.astype(float), back.numpy().astype(float), equal_nan=True)
            why = "is normalized" if options.get("qk_l2norm") else f"times {factor:g} is not finite" if is_lost else ""
            if exactly and is_other and not why:
                why = f"times {factor:g} is another one, rounded"
            if why:
                has = f"the kernel has scale = {own['scale']:g} always, the problem {scale:g}"
                raise Unsupported(f"{has}, and q cannot carry it: q {why}")
        return Fixture(inputs, options, {}, fixture.name, fixture.description, fixture.provenance), notes

    def __call__(self, fixture: Fixture, found: Mapping[str, Stored] | None = None) -> tuple[Words, Words]:
        """What it answers, where there is a loss that and the gradients too, and the inputs as they are afterwards.
        found: what the buffers that it writes to hold before."""
        inputs = {key: self.given(tensor) for key, tensor in fixture.inputs.items()}
        loss = {key: inputs.pop(key) for key in LOSS.values() if key in inputs}
        dtype = fixture.inputs["v"].dtype
        state = "float64" if dtype == "float64" else "float32"
        dtypes = {"o": dtype, "final_state": state, **({"checkpoints": state} if "C" in fixture.extents() else {})}
        empty = {key: Stored(np.zeros(fixture.shape_of(key), kind.replace("bfloat16", "uint16")), kind)
                 for key, kind in dtypes.items()}  # fmt: skip
        buffers = {key: self.given(tensor) for key, tensor in {**empty, **(found or {})}.items()}

        def call(more: Mapping[str, Any]) -> Words:
            given = {**inputs, **more}
            if "state_pool" in given:  # it may be written in place, as its scale and rings are: in a copy
                given.update({key: self.given(fixture.inputs[key]) for key in ("state_pool", *BESIDE_POOL) if key in given})
            elif self.signature.in_place:
                given["initial_state"] = self.given(fixture.inputs.get("initial_state", empty["final_state"]))
            return self.signature.call(self.kernel, {**given, **fixture.options}, buffers, self.left)

        if not loss:
            answer = call({})
        elif self.framework == "torch":
            answer = _with_autograd(call, inputs, loss)
        elif self.framework == "jax":
            answer = _with_vjp(call, inputs, loss)
        else:
            raise Unsupported("gradients need torch or jax")
        answer |= self.signature.about(fixture.inputs["q"].dtype)
        if self.compute:
            answer["compute"] = self.compute
        return answer, inputs

    def given(self, tensor: Stored) -> Any:
        if self.framework == "torch":
            return tensor.torch(self.device or "cpu")
        return tensor.jax(self.device) if self.framework == "jax" else tensor.numpy().copy()


def _with_autograd(call: Callable[[Words], Words], inputs: Words, loss: Words) -> Words:
    import torch

    with torch.enable_grad():
        leaves = {key: x.requires_grad_() for key, x in inputs.items() if x.is_floating_point()}
        answer = call(leaves)
        outputs = _of_loss(answer, loss)
        seeds = [loss[LOSS[key]].to(x.dtype) for key, x in outputs.items()]
        flowing = {key: seed for key, seed in zip(outputs, seeds) if outputs[key].requires_grad}
        if not flowing:
            raise Unsupported(f"the kernel has no backward pass: {', '.join(outputs)} without requires_grad")
        # Where nothing flows the gradient is zero: a kernel that forgets one is wrong.
        results, starts = [outputs[key] for key in flowing], list(flowing.values())
        found = torch.autograd.grad(results, list(leaves.values()), starts, materialize_grads=True)
    given = {LOSS[key]: seed for key, seed in zip(outputs, seeds)}
    return {**answer, **given, **{f"d{key}": x for key, x in zip(leaves, found)}}


def _of_loss(answer: Words, loss: Words) -> Words:
    """What the loss depends on. Raises Unsupported where the kernel does not answer it."""
    found = {key: answer.get(key) for key, gradient in LOSS.items() if gradient in loss}
    missing = [key for key, x in found.items() if x is None]
    if missing:
        raise Unsupported(f"the loss depends on {missing[0]} ({LOSS[missing[0]]}), which the kernel does not answer")
    return found


def _with_vjp(call: Callable[[Words], Words], inputs: Words, loss: Words) -> Words:
    import jax

    names = [key for key in INPUTS if key in inputs]

    def outputs(*tensors: Any) -> Any:
        answer = call(dict(zip(names, tensors)))
        return _of_loss(answer, loss), answer

    out, pull, answer = jax.vjp(outputs, *[inputs[key] for key in names], has_aux=True)
    seeds = {key: loss[LOSS[key]].astype(x.dtype) for key, x in out.items()}
    given = {LOSS[key]: seed for key, seed in seeds.items()}
    return {**answer, **given, **{f"d{key}": x for key, x in zip(names, pull(seeds))}}


def _with_loss(inputs: Mapping[str, Stored], backward: bool) -> dict[str, Stored]:
    """Without the loss; or with one, where there is none: do normal, in the element type of v."""
    forward = {key: x for key, x in inputs.items() if key not in LOSS.values()}
    if backward and len(forward) < len(inputs):
        return dict(inputs)
    v = inputs["v"]
    drawn = np.random.default_rng(1).standard_normal(v.shape, np.float32)
    return {**forward, "do": _in(v.dtype, drawn)} if backward else forward


def _in(dtype: str, values: Any) -> Stored:
    """In that element type; what bfloat16 has no bits for is cut off."""
    if dtype != "bfloat16":
        return Stored(values.astype(dtype), dtype)
    return Stored((values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16), dtype)


def _carried(tensors: Mapping[str, Any], here: Mapping[str, Any], there: Mapping[str, Any]) -> Words:
    """Tensors of a problem with options `here` as it has them with options `there`: another scale, states turned."""
    found = dict(tensors)
    is_turned = bool(here.get("state_v_first")) != bool(there.get("state_v_first"))
    factor = here.get("scale", 1) / there.get("scale", 1)
    for key, tensor in tensors.items():
        if key in STATES and is_turned:
            x = stored(tensor, key)
            found[key] = Stored(np.ascontiguousarray(x.data.swapaxes(-1, -2)), x.dtype)
        elif key in ("q", "dq") and factor != 1:
            x = stored(tensor, key)
            with np.errstate(all="ignore"):
                found[key] = _in(x.dtype, x.numpy().astype(np.float64) * (factor if key == "q" else 1 / factor))
    return found


def _asked(
    caller: Caller, who: str, folder: str, words: Sequence[str], again: Callable[[str], str], timeout: float | None,
    told: Told | None,
) -> Report:
    """A run of the program that asks the kernel, here in this process, for every answer."""
    script, pipe = os.path.join(folder, "my_kernel"), os.path.join(folder, "questions")
    write_text(script, ASKING)
    os.mkfifo(pipe)
    with contextlib.ExitStack() as kept:

        def opened(path: str) -> int:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            kept.callback(os.close, descriptor)
            return descriptor

        def serve(is_running: Callable[[], bool]) -> None:
            for asked, out in _questions(opened(pipe), is_running):
                said = _answer(caller, who, asked, out)
                # It stays open: what is written is there until the shell reads it.
                os.write(opened(f"{out}.pipe"), said.encode()[:4000] + b"\n")

        arguments = ["run", *words, "--external", f"sh {shlex.quote(script)} {{in}} {{out}}", "--external-name", who]
        more: Words = {"environment": {"TMPDIR": folder}, "meanwhile": serve, "timeout": timeout, "told": told}
        report = Report.run(arguments, folder, instead=again, **more)
    report.note(caller.notes(who))
    return report


def _questions(descriptor: int, is_running: Callable[[], bool]) -> Iterator[tuple[str, str]]:
    text = ""
    while is_running():
        if select.select([descriptor], [], [], 0.02)[0]:
            text += os.read(descriptor, 65536).decode()
        while text.count("\n") >= 2:
            asked, out, text = text.split("\n", 2)
            yield asked, out


def _answer(caller: Caller, who: str, asked: str, out: str) -> str:
    """Writes the answer to a question; returns the exit status of the program that we stand for, and why."""
    try:
        problem = Fixture.read(asked)  # where gradients are wanted it has a loss
        given, _ = caller.suited(problem, exactly=True)
        there, here = problem.options, given.options
        answer, after = caller(given, _carried(Fixture.read(out).expected[who].tensors, there, here))
        for key in LOSS.values():
            answer.pop(key, None)
        problem.add(who, _carried(answer, here, there))
        problem.write(out)
        inputs = {key: stored(x, key) for key, x in after.items() if key not in WHOLE_NUMBERS}
        changed = {key: x for key, x in inputs.items() if x.data.tobytes() != given.inputs[key].data.tobytes()}
        if changed:
            Fixture({**problem.inputs, **_carried(changed, here, there)}, there).write(asked)
    except Unsupported as error:
        return f"{CANNOT} {error}"
    except Exception as error:  # of the kernel: the report quotes it
        return f"1 {in_a_line(error)}"
    return "0"
