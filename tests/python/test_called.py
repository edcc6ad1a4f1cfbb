"""Invariants of calls, as far as they need no GPU: kernels of numpy. Those of torch on a GPU: test_called_on_gpu.py."""


import inspect
import json

import kda_check
import numpy as np
import pytest
from conftest import recurrence
from kda_check import _call_laws, signatures
from test_pools import decode

PROBLEM = "control:T=20,H=2,K=8,V=8"
LAWS = ["strides", "offsets", "stale"]


def right(q, k, v, g, beta, scale):
    return recurrence(q, k, v, g, beta, scale)


def of_dense_keys(q, k, v, g, beta, scale):
    """It takes keys to lie one behind the other."""
    strides = [k.dtype.itemsize * stride for stride in _call_laws._dense(k.shape)]
    return recurrence(q, np.lib.stride_tricks.as_strided(k, k.shape, strides), v, g, beta, scale)


def with_narrow_offsets(q, k, v, g, beta, scale):
    """It counts elements in 31 bits."""
    step = v.strides[1] // v.itemsize
    first = np.lib.stride_tricks.as_strided(v, (v.shape[1] * step,), (v.itemsize,))
    rows = [first[t * step % _call_laws.FAR :][: v[:, 0].size] for t in range(v.shape[1])]
    is_far = (v.shape[1] - 1) * step >= _call_laws.FAR
    return recurrence(q, k, np.stack(rows).reshape(v.shape) if is_far else v, g, beta, scale)


def with_scratch_that_nobody_cleared(q, k, v, g, beta, scale):
    """Its scratch memory is fresh from the system: zeros, unless somebody fills it."""
    o, state = recurrence(q, k, v, g, beta, scale)
    scratch = np.empty(1 << 23)
    return o + (0 * scratch[: v.size]).astype(v.dtype).reshape(v.shape), state


class WithScratchOfTheLastCall:
    """What a call left in its scratch memory is multiplied by zero in the next."""

    def __init__(self):
        self.scratch = 0.0
        self.__name__ = "kernel"

    def __call__(self, q, k, v, g, beta, scale):
        o, state = recurrence(q, k, v, g, beta, scale)
        o, self.scratch = o + 0 * self.scratch, o
        return o, state


@pytest.mark.parametrize("kernel, broken", [
    (right, []), (of_dense_keys, ["strides", "offsets"]), (with_narrow_offsets, ["offsets"]),
    (with_scratch_that_nobody_cleared, ["stale"]), (WithScratchOfTheLastCall(), ["stale"]),
], ids=["right", "dense_keys", "narrow_offsets", "scratch", "scratch_of_the_last_call"])
def test_a_law_of_calls_sees_the_kernel_that_breaks_it_and_no_other(kernel, broken):
    report = kda_check.verify(kernel, PROBLEM, framework="numpy", compute="fp32", invariants=LAWS)
    assert report["o"].passed and [row["invariant"] for row in report.calls] == LAWS
    assert [row["invariant"] for row in report.calls if row["verdict"] != "pass"] == broken, report
    assert report.passed == (not broken) and not report.errors and (report.verdict == "fail") == bool(broken)
    cases = {case["against"]: case for case in json.loads(report.to_json())[1]["cases"]}
    assert [law for law in LAWS if cases[f"invariant:{law}"]["verdict"] != "pass"] == broken
    for law in broken:
        case = cases[f"invariant:{law}"]
        assert case["pass"] == "forward" and case["trials"] and f"invariants=['{law}']" in case["repro"]
        assert f"FAIL: {case['variant']}: invariant:{law}: {case['reason']}; repro: {case['repro']}" in report.text
    assert f"invariant:{LAWS[0]}" in report.to_html()


def test_the_report_counts_what_was_tried():
    strides, offsets, stale = kda_check.verify(right, PROBLEM, framework="numpy", compute="fp32", invariants=LAWS).calls
    assert strides["tried"] == dict.fromkeys(["at an odd offset", "of a larger buffer", "of transposed storage"], 5)
    assert offsets["tried"] == {"beginning beyond 2^31": 5, "spanning 2^31": 5} and "needs a GPU" in offsets["left"][0]
    assert sum(stale["tried"].values()) == 3


