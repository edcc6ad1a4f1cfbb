import io
import sys
import types

import kda_check
import pytest
from kda_check import _progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Bar:
    """What is used of tqdm."""

    made = []

    def __init__(self, **words):
        self.n, self.postfix, self.is_open = 0, "", True
        self.made.append(self)

    def set_postfix_str(self, text, refresh):
        self.postfix = text

    def update(self, more):
        self.n += more

    def close(self):
        self.is_open = False


@pytest.fixture
def terminal(monkeypatch):
    """Gives a terminal: within a test, for pytest has a standard error of its own before."""
    monkeypatch.setattr(_progress, "PATIENCE", 0)

    def given():
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return given


@pytest.fixture
def no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)


@pytest.fixture
def tqdm(monkeypatch):
    monkeypatch.setattr(Bar, "made", [])
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    return Bar.made


def test_a_function_is_told_the_share_that_is_done_up_to_all_of_it(problem):
    told = []
    report = kda_check.check(**problem, progress=lambda *words: told.append(words))
    shares = [share for share, _ in told]
    assert report.passed and shares == sorted(shares) and shares[-1] == 1
    assert "comparing" in told[-1][1]
    with pytest.raises(ZeroDivisionError):
        kda_check.check(**problem, progress=lambda share, what: 1 / 0)


def test_a_terminal_gets_one_line_of_which_nothing_is_left(problem, terminal, no_tqdm):
    screen = terminal()
    kda_check.assert_accurate(**problem)
    shown = screen.getvalue()
    assert shown.startswith("\r\x1b[Kkda-check: ") and "100 %" in shown and "\n" not in shown
    assert shown.endswith("\r\x1b[K")


def test_nothing_is_shown_where_nobody_looks(problem, terminal, tqdm, monkeypatch):
    screen = terminal()
    kda_check.check(**problem, progress=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    kda_check.check(**problem)
    assert not tqdm and screen.getvalue() == sys.stderr.getvalue() == ""


def test_tqdm_shows_it_where_it_is_installed(problem, tqdm):
    kda_check.check(**problem, progress=True)
    assert [(bar.n, bar.is_open) for bar in tqdm] == [(100, False)] and "comparing" in tqdm[0].postfix


def test_verify_tells_it_of_laws_too(tqdm):
    def zeros(q, k, v, g, beta, scale):
        return v * 0

    told = []
    kda_check.verify(zeros, "control:T=8,K=8,V=8", framework="numpy", invariants=["repeat"],
                     progress=lambda *words: told.append(words))  # fmt: skip
    assert {"repeat" in what for _, what in told} == {False, True} and not tqdm
