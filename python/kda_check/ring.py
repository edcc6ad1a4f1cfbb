"""`verify_fpsan`: a Triton kernel in the ring of FpSan, where what is equal in algebra is equal in every bit.

Triton's sanitizer of floats (instrumentation_mode "fpsan", docs/programming-guide/chapter-3/fpsan.rst) takes a float of w bits
for an integer modulo 2^w. It adds, subtracts and multiplies those, exp is a power of an odd number. With homomorphic casts a
narrower type keeps the low bits; a wider one extends the sign. All of that goes with what is left modulo 2^16. So a kernel that
rounds to 16 bits on its way has the low 16 bits of the recurrence; one that does not has all 32. The numbers are those of the
code that Triton 3.9 compiles; 3.8 has others, and casts that keep no bits.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _program
from ._kinds import flag
from ._options import of_problem
from ._tensors import Stored, stored
from .fixture import LOSS, STATES, Fixture
from .signatures import FLA, Signature, Unsupported
from .verifying import Caller, _with_loss, regime

Payload = np.ndarray[Any, np.dtype[np.uint32]]
ONE = {"float32": 0x3F800000, "float16": 0x3C00, "bfloat16": 0x3F80}
MIXER, BASE, LOG2_E = 14940041, 257, 0x26A29A75  # exp2(x) is BASE^x; log2 e is what its fp32 number embeds to
# In the ring a gate, a norm or a sigmoid is a number without meaning: problems are taken as if they had none.
PREPARED = ("gate", "lower_bound", "qk_l2norm", "beta_sigmoid", "allow_neg_eigval", "safe_gate")


def _inverse(odd: int) -> int:
    return pow(odd, -1, 1 << 64)


def embed(x: Stored) -> Payload:
    """What FpSan has for these floats, its sign extended to 32 bits.

    >>> embed(Stored(np.float32([0, 1, -1]), "float32")).tolist()
    [0, 1, 4294967295]
    """
    width, one = x.data.itemsize * 8, ONE[x.dtype]
    sign, shift = 1 << (width - 1), (one & -one).bit_length() - 1
    mixed = (one * MIXER) & (sign - 1)
    factor = _inverse(mixed ^ (mixed >> shift)) & (2 * sign - 1)
    bits = np.ascontiguousarray(x.data).view(f"u{x.data.itemsize}").astype(np.uint64)
    signs = bits & np.uint64(sign)
    y = ((bits ^ signs) * np.uint64(MIXER)) & np.uint64(sign - 1)
    y ^= y >> np.uint64(shift)
    factors = np.where(signs != 0, np.uint64(factor * (sign - 1) & (2 * sign - 1)), np.uint64(factor))
    payload = ((y * factors) & np.uint64(sign - 1)) ^ signs
    return np.where(signs != 0, payload | np.uint64((1 << 32) - 2 * sign), payload).astype(np.uint32)


def exp(x: Payload) -> Payload:
    """exp(x + y) = exp(x) exp(y), exp(0) = 1."""
    exponent, y = x * np.uint32(LOG2_E), np.ones_like(x)
    for bit in range(31, -1, -1):
        y *= y
        y = np.where(exponent >> np.uint32(bit) & np.uint32(1), y * np.uint32(BASE), y)
    return y


def _summed(x: Payload, axis: int) -> Payload:
    return np.sum(x, axis, dtype=np.uint32)  # type: ignore[no-any-return,unused-ignore]


def answers(problem: Fixture) -> dict[str, Payload]:
    """o and final_state of the recurrence in the ring; where the problem has a loss, gradients too. Of problems without gates, a
    norm or a sigmoid, with one beta for a head or one for each column."""
    inputs, options = problem.inputs, problem.options
    if "erase" in inputs or "state_pool" in inputs or inputs["v"].dtype not in ONE:
        raise Unsupported("in the ring there are no erase gates, pools of states and fp64")
    x = {key: embed(tensor) for key, tensor in inputs.items() if tensor.dtype in ONE}
    if options.get("state_v_first"):
        x.update({key: x[key].swapaxes(-1, -2) for key in STATES & x.keys()})
    extents = problem.extents()
    group, is_scalar = extents["J"] // extents["H"], x["g"].ndim == 3
    q, k = (np.repeat(x[key], group, 2) for key in "qk")
    v, decay = x["v"], exp(x["g"])
    back, beta = exp(-x["g"]), x["beta"] if x["beta"].ndim == 4 else x["beta"][..., None]
    if is_scalar:
        decay, back = decay[..., None], back[..., None]
    scale = embed(Stored(np.array([options.get("scale", 1 / math.sqrt(extents["K"]))], np.float32), "float32"))
    zero = np.zeros((extents["J"], extents["K"], extents["V"]), np.uint32)
    has_loss = bool(LOSS.values() & x.keys())
    found = {"o": np.zeros_like(v)}
    if has_loss:
        found |= {"dq": np.zeros_like(q), "dk": np.zeros_like(q), "dv": np.zeros_like(v),
                  "dg": np.zeros((*v.shape[:3], extents["K"]), np.uint32), "dbeta": np.zeros_like(v)}  # fmt: skip
    states, starts = [], []
    for n, (row, first, last) in enumerate(_sequences(problem)):
        S = x["initial_state"][n].copy() if "initial_state" in x else zero.copy()
        errors = np.zeros_like(v[row, first:last])
        for t in range(first, last):
            S *= decay[row, t, :, :, None]
            errors[t - first] = e = v[row, t] - _summed(S * k[row, t, :, :, None], 1)
            S += k[row, t, :, :, None] * (beta[row, t] * e)[:, None, :]
            found["o"][row, t] = scale * _summed(S * q[row, t, :, :, None], 1)
        states.append(S.copy())
        D = x["dht"][n].copy() if "dht" in x else zero.copy()
        for t in range(last - 1, first - 1, -1) if has_loss else ():
            do = x["do"][row, t] if "do" in x else np.zeros_like(v[row, t])
            key, write = k[row, t, :, :, None], (beta[row, t] * errors[t - first])[:, None, :]
            found["dq"][row, t] = scale * _summed(S * do[:, None, :], 2)
            D += scale * q[row, t, :, :, None] * do[:, None, :]
            r = _summed(D * key, 1)
            found["dbeta"][row, t] = r * errors[t - first]
            found["dv"][row, t] = y = beta[row, t] * r
            S -= key * write  # the ring gives the decayed state back, to the bit
            found["dk"][row, t] = _summed(D * write - S * y[:, None, :], 2)
            D -= key * y[:, None, :]
            found["dg"][row, t] = _summed(D * S, 2)
            D *= decay[row, t, :, :, None]
            S *= back[row, t, :, :, None]
        starts.append(D)
    found["final_state"] = np.stack(states)
    if has_loss:
        shape = (*v.shape[:2], extents["H"], group, extents["K"])
        found |= {key: _summed(found[key].reshape(shape), 3) for key in ("dq", "dk")}
        found["dbeta"] = found["dbeta"] if x["beta"].ndim == 4 else _summed(found["dbeta"], 3)
        found["dg"] = _summed(found["dg"], 3) if is_scalar else found["dg"]
        if "initial_state" in x:
            found["dinitial_state"] = np.stack(starts)
    if options.get("state_v_first"):
        found.update({key: found[key].swapaxes(-1, -2) for key in STATES & found.keys()})
    return found


def _sequences(problem: Fixture) -> list[tuple[int, int, int]]:
    """Batch row, first token, the one behind the last."""
    if "cu_seqlens" in problem.inputs:
        ends = problem.inputs["cu_seqlens"].numpy().tolist()
        return [(0, first, last) for first, last in zip(ends, ends[1:])]
    B, T = problem.inputs["v"].shape[:2]
    return [(row, 0, T) for row in range(B)]


@dataclass
class InRing:
    """What `verify_fpsan` found. bits: by tensor, how many low bits of every element are those of the recurrence: 32, 16 or 0."""

    name: str
    bits: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.bits) and not self.reasons

    def take(self, key: str, got: Stored, want: Payload) -> None:
        if got.shape != want.shape:
            raise ValueError(f"{key}: shape {list(got.shape)}; wanted {list(want.shape)}")
        if got.dtype not in ONE:
            raise Unsupported(f"{key}: {got.dtype} in the ring; wanted {', '.join(ONE)}")
        differing = embed(got) ^ want
        is_narrow = bool(np.any(differing & np.uint32(0xFFFF)))
        self.bits[key] = 0 if is_narrow else 32 if got.dtype == "float32" and not np.any(differing) else 16
        if is_narrow:
            places = np.argwhere(differing & np.uint32(0xFFFF))
            differ = f"{len(places)} of {want.size} elements are another computation"
            self.reasons.append(f"{key}: {differ}, first {places[0].tolist()}")

    def __str__(self) -> str:
        lines = [f"{self.name}, FpSan: {'PASS' if self.passed else 'FAIL'}", *self.reasons]
        return "\n  ".join([*lines, *(f"{key}: the recurrence in {bits} bits" for key, bits in self.bits.items() if bits)])


@contextlib.contextmanager
def _sanitized(framework: str) -> Iterator[None]:
    """Triton compiles for FpSan, its casts homomorphic."""
    if framework != "torch":  # a stand-in that computes in the ring itself
        yield
        return
    try:
        from triton import knobs
        from triton._C.libtriton import passes

        compilation, _ = knobs.compilation, (passes.ttgpuir.add_fp_sanitizer, knobs.compilation.fpsan_homomorphic_casts)
    except (ImportError, AttributeError) as error:
        wanted = "FpSan with homomorphic casts, as 3.9 has it"
        raise _program.EnvironmentProblem(f"no Triton that has {wanted}, is installed: {error}") from error
    modes = {"instrumentation_mode": "fpsan", "fpsan_homomorphic_casts": True}
    before = {key: getattr(compilation, key) for key in modes}
    try:
        for key, value in modes.items():
            setattr(compilation, key, value)
        yield
    finally:
        for key, value in before.items():
            setattr(compilation, key, value)


def verify_fpsan(
    kernel: Callable[..., Any],
    problem: Fixture | str,
    *,
    signature: Signature | None = None,
    framework: str | None = None,
    device: Any = None,
    backward: bool = False,
    name: str = "",
) -> InRing:
    """Calls a Triton kernel under FpSan and compares every bit with the recurrence in the same ring: no noise, no limits.

    problem, signature, framework, device, backward, name: as of `verify`. Gates, norms and sigmoids of the problem are left out:
    its tensors are read as log decays, keys and betas. What is computed between kernels, by PyTorch, is not in the ring: a sum of
    dq over value heads, for one. Raises EnvironmentProblem where no Triton with FpSan is installed, Unsupported for erase gates,
    pools and fp64.

    >>> verify_fpsan(lambda q, k, v, g, beta, scale: v * 0, "control:T=8", framework="numpy").passed
    False
    """
    if isinstance(problem, str):
        problem = regime(problem)
    plain = {key: x for key, x in problem.inputs.items() if key not in ("A_log", "dt_bias")}
    inputs = _with_loss(plain, flag(backward, "backward"))
    options = of_problem({key: x for key, x in problem.options.items() if key not in PREPARED}, False)
    frame = framework or ("torch" if "torch" in sys.modules else "numpy")
    caller = Caller(kernel, signature or FLA, frame, device, None)
    asked, _ = caller.suited(Fixture(inputs, options, {}, problem.name))
    want = answers(asked)
    with _sanitized(frame):
        answer: Mapping[str, Any] = caller(asked)[0]
    found = InRing(name or str(getattr(kernel, "__name__", "kernel")))
    for key, payload in want.items():
        if answer.get(key) is not None:
            found.take(key, stored(answer[key], key), payload)
    return found
