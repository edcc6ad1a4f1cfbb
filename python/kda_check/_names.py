"""Text from outside, as it may be shown: in the words of the program (src/base/names.hpp)."""

from __future__ import annotations

import re

BLANK = " \xa0\u1680\u2000-\u200a\u202f\u205f\u3000"
HIDDEN = (
    "\0-\x1f\x7f-\x9f"  # control characters
    "\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # direction, nothing wide, tags
    "\ud800-\udfff\ufdd0-\ufdef"  # no characters: bytes of a name that are no UTF-8, too
) + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
# What a runner of workflows would obey: "::" at the start of a line, "##[" anywhere in it.
OBEYED = re.compile(rf"[{HIDDEN}]|\A[{BLANK}]*:(?=:)|#(?=#\[)")


def printable(text: str) -> str:
    """A name or a message, fit for a terminal and the log of a workflow: one line, in which what would be obeyed and not
    shown is written as \\x1b or \\u202e.

    >>> printable("\\x1b[31m"), printable("::error::")
    ('\\\\x1b[31m', '\\\\x3a:error::')
    """
    return OBEYED.sub(lambda found: found[0][:-1] + _escaped(found[0][-1]), text)


def _escaped(character: str) -> str:
    point = ord(character)
    if point >= 0x100 and not 0xDC80 <= point <= 0xDCFF:  # these stand for bytes of a name that are no UTF-8
        return f"\\u{point:04x}"
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def in_a_line(error: BaseException) -> str:
    """What was raised and its words."""
    words = printable(" ".join(str(error).split()))
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def about(what: str, where: str, hint: str = "") -> str:
    """A message as the program words it: what was found and wanted, the file, a hint."""
    return f"{what} ({where})" + (f"; hint: {hint}" if hint else "")
