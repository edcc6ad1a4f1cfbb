"""Calls on quantised pools, beside an independent recurrence in numpy's long double."""

import functools
import subprocess

import kda_check
import numpy as np
import pytest
from kda_check import _program, convert, signatures, verify
from test_rings import behind_rings

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
WIDE = np.longdouble
GRID = np.arange(127, dtype=np.uint8).view(E4M3).astype(WIDE)  # of magnitudes, by their bits
LARGEST = {"int8": 127, "int16": 32767, E4M3.name: 448}


def coded(x, dtype, _=None):
    """Codes of quotients, to nearest, ties to even; how far each is from a tie, in steps."""
    if dtype != E4M3:
        codes = np.clip(np.rint(np.nan_to_num(x)), -LARGEST[dtype.name], LARGEST[dtype.name]).astype(dtype)
        return codes, np.abs(np.abs(x - np.floor(x)) - 0.5)
    above = np.clip(np.searchsorted(GRID, np.abs(x), "left"), 1, len(GRID) - 1)
    step = GRID[above] - GRID[above - 1]
    part = (np.abs(x) - GRID[above - 1]) / step  # the last bit of an even code is 0
    up = (part > 0.5) | ((part == 0.5) & (above % 2 == 0))
    return (np.where(up, above, above - 1) | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8).view(E4M3), np.abs(part - 0.5)


def philox(seed, offsets):
    """The first word of Philox4x32-10 for (offset, 0, 0, 0)."""
    c = [offsets.astype(np.uint64), *[np.zeros(offsets.shape, np.uint64)] * 3]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> half ^ c[1] ^ np.uint64(key[0]), b & low, a >> half ^ c[3] ^ np.uint64(key[1]), a & low]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c[0]


def by_lot(x, dtype, draw):
    """Numbers of a type, up as often as is left over, by draws in [0, 1); how far each is from going the other way."""
    if dtype.name in ("int8", "int16"):
        sums = x + draw
        return np.clip(np.floor(sums), -LARGEST[dtype.name], LARGEST[dtype.name]).astype(dtype), np.abs(sums - np.rint(sums))
    bits, least = {E4M3.name: (4, -6), "bfloat16": (8, -126)}[dtype.name]
    step = np.ldexp(WIDE(1), np.maximum(np.frexp(np.abs(x))[1] - 1, least) - bits + 1)
    count = np.floor(np.abs(x) / step)
    left = np.abs(x) / step - count
    magnitude = np.minimum((count + (left > draw)) * step, LARGEST.get(dtype.name, np.inf))
    return np.copysign(magnitude, x).astype(dtype), np.abs(left - draw)


def replayed(seed):
    def rounds(x, dtype, slot):
        words = philox(seed, slot * x.size + np.arange(x.size)).reshape(x.shape)
        return by_lot(x, dtype, (words & np.uint64(0xFFFFFF)).astype(WIDE) / 2**24)

    return rounds


