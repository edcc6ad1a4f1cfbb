"""Tensors of any framework as bytes of this machine's memory, their element type kept."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

ELEMENT_TYPES = ("float64", "float32", "float16", "bfloat16")
CODES = ("int8", "int16", "float8_e4m3")  # of a quantised pool alone
VOIDS = {np.dtype("V2"): "bfloat16", np.dtype("V1"): "float8_e4m3"}  # as numpy.savez stores them
AS_BITS = {"bfloat16": np.uint16, "float8_e4m3": np.uint8}


@dataclass
class Stored:
    """Elements in memory, contiguous: `data` has the shape; bfloat16 and float8_e4m3 are there as their bits."""

    data: np.ndarray[Any, Any]
    dtype: str  # float64, float32, float16, bfloat16; int64; int8, int16, float8_e4m3

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def owned(self) -> Stored:
        """With elements that nobody else writes to."""
        return self if self.data.flags.owndata else Stored(self.data.copy(), self.dtype)

    def numpy(self) -> np.ndarray[Any, Any]:
        """As numpy has it; bfloat16 as that of ml_dtypes where it is installed, else as float32 (no bit is lost); float8_e4m3
        as that of ml_dtypes, else as its bits."""
        if self.dtype not in AS_BITS:
            return self.data
        try:
            import ml_dtypes
        except ImportError:
            is_bfloat16 = self.dtype == "bfloat16"
            return (self.data.astype(np.uint32) << np.uint32(16)).view(np.float32) if is_bfloat16 else self.data
        return self.data.view(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else ml_dtypes.float8_e4m3fn)

    def torch(self, device: Any = "cpu") -> Any:
        """A copy as a torch tensor on `device`."""
        import torch

        tensor = torch.from_numpy(self.data.view(np.int16).copy() if self.dtype == "bfloat16" else self.data.copy())
        of_bits = {"bfloat16": torch.bfloat16, "float8_e4m3": torch.float8_e4m3fn}.get(self.dtype)
        return (tensor if of_bits is None else tensor.view(of_bits)).to(device)

    def jax(self, device: Any = None) -> Any:
        """A copy as a JAX array. Raises ValueError for float64 without jax_enable_x64."""
        import jax

        if self.dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined,unused-ignore]
            raise ValueError("float64 in JAX needs jax.config.update('jax_enable_x64', True)")
        return jax.device_put(self.numpy().copy(), device)


def stored(tensor: Any, name: str) -> Stored:
    """`tensor` of torch, JAX, numpy or anything with DLPack, on any device, strided or not, with or without gradient.

    Nothing is converted; what lies contiguous in this machine's memory is not copied. Raises TypeError, beginning with
    `name`, for what is no tensor, has another element type, or no elements (traced by jax.jit, on the device meta).
    A state_pool may hold codes, too.

    >>> stored(np.zeros((2, 3), np.float32), "q").shape
    (2, 3)
    """
    if isinstance(tensor, Stored):
        return tensor
    if not hasattr(tensor, "dtype"):
        raise TypeError(f"{name}: wanted a tensor with an element type, got {type(tensor).__name__}")
    if isinstance(tensor, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array, and masked elements have no place; wanted all of them: .filled(0)")
    try:
        array, dtype = _array_of(tensor)
    except Exception as error:  # each framework has its own
        raise TypeError(f"{name}: its elements cannot be had: {str(error).partition(chr(10))[0]}") from error
    known = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3"}  # array may be their bits
    dtype = known.get(dtype) or VOIDS.get(array.dtype, array.dtype.name)
    taken = ELEMENT_TYPES + (CODES if name.endswith("state_pool") else ())
    if dtype not in taken:
        raise TypeError(f"{name}: element type {dtype}; wanted {', '.join(taken)}")
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return Stored(native.view(AS_BITS.get(dtype, native.dtype)).reshape(array.shape), dtype)


def _array_of(tensor: Any) -> tuple[np.ndarray[Any, Any], str]:
    """(elements here, name of their type); of torch's bfloat16 the bits."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    is_ours = isinstance(tensor, np.ndarray) or (jax is not None and isinstance(tensor, jax.Array))
    if not is_ours and torch is not None:
        if hasattr(tensor, "__dlpack__") and not isinstance(tensor, torch.Tensor):
            tensor = torch.from_dlpack(tensor)
        if isinstance(tensor, torch.Tensor):
            if hasattr(tensor, "full_tensor"):
                raise TypeError("a distributed tensor; wanted tensor.full_tensor()")
            tensor = tensor.detach().contiguous()
            bits = {"torch.bfloat16": torch.int16, "torch.float8_e4m3fn": torch.uint8}.get(str(tensor.dtype))
            return (tensor if bits is None else tensor.view(bits)).numpy(force=True), str(tensor.dtype)[6:]
    if not is_ours and hasattr(tensor, "__dlpack__"):
        tensor = jax.dlpack.from_dlpack(tensor) if jax is not None else np.from_dlpack(tensor)
    array = np.asarray(tensor)
    return array, array.dtype.name


def offsets(values: Any, name: str = "cu_seqlens", axes: int = 1) -> Stored:
    """Whole numbers of any framework, or a list of them, of `axes` axes at most, as int64. Raises TypeError for others."""

    def taken(items: Any) -> list[Any]:
        return [taken(item) if isinstance(item, (list, tuple)) else operator.index(item) for item in items]

    items = values.data if isinstance(values, Stored) else values
    try:
        listed = np.asarray(taken(items.tolist() if hasattr(items, "tolist") else items), np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: wanted whole numbers of 64 bits") from error
    if listed.ndim > axes:
        raise TypeError(f"{name}: wanted whole numbers of {axes} axes at most")
    return Stored(listed, "int64")
