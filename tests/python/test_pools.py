"""verify on kernels that have their states in slots of a pool, as fused_recurrent_kda has."""

import functools
import inspect

import kda_check
import numpy as np
import pytest
from kda_check import signatures, verify


def decode(q, k, v, g, beta, scale, initial_state, ssm_state_indices, num_accepted_tokens=None, cu_seqlens=None,
           has_initial_state=None, output_indices=None, state_source=None, column=lambda accepted: accepted - 1, pads=False,
           o_of_padding=0.0):
    """The recurrence on a pool, in place. Slots below 0 are padding."""
    ends = np.arange(len(q) + 1) if cu_seqlens is None else cu_seqlens
    rows = {key: x.reshape(-1, *x.shape[2:]).astype(np.float64) for key, x in dict(q=q, k=k, v=v, g=g, beta=beta).items()}
    length = q.shape[1] if cu_seqlens is None else 1
    o = np.full((q.shape[0] * q.shape[1], *v.shape[2:]), o_of_padding)
    read_from = (initial_state if state_source is None else state_source).copy()
    stored_in = ssm_state_indices if output_indices is None else output_indices
    group = v.shape[2] // q.shape[2]
    for n, (begin, end) in enumerate(zip(ends[:-1] * length, ends[1:] * length)):
        table = np.atleast_1d(ssm_state_indices[n])
        first = table[0 if num_accepted_tokens is None else column(num_accepted_tokens[n])]
        if first < 0:
            if pads:
                initial_state[-1] = 0
            continue
        is_new = has_initial_state is not None and not has_initial_state[n]
        state = np.where(is_new, 0.0, read_from[first].astype(np.float64))
        outputs = np.atleast_1d(stored_in[n])
        for t in range(begin, end):
            for h in range(v.shape[2]):
                key = rows["k"][t, h // group]
                decayed = np.exp(rows["g"][t, h])[:, None] * state[h]
                state[h] = decayed + np.outer(key, rows["beta"][t, h] * (rows["v"][t, h] - key @ decayed))
                o[t, h] = scale * rows["q"][t, h // group] @ state[h]
            to = outputs[t - begin if len(outputs) > 1 else 0]
            if (len(outputs) > 1 or t == end - 1) and to >= 0:
                initial_state[to] = state
    return o.reshape(v.shape).astype(v.dtype), initial_state


@pytest.mark.parametrize("call", ["serve", "serve:drafts=4,seed=2", "serve:drafts=8,state_bits=32", "serve:new=1",
                                  "serve:new=1,drafts=3,seed=2", "serve:apart=1", "serve:apart=1,drafts=3,seed=2",
                                  "serve:apart=2,drafts=4", "serve:apart=2,new=1,seed=3", "serve:zeros=1,drafts=2"])
def test_a_decode_kernel_is_verified_on_its_pool(call):
    report = verify(decode, call, framework="numpy", signature=signatures.FLA_RECURRENT)
    assert report.passed, report.text
    assert {"o", "final_state", "state_pool"} <= {tensor.row["name"] for tensor in report.tensors()}


@pytest.mark.parametrize("wrong", [
    {"column": lambda accepted: accepted % 4},
    {"column": lambda accepted: 0},
    {"pads": True},
], ids=["one_accepted_more", "accepted_ignored", "padding_in_last_slot"])
def test_a_kernel_that_is_wrong_in_its_pool_fails(wrong):
    def kernel(q, k, v, g, beta, scale, initial_state, ssm_state_indices, num_accepted_tokens=None, cu_seqlens=None):
        return decode(q, k, v, g, beta, scale, initial_state, ssm_state_indices, num_accepted_tokens, cu_seqlens, **wrong)

    report = verify(kernel, "serve:drafts=4,seed=2", framework="numpy", signature=signatures.FLA_RECURRENT)
    assert not report.passed, report.text


def test_a_decode_kernel_obeys_the_laws_of_the_life_of_a_state():
    laws = ["drafts", "prefix", "padding", "server"]
    call = "serve:drafts=3,sequences=3,K=8,V=8,H=1"
    assert verify(decode, call, framework="numpy", signature=signatures.FLA_RECURRENT, invariants=laws).passed


def test_a_request_that_starts_from_what_its_slot_held_fails_and_is_named():
    call = kda_check.regime("serve:new=1,sequences=6,padding=0,K=16,V=16")
    new = np.flatnonzero(call.inputs["has_initial_state"].numpy() == 0)
    call.inputs["state_pool"].data[call.inputs["state_indices"].numpy()[new[1:]]] = np.nan
    assert verify(decode, call, framework="numpy", signature=signatures.FLA_RECURRENT).passed

    def stale(*args, has_initial_state=None, **words):
        assert has_initial_state.dtype == bool
        return decode(*args, **words)

    stale.__signature__ = inspect.signature(decode)
    for sequences in (new, new[:1]):
        call.inputs["has_initial_state"].data[:] = 1
        call.inputs["has_initial_state"].data[sequences] = 0
        call.inputs["state_pool"].data[:] = np.nan_to_num(call.inputs["state_pool"].data, nan=3 if len(sequences) == 1 else np.nan)
        report = verify(stale, call, framework="numpy", signature=signatures.FLA_RECURRENT)
        assert report.verdict == "fail"
        assert all(f"sequence {n} starts from what its slot held: has_initial_state is false" in report.text for n in sequences)


def test_check_takes_a_call_on_a_pool():
    call = kda_check.regime("serve:new=1,K=16,V=16,seed=2")
    x = {key: tensor.numpy() for key, tensor in call.inputs.items()}
    for has, verdict in ((x["has_initial_state"], "pass"), (None, "fail")):
        words = {key: x[key] for key in ("q", "k", "v", "g", "beta", "cu_seqlens")}
        o, pool = decode(**words, scale=call.options["scale"], initial_state=x["state_pool"].copy(),
                         ssm_state_indices=x["state_indices"], has_initial_state=has)  # fmt: skip
        report = kda_check.check(o, final_state=pool, **call.inputs, **call.options, compute="fp32")
        assert report.verdict == verdict, report
        assert ("starts from what its slot held: has_initial_state is false" in report.text) == (verdict == "fail")


@pytest.mark.parametrize("call, lost, said", [
    ("serve:apart=1,K=8,V=8", "output_indices", "states are stored in the slots of state_indices, where they were read"),
    ("serve:apart=1,K=8,V=8,drafts=3", "output_indices", "which sequence"),
    ("serve:apart=2,K=8,V=8", "state_source", "states are read in state_pool, where they are stored: state_source has them"),
    ("serve:apart=2,K=8,V=8,drafts=3", "state_source", "states are read in state_pool"),
])  # fmt: skip
def test_a_kernel_that_does_not_tell_what_it_reads_from_what_it_stores_fails_and_is_named(call, lost, said):
    def kernel(*args, **words):
        words[lost] = None
        return decode(*args, **words)

    kernel.__signature__ = inspect.signature(decode)
    report = verify(kernel, call, framework="numpy", signature=signatures.FLA_RECURRENT)
    assert report.verdict == "fail" and said in report.text, report.text


@pytest.mark.parametrize("padding_output, verdict", [("zero", "fail"), ("untouched", "pass"), ("unspecified", "pass")])
def test_o_of_padding_is_judged_where_the_call_says_that_it_is_zero(padding_output, verdict):
    call = kda_check.regime("serve:seed=2,K=8,V=8")
    call.options["padding_output"] = padding_output
    row = int(np.flatnonzero(call.inputs["state_indices"].numpy() < 0)[0])
    kernel = functools.partial(decode, o_of_padding=np.nan)
    report = verify(kernel, call, framework="numpy", signature=signatures.FLA_RECURRENT)
    assert report.verdict == verdict
    assert (f"row {row} is padding, and its o is not zero" in report.text) == (verdict == "fail")
    assert verify(decode, call, framework="numpy", signature=signatures.FLA_RECURRENT).passed


def test_a_state_that_a_sequence_has_not_is_zero_without_a_pool():
    rng = np.random.default_rng(1)
    x = {key: rng.standard_normal((3, 5, 1, 8)).astype(np.float32) / 3 for key in "qkv"}
    x |= {"g": -np.abs(x["k"]), "beta": np.full((3, 5, 1), 0.5, np.float32)}
    state = rng.standard_normal((3, 1, 8, 8)).astype(np.float32)
    state[2] = np.nan
    for kept, verdict in ((np.array([1, 0, 0]), "pass"), (np.array([1, 1, 0]), "fail")):
        start = np.where(kept[:, None, None, None], state, 0)
        o, final = decode(**x, scale=8**-0.5, initial_state=start.copy(), ssm_state_indices=np.arange(3))
        words = {"initial_state": state, "has_initial_state": np.array([True, False, False])}
        assert kda_check.check(o, final_state=final, **x, **words, compute="fp32").verdict == verdict


def test_a_kernel_without_a_pool_does_not_take_a_call_on_one():
    def kernel(q, k, v, g, beta, scale, initial_state=None, cu_seqlens=None):
        raise AssertionError

    with pytest.raises(signatures.Unsupported, match="the kernel takes no"):
        verify(kernel, "serve", framework="numpy", signature=signatures.Signature())
