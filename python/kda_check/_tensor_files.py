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
from typing import Any, Callable

import numpy as np

from ._program import EnvironmentProblem, InputError, KdaCheckError

# A tensor, once it is asked for: a file may hold many more than a problem has.
Loader = Callable[[], Any]

SAFETENSORS_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "I64": "<i8", "I32": "<i4",
                     "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}  # fmt: skip
LARGEST_HEADER = 100 << 20  # as the format has it


def bad_file(what: str, path: str, hint: str = "") -> InputError:
    """In the words of the program: what was found and wanted, the file, a hint."""
    return InputError(_line(what, path, hint))


def _line(what: str, path: str, hint: str) -> str:
    return f"{what} ({path})" + (f"; hint: {hint}" if hint else "")


def tensors_of(path: str) -> dict[str, Loader]:
    """The tensors of a file by their names, none of them read yet; that of a file of one tensor has the name "".

    What is kept in dictionaries of a .pt file is called outer/inner. Raises InputError.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(512)
    except OSError as failure:
        raise bad_file(f"cannot open the file: {failure.strerror}", path) from None
    kind = kind_of(first)
    if kind is None:
        raise bad_file("no file of tensors that is known here; wanted .safetensors, .npz, .npy or .pt", path)
    try:
        return kind(path)
    except KdaCheckError:
        raise
    except Exception as failure:  # damaged files raise whatever their reader happened to stumble over
        raise unreadable(path, failure) from None


def kind_of(first: bytes) -> Callable[[str], dict[str, Loader]] | None:
    """How to read a file that begins so. What a file is called says nothing."""
    if first.startswith(b"\x93NUMPY"):
        return of_npy
    if first.startswith(b"PK\x03\x04"):
        return of_zip
    if first.startswith(b"\x80"):
        return of_torch
    if first[8:9] == b"{":
        return of_safetensors
    return None


def unreadable(path: str, failure: Exception) -> InputError:
    words = " ".join(str(failure).split()) or type(failure).__name__
    return bad_file(f"damaged, or cut off: {words[:200]}", path)


def guarded(path: str, name: str, load: Loader) -> Loader:
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


def of_npy(path: str) -> dict[str, Loader]:
    return {"": guarded(path, "", lambda: np.load(path, allow_pickle=False))}


def of_npz(path: str) -> dict[str, Loader]:
    archive = np.load(path, allow_pickle=False)
    return {name: guarded(path, name, functools.partial(archive.__getitem__, name)) for name in archive.files}


def of_zip(path: str) -> dict[str, Loader]:
    with zipfile.ZipFile(path) as archive:
        pickled = any(name.endswith("data.pkl") for name in archive.namelist())
    return of_torch(path) if pickled else of_npz(path)


def of_torch(path: str) -> dict[str, Loader]:
    try:
        import torch
    except ImportError:
        line = _line("a PyTorch file, and no PyTorch here", path, "pip install torch, or write it as .safetensors or .npz")
        raise EnvironmentProblem(line) from None
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise bad_file("holds objects that are no tensors, which torch.load(weights_only=True) refuses", path,
                        "torch.save({'q': q, 'k': k, ...}, path)") from None
    found: dict[str, Loader] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{name}/{key}" if name else str(key), inner)
        elif isinstance(value, (list, tuple)) and not all(isinstance(item, (int, float)) for item in value):
            for position, inner in enumerate(value):
                collect(f"{name}/{position}" if name else str(position), inner)
        elif value is not None:
            found[name] = lambda: value

    collect("", content)
    return found


def of_safetensors(path: str) -> dict[str, Loader]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        if length > min(size - 8, LARGEST_HEADER):
            raise bad_file(f"damaged, or cut off: a header of {length} bytes in a file of {size}", path)
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    content = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.empty(0, np.uint8)

    def load(name: str, entry: Any) -> Any:
        (begin, end), shape = entry["data_offsets"], tuple(entry["shape"])
        if entry["dtype"] not in SAFETENSORS_TYPES:
            raise bad_file(f"{name} has the element type {entry['dtype']}; wanted F64, F32, F16 or BF16", path)
        kind = np.dtype(SAFETENSORS_TYPES[entry["dtype"]])
        if not all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape)):
            raise bad_file(f"{name} has the shape {list(shape)} at {begin}..{end}", path)
        size_wanted = math.prod(shape) * kind.itemsize
        if end - begin != size_wanted:
            raise bad_file(f"{name} has {end - begin} bytes; {entry['dtype']} {list(shape)} wants {size_wanted}", path)
        if end > content.size:
            raise bad_file(f"cut off: {name} ends at byte {8 + length + end} of {size}", path)
        return np.ndarray(shape, kind, content, begin) if size_wanted else np.empty(shape, kind)

    return {name: guarded(path, name, functools.partial(load, name, entry)) for name, entry in header.items()}
