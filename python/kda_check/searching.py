"""`search`: the smallest problem that a kernel fails."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._kinds import number
from ._names import in_a_line
from .fixture import Fixture
from .report import Report
from .signatures import Unsupported
from .verifying import verify

SAID = ("signature", "framework", "device", "compute", "checkpoints")  # words of verify that a test repeats


@dataclass(frozen=True)
class Tried:
    """What came of one problem. share: of the limit that is nearest to being crossed, how much."""

    problem: Fixture
    share: float
    reason: str = ""  # of a failure
    report: Report | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        inputs = self.problem.inputs
        return inputs["v"].data.size, inputs["q"].data.size, len(repr(self.problem))


@dataclass(frozen=True, repr=False)
class Search:
    """What a search came to: `problem` is the smallest that fails, None where none was found; `report` what is said of it,
    None where the kernel raised; `test` a pytest test that fails; `tried` how many problems; `nearest` the one that comes
    closest to a limit of those that pass, with the share of it."""

    problem: Fixture | None
    reason: str
    report: Report | None
    test: str
    tried: int
    seconds: float
    nearest: tuple[Fixture, float] | None

    @property
    def passed(self) -> bool:
        return self.problem is None

    def __str__(self) -> str:
        head = f"{self.tried} problems in {self.seconds:.0f} s"
        if self.problem is not None:
            return f"{head}: FAIL {self.problem!r}\n{self.reason}\n\n{self.test}"
        if self.nearest is None:
            return f"{head}: none fails"
        return f"{head}: none fails; nearest to a limit, at {100 * self.nearest[1]:.0f} % of it: {self.nearest[0]!r}"

    __repr__ = __str__


class _OutOfTime(BaseException):
    """Not an Exception: Hypothesis takes those for failures."""


class _Fails(Exception):
    pass


def search(kernel: Callable[..., Any], *, seconds: float = 60, strategy: Any = None, backward: bool = False, name: str = "",
           **words: Any) -> Search:
    """Looks for problems that a kernel fails, and shrinks the first to the smallest. Needs Hypothesis.

    seconds: how long it looks; shrinking takes up to half as long again. strategy: of what problems
    (`kda_check.strategies.problems(...)`, which it is without). backward: gradients, too. name: of the kernel, in the test.
    words: signature, compute, framework, device, checkpoints, as of `verify`. A kernel that raises fails; one that cannot take
    a problem (`Unsupported`) is not asked such. Problems come closer to the limits that those before came close to. What is
    INCONCLUSIVE does not fail. Raises Unsupported where the kernel can take none, TypeError for other words.

    >>> found = search(lambda q, k, v, g, beta, scale: v * 0, seconds=5, framework="numpy", name="zeros")
    >>> found.passed, found.problem.inputs["q"].shape[1]
    (False, 1)
    """
    import hypothesis

    from . import strategies

    unknown = sorted(set(words) - set(SAID))
    if unknown:
        raise TypeError(f"no word of a search: {', '.join(unknown)}; there are {', '.join(SAID)}")
    begun = time.monotonic()
    end = [begun + number(seconds, "seconds")]
    tried: dict[str, Tried] = {}
    refused: list[str] = []

    def judged(problem: Fixture) -> Tried:
        try:
            report = verify(kernel, problem, backward=backward, progress=False, **words)
        except Unsupported as error:
            refused.append(str(error))
            hypothesis.reject()
        except Exception as error:  # of the kernel
            return Tried(problem, math.inf, f"it raised {in_a_line(error)}")
        if report.verdict != "fail":
            return Tried(problem, _share(report))
        return Tried(problem, math.inf, _first(report), report)

    def attempt(problem: Fixture) -> None:
        key = repr(problem)
        if key not in tried:
            if time.monotonic() > end[0]:
                raise _OutOfTime
            tried[key] = judged(problem)
            if tried[key].reason and end[0] < begun + 1.5 * seconds:
                end[0] = time.monotonic() + 0.5 * seconds
        found = tried[key]
        if found.reason:
            raise _Fails
        hypothesis.target(math.log2(max(found.share, 2.0**-20)), label="share of a limit")

    settings = hypothesis.settings(
        max_examples=10**6, deadline=None, database=None, report_multiple_bugs=False, verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.target, hypothesis.Phase.shrink])  # fmt: skip
    try:
        settings(hypothesis.given(strategy if strategy is not None else strategies.problems())(attempt))()
    except (_OutOfTime, _Fails, hypothesis.errors.Unsatisfiable):
        pass
    if not tried:
        raise Unsupported(f"the kernel can take none of these problems: {refused[-1] if refused else 'there is none'}")
    failed = sorted((each for each in tried.values() if each.reason), key=lambda each: each.size)
    passed = max((each for each in tried.values() if not each.reason), key=lambda each: each.share, default=None)
    took = time.monotonic() - begun
    nearest = (passed.problem, passed.share) if passed else None
    if not failed:
        return Search(None, "", None, "", len(tried), took, nearest)
    least = failed[0]
    who = name or str(getattr(kernel, "__name__", "kernel"))
    more = {**({"backward": True} if backward else {}), **{key: x for key, x in words.items() if x is not None}}
    return Search(least.problem, least.reason, least.report, _test(who, least, more), len(tried), took, nearest)


def _share(report: Report) -> float:
    """Of the limits of all tensors, the largest share that is used up. More than all is of a limit that does not decide there."""
    shares = [0.0]
    for row in report.tensors():
        for metric, limit in row.limits.items():
            value = float(row.row["metrics"].get(metric, 0) or 0)
            shares.append(value / limit if 0 < limit < math.inf else 0.0)
    return max(share for share in shares if share <= 1)


def _first(report: Report) -> str:
    rows = [row for row in report.tensors() if row.verdict == "fail"]
    return f"{rows[0].row['name']} FAIL {rows[0].reason}" if rows else "; ".join(report.errors) or "FAIL"


def _test(who: str, least: Tried, words: dict[str, Any]) -> str:
    called = who if who.isidentifier() else "kernel"
    said = "".join(f", {key}={x!r}" for key, x in words.items())
    why = textwrap.shorten(least.reason, 100, placeholder=" ...")
    return textwrap.dedent(f"""\
        import kda_check
        from my_kernels import {called}

        def test_{called}_on_the_smallest_problem_that_fails():
            problem = {least.problem!r}
            report = kda_check.verify({called}, problem{said})
            assert report.passed, report      # {why}
        """)
