"""Calls behind rings of writes, beside an independent recurrence in numpy's long double."""

import functools

import kda_check
import numpy as np
import pytest
from kda_check import signatures, verify
from kda_check._tensors import stored

WIDE = np.longdouble


def sequence(state, rows, scale, query=None):
    """The recurrence of one value head: rows of k, g, and v and beta, or u; o of each query."""
    out = []
    for t, row in enumerate(rows):
        state = np.exp(row["g"])[:, None] * state
        u = row["u"] if "u" in row else row["beta"] * (row["v"] - row["k"] @ state)
        state = state + np.outer(row["k"], u)
        out.append((scale * (query[t] @ state), u) if query is not None else None)
    return state, out


def behind_rings(q, k, v, g, beta, scale, initial_state, state_indices, cu_seqlens, ring_k, ring_g, ring_length, ring_v=None,
           ring_beta=None, ring_u=None, ring_base=None, ring_flush=None, ring_folds_call=False, has_initial_state=None,
           share=1):
    """A kernel behind rings, in place."""
    o, (group, R) = np.zeros(v.shape, WIDE), (v.shape[2] // q.shape[2], ring_k.shape[1])
    solved = np.zeros(v.shape[1:], WIDE)
    least = np.inf if ring_flush is None else ring_flush
    for n, slot in enumerate(state_indices):
        begin, end = cu_seqlens[n], cu_seqlens[n + 1]
        if slot < 0 or begin == end:
            continue
        held, base = int(ring_length[n]), 0 if ring_base is None else int(ring_base[n])
        folds = held >= least and (held > 0 or ring_folds_call)
        before = initial_state[slot].astype(WIDE)
        if has_initial_state is not None and not has_initial_state[n]:
            before = np.zeros_like(before)
        for h in range(v.shape[2]):
            wide = {key: x.astype(WIDE) for key, x in dict(q=q, k=k, v=v, g=g, beta=beta).items()}
            ring = []
            for i in range(held):
                r = (base + i) % R
                row = {"k": ring_k[slot, r, h // group].astype(WIDE), "g": ring_g[slot, r, h].astype(WIDE)}
                row |= ({"u": ring_u[slot, r, h].astype(WIDE)} if ring_u is not None else
                        {"v": ring_v[slot, r, h].astype(WIDE), "beta": ring_beta[slot, r, h].astype(WIDE)})  # fmt: skip
                ring.append(row)
            own = [{"k": wide["k"][0, t, h // group], **{key: wide[key][0, t, h] for key in ("v", "g", "beta")}}
                   for t in range(begin, end)]  # fmt: skip
            state, _ = sequence(before[h], ring, scale)
            after, out = sequence(state, own, scale, wide["q"][0, begin:end, h // group])
            o[0, begin:end, h] = [row for row, _ in out]
            solved[begin:end, h] = [u for _, u in out]
            if folds:
                initial_state[slot, h] = after if ring_folds_call else state
        first = 0 if ring_base is None and folds else base + held
        for t in range(begin, end):
            if not (folds and ring_folds_call):
                for ring, x in ((ring_k, k), (ring_v, v), (ring_g, g), (ring_beta, beta), (ring_u, share * solved[None])):
                    if ring is not None:
                        ring[slot, (first + t - begin) % R] = x[0, t]
    return o.astype(v.dtype), initial_state


MINE = signatures.Signature(pool="state_indices")


@pytest.mark.parametrize("call", ["serve:ring=16,seed=2", "serve:ring=8,flush=4,seed=3", "serve:ring=8,flush=3,folds_call=1",
                                  "serve:ring=16,solved=1", "serve:ring=8,solved=1,flush=1,new=1,HV=4,H=2"])  # fmt: skip
def test_a_kernel_behind_rings_is_verified(call):
    report = verify(behind_rings, f"{call},K=16,V=16", framework="numpy", signature=MINE)
    assert report.passed, report.text
    rings = {"ring_k", "ring_g", *(["ring_u"] if "solved" in call else ["ring_v", "ring_beta"])}
    assert rings | {"o", "final_state", "state_pool"} <= {tensor.row["name"] for tensor in report.tensors()}


def test_calls_behind_rings_are_those_of_a_recurrence_in_long_double():
    rng = np.random.default_rng(22)
    worst = 0.0
    for seed in range(100):
        solved, flush, folds, new = (int(x) for x in (rng.integers(2), rng.integers(5), rng.integers(2), rng.integers(2)))
        call = kda_check.regime(f"serve:ring={rng.integers(2, 9)},solved={solved},flush={flush},folds_call={folds},new={new}",
                                seed=seed, dtype="fp64", K=5, V=3, HV=2, sequences=4, slots=6, T=4)  # fmt: skip
        if seed % 3 == 0:
            call.inputs.pop("ring_base")
        if seed % 5 == 0:  # rows of any element type
            call.inputs["ring_k"] = stored(call.inputs["ring_k"].numpy().astype(np.float16), "ring_k")
        words = {MINE.words.get(key, key): x.numpy().copy() for key, x in call.inputs.items()}
        words["initial_state"] = words.pop("state_pool")
        taken = {key: x for key, x in call.options.items() if key in ("scale", "ring_flush", "ring_folds_call")}
        o, pool = behind_rings(**words, **taken)
        rings = {key: words[key] for key in words if key.startswith("ring_") and words[key].ndim > 1}
        report = kda_check.check(o, final_state=pool, rings=rings, **call.inputs, **call.options, compute="fp64")
        assert report.passed, report.text
        worst = max(worst, *(report[name].rms_ratio for name in ("o", "final_state")))
    assert worst <= 1e-12, worst


@pytest.mark.parametrize("call", ["serve:ring=8,solved=1,seed=2", "serve:ring=8,seed=2"])
def test_a_kernel_behind_rings_obeys_their_invariants_and_what_it_writes_to_ring_u_is_seen_by_rollback(call):
    laws = ["wrap", "rollback", "flush"]
    report = verify(behind_rings, f"{call},K=8,V=8", framework="numpy", signature=MINE, invariants=laws)
    assert report.passed, report.text
    assert {f"invariant:{law}" for law in laws} <= {case["against"] for case in report.cases if case["verdict"] == "pass"}
    kernel = functools.partial(behind_rings, share=0.5)
    report = verify(kernel, f"{call},K=8,V=8", framework="numpy", signature=MINE, name="half", invariants=laws)
    failed = {case["against"] for case in report.cases if case["verdict"] == "fail"}
    assert failed == ({"invariant:rollback"} if "solved" in call else set()), report.text
