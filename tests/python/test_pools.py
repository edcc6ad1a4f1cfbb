"""verify on kernels that have their states in slots of a pool, as fused_recurrent_kda has."""

import numpy as np
import pytest
from kda_check import signatures, verify


def decode(q, k, v, g, beta, scale, initial_state, ssm_state_indices, num_accepted_tokens=None, cu_seqlens=None,
           column=lambda accepted: accepted - 1, pads=False):
    """The recurrence on a pool, in place. Slots below 0 are padding."""
    ends = np.arange(len(q) + 1) if cu_seqlens is None else cu_seqlens
    rows = {key: x.reshape(-1, *x.shape[2:]).astype(np.float64) for key, x in dict(q=q, k=k, v=v, g=g, beta=beta).items()}
    length = q.shape[1] if cu_seqlens is None else 1
    o = np.zeros((q.shape[0] * q.shape[1], *v.shape[2:]), np.float64)
    group = v.shape[2] // q.shape[2]
    for n, (begin, end) in enumerate(zip(ends[:-1] * length, ends[1:] * length)):
        table = np.atleast_1d(ssm_state_indices[n])
        first = table[0 if num_accepted_tokens is None else column(num_accepted_tokens[n])]
        if first < 0:
            if pads:
                initial_state[-1] = 0
            continue
        state = initial_state[first].astype(np.float64)
        for t in range(begin, end):
            for h in range(v.shape[2]):
                key = rows["k"][t, h // group]
                decayed = np.exp(rows["g"][t, h])[:, None] * state[h]
                state[h] = decayed + np.outer(key, rows["beta"][t, h] * (rows["v"][t, h] - key @ decayed))
                o[t, h] = scale * rows["q"][t, h // group] @ state[h]
            if len(table) > 1 or t == end - 1:
                initial_state[table[t - begin if len(table) > 1 else 0]] = state
    return o.reshape(v.shape).astype(v.dtype), initial_state


@pytest.mark.parametrize("call", ["serve", "serve:drafts=4,seed=2", "serve:drafts=8,state_bits=32"])
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


def test_a_kernel_without_a_pool_does_not_take_a_call_on_one():
    def kernel(q, k, v, g, beta, scale, initial_state=None, cu_seqlens=None):
        raise AssertionError

    with pytest.raises(signatures.Unsupported, match="the kernel takes no"):
        verify(kernel, "serve", framework="numpy", signature=signatures.Signature())
