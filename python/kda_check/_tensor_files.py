"""Tensors of files that are no fixtures: .safetensors, .npz, .npy, .pt, and folders of them. Nothing in them is run.

bfloat16 stays as it is: two bytes an element, numpy's type V2, as numpy.savez writes it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any, Callable

import numpy as np

from ._files import opened
from ._names import about
from ._program import EnvironmentProblem, InputError, KdaCheckError
from ._tensors import VOIDS

SAFETENSORS_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "F8_E4M3": "V1", "I64": "<i8", "I32": "<i4",
                     "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}  # fmt: skip
LARGEST_HEADER = 100 << 20  # as the format has it


@dataclass
class Entry:
    """A tensor of a file: its element type and its shape. Its elements are not read before they are asked for: a file may
    hold many more than a problem has. What is no tensor has no shape."""

    kind: str
    shape: tuple[int, ...] | None
    load: Callable[[], Any]


def bad_file(what: str, path: str, hint: str = "") -> InputError:
    return InputError(about(what, path, hint))


def tensors_of(path: str) -> dict[str, Entry]:
    """The tensors of a file by their names, none of them read yet; that of a file of one tensor has the name "".

    What is kept in dictionaries of a .pt file is called outer/inner. Raises InputError.
    """
    with opened(path, "a file of tensors") as file:
        first = file.read(512)
    kind = kind_of(first)
    if kind is None:
        raise bad_file("no file of tensors that is known here; wanted .safetensors, .npz, .npy or .pt", path)
    try:
        return kind(path)
    except KdaCheckError:
        raise
    except Exception as failure:  # damaged files raise whatever their reader happened to stumble over
        raise unreadable(path, failure) from None


def kind_of(first: bytes) -> Callable[[str], dict[str, Entry]] | None:
    """How to read a file that begins so. What a file is called says nothing."""
    if first.startswith(b"\x93NUMPY"):
        return of_npy
    if first.startswith(b"PK\x03\x04"):
        return of_zip
    if first[4:9] == b"\0\0\0\0{":  # behind the size of its header, which may begin with any byte
        return of_safetensors
    if first.startswith(b"\x80"):
        return of_torch
    return None


def unreadable(path: str, failure: Exception) -> InputError:
    words = " ".join(str(failure).split()) or type(failure).__name__
    return bad_file(f"damaged, or cut off: {words[:200]}", path)


def guarded(path: str, name: str, load: Callable[[], Any]) -> Callable[[], Any]:
    def guard() -> Any:
        try:
            return load()
        except KdaCheckError:
            raise
        except Exception as failure:
            if "allow_pickle" in str(failure):
                raise bad_file(f"{name or 'the array'} holds Python objects; wanted numbers", path) from None
            raise unreadable(path, failure) from None

    return guard


def unique(path: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """By name. Raises InputError where two have one: another reader would take the other."""
    found: dict[str, Any] = {}
    for name, x in pairs:
        if name in found:
            raise bad_file(f"'{name}' is there twice", path)
        found[name] = x
    return found


def of_npy(path: str) -> dict[str, Entry]:
    with open(path, "rb") as file:
        return {"": of_array(path, "", file, lambda: np.load(path, allow_pickle=False))}


def of_npz(path: str) -> dict[str, Entry]:
    def load(member: str) -> Any:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    found = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            with archive.open(member) as file:
                found.append((name, of_array(path, name, file, functools.partial(load, member))))
    return unique(path, found)


def of_array(path: str, name: str, file: IO[bytes], load: Callable[[], Any]) -> Entry:
    """Reads the head alone."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
        return Entry(named(kind), shape, guarded(path, name, load))
    except Exception:  # `load` says which
        return Entry("damaged", None, guarded(path, name, load))


def named(kind: Any) -> str:
    """The name of an element type of numpy or torch."""
    void = VOIDS.get(kind) if isinstance(kind, np.dtype) else None
    return void or str(kind).replace("torch.", "")


def of_zip(path: str) -> dict[str, Entry]:
    with zipfile.ZipFile(path) as archive:
        pickled = any(name.endswith("data.pkl") for name in archive.namelist())
    return of_torch(path) if pickled else of_npz(path)


def of_torch(path: str) -> dict[str, Entry]:
    try:
        import torch
    except ImportError:
        hint = "pip install torch, or write it as .safetensors or .npz"
        raise EnvironmentProblem(about("a PyTorch file, and no PyTorch here", path, hint)) from None
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise bad_file("holds objects that are no tensors, which torch.load(weights_only=True) refuses", path,
                        "torch.save({'q': q, 'k': k, ...}, path)") from None
    found: list[tuple[str, Entry]] = []

    def collect(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{name}/{key}" if name else str(key), inner)
        elif isinstance(value, (list, tuple)) and not all(isinstance(item, (int, float)) for item in value):
            for position, inner in enumerate(value):
                collect(f"{name}/{position}" if name else str(position), inner)
        elif hasattr(value, "shape"):
            found.append((name, Entry(named(value.dtype), tuple(value.shape), lambda: value)))
        elif value is not None:
            found.append((name, Entry(repr(value), None, lambda: value)))

    collect("", content)
    return unique(path, found)


def of_safetensors(path: str) -> dict[str, Entry]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        if length > min(size - 8, LARGEST_HEADER):
            raise bad_file(f"damaged, or cut off: a header of {length} bytes in a file of {size}", path)
        header = json.loads(file.read(length), object_pairs_hook=lambda pairs: unique(path, pairs))
    header.pop("__metadata__", None)
    content = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.empty(0, np.uint8)
    taken: list[tuple[int, int, str]] = []

    def entry(name: str, fields: Any) -> Entry:
        (begin, end), shape, kind = fields["data_offsets"], tuple(fields["shape"]), str(fields["dtype"])
        if not all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape)):
            raise bad_file(f"{name} has the shape {list(shape)} at {begin}..{end}", path)
        if end > content.size:
            raise bad_file(f"cut off: {name} ends at byte {8 + length + end} of {size}", path)
        if begin < end:
            taken.append((begin, end, name))

        def load() -> Any:
            if kind not in SAFETENSORS_TYPES:
                raise bad_file(f"{name} has the element type {kind}; wanted F64, F32, F16 or BF16", path)
            dtype = np.dtype(SAFETENSORS_TYPES[kind])
            wanted = math.prod(shape) * dtype.itemsize
            if end - begin != wanted:
                raise bad_file(f"{name} has {end - begin} bytes; {kind} {list(shape)} wants {wanted}", path)
            return np.ndarray(shape, dtype, content, begin) if wanted else np.empty(shape, dtype)

        known = named(np.dtype(SAFETENSORS_TYPES[kind])) if kind in SAFETENSORS_TYPES else kind
        return Entry(known, shape, guarded(path, name, load))

    entries = {name: entry(name, fields) for name, fields in header.items()}
    taken.sort()
    for (_, end, one), (begin, _, other) in zip(taken, taken[1:]):
        if begin < end:
            raise bad_file(f"{one} and {other} have the same bytes, {begin}..{end}; wanted bytes of their own for each", path)
    return entries
