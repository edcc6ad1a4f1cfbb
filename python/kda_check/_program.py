"""Finds the program `kda-check` and runs it; what can go wrong with it is one exception each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from . import _scratch, _staying
from ._kinds import number
from ._names import printable

HINT = "hint: pip install kda-check, or set KDA_CHECK_PROGRAM to the program"


class KdaCheckError(RuntimeError):
    """Anything that keeps kda_check from a verdict. A verdict of FAIL is none of these. Its words: a line each, which may
    quote what a file holds."""

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class ProgramMissing(KdaCheckError):
    """There is no program, or it cannot be started."""


class ProgramDied(KdaCheckError):
    """The program was ended by a signal, or found a bug in itself (exit code 70)."""


class ProgramTimeout(KdaCheckError, TimeoutError):
    """The program did not end in time; it was ended."""


class UsageError(KdaCheckError, ValueError):
    """The program refused its command line (exit code 2)."""


class InputError(KdaCheckError, ValueError):
    """A file or a tensor is missing or malformed (exit code 3). `option`: that of the problem which is refused."""

    option = ""


class EnvironmentProblem(KdaCheckError):
    """Something could not run or be written: no memory, a full disk, no GPU (exit code 4)."""


EXIT_CODES = {2: UsageError, 3: InputError, 4: EnvironmentProblem, 70: ProgramDied}


@dataclass
class Finished:
    """What a run left: its exit code, what it printed, and its reports by format."""

    exit_code: int
    stdout: str
    stderr: str
    reports: dict[str, str]


def find() -> str:
    """The program: $KDA_CHECK_PROGRAM, else that of the wheel, else that of PATH. Raises ProgramMissing."""
    named = os.environ.get("KDA_CHECK_PROGRAM")
    inside = Path(__file__).parent / "bin" / "kda-check"
    found = shutil.which(named or (inside if os.access(inside, os.X_OK) else "kda-check"))
    if found is None:
        missing = f"KDA_CHECK_PROGRAM: '{named}' is no program" if named else "no program kda-check, here or in PATH"
        raise ProgramMissing(f"{missing}; {HINT}")
    return found


def run(
    arguments: Sequence[str],
    *,
    reports: Sequence[str] = (),
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    accept: Sequence[int] = (0, 1),
    meanwhile: Callable[[Callable[[], bool]], None] | None = None,
    told: Callable[[float, str], object] | None = None,
) -> Finished:
    """Runs the program with `arguments` and waits for its end.

    reports: formats to ask for besides the text (json, html ...); no file is left of it. timeout:
    seconds. environment: variables to add. accept: exit codes that are no error; 1, a FAIL, is a result. meanwhile:
    called while it runs, with a function that says whether it does and may. told: called on another thread with the share
    that is done and what is being done; what it raises is raised in the end. Raises a KdaCheckError with the program's
    words.

    >>> run(["list", "metrics"]).exit_code
    0
    """
    shown, program = " ".join(["kda-check", *arguments]), find()
    end = None if timeout is None else time.monotonic() + number(timeout, "timeout")
    formats = [f"--report={name}=/dev/fd/{_staying.FIRST_FILE + i}" for i, name in enumerate(reports)]
    command = [*arguments, *formats, *(["--report=text"] if reports else [])]
    if any("\0" in word for word in command):
        raise ValueError("embedded null byte")
    variables = {**os.environb, **{os.fsencode(key): os.fsencode(x) for key, x in (environment or {}).items()}}
    with contextlib.ExitStack() as kept:
        files = {name: kept.enter_context(_scratch.file(name)) for name in ("stdout", "stderr", *reports)}
        numbers = [file.fileno() for file in files.values()]
        if told is not None:
            variables[b"KDA_CHECK_PROGRESS"] = b"%d" % (_staying.FIRST_FILE + len(reports))
            numbers.append(kept.enter_context(_telling(told)))
        try:
            code = _staying.run(program, command, variables, numbers, end, meanwhile)
        except _staying.OutOfTime as expired:
            raise ProgramTimeout(f"kda-check did not end within {timeout:g} s: {shown}") from expired
        except _staying.NotStarted as error:
            raise ProgramMissing(f"{program} cannot be started: {error}") from error
        said = {name: _content(file) for name, file in files.items()}
    finished = Finished(code, said.pop("stdout"), said.pop("stderr"), said)
    if code in accept:
        return finished
    words = finished.stderr.strip().removeprefix("kda-check: error: ") or finished.stdout.strip()[-2000:]
    if code < 0:
        ended = {each.value: each.name for each in signal.Signals}.get(-code, f"signal {-code}")
        raise ProgramDied(f"kda-check was ended by {ended}: {shown}", *words.splitlines())
    kind = EXIT_CODES.get(code, KdaCheckError)
    raise kind(*(words or f"kda-check: exit code {code}: {shown}").split("\n"))


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextlib.contextmanager
def _telling(told: Callable[[float, str], object]) -> Iterator[int]:
    """A pipe to write to. What `told` raises is raised in the end."""
    failed: list[BaseException] = []
    source, target = os.pipe()
    reader = threading.Thread(target=_tell, args=(os.fdopen(source, "rb"), told, failed), daemon=True)
    reader.start()
    try:
        yield target
    finally:
        os.close(target)
        reader.join(5)  # what the program started may live on, and hold the other end
    if failed:
        raise failed[0]


def _tell(source: IO[bytes], told: Callable[[float, str], object], failed: list[BaseException]) -> None:
    with source:
        try:
            for line in source:
                share, _, what = line.decode(errors="replace").rstrip("\n").partition(" ")
                told(float(share), what)
        except BaseException as error:
            failed.append(error)
