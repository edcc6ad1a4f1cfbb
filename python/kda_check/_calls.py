"""A kernel called in other ways, its bits compared with those of a plain call. `_call_laws` has the ways."""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ._configurations import differing, digests
from ._names import in_a_line, printable
from .fixture import BESIDE_POOL, LOSS, OUTPUTS, Fixture
from .signatures import Unsupported, Words

Kernel = Callable[..., Any]


@dataclass
class Trial:
    """One call in another way. kind: what the report counts it as. of: the tensor it is about."""

    kind: str
    kernel: Kernel
    of: str = ""
    asked: Fixture | None = None  # where it is another problem than that of the report
    want: Callable[[], Words] | None = None  # where it is not what a plain call answers
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # of the call, and of its backward pass


@dataclass(frozen=True)
class Law:
    name: str
    cannot: Callable[[Called], str]  # why it says nothing here; "": it does
    trials: Callable[[Called], Iterator[Trial | str]]  # a text: what is left out, and why
    refusal: str = ""  # what an exception speaks of where the kernel may refuse
    is_layout: bool = False  # other sums are allowed: bits that are others are judged
    by_name: bool = False
    of_gradients: bool = True  # too, where they are made


class Called:
    """A kernel on a problem, called plainly as often as somebody asks; where it has a loss, with gradients."""

    def __init__(self, caller: Any, problem: Fixture) -> None:
        self.caller, self.kernel, self.problem = caller, caller.kernel, problem
        self.framework, self.signature = caller.framework, caller.signature
        self.bits: dict[int, tuple[Fixture, dict[str, str]]] = {}  # by the problem, which is kept: an id may come back
        self.wavering: list[str] = []  # tensors with other bits at another call
        self.arguments = self.noted(problem)
        self.wavering = differing(self.bits_of(self.answer()), self.plain_bits(problem))

    def bits_of(self, answer: Words) -> dict[str, str]:
        """Of what has the same bits in every call."""
        drawn = ["state_pool"] * (self.problem.options.get("code_rounding") == "stochastic")
        return {key: x for key, x in digests(answer).items() if key not in (*LOSS.values(), *drawn, *self.wavering)}

    @property
    def forward(self) -> Fixture:
        """Without the loss."""
        plain = {key: x for key, x in self.problem.inputs.items() if key not in LOSS.values()}
        return Fixture(plain, self.problem.options, {}, self.problem.name)

    def answer(self, kernel: Kernel | None = None, problem: Fixture | None = None) -> Words:
        if kernel is not None and kernel is not self.kernel:
            self.caller.kernel = functools.wraps(self.kernel)(kernel)
        try:
            found: Words = self.caller(problem or self.problem)[0]
        finally:
            self.caller.kernel = self.kernel
        return found

    def plain_bits(self, problem: Fixture) -> dict[str, str]:
        if id(problem) not in self.bits:
            self.bits[id(problem)] = problem, self.bits_of(self.answer(problem=problem))
        return {key: x for key, x in self.bits[id(problem)][1].items() if key not in self.wavering}

    def noted(self, problem: Fixture) -> Words:
        """The arguments that the kernel gets, as they are before the call."""
        notes: Words = {}

        def noting(**arguments: Any) -> Any:
            notes.update(copied(arguments))
            return self.kernel(**arguments)

        self.bits[id(problem)] = problem, self.bits_of(self.answer(noting, problem))
        return notes

    @property
    def torch(self) -> Any:
        return sys.modules["torch"]

    @property
    def is_on_gpu(self) -> bool:
        return self.framework == "torch" and any(x.is_cuda for x in self.arguments.values() if is_tensor(x))


def is_tensor(x: Any) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape")


def is_float(x: Any) -> bool:
    return bool(x.dtype.is_floating_point) if hasattr(x, "as_strided") else np.dtype(x.dtype).kind in "fV"