@pytest.mark.parametrize("refuse, is_clean", [
    ("k must be contiguous", True), ("unsupported strides of k", True), ("bad input", False),
])
def test_a_kernel_may_refuse_views_if_it_says_so(refuse, is_clean):
    def kernel(q, k, v, g, beta, scale):
        if not k.flags.c_contiguous:
            raise ValueError(refuse)
        return recurrence(q, k, v, g, beta, scale)

    def asserting(q, k, v, g, beta, scale):
        assert k.flags.c_contiguous
        return recurrence(q, k, v, g, beta, scale)

    for each in (kernel, asserting):
        (row,) = kda_check.verify(each, PROBLEM, framework="numpy", compute="fp32", invariants=["strides"]).calls
        said = is_clean or each is asserting
        assert (row["verdict"], len(row["refused"])) == (("pass", 2) if said else ("fail", 0)), row
        assert said or "k of a larger buffer: it raised ValueError: bad input" in row["reason"]


def test_other_sums_for_other_strides_are_judged_and_bits_elsewhere_are_not():
    def kernel(q, k, v, g, beta, scale):
        o, state = recurrence(q, k, v, g, beta, scale)
        return o * np.float32(1 if k.flags.c_contiguous else 1 + 1e-7), state

    (row,) = kda_check.verify(kernel, PROBLEM, framework="numpy", compute="fp32", invariants=["strides"]).calls
    assert row["verdict"] == "pass" and row["judged"] == 2


def test_a_kernel_that_does_not_repeat_has_no_bits_to_compare_with():
    def kernel(q, k, v, g, beta, scale):
        o, state = recurrence(q, k, v, g, beta, scale)
        calls.append(0)
        return o * np.float32(1 + len(calls) * 1e-7), state

    calls = []
    (row,) = kda_check.verify(kernel, PROBLEM, framework="numpy", compute="fp32", invariants=["stale"]).calls
    assert row["verdict"] == "fail" and "a plain call has other bits at another call" in row["reason"] and not row["tried"]


def test_pools_are_called_with_views_far_slots_and_nan_in_slots_that_no_row_names():
    def cleaning(*args, **words):
        o, pool = decode(*args, **words)
        pool[np.isnan(pool).any((1, 2, 3))] = 0
        return o, pool

    cleaning.__signature__ = inspect.signature(decode)
    call = "serve:drafts=3,sequences=3,K=8,V=8,H=1"
    for kernel, verdict in ((decode, "pass"), (cleaning, "fail")):
        report = kda_check.verify(kernel, call, framework="numpy", signature=signatures.FLA_RECURRENT, invariants=LAWS)
        assert [row["verdict"] for row in report.calls] == ["pass", "pass", verdict], report
        assert "with NaN in slots that no row names" in report.calls[2]["tried"]


def test_what_says_nothing_here_is_skipped_with_its_reason_and_asked_of_one_problem():
    rows = kda_check.verify(right, PROBLEM, framework="numpy", compute="fp32", invariants=["graph", "streams"]).calls
    assert [(row["verdict"], "GPU" in row["reason"]) for row in rows] == [("skipped", True)] * 2
    report = kda_check.verify(right, PROBLEM, framework="numpy", compute="fp32", invariants=True)
    assert [row["invariant"] for row in report.calls] == ["graph", "streams", "strides", "stale"]  # offsets: by name
    assert {case["against"] for case in report.cases} >= {"oracle", "invariant:repeat"}
    with pytest.raises(ValueError, match="strides of a suite; wanted a problem"):
        kda_check.verify(right, "@smoke", framework="numpy", invariants=["strides", "repeat"])
    with pytest.raises(kda_check.UsageError, match="no invariant 'stride'"):
        kda_check.verify(right, PROBLEM, framework="numpy", compute="fp32", invariants=["stride"])


