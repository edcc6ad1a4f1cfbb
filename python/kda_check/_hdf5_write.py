"""Writes HDF5 without the HDF5 library: groups, attributes, contiguous datasets.

In the oldest layout, which every reader knows and which has no checksums: superblock 0, object headers 1. The elements
of all datasets come first, each straight from its buffer, then the headers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ._kinds import INT64
from ._options import Value
from ._tensors import Stored

UNDEFINED = 0xFFFFFFFFFFFFFFFF
# Of an element type: bytes; sign, position and bits of the exponent, bits of the mantissa, bias.
FLOATS = {"float64": (8, 63, 52, 11, 52, 1023), "float32": (4, 31, 23, 8, 23, 127),
          "float16": (2, 15, 10, 5, 10, 15), "bfloat16": (2, 15, 7, 8, 7, 127)}  # fmt: skip

WHOLE = {"int64": 8, "int16": 2, "int8": 1, "float8_e4m3": 1}  # bytes; the last as its bits


@dataclass
class Group:
    """A group to be written."""

    attributes: Mapping[str, Value] = field(default_factory=dict)
    members: Mapping[str, Group | Stored] = field(default_factory=dict)


def write(descriptor: int, root: Group) -> None:
    """Writes a whole file into an empty one. Raises OSError where there is no room."""
    end, places = 96, {}
    for tensor in _tensors_of(root):
        end = places[id(tensor)] = -(-end // 64) * 64
        if tensor.data.size:
            _write_at(descriptor, memoryview(tensor.data.reshape(-1).view(np.uint8)), end)  # type: ignore[arg-type]
        end += tensor.data.nbytes
    headers = _Headers(-(-end // 8) * 8, places)
    root_at = headers.group(root)
    _write_at(descriptor, memoryview(headers.bytes), headers.start)
    superblock = b"\x89HDF\r\n\x1a\n" + struct.pack("<8B2HI", 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0)
    end = headers.start + len(headers.bytes)
    superblock += struct.pack("<4Q2Q2I16x", 0, UNDEFINED, end, UNDEFINED, 0, root_at, 0, 0)
    _write_at(descriptor, memoryview(superblock), 0)


def _tensors_of(group: Group) -> list[Stored]:
    members = group.members.values()
    return [x for member in members for x in (_tensors_of(member) if isinstance(member, Group) else [member])]


def _write_at(descriptor: int, content: memoryview, at: int) -> None:
    while content:
        count = os.pwrite(descriptor, content[: 1 << 30], at)
        content, at = content[count:], at + count


class _Headers:
    """The object headers, members before their group: a header names where its members are."""

    def __init__(self, start: int, places: Mapping[int, int]) -> None:
        self.start, self.places, self.bytes = start, places, bytearray()

    def group(self, group: Group) -> int:
        messages = [(0x02, struct.pack("<BB2Q", 0, 0, UNDEFINED, UNDEFINED)), (0x0A, b"\0\0")]
        for name, member in group.members.items():
            at = self.group(member) if isinstance(member, Group) else self.dataset(member)
            text = name.encode()
            # 0x10: the character set follows; 1 is UTF-8.
            messages.append((0x06, struct.pack("<4B", 1, 0x10, 1, len(text)) + text + struct.pack("<Q", at)))
        return self.put(messages + [(0x0C, _attribute(*item)) for item in group.attributes.items()])

    def dataset(self, tensor: Stored) -> int:
        place = self.places[id(tensor)] if tensor.data.size else UNDEFINED  # the library refuses any other for nothing
        layout = struct.pack("<BBQQ", 3, 1, place, tensor.data.nbytes)
        space = struct.pack(f"<BB6x{tensor.data.ndim}Q", 1, tensor.data.ndim, *tensor.data.shape)
        # The fill value is not defined, and nothing is filled.
        tagged = [(0x0C, _attribute("dtype", tensor.dtype))] if tensor.dtype == "float8_e4m3" else []
        return self.put([(0x01, space), (0x03, _type_of(tensor.dtype)), (0x05, b"\2\2\2\0"), (0x08, layout), *tagged])

    def put(self, messages: list[tuple[int, bytes]]) -> int:
        whole = [(kind, _padded(data)) for kind, data in messages]
        body = b"".join(struct.pack("<HHB3x", kind, len(data), 0) + data for kind, data in whole)
        at = self.start + len(self.bytes)
        self.bytes += struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body
        return at


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _type_of(dtype: str) -> bytes:
    if dtype in WHOLE:
        return struct.pack("<4BIHH", 0x10, 0 if dtype == "float8_e4m3" else 0x08, 0, 0, WHOLE[dtype], 0, 8 * WHOLE[dtype])
    size, sign, position, exponent, mantissa, bias = FLOATS[dtype]
    # 0x20: the first bit of the mantissa is implied.
    return struct.pack("<4BIHH4BI", 0x11, 0x20, sign, 0, size, 0, 8 * size, position, exponent, 0, mantissa, bias)


def _attribute(name: str, value: Value) -> bytes:
    if isinstance(value, int) and value not in INT64:
        value = str(value)
    if isinstance(value, str):
        content = value.encode(errors="replace")[:60000] or b"\0"  # a message has 64 KiB at most
        kind = struct.pack("<4BI", 0x13, 0x11, 0, 0, len(content))  # padded with NUL, UTF-8
    elif isinstance(value, float):
        content, kind = struct.pack("<d", value), _type_of("float64")
    else:
        content, kind = struct.pack("<q", value), _type_of("int64")
    text = name.encode() + b"\0"
    sizes = struct.pack("<BxHHH", 1, len(text), len(kind), 8)
    return sizes + _padded(text) + _padded(kind) + struct.pack("<BB6x", 1, 0) + content
