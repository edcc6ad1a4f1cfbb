"""python -m kda_check COMMAND: what the program itself does not do. Everything else is handed to the program."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from . import _program

COMMANDS = {"convert": "kda_check.convert", "evaluate": "kda_check.evaluating", "export-fla": "kda_check._export_fla",
            "time": "kda_check._timing"}
CODES = {error: code for code, error in _program.EXIT_CODES.items()}


class Ended(BaseException):
    """By a signal; what is on the way out removes its files."""


def end(number: int, _: Any) -> None:
    raise Ended(number)


def main(words: list[str]) -> int:
    """Exit codes are those of the program."""
    try:
        if not words or words[0] not in COMMANDS:
            program = _program.find()
            os.execv(program, [program, *words])
        try:
            command = importlib.import_module(COMMANDS[words[0]])
        except ModuleNotFoundError as error:
            raise _program.EnvironmentProblem(f"{error}; hint: pip install {error.name}") from None
        return command.main(words[1:]) or 0
    except _program.KdaCheckError as failure:
        print(f"kda-check: error: {failure}", file=sys.stderr)
        return CODES.get(type(failure), 4)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, end)
    by = 0
    try:
        sys.exit(main(sys.argv[1:]))
    except Ended as ended:
        by = ended.args[0]
    signal.signal(by, signal.SIG_DFL)  # behind the block, which holds what it came through
    os.kill(os.getpid(), by)