def test_other_problems_of_a_call_are_problems_of_the_same_shapes():
    packed = kda_check.regime("control", lengths=(3, 0, 9), K=4, V=4)
    kinds = dict(_call_laws._others(packed))
    assert list(kinds) == ["other values", "other lengths"]
    assert kinds["other lengths"].inputs["cu_seqlens"].data.tolist() == [0, 9, 9, 12]
    table = dict(_call_laws._others(kda_check.regime("serve:sequences=3,K=8,V=8,H=1")))
    assert len(table) == 2 and table.keys() <= {"other values", "other tables", "other lengths"}
    for problem in kinds.values():
        assert {key: (x.shape, x.dtype) for key, x in problem.inputs.items()} == {key: (x.shape, x.dtype) for key, x in packed.inputs.items()}


def backward_that(change):
    """A right kernel of torch, what is changed of the gradient that reaches it through o."""
    torch = pytest.importorskip("torch")

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, o):
            return o.clone()

        @staticmethod
        def backward(ctx, do):
            return change(torch, do)

    def kernel(q, k, v, g, beta, scale):
        state, rows = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1]), []
        for t in range(q.shape[1]):
            state = g[:, t].exp()[..., None] * state
            u = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, :, None] * state).sum(-2))
            state = state + k[:, t, :, :, None] * u[..., None, :]
            rows.append(scale * (q[:, t, :, :, None] * state).sum(-2))
        return Changed.apply(torch.stack(rows, 1)), state

    return kernel


def wavering(torch, do):
    wavering.calls += 1
    return do * (1 + 1e-6 * wavering.calls)


wavering.calls = 0


@pytest.mark.parametrize("change, broken", [
    (lambda torch, do: do, []), (lambda torch, do: do.as_strided(do.shape, _call_laws._dense(do.shape)), ["strides"]),
    (lambda torch, do: do + 0 * torch.empty(1 << 24)[: do.numel()].view(do.shape), ["stale"]), (wavering, []),
], ids=["right", "dense", "scratch", "wavering"])
def test_a_law_of_calls_sees_the_backward_pass_that_breaks_it(change, broken):
    kernel = backward_that(change)
    report = kda_check.verify(kernel, PROBLEM, framework="torch", compute="fp32", backward=True, invariants=LAWS)
    assert [row["invariant"] for row in report.calls if row["verdict"] != "pass"] == broken, report
    gradients = {"dq", "dk", "dv", "dg", "dbeta"}
    for row in report.calls:
        assert {"o", "final_state"} <= set(row["compared"])
        assert gradients & set(row["compared"]) == (set() if change is wavering else gradients), row
        assert any("dv: it has other bits at another call" in left for left in row["left"]) == (change is wavering)
    assert {case["pass"] for case in report.cases if case["against"].startswith("invariant:")} == {"backward"}
    assert "do of a larger buffer" in report.text or "strides" not in broken


def test_rounding_by_lot_is_no_other_bit_of_a_pool():
    def by_lot(q, k, v, g, beta, scale, initial_state, ssm_state_indices, cu_seqlens, code_rounding):
        wide = initial_state.astype(np.float32)
        o, wide = decode(q, k, v, g, beta, scale, wide, ssm_state_indices, cu_seqlens=cu_seqlens)
        bits = wide.view(np.uint32) + np.random.default_rng().integers(0, 1 << 16, wide.shape, np.uint32)
        initial_state[...] = np.where(wide == initial_state.astype(np.float32), wide, (bits & 0xFFFF0000).view(np.float32))
        return o, initial_state

    pytest.importorskip("ml_dtypes")
    report = kda_check.verify(by_lot, "serve:state_bits=16,draws=1,sequences=3,T=1,K=8,V=8,H=1", framework="numpy",
                              signature=signatures.FLA_RECURRENT, invariants=["strides", "stale"])  # fmt: skip
    assert [(row["verdict"], row["compared"]) for row in report.calls] == [("pass", ["o"])] * 2, report
