import hashlib
import json

import kda_check
import numpy as np
import pytest
from kda_check import _program, ring
from kda_check._tensors import Stored
from kda_check.fixture import LOSS
from kda_check.verifying import _with_loss

NONE, SHORT = np.uint32(0), np.uint32(0xFFFF)


def unembed(payload, dtype):
    """The float whose payload this is, searched for by inverting the steps of FpSan in whole numbers."""
    width, one = (32, 0x3F800000) if dtype == "float32" else (16, ring.ONE[dtype])
    sign, shift = 1 << (width - 1), (one & -one).bit_length() - 1
    mixed = one * ring.MIXER & (sign - 1)
    factor = pow(mixed ^ mixed >> shift, -1, 2 * sign)
    found = []
    for number in np.ravel(payload).tolist():
        number &= 2 * sign - 1
        own = number & sign
        by = pow(factor * (sign - 1) if own else factor, -1, 2 * sign)
        z, y = ((number ^ own) * by) & (sign - 1), 0
        for low in range(width, -1, -shift):  # y ^ (y >> shift) = z
            y = z ^ y >> shift
        found.append((y * pow(ring.MIXER, -1, 2 * sign) & (sign - 1)) ^ own)
    return np.array(found, np.uint64).astype(f"u{width // 8}").reshape(np.shape(payload))


