"""How far the program is, shown while it works: by tqdm where it is installed, else by a line at the terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Union

Told = Callable[[float, str], object]  # the share that is done, and what is being done
Progress = Union[None, bool, Told]

PATIENCE = 1  # seconds: what ends before is not worth a line


@contextlib.contextmanager
def shown(progress: Progress) -> Iterator[Told | None]:
    """What is to be told how far it is; None where nobody looks. progress: whom to tell, whether to show it, or None: at
    a terminal."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and _is_terminal()):
        with contextlib.closing(_bar()) as bar:
            yield bar.tell
    else:
        yield None


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar() -> _Tqdm | _Line:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Line()
    return _Tqdm(tqdm)


class _Tqdm:
    def __init__(self, tqdm: Any) -> None:
        form = "{desc}: {percentage:.0f} %|{bar}| {elapsed}<{remaining}{postfix}"
        self.bar = tqdm(total=100, desc="kda-check", leave=False, delay=PATIENCE, bar_format=form)

    def tell(self, share: float, what: str) -> None:
        self.bar.set_postfix_str(what, refresh=False)
        self.bar.update(100 * share - self.bar.n)

    def close(self) -> None:
        self.bar.close()


class _Line:
    def __init__(self) -> None:
        self.began, self.is_shown = time.monotonic(), False

    def tell(self, share: float, what: str) -> None:
        passed = time.monotonic() - self.began
        if passed < PATIENCE or not _is_terminal():
            return
        left = f", about {passed * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        line = f"kda-check: {100 * share:.0f} %{left}  {what}"
        self._write(line[: shutil.get_terminal_size().columns - 1])
        self.is_shown = True

    def close(self) -> None:
        if self.is_shown:
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
