import os

import kda_check
import numpy as np
import pytest
from conftest import recurrence
from kda_check import Signature, Unsupported, signatures

torch = pytest.importorskip("torch")
from kernels import chunk_kda  # noqa: E402

SMALL = "control:T=70,H=2,K=16,V=8"


def test_a_regime_is_a_problem_with_its_parameters():
    fixture = kda_check.regime("corr_keys", T=32, K=16, dtype="bf16", loss=1)
    assert fixture.inputs["q"].dtype == "bfloat16" and fixture.inputs["do"].shape == (1, 32, 2, 64)
    assert kda_check.regime("corr_keys:T=32", K=16).inputs["q"].shape == (1, 32, 2, 16)
    with pytest.raises(kda_check.KdaCheckError, match="no_such"):
        kda_check.regime("no_such")


def test_a_suite_has_problems():
    problems = kda_check.suite("@smoke")
    assert "residual_cancel" in problems and "onehot_exact:T=128,dtype=bf16" in problems

    class Reached(Exception):
        pass

    def reached(**given):
        raise Reached

    for problem in {os.path.splitext(each)[1]: each for each in problems}.values():  # a regime, and a file
        with pytest.raises(Reached):
            kda_check.verify(reached, problem)


def test_a_right_kernel_passes_with_gradients_and_laws():
    report = kda_check.verify(chunk_kda, kda_check.regime(SMALL), backward=True, invariants=True, compute="fp32")
    assert report.passed, report
    assert {row.row["name"] for row in report.tensors()} >= {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta"}
    assert {case["against"] for case in report.cases} >= {"oracle", "invariant:split", "invariant:inputs"}


@pytest.mark.parametrize("name, mutate", [
    ("exp2", lambda words: {**words, "g": words["g"] * np.log(2)}),
    ("scale", lambda words: {**words, "scale": 0.3}),
    ("beta", lambda words: {**words, "beta": words["beta"].bfloat16()}),
])
def test_a_wrong_kernel_fails(name, mutate):
    assert not kda_check.verify(lambda **words: chunk_kda(**mutate(words)), SMALL, name=name, compute="fp32").passed


def test_wrong_gradients_alone_fail():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient * 1.05

    report = kda_check.verify(lambda **words: chunk_kda(**{**words, "k": Wrong.apply(words["k"])}), SMALL, backward=True, compute="fp32")
    assert report["dk"].verdict == "fail" and report["o"].passed and report["dq"].passed


def test_a_kernel_that_drops_the_state_breaks_a_law():
    def stateless(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None):
        return chunk_kda(q, k, v, g, beta, scale, None, output_final_state, cu_seqlens=cu_seqlens)

    report = kda_check.verify(stateless, SMALL, invariants=["split", "repeat"], compute="fp32")
    laws = {case["against"]: case["verdict"] for case in report.cases}
    assert laws == {"oracle": "pass", "invariant:split": "fail", "invariant:repeat": "pass"}


def test_a_kernel_that_works_in_place_breaks_a_law():
    def scribbling(**words):
        answer = chunk_kda(**words)
        words["v"].zero_()
        return answer

    report = kda_check.verify(scribbling, SMALL, invariants=["inputs"], compute="fp32")
    assert [case["verdict"] for case in report.cases] == ["pass", "fail"] and "v" in report.repro


def test_what_a_kernel_raises_under_a_law_is_quoted():
    def picky(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        if q.shape[1] < 70:
            raise RuntimeError("T must be 70\nor more")
        return chunk_kda(q, k, v, g, beta, scale, initial_state, output_final_state)

    report = kda_check.verify(picky, SMALL, invariants=["causality", "neighbour"], compute="fp32")
    reasons = {case["against"]: (case["verdict"], case["reason"]) for case in report.cases}
    assert reasons["invariant:causality"][0] == "fail" and "RuntimeError: T must be 70 or more" in reasons["invariant:causality"][1]
    assert reasons["invariant:neighbour"][0] == "skipped" and "cu_seqlens" in reasons["invariant:neighbour"][1]


def test_what_a_kernel_raises_is_passed_on():
    def broken(**words):
        raise RuntimeError("no such kernel image")

    with pytest.raises(RuntimeError, match="no such kernel image"):
        kda_check.verify(broken, SMALL)
    with pytest.raises(Unsupported, match="takes no A_log, beta_sigmoid, dt_bias"):
        kda_check.verify(lambda q, k, v, g, beta, scale, output_final_state, initial_state=None: None, "bwd_chain:T=8",
                         signature=Signature(fixed={"qk_l2norm": True, "gate": "lower_bound"}))


def test_a_kernel_that_passes_its_words_on_is_asked_for_no_chunk_size():
    def inner(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        return chunk_kda(q, k, v, g, beta, scale, initial_state, output_final_state)

    assert kda_check.verify(lambda **given: inner(**given), SMALL, compute="fp32").passed


def test_a_suite_is_tried_whole(tmp_path):
    (tmp_path / "mine.txt").write_text("control:T=20 varlen --dtype fp32,bf16\ncorr_keys:T=40\nlayout_asym:v_first=1\n")
    report = kda_check.verify(chunk_kda, f"@{tmp_path}/mine.txt", compute="fp32")
    verdicts = [(case["fixture"], case["verdict"]) for case in report.cases]
    # The last has states with V first: not for this kernel, as it asserts.
    assert [verdict for _, verdict in verdicts] == ["pass"] * 5 + ["fail"], verdicts


def test_gradients_of_a_suite_are_those_of_its_problems_with_a_loss(tmp_path):
    (tmp_path / "mine.txt").write_text("control:T=20\nbwd_tail:T=20,K=8,V=8\n")
    for backward in (False, True):
        report = kda_check.verify(chunk_kda, f"@{tmp_path}/mine.txt", compute="fp32", backward=backward)
        assert report.passed, report
        passes = [(case["fixture"][:7], case["pass"]) for case in report.cases]
        assert passes == [("control", "forward"), ("bwd_tai", "forward"), ("bwd_tai", "backward")][:3 if backward else 2]


def test_gradients_are_held_to_the_laws():
    class Lost(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient.half().float()

    def rounded(initial_state=None, **words):
        return chunk_kda(**words, initial_state=None if initial_state is None else Lost.apply(initial_state))

    report = kda_check.verify(rounded, "bwd_tail:T=70,K=16,V=8", backward=True, invariants=["split", "repeat"], compute="fp32")
    laws = {(case["pass"], case["against"]): case["verdict"] for case in report.cases if case["against"] != "oracle"}
    assert laws == {("forward", "invariant:split"): "pass", ("forward", "invariant:repeat"): "pass",
                    ("backward", "invariant:split"): "fail", ("backward", "invariant:repeat"): "pass"}, report


def test_bfloat16_reaches_the_kernel_as_it_is():
    seen = {}

    def kernel(**words):
        seen.update({name: str(x.dtype) for name, x in words.items() if torch.is_tensor(x)})
        return chunk_kda(**words)

    assert kda_check.verify(kernel, SMALL + ",dtype=bf16", backward=True, compute="fp32").passed
    assert seen["q"] == "torch.bfloat16" and seen["g"] == "torch.float32"


def test_a_numpy_kernel_with_words_of_its_own():
    def mine(query, key, value, decay, rate, factor):
        return recurrence(query, key, value, decay, rate, factor)

    words = {"query": "q", "key": "k", "value": "v", "decay": "g", "rate": "beta", "factor": "scale"}
    report = kda_check.verify(mine, SMALL, framework="numpy", signature=Signature(words=words), compute="fp32")
    assert report.passed, report
    with pytest.raises(Unsupported, match="gradients need torch or jax"):
        kda_check.verify(mine, SMALL, framework="numpy", signature=Signature(words=words), backward=True)


def test_flash_kda_writes_to_buffers():
    def fwd(q, k, v, g, beta, scale, out, A_log, dt_bias, lower_bound, initial_state=None, final_state=None, cu_seqlens=None):
        assert dt_bias.ndim == 2
        gate = lower_bound * torch.sigmoid(A_log.exp()[:, None] * (g.float() + dt_bias))
        state = None if initial_state is None else initial_state.transpose(-1, -2)
        o, s = chunk_kda(q, k, v, gate, beta, scale, state, True, True, use_beta_sigmoid_in_kernel=True, cu_seqlens=cu_seqlens)
        out.copy_(o), final_state.copy_(s.transpose(-1, -2))

    q, k, v, g = (torch.randn(1, 20, 2, 16).bfloat16() for _ in range(4))
    words = dict(q=q, k=k, v=v, g=g, beta=torch.randn(1, 20, 2).bfloat16(), A_log=torch.randn(2), dt_bias=torch.randn(2, 16),
                 lower_bound=-5.0, initial_state=torch.randn(1, 2, 16, 16), qk_l2norm=True, beta_sigmoid=True, state_v_first=True,
                 safe_gate=True)  # fmt: skip
    report = kda_check.verify(fwd, kda_check.Fixture.of(**words), signature=signatures.FLASH_KDA, compute="fp32", invariants=["repeat", "poison"])
    assert report.passed, report
    with pytest.raises(Unsupported, match="the kernel has qk_l2norm = True always"):
        kda_check.verify(fwd, SMALL, signature=signatures.FLASH_KDA)


def test_flashinfer_updates_its_state_in_place():
    def recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
                      use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None, cu_seqlens=None, output=None):
        o, s = chunk_kda(q, k, v, g, beta, scale, initial_state.transpose(-1, -2), True, use_qk_l2norm_in_kernel)
        initial_state.copy_(s.transpose(-1, -2)), output.copy_(o)
        return output, initial_state

    fixture = kda_check.regime(SMALL)
    fixture.options["state_v_first"] = 1
    report = kda_check.verify(recurrent_kda, fixture, signature=signatures.FLASHINFER_KDA, compute="fp32", invariants=["split", "inputs"])
    assert report["final_state"].passed and report["o"].passed, report
    report = kda_check.verify(recurrent_kda, SMALL, signature=signatures.FLASHINFER_KDA, compute="fp32", invariants=["split", "inputs"])
    assert report["final_state"].passed and report["o"].passed, report


def test_a_kernel_with_one_gate_for_a_head_takes_problems_that_have_one():
    def gdn(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        return chunk_kda(q, k, v, g[..., None].expand(*k.shape), beta, scale, initial_state, output_final_state)

    gdn_words = signatures.FLA_GDN
    assert kda_check.verify(gdn, "corr_keys:T=32,K=16,V=16", signature=gdn_words, compute="fp32").passed
    with pytest.raises(Unsupported, match="one gate for a head"):
        kda_check.verify(gdn, SMALL, signature=gdn_words)


@pytest.mark.parametrize("name", ["k", "beta"])
def test_a_gradient_that_a_kernel_forgets_is_wrong(name):
    def forgetful(**given):
        return chunk_kda(**{**given, name: given[name].detach()})

    report = kda_check.verify(forgetful, SMALL, backward=True, compute="fp32")
    assert report[f"d{name}"].verdict == "fail" and report["dq"].passed and report["o"].passed


def test_the_loss_is_what_the_kernel_was_given():
    def rounding(**given):
        o, state = chunk_kda(**given)
        return o.bfloat16(), state

    report = kda_check.verify(rounding, SMALL, backward=True, compute="fp32")
    assert report["dq"].passed and report["dv"].passed, report


def test_an_output_without_a_gradient_is_wrong_and_a_kernel_without_any_has_no_backward_pass():
    def forward_only(**given):
        return chunk_kda(**{name: x.detach() if torch.is_tensor(x) else x for name, x in given.items()})

    def state_only(**given):
        o, state = chunk_kda(**given)
        return o, state.detach()

    problem = kda_check.Fixture.of(**kda_check.regime("control", T=20, K=16, V=8).inputs)
    problem.inputs.update(do=problem.inputs["v"], dht=kda_check._tensors.Stored(np.ones((1, 2, 16, 8), np.float32), "float32"))
    assert kda_check.verify(chunk_kda, problem, backward=True, compute="fp32").passed
    assert kda_check.verify(state_only, problem, backward=True, compute="fp32")["dk"].verdict == "fail"
    with pytest.raises(Unsupported, match="no backward pass"):
        kda_check.verify(forward_only, problem, backward=True, compute="fp32")
