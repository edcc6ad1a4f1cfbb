"""Some rows of `python tests/python/mutants.py`, which docs/verdicts.md sums up."""

import pytest

pytest.importorskip("torch")
import mutants  # noqa: E402


@pytest.fixture(scope="module")
def forward():
    return mutants.Trial("fp16")


@pytest.fixture(scope="module")
def backward():
    return mutants.Trial("fp16", backward=True)


def test_the_right_kernel_passes_both(forward, backward):
    for trial in (forward, backward):
        answer = trial.answered({}, 0)
        assert trial.fla(answer)[2] and trial.ours(answer).passed


def judged(trial, name, share):
    """(whether FLA's tests let it pass, our report)"""
    answer = trial.answered(trial.difference(name), share)
    return trial.fla(answer)[2], trial.ours(answer)


@pytest.mark.parametrize("name, share, named", [
    ("element_too_large", 1, "o: "), ("decay_missed", 1, "o: "), ("write_lost", 0.3, "o: "), ("window_too_large", 0.1, "tokens 248..255 of head 0"),
    ("last_rows_too_large", 0.03, "rows 63 mod 64, all heads"), ("wrong_head_in_a_chunk", 0.03, "tokens 192..255 of head 0"),
    ("column_too_large", 0.03, "column 16 of head 0"), ("head_too_large", 0.003, "head 3: 0.3 % too large"),
    ("state_row_too_large", 0.03, "row 32 of head 0"), ("state_not_carried", 0.03, "o: "), ("exp2_for_exp", 0.03, "the log decays"),
])
def test_a_wrong_kernel_within_their_tolerance_fails_ours_and_is_named(forward, name, share, named):
    passes, report = judged(forward, name, share)
    assert passes and mutants.verdict(report) == "FAIL" and named in mutants.sentence(report)


@pytest.mark.parametrize("name, share, tensor", [("first_token_masked", 0.1, "dg"), ("not_transposed", 0.03, "dk"), ("amplitude_not_raised", 1, "dA_log")])
def test_a_wrong_gradient_within_their_tolerance_fails_ours(backward, name, share, tensor):
    passes, report = judged(backward, name, share)
    assert passes and report[tensor].verdict == "fail" and report["o"].passed


def test_products_of_less_precision_than_said_fail(forward):
    row = mutants.row_of(forward, "silent_bf16", "")
    assert row["fla"] == 1 and row["verdict"] == "FAIL"


def test_what_is_below_the_noise_passes_both(forward):
    passes, report = judged(forward, "state_read_in_bf16", 1)
    assert passes and report.passed


@pytest.mark.parametrize("name", mutants.LAWS)
def test_a_bit_breaks_a_law(name):
    report = mutants.law_of(name)
    assert {case["against"] for case in report.cases if case["verdict"] == "fail"} == {f"invariant:{law}" for law in mutants.LAWS[name][1]}