def spread(scale, shape):
    """A scale for each element of these states."""
    for axis in (-2, -1):
        scale = np.repeat(scale, shape[axis] // scale.shape[axis], axis)
    return scale.astype(WIDE)


def on_codes(q, k, v, g, beta, scale, initial_state, state_indices, cu_seqlens, state_scale=None, largest_code=None,
             has_initial_state=None, code_rounding=None, code_seed=None, ties=None, rounds=coded, stretch=1):
    """A kernel on a pool of codes, in place."""
    if state_scale is None:
        state_scale, largest_code = np.ones((len(initial_state), 1, 1, 1)), 0
    o, group, tokens = np.zeros(v.shape, WIDE), v.shape[2] // q.shape[2], np.diff(cu_seqlens)
    before = initial_state.astype(WIDE) * spread(state_scale, initial_state.shape[2:])
    wide = {key: x.astype(WIDE) for key, x in dict(q=q, k=k, v=v, g=g, beta=beta).items()}
    for n, row in enumerate(np.reshape(state_indices, (len(tokens), -1))):
        if row[0] < 0 or tokens[n] == 0:
            continue
        state = before[row[0]] * (1 if has_initial_state is None else int(has_initial_state[n]))
        for i, t in enumerate(range(cu_seqlens[n], cu_seqlens[n + 1])):
            for h in range(v.shape[2]):
                key = wide["k"][0, t, h // group]
                state[h] = np.exp(wide["g"][0, t, h])[:, None] * state[h]
                u = wide["beta"][0, t, h] * (wide["v"][0, t, h] - key @ state[h])
                state[h] = state[h] + np.outer(key, u)
                o[0, t, h] = scale * (wide["q"][0, t, h // group] @ state[h])
            if np.ndim(state_indices) < 2 and t + 1 < cu_seqlens[n + 1]:
                continue
            slot, own = row[i if np.ndim(state_indices) > 1 else 0], state_scale[row[0]]
            if largest_code != 0:
                HV, R, C = own.shape
                blocks = np.abs(state).reshape(HV, R, state.shape[1] // R, C, state.shape[2] // C)
                most = largest_code or LARGEST[initial_state.dtype.name]
                state_scale[slot] = (stretch * blocks.max((2, 4)) / most).astype(np.float32)
            initial_state[slot], near = rounds(state / spread(state_scale[slot], state.shape), initial_state.dtype, slot)
            if ties is not None:
                ties[slot] = near
    return o.astype(v.dtype), initial_state


MINE = signatures.Signature(pool="state_indices")
CALLS = [f"serve:codes={codes},scales={scales},seed=2{more}" for codes in (1, 2, 3) for scales in (0, 1, 2, 3)
         for more in ("", ",fixed=1")]  # fmt: skip


@pytest.mark.parametrize("call", [*CALLS, "serve:codes=3,largest=240,new=1,H=2,HV=4", "serve:codes=1,dtype=bf16"])
def test_a_kernel_on_a_quantised_pool_is_verified(call):
    report = verify(on_codes, f"{call},K=16,V=8", framework="numpy", signature=MINE)
    assert report.passed, report.text
    assert {"o", "final_state", "state_pool", "state_scale"} <= {tensor.row["name"] for tensor in report.tensors()}


def test_calls_on_quantised_pools_are_those_of_a_recurrence_in_long_double(tmp_path):
    rng = np.random.default_rng(23)
    worst, count, at_ties = 0.0, 0, 0
    for seed in range(120):
        fixed, new = int(seed % 5 == 0), int(rng.integers(2))
        largest = int(rng.integers(2)) * 120
        draws = (seed // 12 % 2) * (2 if seed % 3 < 2 else 1)
        call = kda_check.regime(f"serve:codes={seed % 3 + 1},scales={seed // 3 % 4},new={new},largest={largest},fixed={fixed},draws={draws}",
                                seed=seed, dtype="fp64", K=8, V=4, HV=2, sequences=4, slots=6, T=4)  # fmt: skip
        words = {MINE.words.get(key, key): x.numpy().copy() for key, x in call.inputs.items()}
        words["initial_state"] = words.pop("state_pool")
        ties = np.ones(words["initial_state"].shape)
        o, codes = on_codes(**words, scale=call.options["scale"], largest_code=call.options["largest_code"], ties=ties,
                            rounds=replayed(call.options.get("code_seed", 0)) if draws else coded)  # fmt: skip
        path = tmp_path / "call.h5"
        report = kda_check.check(o, final_state=codes, final_scale=words["state_scale"], **call.inputs, **call.options,
                                 compute="fp64", save=path)  # fmt: skip
        assert report.passed, report.text
        worst = max(worst, *(report[name].rms_ratio for name in ("o", "final_state")))
        subprocess.run([_program.find(), "capture", path, "--variant", "recurrent", "--dtype", "fp64", "--in-place"], check=True)
        ours = kda_check.Fixture.read(path).expected["recurrent@cpu"].tensors
        differs = ours["state_pool"].numpy().astype(np.float32) != codes.astype(np.float32)
        assert (ties[differs] <= 1e-12).all(), call.name
        assert (ours["state_scale"].numpy() == words["state_scale"]).all(), call.name
        count, at_ties = count + codes.size, at_ties + int(differs.sum())
    assert worst <= 1e-12, worst
    print(f"{count} codes, {at_ties} differ at ties; o and states to {worst:.2g}")


def test_a_call_on_a_quantised_pool_is_converted_from_a_file_of_tensors(tmp_path):
    call = kda_check.regime("serve:codes=3,largest=240", seed=1, K=8, V=4)
    words = {MINE.words.get(key, key): x.numpy().copy() for key, x in call.inputs.items()}
    words["initial_state"] = words.pop("state_pool")
    o, codes = on_codes(**words, scale=call.options["scale"], largest_code=240)
    answer = {"mine/o": o, "mine/state_pool": codes, "mine/state_scale": words["state_scale"]}
    np.savez(tmp_path / "call.npz", **{key: x.numpy() for key, x in call.inputs.items()}, **answer, largest_code=240)
    (path,) = convert.convert(str(tmp_path / "call.npz"), str(tmp_path / "call.h5"), compute="fp32", padding_slots="negative")
    assert kda_check.Fixture.read(path).inputs["state_pool"].dtype == "float8_e4m3"
    subprocess.run([_program.find(), "run", path, "--variant", "none", "--require", "mine"], check=True)


def test_codes_that_are_not_the_same_in_every_run_are_seen_by_repeat():
    def wavering(x, dtype, _):
        return coded(x + np.random.default_rng().uniform(-0.01, 0.01, x.shape), dtype)

    unsteady = {f"invariant:{law}" for law in ("repeat", "strides", "stale")}
    for kernel, failed in ((on_codes, set()), (functools.partial(on_codes, rounds=wavering), unsteady)):
        report = verify(kernel, "serve:codes=2,K=16,V=8", framework="numpy", signature=MINE, name="mine", invariants=True)
        assert {case["against"] for case in report.cases if case["verdict"] == "fail"} - {"oracle"} == failed, report.text
        assert "invariant:repeat" in {case["against"] for case in report.cases if case["verdict"] in ("pass", "fail")}


def test_a_wrong_scale_and_truncated_codes_are_named():
    def truncated(x, dtype, _):
        return np.trunc(x.astype(np.float32)).astype(dtype), x

    for more, name in (({"stretch": 2}, "is 2 times the largest magnitude of its block / 127"),
                       ({"rounds": truncated}, "as if codes are rounded towards zero (codes_truncated)")):  # fmt: skip
        report = verify(functools.partial(on_codes, **more), "serve:codes=1,scales=2,K=16,V=8", framework="numpy", signature=MINE, name="mine")
        assert not report.passed and name in report.text, report.text


def lots(x):
    return np.random.default_rng(8).random(x.shape)


def outwards(x, up):
    """The integers around x, those further from zero where `up`."""
    return np.copysign(np.floor(np.abs(x)) + up, x)


ROUNDED = {  # what is said where codes are rounded by lot in another way than that
    "by lot": (lambda x, dtype, _: by_lot(x, dtype, lots(x)), ""),
    "towards zero": (lambda x, dtype, _: (np.trunc(x).astype(dtype), x), "codes are rounded towards zero, by 0."),
    "down": (lambda x, dtype, _: (np.floor(x).astype(dtype), x), "codes are rounded down, by 0."),
    "one draw": (lambda x, dtype, _: by_lot(x, dtype, 0.9), "codes are rounded up, by 0."),
    "to nearest": (coded, "codes are rounded to nearest more often than stochastic rounding does"),
    "a coin": (lambda x, dtype, _: (outwards(x, lots(x) < 0.5).astype(dtype), x), "codes are rounded to nearest less often than stochastic rounding does"),
    "too far": (lambda x, dtype, _: (np.clip(np.rint(x) + 2 * (lots(x) < 0.01), -99, 99).astype(dtype), x),
                "codes are not the neighbours of what is rounded"),
}  # fmt: skip


@pytest.mark.parametrize("how", ROUNDED)
@pytest.mark.parametrize("call", ["serve:codes=1,draws=1,largest=90", "serve:codes=2,draws=1,scales=2,largest=90"])
def test_codes_are_rounded_by_lot_and_another_rounding_is_named(call, how):
    rounds, said = ROUNDED[how]
    report = verify(functools.partial(on_codes, rounds=rounds), f"{call},K=16,V=16", framework="numpy", signature=MINE, name="mine")
    assert report.passed == (not said) and said in report.text, report.text


def test_draws_that_a_seed_says_are_replayed():
    call = "serve:codes=1,draws=2,seed=7,K=16,V=8"
    for seed, verdict in ((7, "pass"), (8, "fail")):
        report = verify(functools.partial(on_codes, rounds=replayed(seed)), call, framework="numpy", signature=MINE, name="mine")
        assert report.verdict == verdict, report.text
        assert ("codes are not those that Philox draws by options/code_seed" in report.text) == (seed == 8)


@pytest.mark.parametrize("how, said", [("by lot", ""), ("towards zero", "states are rounded towards zero")])
def test_states_in_bf16_are_rounded_by_lot(how, said):
    def rounds(x, dtype, _):
        return by_lot(x, dtype, lots(x) if how == "by lot" else 1)

    report = verify(functools.partial(on_codes, rounds=rounds), "serve:state_bits=16,draws=1,K=16,V=8", framework="numpy",
                    signature=MINE, name="mine", invariants=["repeat", "slots"])  # fmt: skip
    assert report.passed == (not said) and said in report.text, report.text
    compared = {case["against"]: [tensor["name"] for tensor in case["tensors"]] for case in report.cases if case["against"] != "oracle"}
    assert compared == {"invariant:repeat": ["o"], "invariant:slots": []}


def behind_rings_on_codes(initial_state, state_scale, state_indices, largest_code=None, padding_slots=None, is_stale=False, **words):
    """A kernel behind rings whose states are codes, to nearest."""
    states = initial_state.astype(WIDE) * spread(state_scale, initial_state.shape[2:])
    before = states.copy()
    o, _ = behind_rings(initial_state=states, state_indices=state_indices, **words)
    for slot in np.flatnonzero((states != before).any((1, 2, 3))):
        HV, R, C = state_scale.shape[1:]
        if not is_stale:
            blocks = np.abs(states[slot]).reshape(HV, R, states.shape[2] // R, C, states.shape[3] // C)
            state_scale[slot] = (blocks.max((2, 4)) / largest_code).astype(np.float32)
        initial_state[slot] = coded(states[slot] / spread(state_scale[slot], states.shape[2:]), initial_state.dtype)[0]
    return o, initial_state


@pytest.mark.parametrize("call", ["serve:codes=1,ring=8,flush=3", "serve:codes=3,scales=3,ring=8,flush=2,solved=1,largest=240",
                                  "serve:codes=2,scales=1,ring=8,flush=4,folds_call=1,new=1", "serve:codes=1,ring=8"])  # fmt: skip
def test_a_ring_is_folded_into_codes(call):
    call += ",K=16,V=8,dtype=fp64"
    report = verify(behind_rings_on_codes, call, framework="numpy", signature=MINE)
    assert report.passed and max(report["o"].rms_ratio, report["final_state"].rms_ratio) <= 1e-12, report.text
    assert {"state_pool", "state_scale", "ring_k"} <= {tensor.row["name"] for tensor in report.tensors()}
    report = verify(functools.partial(behind_rings_on_codes, is_stale=True), call, framework="numpy", signature=MINE, name="mine")
    assert ("as it was before the call" in report["state_scale"].reason) == ("flush" in call), report.text


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("call", ["serve:codes=1,scales=2,new=0", "serve:codes=3,largest=240", "serve:codes=2,draws=1"])
def test_a_recorded_call_on_codes_is_judged_by_the_slots_that_it_names(call, framework):
    torch = pytest.importorskip("torch") if framework == "torch" else None
    of = {key: x for key, x in kda_check.regime(f"{call},K=16,V=16").options.items() if key in ("largest_code", "code_rounding")}
    mine = signatures.Signature({"scales": "state_scale"}, {"padding_slots": "negative", **of}, pool="slots")

    def kernel_that(rounds, writes=True):
        def kernel(q, k, v, g, beta, scale, initial_state, slots, scales, cu_seqlens):
            given = [x.numpy() if torch is not None else x for x in (q, k, v, g, beta)]
            pool, table, own, ends = (np.asarray(x) if torch is None else x.numpy() if "float8" not in str(x.dtype) else
                                      x.view(torch.uint8).numpy().view(E4M3) for x in (initial_state, slots, scales, cu_seqlens))  # fmt: skip
            o, _ = on_codes(*given, scale, pool, table, ends, own if writes else own.copy(), of["largest_code"], rounds=rounds)
            return torch.from_numpy(o) if torch is not None else o

        return kda_check.kernel(mine)(kernel)

    right = (lambda x, dtype, _: by_lot(x, dtype, lots(x))) if "draws" in call else coded
    truncated = (lambda x, dtype, _: by_lot(x if dtype == E4M3 else np.trunc(x), dtype, 1 if dtype == E4M3 else 0))
    for kernel, said in ((kernel_that(right), ""), (kernel_that(truncated), "final_state FAIL"), (kernel_that(right, False), "state_scale")):
        inputs = kda_check.regime(f"{call},K=16,V=16").inputs
        words = {key: x.torch() if torch is not None else x.numpy().copy() for key, x in inputs.items()}
        words.update(initial_state=words.pop("state_pool"), slots=words.pop("state_indices"), scales=words.pop("state_scale"))
        assert len(mine.problem({**words, "scale": 0.25})["state_pool"]) < len(words["initial_state"])
        with kda_check.recording() as log:
            kernel(**words, scale=0.25)
        (one,) = log.calls
        assert one.report is not None and one.report.passed == (not said) and said in str(log), (log, one.reason)
