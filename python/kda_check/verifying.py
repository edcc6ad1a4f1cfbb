"""`verify`: problems made by the program, answers and gradients by a kernel, one report."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _program, _scratch
from ._files import write_text
from ._kinds import flag, listed
from ._progress import Progress, Told, shown
from ._tensors import Stored, stored
from .checking import ALONE, judge
from .fixture import INPUTS, LOSS, WHOLE_NUMBERS, Fixture
from .report import Report
from .signatures import FLA, Signature, Unsupported, Words

# What stands for the kernel where the program asks for it as --external: it hands the question to us and waits.
ASKING = """mkfifo "$2.pipe" && printf '%s\\n%s\\n' "$1" "$2" >"${0%/*}/questions" && read -r status why <"$2.pipe"
echo "$why"
exit "${status:-1}"
"""
CANNOT = 77  # the exit status that says: this problem is not for me


def regime(name: str, **parameters: Any) -> Fixture:
    """A problem of that name (`kda-check list regimes`), with its parameters: B, T, H, K, V, seed, dtype, rho ...

    >>> regime("corr_keys", T=64, rho=0.99, dtype="bf16").inputs["q"].dtype
    'bfloat16'
    """
    words = ",".join(f"{key}={value}" for key, value in parameters.items())
    target = f"{name}{',' if ':' in name else ':'}{words}" if words else name
    with _scratch.folder() as folder:
        path = os.path.join(folder, "problem.h5")
        _program.run(["make", target, "--compression", "0", "-o", path, "--quiet"])
        return Fixture.read(path)  # its elements stay readable when the file is gone


def suite(name: str) -> list[str]:
    """The problems of a suite ("@smoke", "@ci", "@hazards", "@FILE"), as `verify` takes them: regimes, and files."""
    problems: dict[str, None] = {}
    for case in Report.run(["run", name, "--dry-run"]).documents[0]["cases_planned"]:
        problem = shlex.split(case["repro"])[2]  # with the path of a file from here
        _, rounded, dtype = case["target"].rpartition(", inputs rounded to ")
        if rounded and not os.path.isfile(problem):
            problem += f"{',' if ':' in problem else ':'}dtype={dtype}"
        problems[problem] = None
    return list(problems)


def verify(
    kernel: Callable[..., Any],
    problem: Fixture | str,
    *,
    signature: Signature = FLA,
    framework: str | None = None,
    device: Any = None,
    compute: str | None = None,
    name: str = "",
    backward: bool = False,
    invariants: bool | Sequence[str] = False,
    options: Sequence[str] = ALONE,
    timeout: float | None = None,
    progress: Progress = None,
) -> Report:
    """Calls a kernel on a problem and judges what it answers.

    problem: a Fixture, or its file; a regime ("corr_keys:rho=0.99") or a suite ("@smoke"), of which all are tried.
    signature: its words; FLA's without (chunk_kda). An own one: `Signature`. framework: "torch", "jax" or "numpy",
    without the first of them that is imported. device: where torch and JAX put tensors. backward: gradients too, by
    autograd or jax.vjp, for the loss of the problem or one that is drawn. invariants: the laws of docs/invariants.md,
    all or those named, of gradients too where they are made. timeout: seconds of the program, for the laws as many
    again; a call of the kernel is not broken off. Exceptions of the kernel are passed on; under a suite or a law they
    are a FAIL that quotes them. Raises Unsupported where it cannot take the problem, and what `check` raises.
    progress: as of `check`.

    >>> verify(lambda q, k, v, g, beta, scale: v * 0, "control:T=8", framework="numpy")["o"].verdict
    'fail'
    """
    who = name or str(getattr(kernel, "__name__", "kernel"))
    frame = framework or next((each for each in ("torch", "jax") if each in sys.modules), "numpy")
    caller = _Caller(kernel, signature, frame, device, compute)
    named = "" if isinstance(invariants, bool) else "=" + ",".join(listed(invariants, "invariants"))
    options = listed(options, "options")
    backward = flag(backward, "backward")
    laws = [f"--invariants{named}"] if invariants else []
    if isinstance(problem, str) and problem.startswith("@"):
        passes = [] if backward else ["--no-backward"]
        with _scratch.folder() as folder, shown(progress) as told:
            words = [problem, "--recorded", "none", "--against", "oracle", *passes, *options, *laws]
            return _asked(caller, who, folder, words, timeout, told)
    if isinstance(problem, str):
        problem = Fixture.read(problem) if os.path.isfile(problem) else regime(problem)
    inputs = _with_loss(problem.inputs, backward)
    asked = Fixture(inputs, problem.options, {}, problem.name, problem.description, problem.provenance)
    answer, _ = caller(asked)
    # The loss as the kernel had it: in the element type of its outputs.
    asked.inputs.update({key: stored(answer.pop(key), key) for key in LOSS.values() if key in answer})
    asked.add(who, answer)
    with asked.in_memory() as (folder, path), shown(progress) as told:
        report = judge(asked, options=options, timeout=timeout, progress=told or False)
        if not laws:
            return report
        words = [path, *ALONE, "--recorded", "none", "--against", "none", *laws]
        more = _asked(caller, who, folder, words, timeout, told)
    return Report([*report.documents, *more.documents], f"{report.text}\n{more.text}")


class _Caller:
    """Calls the kernel on a fixture, in its framework."""

    def __init__(self, kernel: Any, signature: Signature, framework: str, device: Any, compute: str | None) -> None:
        if framework not in ("torch", "jax", "numpy"):
            raise ValueError(f"framework '{framework}'; wanted torch, jax or numpy")
        self.kernel, self.signature, self.framework = kernel, signature, framework
        self.device, self.compute = device, compute

    def __call__(self, fixture: Fixture, found: Mapping[str, Stored] | None = None) -> tuple[Words, Words]:
        """What it answers, where there is a loss that and the gradients too, and the inputs as they are afterwards.
        found: what the buffers that it writes to hold before."""
        inputs = {key: self.given(tensor) for key, tensor in fixture.inputs.items()}
        loss = {key: inputs.pop(key) for key in LOSS.values() if key in inputs}
        dtype = fixture.inputs["v"].dtype
        dtypes = {"o": dtype, "final_state": "float64" if dtype == "float64" else "float32"}
        empty = {key: Stored(np.zeros(fixture.shape_of(key), kind.replace("bfloat16", "uint16")), kind)
                 for key, kind in dtypes.items()}  # fmt: skip
        buffers = {key: self.given(tensor) for key, tensor in {**empty, **(found or {})}.items()}

        def call(more: Mapping[str, Any]) -> Words:
            given = {**inputs, **more}
            if "state_pool" in given:  # it may be written in place: in a copy
                given["state_pool"] = self.given(fixture.inputs["state_pool"])
            elif self.signature.in_place:
                given["initial_state"] = self.given(fixture.inputs.get("initial_state", empty["final_state"]))
            return self.signature.call(self.kernel, {**given, **fixture.options}, buffers)

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
    v, drawn = inputs["v"], np.random.default_rng(1).standard_normal(inputs["v"].shape, np.float32)
    bits = (drawn.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    do = Stored(bits, "bfloat16") if v.dtype == "bfloat16" else Stored(drawn.astype(v.dtype), v.dtype)
    return {**forward, "do": do} if backward else forward


def _asked(
    caller: _Caller, who: str, folder: str, words: Sequence[str], timeout: float | None, told: Told | None
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
        return Report.run(
            arguments, folder, environment={"TMPDIR": folder}, meanwhile=serve, timeout=timeout, told=told
        )


def _questions(descriptor: int, is_running: Callable[[], bool]) -> Iterator[tuple[str, str]]:
    text = ""
    while is_running():
        if select.select([descriptor], [], [], 0.02)[0]:
            text += os.read(descriptor, 65536).decode()
        while text.count("\n") >= 2:
            asked, out, text = text.split("\n", 2)
            yield asked, out


def _answer(caller: _Caller, who: str, asked: str, out: str) -> str:
    """Writes the answer to a question; returns the exit status of the program that we stand for, and why."""
    try:
        problem = Fixture.read(asked)  # where gradients are wanted it has a loss
        answer, after = caller(problem, Fixture.read(out).expected[who].tensors)
        for key in LOSS.values():
            answer.pop(key, None)
        problem.add(who, answer)
        problem.write(out)
        changed = {key: stored(x, key) for key, x in after.items() if key not in WHOLE_NUMBERS}
        if any(x.data.tobytes() != problem.inputs[key].data.tobytes() for key, x in changed.items()):
            Fixture({**problem.inputs, **changed}, problem.options).write(asked)
    except Unsupported as error:
        return f"{CANNOT} {error}"
    except Exception as error:  # of the kernel: the report quotes it
        return f"1 {type(error).__name__}: {' '.join(str(error).split())}"
    return "0"
