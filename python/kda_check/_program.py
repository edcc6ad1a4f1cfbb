"""Finds the program `kda-check` and runs it; what can go wrong with it is one exception each."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
) -> Finished:
    """Runs the program with `arguments` and waits for its end.

    reports: formats to ask for besides the text (json, html ...); each comes through a pipe, no file is left. timeout:
    seconds. environment: variables to add. accept: exit codes that are no error; 1, a FAIL, is a result. meanwhile:
    called while it runs, with a function that says whether it does and may. Raises a KdaCheckError with the program's
    words.

    >>> run(["list", "metrics"]).exit_code
    0
    """
    shown, program = " ".join(["kda-check", *arguments]), find()
    end = None if timeout is None else time.monotonic() + number(timeout, "timeout")
    pipes = {name: os.pipe() for name in reports}
    formats = [f"--report={name}=/dev/fd/{target}" for name, (_, target) in pipes.items()]
    command = [program, *arguments, *formats, *(["--report=text"] if reports else [])]
    found: dict[str, bytearray] = {}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[target for _, target in pipes.values()],
            env={**os.environ, **(environment or {})},
        )
    except BaseException as error:
        for source, _ in pipes.values():
            os.close(source)
        if isinstance(error, OSError):
            raise ProgramMissing(f"{program} cannot be started: {error.strerror}") from error
        raise
    finally:
        for _, target in pipes.values():
            os.close(target)
    streams = {**{name: os.fdopen(source, "rb") for name, (source, _) in pipes.items()},
               "stdout": process.stdout, "stderr": process.stderr}  # fmt: skip
    readers = [threading.Thread(target=_read, args=(*stream, found), daemon=True) for stream in streams.items()]
    for reader in readers:
        reader.start()
    try:
        if meanwhile is not None:
            meanwhile(lambda: process.poll() is None and (end is None or time.monotonic() < end))
        process.wait(None if end is None else max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired as expired:
        raise ProgramTimeout(f"kda-check did not end within {timeout:g} s: {shown}") from expired
    finally:
        _end(process)
        end = time.monotonic() + 5  # what it started may live on, and hold the other ends
        for reader in readers:
            reader.join(max(0, end - time.monotonic()))
    said = {name: content.decode(errors="replace") for name, content in found.items()}
    finished = Finished(process.returncode, said.pop("stdout"), said.pop("stderr"), said)
    if process.returncode in accept:
        return finished
    words = finished.stderr.strip().removeprefix("kda-check: error: ") or finished.stdout.strip()[-2000:]
    if process.returncode < 0:
        ended = {each.value: each.name for each in signal.Signals}.get(-process.returncode, f"signal {-process.returncode}")
        raise ProgramDied(f"kda-check was ended by {ended}: {shown}", *words.splitlines())
    kind = EXIT_CODES.get(process.returncode, KdaCheckError)
    raise kind(*(words or f"kda-check: exit code {process.returncode}: {shown}").split("\n"))


def _read(name: str, source: IO[bytes], found: dict[str, bytearray]) -> None:
    found[name] = bytearray()
    with source:
        for part in iter(lambda: os.read(source.fileno(), 1 << 20), b""):
            found[name].extend(part)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it if it still runs: politely first, so that it removes its files and ends what it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
