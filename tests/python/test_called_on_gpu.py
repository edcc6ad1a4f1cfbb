"""Invariants of calls on a GPU: a small kernel of torch, wrong ones that break one of them each, and FLA's where it is installed.

    PYTHONPATH=python pytest -s tests/python/test_called_on_gpu.py      prints what each law tried; needs no kda-check program
"""

import importlib.util

import numpy as np
import pytest
from kda_check import Fixture, _call_laws, _calls, signatures
from kda_check._tensors import stored
from kda_check.verifying import Caller

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
DEVICE = "cuda"


def rows(kernel, problem, laws, signature=signatures.FLA_RECURRENT):
    """What came of these laws. Bits that are others may differ from a plain call by roundings: other sums."""
    caller = Caller(kernel, signature, "torch", DEVICE, None)
    plain = {key: stored(x, key).numpy().astype(float) for key, x in caller(problem)[0].items() if not isinstance(x, str)}

    def judged(answer):
        far = [key for key, x in plain.items()
               if not np.allclose(stored(answer[key], key).numpy().astype(float), x, 0.02, 0.02 * np.abs(x).max())]
        return ("fail" if far else "pass"), f"{', '.join(far)}: far from a plain call"

    name = getattr(kernel, "__name__", "kernel")
    found = _calls.tried(caller, problem, [law for law in _call_laws.INVARIANTS if law.name in laws], judged)
    print(f"\ncalls of {name}", *(f"  {row}" for row in found), sep="\n")
    return found


def drawn(T=12, B=2, H=2, HV=None, K=16, V=16, dtype=torch.float32, lengths=None, **more):
    draw = torch.Generator().manual_seed(1)
    HV = HV or H
    unit = [torch.nn.functional.normalize(torch.randn(B, T, H, K, generator=draw), dim=-1).to(dtype) for _ in range(2)]
    N = len(lengths) if lengths else B
    words = {"q": unit[0], "k": unit[1], "v": torch.randn(B, T, HV, V, generator=draw).to(dtype), "g": -torch.rand(B, T, HV, K, generator=draw),
             "beta": torch.rand(B, T, HV, generator=draw).to(dtype), "initial_state": torch.randn(N, HV, K, V, generator=draw)}
    if lengths:
        words["cu_seqlens"] = [sum(lengths[:n]) for n in range(N + 1)]
    return Fixture.of(**words, **more)


def pooled(slots=7, rows=(4, 1, 6), K=16):
    one = drawn(T=1, B=3, K=K)
    words = {key: x for key, x in one.inputs.items() if key != "initial_state"}
    pool = torch.randn(slots, 2, K, 16, generator=torch.Generator().manual_seed(2))
    return Fixture.of(**words, state_pool=pool, state_indices=list(rows))


# A right kernel, and what is wrong in others -------------------------------------------------------------------------


def steps(q, k, v, g, beta, scale, state):
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    state = state.clone()
    for t in range(q.shape[1]):
        state = state * g[:, t].float().exp()[..., None]
        error = (v[:, t].float() - (state * k[:, t].float()[..., None]).sum(-2)) * beta[:, t].float()[..., None]
        state = state + k[:, t].float()[..., None] * error[..., None, :]
        o[:, t] = (state * (q[:, t].float() * scale)[..., None]).sum(-2).to(o.dtype)
    return o, state


def right(q, k, v, g, beta, scale, initial_state, output_final_state=True):
    return steps(q, k, v, g, beta, scale, initial_state)


def decode(q, k, v, g, beta, scale, initial_state, ssm_state_indices):
    o, state = steps(q, k, v, g, beta, scale, initial_state[ssm_state_indices.long()])
    initial_state[ssm_state_indices.long()] = state
    return o, initial_state


LAST = {}


def with_slots_of_the_capture(q, k, v, g, beta, scale, initial_state, ssm_state_indices):
    """It keeps what it made of a table for as long as it gets the same tensor."""
    if LAST.get("table") is not ssm_state_indices:
        LAST.update(table=ssm_state_indices, slots=ssm_state_indices.clone())
    o, state = steps(q, k, v, g, beta, scale, initial_state[LAST["slots"]])
    initial_state[LAST["slots"]] = state
    return o, initial_state


def with_one_workspace(q, k, v, g, beta, scale, initial_state, output_final_state=True):
    """All calls carry their state through the same memory."""
    if "state" not in LAST or LAST["state"].shape != initial_state.shape:
        LAST["state"] = torch.zeros_like(initial_state, memory_format=torch.contiguous_format)
    own, parts = LAST["state"], []
    own.copy_(initial_state)
    for t in range(q.shape[1]):
        o, state = steps(*(x[:, t : t + 1] for x in (q, k, v, g, beta)), scale, own)
        own.copy_(state)
        parts.append(o)
    return torch.cat(parts, 1), own.clone()


