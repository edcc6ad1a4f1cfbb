"""Who answered a call: the backend that a library handed it to, versions, and keywords that nobody reads."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from .signatures import takes_any

# Packages whose versions decide what a kernel computes: the module, and what it is installed as.
PACKAGES = {"torch": "torch", "triton": "triton", "jax": "jax", "fla": "fla-core", "flash_kda": "flash_kda",
            "tilelang": "tilelang", "flashinfer": "flashinfer-python", "vllm": "vllm", "sglang": "sglang"}  # fmt: skip


def versions() -> dict[str, str]:
    """Of those packages, as far as they are imported."""
    found = {name: _version(name) for module, name in PACKAGES.items() if module in sys.modules}
    return {name: version for name, version in found.items() if version}


@functools.cache
def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@contextlib.contextmanager
def watching() -> Iterator[list[str]]:
    """The backends that FLA hands steps of the call to, as "flash_kda (chunk_kda)", for as long as it lasts. None: its own
    Triton kernels."""
    found: list[str] = []
    backends = sys.modules.get("fla.backends")
    base = getattr(backends, "BaseBackend", None)
    if base is None or "get_implementation" not in vars(base):
        yield found
        return
    own = base.get_implementation

    def get_implementation(backend: Any, name: str) -> Any:
        implementation = own(backend, name)
        said = f"{backend.backend_type} ({name})"
        if implementation is not None and said not in found:
            found.append(said)
        return implementation

    base.get_implementation = get_implementation
    try:
        yield found
    finally:
        base.get_implementation = own


def swallowed(kernel: Callable[..., Any], words: Mapping[str, Any]) -> list[str]:
    """Keywords of a call that the kernel does not name: they end in its **words, where nobody may read them."""
    taken = inspect.signature(kernel).parameters
    named = {name for name, parameter in taken.items() if parameter.kind is not parameter.VAR_KEYWORD}
    return sorted(set(words) - named) if takes_any(taken) else []
