"""A kernel in JAX or numpy, called, its problem and answer saved.

>>> import numpy, os, tempfile
>>> x = numpy.ones((1, 4, 1, 2), numpy.float32)
>>> def my_kernel(q, k, v, g, beta):
...     return 0 * v
>>> folder = tempfile.TemporaryDirectory()
>>> o = record(os.path.join(folder.name, "mine.h5"), my_kernel, q=x, k=x, v=x, g=-x, beta=x[..., 0], compute="fp32")
"""

from __future__ import annotations

import os
from typing import Any, Callable

from ..fixture import save
from ..signatures import TENSORS


def record(
    path: str | os.PathLike[str],
    kernel: Callable[..., Any],
    *,
    who: str | None = None,
    compute: str | None = None,
    **words: Any,
) -> Any:
    """Calls kernel(q=..., k=..., ...), which gives o or (o, final_state), saves both, and returns what it gave.

    who: the name of the answer, that of the function without. compute: the precision of the operands of its products.
    words: the inputs, for the kernel and the file; other words of `Fixture.of` (scale, gate, flags) for the file alone.
    Raises what `save` raises.
    """
    inputs = {word: words.pop(word) for word in TENSORS if words.get(word) is not None}
    answer = kernel(**inputs)
    o, state = answer if isinstance(answer, (tuple, list)) else (answer, None)
    recorded = {"o": o, "final_state": state, "compute": compute, "device": _device_of(o)}
    save(path, **inputs, expected={who or getattr(kernel, "__name__", "kernel"): recorded}, **words)
    return answer


def _device_of(array: Any) -> str | None:
    """The kind of device a JAX array is on; None for others."""
    devices = getattr(array, "devices", None)
    return str(next(iter(devices())).device_kind) if callable(devices) else None