def on_the_default_stream(q, k, v, g, beta, scale, initial_state, output_final_state=True):
    with torch.cuda.stream(torch.cuda.default_stream()):
        return steps(q, k, v, g, beta, scale, initial_state)


def with_scratch_that_nobody_cleared(q, k, v, g, beta, scale, initial_state, output_final_state=True):
    """In memory that is fresh from the driver there is no NaN."""
    o, state = steps(q, k, v, g, beta, scale, initial_state)
    scratch = torch.empty(1 << 23, device=q.device)
    return o + (0 * scratch[: o.numel()]).view(o.shape).to(o.dtype), state


def of_dense_keys(q, k, v, g, beta, scale, initial_state, output_final_state=True):
    return steps(q, k.as_strided(k.shape, _call_laws._dense(k.shape)), v, g, beta, scale, initial_state)


def with_narrow_offsets(q, k, v, g, beta, scale, initial_state, output_final_state=True):
    """It counts elements of v in 31 bits, along batch rows and tokens."""
    (B, T), (row, step) = v.shape[:2], v.stride()[:2]

    def read(rows, tokens, offset):
        return v.as_strided((rows, tokens, *v.shape[2:]), v.stride(), v.storage_offset() + offset % _call_laws.FAR)

    if (T - 1) * step >= _call_laws.FAR:
        v = torch.cat([read(B, 1, t * step) for t in range(T)], 1)
    elif (B - 1) * row >= _call_laws.FAR:
        v = torch.cat([v[:-1], read(1, T, (B - 1) * row)])
    return steps(q, k, v, g, beta, scale, initial_state)


ALL = [law.name for law in _call_laws.INVARIANTS]


@pytest.mark.parametrize("kernel, broken, problem", [
    (with_scratch_that_nobody_cleared, ["stale"], {}),  # the first: no call has left NaN
    (right, [], {}), (right, [], {"dtype": torch.bfloat16}), (decode, [], None), (with_slots_of_the_capture, ["graph"], None),
    (with_one_workspace, ["streams"], {}), (of_dense_keys, ["strides", "offsets"], {}), (with_narrow_offsets, ["offsets"], {}),
    (on_the_default_stream, ["graph", "streams"], {}),  # its graph is empty
], ids=lambda x: getattr(x, "__name__", None))
def test_a_law_sees_the_kernel_that_breaks_it_and_no_other(kernel, broken, problem):
    LAST.clear()
    torch.cuda.empty_cache()
    found = rows(kernel, pooled() if problem is None else drawn(**problem), ALL)
    assert [row.invariant for row in found if row.verdict == "fail"] == broken
    assert all(row.verdict != "skipped" and row.tried for row in found)


@pytest.mark.parametrize("kernel, verdict", [(right, "pass"), (with_narrow_offsets, "fail")])
def test_the_last_of_many_copies_begins_beyond_2_31_elements(kernel, verdict):
    (row,) = rows(kernel, drawn(T=1024, B=1, H=1, K=64, V=64, dtype=torch.bfloat16), ["offsets"])
    assert "the last of many copies" in row.tried and row.verdict == verdict


# FLA's ---------------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "batch": lambda: drawn(T=130, H=2, HV=4, K=64, V=64, dtype=torch.bfloat16),
    "packed": lambda: drawn(T=200, B=1, H=2, K=64, V=64, dtype=torch.bfloat16, lengths=(70, 1, 129)),
    "long": lambda: drawn(T=2048, B=1, H=4, K=128, V=128, dtype=torch.bfloat16),  # of which few enough are 2^31 elements
}


@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="FLA is not installed")
@pytest.mark.parametrize("law", ALL)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", ["fused_recurrent_kda", "chunk_kda"])
def test_a_kernel_of_fla(name, problem, law):
    import fla.ops.kda

    signature = signatures.KNOWN["fla.ops.kda"][name]
    (row,) = rows(getattr(fla.ops.kda, name), PROBLEMS[problem](), [law], signature)
    if row.verdict == "skipped":
        pytest.skip("; ".join([row.reason, *row.refused, *row.left]))
    # It counts chunks on the host and keeps the table as long as it gets the same tensor: a graph has that of its capture.
    is_kept = (name, problem, law) == ("chunk_kda", "packed", "graph")
    assert row.verdict == ("fail" if is_kept else "pass") and ("other lengths" in row.reason) == is_kept, row


# The last: a capture that fails may leave something behind ------------------------------------------------------------


def test_a_kernel_that_waits_for_the_gpu_cannot_be_captured():
    def waiting(q, k, v, g, beta, scale, initial_state, output_final_state=True):
        return steps(q, k, v, g, beta, scale * float(beta.max().item() >= 0), initial_state)

    (row,) = rows(waiting, drawn(), ["graph"])
    assert row.verdict == "skipped" and "cannot be captured" in row.left[0]
