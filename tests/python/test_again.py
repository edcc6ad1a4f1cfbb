"""What a report says to do something again, done; and files that `verify` keeps. Without torch: the kernels are numpy's."""

import os
import shlex

import kda_check
import numpy as np
import pytest
from conftest import recurrence
from kda_check import Fixture, Signature, Unsupported, _program

SMALL = "control:T=20,H=2,K=16,V=8"


def right(q, k, v, g, beta, scale):
    o, state = recurrence(*(np.asarray(x, np.float64) for x in (q, k, v, g, beta)), scale)
    return o.astype(v.dtype), state.astype(np.float32)


def wrong(q, k, v, g, beta, scale):
    o, state = right(q, k, v, g, beta, scale)
    return o * v.dtype.type(1.05), state


def forgetful(q, k, v, g, beta, scale):
    """Answers another thing at every second call."""
    forgetful.calls = getattr(forgetful, "calls", 0) + 1
    o, state = right(q, k, v, g, beta, scale)
    return o * v.dtype.type(1 + forgetful.calls % 2 * 1e-6), state


def racy(q, k, v, g, beta, scale):
    racy.calls = getattr(racy, "calls", 0) + 1
    o, state = right(q, k, v, g, beta, scale)
    o[0, 5, 0, : racy.calls] *= 2
    return o, state


def done(line):
    """The report of what a repro line says: a command, or a call of verify."""
    if line.startswith("kda-check "):
        return _program.run(shlex.split(line)[1:]).exit_code
    return 0 if eval(line, {"kda_check": kda_check, "wrong": wrong, "forgetful": forgetful, "right": right}).passed else 1


def repros(report):
    """Those that are printed, which the JSON has, too."""
    said = {case["repro"] for case in report.cases if case["verdict"] in ("fail", "inconclusive")}
    printed = [line.partition("repro: ")[2] for line in str(report).split("\n") if "repro: " in line]
    assert printed and said.issuperset(printed)
    return printed


@pytest.mark.parametrize("problem", [SMALL, SMALL + ",dtype=bf16"])
def test_the_command_on_a_file_that_verify_keeps_fails_again(problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for save in (tmp_path / "a b.h5", "mine.h5"):
        (line,) = repros(kda_check.verify(wrong, problem, framework="numpy", save=save))
        assert line.startswith("kda-check run ") and done(line) == 1
        assert list(Fixture.read(save).expected) == ["wrong"]


def test_a_wrong_answer_that_has_other_bits_at_a_second_call_is_said_to_have_them():
    said = "racy: o: other bits at another call: a race, or memory that nothing wrote"
    assert said in kda_check.verify(racy, SMALL, framework="numpy").notes
    assert not any("race" in note for note in kda_check.verify(wrong, SMALL, framework="numpy").notes)


@pytest.mark.parametrize("words", [{}, {"compute": "bf16", "name": "me"}, {"options": ["--limit", "rms_ratio=1e-3"]}])
def test_where_nothing_is_kept_the_call_that_keeps_it_is_said(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = repros(kda_check.verify(wrong, SMALL, framework="numpy", **words))
    assert not os.listdir() and done(line) == 1 and len(os.listdir()) == 1
    (line,) = repros(eval(line, {"kda_check": kda_check, "wrong": wrong}))
    assert line.startswith("kda-check run ") and done(line) == 1


def test_no_command_is_printed_on_a_file_that_is_gone(problem):
    report = kda_check.check(**{**problem, "o": problem["o"] * 1.1})
    assert "save=" in report.repro and "kda-check run" not in str(report)
    fixture = kda_check.regime(SMALL)
    report = kda_check.verify(wrong, fixture, framework="numpy", invariants=["repeat", "split"])
    assert "save=" in report.repro and "kda-check run" not in str(report)
    assert not any("my_kernel" in case["repro"] or "/" in case["repro"] for case in report.cases)


def test_a_broken_law_is_repeated_by_the_call_that_is_said(tmp_path):
    forgetful.calls = 0
    for words in ({}, {"save": tmp_path / "kept.h5"}):
        report = kda_check.verify(forgetful, SMALL, framework="numpy", invariants=["repeat"], **words)
        line = report.documents[1]["cases"][0]["repro"]
        assert line in str(report) and done(line) == 1, report
        assert ("kept.h5" in line) == bool(words)


def test_a_signature_is_said_in_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def mine(query, k, v, g, beta, scale):
        return wrong(query, k, v, g, beta, scale)

    signature = Signature(words={"query": "q"}, compute={"float32": "fp32"})
    (line,) = repros(kda_check.verify(mine, SMALL, framework="numpy", signature=signature))
    assert not eval(line, {"kda_check": kda_check, "mine": mine}).passed and len(line) < 250
    assert repr(kda_check.signatures.FLA_GDN) == "kda_check.signatures.FLA_GDN"


def test_what_fails_of_a_suite_is_said_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kda_check.regime(SMALL).write("a.h5")
    (tmp_path / "mine.txt").write_text(f"{SMALL} --dtype fp32,bf16\na.h5 --limit max_abs=1e-9\na.h5 --dtype bf16\n")
    lines = repros(kda_check.verify(wrong, "@mine.txt", framework="numpy"))
    assert len(lines) == 4 and all(line.startswith("kda_check.verify(wrong, ") for line in lines), lines
    assert [done(line) for line in lines] == [1] * 4
    lines = repros(kda_check.verify(wrong, "@mine.txt", framework="numpy", save="kept"))
    commands = [line for line in lines if line.startswith("kda-check run kept/")]
    assert len(commands) == 3 == len(os.listdir("kept")) and [done(line) for line in commands] == [1] * 3
    lines = repros(kda_check.verify(right, "@mine.txt", framework="numpy", save="passed"))
    with pytest.raises(kda_check.EnvironmentProblem, match=r"cannot write: .* \(mine.txt\)"):
        kda_check.verify(right, "@mine.txt", framework="numpy", save="mine.txt")
    assert "max_abs" in lines[0] and len(lines) == 1 == len(os.listdir("passed"))


def test_what_is_added_to_a_report_shows_names_as_text():
    known = Signature(compute={"float32": "fp32"})
    report = kda_check.verify(right, SMALL, framework="numpy", signature=known, name="a\x1b[31m\n::error::",
                              options=["--variant", "none", "--tensor", "final_state"])  # fmt: skip
    assert "a\x1b[31m\n::error::: not judged: o" in report.errors[0]
    added = str(report).splitlines()[-2:]
    assert [line.partition(" (")[0] for line in added] == [
        r"FAIL: a\x1b[31m\x0a::error::: not judged: o",
        r"note: a\x1b[31m\x0a::error::: compute as its signature says, fp32 for float32; its limits follow from that"]
