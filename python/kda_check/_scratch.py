"""Folders in memory that nobody has to tidy up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from . import _program

# Nobody else's folder begins so: what does is removed when its process is gone.
MEMORY, PREFIX = "/dev/shm", ".kda-check-python-"


@contextlib.contextmanager
def folder(needed: int = 0) -> Iterator[str]:
    """A folder for as long as it lasts: in /dev/shm, or where that has not `needed` bytes left, in that for temporary
    files; needed 0: it is not known, a GiB is enough. Folders of processes that were killed are removed. Raises
    EnvironmentProblem where there is no room."""
    try:
        parents = [MEMORY, tempfile.gettempdir()]
        parent = next((each for each in parents if _free(each) >= (needed or 1 << 30)), None if needed else parents[1])
        if parent is None:
            room = ", ".join(f"{each} has {_free(each) >> 20} MiB" for each in parents)
            raise _program.EnvironmentProblem(f"no room for {needed >> 20} MiB: {room}; hint: TMPDIR says where else")
        _sweep(parent)
        path = tempfile.mkdtemp(prefix=_prefix(), dir=parent)
    except OSError as failure:
        said = f"no folder for temporary files: {failure.strerror}; hint: TMPDIR says where"
        raise _program.EnvironmentProblem(said) from failure
    try:
        with _locked(path, fcntl.LOCK_SH):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def beginnings() -> list[str]:
    """How the paths of this process's folders begin."""
    return [os.path.join(parent, _prefix()) for parent in (MEMORY, tempfile.gettempdir())]


def _prefix() -> str:
    return f"{PREFIX}{os.getpid()}-"


def file(name: str) -> IO[bytes]:
    """An empty one in memory, in no folder."""
    if hasattr(os, "memfd_create"):  # not where Python was built for older systems
        return os.fdopen(os.memfd_create(name), "w+b", 0)
    return tempfile.TemporaryFile(buffering=0)


def _free(parent: str) -> int:
    try:
        status = os.statvfs(parent)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize if os.access(parent, os.W_OK) else 0


def _sweep(parent: str) -> None:
    """Removes folders whose processes are gone: nobody holds their lock, and they are not just being made."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            if name.startswith(PREFIX) and time.time() - os.stat(path).st_mtime > 60:
                with _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR):
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str, operation: int, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[None]:
    # Not the folder itself: the program locks that while it writes.
    descriptor = os.open(os.path.join(path, "lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)
