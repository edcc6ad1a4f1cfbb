"""What a caller says beside tensors, held to its kind: a TypeError that names it where it is of another."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

INT64 = range(-1 << 63, 1 << 63)


def number(value: Any, name: str) -> float:
    value = _plain(value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number:
        raise _other_kind(value, name, "a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(value: Any, name: str) -> int:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _other_kind(value, name, "a whole number")
    return int(value)


def flag(value: Any, name: str) -> bool:
    value = _plain(value)
    if not isinstance(value, numbers.Integral) or value not in (0, 1):
        raise _other_kind(value, name, "True or False")
    return bool(value)


def text(value: Any, name: str) -> str:
    value = _plain(value)
    if not isinstance(value, str):
        raise _other_kind(value, name, "text")
    return str(value)


def label(value: Any, of: str) -> str:
    """What something is called in a file. Raises ValueError for what no file can call it."""
    encoded = text(value, f"the name of {of}").encode(errors="ignore")
    if not 0 < len(encoded) < 256 or encoded.decode() != value or "\0" in value:
        raise ValueError(f"'{value[:60]}' is no name for {of}; wanted 1 to 255 bytes of UTF-8, none of them zero")
    return str(value)


def mapping(value: Any, name: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _other_kind(value, name, "a dictionary")
    return value


def listed(words: Sequence[str], name: str) -> list[str]:
    """The words of a list; of a text they would be its letters."""
    if isinstance(words, str):
        raise TypeError(f"{name}: wanted a list of words, got the text '{words}'; hint: {name}=['{words}']")
    return list(words)


def shown(value: Any) -> str:
    """Of any length; Python itself refuses to write a number of thousands of digits."""
    return "beyond 64 bits" if isinstance(value, int) and value not in INT64 else str(value)


def _plain(value: Any) -> Any:
    """A number of a framework as one of Python."""
    return value.item() if getattr(value, "shape", None) == () else value


def _other_kind(value: Any, name: str, wanted: str) -> TypeError:
    got = shown(value) if isinstance(value, (int, float)) else type(value).__name__
    return TypeError(f"{name}: wanted {wanted}, got {repr(value)[:60] if isinstance(value, str) else got}")
