"""The program as processes that stay: one does job after job, each as a process of its own would, and keeps what takes long to
start, such as a GPU's context."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import resource
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from select import select
from typing import Any

from . import _scratch

FIRST_FILE = 16  # /dev/fd/16 is the first of the files of a job (src/cli/serve.hpp)
SERVED = struct.Struct("=ii")  # the exit code, and whether the process stays
MOST_IDLE = 4
# Variables that a process looks at once, or a library of it. All others are those of the job.
AT_START = (b"KDA_CHECK_ISA", b"KDA_CHECK_NCCL", b"CUDA_", b"NVIDIA_", b"NCCL_", b"LD_", b"MALLOC_", b"GLIBC_", b"HDF5_")
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)

_lock = threading.RLock()
_all, _idle = set["Process"](), list["Process"]()


class NotStarted(Exception):
    """There is no process: why."""


class OutOfTime(Exception):
    """The job is not done at the end of its time."""


class Gone(Exception):
    """The process ended before it took the job."""


class Process:
    """Ends with this process, whatever becomes of it."""

    def __init__(self, program: str, key: Any, environment: dict[bytes, bytes], out: int, error: int) -> None:
        self.key, self.is_new = key, True
        self.socket, there = socket.socketpair()
        try:
            with there:  # what it says at its start is said of its first job
                command = [program, "serve", *_scratch.beginnings()]
                self.process = subprocess.Popen(command, stdin=there.fileno(), stdout=out, stderr=error, env=environment)
        except BaseException as error:
            self.socket.close()
            if isinstance(error, OSError):
                raise NotStarted(error.strerror) from error
            raise
        with _lock:
            _all.add(self)

    def begin(self, words: Sequence[str], environment: dict[bytes, bytes], files: Sequence[int], end: float | None) -> None:
        """files: standard output and error, then the others. Raises Gone, OutOfTime."""
        texts = [*map(os.fsencode, [str(len(files) + 1), str(len(words)), *words]), *map(b"=".join, environment.items())]
        job = b"\0".join(texts) + b"\0"
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            with self._within(end):
                self.socket.sendall(struct.pack("=Q", len(job)) + job)
                for file in (folder, *files):
                    socket.send_fds(self.socket, [b"\0"], [file])
                if not self.socket.recv(1):
                    raise Gone
        except ConnectionError:
            raise Gone from None
        finally:
            os.close(folder)
        self.is_new = False

    def is_at_work(self, end: float | None) -> bool:
        """And may be, before that time."""
        return not select([self.socket], [], [], 0)[0] and (end is None or time.monotonic() < end)

    def finish(self, end: float | None) -> tuple[int, bool]:
        """The exit code, and whether it stays; that of the process where it ended in the middle. Raises OutOfTime."""
        with self._within(end), contextlib.suppress(ConnectionError):
            if len(answer := self.socket.recv(SERVED.size, socket.MSG_WAITALL)) == SERVED.size:
                code, stays = SERVED.unpack(answer)
                return code, bool(stays)
        return self.status(), False

    def status(self) -> int:
        """Of the process, which has closed its socket."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.end()
        return int(self.process.returncode)

    @contextlib.contextmanager
    def _within(self, end: float | None) -> Any:
        try:
            self.socket.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            yield
        except socket.timeout:
            raise OutOfTime from None

    def end(self) -> None:
        """Politely first, so that it removes its files and ends what it started."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.socket.close()
        with _lock:
            _all.discard(self)


def run(
    program: str, words: Sequence[str], environment: dict[bytes, bytes], files: Sequence[int], end: float | None,
    meanwhile: Callable[[Callable[[], bool]], None] | None,
) -> int:  # fmt: skip
    """Has it done; the exit code, as of a process: below zero where a signal ended it. Raises OutOfTime at `end`, and
    NotStarted."""
    # Those that share what they compute become several processes, which are to begin as the program does.
    is_alone = any(word.startswith("--segments") for word in words)
    key = _key(program, environment)
    while True:
        process = (None if is_alone else _taken(key)) or Process(program, key, environment, *files[:2])
        stays = False
        try:
            try:
                process.begin(words, environment, files, end)
            except Gone:  # while nobody needed it
                if not process.is_new:
                    continue
                return process.status()
            if meanwhile is not None:
                meanwhile(functools.partial(process.is_at_work, end))
            code, stays = process.finish(end)
            return code
        finally:
            if stays and not is_alone:
                _kept(process)
            else:
                process.end()


def _key(program: str, environment: dict[bytes, bytes]) -> Any:
    """What must be alike for one process to do the job of another."""
    status = os.stat(program)
    variables = sorted((key, x) for key, x in environment.items() if key.startswith(AT_START))
    return (program, status.st_ino, status.st_mtime_ns, variables, [resource.getrlimit(each) for each in LIMITS],
            os.sched_getaffinity(0))  # fmt: skip


def _taken(key: Any) -> Process | None:
    with _lock:
        found = next((each for each in reversed(_idle) if each.key == key), None)
        if found is not None:
            _idle.remove(found)
    return found


def _kept(process: Process) -> None:
    with _lock:
        _idle.append(process)
        others, _idle[:] = _idle[:-MOST_IDLE], _idle[-MOST_IDLE:]
    for each in others:
        each.end()


@atexit.register
def _end_idle() -> None:
    with _lock:
        others, _idle[:] = _idle[:], []
    for each in others:
        each.end()


def _forget() -> None:
    """In a child that was forked: they are not its own, and end without it."""
    global _lock
    _lock = threading.RLock()
    for each in _all:
        each.socket.close()
        each.process.returncode = 0  # not to be waited for
    _all.clear()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