def _copy(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x.copy()


def copied(arguments: Mapping[str, Any]) -> Words:
    return {key: _copy(x) if is_tensor(x) else x for key, x in arguments.items()}


def each(returned: Any, change: Callable[[Any], Any]) -> Any:
    """What a kernel returned, with every tensor changed."""
    if isinstance(returned, (tuple, list)):
        return tuple(each(x, change) for x in returned)
    return change(returned) if is_tensor(returned) else returned


def handed_back(arguments: Mapping[str, Any], given: Mapping[str, Any], returned: Any, keeps: bool = False) -> Any:
    """What a call with other tensors wrote and returned, as if it had been one with those of the arguments. keeps: what it
    returned is its own for longer."""
    others = {id(given[key]): x for key, x in arguments.items() if is_tensor(x) and given[key] is not x}
    for key, x in arguments.items():
        if id(given[key]) in others and not has_gradient(x):
            x[...] = given[key]
    return each(returned, lambda x: others.get(id(x), _copy(x) if keeps else x))


def instead(kernel: Kernel, name: str, change: Callable[[Any], Any]) -> Kernel:
    """The kernel with another tensor for that argument."""

    def call(**arguments: Any) -> Any:
        given = {**arguments, name: passed(arguments[name], there=change)}
        return handed_back(arguments, given, kernel(**given))

    return call


def has_gradient(x: Any) -> bool:
    return bool(getattr(x, "requires_grad", False))


def passed(x: Any, there: Callable[[Any], Any] | None = None, back: Callable[[Any], Any] | None = None) -> Any:
    """Another tensor of the same numbers, whose gradient is that of x. there, back: what becomes of x, and of its gradient."""
    if not has_gradient(x):
        return there(x) if there is not None else x

    class Passed(sys.modules["torch"].autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return there(x) if there is not None else x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return back(gradient) if back is not None else gradient

    return Passed.apply(x)


@dataclass
class Row:
    """What came of a law. tried: trials by kind. refused, left: which, and why. judged: how many had other bits that passed."""

    invariant: str
    verdict: str = "skipped"  # pass, fail, skipped
    reason: str = ""
    compared: list[str] = field(default_factory=list)  # tensors
    tried: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    judged: int = 0

    @property
    def trials(self) -> str:
        said = [", ".join(f"{count} {kind}" for kind, count in self.tried.items())]
        said += [f"{self.judged} with other bits, within the limits"] * bool(self.judged)
        said += [f"{len(x)} {what}: {x[0]}" for what, x in (("refused", self.refused), ("left out", self.left)) if x]
        return "; ".join(filter(None, said))

    def __str__(self) -> str:
        said = "; ".join(filter(None, [self.reason, ", ".join(self.compared), self.trials]))
        return f"{self.verdict.upper():<8} {self.invariant:<8} {said}"


def tried(caller: Any, problem: Fixture, laws: Sequence[Law], judged: Callable[[Words], tuple[str, str]]) -> list[Row]:
    """A row for each law. judged: the verdict on an answer to the problem, and why."""
    called = Called(caller, problem)
    forward = Called(caller, called.forward) if LOSS.values() & problem.inputs.keys() else called
    return [_row(called if law.of_gradients else forward, law, judged) for law in laws]


def _row(called: Called, law: Law, judged: Callable[[Words], tuple[str, str]]) -> Row:
    row = Row(law.name, reason=law.cannot(called))
    if row.reason:
        return row
    if set(called.wavering) & {*OUTPUTS, *BESIDE_POOL}:
        return replace(row, verdict="fail", reason="a plain call has other bits at another call")
    row.left += [f"{key}: it has other bits at another call" for key in called.wavering]
    broken: list[str] = []
    compared: dict[str, None] = {}
    for trial in law.trials(called):
        if isinstance(trial, str):
            row.left.append(trial)
            continue
        what = f"{trial.of} {trial.kind}".strip()
        try:
            want = called.plain_bits(trial.asked or called.problem) if trial.want is None else called.bits_of(trial.want())
            with trial.around():
                answer = called.answer(trial.kernel, trial.asked)
            found = called.bits_of(answer)
        except Exception as error:
            if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):
                row.left.append(f"{what}: {in_a_line(error)}")
                continue
            row.tried[trial.kind] = row.tried.get(trial.kind, 0) + 1
            if isinstance(error, Unsupported) or (law.refusal and re.search(law.refusal, _words_of(error), re.I)):
                row.refused.append(f"{what}: {in_a_line(error)}")
            else:
                broken.append(f"{what}: it raised {in_a_line(error)}")
            continue
        compared.update(dict.fromkeys(want))
        row.tried[trial.kind] = row.tried.get(trial.kind, 0) + 1
        others = differing(want, found)
        if others and law.is_layout:
            verdict, reason = judged(answer)
            row.judged += verdict == "pass"
            broken += [f"{what}: {reason}"] * (verdict != "pass")
        elif others:
            broken.append(f"{what}: other bits in {', '.join(others)}")
    row.compared = list(compared)
    row.verdict = "fail" if broken else "pass" if compared else "skipped"
    row.reason = printable("; ".join([*broken[:3], *[f"and {len(broken) - 3} more"] * (len(broken) > 3)]))
    return row


def _words_of(error: BaseException) -> str:
    """What it says; of an assertion the line that asserts, too."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} {last.line}" if isinstance(error, AssertionError) else str(error)
