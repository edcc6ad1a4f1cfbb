import collections
import re

import kda_check
import numpy as np
import numpy_kernels
import pytest

hypothesis = pytest.importorskip("hypothesis")
strategies = kda_check.strategies
quick = hypothesis.settings(deadline=None, max_examples=25, database=None, suppress_health_check=list(hypothesis.HealthCheck))


def kernel(fault=lambda state, t, v: state):
    def my_kernel(q, k, v, g, beta, scale, initial_state=None, output_final_state=True, cu_seqlens=None):
        return numpy_kernels.right(q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, fault)

    return my_kernel


WAYS = {"framework": "numpy", "compute": "fp32"}


def test_a_kernel_that_fails_behind_so_many_tokens_is_found_and_shrunk_to_them():
    wrong = kernel(lambda state, t, v: state * 0 if t == 33 else state)
    found = kda_check.search(wrong, seconds=40, strategy=strategies.problems(regimes=["control", "gate_zero"]), **WAYS)
    assert not found.passed and found.problem.inputs["q"].shape == (1, 34, 1, 16) and "cu_seqlens" not in found.problem.inputs
    assert found.report.verdict == "fail" and "FAIL" in str(found) and repr(found.problem) in found.test
    body = re.sub("from my_kernels.*", "", found.test) + "\ntest_my_kernel_on_the_smallest_problem_that_fails()\n"
    with pytest.raises(AssertionError, match="FAIL"):
        exec(body, {"my_kernel": wrong})
    exec(body, {"my_kernel": kernel()})


@pytest.mark.parametrize(
    ("fault", "is_smallest"),
    [
        (lambda state, t, v: state * (t > 0), lambda problem: "initial_state" in problem.inputs),
        (lambda state, t, v: state * np.float32(1 - 2e-3 * (v.shape[2] > 1)), lambda problem: problem.inputs["v"].shape[2] == 2),
        (lambda state, t, v: state[::-1] / (v.shape[-1] != 48), lambda problem: problem.inputs["v"].shape[-1] == 48),
    ],
)
def test_what_shows_with_some_extents_alone_is_found(fault, is_smallest):
    some = strategies.problems(regimes=["control", "layout_asym"], widths=(16, 48), tokens=20)
    with np.errstate(all="ignore"):
        found = kda_check.search(kernel(fault), seconds=40, strategy=some, **WAYS)
    assert not found.passed and is_smallest(found.problem) and found.problem.inputs["q"].shape[1] <= 2


def test_a_right_kernel_passes_and_the_problem_nearest_to_a_limit_is_said():
    found = kda_check.search(kernel(), seconds=3, **WAYS)
    assert found.passed and found.problem is None and found.report is None and found.tried > 3
    assert 0.05 < found.nearest[1] < 1 and "none fails; nearest to a limit" in str(found)


def test_a_kernel_that_raises_fails_and_one_that_takes_nothing_is_said():
    def raises(q, k, v, g, beta, scale, initial_state=None, output_final_state=True):
        return kernel()(q, k, v, g, beta, scale, initial_state)[0 if v.shape[2] < 3 else "three heads"], None

    assert kda_check.search(raises, seconds=20, **WAYS).reason.startswith("it raised TypeError")
    with pytest.raises(kda_check.Unsupported, match="none of these"):
        packed = strategies.problems(packed=True)
        kda_check.search(lambda q, k, v, g, beta, scale: v, seconds=1, strategy=packed, **WAYS)
    with pytest.raises(TypeError, match="no word of a search: dtype"):
        kda_check.search(kernel(), dtype="bf16")


def test_problems_have_what_was_asked_for_and_say_how_they_are_made():
    seen = collections.Counter()

    @quick
    @hypothesis.given(strategies.problems(("fp32", "bf16"), tokens=30, widths=(8,), value_widths=(4, 12)))
    def asked(problem):
        batch, tokens, heads, width = problem.inputs["q"].shape
        assert tokens <= 30 and heads <= 3 and width == 8 and problem.inputs["v"].shape[-1] in (4, 12)
        seen.update([problem.inputs["q"].dtype, "cu_seqlens" in problem.inputs])
        again = eval(repr(problem), {"kda_check": kda_check})
        assert all(np.array_equal(x.data, again.inputs[name].data) for name, x in problem.inputs.items())

    @quick
    @hypothesis.given(strategies.pool_calls("fp32"))
    def calls(problem):
        assert {"state_pool", "state_indices"} <= set(problem.inputs)

    asked(), calls()
    assert {"float32", "bfloat16", True, False} <= set(seen)


def test_lengths_pack_a_regime():
    problem = kda_check.regime("layout_asym", lengths=(3, 0, 5), H=2, K=8, V=8)
    whole = kda_check.regime("layout_asym", T=8, H=2, K=8, V=8)
    assert problem.inputs["cu_seqlens"].data.tolist() == [0, 3, 3, 8] and problem.inputs["initial_state"].shape[0] == 3
    assert np.array_equal(problem.inputs["initial_state"].data[1] * -2, whole.inputs["initial_state"].data[0])
    assert repr(problem) == "kda_check.regime('layout_asym', lengths=(3, 0, 5), H=2, K=8, V=8)"
    for name, words in (("varlen", {}), ("serve", {}), ("control", {"B": 2}), ("control", {"T": 9})):
        with pytest.raises((ValueError, kda_check.KdaCheckError)):
            kda_check.regime(name, lengths=(4, 4), **words)
