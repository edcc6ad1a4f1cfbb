"""States inside sequences: files, verdicts, and kernels that hand them out as FLA and FlashInfer do."""

import numpy as np
import pytest
from kda_check import Fixture, InputError, check, signatures, verify
from kda_check.fixture import checkpoints_every

from conftest import drawn  # isort: skip

LENGTHS = (100, 0, 37, 130)


def states_behind(q, k, v, g, beta, cu_seqlens=None, initial_state=None, **_):
    """o, final states, and of every sequence the states behind 0, 1, 2 ... tokens, by numpy in the precision of v."""
    ends = np.arange(len(q) + 1) * q.shape[1] if cu_seqlens is None else np.asarray(cu_seqlens)
    flat = {key: x.reshape(-1, *x.shape[2:]) for key, x in dict(q=q, k=k, v=v, g=g, beta=beta).items()}
    key, query = (np.repeat(flat[name], v.shape[2] // q.shape[2], 1) for name in "kq")
    o, every = np.zeros_like(flat["v"]), []
    for n, (begin, end) in enumerate(zip(ends[:-1], ends[1:])):
        zeros = np.zeros((v.shape[2], q.shape[3], v.shape[3]), v.dtype)
        states = [zeros if initial_state is None else initial_state[n].astype(v.dtype)]
        for t in range(begin, end):
            state = states[-1] * np.exp(flat["g"][t])[..., None]
            error = flat["v"][t] - np.einsum("hkv,hk->hv", state, key[t])
            states.append(state + np.einsum("hk,hv->hkv", key[t] * flat["beta"][t][:, None], error))
            o[t] = np.einsum("hkv,hk->hv", states[-1], query[t]) * q.shape[3] ** -0.5
        every.append(states)
    return o.reshape(v.shape), np.stack([states[-1] for states in every]), every


def problem(dtype=np.float32, lengths=LENGTHS, **words):
    x = {key: value.astype(dtype) for key, value in drawn(T=sum(lengths), H=2, K=16, V=8, **words).items()}
    return {**x, "cu_seqlens": np.cumsum([0, *lengths])}


def listed(states, every=64, side="before", lengths=LENGTHS):
    return np.stack([states[n][tokens] for n, tokens in checkpoints_every(every, side, lengths)])


EVERY = {"checkpoint_every": 64, "checkpoint_side": "before"}


@pytest.mark.parametrize("words", [
    EVERY,
    {"checkpoint_every": 32, "checkpoint_side": "after"},
    {"checkpoint_tokens": [130, 0, 5, 100, 64], "checkpoint_sequence": [3, 1, 2, 0, 0]},
], ids=["before", "after", "listed"])  # fmt: skip
@pytest.mark.parametrize("v_first", [False, True])
def test_right_checkpoints_pass(words, v_first):
    x = problem()
    o, final, states = states_behind(**x)
    if "checkpoint_every" in words:
        h = listed(states, *words.values())
    else:
        h = np.stack([states[n][t] for n, t in zip(words["checkpoint_sequence"], words["checkpoint_tokens"])])
    turned = (lambda s: np.ascontiguousarray(s.swapaxes(-1, -2))) if v_first else (lambda s: s)
    report = check(o, final_state=turned(final), checkpoints=turned(h), compute="fp32", state_v_first=v_first, **x, **words)
    assert report.passed, report.text
    assert report["checkpoints"].verdict == "pass" and report["checkpoints"].row["shape"][0] == len(h)


def zero(h, _):
    h[1] = 0
    return "checkpoint 1 (behind 64 tokens of sequence 0): zero, never written?"


def nan(h, _):
    h[1, 1] = np.nan
    return "checkpoint 1 (behind 64 tokens of sequence 0), head 1 alone: NaN, never written?"


def late(h, states):
    h[1] = states[0][66]
    return "checkpoint 1 (behind 64 tokens of sequence 0): it is the state 2 tokens later"


def narrow(h, _):
    h[1] = (h[1].view(np.uint32) & 0xFFFF0000).view(np.float32)
    return "every element is one of bf16"


def exchanged(h, _):
    h[1] = h[1, ::-1].copy()
    return "head 0 has what belongs to head 1, head 1 has what belongs to head 0"


def of_another(h, _):
    h[[1, 4]] = h[[4, 1]]
    return "checkpoint 1 has what belongs to checkpoint 4, checkpoint 4 has what belongs to checkpoint 1"


@pytest.mark.parametrize("wrong", [zero, nan, late, narrow, exchanged, of_another], ids=lambda f: f.__name__)
def test_a_wrong_checkpoint_fails_and_is_named(wrong):
    x = problem()
    o, final, states = states_behind(**x)
    h = listed(states)
    says = wrong(h, states)
    report = check(o, final_state=final, checkpoints=h, compute="fp32", **x, **EVERY)
    assert not report.passed and report["checkpoints"].verdict == "fail" and report["final_state"].verdict == "pass"
    assert says in report["checkpoints"].row["reason"], report["checkpoints"].row["reason"]


def test_checkpoints_in_bf16_have_its_rounding_and_no_more():
    x = problem()
    o, final, states = states_behind(**x)
    h = listed(states)
    bits = h.view(np.uint32)
    nearest = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    from kda_check._tensors import Stored

    for values, verdict in ((nearest, "pass"), (nearest + np.uint16(1), "fail")):
        report = check(o, final_state=final, checkpoints=Stored(values, "bfloat16"), compute="fp32", **x, **EVERY)
        assert report["checkpoints"].verdict == verdict, report.text


@pytest.mark.parametrize("words, says", [
    ({"checkpoint_tokens": [5, 101], "checkpoint_sequence": [0, 0]}, "checkpoint_tokens[1] is 101 but sequence 0 has 100 tokens"),
    ({"checkpoint_tokens": [5], "checkpoint_sequence": [4]}, "checkpoint_sequence[0] is 4; wanted 0..3"),
    ({"checkpoint_tokens": [-1], "checkpoint_sequence": [0]}, "checkpoint_tokens[0] is -1; wanted at least 0"),
    ({"checkpoint_tokens": [5, 6], "checkpoint_sequence": [0]}, "sequence has 1 entries but inputs/checkpoint_tokens has 2"),
    ({"checkpoint_tokens": [5]}, "inputs/checkpoint_sequence is missing"),
    ({"checkpoint_sequence": [0]}, "inputs/checkpoint_tokens is missing"),
    ({"checkpoint_tokens": [5], "checkpoint_sequence": [0], **EVERY}, "are both there"),
    ({"checkpoint_every": 64}, "checkpoint_side"),
    ({"checkpoint_side": "after"}, "checkpoint_side"),
    ({"checkpoint_every": 0, "checkpoint_side": "after"}, "checkpoint_every is 0; wanted at least 1"),
])  # fmt: skip
def test_what_says_no_checkpoints_is_refused_by_name(words, says):
    x = problem()
    with pytest.raises(InputError, match=".*") as refused:
        check(x["v"], **x, **words)
    assert says in str(refused.value)


def test_checkpoints_that_nobody_asked_for_have_no_place():
    x = problem()
    with pytest.raises(ValueError, match="nothing says of which tokens"):
        check(x["v"], checkpoints=np.zeros((1, 2, 16, 8), np.float32), **x)
    with pytest.raises(ValueError, match=r"wanted \[checkpoints,HV,K,V\] = \(6, 2, 16, 8\)"):
        check(x["v"], checkpoints=np.zeros((1, 2, 16, 8), np.float32), **x, **EVERY)


# --- kernels in the words of FLA and FlashInfer


def fla(change=lambda h, states: h):
    def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
                  return_intermediate_states=False):  # fmt: skip
        o, final, states = states_behind(q, k, v, g, beta, cu_seqlens, initial_state)
        lengths = [len(one) - 1 for one in states]
        h = change(listed(states, lengths=lengths), states)
        h = h.reshape(len(q), -1, *h.shape[1:])  # [B,NT,HV,K,V]
        return (o, final, h) if return_intermediate_states else (o, final)

    return chunk_kda


PLAIN = "control:T=150,B=2,H=2,K=16,V=8,seed=3"


@pytest.mark.parametrize("target", [PLAIN, "varlen:H=1,K=16,V=8"])
def test_h_of_a_kernel_like_flas_is_judged(target):
    report = verify(fla(), target, framework="numpy", compute="fp32", checkpoints=64)
    assert report.passed and report["checkpoints"].verdict == "pass", report.text
    wrong = verify(fla(lambda h, _: h * np.nan), target, framework="numpy", compute="fp32", checkpoints=64)
    assert not wrong.passed and wrong["checkpoints"].verdict == "fail" and wrong["o"].verdict == "pass"


def test_a_kernel_with_other_checkpoints_than_the_problem_does_not_take_it():
    with pytest.raises(signatures.Unsupported, match="before every 64 tokens"):
        verify(fla(), PLAIN, framework="numpy", checkpoints=32)


def test_invariants_of_a_kernel_with_checkpoints_look_at_them():
    laws = ["repeat", "heads", "split"]
    report = verify(fla(), PLAIN, framework="numpy", compute="fp32", checkpoints=64, invariants=laws)
    assert report.passed, report.text
    assert {"checkpoints", "o"} <= {one.row["name"] for one in report.tensors() if one.case["against"] == "invariant:heads"}


def test_a_result_without_a_place_is_said_not_to_be_judged():
    report = verify(lambda **x: (*fla()(**x), np.zeros(3)), PLAIN, framework="numpy", compute="fp32")
    assert report.passed and "not judged: result 3" in report.text
    report = verify(lambda q, k, v, g, beta: (*fla()(q, k, v, g, beta), None), PLAIN, framework="numpy", compute="fp32")
    assert "not judged" not in report.text


def test_a_recorded_call_that_asks_for_h_is_judged_on_it():
    torch = pytest.importorskip("torch")
    from kda_check import recording
    from kda_check.recorder import kernel

    def torches(change):
        @kernel(signatures.FLA)
        def chunk_kda(q, k, v, g, beta, return_intermediate_states=False):
            o, final, h = fla(change)(*(x.numpy() for x in (q, k, v, g, beta)), return_intermediate_states=True)
            found = [torch.from_numpy(np.ascontiguousarray(x)) for x in (o, final, h)]
            return tuple(found if return_intermediate_states else found[:2])

        return chunk_kda

    x = {key: torch.from_numpy(value.astype(np.float32)) for key, value in drawn(T=150, H=2).items()}
    with recording() as log:
        torches(lambda h, _: h)(**x, return_intermediate_states=True)
        torches(lambda h, _: h * 0)(**x, return_intermediate_states=True)
        torches(lambda h, _: h * 0)(**x)
    assert [call.verdict for call in log.calls] == ["pass", "fail", "pass"], str(log)
    assert "checkpoints FAIL" in str(log.calls[1]) and "checkpoints" not in str(log.calls[2])


@pytest.mark.parametrize("framework, signature, side", [
    ("numpy", signatures.FLASHINFER_KDA, "before"), ("torch", signatures.FLASHINFER_KDA, "before"),
    ("torch", signatures.FLASHINFER_GDN, "after")], ids=["kda", "kda_torch", "gdn_torch"])  # fmt: skip
def test_state_checkpoints_of_a_kernel_like_flashinfers_are_judged(framework, signature, side):
    if framework == "torch":
        torch = pytest.importorskip("torch")
    assert signature.checkpoint_side == side

    def plain(tensor):
        return tensor.astype(np.float64) if framework == "numpy" else tensor.double().numpy()

    def put(buffer, values):
        buffer[...] = values if framework == "numpy" else torch.from_numpy(values)

    def kernel(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, output=None,
               output_state=None,
               state_checkpoints=None, checkpoint_cu_starts=None, checkpoint_every_n_tokens=0):  # fmt: skip
        x = {key: plain(tensor) for key, tensor in dict(q=q, k=k, v=v, g=g, beta=beta).items()}
        if q.ndim == 3:
            x = {key: value[None] for key, value in x.items()}
            x["g"] = np.repeat(np.log(x["g"])[..., None], q.shape[-1], -1)
        before = None if initial_state is None else plain(initial_state).swapaxes(-1, -2)
        o, final, states = states_behind(**x, cu_seqlens=cu_seqlens, initial_state=before)
        rows = checkpoints_every(checkpoint_every_n_tokens, side, [len(one) - 1 for one in states])
        assert int(checkpoint_cu_starts[-1]) == len(rows)
        for row, (n, tokens) in enumerate(rows):
            put(state_checkpoints[row], states[n][tokens].swapaxes(-1, -2) * (row != kernel.missed))
        state = output_state if q.ndim == 3 else initial_state
        put(state, final.swapaxes(-1, -2))
        out = (o[0] if q.ndim == 3 else o).astype(np.float32)
        if output is not None:
            put(output, out)
        answer = out if framework == "numpy" else torch.from_numpy(out)
        return (answer, state) if q.ndim == 3 else (answer, state, state_checkpoints)

    x = problem(lengths=(100, 130))
    if side == "after":
        x["g"] = x["g"][..., :1].repeat(16, -1)
    asked = Fixture.of(**x, state_v_first=True)
    for kernel.missed, verdict in ((None, "pass"), (1, "fail")):
        report = verify(kernel, asked, signature=signature, framework=framework, compute="fp32", checkpoints=32)
        assert report["checkpoints"].verdict == verdict and report["o"].verdict == "pass", report.text
    assert "checkpoint 1 (behind" in report["checkpoints"].row["reason"]