def product(a, b):
    """Matrix product modulo 2^32."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2, dtype=np.uint32)


def inverse(L, how):
    """(I + L)^-1 of strictly lower L."""
    n = len(L)
    unit = np.eye(n, dtype=np.uint32)
    X = unit - L
    if how == "doubling":
        P, done = product(L, L), 2
        while done < n:
            X, P, done = X + product(X, P), product(P, P), 2 * done
    elif how == "horner":
        for _ in range(n):
            X = unit - product(L, X)
    else:
        for i in range(n):
            X[i] = unit[i] - product(L[i : i + 1], X)[0] if i else unit[0]
    return X


def chunk(x, scale, C, how, first, last, row, n, head, cast=lambda x: x, drop=None):
    """One sequence and head in chunks: F1 to F11 and B1 to B5 of docs/kda.md, in the ring."""
    q, k, v, g = (x[key][row, first:last, head] for key in "qkvg")
    beta = x["beta"][row, first:last, head][:, None]
    S = x["initial_state"][n, head].copy() if "initial_state" in x else np.zeros((q.shape[1], v.shape[1]), np.uint32)
    D = x["dht"][n, head].copy() if "dht" in x else np.zeros_like(S)
    found = {key: np.zeros_like(like) for key, like in (("o", v), ("dq", q), ("dk", k), ("dv", v), ("dg", q), ("dbeta", beta))}
    kept = []
    for at in range(0, len(q), C):
        part = slice(at, min(at + C, len(q)))
        Q, Kc, Vc, b, G = q[part], k[part], v[part], beta[part], np.cumsum(g[part], 0, dtype=np.uint32)
        tril = np.tril(np.ones((len(Q), len(Q)), np.uint32))
        up, down = ring.exp(G - G[len(Q) // 2]), ring.exp(G[len(Q) // 2] - G)  # the anchor is the middle row
        Aqk = scale * product(cast(Q * up), cast(Kc * down).T) * tril
        L = b * product(Kc * up, (Kc * down).T) * (tril - np.eye(len(Q), dtype=np.uint32))
        if drop is not None and at <= drop[0] < part.stop and drop[1] < drop[0] - at:
            L[drop[0] - at, drop[1]] = NONE
        A = cast(inverse(L, how))
        decay, tail = ring.exp(G), ring.exp(G[-1] - G)
        u, w = product(A, cast(b * Vc)), product(A, cast(b * Kc * decay))
        qg, kg = cast(Q * decay), cast(Kc * tail)
        v_new = cast(u - product(w, cast(S)))
        found["o"][part] = scale * product(qg, cast(S)) + product(Aqk, v_new)
        kept.append((part, tril, up, down, Aqk, A, decay, tail, w, qg, kg, v_new, S))
        S = decay[-1][:, None] * S + product(kg.T, v_new)
    found["final_state"] = S
    for part, tril, up, down, Aqk, A, decay, tail, w, qg, kg, v_new, h in reversed(kept) if "do" in x else ():
        Q, Kc, Vc, b = q[part], k[part], v[part], beta[part]
        do = x["do"][row, part.start + first : part.stop + first, head]
        strict, dh = tril - np.eye(len(Q), dtype=np.uint32), D
        dAqk = scale * product(do, v_new.T) * tril
        dv = product(Aqk.T, do) + product(kg, dh)
        D = decay[-1][:, None] * dh + scale * product(qg.T, do) - product(w.T, dv)
        dq, dk, dw = scale * decay * product(do, h.T), tail * product(v_new, dh.T), -product(dv, h.T)
        dA = (product(dv, Vc.T) + product(dw, (Kc * decay).T)) * b.T
        dAkk = -(strict * product(A.T, product(strict * dA, A.T)))
        dvb, dkb = product(A.T, dv), product(A.T, dw)
        dbeta = (dvb * Vc).sum(1, dtype=np.uint32) + (dkb * Kc * decay).sum(1, dtype=np.uint32)
        dG = Q * dq - Kc * dk + b * dkb * Kc * decay
        dG[-1] += decay[-1] * (h * dh).sum(1, dtype=np.uint32) + (Kc * dk).sum(0, dtype=np.uint32)
        dk = dk + b * decay * dkb
        dqi, rows = up * product(dAqk, Kc * down), up * product(dAkk, Kc * down)
        col = down * (product(dAqk.T, Q * up) + product(dAkk.T, b * Kc * up))
        found["dbeta"][part] = (dbeta + (rows * Kc).sum(1, dtype=np.uint32))[:, None]
        found["dq"][part], found["dk"][part], found["dv"][part] = dq + dqi, dk + b * rows + col, b * dvb
        dG = dG + Q * dqi + Kc * (b * rows - col)
        found["dg"][part] = np.cumsum(dG[::-1], 0, dtype=np.uint32)[::-1]
    return found | {"dinitial_state": D}


def chunks(problem, **words):
    """The same of every sequence and head of a problem, as `ring.answers` has it."""
    x = {key: ring.embed(tensor) for key, tensor in problem.inputs.items() if tensor.dtype in ring.ONE}
    group = x["v"].shape[2] // x["q"].shape[2]
    x.update({key: np.repeat(x[key], group, 2) for key in "qk"})
    if x["g"].ndim == 3:
        x["g"] = np.repeat(x["g"][..., None], x["q"].shape[-1], 3)
    scale = ring.embed(Stored(np.float32([problem.options["scale"]]), "float32"))
    if problem.options.get("state_v_first"):
        x.update({key: x[key].swapaxes(-1, -2) for key in ("initial_state", "dht") if key in x})
    parts = [[chunk(x, scale, first=first, last=last, row=row, n=n, head=head, **words) for head in range(x["v"].shape[2])]
             for n, (row, first, last) in enumerate(ring._sequences(problem))]
    packed = "cu_seqlens" in problem.inputs
    found = {}
    for key in parts[0][0]:
        of_state = key.endswith("state")
        each = [np.stack([head[key] for head in heads], 0 if of_state else 1) for heads in parts]
        found[key] = np.stack(each) if of_state or not packed else np.concatenate(each)[None]
    found["dbeta"] = found["dbeta"][..., 0]
    for key in ("dq", "dk"):
        shape = found[key].shape
        found[key] = found[key].reshape(*shape[:2], shape[2] // group, group, shape[3]).sum(3, dtype=np.uint32)
    if problem.inputs["g"].data.ndim == 3:
        found["dg"] = found["dg"].sum(3, dtype=np.uint32)
    if problem.options.get("state_v_first"):
        found.update({key: found[key].swapaxes(-1, -2) for key in ("final_state", "dinitial_state")})
    return found


def small(target, **words):
    problem = kda_check.regime(target, **words)
    return kda_check.Fixture(_with_loss(problem.inputs, True), problem.options, {}, problem.name)


def every_regime():
    listed = json.loads(_program.run(["list", "regimes"], reports=["json"]).reports["json"])["regimes"]
    return [row["name"] for row in listed if row["name"] not in ("serve", "decode")]


def test_numbers_have_the_payloads_of_triton():
    # exp and exp2 of FpSan agree about log2 e only if its number embeds to the constant that is written in Triton.
    assert ring.embed(Stored(np.float32([0, 1, -1, 1.4426950216]), "float32")).tolist() == [0, 1, 2**32 - 1, ring.LOG2_E]
    for dtype, ones in (("bfloat16", np.uint16([0, 0x3F80, 0xBF80])), ("float16", np.float16([0, 1, -1]))):
        assert ring.embed(Stored(ones, dtype)).tolist() == [0, 1, 2**32 - 1]
        every = np.arange(1 << 16).astype(np.uint16)
        payload = ring.embed(Stored(every.view(ones.dtype), dtype))
        assert len(set((payload & SHORT).tolist())) == 1 << 16  # no two floats are the same number
        assert np.array_equal(unembed(payload[::97], dtype), every[::97])
    x, y = np.random.default_rng(1).integers(0, 1 << 32, (2, 1000), np.uint32)
    assert np.array_equal(ring.exp(x + y), ring.exp(x) * ring.exp(y)) and ring.exp(NONE[None])[0] == 1
    assert np.array_equal((ring.exp(x & SHORT) ^ ring.exp(x)) & SHORT, np.zeros(1000, np.uint32))


def test_it_computes_what_triton_compiles():
    # Of code that Triton 3.9 compiled for an H100 with FpSan and homomorphic casts, one warp of it carried out on a CPU:
    # tl.exp, a product that is stored as bf16, and KDA token by token.
    numbers = np.uint32([0x40490FDB, 0x9F767C45, 0x4164D839, 0xBDE5C099, 0x5BC8FBBC])
    payload = ring.embed(Stored(numbers.view(np.float32), "float32"))
    exps = [0x7C302A56, 0xE88B382F, 0x362E8AE0, 0xA3D0E717, 0xB5676223]
    assert unembed(ring.exp(payload), "float32").tolist() == exps
    assert unembed(payload[:-1] * payload[1:], "bfloat16").tolist() == [0x0300, 0x7CA9, 0x55D7, 0x2F97]
    for dtype, bits in (("bf16", "b24254587fda028c8388a84273ff5971"), ("fp32", "19fb882796a0ab5aa337fa5de507394a")):
        problem = kda_check.regime("control", T=21, H=1, K=8, V=8, dtype=dtype)
        plain = {key: x for key, x in problem.inputs.items() if key != "initial_state"}
        found = ring.answers(kda_check.Fixture(plain, problem.options, {}))
        o, state = unembed(found["o"], plain["v"].dtype), unembed(found["final_state"], "float32")
        assert hashlib.sha256(o.tobytes() + state.tobytes()).hexdigest()[:32] == bits


@pytest.mark.parametrize("how", ["substitution", "doubling", "horner"])
def test_chunks_are_the_recurrence_in_every_bit_of_both_passes(how):
    tried = 0
    for name in every_regime():
        try:
            problem = small(name, B=1, T=37, H=1, HV=2, K=8, V=5, seed=3)
            want = ring.answers(problem)
        except (kda_check.KdaCheckError, kda_check.Unsupported):
            continue  # a call on a pool, or with shapes of its own
        if problem.inputs["beta"].data.ndim == 4:
            continue  # betas of columns: no chunk form has them
        got = chunks(problem, C=16, how=how)
        tried += 1
        for key in want:
            assert np.array_equal(got[key], want[key]), (name, key)
    assert tried > 20


def test_packs_betas_of_columns_and_one_gate_for_all_channels_are_in_the_ring():
    packed = small("control:H=2,K=8,V=8", lengths=(3, 0, 17, 20))
    turned = kda_check.Fixture(packed.inputs, {**packed.options, "state_v_first": 1}, {})
    scalar = kda_check.Fixture({**packed.inputs, "g": Stored(packed.inputs["g"].data[..., 0].copy(), "float32")}, packed.options, {})
    for problem in (packed, turned, scalar):
        want, got = ring.answers(problem), chunks(problem, C=16, how="substitution")
        for key in want:
            assert np.array_equal(got[key], want[key]), key
    columns = np.repeat(packed.inputs["beta"].data[..., None], 8, 3)
    wide = ring.answers(kda_check.Fixture({**packed.inputs, "beta": Stored(columns, "float32")}, packed.options, {}))
    assert np.array_equal(wide["o"], ring.answers(packed)["o"])
    assert np.array_equal(wide["dbeta"].sum(3, dtype=np.uint32), ring.answers(packed)["dbeta"])


def test_a_kernel_that_rounds_to_16_bits_has_the_low_bits_and_one_dropped_term_is_found():
    problem = small("corr_keys:rho=0.99,T=40,H=1,K=8,V=8,dtype=bf16")
    want = ring.answers(problem)

    def narrow(x):
        return x.astype(np.int16).astype(np.int32).view(np.uint32)

    got = chunks(problem, C=16, how="doubling", cast=narrow)
    assert not np.array_equal(got["final_state"], want["final_state"])
    for key in want:
        assert not np.any((got[key] ^ want[key]) & SHORT), key
    for dropped in ((1, 0), (20, 3), (39, 6)):  # one element of L
        wrong = chunks(problem, C=16, how="doubling", cast=narrow, drop=dropped)
        first = np.argwhere((wrong["o"] ^ want["o"]) & SHORT)[0][1]
        assert first == dropped[0]
        assert np.any((wrong["dk"] ^ want["dk"]) & SHORT)


@pytest.mark.parametrize("dtype,bits", [("fp32", 32), ("bf16", 16)])
def test_a_kernel_in_the_ring_is_judged_by_its_bits(dtype, bits):
    def kernel(q, k, v, g, beta, scale, wrong=False):
        given = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        fixture = kda_check.Fixture({key: kda_check._tensors.stored(x, key) for key, x in given.items()}, {"scale": scale}, {})
        found = chunks(fixture, C=16, how="horner", drop=(20, 3) if wrong else None)
        o = unembed(found["o"], fixture.inputs["v"].dtype)
        return Stored(o, "bfloat16") if bits == 16 else o.view(np.float32), unembed(found["final_state"], "float32").view(np.float32)

    problem = f"control:T=24,H=1,K=4,V=4,dtype={dtype}"
    found = kda_check.verify_fpsan(kernel, problem, framework="numpy")
    assert found.passed and found.bits == {"o": bits, "final_state": 32} and "PASS" in str(found)
    wrong = kda_check.verify_fpsan(lambda q, k, v, g, beta, scale: kernel(q, k, v, g, beta, scale, True), problem, framework="numpy")
    assert not wrong.passed and "first [0, 20, 0, 0]" in wrong.reasons[0] and "FAIL" in str(wrong)


def test_without_fpsan_it_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    with pytest.raises(kda_check.EnvironmentProblem, match="no Triton that has FpSan"), ring._sanitized("torch"):
        pass
    assert set(LOSS.values()) == {"do", "dht"}
