"""Problems for Hypothesis (`pip install hypothesis`), which shrink to the smallest that fails.

    from hypothesis import given, settings

    @settings(deadline=None)
    @given(problem=kda_check.strategies.problems(dtype="bf16"))
    def test_my_kernel(problem):
        report = kda_check.verify(my_kernel, problem, compute="bf16")
        assert report.passed, report

A failing example is printed as the call that makes it, such as `kda_check.regime('corr_keys', T=3, H=1, ...)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

try:
    from hypothesis import reject
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("kda_check.strategies needs hypothesis: pip install hypothesis") from error

from ._program import InputError, UsageError
from .fixture import Fixture
from .verifying import regime

# What gates and keys are like, the simplest first: regimes with what of their parameters is drawn (`kda-check list regimes`).
REGIMES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "control": {},
    "gate_zero": {"rho": (0.5, 0.9)},
    "slow_alpha": {"g": (-1e-3, -8e-5)},
    "lb_const_sweep": {"g": (-1, -3, -5)},
    "mixed_channels": {},
    "sparse_spikes": {"p": (0.3, 0.05)},
    "spike_then_slow": {"s": (-100, -10)},
    "mask_m1000": {"p": (0.1, 0.02)},
    "layout_asym": {},
    "residual_cancel": {},
    "corr_keys": {"rho": (0.5, 0.9, 0.99)},
    "identical_keys": {},
    "neg_eigval": {"rho": (0.5, 0.9)},
    "zero_keys": {},
    "column_scales": {"octaves": (4, 8)},
    "v_outlier": {},
    "lb_real": {"raw": (0, 1)},
    "unbounded_softplus": {"raw": (0, 1)},
    "softplus_knee": {},
    "k3_layer1": {},
    "bwd_chain": {},
}
PACKED = 4  # sequences at most
POOL = {"sequences": (1, 3, 8), "drafts": (0, 2, 4), "padding": (0, 1, 2, 3), "new": (0, 1), "apart": (0, 1), "zeros": (0, 1)}


def _drawn(values: Sequence[Any]) -> Any:
    return st.sampled_from(list(values)) if len(values) > 1 else st.just(values[0])


def _made(name: str, words: Mapping[str, Any], lengths: Sequence[int] | None = None) -> Fixture:
    try:
        return regime(name, lengths=lengths, **words)
    except (InputError, UsageError, ValueError):  # not with these extents
        reject()


@st.composite
def problems(
    draw: Any,
    dtype: str | Sequence[str] = "fp32",
    *,
    regimes: Sequence[str] = tuple(REGIMES),
    tokens: int = 150,
    heads: int = 3,
    widths: Sequence[int] = (16, 32, 64),
    value_widths: Sequence[int] = (),
    packed: bool | None = None,
) -> Fixture:
    """Problems that `verify`, `check` and kernels take, as `kda_check.regime` makes them.

    dtype: of the tensors, or several ("bf16", "fp16", "fp32", "fp64"). regimes: what gates and keys are like. tokens: T, at
    most. heads: at most. widths: those K may have; value_widths: those of V, which without is K. packed: sequences in
    cu_seqlens, two to four of any length, 0 too; None: sometimes, False: never.
    """
    words: dict[str, Any] = {"H": draw(st.integers(1, heads)), "K": draw(_drawn(widths))}
    words["V"] = draw(_drawn(value_widths)) if value_widths else words["K"]
    name = draw(_drawn(regimes))
    words |= {key: draw(_drawn(values)) for key, values in REGIMES.get(name, {}).items()}
    words["dtype"] = draw(_drawn([dtype] if isinstance(dtype, str) else dtype))
    words["seed"] = draw(st.integers(1, 99))
    length = draw(st.integers(1, tokens))
    ends = st.lists(st.integers(0, length), min_size=int(packed or 0), max_size=PACKED - 1)
    cuts = [] if packed is False else sorted(draw(ends))
    if cuts:
        return _made(name, words, [end - begin for begin, end in zip([0, *cuts], [*cuts, length])])
    return _made(name, {**words, "T": length})


@st.composite
def pool_calls(
    draw: Any, dtype: str | Sequence[str] = "bf16", *, tokens: int = 40, heads: int = 2, widths: Sequence[int] = (16, 64)
) -> Fixture:
    """Calls of a decode kernel on a pool of states (docs/serving.md): sequences, drafts, padding, new requests, tables and
    pools apart. dtype, tokens, heads, widths: as of `problems`."""
    words = {"T": draw(st.integers(1, tokens)), "H": draw(st.integers(1, heads)), "K": draw(_drawn(widths))}
    words |= {"V": words["K"], "dtype": draw(_drawn([dtype] if isinstance(dtype, str) else dtype))}
    words["seed"] = draw(st.integers(1, 99))
    return _made("serve", words | {key: draw(_drawn(values)) for key, values in POOL.items()})
