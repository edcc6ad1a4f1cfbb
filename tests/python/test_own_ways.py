"""verify on kernels of numpy that have their own scale, layout of states or precision, without words for others."""

import kda_check
import numpy as np
import pytest
from kda_check import Fixture, Signature, Unsupported, signatures

SMALL = "control:T=20,H=2,K=16,V=8"
V_FIRST = Signature(fixed={"state_v_first": True}, compute={"float32": "fp32", "bfloat16": "fp32", "float64": "fp64"})


def k_first(q, k, v, g, beta, scale, initial_state=None):
    """The recurrence on states [K][V], heads of q and k shared or not."""
    q, k = (np.repeat(x, v.shape[2] // x.shape[2], 2) for x in (q, k))
    state = np.zeros((q.shape[0], *k.shape[2:], v.shape[-1])) if initial_state is None else initial_state
    o, (q, k, values, g, beta, state) = np.zeros_like(v), (np.asarray(x, np.float64) for x in (q, k, v, g, beta, state))
    for t in range(q.shape[1]):
        state = state * np.exp(g[:, t])[..., None]
        error = (values[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t][..., None]
        state = state + k[:, t][..., None] * error[..., None, :]
        o[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t] * scale)
    return o, state.astype(np.float64 if v.dtype == np.float64 else np.float32)


def v_first(q, k, v, g, beta, scale, initial_state=None):
    o, state = k_first(q, k, v, g, beta, scale, None if initial_state is None else initial_state.swapaxes(-1, -2))
    return o, state.swapaxes(-1, -2)


def without_scale(q, k, v, g, beta, initial_state=None):
    return k_first(q, k, v, g, beta, q.shape[-1] ** -0.5, initial_state)


def with_states(**options):
    """A problem with an initial state [K][V]."""
    inputs = kda_check.regime(SMALL).inputs
    state = np.random.default_rng(1).standard_normal((1, 2, 16, 8), np.float32)
    return Fixture.of(**inputs, initial_state=state, **options)


def test_states_are_turned_for_a_kernel_that_has_them_the_other_way():
    for problem in (SMALL, with_states()):
        report = kda_check.verify(v_first, problem, framework="numpy", signature=V_FIRST, invariants=["split", "inputs"])
        assert report.passed and len(report.cases) == 3, report
        assert "states are [V][K], as the kernel has them" in str(report)
    turned = {**with_states().inputs, "initial_state": np.swapaxes(with_states().inputs["initial_state"].data, -1, -2).copy()}
    report = kda_check.verify(k_first, Fixture.of(**turned, state_v_first=True), framework="numpy")
    assert report.passed and "states are [K][V], as the kernel has them" in str(report)


def test_turned_states_that_are_wrong_fail():
    def confused(q, k, v, g, beta, scale, initial_state=None):
        return k_first(q, k, v, g, beta, scale, initial_state)  # and says that they are [V][K]

    report = kda_check.verify(confused, SMALL.replace("V=8", "V=16"), framework="numpy", signature=V_FIRST)
    assert report["final_state"].verdict == "fail" and report["o"].passed

    def scribbling(q, k, v, g, beta, scale, initial_state=None):
        answer = v_first(q, k, v, g, beta, scale, initial_state)
        initial_state[:] = 0
        return answer

    report = kda_check.verify(scribbling, with_states(), framework="numpy", signature=V_FIRST, invariants=["inputs"])
    assert report.cases[1]["verdict"] == "fail" and "initial_state" in report.cases[1]["reason"]


def test_no_problem_of_a_suite_is_refused_for_its_layout(tmp_path):
    (tmp_path / "mine.txt").write_text("control:T=20,K=16,V=8\nlayout_asym:T=20 layout_asym:T=20,v_first=1\n")
    for kernel, signature in ((v_first, V_FIRST), (k_first, None)):
        report = kda_check.verify(kernel, f"@{tmp_path}/mine.txt", framework="numpy", signature=signature)
        assert [case["verdict"] for case in report.cases] == ["pass"] * 3, report


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("scale, factor", [(0.25, 1), (1.0, 4), (0.3, 1.2), (-2.0, -8)])
def test_q_carries_the_scale_of_a_kernel_without_a_word_for_it(dtype, scale, factor, tmp_path):
    problem = kda_check.regime(SMALL, dtype=dtype)
    problem.options["scale"] = scale
    report = kda_check.verify(without_scale, problem, framework="numpy", compute="fp32", save=tmp_path / "kept.h5")
    assert report.passed, report
    judged = Fixture.read(tmp_path / "kept.h5")
    q, given = (x.inputs["q"].numpy().astype(np.float64) for x in (problem, judged))
    # The problem that is judged is the one that the kernel had; and without a rounding the very same.
    assert judged.options["scale"] == 0.25 and np.allclose(given, factor * q, rtol=2**-7)
    assert np.array_equal(given, factor * q) == (factor != 1.2)
    assert ("times 1.2, rounded" in str(report)) == (factor == 1.2) and ("q carries" in str(report)) == (factor != 1)


def test_a_scale_that_is_wrong_fails_though_q_carries_it():
    problem = kda_check.regime(SMALL)
    problem.options["scale"] = 1.0
    report = kda_check.verify(lambda q, k, v, g, beta: k_first(q, k, v, g, beta, 1.0), problem, framework="numpy")
    assert report["o"].verdict == "fail" and report["final_state"].passed


def test_what_q_cannot_carry_is_said():
    problem = kda_check.regime(SMALL)
    problem.options.update(scale=1.0, qk_l2norm=1)
    with pytest.raises(Unsupported, match="the kernel has scale = 0.25 always, the problem 1, and q cannot carry it: q is normalized"):
        kda_check.verify(lambda q, k, v, g, beta, qk_l2norm: v, problem, framework="numpy")
    problem = kda_check.regime(SMALL, dtype="fp16")
    problem.options["scale"] = 1e9
    with pytest.raises(Unsupported, match="q times 4e.09 is not finite"):
        kda_check.verify(without_scale, problem, framework="numpy")


def test_under_a_suite_q_carries_what_needs_no_rounding(tmp_path):
    for name, scale in (("power", 1.0), ("other", 0.3)):
        problem = kda_check.regime(SMALL)
        problem.options["scale"] = scale
        problem.write(tmp_path / f"{name}.h5")
    (tmp_path / "mine.txt").write_text("power.h5\nother.h5\n")
    report = kda_check.verify(without_scale, f"@{tmp_path}/mine.txt", framework="numpy")
    assert [case["verdict"] for case in report.cases] == ["pass", "skipped"], report
    assert "q times 1.2 is another one, rounded" in report.cases[1]["reason"]


def coarse(q, k, v, g, beta, scale):
    """With operands of tf32: 10 bits."""
    q, k, v = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (q, k, v))
    return k_first(q, k, v, g, beta, scale)


def test_compute_follows_from_the_tensors_unless_somebody_says_it():
    report = kda_check.verify(coarse, SMALL, framework="numpy")
    assert not report.passed and {(case["compute"], case["compute_assumed"]) for case in report.cases} == {("fp32", True)}
    assert "coarse: compute assumed fp32, the element type of its o" in str(report)
    for words in ({"compute": "tf32"}, {"signature": signatures.FLA}):
        report = kda_check.verify(coarse, SMALL, framework="numpy", **words)
        assert report.passed and {case["compute"] for case in report.cases} == {"tf32"}
        assert ("coarse: compute as its signature says, tf32 for float32" in str(report)) == ("signature" in words)
        assert bool(report.notes) == ("signature" in words)


def test_compute_is_said_of_suites_and_laws_too(tmp_path):
    (tmp_path / "mine.txt").write_text(SMALL + "\n")
    assert "coarse: compute assumed fp32" in str(kda_check.verify(coarse, f"@{tmp_path}/mine.txt", framework="numpy"))
    report = kda_check.verify(coarse, f"@{tmp_path}/mine.txt", framework="numpy", signature=signatures.FLA)
    assert report.passed and "compute as its signature says, tf32" in str(report) and report.documents[0]["fixtures"][0]["notes"]


def test_a_scale_that_is_fixed_is_carried_too():
    def unscaled(q, k, v, g, beta):
        return k_first(q, k, v, g, beta, 1.0)

    signature = Signature(fixed={"scale": 1.0})
    report = kda_check.verify(unscaled, SMALL, framework="numpy", signature=signature, invariants=["repeat"])
    assert report.passed and "scale 0.25: the kernel has 1 always, and q carries the rest, times 0.25" in report.notes
    assert not kda_check.verify(unscaled, SMALL, framework="numpy").passed


def test_what_a_signature_converts_itself_is_left_to_it():
    def mine(q, k, v, g, beta, log_scale, initial_state=None):
        return v_first(q, k, v, g, beta, np.exp(log_scale), initial_state)

    def to_kernel(words):
        found = {key: x for key, x in words.items() if key != "scale"}
        state = {"initial_state": words["initial_state"].swapaxes(-1, -2)} if "initial_state" in words else {}
        return {**found, **state, "log_scale": np.log(words["scale"]), "state_v_first": True}

    signature = Signature(fixed={"state_v_first": True}, to_kernel=to_kernel,
                          to_answer=lambda found: {**found, "final_state": found["final_state"].swapaxes(-1, -2)})  # fmt: skip
    report = kda_check.verify(mine, with_states(scale=0.3), framework="numpy", signature=signature, invariants=["repeat"])
    assert report.passed and not any("carries" in note or "states" in note for note in report.notes), report


def test_gradients_are_those_of_the_problem_that_is_judged(tmp_path):
    torch = pytest.importorskip("torch")
    from kernels import chunk_kda

    def v_first(q, k, v, g, beta, initial_state):
        o, state = chunk_kda(q, k, v, g, beta, None, initial_state.transpose(-1, -2), True)
        return o, state.transpose(-1, -2)

    problem = with_states(scale=0.5, do=torch.ones(1, 20, 2, 8), dht=torch.ones(1, 2, 16, 8))
    problem.write(tmp_path / "mine.h5")
    (tmp_path / "mine.txt").write_text("mine.h5\n")
    for scale, asked in ((0.5, problem), (0.5, f"@{tmp_path}/mine.txt"), (0.3, problem)):
        problem.options["scale"] = scale
        report = kda_check.verify(v_first, asked, framework="torch", signature=V_FIRST, backward=True)
        names = ["o", "final_state", "dq", "dk", "dv", "dg", "dbeta", "dinitial_state"]
        assert report.passed and [row.row["name"] for row in report.tensors()] == names, report
