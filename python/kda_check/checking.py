"""`check` and `assert_accurate`: a verdict on tensors that are at hand."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._files import Path
from ._kinds import listed
from ._progress import Progress, shown
from ._tensors import Stored
from .fixture import ABOUT, GRADIENTS, INPUTS, OUTPUTS, Fixture
from .report import Report, Source, not_kept

ALONE = ("--variant", "none")  # without our own variants beside
# Options that may leave out something of an answer.
CHOOSING = ("--tensor", "--dtype", "--recorded", "--against", "--no-backward", "--dry-run")


def check(
    o: Any = None,
    *,
    name: str = "kernel",
    save: Path | None = None,
    options: Sequence[str] = ALONE,
    timeout: float | None = None,
    progress: Progress = None,
    **words: Any,
) -> Report:
    """Judges what a kernel answered. Tensors are of torch, JAX, numpy or anything with DLPack, on any device, and go to
    the program as they are.

    The answer: o [B,T,HV,V], final_state [N,HV,K,V] (beside state_pool all of the pool after the call, and final_scale: the
    state_scale of a quantised one), rings ({"ring_k": ...}, as they are afterwards), checkpoints [C,HV,K,V], and the gradients
    dq, dk, dv, dg, dbeta, dinitial_state, dA_log, ddt_bias, derase, dwrite (with do or dht), any of them. stages: {"Aqk": ...,
    "h": ...}, what its chunks computed between (`Fixture.of`): the report names the first that is wrong. compute: the precision
    of the operands of its products, fp64, fp32, tf32, bf16 or fp16; limits follow from it, and without it that of o is assumed.
    The problem, as `Fixture.of` has it: q, k, v, g, beta ... scale, gate. save: a file to keep both in. options: of `kda-check
    run`; with none of them our own variants run beside. What of the answer they leave out is no pass. timeout: seconds.
    progress: True or False, whether to show how far it is (tqdm, where it is installed); a function, called on another thread
    with the share that is done and what is being done; without it shown at a terminal.

    Raises TypeError and ValueError for what is no tensor, has no place or another shape, by name; InputError,
    UsageError, EnvironmentProblem, ProgramDied, ProgramTimeout (all KdaCheckError) for what the program says.

    >>> import numpy as np
    >>> x = np.zeros((1, 4, 1, 2), np.float32)
    >>> one = x + 1
    >>> report = check(one * 2, q=one, k=x, v=one, g=x, beta=one[..., 0], scale=1.0, compute="fp32")
    >>> report.passed, report["o"].verdict, report["o"].max_abs
    (False, 'fail', 2.0)
    """
    answer = {key: words.pop(key) for key in (*OUTPUTS, *GRADIENTS, *ABOUT, "stages") if key in words and key not in INPUTS}
    answer.update(words.pop("rings", None) or {})
    if (scale := words.pop("final_scale", None)) is not None:
        answer["state_scale"] = scale
    if words.get("state_pool") is not None and "final_state" in answer:
        answer["state_pool"] = answer.pop("final_state")
    answer["o"] = o
    fixture = Fixture.of(**words, name=name, expected={name: answer})
    return judge(fixture, save=save, options=options, timeout=timeout, progress=progress)


def judge(
    fixture: Fixture,
    *,
    save: Path | None = None,
    known_as: str = "",
    instead: Callable[[str], str] = lambda command: not_kept(),
    options: Sequence[str] = ALONE,
    timeout: float | None = None,
    progress: Progress = False,
) -> Report:
    """As `check`, of a problem with its answers. known_as: its folder, in the report; without, instead: what to say of a
    command on the file, which is gone. Raises what `check` raises."""
    more = listed(options, "options")
    if any(answer.stages for answer in fixture.expected.values()) and "--stages" not in more:
        more = [*more, "--stages"]
    if save is not None:
        path = os.fspath(save)
        path = f"./{path}" if path.startswith("-") else path  # it would be an option
        fixture.write(path)
        with shown(progress) as told:
            report = Report.run(["run", path, *more], timeout=timeout, told=told)
    else:
        with fixture.in_memory() as (folder, path), shown(progress) as told:
            report = Report.run(["run", path, *more], folder, known_as, None if known_as else instead, timeout=timeout, told=told)
    report.source = of_file(path) if save is not None else _in_memory(fixture)
    report.fail(_left_out(fixture, report, more))
    return report


def of_file(path: str) -> Source:
    """For `Report.source`."""
    return lambda: contextlib.nullcontext(("", path))


def _in_memory(fixture: Fixture) -> Source:
    """The fixture as it was, which may be somebody else's, as its elements may: refuses it when anything has changed."""

    def sums(tensors: dict[str, Stored]) -> dict[str, Any]:
        return {name: (x.dtype, x.shape, zlib.crc32(x.data.data)) for name, x in tensors.items()}

    def digest() -> list[Any]:
        answers = {who: (dict(answer.about), sums(answer.tensors), sums(answer.stages))
                   for who, answer in fixture.expected.items()}  # fmt: skip
        return [fixture.name, dict(fixture.options), sums(fixture.inputs), answers]

    @contextlib.contextmanager
    def again() -> Iterator[tuple[str, str]]:
        if digest() != before:
            what = "tensors, options or names have been written to since they were judged"
            raise ValueError(f"{what}; save='FILE.h5' keeps them as they were")
        with fixture.in_memory() as file:
            yield file

    before = digest()
    return again


def _left_out(fixture: Fixture, report: Report, options: Sequence[str]) -> Iterator[str]:
    """What was answered and not judged, with the options that may have left it out."""
    rows = [row for row in report.tensors() if row.case["recorded"] and row.verdict != "skipped"]
    choices = [" ".join([option, *options[i + 1 : i + 2]] if option in CHOOSING[:4] else [option])
               for i, option in enumerate(options) if option.partition("=")[0] in CHOOSING]  # fmt: skip
    for who, answer in fixture.expected.items():
        judged = {row.row["name"] for row in rows if row.case["variant"] == who}
        left = [key for key in answer.tensors if key not in judged]
        reasons = [case["reason"] for case in report.cases if case["variant"] == who and case["verdict"] == "skipped"]
        if left:
            why = "; ".join([f"options: {', '.join(choices)}"] * bool(choices) + list(dict.fromkeys(reasons)))
            yield f"{who}: not judged: {', '.join(left)}" + (f" ({why})" if why else "")


def assert_accurate(o: Any = None, **words: Any) -> None:
    """In a test: `check`, and an AssertionError whose message is the report where it did not pass."""
    __tracebackhide__ = True
    report = check(o, **words)
    if not report.passed:
        raise AssertionError(str(report))
