"""Reads HDF5 files as kda-check, h5py and this package write them by default, without the HDF5 library.

Superblock 0, object headers 1, groups by symbol table or links, datasets contiguous or in chunks (deflated, shuffled,
checksummed). No more: damaged files crash the HDF5 library, and with it the process that reads them.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ._files import opened
from ._options import Value
from ._program import InputError
from ._tensors import Stored

Taken = TypeVar("Taken")
UNDEFINED = 0xFFFFFFFFFFFFFFFF
SPACE, LINK_INFO, TYPE, LINK, LAYOUT, FILTERS, ATTRIBUTE, CONTINUED, SYMBOLS = 1, 2, 3, 6, 8, 11, 12, 16, 17


class Foreign(Exception):
    """The file uses something this reader does not know."""


@dataclass
class Object:
    """A group, or a dataset that is read when it is asked for."""

    attributes: dict[str, Value] = field(default_factory=dict)
    members: dict[str, Object] = field(default_factory=dict)
    load: Callable[[], Stored] | None = None

    def group(self, name: str) -> Object:
        """The group of that name; an empty one where there is none."""
        return self.members.get(name, Object())

    def groups(self) -> dict[str, Object]:
        return {name: member for name, member in self.members.items() if member.load is None}

    def tensors(self) -> dict[str, Stored]:
        return {name: member.load() for name, member in self.members.items() if member.load is not None}


def read(path: str, take: Callable[[Object], Taken]) -> Taken:
    """What `take` makes of the root of a file. Raises InputError for what is no HDF5 or is damaged."""
    with opened(path, "an HDF5 file") as file:
        if file.read(8) != b"\x89HDF\r\n\x1a\n":
            raise InputError(f"{path}: no HDF5 file; hint: python -m kda_check convert reads .npz, .pt, .safetensors")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    reader = _Reader(content)
    try:
        if content[8] != 0 or content[13] != 8 or content[14] != 8:
            raise Foreign(f"superblock {content[8]}")
        return take(reader.object(reader.at("Q", 64)[0], 0))  # the entry of the root is at 56, its header in word 2
    except Foreign as error:
        hint = "hint: h5py writes what is read here, without libver='latest'; kda-check itself reads all forms"
        raise InputError(f"{path}: a form of HDF5 that is not read here: {error}; {hint}") from error
    except (struct.error, IndexError, ValueError, KeyError, OverflowError, RecursionError, MemoryError, zlib.error) as error:
        raise InputError(f"{path}: no fixture, damaged or cut off: {error}") from error


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self.content, self.objects = content, 0

    def at(self, form: str, offset: int) -> tuple[Any, ...]:
        return struct.unpack_from("<" + form, self.content, offset)

    def part(self, offset: int, size: int) -> memoryview:
        if offset + size > len(self.content):
            raise ValueError(f"it ends before byte {offset + size}")
        return self.content[offset : offset + size]

    def messages(self, address: int) -> Iterator[tuple[int, memoryview]]:
        version, count, _, size = self.at("BxHII", address)
        blocks = [(address + 16, size)]
        for begin, length in blocks:
            end = begin + length
            while begin + 8 <= end and count > 0:
                kind, size, flags = self.at("HHB", begin)
                data = self.part(begin + 8, size)
                if version != 1 or flags & 2 or len(blocks) > 1000:
                    raise Foreign(f"an object header {version} with flags {flags}")
                if kind == CONTINUED:
                    blocks.append((struct.unpack_from("<Q", data)[0], struct.unpack_from("<Q", data, 8)[0]))
                yield kind, data
                begin, count = begin + 8 + size, count - 1

    def object(self, address: int, depth: int) -> Object:
        found, parts = Object(), {}
        self.objects += 1
        if depth > 8 or self.objects > 100000:
            raise ValueError("groups within groups without end")
        for kind, data in self.messages(address):
            parts[kind] = data
            if kind == ATTRIBUTE:
                self.attribute(data, found)
            elif kind == LINK:
                self.link(data, found, depth)
            elif kind == SYMBOLS:
                tree, heap = struct.unpack_from("<QQ", data)
                self.symbols(tree, self.at("Q", heap + 24)[0], found, depth)
            elif kind == LINK_INFO and struct.unpack_from("<Q", data, 2 + 8 * (data[1] & 1))[0] != UNDEFINED:
                raise Foreign("many links")
        if LAYOUT in parts:
            found.load = lambda: self.dataset(parts, found.attributes)
        return found

    def link(self, data: memoryview, found: Object, depth: int) -> None:
        flags = data[1]
        at = 2 + bool(flags & 8) + 8 * bool(flags & 4) + bool(flags & 16)
        width = 1 << (flags & 3)
        end = at + width + int.from_bytes(data[at : at + width], "little")
        if not flags & 8 or data[2] == 0:  # no soft link
            address = struct.unpack_from("<Q", data, end)[0]
            found.members[bytes(data[at + width : end]).decode()] = self.object(address, depth + 1)

    def symbols(self, node: int, names: int, found: Object, depth: int, level: int = 0) -> None:
        """A node of the B-tree of a group, or a leaf of it."""
        is_tree, count = bytes(self.part(node, 4)) == b"TREE", self.at("H", node + 6)[0]
        if level > 20:
            raise ValueError("a tree without end")
        for i in range(count):
            if is_tree:
                self.symbols(self.at("Q", node + 32 + 16 * i)[0], names, found, depth, level + 1)
                continue
            name, header, cached = self.at("QQI", node + 8 + 40 * i)
            if cached != 2:  # no soft link
                found.members[_text(self.content[names + name : names + name + 256])] = self.object(header, depth + 1)

    def attribute(self, data: memoryview, found: Object) -> None:
        """Takes it where it is one number or text."""
        version, flags, *sizes = struct.unpack_from("<BBHHH", data)
        at, parts = 8 + (version == 3), []
        for size in sizes:
            parts.append(data[at : at + size])
            at += -(-size // 8) * 8 if version == 1 else size
        name, kind, value = _text(parts[0]), parts[1], data[at:]
        if flags & 3 or int(np.prod(_shape_of(parts[2]))) != 1:
            return
        if kind[0] & 15 == 8:  # an enumeration: as its base, behind 8 bytes
            kind = kind[8:]
        if kind[0] & 15 == 3:
            found.attributes[name] = _text(value[: struct.unpack_from("<I", kind, 4)[0]])
        elif kind[0] & 15 == 9 and kind[1] & 15 == 1:
            length, heap, index = struct.unpack_from("<IQI", value)
            found.attributes[name] = _text(self.heap_object(heap, index)[:length])
        elif kind[0] & 15 in (0, 1):
            dtype, _ = _element_type(kind, False)
            found.attributes[name] = np.frombuffer(value[: dtype.itemsize], dtype)[0].item()

    def heap_object(self, heap: int, wanted: int) -> memoryview:
        at, end = heap + 16, heap + self.at("Q", heap + 8)[0]
        while at + 16 <= end:
            index, size = self.at("H6xQ", at)
            if index == wanted:
                return self.part(at + 16, size)
            at += 16 + -(-size // 8) * 8 if index else end
        raise ValueError(f"no text {wanted}")

    def dataset(self, parts: dict[int, memoryview], attributes: dict[str, Value]) -> Stored:
        shape = _shape_of(parts[SPACE])
        dtype, name = _element_type(parts[TYPE], attributes.get("dtype") == "bfloat16")
        if name == "int64" and dtype.name in ("int8", "int16"):  # codes, or whole numbers that are few
            name = dtype.name
        if dtype.name == "uint8" and attributes.get("dtype") == "float8_e4m3":
            name = "float8_e4m3"
        layout, size = parts[LAYOUT], int(np.prod(shape)) * dtype.itemsize
        if layout[0] != 3 or layout[1] == 0:
            raise Foreign(f"a layout {layout[0]}.{layout[1]}")
        if layout[1] == 2:
            array = self.chunked(layout, parts.get(FILTERS), shape, dtype)
        else:
            raw = self.part(struct.unpack_from("<Q", layout, 2)[0], size) if size else b""
            array = np.frombuffer(raw, dtype).reshape(shape)
        return Stored(np.asarray(array, np.int64 if name == "int64" else dtype.newbyteorder("=")), name)

    def chunked(self, layout: memoryview, filters: memoryview | None, shape: tuple[int, ...], dtype: Any) -> Any:
        tree, *chunk = struct.unpack_from(f"<Q{len(shape)}I", layout, 3)
        steps = _filters_of(filters) if filters is not None else []
        whole = np.zeros(shape, dtype)
        for begin, size, mask, address in self.chunks(tree, len(shape)):
            raw = bytes(self.part(address, size))
            for number in reversed(range(len(steps))):
                raw = raw if mask >> number & 1 else _unfiltered(steps[number], raw, dtype.itemsize)
            there = tuple(slice(a, a + extent) for a, extent in zip(begin, chunk))
            inside = tuple(slice(0, extent) for extent in whole[there].shape)
            whole[there] = np.frombuffer(raw, dtype).reshape(chunk)[inside]
        return whole

    def chunks(self, node: int, rank: int, level: int = 0) -> Iterator[tuple[list[int], int, int, int]]:
        depth, count = self.at("BH", node + 5) if node != UNDEFINED and level < 20 else (0, 0)
        width = 16 + 8 * rank  # of a key: bytes, mask, indices, and that within the element
        for at in range(node + 24, node + 24 + count * (width + 8), width + 8):
            size, mask, *begin = self.at(f"II{rank}Q", at)
            child = self.at("Q", at + width)[0]
            if depth > 0:
                yield from self.chunks(child, rank, level + 1)
            else:
                yield begin, size, mask, child


def _text(data: memoryview) -> str:
    return bytes(data).partition(b"\0")[0].decode(errors="replace")


def _shape_of(space: memoryview) -> tuple[int, ...]:
    return struct.unpack_from(f"<{space[1]}Q", space, 8 if space[0] == 1 else 4)


def _element_type(kind: memoryview, tagged: bool) -> tuple[Any, str]:
    """(numpy type of the elements, name); bfloat16 as 16-bit integers."""
    type_class, size, order = kind[0] & 15, struct.unpack_from("<I", kind, 4)[0], ">" if kind[1] & 1 else "<"
    if type_class == 0 and size in (1, 2, 4, 8) and not (tagged and size == 2):
        return np.dtype(f"{order}{'i' if kind[1] & 8 else 'u'}{size}"), "int64"
    if type_class == 0 or (type_class == 1 and (size, kind[13]) == (2, 8)):
        return np.dtype(order + "u2"), "bfloat16"
    if type_class == 1 and (size, kind[13]) in ((8, 11), (4, 8), (2, 5)):
        return np.dtype(f"{order}f{size}"), f"float{8 * size}"
    raise Foreign(f"elements of class {type_class} and {size} bytes")


def _filters_of(message: memoryview) -> list[int]:
    found, at = [], 8
    if message[0] != 1:
        raise Foreign("new filters")
    for _ in range(message[1]):
        number, name, _, values = struct.unpack_from("<4H", message, at)
        at += 8 + -(-name // 8) * 8 + 4 * (values + values % 2)
        found.append(number)
    return found


def _unfiltered(step: int, raw: bytes, itemsize: int) -> bytes:
    if step == 1:
        return zlib.decompress(raw)
    if step == 2:
        return np.frombuffer(raw, np.uint8).reshape(itemsize, -1).T.tobytes()
    if step == 3:
        return raw[:-4]
    raise Foreign(f"filter {step}")
