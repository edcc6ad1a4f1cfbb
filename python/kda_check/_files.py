"""Files as the program reads and writes them (docs/file-format.md)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Union

from ._names import about
from ._program import EnvironmentProblem, InputError

Path = Union[str, "os.PathLike[str]"]
NAME_MAX = 255


def opened(path: str, wanted: str) -> BinaryIO:
    """A file to be read. Raises InputError where there is none, or it is not regular."""
    try:  # not blocking: what is no regular file must not keep us waiting
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as failure:
        raise InputError(about(f"cannot open the file: {failure.strerror}", path)) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(about(f"the path is not a regular file; wanted {wanted}", path))
    return file


def make_folder(path: Path) -> None:
    """Makes it, and those above, where they are not there. Raises EnvironmentProblem."""
    with _told_of(os.fspath(path)):
        os.makedirs(path, exist_ok=True)


@contextlib.contextmanager
def replacing(path: Path, is_report: bool = False) -> Iterator[int]:
    """A descriptor to write a file to. It is put in the place of the one at `path` when the block ends; where that raises, the
    old one stays, and nothing else.

    Through symbolic links; a file that exists keeps its mode and, where that may be, its owner. What is no regular file is
    refused; a report goes to it as it is: to a pipe, a terminal, /dev/null. One that another process wrote meanwhile is
    not replaced; of a report the last writer wins. Raises EnvironmentProblem.
    """
    shown = os.fsdecode(path)
    with _told_of(shown):
        links = list(_followed(shown))
        target, before = links[-1], _status_of(links[-1])
        stream = _stream(links, before) if is_report else None
        if stream is not None:
            try:
                yield stream
            finally:
                os.close(stream)
            return
        if not target:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if before is not None:
            if not stat.S_ISREG(before.st_mode) and not stat.S_ISDIR(before.st_mode):
                raise EnvironmentProblem(about("cannot write: it is not a regular file", shown))
            # A file that may not be written could still be replaced: that is not what its owner meant.
            os.close(os.open(target, os.O_WRONLY))
        folder, name = os.path.split(target)
        start = os.fsdecode(os.fsencode(name)[: NAME_MAX - len(".0123456789abcdef.tmp")])
        temporary = os.path.join(folder, f"{start}.{secrets.token_hex(8)}.tmp")
        descriptor = -1
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            if before is not None:
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            yield descriptor
            _sync(descriptor)
            with _locked(folder or "."):
                if not is_report and _identity(_status_of(target)) != _identity(before):
                    raise EnvironmentProblem(about("was written by another process meanwhile", shown, "run again"))
                os.rename(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
            raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes a report. Raises EnvironmentProblem."""
    with replacing(path, is_report=True) as descriptor:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)


@contextlib.contextmanager
def _told_of(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise EnvironmentProblem(about(f"cannot write: {failure.strerror}", path)) from failure


def _followed(path: str) -> Iterator[str]:
    """The path, and where it leads for as long as that is a symbolic link. Raises OSError for a loop."""
    for _ in range(40):  # as Linux has it
        yield path
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _stream(links: Sequence[str], status: os.stat_result | None) -> int | None:
    """A descriptor of what is written as it is: a pipe, once somebody reads it, a terminal, /dev/null; and of this process,
    as /dev/stdout, which opened by its path would begin at its start again. None: it is a file, or none of these."""
    for folder, name in map(os.path.split, links):
        if name.isdecimal() and os.path.realpath(folder) == os.path.realpath("/proc/self/fd"):
            sys.stdout.flush()
            return os.dup(int(name))
    is_stream = status is not None and any(kind(status.st_mode) for kind in (stat.S_ISFIFO, stat.S_ISCHR))
    return os.open(links[-1], os.O_WRONLY | os.O_NOCTTY) if is_stream else None


def _status_of(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result | None) -> tuple[int, ...]:
    """Which file it is, and which writing of it."""
    return () if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as failure:
        if failure.errno not in (errno.EINVAL, errno.ENOSYS):  # a file system that has no such thing
            raise


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Who looks whether a file is still the one that it was and who replaces it take turns. Where folders cannot be locked,
    without."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        end = time.monotonic() + 10
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise EnvironmentProblem(about("the folder has been locked for ten seconds", folder)) from None
                time.sleep(0.01)
                continue
            except OSError:
                pass
            break
        yield
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile holds the folder open as well
        os.close(descriptor)
