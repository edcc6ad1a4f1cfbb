"""Every configuration of a kernel, one at a time: what `verify(configs=...)` tries."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ._kinds import mapping
from ._names import in_a_line, printable
from ._tensors import stored
from .signatures import Unsupported, Words

REPEATS = 3  # calls, whose bits must be the same
# What Triton's autotuner takes for a configuration that a device cannot run.
CANNOT_RUN = ("OutOfResources", "CompileTimeAssertionFailure", "PTXASError")


class Configurations:
    """The ways of calling a kernel: `first`, and `others()` one by one, each for a call within `held()`.

    configs: "all", those of every Triton autotuner below the call, each with all others at their first; or a list of keyword
    arguments. Raises ValueError for anything else.
    """

    def __init__(self, kernel: Callable[..., Any], configs: Any) -> None:
        self.kernel = kernel
        self.words: list[Words] = [{}]
        self.seen: dict[Any, list[Any]] = {}  # autotuners that were run: what they would try for what they were given
        self.pinned: dict[Any, Any] = {}
        if configs == "all":
            if "triton" not in sys.modules:
                raise ValueError("configs='all': no Triton is imported; wanted a list of keyword arguments")
        elif isinstance(configs, str) or not isinstance(configs, Sequence) or not configs:
            raise ValueError(f"configs: {configs!r}; wanted 'all', or a list of keyword arguments")
        else:
            self.words = [dict(mapping(each, "configs")) for each in configs]
        self.is_all = configs == "all"

    @property
    def first(self) -> Callable[..., Any]:
        return self._with(self.words[0])

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For as long as it lasts no autotuner times anything: each runs its first configuration, or the one that is tried."""
        if not self.is_all:
            yield
            return
        from triton.runtime.autotuner import Autotuner

        own = Autotuner.run

        def run(tuner: Any, *args: Any, **words: Any) -> Any:
            if tuner not in self.seen:
                tuner.nargs = dict(zip(tuner.arg_names, args))
                self.seen[tuner] = list(tuner.prune_configs(words)) or list(tuner.configs)
            every, cached = tuner.configs, tuner.cache
            tuner.configs, tuner.cache = [self.pinned.get(tuner, self.seen[tuner][0])], {}
            try:
                return own(tuner, *args, **words)
            finally:
                tuner.configs, tuner.cache = every, cached

        Autotuner.run = run
        try:
            yield
        finally:
            Autotuner.run = own

    def others(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        for words in self.words[1:]:
            yield ", ".join(f"{key}={x!r}" for key, x in words.items()) or "no arguments", self._with(words)
        for tuner, configs in list(self.seen.items()):
            for config in configs[1:]:
                self.pinned = {tuner: config}
                yield f"{_name(tuner)}({config})", self.kernel
        self.pinned = {}

    def _with(self, words: Words) -> Callable[..., Any]:
        return functools.wraps(self.kernel)(functools.partial(self.kernel, **words)) if words else self.kernel


def _name(tuner: Any) -> str:
    while not hasattr(tuner, "__name__") and hasattr(tuner, "fn"):
        tuner = tuner.fn
    return str(getattr(tuner, "__name__", "kernel"))


def digests(answer: Mapping[str, Any]) -> dict[str, str]:
    """Of the bits of every tensor of an answer."""
    tensors = {key: stored(x, key) for key, x in answer.items() if x is not None and not isinstance(x, str)}
    return {key: hashlib.blake2b(x.data.tobytes(), digest_size=16).hexdigest() for key, x in tensors.items()}


def tried(
    ways: Configurations, call: Callable[[Callable[..., Any]], Words], first: Words, judged: Callable[[Words], tuple[str, str]]
) -> list[dict[str, Any]]:
    """A row for each configuration but the first, which has one where it does not repeat: `config`; `differ`, tensors that have
    other bits than with the first; `repeats`, whether calls have the same bits; `verdict` and `reason`, "cannot run" where it
    does not run here. An answer whose bits are known is not judged again. call: the kernel on the problem. judged: the
    verdict on an answer, and why."""
    base = digests(first)
    known = {tuple(base.items()): ("", "")}
    rows: list[dict[str, Any]] = []
    moved = other_bits([base, *(digests(call(ways.first)) for _ in range(REPEATS - 1))])
    if moved:
        rows.append({"config": "the first", "differ": [], "repeats": False, "verdict": "fail", "reason": moved})
    for config, kernel in ways.others():
        try:
            answers = [call(kernel) for _ in range(REPEATS)]
        except Unsupported:
            raise
        except Exception as error:
            cannot = type(error).__name__ in CANNOT_RUN
            rows.append({"config": config, "differ": [], "repeats": True, "verdict": "cannot run" if cannot else "fail",
                         "reason": f"it raised {in_a_line(error)}"})  # fmt: skip
            continue
        every = [digests(answer) for answer in answers]
        found = tuple(every[0].items())
        if found not in known:
            known[found] = judged(answers[0])
        verdict, reason = known[found]
        moved = other_bits(every)
        rows.append({"config": config, "differ": sorted(key for key in every[0] if every[0][key] != base.get(key)),
                     "repeats": not moved, "verdict": "fail" if moved else verdict, "reason": moved or reason})  # fmt: skip
    return rows


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Tensors that have not the same bits in both, or are in one alone."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def other_bits(calls: Sequence[Mapping[str, str]]) -> str:
    """What has not the same bits in all of them, in words; nothing where all has."""
    keys = sorted({key for call in calls for key in differing(calls[0], call)})
    return f"{', '.join(keys)}: other bits at another call" if keys else ""


def table(who: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """In words: what has other bits, does not run, or does not pass."""
    counts = {"run": sum(row["verdict"] != "cannot run" for row in rows), "differ": sum(bool(row["differ"]) for row in rows),
              "fail": sum(row["verdict"] == "fail" for row in rows)}  # fmt: skip
    lines = [f"configurations of {who} beside the first: {len(rows)}, of which {counts['run']} run here, {counts['differ']} have "
             f"other bits, {counts['fail']} FAIL"]  # fmt: skip
    for row in rows:
        if row["differ"] or row["verdict"]:
            bits = f"other bits in {', '.join(row['differ'])}" if row["differ"] else "the same bits"
            said = [str(row["verdict"]).upper() or "as the first", bits, row["reason"]]
            lines.append(f"  {row['config']}: {'; '.join(filter(None, said))}")
    return "\n".join(printable(line) for line in lines)
